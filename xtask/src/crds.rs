//! Writes the CRDs of Refit's kinds, and of UpgradeConfig, which is installed on clusters of OpenShift only.

use std::{collections::BTreeMap, fs, path::Path, process::ExitCode};

use anyhow::Context as _;
use kube::core::crd::CustomResourceExt as _;
use refit_openshift::upgrade_config::UpgradeConfig;

/// Writes one file per kind, or with `check` reports the stale ones.
pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<ExitCode> {
    let mut stale = Vec::new();
    for (name, text) in files()? {
        let path = root.join(&name);
        if fs::read_to_string(&path).is_ok_and(|existing| existing == text) {
            continue;
        }
        if !check {
            fs::create_dir_all(path.parent().unwrap_or(root))
                .and_then(|()| fs::write(&path, &text))
                .with_context(|| format!("failed to write {}", path.display()))?;
        }
        stale.push(name);
    }
    let line = match (check, stale.is_empty()) {
        (_, true) => "up to date".to_owned(),
        (true, false) => format!("stale: {}; run `cargo xtask crds`", stale.join(", ")),
        (false, false) => format!("written: {}", stale.join(", ")),
    };
    #[expect(clippy::print_stdout, reason = "the result of the task")]
    {
        println!("{line}");
    }
    Ok(if check && !stale.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Path and content of each CRD.
fn files() -> anyhow::Result<BTreeMap<String, String>> {
    let ours = refit_kinds::crds::refit_crds().into_iter().map(|crd| ("deploy/crds", crd));
    let mut files = BTreeMap::new();
    for (directory, crd) in ours.chain([("deploy/openshift/crds", UpgradeConfig::crd())]) {
        let name = format!("{directory}/{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
        let yaml = serde_saphyr::to_string(&crd).with_context(|| name.clone())?;
        let text = format!("# Written by `cargo xtask crds`. Do not edit.\n{yaml}");
        files.insert(name, text);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_in_deploy_match_the_code() {
        for (name, text) in files().unwrap() {
            let path = crate::root().join(&name);
            let existing = fs::read_to_string(&path).unwrap_or_default();
            assert!(existing == text, "{name} is stale: run `cargo xtask crds`");
        }
    }
}
