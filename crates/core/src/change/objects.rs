//! What Cluster API compares of a Machine or a MachineSet, and what it ignores.

use refit_kinds::version::StatedVersion;
use serde_json::Value;

use super::{
    diff::{Change, changes},
    path::{Path, Segment},
};

/// Whether a Machine is compared, or the templates of a MachineSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// CanUpdateMachine: `spec` of Machine, infrastructure machine and bootstrap config.
    Machine,
    /// CanUpdateMachineSet: `spec.template.spec` of MachineSet and templates.
    MachineSet,
}

impl Level {
    /// The fields that a machine's own object has at its root: those of the object, or those of the
    /// object that a template makes.
    pub(super) fn machine_view(self, object: &Value) -> Option<&Value> {
        match self {
            Self::Machine => Some(object),
            Self::MachineSet => object.pointer("/spec/template"),
        }
    }

    /// A path of the compared object, as a path of a machine's own object.
    pub(super) fn machine_path(self, path: &Path) -> Option<&[Segment]> {
        match self {
            Self::Machine => Some(path.segments()),
            Self::MachineSet => path.segments().get(2..),
        }
    }
}

/// One of the compared objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The Machine or MachineSet.
    Owner,
    /// The infrastructure machine or its template.
    Infrastructure,
    /// The bootstrap config or its template.
    Bootstrap,
}

/// The parts, in the order of comparison.
pub const PARTS: [Part; 3] = [Part::Owner, Part::Infrastructure, Part::Bootstrap];

/// The objects of a hook request.
#[derive(Clone, Debug, PartialEq)]
pub struct Objects {
    /// The Machine or MachineSet.
    pub owner: Value,
    /// The infrastructure machine or its template.
    pub infrastructure: Value,
    /// The bootstrap config or its template, if there is one.
    pub bootstrap: Option<Value>,
}

impl Objects {
    /// Returns one of the objects.
    pub fn part(&self, part: Part) -> Option<&Value> {
        match part {
            Part::Owner => Some(&self.owner),
            Part::Infrastructure => Some(&self.infrastructure),
            Part::Bootstrap => self.bootstrap.as_ref(),
        }
    }

    /// Returns one of the objects for modification.
    pub fn part_mut(&mut self, part: Part) -> Option<&mut Value> {
        match part {
            Part::Owner => Some(&mut self.owner),
            Part::Infrastructure => Some(&mut self.infrastructure),
            Part::Bootstrap => self.bootstrap.as_mut(),
        }
    }

    /// The Kubernetes version in the owner's spec.
    pub fn version(&self, level: Level) -> StatedVersion {
        let text = root(level).key("version").get(&self.owner).and_then(Value::as_str);
        text.unwrap_or_default().into()
    }

    /// The spec of the bootstrap config.
    pub fn bootstrap_spec(&self, level: Level) -> Option<&Value> {
        root(level).get(self.bootstrap.as_ref()?)
    }

    /// Whether kubeadm bootstrapped, or will bootstrap, the machine.
    pub fn is_kubeadm(&self) -> bool {
        self.bootstrap
            .as_ref()
            .and_then(|config| config.get("kind")?.as_str())
            .is_some_and(|kind| matches!(kind, "KubeadmConfig" | "KubeadmConfigTemplate"))
    }
}

/// The path in each object below which Cluster API compares
/// (`docs/facts/control-plane.md#compared-fields`).
pub fn root(level: Level) -> Path {
    match level {
        Level::Machine => Path::of(&["spec"]),
        Level::MachineSet => Path::of(&["spec", "template", "spec"]),
    }
}

/// The only fields of a Machine spec that count: Cluster API changes all others in place itself or
/// does not compare them (`docs/facts/control-plane.md#compared-fields`).
const OWNER_FIELDS: [&str; 2] = ["failureDomain", "version"];

/// Every path that Cluster API will find to differ in one of the objects.
pub fn part_changes(level: Level, part: Part, current: &Objects, desired: &Objects) -> Vec<Change> {
    let (from, to) = (current.part(part), desired.part(part));
    match part {
        Part::Owner => OWNER_FIELDS
            .iter()
            .filter_map(|field| {
                let path = root(level).key(field);
                let from = from.and_then(|owner| text(path.get(owner)));
                let to = to.and_then(|owner| text(path.get(owner)));
                (from != to).then_some(Change { path, from, to })
            })
            .collect(),
        Part::Infrastructure | Part::Bootstrap => match (from, to) {
            (None, None) => Vec::new(),
            (Some(from), Some(to)) => {
                let path = root(level);
                changes(&path, path.get(from), path.get(to))
            }
            // The object is missing on one side: the difference is the whole object.
            (from, to) => vec![Change {
                path: Path::default(),
                from: from.and_then(|v| root(level).get(v).cloned()),
                to: to.and_then(|v| root(level).get(v).cloned()),
            }],
        },
    }
}

/// Cluster API compares these as typed strings: empty and null count as absent.
fn text(value: Option<&Value>) -> Option<Value> {
    value.filter(|v| !v.is_null() && v.as_str() != Some("")).cloned()
}
