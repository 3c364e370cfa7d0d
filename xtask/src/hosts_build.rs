//! Builds real kubeadm, kubelet and the rest of Kubernetes from its Go module, for the tests that
//! upgrade real hosts: one directory per version, as `REFIT_K8S_BIN` expects them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use clap::Args;

use crate::go::{self, Module};

/// The Go module of the programs.
const MODULE: &str = "k8s.io/kubernetes";
/// The programs of a host or of a control plane image.
const PROGRAMS: [&str; 6] = [
    "kubeadm",
    "kubectl",
    "kubelet",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
];
/// Packages with the version variables of the programs.
const STAMPED: [&str; 2] = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"];

/// The versions to build.
#[derive(Args)]
pub(crate) struct HostsBuildArgs {
    /// Versions such as v1.34 or v1.34.10; by default every one of lab/hosts/go.
    #[arg(value_name = "VERSION")]
    versions: Vec<String>,
}

/// Builds missing programs and prints the directory that contains one directory per version.
pub(crate) fn run(root: &Path, args: &HostsBuildArgs) -> anyhow::Result<ExitCode> {
    let home = build(root, &args.versions)?;
    #[expect(clippy::print_stdout, reason = "the result of the task")]
    {
        println!("{}", home.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the missing programs of these versions, or of all; returns their directory.
fn build(root: &Path, wanted: &[String]) -> anyhow::Result<PathBuf> {
    let modules = modules(&root.join("lab/hosts/go"))?;
    let mut versions = Vec::new();
    for module in &modules {
        versions.push((module.version_of(MODULE)?, module));
    }
    if let Some(unknown) =
        wanted.iter().find(|wanted| !versions.iter().any(|(version, _)| is(version, wanted)))
    {
        let known: Vec<&str> = versions.iter().map(|(version, _)| *version).collect();
        bail!("unknown Kubernetes version {unknown}, lab/hosts/go has {}", known.join(" and "));
    }
    // One directory contains them all, even if a module requires a newer toolchain: the directory
    // depends only on the installed toolchain and go.mod.
    let home = go::cache()?.join(format!("hosts/{}", go::toolchain(root)?));
    for (version, module) in versions {
        if wanted.is_empty() || wanted.iter().any(|wanted| is(version, wanted)) {
            programs(module, version, &home.join(version))?;
        }
    }
    Ok(home)
}

/// Whether a version matches the wanted one: `v1.34.10` matches `v1.34`.
fn is(version: &str, wanted: &str) -> bool {
    version.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The modules of the tree, one per minor version of Kubernetes, in the order of their directories.
fn modules(go: &Path) -> anyhow::Result<Vec<Module>> {
    let entries = fs::read_dir(go).with_context(|| format!("failed to read {}", go.display()))?;
    let mut directories = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("failed to read {}", go.display()))?;
        directories.push(entry.path());
    }
    directories.sort();
    directories.into_iter().map(Module::read).collect()
}

fn programs(module: &Module, version: &str, home: &Path) -> anyhow::Result<()> {
    go::directory_once(home, |partial| {
        let flags = go::stamps(&STAMPED, version);
        for program in PROGRAMS {
            go::print_progress(&format!(
                "building {program} {version}: this takes some minutes, once"
            ))?;
            module.build(&format!("{MODULE}/cmd/{program}"), &flags, &partial.join(program))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_and_a_full_version_name_the_same() {
        assert!(is("v1.34.10", "v1.34"));
        assert!(is("v1.34.10", "v1.34.10"));
        assert!(!is("v1.34.10", "v1.34.1"));
        assert!(!is("v1.34.10", "v1.3"));
    }

    #[test]
    fn two_lines_of_kubernetes_can_be_built_in_full() {
        let modules = modules(&crate::root().join("lab/hosts/go")).expect("they are in the tree");
        let versions: Vec<&str> = modules
            .iter()
            .map(|module| module.version_of(MODULE).expect("it is required"))
            .collect();
        assert!(is(versions[0], "v1.34") && is(versions[1], "v1.35"));
        for (module, program) in
            modules.iter().flat_map(|module| PROGRAMS.map(|program| (module, program)))
        {
            assert!(module.has_tool(&format!("{MODULE}/cmd/{program}")), "{program}");
        }
    }
}
