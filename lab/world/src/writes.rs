//! Counts the write requests that Refit's processes send while they upgrade a fleet.
//!
//! A write of every machine multiplies with the fleet: it loads the API server, its watches and etcd. The count
//! begins with the upgrade and ends when the fleet is at rest again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use lab_apiserver::{ApiServer, ObservedRequest};
use refit_kinds::{json::text, refit::REPORT_INTERVAL_SECONDS};
use serde_json::{Value, json};

use crate::{
    direct::DirectError,
    world::{self, TimedOut, World, WorldError, WorldOptions, lock},
};

/// Machines of a cluster, at most.
const CLUSTER_MACHINES: usize = 50;
/// Machines of each control plane, as in `examples/cluster.yaml`.
const CONTROL_PLANE: usize = 3;
/// Time limit for all clusters to come up, and for the upgrade.
const LIMIT: Duration = Duration::from_hours(24);
/// Interval between two checks.
const LOOK: Duration = Duration::from_secs(10);
/// How long the fleet rests at the end: what follows the last update counts, too.
const SETTLE: Duration = Duration::from_mins(2);

/// An agent's report that differs from the last one by its time only.
pub const HEARTBEAT: &str = "HostPlan/status, unchanged";

/// How a fleet is upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeVia {
    /// Cluster API, which calls Refit's hooks.
    Hooks,
    /// An UpgradeTask for each owner.
    Tasks,
}

/// A fleet and its upgrade.
#[derive(Clone, Debug)]
pub struct WritesOptions {
    /// Manifests of a cluster like `examples/cluster.yaml`, of which the fleet has several.
    pub cluster: Vec<Value>,
    /// Number of machines of the fleet.
    pub machines: usize,
    /// Target version.
    pub version: String,
    /// How it is upgraded.
    pub via: UpgradeVia,
}

/// What a write is counted by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteKind {
    /// `controller` or `agent`.
    pub process: &'static str,
    /// Kubernetes verb, or `apply` for a server-side apply.
    pub verb: String,
    /// Kind of the object, with the subresource: `Node`, `NodeUpdate/status`; [`HEARTBEAT`] for an unchanged report.
    pub object: String,
    /// Field manager.
    pub manager: String,
}

impl WriteKind {
    /// Whether the write is counted apart: the number of evictions is that of the pods, the server drops old
    /// events by itself, and Leases and unchanged reports are renewed by time, whether or not there is an upgrade.
    pub fn is_apart(&self) -> bool {
        ["Event", "Lease", "Pod/eviction", HEARTBEAT].contains(&self.object.as_str())
    }
}

/// How many requests of a kind there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCount {
    /// All of them.
    pub requests: u64,
    /// Those that the server rejected, most of them because another write was faster.
    pub rejected: u64,
}

/// The writes of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritesReport {
    /// Number of machines.
    pub machines: usize,
    /// The number of requests of each kind.
    pub counts: BTreeMap<WriteKind, WriteCount>,
}

impl WritesReport {
    /// The number of requests, without those that are counted apart.
    pub fn total(&self) -> u64 {
        let counted = self.counts.iter().filter(|(kind, _)| !kind.is_apart());
        counted.map(|(_, count)| count.requests).sum()
    }
}

