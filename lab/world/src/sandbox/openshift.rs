//! An OpenShift cluster that keeps running at a multiple of real time, and serves kubectl.
//!
//! All of it, the program and the simulated operators, runs on one clock in a thread of its own. The clock begins in the past, so
//! that no time in the cluster is later than the client's own time: once it has caught up, it runs in real time. Connections
//! of clients are served outside of that thread, with deadlines in real time.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    pin::pin,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::runtime::{WatchStreamExt as _, watcher};
use lab_apiserver::{
    ApiServer, ClockFn,
    auth::{Authentication, Required},
};
use lab_openshift::{
    Blueprint,
    ocm::{Ocm, Policy},
    site::from_any_thread,
    wire,
};
pub use refit_openshift::upgrade_config::Phase;
use refit_openshift::{
    config::Platform,
    upgrade_config::{NAMESPACE, UpgradeCondition, UpgradeConfig, UpgradeHistory},
};
use refit_runtime::{Clock, net::Listener, tls::Authority};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Ports, SandboxError,
    kubeconfig::{self, FILE, HOST},
    serve::{Api, listen, port_of},
};
use crate::{
    openshift::{World, WorldOptions},
    pki::{self, Pem},
    world::{self, pace},
};

/// The versions to which a sandbox can be upgraded, one after the other. OCM has scheduled the first.
pub const UPGRADES: [&str; 2] = ["4.16.4", "4.17.1"];
/// How long after the start the scheduled upgrade is.
const AHEAD: SignedDuration = SignedDuration::from_mins(20);
/// How far in the past the clock begins.
const AGE: SignedDuration = SignedDuration::from_hours(24);
/// How often the clock is compared with the machine's.
const COMPARE: Duration = Duration::from_secs(1);
/// How often the policies are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Context of the cluster.
const CONTEXT: &str = "openshift";
/// File name of the configuration with which curl calls OCM.
const OCM_FILE: &str = "ocm";

/// Options of a sandbox.
#[derive(Debug)]
pub struct OpenShiftOptions {
    /// Directory of the files with credentials.
    pub directory: PathBuf,
    /// How many times faster than real time the clock runs.
    pub speed: u32,
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The state of a policy of OCM.
    Policy {
        /// Its ID.
        id: String,
        /// The policy.
        policy: Policy,
    },
    /// The phase of the upgrade.
    Phase {
        /// The version.
        version: String,
        /// The phase.
        phase: Phase,
    },
    /// A step of the upgrade.
    Step {
        /// The type of its condition.
        step: String,
        /// What it waits for, `None` once it is done.
        waits: Option<String>,
    },
}

/// A running cluster. Dropping it stops the cluster and closes its ports.
#[derive(Debug)]
pub struct OpenShift {
    kubeconfig: PathBuf,
    ocm: PathBuf,
    next_run: Timestamp,
    changes: mpsc::UnboundedReceiver<(Timestamp, Change)>,
    /// Serves the API and OCM.
    serving: JoinSet<()>,
    stop: Option<DropGuard>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for OpenShift {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // Its panic was shown.
            let _ = thread.join();
        }
    }
}

/// What the thread of the cluster reports once that is up.
struct Started {
    server: ApiServer,
    ocm: Ocm,
    clock: ClockFn,
    next_run: Timestamp,
}

/// What the thread of the cluster needs.
struct Inside {
    ca: Pem,
    token: String,
    speed: u32,
    started: oneshot::Sender<Started>,
    changes: mpsc::UnboundedSender<(Timestamp, Change)>,
    stop: CancellationToken,
}

