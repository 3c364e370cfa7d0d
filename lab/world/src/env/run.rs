//! Carries out the decisions of the environment.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use lab_apiserver::ApiServer;

use super::{
    HostViews, PassWrites, RETRY, Target, View, canonical, plan, quorum, setup,
    state::{ClusterState, HostRecord},
    trouble,
};
use crate::{
    direct::{Call, Direct, DirectError, ENVIRONMENT},
    mirror::Mirror,
    pki::Identity,
    world::{Actor, HostHandle, Inner, WorldError, cluster_secrets, lock},
};

/// Runs the environment until it is dropped.
pub(crate) async fn run(inner: Arc<Inner>) {
    loop {
        let due = match pass(&inner).await {
            Ok(due) => due,
            Err(error) => {
                tracing::warn!("pass of the environment failed, retrying: {error}");
                Some(retry_time(&inner))
            }
        };
        let woken = inner.woken.notified();
        match due {
            None => woken.await,
            Some(due) => {
                tokio::select! {
                    biased;
                    () = woken => {}
                    () = inner.clock.sleep_until(due) => {}
                }
            }
        }
    }
}

fn retry_time(inner: &Inner) -> Timestamp {
    inner.clock.now() + jiff::SignedDuration::try_from(RETRY).unwrap_or_default()
}

/// Runs one pass: reads what has changed, sends the writes that are due, and returns when the next pass
/// is due.
async fn pass(inner: &Arc<Inner>) -> Result<Option<Timestamp>, WorldError> {
    clusters(inner).await?;
    let boots = hosts(inner).await?;
    quorum::apply(inner)?;
    trouble::apply(inner);
    let (plan, hosts_due) = decide(inner);
    let mut due = plan.wake;
    let mut earlier = |when: Timestamp| due = Some(due.map_or(when, |known| known.min(when)));
    boots.into_iter().chain(hosts_due).for_each(&mut earlier);
    for (target, call) in plan.calls {
        if let Err(error) = send(inner, &target, call).await {
            // Another writer was faster, or the API is down: the next pass decides again.
            tracing::debug!(?target, "write of the environment rejected: {error}");
            earlier(retry_time(inner));
        }
    }
    Ok(due)
}

fn decide(inner: &Inner) -> (PassWrites, Option<Timestamp>) {
    let now = inner.clock.now();
    let workloads: BTreeMap<String, Mirror> = lock(&inner.workloads)
        .iter()
        .filter(|(_, workload)| workload.serving.is_some())
        .map(|(key, workload)| (key.clone(), workload.mirror.clone()))
        .collect();
    let mut env = lock(&inner.env);
    let due = look_at_hosts(&lock(&inner.hosts), &mut env.views, now);
    let view = View {
        now,
        management: &inner.management_mirror,
        workloads: &workloads,
        changed: inner.management_mirror.take_changed(),
        hosts: env.views.clone(),
        hurry: i32::try_from(inner.hurry).unwrap_or(1),
    };
    let plan = plan(&view, &mut env);
    (plan, due)
}

/// Brings the views of the hosts up to date; returns when the next one changes without further action.
fn look_at_hosts(
    hosts: &BTreeMap<String, HostHandle>,
    views: &mut Arc<HostViews>,
    now: Timestamp,
) -> Option<Timestamp> {
    let mut due: Option<Timestamp> = None;
    let mut seen = Vec::with_capacity(hosts.len());
    for host in hosts.values() {
        let (view, next) = host.view(now);
        due = due.into_iter().chain(next).min();
        seen.push(view);
    }
    let is_same = hosts.keys().eq(views.keys())
        && seen.iter().zip(views.values()).all(|(now, before)| Arc::ptr_eq(now, before));
    if !is_same {
        *views = Arc::new(hosts.keys().cloned().zip(seen).collect());
    }
    due
}

async fn send(inner: &Inner, target: &Target, call: Call) -> Result<(), DirectError> {
    let server = match target {
        Target::Management => inner.management.clone(),
        Target::Workload(key) => {
            let found = lock(&inner.workloads).get(key).map(|w| w.server.clone());
            let Some(server) = found else { return Ok(()) };
            server
        }
    };
    Direct::new(server, ENVIRONMENT).send(call).await.map(|_| ())
}