/// Why writes cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum WritesError {
    /// The fleet is too small for a cluster with workers.
    #[error("invalid number of machines {0}, expected {min} or more", min = CONTROL_PLANE + 1)]
    TooFew(usize),
    /// The runtime cannot be created.
    #[error("failed to create a runtime: {0}")]
    Runtime(#[from] std::io::Error),
    /// A world cannot be created.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A task cannot be created.
    #[error("failed to create an UpgradeTask: {0}")]
    Task(#[from] DirectError),
    /// The fleet did not come up, or was not upgraded.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// An invariant was broken.
    #[error("the upgrade broke an invariant: {0}")]
    Violation(String),
}

type Counts = Arc<Mutex<BTreeMap<WriteKind, WriteCount>>>;

/// Upgrades a fleet and counts the writes. `progress` gets what happens, for display.
pub fn count(
    options: &WritesOptions,
    progress: impl Fn(&str),
) -> Result<WritesReport, WritesError> {
    let manifests = fleet(&options.cluster, options.machines)?;
    world::runtime()?.block_on(async {
        let world = World::new(WorldOptions::new(manifests)).await?;
        until(&world, "every machine is available", World::is_ready).await?;
        world.pass(SETTLE).await;
        progress(&format!("{} machines are available", world.machines().len()));
        let counts = observe(&world);
        // From then on, each host has a report that the next one is compared with.
        world.pass(Duration::from_secs(REPORT_INTERVAL_SECONDS.unsigned_abs())).await;
        lock(&counts).clear();
        let start = world.now();
        match options.via {
            UpgradeVia::Hooks => world.upgrade(&options.version).await?,
            UpgradeVia::Tasks => world.upgrade_by_tasks(&options.version).await?,
        }
        let is_done = |world: &World| {
            world.is_updated(&options.version)
                && match options.via {
                    UpgradeVia::Hooks => true,
                    UpgradeVia::Tasks => world.tasks_are_complete(),
                }
        };
        until(&world, "every machine is upgraded", is_done).await?;
        let took = world.now().duration_since(start);
        progress(&format!("every machine is upgraded, after {} simulated seconds", took.as_secs()));
        world.pass(SETTLE).await;
        if let Some(violation) = world.violations().first() {
            return Err(WritesError::Violation(violation.to_string()));
        }
        let counts = lock(&counts).clone();
        Ok(WritesReport { machines: options.machines, counts })
    })
}

async fn until(world: &World, what: &str, is_so: impl Fn(&World) -> bool) -> Result<(), TimedOut> {
    let end = world.now() + jiff::SignedDuration::try_from(LIMIT).unwrap_or_default();
    while !is_so(world) {
        if world.now() >= end {
            return Err(TimedOut { what: what.to_owned(), within: LIMIT });
        }
        world.pass(LOOK).await;
    }
    Ok(())
}

/// Counts the writes to all API servers from now on.
fn observe(world: &World) -> Counts {
    let counts = Counts::default();
    let workloads = world.clusters().into_iter().filter_map(|cluster| world.workload(&cluster));
    for server in [world.management().clone()].into_iter().chain(workloads) {
        follow(&server, counts.clone());
    }
    counts
}

fn follow(server: &ApiServer, counts: Counts) {
    let mut reports: BTreeMap<String, Value> = BTreeMap::new();
    server.observe_requests(Box::new(move |request: &ObservedRequest<'_>| {
        if request.is_read() {
            return;
        }
        let process = match request.user_agent.split('/').next() {
            Some("refit-controller") => "controller",
            Some("refit-agent") => "agent",
            Some(_) | None => return,
        };
        let object = match request.subresource {
            "" => request.kind.to_owned(),
            subresource => format!("{}/{subresource}", request.kind),
        };
        let is_heartbeat = (process, object.as_str()) == ("agent", "HostPlan/status")
            && is_unchanged(&mut reports, request);
        let kind = WriteKind {
            process,
            verb: request.verb.to_owned(),
            object: if is_heartbeat { HEARTBEAT.to_owned() } else { object },
            manager: request.manager.to_owned(),
        };
        let mut counts = lock(&counts);
        let count = counts.entry(kind).or_default();
        count.requests += 1;
        count.rejected += u64::from(request.rejected.is_some());
    }));
}

/// Whether a report differs from the last one of its host by its time at most.
fn is_unchanged(reports: &mut BTreeMap<String, Value>, request: &ObservedRequest<'_>) -> bool {
    let mut report: Value = serde_json::from_slice(request.body).unwrap_or_default();
    if let Some(status) = report["status"].as_object_mut() {
        status.remove("reportedAt");
    }
    let last = reports.insert(request.name.to_owned(), report.clone());
    last == Some(report)
}

/// The manifests of a fleet: clusters of about the same size, a tenth of whose workers may be down.
fn fleet(cluster: &[Value], machines: usize) -> Result<Vec<Value>, WritesError> {
    if machines <= CONTROL_PLANE {
        return Err(WritesError::TooFew(machines));
    }
    let clusters = machines.div_ceil(CLUSTER_MACHINES);
    let mut objects = Vec::new();
    for index in 0..clusters {
        let of_cluster = machines / clusters + usize::from(index < machines % clusters);
        let workers = of_cluster.saturating_sub(CONTROL_PLANE);
        objects.extend(cluster.iter().map(|object| member(object, index + 1, workers)));
    }
    Ok(objects)
}

/// An object of the cluster with this number.
fn member(object: &Value, number: usize, workers: usize) -> Value {
    let renamed = object.to_string().replace("edge-1", &format!("edge-{number}"));
    let mut object: Value = serde_json::from_str(&renamed).unwrap_or_default();
    if text(&object, "/kind") == "MachineDeployment" {
        object["spec"]["replicas"] = json!(workers);
        object["spec"]["rollout"]["strategy"]["rollingUpdate"]["maxUnavailable"] = json!("10%");
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_has_as_many_machines_as_requested() {
        let cluster = [
            json!({"kind": "KubeadmControlPlane", "metadata": {"name": "edge-1"}, "spec": {"replicas": 3}}),
            json!({"kind": "MachineDeployment", "metadata": {"name": "edge-1-md-0"}}),
        ];
        for machines in [4, 50, 51, 100, 1000] {
            let objects = fleet(&cluster, machines).unwrap();
            let replicas = objects.iter().filter_map(|object| object["spec"]["replicas"].as_u64());
            assert_eq!(usize::try_from(replicas.sum::<u64>()).unwrap(), machines);
        }
        assert_eq!(fleet(&cluster, 120).unwrap()[4]["metadata"]["name"], "edge-3");
        assert!(matches!(fleet(&cluster, 3), Err(WritesError::TooFew(3))));
    }

    #[test]
    fn events_leases_and_evictions_are_counted_apart() {
        let kind = |object: &str| WriteKind {
            process: "controller",
            verb: "create".to_owned(),
            object: object.to_owned(),
            manager: String::new(),
        };
        let counts = ["Event", "Lease", "Pod/eviction", "NodeUpdate"];
        let count = WriteCount { requests: 7, rejected: 1 };
        let counts = counts.into_iter().map(|object| (kind(object), count)).collect();
        assert_eq!(WritesReport { machines: 4, counts }.total(), 7);
    }
}
