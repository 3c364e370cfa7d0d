//! The controller of the UpgradeConfig (`docs/adr/0009`).
//!
//! A look reads the UpgradeConfig, the configuration, the ClusterVersion and the MachineConfigPools live, and decides. What the
//! decision asks for is read or written, and it is decided again, until it asks for nothing. Then the entry is stored.

mod look;
mod read;
mod write;

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use jiff::SignedDuration;
use refit_openshift::{
    config::ConfigError, history::Trouble, metrics::Reset, upgrade_config::Phase,
};
use refit_runtime::{ObjectKey, queue::Action};

use self::look::Look;
use crate::{
    cleanup,
    context::Context,
    record::{Stored, show},
};

/// When an UpgradeConfig is looked at again at the earliest: the time of a look has whole seconds, and within the same one it would be
/// decided the same.
const SOONEST: SignedDuration = SignedDuration::from_secs(1);
/// When an UpgradeConfig is looked at again, whatever wakes it.
const RESYNC: SignedDuration = SignedDuration::from_mins(5);
/// How long a look may take, with its wait for a sync. The longest read waits for external dependencies, three times for up to a minute.
const DEADLINE: Duration = Duration::from_mins(10);
/// The next look at an object that changed during a look.
const AFTER_CHANGE: Duration = Duration::from_millis(500);

/// Looks at the UpgradeConfig until the future is dropped.
pub(crate) async fn run(ctx: Arc<Context>) -> anyhow::Result<()> {
    // What was set when this process led before is not known to be true.
    ctx.wake_upgrade();
    let reconcile = |_: ObjectKey| {
        let ctx = ctx.clone();
        async move {
            let look = tokio::time::timeout(DEADLINE, Box::pin(look(&ctx)));
            look.await.unwrap_or_else(|_| {
                anyhow::bail!(
                    "the look at the UpgradeConfig took more than {} s",
                    DEADLINE.as_secs()
                )
            })
        }
    };
    ctx.shared.upgrade_queue.work("upgrade-config", 1, reconcile).await;
    Ok(())
}

async fn look(ctx: &Context) -> anyhow::Result<Action> {
    let _turn = ctx.shared.turn.lock().await;
    let Some(upgrade) = ctx.upgrade().await? else {
        ctx.shared.metrics.reset(Reset::ConfigGone);
        return Ok(cleanup::remove_leftovers(ctx).await);
    };
    let mut look = match Look::new(ctx, upgrade).await {
        Ok(look) => look,
        Err(error) => {
            if error.is::<ConfigError>() {
                let why = error.to_string();
                show(ctx, Trouble::ConfigurationInvalid, Some(&why)).await;
            }
            return Err(error);
        }
    };
    if look.store().await? == Stored::Changed {
        return Ok(Action::RequeueAfter(AFTER_CHANGE));
    }
    let decision = loop {
        let decision = look.decide();
        if decision.writes.is_empty() {
            break decision;
        }
        for write in decision.writes {
            if look.perform(write).await? == Stored::Changed {
                return Ok(Action::RequeueAfter(AFTER_CHANGE));
            }
        }
    };
    let (again, error, waits) = (decision.again, decision.error.clone(), decision.waits.clone());
    let phase = decision.entry.phase;
    if look.finish(decision).await? == Stored::Changed {
        return Ok(Action::RequeueAfter(AFTER_CHANGE));
    }
    log_wait(ctx, waits);
    if phase != Phase::Upgrading {
        // It needs nothing, but an edit of the version may have replaced an upgrade that had begun.
        cleanup::remove_leftovers(ctx).await;
    }
    if let Some(error) = error {
        return Err(anyhow::Error::msg(error));
    }
    Ok(Action::RequeueAfter(again.unwrap_or(RESYNC).clamp(SOONEST, RESYNC).unsigned_abs()))
}

/// Logs what the upgrade waits for, once.
fn log_wait(ctx: &Context, waits: Option<String>) {
    let mut last = ctx.shared.waits.lock().unwrap_or_else(PoisonError::into_inner);
    if *last != waits {
        if let Some(step) = &waits {
            tracing::info!(step, "the upgrade waits");
        }
        *last = waits;
    }
}
