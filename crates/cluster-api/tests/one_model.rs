//! No other crate models Cluster API: words that reveal such code appear only in this crate, except
//! in the files listed here with their reasons.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A word, and the files outside this crate that may contain it.
struct Telltale {
    word: &'static str,
    /// Whether this crate contains the word; if not, only a copy of the model would contain it.
    at_home: bool,
    allowed: &'static [(&'static str, &'static str)],
}

const TELLTALES: [Telltale; 16] = [
    Telltale {
        word: "UPDATE_MACHINE_HOOK",
        at_home: true,
        allowed: &[
            ("crates/kinds/src/keys.rs", "the name"),
            ("lab/cluster-api-shell/src/machine/in_place.rs", "ends the hook: a write"),
            ("lab/cluster-api-shell/src/machine_set/moving.rs", "begins the hook: a write"),
        ],
    },
    Telltale { word: "ControlPlaneKubeletLocalMode", at_home: true, allowed: &[] },
    Telltale { word: "controlPlaneComponentHealthCheckSeconds", at_home: true, allowed: &[] },
    Telltale { word: "\"IfNotPresent\"", at_home: true, allowed: &[] },
    Telltale {
        word: "\"initConfiguration\"",
        at_home: true,
        allowed: &[
            ("crates/core/src/change/kubeadm.rs", "asks whether a request was converted already"),
            ("lab/cluster-api-shell/src/control_plane/trigger.rs", "removes the field: a write"),
        ],
    },
    Telltale { word: "div_euclid(100)", at_home: true, allowed: &[] },
    Telltale {
        word: "strategy/rollingUpdate/",
        at_home: true,
        allowed: &[
            ("crates/core/src/invariants/objects.rs", "judges the model, so it reads by itself"),
            ("lab/world/src/manifests/fields.rs", "names the field of a user's manifest"),
            ("lab/world/src/simulate/end.rs", "judges the model, so it reads by itself"),
        ],
    },
    Telltale {
        word: ") / 100",
        at_home: false,
        allowed: &[("lab/apiserver/src/eviction.rs", "Kubernetes' rounding of budgets")],
    },
    Telltale {
        word: "CLONED_FROM_GROUPKIND",
        at_home: true,
        allowed: &[
            ("crates/kinds/src/keys.rs", "the key"),
            ("crates/predict/src/control_planes.rs", "a remedy names it"),
            ("crates/cli/src/plan/gather.rs", "finds the template to read"),
        ],
    },
    Telltale {
        word: "OWNER_REMEDIATED",
        at_home: true,
        allowed: &[
            ("crates/kinds/src/conditions.rs", "the type"),
            ("lab/cluster-api-shell/src/control_plane/remediate.rs", "sets the condition: a write"),
            ("lab/cluster-api-shell/src/health_check/mod.rs", "sets the condition: a write"),
            ("lab/cluster-api-shell/src/machine_set/remediation.rs", "sets the condition: a write"),
        ],
    },
    Telltale {
        word: "\"OwnerRemediated\"",
        at_home: false,
        allowed: &[
            ("crates/kinds/src/conditions.rs", "the type"),
            ("crates/core/src/invariants/objects.rs", "judges the model, so it reads by itself"),
            ("lab/world/src/holds.rs", "judges what is held, so it reads by itself"),
        ],
    },
    Telltale {
        word: "certificatesExpiryDate",
        at_home: true,
        allowed: &[("lab/cluster-api-shell/src/machine/status.rs", "states the fact: a write")],
    },
    Telltale { word: "min_healthy_period", at_home: true, allowed: &[] },
    Telltale { word: "failureDomains", at_home: true, allowed: &[] },
    Telltale { word: ".rolling_update.", at_home: true, allowed: &[] },
    Telltale {
        word: "MACHINE_TEMPLATE_HASH",
        at_home: true,
        allowed: &[
            ("crates/kinds/src/keys.rs", "the key"),
            ("lab/cluster-api-shell/src/machine_set/moving.rs", "the patch that moves a Machine"),
        ],
    },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every source file of the workspace except tests, by path from the root.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut directories = vec![root().join("crates"), root().join("lab")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                let other = matches!(name, "tests" | "benches" | "target" | "fixtures" | "go");
                if !other && !name.ends_with("_tests") {
                    directories.push(path);
                }
            } else if path.extension().is_some_and(|kind| kind == "rs")
                && !name.ends_with("tests.rs")
            {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                let from_root = path.strip_prefix(root()).unwrap().to_str().unwrap();
                found.push((from_root.to_owned(), code.to_owned()));
            }
        }
    }
    found
}

#[test]
fn no_other_crate_models_cluster_api() {
    let sources = sources();
    assert!(sources.len() > 200, "only {} files were found", sources.len());
    for Telltale { word, at_home, allowed } in TELLTALES {
        let with: Vec<&str> = sources
            .iter()
            .filter(|(_, code)| code.contains(word))
            .map(|(path, _)| path.as_str())
            .collect();
        for (file, reason) in allowed {
            assert!(with.contains(file), "{file} has no {word} any more: drop \"{reason}\"");
        }
        let (here, elsewhere): (Vec<&str>, Vec<&str>) =
            with.into_iter().partition(|path| path.starts_with("crates/cluster-api/"));
        assert_eq!(!here.is_empty(), at_home, "{word} gives no copy away: choose another word");
        for path in elsewhere {
            assert!(
                allowed.iter().any(|(file, _)| *file == path),
                "{path} has {word}: call refit_cluster_api instead, or list the file with a reason"
            );
        }
    }
}
