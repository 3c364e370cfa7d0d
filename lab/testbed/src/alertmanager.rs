//! A real Alertmanager, which the controller creates silences in.

use std::{fs, path::Path};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    process::{Part, Program},
    prometheus::debian,
};

/// Starts Debian's Alertmanager on this port. It notifies no receiver.
pub fn start(port: u16, directory: &Path) -> anyhow::Result<Part> {
    let home = directory.join("alertmanager");
    fs::create_dir_all(&home)?;
    let config = home.join("alertmanager.yml");
    // JSON is YAML.
    let settings = json!({"route": {"receiver": "none"}, "receivers": [{"name": "none"}]});
    fs::write(&config, settings.to_string())?;
    let program = Program {
        name: "alertmanager".to_owned(),
        path: debian("prometheus-alertmanager"),
        args: vec![
            format!("--config.file={}", config.display()),
            format!("--storage.path={}", home.join("data").display()),
            format!("--web.listen-address=127.0.0.1:{port}"),
            // It has no peers.
            "--cluster.listen-address=".to_owned(),
        ],
        ..Program::default()
    };
    Part::start(program, directory)
}

/// The silences that an argument of `amtool silence query` selects, such as a matcher: those in force, or those that have
/// expired, as Debian's `amtool` shows them.
pub async fn silences(port: u16, selector: &str, expired: bool) -> anyhow::Result<Vec<Value>> {
    let mut amtool = Command::new(debian("amtool"));
    amtool.args(["silence", "query", "--output=json"]);
    amtool.arg(format!("--alertmanager.url=http://127.0.0.1:{port}"));
    if expired {
        amtool.arg("--expired");
    }
    let output = amtool.arg(selector).output().await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "amtool failed: {errors}");
    serde_json::from_slice(&output.stdout).context("amtool did not write JSON")
}
