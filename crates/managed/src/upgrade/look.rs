//! A look at the UpgradeConfig: what it knows, and what it has done.

use std::mem::take;

use jiff::Timestamp;
use refit_openshift::{
    Compat,
    cluster_version::has_commenced,
    config::{Config, Platform, UpgraderConfig},
    decide::{Decision, decide},
    history::{self, Trouble, show_trouble},
    kinds::{ClusterVersion, MachineConfigPool},
    metrics::milestones,
    steps::{Facts, Known, Write},
    upgrade_config::{Phase, UpgradeConfig},
    validation::go_architecture,
};

use crate::{
    context::Context,
    record::{Record, Stored},
};

/// A look.
pub(super) struct Look<'a> {
    pub(super) ctx: &'a Context,
    /// The UpgradeConfig and its entry.
    pub(super) record: Record,
    pub(super) platform: Platform,
    pub(super) config: Config,
    pub(super) upgrader: UpgraderConfig,
    asks_cincinnati: bool,
    pub(super) cluster: ClusterVersion,
    was_commenced: bool,
    pools: Vec<MachineConfigPool>,
    pub(super) facts: Facts,
    pub(super) tried: Vec<(Write, Result<(), String>)>,
    pub(super) now: Timestamp,
}

impl<'a> Look<'a> {
    /// Begins with the UpgradeConfig that was just read. A version that has no entry gets one.
    pub(super) async fn new(ctx: &'a Context, upgrade: UpgradeConfig) -> anyhow::Result<Self> {
        let (config, cluster, pools) =
            futures::try_join!(ctx.config(), ctx.cluster_version(), ctx.pools())?;
        let now = ctx.clock.now_seconds();
        let mut entry = match upgrade.entry() {
            Some(entry) => entry.clone(),
            None => history::first(&upgrade, &cluster, (now, ctx.compat))?,
        };
        let (upgrader, asks_cincinnati) = (config.upgrader()?, config.asks_cincinnati()?);
        show_trouble(&mut entry, Trouble::ConfigurationInvalid, None, now);
        Ok(Self {
            ctx,
            platform: Platform::of(&upgrade.spec.type_),
            upgrader,
            asks_cincinnati,
            was_commenced: has_commenced(&cluster, &upgrade.spec.desired).unwrap_or_default(),
            record: Record { upgrade, entry },
            config,
            cluster,
            pools,
            facts: Facts::default(),
            tried: Vec::new(),
            now,
        })
    }

    /// Stores the entry.
    pub(super) async fn store(&mut self) -> anyhow::Result<Stored> {
        self.record.store(self.ctx).await
    }

    /// Decides what is next.
    pub(super) fn decide(&mut self) -> Decision {
        let (facts, tried) = (take(&mut self.facts), take(&mut self.tried));
        let known = Known {
            upgrade: &self.record.upgrade,
            entry: &self.record.entry,
            compat: self.ctx.compat,
            config: &self.upgrader,
            asks_cincinnati: self.asks_cincinnati,
            architecture: go_architecture(std::env::consts::ARCH),
            cluster: &self.cluster,
            was_commenced: self.was_commenced,
            pools: &self.pools,
            facts,
            tried,
            now: self.now,
        };
        let decision = decide(self.platform, &known);
        let Known { facts, tried, .. } = known;
        (self.facts, self.tried) = (facts, tried);
        decision
    }

    /// Applies the metrics of a decision without writes, and stores its entry.
    pub(super) async fn finish(mut self, decision: Decision) -> anyhow::Result<Stored> {
        let metrics = &self.ctx.shared.metrics;
        metrics.apply(decision.gauges);
        let has_steps = match self.ctx.compat {
            // They stand, also after a restart.
            Compat::Repaired => true,
            Compat::Strict => self.record.entry.phase == Phase::Upgrading,
        };
        if has_steps {
            let cluster_id = &self.cluster.spec.cluster_id;
            let (was_commenced, compat) = (self.was_commenced, self.ctx.compat);
            let reached = milestones(&decision.entry, cluster_id, was_commenced, self.now, compat);
            for (series, at) in reached {
                metrics.set(series, at);
            }
        }
        self.record.entry = decision.entry;
        self.store().await
    }
}
