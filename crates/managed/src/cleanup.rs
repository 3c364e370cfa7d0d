//! Removes what an upgrade has added before it commenced, when it is not wanted any more.

use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use refit_kinds::refit::SilencedPart;
use refit_openshift::{
    kinds::{MACHINE_API, MachineSet},
    maintenance::SilencesSeen,
    manager::{Leftovers, leftovers},
    scaler::scale_down,
};
use refit_runtime::{
    apply::{self, is_not_found},
    client::cause,
    queue::Action,
};

use crate::context::{Context, unread};

/// When it is looked again whether the cluster needs what an upgrade without UpgradeConfig has added.
const AGAIN: std::time::Duration = std::time::Duration::from_mins(5);

/// Removes extra MachineSets and silences of an upgrade that is cancelled. What cannot be removed is logged, and does not keep the
/// upgrade from being cancelled: it is removed once there is no UpgradeConfig, or by the next upgrade.
pub(crate) async fn cancelled(ctx: &Context) {
    let (sets, silences) = futures::join!(
        remove_machine_sets(ctx),
        Box::pin(end_silences(ctx, &[SilencedPart::ControlPlane]))
    );
    for error in [sets.err(), silences.err()].into_iter().flatten() {
        let error = format!("{error:#}");
        tracing::warn!(error, "cannot remove what a cancelled upgrade has added");
    }
}

/// Removes what is left in a cluster without UpgradeConfig, once no upgrade that was commenced needs it.
pub(crate) async fn without_upgrade(ctx: &Context) -> anyhow::Result<Action> {
    let (cluster, pools) = futures::try_join!(ctx.cluster_version(), ctx.pools())?;
    match leftovers(&cluster, &pools, ctx.compat) {
        Leftovers::Stay => {}
        Leftovers::Needed => return Ok(Action::RequeueAfter(AGAIN)),
        Leftovers::Removed => {
            let parts = [SilencedPart::ControlPlane, SilencedPart::Workers];
            let (sets, silences) =
                futures::join!(remove_machine_sets(ctx), Box::pin(end_silences(ctx, &parts)));
            sets.and(silences)?;
        }
    }
    Ok(Action::Done)
}

async fn remove_machine_sets(ctx: &Context) -> anyhow::Result<()> {
    let sets: Api<MachineSet> = Api::namespaced(ctx.client.clone(), MACHINE_API);
    let all = match sets.list(&ListParams::default()).await {
        Ok(list) => list.items,
        // A cluster without the machine API.
        Err(error) if is_not_found(&error) => return Ok(()),
        Err(error) => return Err(unread("the MachineSets")(error)),
    };
    let Some(down) = scale_down(true, &all, &[]) else { return Ok(()) };
    for name in down.delete {
        let deleted = apply::optional(sets.delete(&name, &DeleteParams::default()).await);
        deleted.map_err(|error| {
            anyhow::anyhow!("cannot delete MachineSet {name}: {}", cause(&error))
        })?;
    }
    Ok(())
}

async fn end_silences(ctx: &Context, parts: &[SilencedPart]) -> anyhow::Result<()> {
    let monitoring = ctx.remote.monitoring().await.map_err(anyhow::Error::msg)?;
    let silences = monitoring.silences().await.map_err(anyhow::Error::msg)?;
    let seen = SilencesSeen {
        compat: ctx.compat,
        silences: &silences,
        // They end for any version.
        version: "",
        now: ctx.clock.now_seconds(),
    };
    for write in parts.iter().flat_map(|part| seen.end(*part)) {
        monitoring.write(&write).await.map_err(anyhow::Error::msg)?;
    }
    Ok(())
}
