//! Builds a current kubectl from its Go module into the cache, once per version.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;

use crate::go::{self, Module};

/// The Go module of kubectl.
const MODULE: &str = "k8s.io/kubectl";
/// Packages with the version variables of kubectl.
const STAMPED: [&str; 2] = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"];

/// Builds kubectl if it is missing, and prints its path.
pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    let path = build(root)?;
    #[expect(clippy::print_stdout, reason = "the result of the task")]
    {
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds kubectl if it is missing, and returns its path.
pub(crate) fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let module = Module::read(root.join("tools/kubectl"))?;
    let version = module.version_of(MODULE)?;
    let toolchain = module.toolchain()?;
    let home = go::cache()?.join(format!("kubectl/{version}-{toolchain}"));
    let path = home.join("kubectl");
    if !path.is_file() {
        go::print_progress(&format!(
            "building kubectl {version} with {toolchain}: this takes some minutes, once"
        ))?;
        fs::create_dir_all(&home)
            .with_context(|| format!("failed to create {}", home.display()))?;
        module.build(".", &go::stamps(&STAMPED, &release(version)), &path)?;
    }
    Ok(path)
}

/// The Kubernetes release of a library module: `v0.35.1` is `v1.35.1`.
fn release(version: &str) -> String {
    format!("v1.{}", version.trim_start_matches("v0."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_is_stamped_with_the_version_of_kubernetes() {
        let flags = go::stamps(&STAMPED, &release("v0.35.2"));
        assert!(flags.contains("component-base/version.gitVersion=v1.35.2"));
        assert!(flags.contains("gitMinor=35"));
    }
}
