//! The lines of a log that show what a plan changed.

use std::fmt::Write as _;

use refit_cluster_api::{
    rollout,
    rollout::{MachineSet, Note, Role, keys},
};

/// Names sorted as strings, as in the log.
pub(crate) fn sorted_names(mut names: Vec<String>) -> String {
    names.sort();
    names.join(",")
}

pub(crate) fn scale_line(role: Role, name: &str, from: i64, to: i64) -> String {
    let direction = if to > from { "up" } else { "down" };
    let difference = to - from;
    format!(
        "      - Scaled {direction} {role} MachineSet {name} from {from} to {to} replicas \
         ({difference:+})\n"
    )
}

pub(crate) fn reason_line(notes: &[Note]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    format!("        - Reason: {}\n", rollout::intent::reason(notes))
}

/// The changes to an existing MachineSet, in the format of the log.
pub(crate) fn change_lines(
    before: &MachineSet,
    after: &MachineSet,
    role: Role,
    notes: &[Note],
) -> String {
    let mut changes = Vec::new();
    let scaled = before.spec_replicas != after.spec_replicas;
    if scaled {
        changes.push(format!("replicas {}", after.spec_replicas));
    }
    for key in [
        keys::REVISION,
        keys::MOVE_MACHINES,
        keys::RECEIVE_MACHINES,
        keys::ACKNOWLEDGED_MOVE,
        keys::DISABLE_MACHINE_CREATE,
    ] {
        match (before.annotations.get(key), after.annotations.get(key)) {
            (old, Some(value)) if old != Some(value) => changes.push(format!("{key}: {value}")),
            (Some(_), None) => changes.push(format!("{key} removed")),
            _ => {}
        }
    }
    if changes.is_empty() {
        return String::new();
    }
    let name = &after.name;
    let mut lines = if scaled {
        scale_line(role, name, before.spec_replicas, after.spec_replicas) + &reason_line(notes)
    } else {
        format!("      - Updated {role} MachineSet {name}\n")
    };
    let _ = writeln!(lines, "        - Diff: {}", changes.join(","));
    lines
}
