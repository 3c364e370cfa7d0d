//! What the process counts, for `/metrics`.

use std::{sync::atomic::AtomicU64, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::{Registry, Unit},
};

use crate::{context::Context, groups::phase_of};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HookLabels {
    hook: String,
    verdict: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    controller: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SlotLabels {
    namespace: String,
    group: String,
    state: String,
}

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// Counters, gauges and histograms of the process.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    hooks: Durations<HookLabels>,
    reconciles: Durations<ControllerLabels>,
    errors: Family<ErrorLabels, Counter>,
    phases: Family<PhaseLabels, Gauge>,
    slots: Family<SlotLabels, Gauge>,
    queues: Family<ControllerLabels, Gauge>,
    synced: Gauge<f64, AtomicU64>,
}

fn hook_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 14))
}

fn reconcile_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.002, 2.0, 15))
}

impl Metrics {
    /// Everything at zero.
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("refit");
        let hooks: Durations<HookLabels> = Family::new_with_constructor(hook_buckets);
        let reconciles: Durations<ControllerLabels> =
            Family::new_with_constructor(reconcile_buckets);
        let errors = Family::default();
        let phases = Family::default();
        let slots = Family::default();
        let queues = Family::default();
        let synced = Gauge::<f64, AtomicU64>::default();
        registry.register(
            "build",
            "Version of this process",
            Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]),
        );
        registry.register_with_unit(
            "hook_duration",
            "How long hooks took, by hook and verdict",
            Unit::Seconds,
            hooks.clone(),
        );
        registry.register_with_unit(
            "reconcile_duration",
            "How long reconciles took, by controller",
            Unit::Seconds,
            reconciles.clone(),
        );
        registry.register(
            "reconcile_errors",
            "Failed reconciles, by controller and reason",
            errors.clone(),
        );
        registry.register("machines", "NodeUpdates, by phase", phases.clone());
        registry.register(
            "slots",
            "Slots of UpdateGroups: claimed, and how many there are",
            slots.clone(),
        );
        registry.register(
            "queue_depth",
            "Keys that wait or are worked on, by controller",
            queues.clone(),
        );
        registry.register("synced", "1 once the caches are complete", synced.clone());
        Self {
            registry,
            hooks,
            reconciles,
            errors,
            phases,
            slots,
            queues,
            synced,
        }
    }

    /// Counts one answered hook.
    pub(crate) fn hook(&self, hook: &str, verdict: &str, took: Duration) {
        self.hooks
            .get_or_create(&HookLabels {
                hook: hook.to_owned(),
                verdict: verdict.to_owned(),
            })
            .observe(took.as_secs_f64());
    }

    /// Counts one reconcile.
    pub(crate) fn reconcile(&self, controller: &str, took: Duration) {
        self.reconciles
            .get_or_create(&ControllerLabels {
                controller: controller.to_owned(),
            })
            .observe(took.as_secs_f64());
    }

    /// Counts one failed reconcile. The reason is one of few words, never a message.
    pub(crate) fn reconcile_error(&self, controller: &str, reason: &str) {
        self.errors
            .get_or_create(&ErrorLabels {
                controller: controller.to_owned(),
                reason: reason.to_owned(),
            })
            .inc();
    }

    /// The text that `/metrics` answers, with the gauges as the caches say now.
    pub(crate) fn render(&self, ctx: &Context) -> String {
        self.phases.clear();
        for update in ctx.stores.node_updates.list() {
            let phase = format!("{:?}", phase_of(&update));
            self.phases.get_or_create(&PhaseLabels { phase }).inc();
        }
        self.slots.clear();
        for group in ctx.stores.update_groups.list() {
            let Some(status) = &group.status else {
                continue;
            };
            let claimed = i64::try_from(status.slots.len()).unwrap_or(i64::MAX);
            for (state, count) in [("claimed", claimed), ("limit", i64::from(status.limit))] {
                let labels = SlotLabels {
                    namespace: group.metadata.namespace.clone().unwrap_or_default(),
                    group: group.metadata.name.clone().unwrap_or_default(),
                    state: state.to_owned(),
                };
                self.slots.get_or_create(&labels).set(count);
            }
        }
        let depths = [
            ("node-update", ctx.queues.node_updates.depth()),
            ("update-group", ctx.queues.groups.depth()),
        ];
        for (controller, depth) in depths {
            let labels = ControllerLabels {
                controller: controller.to_owned(),
            };
            let depth = i64::try_from(depth).unwrap_or(i64::MAX);
            self.queues.get_or_create(&labels).set(depth);
        }
        self.synced.set(f64::from(u8::from(ctx.stores.synced())));
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String cannot fail");
        text
    }
}
