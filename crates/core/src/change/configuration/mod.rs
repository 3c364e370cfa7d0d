//! The built-in updater `kubeadm-config`: changes of a KubeadmConfig that a running host can get
//! (`docs/configuration.md`).
//!
//! It claims after the Updaters that operators add, whose word about a file counts more.

mod fields;
mod files;
mod planned;
mod users;

use std::collections::{BTreeMap, BTreeSet};

use refit_cluster_api::host_configuration::{HostConfiguration, Places};
use refit_kinds::refit::{
    ChangedConfiguration, ConfigurationPart, Disruption, NodeDisruptionPolicySpec, UnitAction,
    UnitArgs, UnitVerb, UpdatePart,
};
use serde_json::Value;

pub use self::planned::{PlannedConfiguration, hash_of_configuration, planned};
use self::{
    fields::{FieldChange, compared},
    planned::present_in,
};
use super::{
    cover::{Case, PartChanges},
    diff::Change,
    kubeadm::changes_that_matter,
    objects::{Part, root},
    path::Path,
};
use crate::node::Actions;

/// The updater of the configuration of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigurationUpdater {
    /// What it may claim, and how that disturbs a machine.
    pub rules: ConfigurationRules,
    /// What was found of the change that the owner requests.
    pub changed: Option<ChangedConfiguration>,
}

impl ConfigurationUpdater {
    /// What it does in an update of a machine whose KubeadmConfig has this spec; `None` if that is nothing.
    pub fn part(&self, spec: &Value) -> Option<UpdatePart> {
        let ChangedConfiguration { part, disruption } = self.changed.clone()?;
        let part = present_in(spec, part, self.rules.policy.as_ref());
        (!part.is_empty()).then(|| UpdatePart::configuration(part, disruption))
    }
}

/// What may be claimed, by the annotations of the owner and the policy that applies to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigurationRules {
    /// How commands disturb a machine that are declared safe to run again; `None` if they are not.
    pub rerun: Option<Disruption>,
    /// sha256 of values of Secrets, by name and key.
    pub secrets: BTreeMap<(String, String), String>,
    /// What changes need to take effect, where the defaults do not suit.
    pub policy: Option<NodeDisruptionPolicySpec>,
}

/// What of the changes of a KubeadmConfig a running host can get.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The changes that it can get.
    pub(super) claimed: PartChanges,
    /// What they are; `None` if nothing is claimed.
    pub(super) changed: Option<ChangedConfiguration>,
    /// Why it cannot get others.
    pub(super) reasons: Vec<(Path, String)>,
}

/// Finds what of the changes a running host can get.
pub(super) fn find(rules: &ConfigurationRules, changes: PartChanges, case: &Case<'_>) -> Found {
    let of_config = changes.into_iter().filter(|(part, _)| *part == Part::Bootstrap);
    let of_config: PartChanges = of_config.collect();
    if of_config.is_empty() || !case.current.is_kubeadm() || !case.desired.is_kubeadm() {
        return Found::default();
    }
    // Of the original: what the updater before has converted would look as if it had no flags.
    let Some(real) = changes_that_matter(case, case.original) else {
        return Found::default();
    };
    let fields = match sides(case) {
        Ok(sides) => compared(&sides, case.level, rules),
        Err(why) => {
            let reasons = of_config.iter().map(|(_, change)| (change.path.clone(), why.clone()));
            return Found { reasons: reasons.collect(), ..Found::default() };
        }
    };
    let root = root(case.level);
    let leaves: Vec<Path> = real.iter().flat_map(|change| spread(change, &root, &fields)).collect();
    let mut found = Found::default();
    let mut applied = BTreeSet::new();
    for (part, change) in of_config {
        let touched = leaves
            .iter()
            .filter(|leaf| leaf.starts_with(&change.path) || change.path.starts_with(leaf));
        let by_field: Vec<Option<usize>> =
            touched.map(|leaf| fields.iter().position(|field| field.holds(&root, leaf))).collect();
        let refused = by_field.iter().flatten().find_map(|at| fields[*at].outcome.as_ref().err());
        if let Some(why) = refused {
            found.reasons.push((change.path, why.clone()));
        } else if !by_field.is_empty() && by_field.iter().all(Option::is_some) {
            applied.extend(by_field.into_iter().flatten());
            found.claimed.push((part, change));
        }
    }
    for at in applied {
        if let Ok(changed) = &fields[at].outcome {
            match &mut found.changed {
                Some(known) => known.merge(changed.clone()),
                None => found.changed = Some(changed.clone()),
            }
        }
    }
    found
}

