//! KubeadmControlPlane: updates its machines, one at a time (`docs/facts/control-plane.md`; the
//! numbers in comments are the steps of its reconcile order).
//!
//! Not implemented, because no test or sandbox needs it: adoption of existing Machines, etcd
//! membership (a member is as healthy as its pod), kube-proxy and CoreDNS, certificates.

mod can_update;
mod config_map;
mod facts;
mod health;
mod remediate;
mod scale;
mod status;
mod trigger;

use std::{sync::Arc, time::Duration};

use kube::ResourceExt as _;
use refit_cluster_api::{
    desired::control_plane::ControlPlane as ControlPlaneIntents,
    kinds::{Cluster, KubeadmControlPlane, Machine, update_in_progress},
    rollout::control_plane::{Decision, PreflightFailure, ScaleDownReason, decide},
};
use refit_kinds::keys::MANAGER_KUBEADM_CONTROL_PLANE;
use refit_runtime::{ObjectKey, queue::Action};
use serde_json::Value;

use crate::{
    context::{Context, is_paused, namespace_of},
    error::Error,
    live::Live,
    machine_set::sync_metadata,
    snapshot,
    workload::{self, Reached},
};

/// Field manager of the labels and annotations on provider objects.
const MANAGER_METADATA: &str = "capi-kubeadmcontrolplane-metadata";
/// How long to wait after failed preflight checks.
const PREFLIGHT_WAIT: Duration = Duration::from_secs(15);
/// How long to wait for a machine that is being deleted.
const DELETE_WAIT: Duration = Duration::from_secs(30);
/// How long to wait for an unreachable workload cluster.
const REACH_WAIT: Duration = Duration::from_secs(5);

/// A control plane with its Cluster and workload cluster.
pub(crate) struct Plane {
    pub(crate) object: Arc<Live<KubeadmControlPlane>>,
    /// The control plane with Cluster API's defaults.
    pub(crate) json: Value,
    pub(crate) cluster: Arc<Live<Cluster>>,
    pub(crate) namespace: String,
    /// The workload cluster, if it is reachable.
    pub(crate) reached: Option<Arc<Reached>>,
}

impl Plane {
    /// The current Machines of the control plane.
    pub(crate) fn machines(&self, context: &Context) -> Vec<Arc<Live<Machine>>> {
        context.machines_of(&self.namespace, self.object.uid_text())
    }

    /// The desired objects of the control plane.
    fn desired(&self) -> ControlPlaneIntents<'_> {
        let cluster = self.cluster.metadata.name.as_deref().unwrap_or_default();
        ControlPlaneIntents { object: &self.json, cluster }
    }

    fn is_initialized(&self) -> bool {
        self.object.at("/status/initialization/controlPlaneInitialized") == true
    }
}

/// Advances a control plane by one step.
pub(crate) async fn reconcile(context: &Arc<Context>, key: &ObjectKey) -> Result<Action, Error> {
    let Some(object) = context.control_planes.get(key) else {
        return Ok(Action::Done);
    };
    let Some(cluster) = cluster_of(context, key) else {
        return Ok(Action::Done);
    };
    if object.is_deleting() || is_paused(&cluster, object.as_ref()) {
        return Ok(Action::Done);
    }
    // 1 and 3
    let provisioned = cluster.at("/status/initialization/infrastructureProvisioned") == true;
    let endpoint = cluster.spec.control_plane_endpoint.as_ref();
    let has_endpoint = endpoint.is_some_and(|endpoint| !endpoint.host.is_empty());
    if !provisioned || !has_endpoint {
        return Ok(Action::Done);
    }
    let mut plane = Plane {
        json: snapshot::defaulted(&object),
        namespace: namespace_of(&object),
        object,
        cluster,
        reached: None,
    };
    plane.reached = reach(context, &plane).await;
    let initialized = is_initialized(context, &plane).await;
    let outcome = step(context, &plane).await;
    // As in Cluster API, status is written even if the step failed.
    status::write(context, &plane, initialized).await?;
    let waits_for_first = !initialized && !plane.machines(context).is_empty();
    match outcome? {
        Action::Done if waits_for_first => Ok(Action::RequeueAfter(REACH_WAIT)),
        action => Ok(action),
    }
}

fn cluster_of(context: &Context, key: &ObjectKey) -> Option<Arc<Live<Cluster>>> {
    let clusters = context.clusters.list_in(&key.namespace).into_iter();
    let mut owners = clusters.filter(|cluster| {
        let reference = cluster.spec.control_plane_ref.as_ref();
        reference.is_some_and(|reference| {
            reference.kind == "KubeadmControlPlane" && reference.name == key.name
        })
    });
    owners.next()
}

