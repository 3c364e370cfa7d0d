//! The `refit` command line against a bed.

use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;
use tokio::process::Command;

use crate::controller::program;

/// Runs `refit` with these arguments and `-o json`, and returns its output.
pub async fn json(kubeconfig: &Path, namespace: &str, args: &[&str]) -> anyhow::Result<Value> {
    let output = Command::new(program("refit", "refit").await?)
        .args(args)
        .args(["-o", "json", "--namespace", namespace, "--kubeconfig"])
        .arg(kubeconfig)
        .output()
        .await
        .context("failed to start refit")?;
    serde_json::from_slice(&output.stdout).with_context(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!("`refit {}` printed no JSON: {errors}", args.join(" "))
    })
}
