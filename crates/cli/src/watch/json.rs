//! The lines of `-o json`: one object per change. `refit watch --help` documents the shape.

use std::{collections::BTreeMap, io};

use refit_kinds::{
    refit::Blocker,
    version::{KubernetesVersion, StatedVersion},
};
use serde::Serialize;

use super::view::{GroupRow, MachineRow, View};
use crate::{printer::Printer, progress::step};

/// One line of output.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Line {
    /// A machine changed.
    Machine {
        namespace: String,
        name: String,
        owner: String,
        node: String,
        version: StatedVersion,
        kubelet_version: StatedVersion,
        node_update: String,
        phase: String,
        step: String,
        percent: u64,
        remaining_seconds: Option<i32>,
        blocked_by: Vec<Blocker>,
        message: String,
        done: bool,
        failed: bool,
    },
    /// A machine no longer exists.
    Gone { namespace: String, name: String },
    /// A control plane or MachineDeployment changed.
    Group {
        namespace: String,
        owner: String,
        version: StatedVersion,
        blocked: bool,
        reason: String,
        message: String,
        remaining_seconds: Option<i64>,
        done: bool,
    },
    /// A version was written (`refit upgrade`).
    Written {
        object: String,
        field: &'static str,
        from: StatedVersion,
        to: KubernetesVersion,
        dry_run: bool,
    },
    /// An UpgradeTask was created, or found (`refit upgrade`).
    Task { object: String, task: String, to: KubernetesVersion, dry_run: bool },
    /// The last line.
    End {
        target: Option<String>,
        outcome: &'static str,
        message: String,
        machines: usize,
        done: usize,
    },
}

/// Writes a line for each change since the last call.
#[derive(Debug)]
pub(crate) struct Lines {
    printer: Printer,
    shown: BTreeMap<(u8, String, String), Line>,
}

impl Lines {
    /// Creates an instance that has not shown anything yet.
    pub(crate) fn new(printer: Printer) -> Self {
        Self { printer, shown: BTreeMap::new() }
    }

    /// Writes the changes.
    pub(crate) fn show(&mut self, view: &View) -> io::Result<()> {
        let mut now = BTreeMap::new();
        for group in &view.groups {
            let key = (0, group.namespace.clone(), group.owner.clone());
            now.insert(key, Line::of_group(group, view));
        }
        for machine in &view.machines {
            let row = &machine.progress;
            let key = (1, row.namespace.clone(), row.machine.clone());
            now.insert(key, Line::of_machine(machine));
        }
        let news = now.iter().filter(|(key, line)| self.shown.get(key) != Some(line));
        for (_, line) in news {
            self.write(line)?;
        }
        let gone = self.shown.keys().filter(|key| !now.contains_key(key));
        for (kind, namespace, name) in gone {
            if *kind == 1 {
                self.write(&Line::Gone { namespace: namespace.clone(), name: name.clone() })?;
            }
        }
        self.shown = now;
        Ok(())
    }

    /// Writes one line.
    pub(crate) fn write(&self, line: &Line) -> io::Result<()> {
        write_line(self.printer, line)
    }
}

/// Writes one line.
pub(crate) fn write_line(printer: Printer, line: &Line) -> io::Result<()> {
    let text = serde_json::to_string(line).map_err(io::Error::other)?;
    printer.result(&text)
}

impl Line {
    fn of_machine(machine: &MachineRow) -> Self {
        let row = &machine.progress;
        let step = step(row, &machine.target);
        Self::Machine {
            namespace: row.namespace.clone(),
            name: row.machine.clone(),
            owner: row.owner.clone(),
            node: row.node.clone(),
            version: machine.target.clone(),
            kubelet_version: row.kubelet_version.clone(),
            node_update: row.node_update.clone(),
            phase: step.phase,
            step: row.step.clone(),
            percent: step.percent,
            remaining_seconds: step.remaining_seconds,
            blocked_by: row.blocked_by.clone(),
            message: row.message.clone(),
            done: machine.is_done(),
            failed: row.has_failed(),
        }
    }

    fn of_group(group: &GroupRow, view: &View) -> Self {
        let (reason, message) = group.blocked.clone().unwrap_or_default();
        let mut members = view.machines.iter().filter(|row| {
            row.progress.namespace == group.namespace && row.progress.owner == group.owner
        });
        Self::Group {
            namespace: group.namespace.clone(),
            owner: group.owner.clone(),
            version: group.version.clone(),
            blocked: group.blocked.is_some(),
            reason,
            message,
            remaining_seconds: group.rest_seconds,
            done: group.settled && members.all(MachineRow::is_done),
        }
    }
}
