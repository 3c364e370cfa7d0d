//! What a change of a file, a unit or a user needs to take effect on a host.
//!
//! | order | decides |
//! |---|---|
//! | 1 | the entry of `files` of the NodeDisruptionPolicy with the longest path that matches |
//! | 2 | its entry of `units` for the unit whose file or drop-in the path is |
//! | 3 | the [default](super::path_class) of the path |
//!
//! Which NodeDisruptionPolicy applies is decided as for HostSettings.

use std::{
    cmp::max,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use refit_kinds::refit::{
    Disruption, GroupOwner, NodeAction, NodeDisruptionPolicy, NodeDisruptionPolicySpec, UnitAction,
    UnitVerb,
};

use super::{
    host::selection::{Candidates, NotChosen, most_specific},
    path_class,
};
use crate::report::Refusal;

/// The unit of the kubelet.
pub(super) const KUBELET: &str = "kubelet.service";

/// What decides about the NodeDisruptionPolicy of a machine.
#[derive(Clone, Copy, Debug)]
pub struct NodePolicies<'a> {
    /// Every NodeDisruptionPolicy of the machine's namespace.
    pub objects: &'a [Arc<NodeDisruptionPolicy>],
    /// Names of the NodeDisruptionPolicies of the namespace that cannot be read, with the reason.
    pub unreadable: &'a BTreeMap<String, String>,
    /// The machine's owner.
    pub owner: &'a GroupOwner,
    /// Name of the machine's Cluster.
    pub cluster: &'a str,
}

/// The most specific NodeDisruptionPolicy that applies to a machine; `None` if none applies.
///
/// # Errors
/// Two objects are equally specific, or an object cannot be read.
pub fn node_disruption_policy(
    policies: NodePolicies<'_>,
) -> Result<Option<&NodeDisruptionPolicySpec>, Refusal> {
    let NodePolicies { objects, unreadable, owner, cluster } = policies;
    match most_specific(&Candidates { objects, unreadable, owner, cluster }) {
        Ok(chosen) => Ok(chosen.map(|object| &object.spec)),
        Err(NotChosen::Unreadable { name, why }) => {
            Err(Refusal::DisruptionPolicyUnreadable { name, why })
        }
        Err(NotChosen::Conflict { names, owner, by }) => {
            Err(Refusal::DisruptionPolicyConflict { names, owner, by })
        }
    }
}

/// What changes need to take effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actions {
    /// Units that reload their configuration. None of them is in `restart`.
    pub reload: BTreeSet<String>,
    /// Units to restart. The kubelet is not among them.
    pub restart: BTreeSet<String>,
    /// Whether the kubelet is restarted.
    pub restart_kubelet: bool,
    /// How the changes disturb the machine. With `Reboot`, no unit is reloaded or restarted: the
    /// reboot does that.
    pub disruption: Disruption,
}

impl Actions {
    /// Nothing is needed.
    pub fn none() -> Self {
        Self {
            reload: BTreeSet::new(),
            restart: BTreeSet::new(),
            restart_kubelet: false,
            disruption: Disruption::None,
        }
    }

    /// What all of these actions are together.
    fn of(actions: &[NodeAction]) -> Self {
        actions.iter().map(Self::of_one).fold(Self::none(), Self::merge)
    }

    fn of_one(action: &NodeAction) -> Self {
        match action {
            NodeAction::None {} => Self::none(),
            // A kubelet reads its configuration only when it starts.
            NodeAction::Reload(unit) if unit == KUBELET => Self::restart(KUBELET),
            NodeAction::Reload(unit) => Self::reload(unit),
            NodeAction::Restart(unit) => Self::restart(unit),
            NodeAction::RestartKubelet {} => Self::restart(KUBELET),
            NodeAction::Drain {} => Self::disturb(Disruption::Drain),
            NodeAction::Reboot {} => Self::disturb(Disruption::Reboot),
        }
    }

    /// A restart of a unit.
    pub(super) fn restart(unit: &str) -> Self {
        if unit == KUBELET {
            return Self { restart_kubelet: true, ..Self::disturb(Disruption::Restart) };
        }
        let action = UnitAction { unit: unit.to_owned(), verb: UnitVerb::Restart };
        let disruption = if action.interrupts() { Disruption::Restart } else { Disruption::None };
        Self { restart: BTreeSet::from([action.unit]), ..Self::disturb(disruption) }
    }

    /// A reload of a unit.
    pub(super) fn reload(unit: &str) -> Self {
        Self { reload: BTreeSet::from([unit.to_owned()]), ..Self::none() }
    }

    /// A disruption without a restart.
    pub(super) fn disturb(disruption: Disruption) -> Self {
        Self { disruption, ..Self::none() }
    }

    /// What the changes of both need together.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        let disruption = max(self.disruption, other.disruption);
        if disruption == Disruption::Reboot {
            return Self::disturb(disruption);
        }
        self.restart.extend(other.restart);
        self.reload.extend(other.reload);
        self.restart_kubelet |= other.restart_kubelet;
        self.reload.retain(|unit| {
            let restarts = self.restart_kubelet && unit == KUBELET;
            !restarts && !self.restart.contains(unit)
        });
        Self { disruption, ..self }
    }
}

/// What a change of the file at an absolute path needs, if this policy applies.
pub fn actions_of_file(policy: Option<&NodeDisruptionPolicySpec>, path: &str) -> Actions {
    let unit = path_class::unit_of(path);
    let by_path = policy.and_then(|policy| longest_match(&policy.files, |entry| &entry.path, path));
    let by_unit = || {
        let mut units = policy?.units.iter();
        units.find(|entry| Some(entry.name.as_str()) == unit)
    };
    by_path
        .map(|entry| Actions::of(&entry.actions))
        .or_else(|| by_unit().map(|entry| Actions::of(&entry.actions)))
        .unwrap_or_else(|| path_class::default_actions(path))
}

/// What a change of users needs, if this policy applies: nothing by default, because users and
/// their keys are read at each login.
pub fn actions_of_user(policy: Option<&NodeDisruptionPolicySpec>) -> Actions {
    policy
        .and_then(|policy| policy.users.as_ref())
        .map_or_else(Actions::none, |users| Actions::of(&users.actions))
}

/// The entry whose pattern names the most of a path. An exact path precedes an equally long prefix.
pub(super) fn longest_match<'a, T>(
    entries: &'a [T],
    pattern: impl Fn(&T) -> &str,
    path: &str,
) -> Option<&'a T> {
    let matching = entries.iter().filter(|entry| matches(pattern(entry), path));
    matching.max_by_key(|entry| {
        let pattern = pattern(entry);
        (pattern.trim_end_matches('*').len(), !pattern.ends_with('*'))
    })
}

/// Whether a path of a policy matches the path of a file.
fn matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None if pattern.ends_with('/') => path.starts_with(pattern),
        None => path == pattern,
    }
}

#[cfg(test)]
#[path = "disruption_policy_tests.rs"]
mod tests;
