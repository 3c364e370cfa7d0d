//! The NodeUpdates of one Machine, for every way in: what is known of them, and new ones.

mod object;

use std::{collections::BTreeMap, sync::Arc};

use kube::{Api, ResourceExt as _, api::ListParams};
use refit_cluster_api::kinds::Machine;
use refit_core::{
    ask::MachineFacts, change::can_update::HostReport, group::observed_version, node::newest,
};
use refit_kinds::{
    keys,
    refit::{
        Goal, MachineRef, MachineUid, NodeUpdate, Origin, Stage, Until, UpdatePart,
        node_update_name, ordinal_of,
    },
};
use refit_runtime::{ObjectKey, apply, apply::Ensured};
use serde_json::json;

pub use self::object::{NewNodeUpdate, node_update};
use crate::{
    context::Context,
    groups::{group_of, lacks_machines, node_updates_of_machine},
    host_plan::host_report,
};

/// Who requests a NodeUpdate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By<'a> {
    /// Cluster API's UpdateMachine hook.
    Hook,
    /// The UpgradeTask of this name.
    Task(&'a str),
    /// An annotation of the Machine.
    Annotation {
        /// Its key.
        key: &'a str,
        /// Its value, if the NodeUpdate shows for which request it was made.
        text: Option<&'a str>,
    },
    /// The change of the HostSettings of this name.
    HostSettings(&'a str),
}

impl By<'_> {
    fn origin(self) -> Origin {
        match self {
            Self::Hook => Origin::Hook,
            Self::Task(_) => Origin::Task,
            Self::Annotation { .. } => Origin::Annotation,
            Self::HostSettings(_) => Origin::HostSettings,
        }
    }

    /// The note on the NodeUpdate that names who has requested it.
    fn annotation(self) -> Option<(String, String)> {
        match self {
            Self::Hook => None,
            Self::Task(task) => Some((keys::TASK.to_owned(), task.to_owned())),
            Self::Annotation { key, .. } => Some((keys::REQUESTED_BY.to_owned(), key.to_owned())),
            Self::HostSettings(name) => {
                Some((keys::REQUESTED_BY.to_owned(), format!("HostSettings {name}")))
            }
        }
    }

    /// The note on the NodeUpdate of which of several requests it is for.
    fn request(self) -> Option<(String, String)> {
        match self {
            Self::Annotation { text: Some(text), .. } => {
                Some((keys::REQUESTED.to_owned(), text.to_owned()))
            }
            Self::Hook
            | Self::Task(_)
            | Self::Annotation { text: None, .. }
            | Self::HostSettings(_) => None,
        }
    }
}

/// The NodeUpdates of a Machine.
pub(crate) struct MachineRequests<'a> {
    ctx: &'a Context,
    api: Api<NodeUpdate>,
    key: ObjectKey,
    /// What is known of the Machine itself.
    pub(crate) facts: MachineFacts,
}

impl<'a> MachineRequests<'a> {
    /// Those of this Machine.
    pub(crate) fn new(ctx: &'a Context, machine: &Machine) -> Self {
        let key = ObjectKey::of(machine);
        let api = Api::namespaced(ctx.client.clone(), &key.namespace);
        Self { ctx, api, key, facts: facts_of(ctx, machine) }
    }

    /// The NodeUpdates for the Machine's name, from the cache and from live reads.
    pub(crate) fn known(&self, live: &BTreeMap<String, Arc<NodeUpdate>>) -> Vec<Arc<NodeUpdate>> {
        let cached = node_updates_of_machine(&self.ctx.stores, &self.key);
        let mut known: BTreeMap<String, Arc<NodeUpdate>> =
            cached.into_iter().map(|update| (update.name_any(), update)).collect();
        known.extend(live.iter().map(|(name, update)| (name.clone(), update.clone())));
        let known = known.into_values().collect();
        #[cfg(feature = "sabotage")]
        let known = self.ctx.sabotage.forget_requests(known);
        known
    }

