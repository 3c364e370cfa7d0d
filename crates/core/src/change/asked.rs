//! Whether Cluster API asks for an update: a request alone proves nothing, since anyone who reaches
//! the hooks can send one, and an old one may arrive late.

use std::collections::BTreeMap;

use refit_cluster_api::kinds::{ContractRef, Machine, update_hook_pending};
use refit_kinds::{
    keys,
    refit::{Goal, MachineUid},
    version::StatedVersion,
};
use serde_json::Value;

use super::objects::{Objects, Part};

/// Why a request for an update is not Cluster API's current one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAsked {
    /// The Machine was deleted, or replaced by another one of its name.
    #[error("it was deleted")]
    Gone,
    /// Cluster API has not marked the Machine, or the hook is not pending.
    #[error("Cluster API is not updating it in place")]
    NotMarked,
    /// The Machine has another version.
    #[error("its spec.version is {wanted}, and the request has {goal}")]
    OtherVersion {
        /// The version in the Machine's spec.
        wanted: StatedVersion,
        /// The version in the request.
        goal: StatedVersion,
    },
    /// The request has an object that is not the Machine's.
    #[error("{object} is not an object of this Machine")]
    OtherObject {
        /// Kind and name of the object.
        object: String,
    },
    /// The objects of the Machine have other values.
    #[error("what Updater {updater} claims of its objects is not what the request has")]
    OtherValues {
        /// The Updater that claims them.
        updater: String,
    },
}

/// Whether a Namespace with these labels opted in: Refit acts in no other one, whatever the
/// ExtensionConfig selects.
pub fn opted_in(labels: &BTreeMap<String, String>) -> bool {
    labels.get(keys::IN_PLACE).is_some_and(|value| value == keys::OPTED_IN)
}

/// Whether the API server refuses what would replace Machines in a Namespace with these labels.
pub fn holds_replacements(labels: &BTreeMap<String, String>) -> bool {
    labels.get(keys::HOLD_REPLACEMENTS).is_some_and(|value| value == keys::OPTED_IN)
}

/// Checks a request against the Machine as it is now (`docs/facts/machine.md#in-place-update`):
/// Cluster API sends what it has written to the Machine, and marks it before.
pub fn asked(machine: Option<&Machine>, uid: &MachineUid, goal: &Goal) -> Result<(), NotAsked> {
    let machine = machine.filter(|machine| MachineUid::of(&machine.metadata) == *uid);
    let machine = machine.ok_or(NotAsked::Gone)?;
    let marked = machine.metadata.annotations.as_ref().is_some_and(|annotations| {
        annotations.contains_key(keys::UPDATE_IN_PROGRESS) && update_hook_pending(annotations)
    });
    if !marked {
        return Err(NotAsked::NotMarked);
    }
    if !goal.accepts(&machine.spec.version) {
        return Err(NotAsked::OtherVersion {
            wanted: machine.spec.version.clone(),
            goal: goal.kubernetes_version.clone().into(),
        });
    }
    Ok(())
}

/// Checks that the objects of a request are those of the Machine: others may have any values.
pub fn objects_asked(machine: &Machine, desired: &Objects) -> Result<(), NotAsked> {
    let config = machine.spec.bootstrap.config_ref.as_ref();
    for (part, wanted) in
        [(Part::Infrastructure, Some(&machine.spec.infrastructure_ref)), (Part::Bootstrap, config)]
    {
        let Some(object) = desired.part(part) else { continue };
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let group = text("/apiVersion").split_once('/').map_or("", |(group, _)| group);
        let is_named = |wanted: &ContractRef| {
            (&*wanted.api_group, &*wanted.kind, &*wanted.name)
                == (group, text("/kind"), text("/metadata/name"))
        };
        if !wanted.is_some_and(is_named) {
            let object = format!("{}/{}", text("/kind"), text("/metadata/name"));
            return Err(NotAsked::OtherObject { object });
        }
    }
    Ok(())
}

