//! The alerts of the manifests, judged by Prometheus' own promtool.

use std::{
    fs,
    io::Write as _,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

use super::rights::documents;

/// Checks a scrape.
pub(crate) fn check_metrics(text: &str) {
    let mut tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed: apt-get install prometheus");
    tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let ended = tool.wait_with_output().unwrap();
    // 3 stands for advice on names, which are those of the original.
    assert!(matches!(ended.status.code(), Some(0 | 3)), "{}", shown(&ended));
}

fn shown(ended: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&ended.stdout) + &text(&ended.stderr)
}

const SERIES: &[(&str, &str)] = &[
    ("UpgradeConfigValidationFailedSRE", "upgradeoperator_upgradeconfig_validation_failed"),
    ("UpgradeControlPlaneUpgradeTimeoutSRE", "upgradeoperator_controlplane_timeout"),
    ("UpgradeNodeUpgradeTimeoutSRE", "upgradeoperator_worker_timeout"),
    ("UpgradeNodeDrainFailedSRE", "upgradeoperator_node_drain_timeout"),
    ("UpgradeStateNotificationFailureSRE", "upgrade_notification_failed"),
];
const SYNC: &str = "UpgradeConfigSyncFailureOver4HrSRE";
const SYNC_SERIES: &str = "upgradeoperator_upgradeconfig_sync_timestamp";

/// A test of promtool: after 5 hours, these alerts fire on these series, which have a value each minute.
fn case(series: &[(&str, String)], firing: &[&str]) -> Value {
    let input: Vec<Value> =
        series.iter().map(|(name, values)| json!({"series": name, "values": values})).collect();
    let all = SERIES.iter().map(|(alert, _)| *alert).chain([SYNC]);
    let expected =
        |alert: &str| format!("count(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}})");
    let tests: Vec<Value> = all
        .map(|alert| {
            let samples = if firing.contains(&alert) {
                json!([{"labels": "{}", "value": 1}])
            } else {
                json!([])
            };
            json!({"expr": expected(alert), "eval_time": "5h", "exp_samples": samples})
        })
        .collect();
    json!({"interval": "1m", "input_series": input, "promql_expr_test": tests})
}

pub(super) fn each_alert_fires_on_its_metric() {
    let manifest = documents(include_str!("../../../../../deploy/openshift/monitoring.yaml"));
    let rule = manifest.iter().find(|object| object["kind"] == "PrometheusRule").unwrap();
    // Since the epoch of the test: it was synced each minute.
    let synced = (SYNC_SERIES, "0+60x300".to_owned());
    let mut cases = vec![case(std::slice::from_ref(&synced), &[]), case(&[], &[SYNC])];
    cases.push(case(&[(SYNC_SERIES, "0x300".to_owned())], &[SYNC]));
    for (alert, name) in SERIES {
        let series = |value: u8| (*name, format!("{value}x300"));
        cases.push(case(&[synced.clone(), series(1)], &[alert]));
        cases.push(case(&[synced.clone(), series(0)], &[]));
    }
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &Value| {
        fs::write(directory.path().join(name), value.to_string()).unwrap();
    };
    write("rules.yml", &rule["spec"]);
    write("tests.yml", &json!({"rule_files": ["rules.yml"], "tests": cases}));
    for arguments in [["check", "rules", "rules.yml"], ["test", "rules", "tests.yml"]] {
        let tool = Command::new("promtool").args(arguments).current_dir(directory.path()).output();
        let ended = tool.expect("promtool is installed: apt-get install prometheus");
        assert!(ended.status.success(), "{}", shown(&ended));
    }
    assert_eq!(rule["spec"]["groups"][0]["rules"].as_array().unwrap().len(), SERIES.len() + 1);
}
