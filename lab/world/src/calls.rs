//! Counts the API calls of the controller while k8sd refreshes the snaps of all Machines of one owner, one after the other.
//!
//! Whatever a Machine costs, it must cost the same in an owner of any size: nothing is listed for each Machine, and what is
//! watched is not polled. The one exception is the live read before a Machine is disturbed, which lists the Nodes of the cluster by
//! pages of 100: its further pages are counted apart.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use lab_apiserver::{ApiServer, ObservedRequest};
use lab_simhost::k8sd::{REFRESH, REFRESH_STATUS};
use refit_controller::{Canonical, Settings};
use refit_kinds::{canonical::CANONICAL, json::kind};
use serde_json::{Value, json};

use crate::{
    direct::DirectError,
    world::{self, TimedOut, World, WorldError, WorldOptions, lock},
};

/// What is requested.
const OPTION: &str = "localPath=/snaps/k8s.snap";
/// Time limit for the cluster to come up, and for the upgrade.
const LIMIT: Duration = Duration::from_hours(24 * 7);
/// Interval between two checks.
const LOOK: Duration = Duration::from_secs(10);
/// How long the world rests before the count begins.
const SETTLE: Duration = Duration::from_mins(2);

/// The calls of an upgrade, by verb and object: `list Node`, `apply NodeUpdate/status`, `POST /1.0/snap/refresh`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallsReport {
    /// Number of Machines of the owner.
    pub machines: usize,
    /// How often each call was made.
    pub counts: BTreeMap<String, u64>,
    /// How many further pages were listed.
    pub further_pages: u64,
}

impl CallsReport {
    /// The number of all calls, without further pages.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }
}

/// Why calls cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum CallsError {
    /// The runtime cannot be created.
    #[error("failed to create a runtime: {0}")]
    Runtime(#[from] std::io::Error),
    /// A world cannot be created.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The owner cannot be annotated.
    #[error("failed to annotate the MachineDeployment: {0}")]
    Refused(#[from] DirectError),
    /// The cluster did not come up, or was not upgraded.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// An invariant was broken.
    #[error("the upgrade broke an invariant: {0}")]
    Violation(String),
}

type Counts = Arc<Mutex<BTreeMap<String, u64>>>;
/// Stands for further pages in the counts.
const FURTHER_PAGES: &str = "further pages";

/// Upgrades the MachineDeployment of a cluster like `examples/canonical.yaml` with this many Machines, by its annotation, and
/// counts the calls.
pub fn count(cluster: &[Value], machines: usize) -> Result<CallsReport, CallsError> {
    let mut manifests = cluster.to_vec();
    for object in manifests.iter_mut().filter(|object| kind(object) == "MachineDeployment") {
        object["spec"]["replicas"] = json!(machines);
    }
    let options = WorldOptions {
        settings: Settings { canonical: Canonical::ControllersAbsent, ..Settings::default() },
        ..WorldOptions::new(manifests)
    };
    world::runtime()?.block_on(async {
        let world = World::new(options).await?;
        world.until("every machine is available", LIMIT, World::is_ready).await?;
        world.pass(SETTLE).await;
        let counts = observe(&world);
        world.annotate_owners("MachineDeployment", CANONICAL, OPTION).await?;
        let end = world.now() + jiff::SignedDuration::try_from(LIMIT).unwrap_or_default();
        while !world.owners_show("MachineDeployment", CANONICAL, OPTION) {
            if world.now() >= end {
                let what = "the MachineDeployment is upgraded".to_owned();
                return Err(TimedOut { what, within: LIMIT }.into());
            }
            world.pass(LOOK).await;
        }
        if let Some(violation) = world.violations().first() {
            return Err(CallsError::Violation(violation.to_string()));
        }
        let mut counts = lock(&counts).clone();
        for path in [REFRESH, REFRESH_STATUS] {
            let hosts = lock(&world.inner.hosts);
            let all = hosts.values().filter_map(|host| host.k8sd.as_ref());
            let requests: usize = all.map(|k8sd| k8sd.count(path)).sum();
            counts.insert(format!("POST {path}"), u64::try_from(requests).unwrap_or(u64::MAX));
        }
        let further_pages = counts.remove(FURTHER_PAGES).unwrap_or_default();
        Ok(CallsReport { machines, counts, further_pages })
    })
}

/// Counts the calls of the controller to all API servers from now on.
fn observe(world: &World) -> Counts {
    let counts = Counts::default();
    let workloads = world.clusters().into_iter().filter_map(|cluster| world.workload(&cluster));
    for server in [world.management().clone()].into_iter().chain(workloads) {
        follow(&server, counts.clone());
    }
    counts
}

fn follow(server: &ApiServer, counts: Counts) {
    server.observe_requests(Box::new(move |request: &ObservedRequest<'_>| {
        // The server drops old events by itself.
        if !request.user_agent.starts_with("refit-controller") || request.kind == "Event" {
            return;
        }
        let subresource = if request.subresource.is_empty() { "" } else { "/" };
        let call = if request.is_further_page {
            FURTHER_PAGES.to_owned()
        } else {
            format!("{} {}{subresource}{}", request.verb, request.kind, request.subresource)
        };
        *lock(&counts).entry(call).or_default() += 1;
    }));
}
