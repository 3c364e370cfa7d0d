//! Removes what an upgrade has added before it commenced, when its provider does not want it any more.

use kube::{Api, api::DeleteParams};
use refit_openshift::{
    kinds::{MACHINE_API, Machine, MachineSet},
    maintenance::SilencesSeen,
    scaler::scale_down,
    upgrade_config::UpgradeConfig,
};
use refit_runtime::{apply, client::cause};

use crate::context::{Context, list};

/// Removes extra MachineSets and silences. What cannot be removed is logged, and does not keep the upgrade from being cancelled: the
/// next upgrade removes the MachineSets, and silences run out.
pub(crate) async fn clean_up(ctx: &Context, upgrade: &UpgradeConfig) {
    let (sets, silences) =
        futures::join!(remove_machine_sets(ctx), Box::pin(end_silences(ctx, upgrade)));
    for error in [sets.err(), silences.err()].into_iter().flatten() {
        let error = format!("{error:#}");
        tracing::warn!(error, "cannot remove what a cancelled upgrade has added");
    }
}

async fn remove_machine_sets(ctx: &Context) -> anyhow::Result<()> {
    let sets: Api<MachineSet> = Api::namespaced(ctx.client.clone(), MACHINE_API);
    let machines: Api<Machine> = Api::namespaced(ctx.client.clone(), MACHINE_API);
    let (all, machines) =
        futures::try_join!(list(&sets, "the MachineSets"), list(&machines, "the Machines"))?;
    let Some(down) = scale_down(true, &all, &machines) else { return Ok(()) };
    for name in down.delete {
        let deleted = apply::optional(sets.delete(&name, &DeleteParams::default()).await);
        deleted.map_err(|error| {
            anyhow::anyhow!("cannot delete MachineSet {name}: {}", cause(&error))
        })?;
    }
    Ok(())
}

async fn end_silences(ctx: &Context, upgrade: &UpgradeConfig) -> anyhow::Result<()> {
    let monitoring = ctx.remote.monitoring().await.map_err(anyhow::Error::msg)?;
    let silences = monitoring.silences().await.map_err(anyhow::Error::msg)?;
    let seen = SilencesSeen {
        compat: ctx.compat,
        silences: &silences,
        version: upgrade.spec.desired.version.as_deref().unwrap_or_default(),
        now: ctx.clock.now_seconds(),
    };
    for write in seen.after_failure() {
        monitoring.write(&write).await.map_err(anyhow::Error::msg)?;
    }
    Ok(())
}
