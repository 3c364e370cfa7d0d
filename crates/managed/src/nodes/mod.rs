//! NodeKeeper: brings the drains of nodes forward that the machine-config operator upgrades.

mod drain;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use refit_openshift::{
    kinds::MachineConfigPool,
    metrics::Series,
    nodes::{AGAIN, Attention, DrainSettings, drain_timeout},
};
use refit_runtime::{ObjectKey, queue::Action};

pub(crate) use self::drain::Drain;
use crate::{
    context::{Context, unread},
    record::Record,
    watches::cached_upgrade,
};

/// How many nodes are worked on at once.
const WORKERS: usize = 8;
/// How long a look at a node may take: an API server that does not answer keeps no other node waiting for longer.
const DEADLINE: Duration = Duration::from_mins(2);

/// Looks at nodes until the future is dropped.
pub(crate) async fn run(ctx: Arc<Context>) -> anyhow::Result<()> {
    let shared = &ctx.shared;
    futures::join!(shared.upgrades.ready(), shared.pools.ready(), shared.nodes.ready());
    for node in shared.nodes.list() {
        shared.node_queue.add(ObjectKey::of(node.as_ref()).name);
    }
    let reconcile = |name: String| {
        let ctx = ctx.clone();
        async move {
            let look = tokio::time::timeout(DEADLINE, Box::pin(look(&ctx, &name)));
            look.await.unwrap_or_else(|_| {
                anyhow::bail!("the look at Node {name} took more than {} s", DEADLINE.as_secs())
            })
        }
    };
    shared.node_queue.work("node-keeper", WORKERS, reconcile).await;
    Ok(())
}

async fn look(ctx: &Context, name: &str) -> anyhow::Result<Action> {
    // Most nodes need nothing, and cost no read.
    let node = ctx.shared.nodes.get(&ObjectKey::new("", name));
    let pools: Vec<MachineConfigPool> =
        ctx.shared.pools.list().into_iter().map(Arc::unwrap_or_clone).collect();
    let upgrade = cached_upgrade(ctx);
    let cached = Attention::of(upgrade.as_deref(), &pools, node.as_deref(), ctx.compat);
    match cached {
        Attention::Unneeded | Attention::Reset => Ok(settle(ctx, name, cached)),
        Attention::Drain => look_live(ctx, name).await,
    }
}

/// What follows for a node that is not drained.
fn settle(ctx: &Context, name: &str, attention: Attention) -> Action {
    match attention {
        Attention::Unneeded | Attention::Drain => {}
        Attention::Reset => {
            ctx.shared.metrics.set(Series::NodeDrainTimeout { node: name.to_owned() }, false);
        }
    }
    Action::Done
}

async fn look_live(ctx: &Context, name: &str) -> anyhow::Result<Action> {
    let nodes: Api<Node> = ctx.all();
    let node = async { nodes.get_opt(name).await.map_err(unread(&format!("Node {name}"))) };
    let (upgrade, pools, node) = futures::try_join!(ctx.upgrade(), ctx.pools(), node)?;
    let attention = Attention::of(upgrade.as_ref(), &pools, node.as_ref(), ctx.compat);
    let drained = match attention {
        Attention::Unneeded | Attention::Reset => None,
        Attention::Drain => Record::of(upgrade).zip(node),
    };
    let Some((mut record, node)) = drained else { return Ok(settle(ctx, name, attention)) };
    let config = ctx.config().await?;
    let settings = DrainSettings {
        config: &config.drain()?,
        pdb_force_drain_minutes: record.upgrade.spec.pdb_force_drain_timeout,
        compat: ctx.compat,
    };
    let now = ctx.clock.now_seconds();
    let mut drain = Drain { ctx, config: &config, settings, record: &mut record, now };
    let has_failed = drain.advance(&node).await?;
    if let Some(is_late) = drain_timeout(&node, has_failed) {
        ctx.shared.metrics.set(Series::NodeDrainTimeout { node: name.to_owned() }, is_late);
    }
    Ok(Action::RequeueAfter(AGAIN.unsigned_abs()))
}