impl OpenShift {
    /// Creates a cluster for which an upgrade is scheduled, and serves its API. Must be called in a [`super::runtime`].
    pub async fn start(ports: Ports, options: OpenShiftOptions) -> Result<Self, SandboxError> {
        let ca = Pem::from(Authority::new("openshift-ca", pki::validity())?.material());
        let token = URL_SAFE_NO_PAD.encode(ca.derive("ocm"));
        let ocm = listen(0, "--port")?;
        let ocm_port = port_of(&ocm)?;
        let stop = CancellationToken::new();
        let (started, is_up) = oneshot::channel();
        let (sender, changes) = mpsc::unbounded_channel();
        let inside = Inside {
            ca: ca.clone(),
            token: token.clone(),
            speed: options.speed,
            started,
            changes: sender,
            stop: stop.clone(),
        };
        let (failed, failure) = oneshot::channel();
        let thread = thread::Builder::new().name("openshift".to_owned()).spawn(move || {
            if let Err(error) = inside.run() {
                let _ = failed.send(error);
            }
        })?;
        let mut openshift = Self {
            kubeconfig: options.directory.join(FILE),
            ocm: options.directory.join(OCM_FILE),
            next_run: Timestamp::MIN,
            changes,
            serving: JoinSet::new(),
            stop: Some(stop.drop_guard()),
            thread: Some(thread),
        };
        let Ok(started) = is_up.await else {
            let why = failure.await.unwrap_or_else(|_| anyhow::anyhow!("it has ended"));
            return Err(SandboxError::OpenShift(why));
        };
        openshift.next_run = started.next_run;
        let id = Blueprint::default().cluster_id;
        let policies = format!("http://{HOST}:{ocm_port}{}", started.ocm.policies_path());
        let curl = format!(
            "url = \"{policies}\"\nheader = \"Authorization: AccessToken {id}:{token}\"\n\
             silent\nshow-error\nwrite-out = \"\\n\"\n"
        );
        write(&openshift.ocm, &curl)?;
        let serving = wire::serve(started.ocm, Listener::listening(ocm)?, None, started.clock);
        openshift.serving.spawn(serving);
        let api = Api::new(started.server, &ca, port_of(&ports.management)?)?;
        openshift.serving.spawn(api.outside(Listener::listening(ports.management)?));
        write(&openshift.kubeconfig, &kubeconfig::text(&[api.entry(CONTEXT)]))?;
        Ok(openshift)
    }

    /// Path of the kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Path of the configuration with which curl calls OCM: it lists the policies, and schedules one with `-d`.
    pub fn ocm(&self) -> &Path {
        &self.ocm
    }

    /// When the first upgrade is scheduled, on the clock of the cluster.
    pub fn next_run(&self) -> Timestamp {
        self.next_run
    }

    /// The next change and its time, on the clock of the cluster.
    pub async fn change(&mut self) -> Result<(Timestamp, Change), SandboxError> {
        let ended = || SandboxError::OpenShift(anyhow::anyhow!("it has ended"));
        self.changes.recv().await.ok_or_else(ended)
    }
}

fn write(path: &Path, text: &str) -> Result<(), SandboxError> {
    kubeconfig::write(path, text)
        .map_err(|source| SandboxError::Kubeconfig { path: path.to_owned(), source })
}

impl Inside {
    /// Runs the cluster until it is stopped.
    fn run(self) -> anyhow::Result<()> {
        let runtime = world::runtime().context("failed to create a runtime")?;
        let stop = self.stop.clone();
        let outcome = runtime.block_on(async {
            tokio::select! {
                biased;
                () = stop.cancelled() => Ok(()),
                outcome = self.keep_running() => outcome,
            }
        });
        runtime.shutdown_background();
        outcome
    }

    async fn keep_running(self) -> anyhow::Result<()> {
        let clock = Clock::simulated(Clock::real().now_seconds() - AGE);
        let signing_key = self.ca.derive("service accounts");
        let world = World::new(WorldOptions {
            clock,
            authentication: Authentication::Required(Required::new(signing_key)),
            ocm_token: self.token,
            ..WorldOptions::new(Platform::Osd)
        });
        let world = world.await?;
        world.schedule("policy-1", UPGRADES[0], AHEAD);
        let started = Started {
            server: world.server().clone(),
            ocm: world.ocm().clone(),
            clock: from_any_thread(clock),
            next_run: world.now() + AHEAD,
        };
        // Without a receiver it is being stopped.
        let _ = self.started.send(started);
        tokio::select! {
            biased;
            () = report(&world, &self.changes) => {}
            () = keep_pace(clock, self.speed) => {}
        }
        Ok(())
    }
}

