//! The `refit` command line against a bed.

use std::{env, path::PathBuf};

use anyhow::Context as _;
use serde_json::Value;
use tokio::process::Command;

use crate::{bed::Bed, controller::program};

/// Environment variable with the path of a built `refit`; by default cargo builds one.
const BUILT: &str = "REFIT_BIN";

/// Runs `refit` with these arguments and `-o json`, and returns its output.
pub async fn json(bed: &Bed, namespace: &str, args: &[&str]) -> anyhow::Result<Value> {
    let program = match env::var_os(BUILT) {
        Some(built) => PathBuf::from(built),
        None => program("refit", "refit").await?,
    };
    let output = Command::new(program)
        .args(args)
        .args(["-o", "json", "--namespace", namespace, "--kubeconfig"])
        .arg(bed.directory.join("admin.kubeconfig"))
        .output()
        .await
        .context("failed to start refit")?;
    serde_json::from_slice(&output.stdout).with_context(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!("`refit {}` printed no JSON: {errors}", args.join(" "))
    })
}
