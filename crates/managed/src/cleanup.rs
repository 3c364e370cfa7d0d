//! Removes what an upgrade has added before it commenced, when it is not wanted any more.

use std::time::Duration;

use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use refit_kinds::refit::SilencedPart;
use refit_openshift::{
    Compat,
    kinds::{MACHINE_API, MachineSet},
    maintenance::SilencesSeen,
    manager::is_under_way,
    scaler::scale_down,
    upgrade_config::NAMESPACE,
};
use refit_runtime::{
    apply::{self, is_not_found},
    client::cause,
    queue::Action,
};

use crate::context::{Context, unread};

/// When it is looked again whether the cluster needs what an upgrade that is gone has added.
const AGAIN: Duration = Duration::from_mins(5);

/// Removes extra MachineSets and silences of an upgrade that was deleted, or replaced by another one, once no upgrade that was commenced
/// needs them. Call it only while no UpgradeConfig is `Upgrading`.
pub(crate) async fn remove_leftovers(ctx: &Context) -> Action {
    match ctx.compat {
        Compat::Strict => return Action::Done,
        // In another namespace, it is tried out next to the one that has added them.
        Compat::Repaired if ctx.namespace != NAMESPACE => return Action::Done,
        Compat::Repaired => {}
    }
    match remove_unneeded(ctx).await {
        Ok(Removed::Yes) => Action::Done,
        Ok(Removed::Needed) => Action::RequeueAfter(AGAIN),
        Err(error) => {
            let error = format!("{error:#}");
            tracing::warn!(
                error,
                "cannot remove the extra nodes and silences of a deleted or replaced upgrade"
            );
            Action::RequeueAfter(AGAIN)
        }
    }
}

enum Removed {
    Yes,
    Needed,
}

async fn remove_unneeded(ctx: &Context) -> anyhow::Result<Removed> {
    let (cluster, pools) = futures::try_join!(ctx.cluster_version(), ctx.pools())?;
    if is_under_way(&cluster, &pools, ctx.compat) {
        return Ok(Removed::Needed);
    }
    let (sets, silences) = futures::join!(remove_machine_sets(ctx), Box::pin(end_silences(ctx)));
    match (sets, silences) {
        (Ok(()), Ok(())) => Ok(Removed::Yes),
        (Err(error), Ok(())) | (Ok(()), Err(error)) => Err(error),
        (Err(sets), Err(silences)) => Err(anyhow::anyhow!("{sets:#}; {silences:#}")),
    }
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

async fn end_silences(ctx: &Context) -> anyhow::Result<()> {
    let monitoring = ctx.remote.monitoring().await.map_err(anyhow::Error::msg)?;
    let silences = monitoring.silences().await.map_err(anyhow::Error::msg)?;
    let seen = SilencesSeen {
        compat: ctx.compat,
        silences: &silences,
        // They end for any version.
        version: "",
        now: ctx.clock.now_seconds(),
    };
    let parts = [SilencedPart::ControlPlane, SilencedPart::Workers];
    for write in parts.into_iter().flat_map(|part| seen.end(part)) {
        monitoring.write(&write).await.map_err(anyhow::Error::msg)?;
    }
    Ok(())
}
