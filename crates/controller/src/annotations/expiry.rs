//! Asks k8sd when the certificates of the Machines of a cluster expire, and shows it on them.
//!
//! One Machine of a cluster is asked at a time, apart from all requests: a cluster whose nodes do not answer holds up
//! nothing else.

use std::{sync::Arc, time::Duration};

use kube::{Api, ResourceExt as _};
use refit_cluster_api::kinds::Machine;
use refit_kinds::canonical::{CANONICAL, CERTIFICATES_EXPIRY};
use refit_runtime::{ObjectKey, apply, queue::Action};
use serde_json::json;

use super::{certificates::Look, served};
use crate::{
    cluster_view::ClusterView,
    context::Context,
    host_plan::{cluster_key, node_name},
    indexes::MACHINES_BY_CLUSTER,
    k8sd::Target,
    node_update::look::paused,
};

/// Delay until Machines are looked at again that are not Ready, or whose k8sd has not answered.
const AGAIN: Duration = Duration::from_mins(1);
/// After so many Machines without an answer, the rest of the cluster waits as well.
const SILENT_MACHINES: u32 = 3;

/// Wakes the cluster of a Machine. Its Machines change more often than their expiries have to be asked for.
pub(super) fn wake(ctx: &Context, machine: &Machine) {
    ctx.queues.expiries.add_after(cluster_key(machine), AGAIN);
}

/// Asks for what is not known of the Machines of a cluster.
pub(super) async fn reconcile(ctx: &Context, cluster: &ObjectKey) -> anyhow::Result<Action> {
    let is_wanted = ctx.opted_in(&cluster.namespace) && served(ctx).any(|keys| keys == CANONICAL);
    let mut lacking: Vec<Arc<Machine>> = if is_wanted {
        ctx.stores.machines.listed(&MACHINES_BY_CLUSTER, cluster)
    } else {
        Vec::new()
    };
    lacking.retain(|machine| lacks_expiry(ctx, machine));
    if lacking.is_empty() {
        return Ok(Action::Done);
    }
    let Some(view) = ctx.workload_index.view(cluster) else {
        return Ok(Action::RequeueAfter(AGAIN));
    };
    // Another one is the first each time: those that never answer hold up no other one for ever.
    let turn = ctx.clock.now().as_second() / i64::try_from(AGAIN.as_secs()).unwrap_or(1);
    let count = lacking.len();
    lacking.rotate_left(usize::try_from(turn).unwrap_or(0) % count);
    let (mut silent, mut left) = (0, false);
    for machine in lacking {
        // A request may have been made, or shown, meanwhile.
        let machine = ctx.stores.machines.get(&ObjectKey::of(machine.as_ref()));
        let Some(machine) = machine.filter(|machine| lacks_expiry(ctx, machine)) else { continue };
        match read(ctx, &machine, cluster, &view).await? {
            Outcome::Shown => {}
            Outcome::NotReady => left = true,
            Outcome::Silent => {
                left = true;
                silent += 1;
            }
        }
        if silent == SILENT_MACHINES {
            break;
        }
    }
    Ok(if left { Action::RequeueAfter(AGAIN) } else { Action::Done })
}

/// Whether nothing shows when the certificates of a Machine expire.
fn lacks_expiry(ctx: &Context, machine: &Machine) -> bool {
    Look::of(ctx, machine).seen(ctx, CANONICAL).lacks_expiry()
}

/// What became of a question.
enum Outcome {
    /// The expiry is shown, or the Machine has changed, which wakes its cluster.
    Shown,
    /// It is paused, or its Node is not Ready.
    NotReady,
    /// There is no answer.
    Silent,
}

async fn read(
    ctx: &Context,
    machine: &Machine,
    cluster: &ObjectKey,
    view: &ClusterView,
) -> anyhow::Result<Outcome> {
    let Some(node) = node_name(machine) else { return Ok(Outcome::NotReady) };
    let of = Target { machine, node: &node, cluster, view };
    // A pause that ends wakes nothing.
    if paused(&ctx.stores, machine).is_some() || !of.is_ready(&node) {
        return Ok(Outcome::NotReady);
    }
    let expires = match ctx.k8sd.certificates_expiry(ctx, &of).await {
        Ok(expires) => expires,
        Err(error) => {
            let machine = machine.name_any();
            tracing::debug!(machine, %error, "cannot read when certificates expire");
            return Ok(Outcome::Silent);
        }
    };
    let api: Api<Machine> = Api::namespaced(ctx.client.clone(), &cluster.namespace);
    let body = json!({ "metadata": {
        "annotations": { CERTIFICATES_EXPIRY: expires.to_string() },
        "resourceVersion": machine.resource_version(),
    }});
    match apply::merge(&api, &machine.name_any(), &body).await {
        Ok(written) => ctx.stores.machines.insert(written),
        Err(error) if apply::is_conflict(&error) || apply::is_not_found(&error) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Outcome::Shown)
}
