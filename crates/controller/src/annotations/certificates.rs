//! Requests what the annotations of a Machine about its certificates ask for, and shows on it how far that is.

use std::sync::Arc;

use kube::ResourceExt as _;
use refit_cluster_api::kinds::Machine;
use refit_core::{
    annotation::{self, Announced, CertificatesSeen, Upgrade},
    node::newest,
};
use refit_kinds::{
    canonical::Keys,
    keys,
    refit::{Disruption, MachineUid, NodeUpdate, UpdatePart},
};
use refit_runtime::{ObjectKey, queue::Action};

use super::{
    expiry, is_requested_by,
    machine::{Asked, carry_out, has_k8sd},
    may_be_served_by_others, renewal, served,
};
use crate::{context::Context, groups::node_updates_of_machine, host_plan::node_name};

/// A Machine, and its NodeUpdates.
pub(super) struct Look<'a> {
    machine: &'a Machine,
    updates: Vec<Arc<NodeUpdate>>,
}

/// Wakes a Machine that has such annotations of a prefix that is served, or a NodeUpdate that these have requested, or
/// the one for kubeadm, and its cluster, if the expiry of its certificates is not known.
pub(super) fn wake(ctx: &Context, machine: &Machine) {
    let look = Look::of(ctx, machine);
    let concerns = |keys: Keys| {
        let own = keys.certificates;
        let all = [own.refresh, own.status, own.noted];
        all.iter().any(|key| machine.annotations().contains_key(*key))
            || look.updates.iter().any(|update| is_requested_by(update.as_ref(), own.refresh))
    };
    if served(ctx).any(concerns) || renewal::concerns(machine) {
        ctx.queues.certificates.add(ObjectKey::of(machine));
    }
    if served(ctx).any(|keys| look.seen(ctx, keys).lacks_expiry()) {
        expiry::wake(ctx, machine);
    }
}

pub(super) async fn reconcile(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Action> {
    let Some(machine) = ctx.stores.machines.get(key).filter(|_| ctx.opted_in(&key.namespace))
    else {
        return Ok(Action::Done);
    };
    let look = Look::of(ctx, &machine);
    for keys in served(ctx) {
        let decided = annotation::certificates(&look.seen(ctx, keys));
        let is_at_rest = decided == Announced::default();
        let part = UpdatePart::k8sd(Disruption::Restart);
        let by = Asked { key: keys.certificates.refresh, text: None, part };
        let next = carry_out(ctx, &machine, decided, by).await?;
        // What was written is looked at again before anything else is decided.
        if !is_at_rest {
            return Ok(next);
        }
    }
    renewal::reconcile(ctx, &machine).await
}

impl<'a> Look<'a> {
    pub(super) fn of(ctx: &Context, machine: &'a Machine) -> Self {
        let updates = node_updates_of_machine(&ctx.stores, &ObjectKey::of(machine));
        Self { machine, updates }
    }

    pub(super) fn seen(&self, ctx: &Context, keys: Keys) -> CertificatesSeen<'_> {
        let Self { machine, updates } = self;
        let uid = MachineUid::of(&machine.metadata);
        let is_own = |update: &&NodeUpdate| is_requested_by(*update, keys.certificates.refresh);
        let all = || updates.iter().map(AsRef::as_ref);
        let mut unfinished = all().filter(|update| {
            update.spec.machine_ref.uid == uid && !update.phase().is_final() && !is_own(update)
        });
        let unfinished = unfinished.find_map(|update| update.metadata.name.as_deref());
        let upgrade = unfinished.map(Upgrade::NodeUpdate);
        CertificatesSeen {
            keys,
            compat: ctx.settings.canonical_compat,
            annotations: machine.annotations(),
            update: newest(all().filter(is_own), &uid),
            upgrade: upgrade.or_else(|| requested_by_others(machine)),
            has_k8sd: has_k8sd(machine),
            has_node: node_name(machine).is_some(),
            is_deleting: machine.metadata.deletion_timestamp.is_some(),
            // Who bootstraps such a machine also works on its certificates.
            is_served_by_others: has_k8sd(machine) && may_be_served_by_others(ctx, keys),
        }
    }
}

/// The upgrade that another orchestrator requests of a Machine, whether it has a NodeUpdate or not.
fn requested_by_others(machine: &Machine) -> Option<Upgrade<'_>> {
    let all = machine.annotations();
    let of_task = all.get(keys::TASK).map(|task| Upgrade::Task(task));
    of_task.or_else(|| all.contains_key(keys::UPDATE_IN_PROGRESS).then_some(Upgrade::ClusterApi))
}
