//! Gauges, read from the caches at each scrape.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::atomic::AtomicU64,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use refit_core::{
    managed::notifications::messages::Outbox as _,
    node::{awaits_budget, speaker},
};
use refit_kinds::{
    conditions,
    refit::{MachineUid, NodeName, NodeUpdate, Phase},
};
use refit_runtime::ObjectKey;

use crate::{
    cluster_view::ClusterView,
    context::Context,
    groups::{group_of_update, machine_key},
    host_plan::{machines_by_node, plan_key},
};

/// Maximum number of groups, and of clusters, with their own series. A fleet may have thousands of
/// both; groups with activity and clusters with problems come first, the others are only counted.
const MAX_SERIES: usize = 500;
/// The phase of a Machine without a NodeUpdate.
const NO_UPDATE: &str = "None";

type Real = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GroupLabels {
    namespace: String,
    group: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterLabels {
    namespace: String,
    cluster: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AgentLabels {
    namespace: String,
    cluster: String,
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpgradeLabels {
    phase: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReceiverLabels {
    receiver: &'static str,
}

/// All gauges.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    machines: Family<PhaseLabels, Gauge>,
    slots_claimed: Family<GroupLabels, Gauge>,
    slots_limit: Family<GroupLabels, Gauge>,
    drain_blocked: Family<GroupLabels, Real>,
    clusters: Family<StateLabels, Gauge>,
    fleet_agents: Family<StateLabels, Gauge>,
    agents: Family<AgentLabels, Gauge>,
    report_age: Family<ClusterLabels, Real>,
    api_up: Family<ClusterLabels, Gauge>,
    cluster_upgrades: Family<UpgradeLabels, Gauge>,
    cluster_upgrade_plans: Family<UpgradeLabels, Gauge>,
    notifications: Family<ReceiverLabels, Gauge>,
    depth: Family<ControllerLabels, Gauge>,
    omitted: Family<KindLabels, Gauge>,
    leader: Gauge,
    synced: Gauge,
}

/// Counts objects by their phase and by the reason of their condition Ready.
fn count_by_reason<'a>(
    family: &Family<UpgradeLabels, Gauge>,
    objects: impl Iterator<Item = (String, &'a [Condition])>,
) {
    family.clear();
    for (phase, shown) in objects {
        let reason = conditions::get(shown, conditions::READY);
        let reason = reason.map(|ready| ready.reason.clone()).unwrap_or_default();
        family.get_or_create(&UpgradeLabels { phase, reason }).inc();
    }
}

impl Gauges {
    /// Registers all gauges.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let all = Self::default();
        registry.register(
            "machines",
            "Machines, by the phase of their newest NodeUpdate; None without one",
            all.machines.clone(),
        );
        registry.register(
            "slots_claimed",
            "Machines of a group that hold a claim, and may be disturbed",
            all.slots_claimed.clone(),
        );
        registry.register(
            "slots_limit",
            "Machines of a group that may be disturbed at the same time",
            all.slots_limit.clone(),
        );
        registry.register_with_unit(
            "drain_blocked",
            "Duration of the longest blocked drain of a group",
            Unit::Seconds,
            all.drain_blocked.clone(),
        );
        registry.register(
            "clusters",
            "Workload clusters, by whether their API responds: up, syncing, unreachable",
            all.clusters.clone(),
        );
        registry.register(
            "fleet_agents",
            "Agents of all clusters, by the age of their report: fresh, stale, missing",
            all.fleet_agents.clone(),
        );
        registry.register(
            "agents",
            "Agents, by cluster and by the age of their report: fresh, stale, missing",
            all.agents.clone(),
        );
        registry.register_with_unit(
            "agent_report_age",
            "Age of the oldest report of an agent of a cluster",
            Unit::Seconds,
            all.report_age.clone(),
        );
        registry.register(
            "workload_api_up",
            "1 while the API of a workload cluster is reachable",
            all.api_up.clone(),
        );
        registry.register(
            "cluster_upgrades",
            "ClusterUpgrades, by phase and by the reason of their condition Ready",
            all.cluster_upgrades.clone(),
        );
        registry.register(
            "cluster_upgrade_plans",
            "ClusterUpgradePlans, by phase and by the reason of their condition Ready",
            all.cluster_upgrade_plans.clone(),
        );
        registry.register(
            "notifications_waiting",
            "Notifications that were not delivered yet, by receiver",
            all.notifications.clone(),
        );
        registry.register(
            "workqueue_depth",
            "Keys that are queued or being reconciled, by controller",
            all.depth.clone(),
        );
        registry.register(
            "series_omitted",
            "Groups and clusters without their own series because of the limit",
            all.omitted.clone(),
        );
        registry.register("leader", "1 while this replica is the leader", all.leader.clone());
        registry.register("synced", "1 once the caches are synced", all.synced.clone());
        all
    }

    /// Sets all gauges from the caches.
    pub(super) fn fill(&self, ctx: &Context) {
        let now = ctx.clock.now();
        self.machines(ctx);
        self.groups(ctx, now);
        self.clusters(ctx, now);
        self.upgrades(ctx);
        for (controller, depth) in [
            ("node-update", ctx.queues.node_updates.depth()),
            ("update-group", ctx.queues.groups.depth()),
            ("updater", ctx.queues.updaters.depth()),
            ("upgrade-task", ctx.queues.upgrade_tasks.depth()),
            ("cluster-upgrade", ctx.queues.cluster_upgrades.depth()),
            ("cluster-upgrade-plan", ctx.queues.cluster_upgrade_plans.depth()),
            ("replacement-hold", ctx.queues.replacement_holds.depth()),
            ("only-machine", ctx.queues.only_machines.depth()),
            ("notification", ctx.queues.notifications.depth()),
        ] {
            let controller = controller.to_owned();
            let labels = ControllerLabels { controller };
            self.depth.get_or_create(&labels).set(count(depth));
        }
        self.leader.set(i64::from(ctx.leadership.is_held()));
        self.synced.set(i64::from(ctx.stores.synced()));
    }

    fn machines(&self, ctx: &Context) {
        let updates = ctx.stores.node_updates.list();
        let mut of_machine: BTreeMap<ObjectKey, Vec<&NodeUpdate>> = BTreeMap::new();
        for update in &updates {
            of_machine.entry(machine_key(update)).or_default().push(update);
        }
        let mut phases: BTreeMap<String, usize> = BTreeMap::new();
        for machine in ctx.stores.machines.list() {
            let uid = MachineUid::of(&machine.metadata);
            let known = of_machine.get(&ObjectKey::of(machine.as_ref()));
            let newest = known.and_then(|known| speaker(known.iter().copied(), &uid));
            let phase = newest
                .map_or_else(|| NO_UPDATE.to_owned(), |update| format!("{:?}", update.phase()));
            *phases.entry(phase).or_default() += 1;
        }
        self.machines.clear();
        for (phase, machines) in phases {
            let labels = PhaseLabels { phase };
            self.machines.get_or_create(&labels).set(count(machines));
        }
    }

    fn upgrades(&self, ctx: &Context) {
        let upgrades = ctx.stores.cluster_upgrades.list();
        let shown = upgrades.iter().map(|upgrade| {
            let status = upgrade.status.as_ref();
            let phase = status.map(|status| status.phase).unwrap_or_default();
            (phase.to_string(), status.map_or(&[][..], |status| &status.conditions))
        });
        count_by_reason(&self.cluster_upgrades, shown);
        let plans = ctx.stores.cluster_upgrade_plans.list();
        let shown = plans.iter().map(|plan| {
            let status = plan.status.as_ref();
            let phase = status.map(|status| status.phase).unwrap_or_default();
            (phase.to_string(), status.map_or(&[][..], |status| &status.conditions))
        });
        count_by_reason(&self.cluster_upgrade_plans, shown);
        for receiver in ctx.settings.receivers() {
            let of_upgrades: usize = upgrades.iter().map(|one| one.waiting(receiver)).sum();
            let of_plans: usize = plans.iter().map(|one| one.waiting(receiver)).sum();
            let labels = ReceiverLabels { receiver: receiver.into() };
            self.notifications.get_or_create(&labels).set(count(of_upgrades + of_plans));
        }
    }

    fn groups(&self, ctx: &Context, now: Timestamp) {
        let blocked = blocked_drains(ctx);
        let groups = ctx.stores.update_groups.list();
        let busy = |key: &ObjectKey, slots: usize, waiting: usize| {
            slots + waiting > 0 || blocked.contains_key(key)
        };
        let mut known = BTreeSet::new();
        for group in &groups {
            let status = group.status.as_ref();
            let (slots, waiting, limit) = status.map_or((0, 0, 0), |status| {
                (status.slots.len(), status.waiting.len(), status.limit)
            });
            let key = ObjectKey::of(group.as_ref());
            // Groups with activity sort first.
            known.insert((!busy(&key, slots, waiting), key, slots, limit));
        }
        self.slots_claimed.clear();
        self.slots_limit.clear();
        self.drain_blocked.clear();
        self.omit("UpdateGroup", known.len());
        for (_, key, slots, limit) in known.into_iter().take(MAX_SERIES) {
            let labels = GroupLabels { namespace: key.namespace.clone(), group: key.name.clone() };
            self.slots_claimed.get_or_create(&labels).set(count(slots));
            self.slots_limit.get_or_create(&labels).set(limit.into());
            let seconds = blocked.get(&key).map_or(0.0, |since| seconds(now, *since));
            self.drain_blocked.get_or_create(&labels).set(seconds);
        }
    }

    fn clusters(&self, ctx: &Context, now: Timestamp) {
        let views = ctx.workload_index.views();
        self.agents.clear();
        self.report_age.clear();
        self.api_up.clear();
        self.omit("Cluster", views.len());
        let mut clusters: Vec<_> =
            views.iter().map(|(key, view)| (key, cluster_health(ctx, key, view))).collect();
        let mut states = BTreeMap::from([("up", 0), ("syncing", 0), ("unreachable", 0)]);
        let mut agents = BTreeMap::new();
        for (_, health) in &clusters {
            *states.entry(health.state).or_default() += 1;
            for (state, number) in &health.agents {
                *agents.entry(*state).or_default() += *number;
            }
        }
        set_states(&self.clusters, states);
        set_states(&self.fleet_agents, agents);
        clusters.sort_by_key(|(key, health)| (Reverse(health.trouble()), *key));
        for (key, health) in clusters.into_iter().take(MAX_SERIES) {
            self.cluster(key, &health, now);
        }
    }

    fn cluster(&self, key: &ObjectKey, health: &ClusterHealth, now: Timestamp) {
        let labels = ClusterLabels { namespace: key.namespace.clone(), cluster: key.name.clone() };
        self.api_up.get_or_create(&labels).set(i64::from(health.state == "up"));
        for (state, agents) in &health.agents {
            let labels = AgentLabels {
                namespace: key.namespace.clone(),
                cluster: key.name.clone(),
                state: (*state).to_owned(),
            };
            self.agents.get_or_create(&labels).set(count(*agents));
        }
        if let Some(oldest) = health.oldest_report {
            self.report_age.get_or_create(&labels).set(seconds(now, oldest));
        }
    }

    fn omit(&self, kind: &str, known: usize) {
        let labels = KindLabels { kind: kind.to_owned() };
        let omitted = count(known.saturating_sub(MAX_SERIES));
        self.omitted.get_or_create(&labels).set(omitted);
    }
}

/// A workload cluster as its caches show it.
struct ClusterHealth {
    state: &'static str,
    /// How many agents are fresh, stale and missing.
    agents: BTreeMap<&'static str, usize>,
    oldest_report: Option<Timestamp>,
}

impl ClusterHealth {
    /// Orders clusters by what an operator should look at: silent APIs before silent agents.
    fn trouble(&self) -> (bool, usize) {
        let silent = |state: &str| self.agents.get(state).copied().unwrap_or_default();
        (self.state != "up", silent("stale") + silent("missing"))
    }
}

fn cluster_health(ctx: &Context, key: &ObjectKey, view: &ClusterView) -> ClusterHealth {
    let state = if view.is_unreachable() || view.is_overdue(&ctx.clock) {
        "unreachable"
    } else if view.synced() {
        "up"
    } else {
        "syncing"
    };
    let mut agents = BTreeMap::from([("fresh", 0), ("stale", 0), ("missing", 0)]);
    let mut oldest_report: Option<Timestamp> = None;
    let machines = machines_by_node(ctx, key);
    let stale_after = ctx.settings.report_stale_after;
    for node in view.nodes.list() {
        let name = NodeName::from(node.name_any());
        let machine = machines.get(&name);
        let reported = machine
            .and_then(|machine| view.host_plan(plan_key(ctx, machine, &name), ctx.clock.now()).1);
        let state = match reported {
            None => "missing",
            Some(at) if ctx.clock.now().duration_since(at).unsigned_abs() > stale_after => "stale",
            Some(_) => "fresh",
        };
        *agents.entry(state).or_default() += 1;
        oldest_report = match (oldest_report, reported) {
            (Some(known), Some(at)) => Some(known.min(at)),
            (known, at) => known.or(at),
        };
    }
    ClusterHealth { state, agents, oldest_report }
}

fn set_states(family: &Family<StateLabels, Gauge>, states: BTreeMap<&str, usize>) {
    family.clear();
    for (state, number) in states {
        family.get_or_create(&StateLabels { state: state.to_owned() }).set(count(number));
    }
}

/// When the longest block of a drain began, for each group with blocked drains.
fn blocked_drains(ctx: &Context) -> BTreeMap<ObjectKey, Timestamp> {
    let mut blocked: BTreeMap<ObjectKey, Timestamp> = BTreeMap::new();
    for update in ctx.stores.node_updates.list() {
        let status = update.status.as_ref();
        // A budget without room blocks a drain before it begins, too.
        if update.phase() != Phase::Draining && !status.is_some_and(awaits_budget) {
            continue;
        }
        let since = status.and_then(|status| status.blocked_by.iter().map(|b| b.since.0).min());
        let group = group_of_update(&ctx.stores, &update);
        if let (Some(since), Some(group)) = (since, group) {
            let known = blocked.entry(group.key).or_insert(since);
            *known = since.min(*known);
        }
    }
    blocked
}

fn seconds(now: Timestamp, since: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use refit_runtime::Store;

    use super::*;
    use crate::{arrivals::Arrivals, scan_tests::unconnected};

    #[tokio::test]
    async fn an_unreachable_cluster_is_shown_however_many_there_are() {
        let ctx = unconnected();
        let clusters = MAX_SERIES + 100;
        for number in 0..clusters {
            let view = ClusterView::new(Store::default(), Arrivals::default(), 1, ctx.clock.now());
            view.host_plans.mark_ready();
            view.nodes.mark_ready();
            view.static_pods.mark_ready();
            if number == clusters - 1 {
                view.mark_unreachable();
            }
            let key = ObjectKey::new("fleet", format!("edge-{number:04}"));
            ctx.workload_index.insert(key, Arc::new(view));
        }
        let text = ctx.metrics.render(&ctx);
        for line in [
            "refit_clusters{state=\"unreachable\"} 1".to_owned(),
            format!("refit_clusters{{state=\"up\"}} {}", clusters - 1),
            "refit_clusters{state=\"syncing\"} 0".to_owned(),
            "refit_workload_api_up{namespace=\"fleet\",cluster=\"edge-0599\"} 0".to_owned(),
            "refit_series_omitted{kind=\"Cluster\"} 100".to_owned(),
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is missing");
        }
        assert_eq!(text.matches("refit_workload_api_up{").count(), MAX_SERIES);
    }
}
