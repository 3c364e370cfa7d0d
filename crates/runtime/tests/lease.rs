//! Two replicas and one Lease, on a paused clock.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::common::{Switch, World, config_map};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PostParams},
};
use refit_runtime::{
    gate::Open,
    lease::{Leadership, LeaseSettings, elect, is_fenced, release},
};
use tokio::task::JoinHandle;

pub(crate) struct Replica {
    settings: LeaseSettings,
    pub(crate) leadership: Leadership,
    switch: Arc<Switch>,
    task: JoinHandle<()>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Replica {
    pub(crate) async fn start(world: &World, name: &str) -> Self {
        let settings = LeaseSettings::new("default", "refit-controller", name);
        let leadership = Leadership::candidate(world.clock);
        let switch = Arc::new(Switch::default());
        let client = world.client_of(switch.clone()).await;
        let (elect_settings, elect_leadership, clock) =
            (settings.clone(), leadership.clone(), world.clock);
        let task = tokio::spawn(async move {
            match elect(client, clock, &elect_settings, &elect_leadership).await {}
        });
        Self { settings, leadership, switch, task }
    }

    /// Cuts the replica off without its noticing.
    pub(crate) fn cut(&self) {
        self.switch.dead.store(true, Ordering::SeqCst);
    }
}

async fn lease(world: &World) -> Lease {
    let leases: Api<Lease> = Api::namespaced(world.client().await, "default");
    leases.get("refit-controller").await.unwrap()
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn one_replica_leads_and_the_other_waits() {
    let world = World::new();
    let a = Replica::start(&world, "a").await;
    seconds(1).await;
    let b = Replica::start(&world, "b").await;
    for _ in 0..60 {
        seconds(1).await;
        assert!(a.leadership.is_held() && !b.leadership.is_held());
    }
    let spec = lease(&world).await.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("a"));
    assert_eq!(spec.lease_transitions, Some(0));
    assert_eq!(spec.lease_duration_seconds, Some(15));
}

#[tokio::test(start_paused = true)]
async fn there_is_never_more_than_one_leader_and_the_gap_is_short() {
    let world = World::new();
    let a = Replica::start(&world, "a").await;
    seconds(1).await;
    let b = Replica::start(&world, "b").await;
    seconds(20).await;
    a.cut();
    let cut = world.clock.now();
    let (mut lost, mut taken) = (None, None);
    for _ in 0..300 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (first, second) = (a.leadership.is_held(), b.leadership.is_held());
        assert!(!(first && second), "both lead at {}", world.clock.now());
        if !first && lost.is_none() {
            lost = Some(world.clock.elapsed(cut));
        }
        if second && taken.is_none() {
            taken = Some(world.clock.elapsed(cut));
        }
    }
    let (lost, taken) = (lost.unwrap(), taken.unwrap());
    assert!(lost <= Duration::from_secs(10), "{lost:?}");
    assert!(taken >= lost + Duration::from_secs(4), "a's last write has time: {lost:?} {taken:?}");
    assert!(taken <= Duration::from_secs(18), "{taken:?}");
    assert_eq!(lease(&world).await.spec.unwrap().lease_transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn the_leader_renews_without_a_read() {
    let world = World::new();
    let a = Replica::start(&world, "a").await;
    seconds(1).await;
    world.log();
    seconds(20).await;
    let log = world.log();
    assert!(log.len() >= 9 && log.iter().all(|line| line.starts_with("PATCH")), "{log:?}");
    assert!(a.leadership.is_held());
}

#[tokio::test(start_paused = true)]
async fn the_leader_keeps_a_lease_that_someone_edits_or_deletes() {
    let world = World::new();
    let a = Replica::start(&world, "a").await;
    seconds(1).await;
    let leases: Api<Lease> = Api::namespaced(world.client().await, "default");
    let label = serde_json::json!({"metadata": {"labels": {"by": "someone"}}});
    leases.patch("refit-controller", &<_>::default(), &Patch::Merge(label)).await.unwrap();
    seconds(5).await;
    assert!(a.leadership.is_held());
    leases.delete("refit-controller", &<_>::default()).await.unwrap();
    seconds(5).await;
    assert!(a.leadership.is_held());
    assert_eq!(lease(&world).await.spec.unwrap().holder_identity.as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_at_once() {
    let world = World::new();
    let a = Replica::start(&world, "a").await;
    seconds(1).await;
    let b = Replica::start(&world, "b").await;
    seconds(10).await;
    a.leadership.resign();
    a.leadership.idle().await;
    a.task.abort();
    let client = world.client().await;
    let given = release(client.clone(), world.clock, &a.settings).await;
    assert!(given.unwrap());
    seconds(3).await;
    assert!(b.leadership.is_held());
    // A replica that does not hold the Lease releases nothing.
    assert!(!release(client, world.clock, &a.settings).await.unwrap());
    seconds(3).await;
    assert!(b.leadership.is_held());
}

#[tokio::test(start_paused = true)]
async fn only_the_leaders_client_writes_and_every_client_reads() {
    let world = World::new();
    let leadership = Leadership::candidate(world.clock);
    let stack = world.stack(Arc::new(Open)).fenced(leadership);
    let client = stack.client(&world.config().await).unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let error = api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap_err();
    assert!(is_fenced(&error), "{error:?}");
    assert!(api.list(&<_>::default()).await.unwrap().items.is_empty());

    let alone = Leadership::alone(world.clock);
    let stack = world.stack(Arc::new(Open)).fenced(alone);
    let client = stack.client(&world.config().await).unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let made = api.create(&PostParams::default(), &config_map("a", "1")).await;
    assert_eq!(made.unwrap().name_any(), "a");
}