    /// The newest NodeUpdate of the Machine, read live, if it is newer than the newest known one.
    /// The cache may be stale, and the ordinals that follow what it knows may be pruned already.
    pub(crate) async fn newest_live(
        &self,
        known: Option<&NodeUpdate>,
    ) -> kube::Result<Option<NodeUpdate>> {
        let of_machine = format!("{}={}", keys::MACHINE_NAME, self.key.name);
        let list = self.api.list(&ListParams::default().labels(&of_machine)).await?;
        let listed: Vec<_> = list.items.into_iter().map(Arc::new).collect();
        #[cfg(feature = "sabotage")]
        let listed = self.ctx.sabotage.forget_requests(listed);
        let all = known.into_iter().chain(listed.iter().map(AsRef::as_ref));
        let newest = newest(all, &self.facts.uid);
        let is_known = |newest: &&NodeUpdate| {
            known.is_some_and(|known| known.metadata.name == newest.metadata.name)
        };
        Ok(newest.filter(|newest| !is_known(newest)).cloned())
    }

    /// A NodeUpdate that is newer than the newest known one, read live: "done" is the only response
    /// that cannot be revoked.
    pub(crate) async fn newer_than(
        &self,
        newest: Option<&NodeUpdate>,
    ) -> kube::Result<Option<NodeUpdate>> {
        if let Some(newer) = self.newest_live(newest).await? {
            return Ok(Some(newer));
        }
        // An operator's NodeUpdate may lack the label.
        let name = newest.map(kube::ResourceExt::name_any).unwrap_or_default();
        match ordinal_of(&name, &self.key.name) {
            None => Ok(None),
            Some(ordinal) => {
                let next = node_update_name(&self.key.name, ordinal.saturating_add(1));
                self.api.get_opt(&next).await
            }
        }
    }

    /// Creates the NodeUpdate of this ordinal, or reads the one that another request has created.
    pub(crate) async fn create(
        &self,
        by: By<'_>,
        (ordinal, until): (u32, Until),
        goal: &Goal,
        (parts, bundle): (Vec<UpdatePart>, Option<String>),
    ) -> kube::Result<(NodeUpdate, Ensured)> {
        let new = NewNodeUpdate {
            namespace: self.key.namespace.clone(),
            machine: MachineRef { name: self.facts.name.clone(), uid: self.facts.uid.clone() },
            origin: by.origin(),
            annotation: by.annotation(),
            until,
            goal: goal.clone(),
            parts: Some(parts),
            bundle,
        };
        let mut wanted = node_update(&new, ordinal);
        if let Some((key, text)) = by.request() {
            wanted.annotations_mut().insert(key, text);
        }
        #[cfg(feature = "sabotage")]
        if let Some(made) = self.ctx.sabotage.create_unnumbered(&self.api, &wanted).await? {
            return Ok((made, Ensured::Created));
        }
        let (found, outcome) = apply::create_or_get(&self.api, &wanted).await?;
        tracing::info!(machine = %self.key, ordinal, ?outcome, "requested NodeUpdate");
        Ok((found, outcome))
    }

    /// Stops a NodeUpdate whose Machine has another goal now.
    pub(crate) async fn abort(&self, name: &str) -> kube::Result<()> {
        let body = json!({
            "metadata": { "annotations": { keys::GOAL_CHANGED: "" } },
            "spec": { "stage": Stage::Abort },
        });
        apply::merge(&self.api, name, &body).await?;
        tracing::info!(machine = %self.key, node_update = name, "aborted NodeUpdate, its goal \
            changed");
        Ok(())
    }
}

fn facts_of(ctx: &Context, machine: &Machine) -> MachineFacts {
    MachineFacts {
        name: machine.name_any(),
        uid: MachineUid::of(&machine.metadata),
        kubelet_version: observed_version(machine).version().cloned(),
        retry: machine.annotations().get(keys::RETRY).cloned(),
        adopt: machine.annotations().get(keys::ADOPT).cloned(),
        deleting: machine.metadata.deletion_timestamp.is_some(),
        host_reports: host_report(ctx, machine) == HostReport::Fresh,
        lacks_member: group_of(&ctx.stores, machine)
            .is_some_and(|group| lacks_machines(&ctx.stores, &group)),
    }
}