/// Lets time pass at a multiple of real time, until the clock has caught up with the machine's.
async fn keep_pace(clock: Clock, speed: u32) {
    let caught_up = async {
        while clock.now() < Clock::real().now() {
            tokio::time::sleep(COMPARE).await;
        }
    };
    tokio::select! {
        biased;
        () = pace(f64::from(speed)) => {}
        () = caught_up => {}
    }
    pace(1.0).await;
}

/// Reports changes without end. Every state of the UpgradeConfig counts: it may be deleted right after the last one.
async fn report(world: &World, changes: &mpsc::UnboundedSender<(Timestamp, Change)>) {
    let upgrades = kube::Api::<UpgradeConfig>::namespaced(world.client(), NAMESPACE);
    let events = watcher(upgrades, watcher::Config::default()).default_backoff();
    let mut upgrades = pin!(events.touched_objects());
    let mut seen = Seen::default();
    loop {
        let upgrade = tokio::select! {
            biased;
            upgrade = upgrades.next() => upgrade.and_then(Result::ok),
            () = tokio::time::sleep(LOOK) => None,
        };
        let mut found = seen.policies(world.ocm().policies());
        if let Some(entry) = upgrade.as_ref().and_then(UpgradeConfig::entry) {
            found.extend(seen.upgrade(entry));
        }
        for change in found {
            // Without a receiver the cluster is being stopped.
            let _ = changes.send((world.now(), change));
        }
    }
}

/// What was reported.
#[derive(Debug, Default)]
struct Seen {
    policies: BTreeMap<String, Policy>,
    phase: Option<(String, Phase)>,
    /// Whether each step is done.
    steps: BTreeMap<String, bool>,
}

impl Seen {
    fn policies(&mut self, policies: BTreeMap<String, Policy>) -> Vec<Change> {
        let changed = policies.iter().filter(|(id, policy)| self.policies.get(*id) != Some(policy));
        let changes = changed
            .map(|(id, policy)| Change::Policy { id: id.clone(), policy: policy.clone() })
            .collect();
        self.policies = policies;
        changes
    }

    fn upgrade(&mut self, entry: &UpgradeHistory) -> Vec<Change> {
        let phase = Some((entry.version.clone(), entry.phase));
        let change = (self.phase != phase)
            .then(|| Change::Phase { version: entry.version.clone(), phase: entry.phase });
        self.phase = phase;
        if change.is_some() && matches!(entry.phase, Phase::New | Phase::Pending) {
            self.steps.clear();
        }
        // What begins is reported before its steps, what has ended after them.
        match entry.phase {
            Phase::New | Phase::Pending | Phase::Upgrading => {
                change.into_iter().chain(self.steps(entry)).collect()
            }
            Phase::Upgraded | Phase::Failed => {
                self.steps(entry).into_iter().chain(change).collect()
            }
        }
    }

    fn steps(&mut self, entry: &UpgradeHistory) -> Vec<Change> {
        // The other conditions note what was sent to OCM.
        let steps = entry.conditions.iter().rev().filter(|one| !one.type_.starts_with("State"));
        let mut changes = Vec::new();
        for UpgradeCondition { type_, status, message, .. } in steps {
            let is_done = status == "True";
            if self.steps.insert(type_.clone(), is_done) != Some(is_done) {
                let waits = (!is_done).then(|| message.clone());
                changes.push(Change::Step { step: type_.clone(), waits });
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_of_a_cluster_runs_fast_only_until_it_has_caught_up() {
        let clock = Clock::simulated(Clock::real().now() - SignedDuration::from_mins(5));
        let paced = tokio::spawn(keep_pace(clock, 1000));
        // At a thousand times real time, it would be hours ahead.
        for _ in 0..100 {
            tokio::task::spawn_blocking(|| thread::sleep(Duration::from_millis(20))).await.unwrap();
        }
        paced.abort();
        let behind = Clock::real().now().duration_since(clock.now());
        assert!(behind.abs() < SignedDuration::from_mins(1), "{behind}");
    }
}