/// The workload cluster, if it is reachable. It does not exist before the first machine.
async fn reach(context: &Arc<Context>, plane: &Plane) -> Option<Arc<Reached>> {
    if plane.machines(context).is_empty() {
        return None;
    }
    match workload::reach(context, &plane.cluster).await {
        Ok(reached) => reached.filter(|reached| reached.is_ready()),
        Err(error) => {
            tracing::debug!(%error, "failed to reach the workload cluster");
            None
        }
    }
}

/// Whether the first machine is up: then the workload cluster has a kubeadm configuration.
async fn is_initialized(context: &Context, plane: &Plane) -> bool {
    if plane.is_initialized() {
        return true;
    }
    let Some(reached) = &plane.reached else {
        return false;
    };
    let has_node = |machine: &Arc<Live<Machine>>| machine.at("/status/nodeRef/name").is_string();
    plane.machines(context).iter().any(has_node) && config_map::exists(&reached.client.0).await
}

async fn step(context: &Arc<Context>, plane: &Plane) -> Result<Action, Error> {
    sync_machines(context, plane).await?; // 5
    let differences = facts::all(context, plane).await?;
    health::write(context, plane, &differences).await?; // 6
    let mut input = facts::snapshot(context, plane, &differences);
    let mut decision = decide(&input);
    // 9 before 10: an update that has begun to start is completed first.
    if !matches!(decision, Decision::CompleteTrigger(_))
        && let Some(action) = remediate::run(context, plane).await?
    {
        return Ok(action);
    }
    let is_rollout = differences.values().any(|found| !found.is_empty());
    let is_updating = matches!(decision, Decision::CompleteTrigger(_) | Decision::WaitForUpdate(_));
    if is_rollout && !is_updating {
        // 12: before any machine is touched.
        let Some(reached) = &plane.reached else {
            return Ok(Action::RequeueAfter(REACH_WAIT));
        };
        config_map::update(&reached.client.0, &plane.json).await?;
    }
    while let Decision::AskExtension(name) = decision {
        let answer = can_update::ask(context, plane, &name).await?;
        input.can_update.insert(name, answer);
        decision = decide(&input);
    }
    act(context, plane, decision).await
}

/// Copies labels, annotations and the fields that change in place to the Machines.
async fn sync_machines(context: &Arc<Context>, plane: &Plane) -> Result<(), Error> {
    for machine in plane.machines(context) {
        if machine.is_deleting() {
            continue;
        }
        let intent = plane.desired().existing_machine(machine.json());
        let labels = intent["metadata"]["labels"].clone();
        let manager = MANAGER_KUBEADM_CONTROL_PLANE;
        context.apply(&context.machines, manager, Some(&machine), intent).await?;
        if !update_in_progress(machine.as_ref()) {
            sync_metadata(context, &machine, &labels, MANAGER_METADATA).await?;
        }
    }
    Ok(())
}

async fn act(context: &Arc<Context>, plane: &Plane, decision: Decision) -> Result<Action, Error> {
    let name = plane.object.name_any();
    match decision {
        Decision::UpToDate | Decision::AskExtension(_) => {}
        Decision::CompleteTrigger(machine) | Decision::TriggerInPlace(machine) => {
            trigger::start(context, plane, &machine).await?;
        }
        Decision::WaitForUpdate(machine) => {
            tracing::debug!("Waiting for in-place update of Machine {machine} to complete");
        }
        Decision::Wait(failures) => {
            let texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
            tracing::info!(
                control_plane = name,
                reason = texts.join("; "),
                "Waiting for control plane to pass preflight checks to continue reconciliation"
            );
            let deleting =
                |one: &PreflightFailure| matches!(one, PreflightFailure::MachineDeleting(_));
            let wait = if failures.iter().any(deleting) { DELETE_WAIT } else { PREFLIGHT_WAIT };
            return Ok(Action::RequeueAfter(wait));
        }
        Decision::ScaleUp(_) => scale::up(context, plane).await?,
        Decision::ScaleDown(machine, reason) => {
            if reason == ScaleDownReason::NotCovered {
                tracing::info!("Machine {machine} cannot be updated in-place by extensions");
            }
            scale::down(context, plane, &machine, reason).await?;
        }
    }
    Ok(Action::Done)
}
