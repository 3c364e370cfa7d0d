//! Our command line against a bed.

use std::{env, path::PathBuf};

use anyhow::Context as _;
use serde_json::Value;
use tokio::process::Command;

use crate::{bed::Bed, controller::program};

/// Names a `refit` that was built already; by default cargo builds one.
const BUILT: &str = "REFIT_BIN";

/// Runs `refit` with these arguments and `-o json`, and returns what it says.
pub async fn json(bed: &Bed, namespace: &str, args: &[&str]) -> anyhow::Result<Value> {
    let program = match env::var_os(BUILT) {
        Some(built) => PathBuf::from(built),
        None => program("refit", "refit").await?,
    };
    let said = Command::new(program)
        .args(args)
        .args(["-o", "json", "--namespace", namespace, "--kubeconfig"])
        .arg(bed.folder.join("admin.kubeconfig"))
        .output()
        .await
        .context("refit cannot be started")?;
    serde_json::from_slice(&said.stdout).with_context(|| {
        let errors = String::from_utf8_lossy(&said.stderr);
        format!("`refit {}` says: {errors}", args.join(" "))
    })
}
