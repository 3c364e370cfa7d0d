//! The guard of a Machine under update: no remediation, and no deletion before its host has stopped
//! (`docs/facts/machine.md#guarding-a-machine`).

use std::collections::BTreeMap;

use refit_cluster_api::kinds::Machine;
use refit_kinds::keys::{GUARDED_BY_US, PRE_DRAIN_HOOK, REMEDIATION_GUARD, SKIP_REMEDIATION};

/// Annotations of the guard with their values.
const GUARD: [(&str, &str); 2] = [(SKIP_REMEDIATION, "refit"), (PRE_DRAIN_HOOK, "refit")];

/// Changes of a Machine's annotations.
pub(super) type Changes = BTreeMap<String, Option<String>>;

fn annotations(machine: &Machine) -> BTreeMap<&str, &str> {
    let annotations = machine.metadata.annotations.as_ref();
    annotations.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

fn keys_set_by_refit<'a>(annotations: &BTreeMap<&str, &'a str>) -> Vec<&'a str> {
    annotations
        .get(GUARDED_BY_US)
        .map(|list| list.split(',').filter(|key| !key.is_empty()).collect())
        .unwrap_or_default()
}

/// Annotations that are missing from the guard; empty if it is complete. An annotation that another
/// component set is left unchanged.
///
/// `unguarded` comes from the Machine's owner or Cluster; the Machine's own annotation takes
/// precedence.
pub(super) fn set(machine: &Machine, unguarded: bool) -> Changes {
    let annotations = annotations(machine);
    let off = match annotations.get(REMEDIATION_GUARD) {
        Some(own) => *own == "Disabled",
        None => unguarded,
    };
    if off {
        return remove(machine);
    }
    let mut keys_set_by_refit = keys_set_by_refit(&annotations);
    let mut changes = Changes::new();
    for (key, value) in GUARD {
        if !annotations.contains_key(key) {
            changes.insert(key.to_owned(), Some(value.to_owned()));
            if !keys_set_by_refit.contains(&key) {
                keys_set_by_refit.push(key);
            }
        }
    }
    // Also if every annotation already existed: the note then records that Refit set none of them.
    let note = keys_set_by_refit.join(",");
    if annotations.get(GUARDED_BY_US) != Some(&note.as_str()) {
        changes.insert(GUARDED_BY_US.to_owned(), Some(note));
    }
    changes
}

/// Annotations to remove so that the Machine has none of Refit's; empty if none is left.
pub(super) fn remove(machine: &Machine) -> Changes {
    let annotations = annotations(machine);
    let mut changes = Changes::new();
    for key in keys_set_by_refit(&annotations) {
        if annotations.contains_key(key) && GUARD.iter().any(|(known, _)| *known == key) {
            changes.insert(key.to_owned(), None);
        }
    }
    if annotations.contains_key(GUARDED_BY_US) {
        changes.insert(GUARDED_BY_US.to_owned(), None);
    }
    changes
}

#[cfg(test)]
mod tests {
    use refit_cluster_api::kinds::MachineSpec;

    use super::*;

    fn machine(annotations: &[(&str, &str)]) -> Machine {
        let mut machine = Machine::new("m", MachineSpec::default());
        machine.metadata.annotations =
            Some(annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        machine
    }

    fn after(machine: &Machine, changes: &Changes) -> Machine {
        let mut machine = machine.clone();
        let annotations = machine.metadata.annotations.get_or_insert_default();
        for (key, value) in changes {
            match value {
                Some(value) => annotations.insert(key.clone(), value.clone()),
                None => annotations.remove(key),
            };
        }
        machine
    }

    #[test]
    fn removing_the_guard_restores_the_machine() {
        let bare = machine(&[("mine", "1")]);
        let guarded = after(&bare, &set(&bare, false));
        assert!(set(&guarded, false).is_empty());
        assert!(guarded.metadata.annotations.as_ref().unwrap().contains_key(PRE_DRAIN_HOOK));
        assert_eq!(after(&guarded, &remove(&guarded)), bare);
    }

    #[test]
    fn a_users_own_skip_remediation_stays() {
        let own = machine(&[(SKIP_REMEDIATION, "mine")]);
        let guarded = after(&own, &set(&own, false));
        assert_eq!(guarded.metadata.annotations.as_ref().unwrap()[SKIP_REMEDIATION], "mine");
        assert_eq!(after(&guarded, &remove(&guarded)), own);
    }

    #[test]
    fn a_guard_set_entirely_by_a_user_is_left_alone() {
        let own = machine(&[(SKIP_REMEDIATION, ""), (PRE_DRAIN_HOOK, "x")]);
        let guarded = after(&own, &set(&own, false));
        assert!(set(&guarded, false).is_empty());
        assert_eq!(after(&guarded, &remove(&guarded)), own);
    }

    #[test]
    fn a_disabled_guard_is_not_set_and_is_removed() {
        let off = machine(&[(REMEDIATION_GUARD, "Disabled")]);
        assert!(set(&off, false).is_empty());
        let guarded = machine(&[
            (REMEDIATION_GUARD, "Disabled"),
            (GUARDED_BY_US, SKIP_REMEDIATION),
            (SKIP_REMEDIATION, "refit"),
        ]);
        assert_eq!(after(&guarded, &set(&guarded, false)), off);
    }

    #[test]
    fn the_machines_annotation_overrides_its_owners_guard() {
        let bare = machine(&[]);
        assert!(set(&bare, true).is_empty());
        let guarded = after(&bare, &set(&bare, false));
        assert_eq!(after(&guarded, &set(&guarded, true)), bare);
        let on = machine(&[(REMEDIATION_GUARD, "Enabled")]);
        assert!(!set(&on, true).is_empty());
    }

    #[test]
    fn a_partly_removed_guard_is_completed() {
        let half = machine(&[
            (GUARDED_BY_US, &format!("{SKIP_REMEDIATION},{PRE_DRAIN_HOOK}")),
            (SKIP_REMEDIATION, "refit"),
        ]);
        let changes = set(&half, false);
        assert_eq!(changes.keys().collect::<Vec<_>>(), [PRE_DRAIN_HOOK]);
    }

    #[test]
    fn a_note_with_foreign_keys_removes_no_foreign_annotation() {
        let odd = machine(&[(GUARDED_BY_US, "mine"), ("mine", "1")]);
        assert_eq!(remove(&odd).keys().collect::<Vec<_>>(), [GUARDED_BY_US]);
    }
}
