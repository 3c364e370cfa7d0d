//! Has k8sd issue the certificates of its node again, and asks when they expire (`docs/facts/k8sd.md#certificates`).

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use kube::ResourceExt as _;
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    canonical::{ApproveRequest, ExpiryAnswer, Nothing, PlanAnswer, RunAnswer, RunRequest},
    keys,
    refit::{MachineUid, PartStatus},
};
use serde_json::Value;

use super::{Endpoint, K8sd, K8sdError, Target, Token, bootstrap_config, not_sent};
use crate::{context::Context, groups::control_plane_of, host_plan::node_name};

const EXPIRY: Endpoint = Endpoint::read("x/capi/certificates-expiry");
const PLAN: Endpoint = Endpoint::read("x/capi/refresh-certs/plan");
/// It writes one file after the other.
const RUN: Endpoint =
    Endpoint { changes: true, in_parts: true, ..Endpoint::read("x/capi/refresh-certs/run") };
const APPROVE: Endpoint = Endpoint {
    changes: true,
    token: Token::Cluster,
    ..Endpoint::read("x/capi/refresh-certs/approve")
};
/// Delay between two attempts to approve the requests of a worker, which makes them meanwhile.
const APPROVE_AGAIN: Duration = Duration::from_secs(1);
/// How often they are approved without success until the attempt is given up, and the reason is shown.
const APPROVALS: u32 = 8;

/// The attempts that this process has begun and not made yet, by their Machine and the time when they began. One that is
/// not among them may be running: another process has begun it, or this one was interrupted.
#[derive(Debug, Default)]
pub(crate) struct BegunAttempts(Mutex<BTreeMap<MachineUid, Timestamp>>);

impl BegunAttempts {
    /// Adds the attempt of a part that begins one.
    pub(crate) fn add(&self, machine: &MachineUid, part: &PartStatus) {
        if let Some(began) = began_at(part) {
            self.lock().insert(machine.clone(), began);
        }
    }

    /// Removes the attempt of a part; returns whether it was there.
    pub(crate) fn take(&self, machine: &MachineUid, part: &PartStatus) -> bool {
        let known = self.lock().remove(machine);
        known.is_some() && known == began_at(part)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MachineUid, Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn began_at(part: &PartStatus) -> Option<Timestamp> {
    part.refresh.as_ref()?.began_at.as_ref().map(|at| at.0)
}

impl K8sd {
    /// When the certificates of a node expire.
    pub(crate) async fn certificates_expiry(
        &self,
        ctx: &Context,
        of: &Target<'_>,
    ) -> Result<Timestamp, K8sdError> {
        let answer: ExpiryAnswer = self.post(ctx, of, EXPIRY, &Nothing {}).await?;
        Ok(answer.expiry_date)
    }

    /// Has a node issue its certificates again, for this lifetime, and returns when they expire.
    pub(crate) async fn issue_certificates(
        &self,
        ctx: &Context,
        of: &Target<'_>,
        expiration_seconds: i64,
    ) -> Result<Timestamp, K8sdError> {
        // A plan is a random number, whatever became of its answer.
        let planned = self.post(ctx, of, PLAN, &Nothing {}).await;
        let PlanAnswer { seed } = planned.map_err(|error| not_sent(error.to_string()))?;
        let is_member = is_control_plane(of.machine);
        let extra_sans = if is_member { names(ctx, of).await? } else { Vec::new() };
        let request = RunRequest { seed, expiration_seconds, extra_sans };
        let run = self.post::<RunAnswer>(ctx, of, RUN, &request);
        let ran = if is_member {
            run.await
        } else {
            // A worker waits for its approval.
            tokio::select! {
                biased;
                ran = run => ran,
                why = self.approve(ctx, of, seed) => Err(why),
            }
        };
        ran.map(|answer| answer.expires(expiration_seconds, ctx.clock.now()))
    }

    /// Has a node of the control plane approve the requests of a worker. Ends only if that fails.
    async fn approve(&self, ctx: &Context, of: &Target<'_>, seed: i64) -> K8sdError {
        let mut last = not_sent("no approval was attempted");
        for _ in 0..APPROVALS {
            last = match self.approve_once(ctx, of, seed).await {
                Ok(()) => pending().await,
                Err(error) => error,
            };
            tokio::time::sleep(APPROVE_AGAIN).await;
        }
        // The worker was asked to issue its certificates, and may still do so.
        K8sdError::Lost(format!("failed to approve certificates: {last}"))
    }

    /// Asks the members one after the other, until one can be reached.
    async fn approve_once(
        &self,
        ctx: &Context,
        of: &Target<'_>,
        seed: i64,
    ) -> Result<(), K8sdError> {
        let mut unreached = not_sent("no node of the control plane is Ready");
        for member in control_plane_of(&ctx.stores, of.cluster) {
            let Some(node) = node_name(&member).filter(|node| of.is_ready(node)) else { continue };
            let member = Target { machine: &member, node: &node, ..*of };
            match self.post::<Nothing>(ctx, &member, APPROVE, &ApproveRequest { seed }).await {
                Ok(Nothing {}) => return Ok(()),
                Err(error @ K8sdError::NotSent(_)) => unreached = error,
                Err(error @ (K8sdError::Refused(_) | K8sdError::Lost(_))) => return Err(error),
            }
        }
        Err(unreached)
    }
}

fn is_control_plane(machine: &Machine) -> bool {
    machine.labels().contains_key(keys::CONTROL_PLANE)
}

/// The names of the API server that its certificate has in addition to those of the node.
async fn names(ctx: &Context, of: &Target<'_>) -> Result<Vec<String>, K8sdError> {
    let config = bootstrap_config(ctx, of.machine).await?;
    let extra = config.pointer("/spec/controlPlane/extraSANs").and_then(Value::as_array);
    let extra = extra.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    let cluster = ctx.stores.clusters.get(of.cluster);
    let endpoint = cluster.and_then(|cluster| cluster.spec.control_plane_endpoint.clone());
    let host = endpoint.map(|endpoint| endpoint.host).filter(|host| !host.is_empty());
    Ok(extra.chain(host).collect())
}