/// Checks the parts of a request against those of the objects as they are now.
pub fn parts_asked(live: &Goal, goal: &Goal) -> Result<(), NotAsked> {
    match goal.parts.iter().find(|part| !live.parts.contains(part)) {
        Some(part) => Err(NotAsked::OtherValues { updater: part.updater.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::GoalPart;
    use serde_json::json;

    use super::*;

    fn machine(annotations: &serde_json::Value) -> Machine {
        serde_json::from_value(json!({
            "metadata": {"name": "m", "uid": "u", "annotations": annotations},
            "spec": {"clusterName": "c", "version": "v1.35.0"},
        }))
        .unwrap()
    }

    #[test]
    fn a_request_with_the_objects_of_another_machine_is_not_asked_for() {
        let mut machine = machine(&json!({}));
        machine.spec.infrastructure_ref =
            ContractRef { api_group: "g".into(), kind: "M".into(), name: "m".into() };
        let with = |api_version: &str, kind: &str, name: &str| Objects {
            owner: json!({}),
            infrastructure: json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}),
            bootstrap: None,
        };
        assert_eq!(objects_asked(&machine, &with("g/v1", "M", "m")), Ok(()));
        for other in [with("g/v1", "M", "n"), with("g/v1", "N", "m"), with("h/v1", "M", "m")] {
            assert!(objects_asked(&machine, &other).is_err());
        }
        let mut config = with("g/v1", "M", "m");
        config.bootstrap =
            Some(json!({"apiVersion": "b/v1", "kind": "C", "metadata": {"name": "c"}}));
        assert!(objects_asked(&machine, &config).is_err());
    }

    #[test]
    fn a_request_with_old_values_of_an_updater_is_not_asked_for() {
        let of = |hash: &str| {
            let part = GoalPart { updater: "memory".into(), hash: hash.into() };
            Goal { parts: vec![part], ..Goal::default() }
        };
        assert_eq!(parts_asked(&of("32"), &of("32")), Ok(()));
        assert_eq!(parts_asked(&of("32"), &Goal::default()), Ok(()));
        let old = parts_asked(&of("32"), &of("16")).unwrap_err().to_string();
        assert!(old.contains("Updater memory"), "{old}");
    }

    #[test]
    fn only_the_exact_label_opts_a_namespace_in() {
        let table = [
            (vec![], false),
            (vec![(keys::IN_PLACE, "enabled"), ("team", "a")], true),
            (vec![(keys::IN_PLACE, "Enabled")], false),
            (vec![(keys::IN_PLACE, "")], false),
            (vec![("in-place", "enabled")], false),
        ];
        for (labels, wanted) in table {
            let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
            let labels: BTreeMap<String, String> = labels.collect();
            assert_eq!(opted_in(&labels), wanted, "{labels:?}");
        }
    }

    #[test]
    fn only_what_the_live_machine_shows_is_asked_for() {
        let marked = machine(&json!({
            keys::UPDATE_IN_PROGRESS: "", keys::PENDING_HOOKS: keys::UPDATE_MACHINE_HOOK,
        }));
        let no_mark = machine(&json!({keys::PENDING_HOOKS: keys::UPDATE_MACHINE_HOOK}));
        let no_hook = machine(&json!({keys::UPDATE_IN_PROGRESS: ""}));
        let other = || NotAsked::OtherVersion { wanted: "v1.35.0".into(), goal: "v1.35.1".into() };
        let table = [
            (Some(&marked), "u", "v1.35.0", Ok(())),
            (Some(&marked), "u", "v1.35.1", Err(other())),
            (Some(&marked), "another", "v1.35.0", Err(NotAsked::Gone)),
            (Some(&no_mark), "u", "v1.35.0", Err(NotAsked::NotMarked)),
            (Some(&no_hook), "u", "v1.35.0", Err(NotAsked::NotMarked)),
            (None, "u", "v1.35.0", Err(NotAsked::Gone)),
        ];
        for (live, uid, version, wanted) in table {
            let goal = Goal::of_version(version.parse().unwrap());
            assert_eq!(asked(live, &uid.into(), &goal), wanted, "{uid} {version}");
        }
    }
}
