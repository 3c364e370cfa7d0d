//! Syncs with the provider of UpgradeConfigs, again and again.

use jiff::SignedDuration;
use refit_openshift::{
    manager::{LastSync, Refresh},
    metrics::Series,
};

use crate::{context::Context, provider::sync};

/// Syncs until the future is dropped.
pub(crate) async fn run(ctx: &Context) -> anyhow::Result<()> {
    let interval = interval(ctx).await;
    let mut last = LastSync::Never;
    loop {
        wait(last).await;
        last = match sync(ctx).await {
            Ok(Some(refresh)) => synced(ctx, &refresh, interval),
            Ok(None) => {
                tracing::info!("configManager.source is empty: UpgradeConfigs have no provider");
                last.failed()
            }
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "sync with the provider failed");
                last.failed()
            }
        };
    }
}

/// Reads the watch interval until it is valid. Later changes of it apply after a restart.
async fn interval(ctx: &Context) -> SignedDuration {
    loop {
        let read = async { Ok(ctx.config().await?.watch_interval()?) };
        match read.await {
            Ok(interval) => return interval,
            Err(error) => log_invalid(&error),
        }
        wait(LastSync::Unconfigured).await;
    }
}

fn log_invalid(error: &anyhow::Error) {
    tracing::warn!(error = format!("{error:#}"), "cannot read configManager.watchInterval");
}

async fn wait(last: LastSync) {
    // The numbers of kube's back-off, which simulations seed.
    tokio::time::sleep(last.next_after(fastrand::u32(..)).unsigned_abs()).await;
}

fn synced(ctx: &Context, refresh: &Refresh, interval: SignedDuration) -> LastSync {
    if refresh.changes() {
        ctx.wake_upgrade();
    }
    let last = LastSync::Succeeded { at: ctx.clock.now(), interval };
    if let Some(at) = last.timestamp() {
        ctx.shared.metrics.set(Series::SyncTimestamp, at.as_second());
    }
    last
}