/// A part with what its changes need to take effect, or why that is not possible.
fn with_actions(part: ConfigurationPart, actions: Actions) -> Result<ChangedConfiguration, String> {
    let Actions { reload, restart, restart_kubelet, disruption } = actions;
    let action = |verb| move |unit| UnitAction { unit, verb };
    let reloaded = reload.into_iter().map(action(UnitVerb::Reload));
    let restarted = restart.into_iter().map(action(UnitVerb::Restart));
    let args = UnitArgs { units: restarted.chain(reloaded).collect() };
    if let Some(fault) = args.fault() {
        return Err(fault);
    }
    let UnitArgs { units } = args;
    let part = ConfigurationPart { units, restarts_kubelet: restart_kubelet, ..part };
    Ok(ChangedConfiguration { part, disruption })
}

/// The host's configuration before and after.
pub(super) struct Sides {
    from: HostConfiguration,
    /// With the flags of a kubelet that initialised its cluster.
    original: HostConfiguration,
    to: HostConfiguration,
}

fn sides(case: &Case<'_>) -> Result<Sides, String> {
    let empty = Value::Null;
    let read = |objects: &super::objects::Objects| {
        HostConfiguration::of(objects.bootstrap_spec(case.level).unwrap_or(&empty))
    };
    let sides = Sides {
        from: read(case.current)?,
        original: read(case.original)?,
        to: read(case.desired)?,
    };
    for side in [&sides.from, &sides.to] {
        if !["", "cloud-config"].contains(&side.format.as_str()) {
            return Err(format!(
                "{} writes to a host only when it is created",
                if side.format == "ignition" { "Ignition" } else { "its format" }
            ));
        }
    }
    Ok(sides)
}

/// The paths at which a change differs: those of its members, if it adds or removes an object that has fields of hosts
/// among others.
fn spread(change: &Change, root: &Path, fields: &[FieldChange]) -> Vec<Path> {
    let Change { path, from, to } = change;
    let is_object = |side: &Option<Value>| side.as_ref().is_none_or(Value::is_object);
    let is_field = fields.iter().any(|field| field.holds(root, path));
    if is_field || !is_object(from) || !is_object(to) {
        return vec![path.clone()];
    }
    let members = |side: &Option<Value>| side.as_ref().and_then(Value::as_object).cloned();
    let (from, to) = (members(from).unwrap_or_default(), members(to).unwrap_or_default());
    let keys: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let member = |key: &String| {
        let (from, to) = (from.get(key).cloned(), to.get(key).cloned());
        (from != to).then(|| spread(&Change { path: path.key(key), from, to }, root, fields))
    };
    let all: Vec<Path> = keys.into_iter().filter_map(member).flatten().collect();
    if all.is_empty() { vec![path.clone()] } else { all }
}

impl FieldChange {
    /// Whether a path leads to this field, or into it.
    fn holds(&self, root: &Path, path: &Path) -> bool {
        place_paths(root, self.places).any(|place| path.starts_with(&place))
    }
}

fn place_paths(root: &Path, places: Places) -> impl Iterator<Item = Path> {
    places.iter().map(|place| place.iter().fold(root.clone(), |path, key| path.key(key)))
}

#[cfg(test)]
#[path = "configuration_tests.rs"]
mod tests;