/// Creates the API server and the Secrets of each new cluster, and serves those that are up.
async fn clusters(inner: &Arc<Inner>) -> Result<(), WorldError> {
    let known: Vec<(String, ClusterState)> = {
        let env = lock(&inner.env);
        env.clusters.iter().map(|(k, c)| (k.clone(), c.clone())).collect()
    };
    for (key, cluster) in known {
        if !lock(&inner.workloads).contains_key(&key) {
            let identity = Identity::new(&key.replace('/', "-"), &[&cluster.host])?;
            let server = ApiServer::new(inner.workload_options(&key));
            let workload = inner.workload_of(&key, server, identity.clone());
            lock(&inner.workloads).insert(key.clone(), workload);
            let tokens = cluster.k8sd.then(|| canonical::token_secret(&key));
            let secrets = cluster_secrets(&key, &cluster.host, cluster.port, &identity).into_iter();
            for call in secrets.chain(tokens) {
                ignore_existing(send(inner, &Target::Management, call).await)?;
            }
        }
    }
    Ok(())
}

/// Boots hosts that are due and removes those that are gone; returns when the next one boots.
async fn hosts(inner: &Arc<Inner>) -> Result<Option<Timestamp>, WorldError> {
    let now = inner.clock.now();
    let (due, next, gone) = {
        let env = lock(&inner.env);
        let hosts = lock(&inner.hosts);
        if env.hosts.keys().eq(hosts.keys()) {
            return Ok(None);
        }
        let absent = |record: &&HostRecord| !hosts.contains_key(&record.key());
        let waiting: Vec<&HostRecord> = env.hosts.values().filter(absent).collect();
        let due: Vec<HostRecord> = waiting
            .iter()
            .filter(|record| record.boot_at <= now)
            .map(|record| (*record).clone())
            .collect();
        let next = waiting.iter().map(|record| record.boot_at).filter(|at| *at > now).min();
        let gone: Vec<String> =
            hosts.keys().filter(|key| !env.hosts.contains_key(*key)).cloned().collect();
        (due, next, gone)
    };
    for key in gone {
        lock(&inner.hosts).remove(&key);
        inner.dismiss(&Actor::Agent(key));
    }
    for record in due {
        boot(inner, &record).await?;
    }
    Ok(next)
}

async fn boot(inner: &Arc<Inner>, record: &HostRecord) -> Result<(), WorldError> {
    let key = record.key();
    let cluster = {
        let env = lock(&inner.env);
        env.clusters.get(&record.cluster).cloned().unwrap_or_default()
    };
    if !cluster.initialized {
        if !record.control_plane {
            return Ok(());
        }
        let Some(server) = lock(&inner.workloads).get(&record.cluster).map(|w| w.server.clone())
        else {
            return Ok(());
        };
        server.set_git_version(&record.version);
        if let Some(enforced) = &inner.enforced {
            enforced.fill(&server).await?;
        }
        let api = Direct::new(server, ENVIRONMENT);
        let endpoint = format!("{}:{}", cluster.host, cluster.port);
        let name = record.cluster.rsplit('/').next().unwrap_or_default();
        if cluster.k8sd {
            setup::fill_of_canonical(&api).await?;
        } else {
            setup::fill(&api, name, &endpoint, &record.version).await?;
        }
        if let Some(known) = lock(&inner.env).clusters.get_mut(&record.cluster) {
            known.initialized = true;
        }
    }
    let handle = HostHandle::boot(&key, record, inner)?;
    lock(&inner.hosts).insert(key.clone(), handle);
    quorum::apply(inner)?;
    inner.supervise(&Actor::Agent(key));
    Ok(())
}

fn ignore_existing(outcome: Result<(), DirectError>) -> Result<(), DirectError> {
    match outcome {
        Err(error) if error.code() == Some(409) => Ok(()),
        outcome => outcome,
    }
}
