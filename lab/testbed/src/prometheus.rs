//! A real Prometheus with alert rules, which scrapes Refit's programs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::process::{Part, Program};

/// The alert rules that Refit ships, for the Prometheus operator.
pub const RULES: &str = include_str!("../../../deploy/monitoring/prometheus_rule.yaml");

/// Debian's path of a program.
pub(crate) fn debian(name: &str) -> PathBuf {
    Path::new("/usr/bin").join(name)
}

/// Debian's `promtool`.
pub fn promtool() -> PathBuf {
    debian("promtool")
}

/// Refit's alert rules as a rule file of Prometheus. With `at_once`, an alert fires as soon as its expression holds.
pub fn rules(at_once: bool) -> anyhow::Result<Value> {
    let mut rule: Value = serde_saphyr::from_str(RULES)?;
    let mut spec = rule["spec"].take();
    let groups = spec["groups"].as_array_mut().context("the rules have no groups")?;
    let of_groups = groups.iter_mut().filter_map(|group| group["rules"].as_array_mut()).flatten();
    for rule in of_groups.filter(|_| at_once) {
        rule["for"] = "0s".into();
    }
    Ok(spec)
}

/// Starts Debian's Prometheus on this port. It scrapes each target, a job and its port on loopback, and evaluates the rules,
/// a rule file, every second.
pub fn start(
    port: u16,
    targets: &[(&str, u16)],
    rules: &Value,
    directory: &Path,
) -> anyhow::Result<Part> {
    let home = directory.join("prometheus");
    fs::create_dir_all(&home)?;
    let (config, rules_file) = (home.join("prometheus.yml"), home.join("rules.yml"));
    // JSON is YAML.
    fs::write(&rules_file, rules.to_string())?;
    let jobs: Vec<Value> = targets
        .iter()
        .map(|(job, port)| {
            json!({
                "job_name": job,
                "static_configs": [{"targets": [format!("127.0.0.1:{port}")]}],
            })
        })
        .collect();
    let scrape = json!({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [rules_file],
        "scrape_configs": jobs,
    });
    fs::write(&config, scrape.to_string())?;
    let program = Program {
        name: "prometheus".to_owned(),
        path: debian("prometheus"),
        args: vec![
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", home.join("data").display()),
            format!("--web.listen-address=127.0.0.1:{port}"),
        ],
        ..Program::default()
    };
    Part::start(program, directory)
}
