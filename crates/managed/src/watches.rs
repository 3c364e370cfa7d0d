//! One watch per kind, and what a change wakes. What is decided is read live.

use std::{
    convert::Infallible,
    ops::ControlFlow::{self, Continue},
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use refit_openshift::{
    Compat,
    kinds::MachineConfigPool,
    upgrade_config::{NAME, Phase, UpgradeConfig},
};
use refit_runtime::{
    ObjectKey,
    store::{self, Change},
};

use crate::context::Context;

/// How long a watch of UpgradeConfigs waits at most before it is tried again.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Watches every kind until the future is dropped.
pub(crate) async fn run(ctx: &Context) {
    let shared = &ctx.shared;
    let upgrades = async {
        let (api, store) = (ctx.own(), shared.upgrades.clone());
        let changed = |change: &Change<UpgradeConfig>| upgrade_changed(ctx, change);
        let go_on = |_: store::Broken<'_>| -> ControlFlow<Infallible, _> { Continue(LONGEST_WAIT) };
        match store::follow(api, &(), store::everything(), None, store, changed, go_on).await {}
    };
    futures::join!(
        upgrades,
        store::reflect(
            ctx.all(),
            store::everything(),
            shared.pools.clone(),
            |_: &MachineConfigPool| {
                // The times at which workers began and were done are noted at looks.
                match ctx.compat {
                    Compat::Repaired if is_upgrading(ctx) => ctx.wake_upgrade(),
                    // More looks would send more notifications again, until Prometheus shows them.
                    Compat::Repaired | Compat::Strict => {}
                }
                wake_nodes(ctx);
            }
        ),
        store::reflect(ctx.all(), store::everything(), shared.nodes.clone(), |node: &Node| {
            shared.node_queue.add(node.name_any());
        }),
    );
}

/// The UpgradeConfig, as the watch has it.
pub(crate) fn cached_upgrade(ctx: &Context) -> Option<std::sync::Arc<UpgradeConfig>> {
    ctx.shared.upgrades.get(&ObjectKey::new(&ctx.namespace, NAME))
}

fn is_upgrading(ctx: &Context) -> bool {
    let upgrade = cached_upgrade(ctx);
    let phase = upgrade.and_then(|upgrade| upgrade.entry().map(|entry| entry.phase));
    phase == Some(Phase::Upgrading)
}

/// Wakes NodeKeeper for every node: whether it has to look at a node depends on more than the node.
fn wake_nodes(ctx: &Context) {
    for node in ctx.shared.nodes.list() {
        ctx.shared.node_queue.add(node.name_any());
    }
}

fn upgrade_changed(ctx: &Context, change: &Change<UpgradeConfig>) {
    if change.object().metadata.name.as_deref() != Some(NAME) {
        return;
    }
    if wakes(change, ctx.compat) {
        ctx.wake_upgrade();
    }
    wake_nodes(ctx);
}

/// Whether a change wakes the controller. It does not if only the status is another one, which the controller itself writes. The
/// original also passes over a change of the spec that comes together with one of the status.
fn wakes(change: &Change<UpgradeConfig>, compat: Compat) -> bool {
    let (Some(before), Some(now)) = (&change.before, &change.now) else { return true };
    let is_of_spec = match compat {
        Compat::Repaired => before.spec != now.spec,
        Compat::Strict => false,
    };
    before.status == now.status || is_of_spec
}
