//! Carries out the part of k8sd: asks it to refresh the snap of the Node, and how far that is; or has it issue the
//! certificates of the Node again.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_core::annotation::Compat;
use refit_core::node::{
    Called, CertificatesFailure, K8sdAttempts, K8sdRequest, after_ask, after_certificates,
    after_k8sd_failure, after_refresh, after_status, attempt_begun, begins_attempt, k8sd_call,
};
use refit_kinds::{
    canonical::{CANONICAL, Change, K8SD},
    refit::{GoalCertificates, PartState, PartStatus, UpdatePart},
};

use super::look::Look;
use crate::{
    annotations::is_requested_by,
    context::Context,
    k8sd::{K8sdAnswer, K8sdError, Target},
};

/// How long an attempt may take if the update does not say.
const ATTEMPT: SignedDuration = SignedDuration::from_hours(1);

/// Message of a replica that does not lead any more.
const NOT_LEADER: &str = "the call is left to the next leader";

/// The state of the part after the question whether k8sd can be called: nothing is sent to it.
pub(super) async fn asked(ctx: &Context, look: &Look, part: &PartStatus) -> PartStatus {
    after_ask(part, reached(ctx, look).await, ctx.clock.now_seconds())
}

/// Whether k8sd can be called; nothing is sent to it.
async fn reached(ctx: &Context, look: &Look) -> Result<(), String> {
    ctx.k8sd.reach(ctx, &target(look)?).await.map_err(|error| error.to_string())
}

/// The next state of the part. That an attempt begins is written before its request: after a crash it is known that a
/// refresh may run.
pub(super) async fn advanced(ctx: &Context, look: &Look, part: &PartStatus) -> PartStatus {
    let update = &look.snapshot.update;
    if let Some(certificates) = update.spec.goal.certificates {
        return certificates_advanced(ctx, look, part, certificates).await;
    }
    let now = || ctx.clock.now_seconds();
    let not_sent = |why: &str| after_k8sd_failure(part, why, K8sdRequest::NotSent, now());
    let Some(option) = &update.spec.goal.option else {
        return not_sent("the update has no option to install");
    };
    if part.state == PartState::Pending {
        return begun(ctx, look, part).await;
    }
    // The write that follows is fenced; the call cannot be.
    if !ctx.leadership.is_held() {
        return not_sent(NOT_LEADER);
    }
    let call = k8sd_call(part, option);
    let started = ctx.clock.now();
    // It may have been due long since: until now, k8sd has not been asked.
    let due = part.next_call_at.as_ref().map(|_| Time(started));
    let part = &PartStatus { next_call_at: due, ..part.clone() };
    let answer = match target(look) {
        Ok(of) => ctx.k8sd.call(ctx, &of, &call).await,
        Err(why) => Err(K8sdError::NotSent(why)),
    };
    count(ctx, started, &answer);
    let node_update = update.metadata.name.as_deref().unwrap_or_default();
    match answer {
        Ok(K8sdAnswer::Begun(Change { change_id })) => {
            tracing::info!(node_update, %option, change_id, "k8sd refreshes its snap");
            after_refresh(part, &change_id, now())
        }
        Ok(K8sdAnswer::Status(status)) => {
            let next = after_status(part, &status, attempts(ctx, look), now());
            if next.state != part.state {
                let (state, message) = (next.state, &next.message);
                tracing::info!(node_update, %option, ?state, message, "the refresh has ended");
            }
            next
        }
        Err(error) => {
            tracing::debug!(node_update, %option, %error, "k8sd gives no usable answer");
            after_k8sd_failure(part, &error.to_string(), error.request(), now())
        }
    }
}

/// An attempt that begins. What cannot be called yet has not begun, and can be stopped.
async fn begun(ctx: &Context, look: &Look, part: &PartStatus) -> PartStatus {
    let now = || ctx.clock.now_seconds();
    match reached(ctx, look).await {
        Ok(()) => attempt_begun(part, now()),
        Err(why) => after_k8sd_failure(part, &why, K8sdRequest::NotSent, now()),
    }
}

