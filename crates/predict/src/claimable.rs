//! What may be claimed of a group's change: by the Updaters, by the rules for KubeadmConfigs, by a provider.

use std::{collections::BTreeMap, sync::Arc};

use refit_core::{
    change::{
        ConfigurationRules, Policy, Provider, Question, Updater,
        updaters::{Selected, accepted, updaters_for},
    },
    node::{NodePolicies, node_disruption_policy},
    report::Refusal,
};
use refit_kinds::{
    json::{labels, name, namespace},
    refit::{self, GroupOwner, NodeDisruptionPolicy},
};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    providers::{InfrastructureMachine, ProviderQuestion, Providers},
    view::View,
};

impl View<'_> {
    /// What may be claimed of changes of KubeadmConfigs.
    pub(super) fn configuration_rules(&mut self) -> Result<ConfigurationRules, Refusal> {
        const KIND: &str = "NodeDisruptionPolicy";
        if self.input.unread_kinds.contains(KIND) {
            let note = "NodeDisruptionPolicies cannot be read: how changes of files disturb machines is shown by default";
            self.plan.notes.push(note.to_owned());
        }
        let (mut objects, mut unreadable) = (Vec::new(), BTreeMap::new());
        let of_kind = self.input.desired.of_kind(KIND);
        for object in of_kind.filter(|object| namespace(object) == self.group.namespace) {
            match NodeDisruptionPolicy::deserialize(object) {
                Ok(policy) => objects.push(Arc::new(policy)),
                Err(error) => {
                    unreadable.insert(name(object).to_owned(), error.to_string());
                }
            }
        }
        let owner = GroupOwner {
            api_version: String::new(),
            kind: self.group.kind.clone(),
            name: self.group.name.clone(),
        };
        let found = node_disruption_policy(NodePolicies {
            objects: &objects,
            unreadable: &unreadable,
            owner: &owner,
            cluster: &self.plan.cluster,
        })?;
        let Policy { rerun, secrets, .. } = self.policy.clone();
        Ok(ConfigurationRules { rerun, secrets, policy: found.cloned() })
    }

    /// The Updaters for machines of this kind.
    pub(super) fn updaters(&mut self, infrastructure_kind: &str) -> Vec<Updater> {
        let Some(owner) = self.group.owner() else {
            return Vec::new();
        };
        if self.input.unread_kinds.contains("Updater") {
            let note = "Updaters cannot be read: what they cover is shown as uncovered";
            self.plan.notes.push(note.to_owned());
        }
        let mut all = Vec::new();
        for object in self.input.desired.of_kind("Updater") {
            match refit::Updater::deserialize(object) {
                Ok(updater) => {
                    if let Err(why) = accepted(&updater) {
                        self.plan
                            .notes
                            .push(format!("Updater {} is not used: {why}", name(object)));
                    }
                    all.push(updater);
                }
                Err(error) => {
                    let note = format!("Updater {} is not used: {error}", name(object));
                    self.plan.notes.push(note);
                }
            }
        }
        let labels = self.cluster.map(labels).unwrap_or_default();
        updaters_for(&all, Selected { cluster_labels: &labels, owner, infrastructure_kind })
    }

    /// The provider's answer about a change of a machine's infrastructure. Without machines, no object
    /// changes.
    pub(super) fn ask_provider(&mut self, change: Question, machine: Option<&Value>) -> Provider {
        let Some(machine) = machine.and_then(InfrastructureMachine::of) else {
            return change.accepted;
        };
        if self.input.providers == Providers::Assumed {
            self.plan.notes.push(format!(
                "assumes that the provider of {} accepts the changes of {0}s that Updaters claim: only its \
                 API server knows",
                machine.kind
            ));
        }
        let question = ProviderQuestion { machine, change };
        let answer = self.input.providers.answer(&question);
        self.plan.questions.push(question);
        answer
    }
}
