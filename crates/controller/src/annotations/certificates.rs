//! Requests what the annotations of a Machine about its certificates ask for, and shows on it how far that is, and when
//! its certificates expire.

use std::{sync::Arc, time::Duration};

use kube::{Api, ResourceExt as _};
use refit_cluster_api::kinds::Machine;
use refit_core::{
    annotation::{self, Announced, CertificatesSeen},
    node::newest,
};
use refit_kinds::{
    canonical::{CANONICAL, CERTIFICATES_EXPIRY, Keys},
    refit::{Disruption, MachineUid, NodeUpdate},
};
use refit_runtime::{ObjectKey, apply, queue::Action};
use serde_json::json;

use super::{
    AFTER_CONFLICT, is_requested_by,
    machine::{AFTER_WAIT, carry_out, has_k8sd},
    may_be_served_by_others, served,
};
use crate::{
    context::Context,
    groups::{node_updates_of_machine, phase_of},
    host_plan::{cluster_key, node_name},
    k8sd::Target,
    node_update::look::paused,
};

/// Requeue delay after a node has not answered when its certificates expire.
const AFTER_SILENCE: Duration = Duration::from_mins(1);

/// A Machine, and its NodeUpdates.
struct Look<'a> {
    machine: &'a Machine,
    updates: Vec<Arc<NodeUpdate>>,
    is_paused: bool,
}

/// Wakes a Machine that has such annotations of a prefix that is served, or a NodeUpdate that these have requested, and
/// one whose certificates have no known expiry.
pub(super) fn wake(ctx: &Context, machine: &Machine) {
    let look = Look::of(ctx, machine);
    let concerns = |keys: Keys| {
        let own = keys.certificates;
        let all = [own.refresh, own.status, own.noted];
        all.iter().any(|key| machine.annotations().contains_key(*key))
            || look.updates.iter().any(|update| is_requested_by(update.as_ref(), own.refresh))
            // A pause that ends does not wake it.
            || CertificatesSeen { is_paused: false, ..look.seen(ctx, keys) }.lacks_expiry()
    };
    if served(ctx).any(concerns) {
        ctx.queues.certificates.add(ObjectKey::of(machine));
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
        let by = (keys.certificates.refresh, Disruption::Restart);
        let next = carry_out(ctx, &machine, decided, by).await?;
        // What was written is looked at again before anything else is decided.
        if !is_at_rest {
            return Ok(next);
        }
    }
    let seen = look.seen(ctx, CANONICAL);
    if seen.lacks_expiry() {
        return read_expiry(ctx, &machine).await;
    }
    let is_held_back = CertificatesSeen { is_paused: false, ..seen }.lacks_expiry();
    Ok(if is_held_back { Action::RequeueAfter(AFTER_WAIT) } else { Action::Done })
}

impl<'a> Look<'a> {
    fn of(ctx: &Context, machine: &'a Machine) -> Self {
        let updates = node_updates_of_machine(&ctx.stores, &ObjectKey::of(machine));
        Self { machine, updates, is_paused: paused(&ctx.stores, machine).is_some() }
    }

    fn seen(&self, ctx: &Context, keys: Keys) -> CertificatesSeen<'_> {
        let Self { machine, updates, is_paused } = self;
        let uid = MachineUid::of(&machine.metadata);
        let is_own = |update: &&NodeUpdate| is_requested_by(*update, keys.certificates.refresh);
        let all = || updates.iter().map(AsRef::as_ref);
        let mut unfinished = all().filter(|update| {
            update.spec.machine_ref.uid == uid && !phase_of(update).is_final() && !is_own(update)
        });
        CertificatesSeen {
            keys,
            compat: ctx.settings.canonical_compat,
            annotations: machine.annotations(),
            update: newest(all().filter(is_own), &uid),
            upgrade: unfinished.next().and_then(|update| update.metadata.name.as_deref()),
            has_k8sd: has_k8sd(machine),
            has_node: node_name(machine).is_some(),
            is_deleting: machine.metadata.deletion_timestamp.is_some(),
            is_paused: *is_paused,
            // Who bootstraps such a machine also works on its certificates.
            is_served_by_others: has_k8sd(machine) && may_be_served_by_others(ctx, keys),
        }
    }
}

/// Asks k8sd when the certificates of a Machine expire, and shows it.
async fn read_expiry(ctx: &Context, machine: &Machine) -> anyhow::Result<Action> {
    let cluster = cluster_key(machine);
    let (Some(view), Some(node)) = (ctx.workload_index.view(&cluster), node_name(machine)) else {
        return Ok(Action::RequeueAfter(AFTER_WAIT));
    };
    let of = Target { machine, node: &node, cluster: &cluster, view: &view };
    let expires = match ctx.k8sd.certificates_expiry(ctx, &of).await {
        Ok(expires) => expires,
        Err(error) => {
            let machine = machine.name_any();
            tracing::debug!(machine, %error, "cannot read when certificates expire");
            return Ok(Action::RequeueAfter(AFTER_SILENCE));
        }
    };
    let api: Api<Machine> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let body = json!({ "metadata": {
        "annotations": { CERTIFICATES_EXPIRY: expires.to_string() },
        "resourceVersion": machine.resource_version(),
    }});
    match apply::merge(&api, &machine.name_any(), &body).await {
        Ok(written) => ctx.stores.machines.insert(written),
        Err(error) if apply::is_conflict(&error) => {
            return Ok(Action::RequeueAfter(AFTER_CONFLICT));
        }
        Err(error) if apply::is_not_found(&error) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Action::Done)
}