/// The same for certificates: an attempt is one call.
async fn certificates_advanced(
    ctx: &Context,
    look: &Look,
    part: &PartStatus,
    certificates: GoalCertificates,
) -> PartStatus {
    let machine = &look.snapshot.update.spec.machine_ref.uid;
    if begins_attempt(part) {
        let next = begun(ctx, look, part).await;
        if !begins_attempt(&next) {
            ctx.k8sd.begun.add(machine, &next);
        }
        return next;
    }
    let now = || ctx.clock.now_seconds();
    if !ctx.leadership.is_held() {
        return after_k8sd_failure(part, NOT_LEADER, K8sdRequest::NotSent, now());
    }
    if !ctx.k8sd.begun.take(machine, part) {
        let why = "the attempt was interrupted".to_owned();
        let failure = CertificatesFailure { why, request: K8sdRequest::Unknown };
        return after_certificates(part, Err(failure), now());
    }
    let started = ctx.clock.now();
    let lifetime = certificates.lifetime_seconds.ok_or("the goal has no lifetimeSeconds");
    let asked = target(look).and_then(|of| Ok((of, lifetime?)));
    let issued = match asked {
        Ok((of, seconds)) => Box::pin(ctx.k8sd.issue_certificates(ctx, &of, seconds)).await,
        Err(why) => Err(K8sdError::NotSent(why)),
    };
    let node_update = look.snapshot.update.metadata.name.as_deref().unwrap_or_default();
    let called = match &issued {
        Ok(expires) => {
            tracing::info!(node_update, %expires, "k8sd has issued certificates");
            Called::Done
        }
        Err(error) => {
            tracing::debug!(node_update, %error, "k8sd has issued no certificates");
            Called::Failed { message: error.to_string() }
        }
    };
    ctx.metrics.updater_called(K8SD, &called, ctx.clock.elapsed(started));
    let issued = issued
        .map_err(|error| CertificatesFailure { why: error.to_string(), request: error.request() });
    after_certificates(part, issued, now())
}

fn count(ctx: &Context, started: jiff::Timestamp, answer: &Result<K8sdAnswer, K8sdError>) {
    let again = || Called::Again { message: String::new(), seconds: 0 };
    let called = match answer {
        Ok(K8sdAnswer::Begun(_)) => again(),
        Ok(K8sdAnswer::Status(status)) => {
            if status.completed {
                Called::Done
            } else {
                again()
            }
        }
        Err(error) => Called::Failed { message: error.to_string() },
    };
    ctx.metrics.updater_called(K8SD, &called, ctx.clock.elapsed(started));
}

/// How attempts follow one another: under Canonical's prefix in strict mode, as with its controllers.
fn attempts(ctx: &Context, look: &Look) -> K8sdAttempts {
    let update = &look.snapshot.update;
    match ctx.settings.canonical_compat {
        Compat::Strict if is_requested_by(update.as_ref(), CANONICAL.upgrade_to) => {
            K8sdAttempts { limit: None, repeat_at_once: true }
        }
        Compat::Strict | Compat::Corrected => {
            K8sdAttempts { limit: Some(limit(look)), repeat_at_once: false }
        }
    }
}

/// How long an attempt may take.
fn limit(look: &Look) -> SignedDuration {
    let mut parts = look.snapshot.update.spec.updater_parts();
    let seconds =
        parts.find(|part| part.is_of_k8sd()).and_then(|part: &UpdatePart| part.timeout_seconds);
    seconds.map_or(ATTEMPT, |seconds| SignedDuration::from_secs(seconds.into()))
}

/// Whose k8sd is called.
fn target(look: &Look) -> Result<Target<'_>, String> {
    let machine = look.snapshot.own_machine().ok_or("the Machine was deleted")?;
    let cluster = look.cluster.as_ref().ok_or("its cluster is unknown")?;
    let seen = look.seen().ok_or("its cluster cannot be read")?;
    if seen.node_name.is_empty() {
        let name = machine.metadata.name.as_deref().unwrap_or_default();
        return Err(format!("machine {name} has no node reference"));
    }
    Ok(Target { machine, node: &seen.node_name, cluster: &cluster.key, view: &cluster.view })
}
