//! Rows of the workers: their extra machines, their upgrade, and what follows it.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use refit_openshift::{
    Compat::{self, Repaired, Strict},
    metrics::{Reset, Series},
    steps::{
        Gauge, Write,
        file_integrity::{NAME, NAMESPACE, patch},
    },
    upgrade_config::Phase,
};
use serde_json::{Value, json};

use super::cluster::{Cluster, NEW};
use crate::config::COMPATS;

/// An upgrade with extra nodes for two MachineSets.
fn with_extras(compat: Compat) -> Cluster {
    let mut cluster = Cluster::new(compat);
    cluster.upgrade.spec.capacity_reservation = Some(true);
    cluster.add_machine_set("b");
    cluster.run_to(Phase::Upgrading);
    assert_eq!(cluster.machine_sets(), ["a", "b", "a-upgrade", "b-upgrade"], "{compat}");
    cluster
}

pub(super) fn extras_are_created_at_once() {
    for compat in COMPATS {
        let mut cluster = with_extras(compat);
        cluster.extras_join();
        cluster.control_plane_hangs = true;
        let decision = cluster.look();
        assert!(decision.gauges.contains(&Gauge::Set(Series::ScalingFailed, 0)));
    }
}

pub(super) fn without_a_pool() {
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.upgrade.spec.capacity_reservation = Some(true);
        cluster.remove_machine_sets();
        cluster.refuses = vec!["StateScaleSkipped".into()];
        cluster.run_to(Phase::Upgraded);
        assert!(
            !cluster.sent.contains(&"StateScaleSkipped".to_owned()),
            "that keeps nothing waiting"
        );
    }
}

pub(super) fn extras_that_take_too_long() {
    for compat in COMPATS {
        let mut cluster = with_extras(compat);
        cluster.extras_join();
        cluster.extras_break();
        cluster.control_plane_hangs = true;
        cluster.pass(SignedDuration::from_mins(31));
        let decision = cluster.look();
        assert!(
            decision.gauges.contains(&Gauge::Set(Series::ScalingFailed, 1)),
            "{:?}",
            decision.gauges
        );
        assert!(cluster.sent.contains(&"StateSkipped".to_owned()));
        assert_eq!(cluster.condition("UpgradeCommenced").status, "True", "it goes on");
    }
}

pub(super) fn extras_are_removed() {
    let series = || Series::NodeDrainTimeout { node: "a-upgrade".into() };
    for compat in COMPATS {
        let mut cluster = with_extras(compat);
        cluster.extras_join();
        cluster.drain_is_unknown = true;
        let decision = cluster.look();
        assert_eq!(cluster.machine_sets(), ["a", "b"]);
        let why = decision.error.unwrap();
        assert_eq!(why, "ComputeCapacityRemoved: the taint has no timeAdded");
        cluster.drain_is_unknown = false;
        cluster.drains_fail = true;
        let decision = cluster.look();
        assert!(decision.gauges.contains(&Gauge::Set(series(), 1)), "{:?}", decision.gauges);
        assert!(decision.error.is_some());
        cluster.drains_fail = false;
        cluster.look();
        assert_eq!(
            cluster.condition("ComputeCapacityRemoved").status,
            "False",
            "Machines are left"
        );
        cluster.extras_leave();
        let decision = cluster.run_to(Phase::Upgraded);
        assert!(decision.gauges.contains(&Gauge::Reset(Reset::DrainsOver)));
    }
}

pub(super) fn workers() {
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.workers_take_time = true;
        cluster.run_to(Phase::Upgrading);
        cluster.look();
        assert_eq!(cluster.condition("ControlPlaneUpgraded").status, "True");
        let workers = cluster.condition("WorkerNodesUpgraded");
        assert_eq!(
            (&*workers.status, &*workers.message),
            ("False", "WorkerNodesUpgraded still in progress")
        );
        assert_eq!(
            cluster.entry().worker_start_time.as_ref().map(|time| time.0),
            Some(cluster.now)
        );
        cluster.pools[0].status.as_mut().unwrap().updated_machine_count = 3;
        cluster.run_to(Phase::Upgraded);
        assert!(cluster.sent.contains(&"StateWorkerPlaneFinishedSL".to_owned()));
        assert!(cluster.entry().worker_complete_time.is_some());
    }
}

pub(super) fn late_workers() {
    let series = || Series::WorkerTimeout { version: NEW.into() };
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.workers_take_time = true;
        cluster.run_to(Phase::Upgrading);
        let decision = cluster.look();
        assert!(decision.gauges.contains(&Gauge::Set(series(), 0)));
        cluster.expire_silences();
        let decision = cluster.look();
        assert!(decision.gauges.contains(&Gauge::Set(series(), 1)), "{:?}", decision.gauges);
        cluster.pools[0].status.as_mut().unwrap().updated_machine_count = 3;
        let decision = cluster.run_to(Phase::Upgraded);
        assert!(decision.gauges.contains(&Gauge::Set(series(), 0)));
    }
}

pub(super) fn post_health() {
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.workers_take_time = true;
        cluster.run_to(Phase::Upgrading);
        cluster.alerts = vec!["EtcdDown".into()];
        cluster.pools[0].status.as_mut().unwrap().updated_machine_count = 3;
        let decision = cluster.look();
        assert_eq!(
            decision.error.as_deref(),
            Some("ClusterHealthyAfterUpgrade: critical alert(s) firing: EtcdDown")
        );
        // The alert may be that of the drain of a node that is gone.
        let is_over = decision.gauges.contains(&Gauge::Reset(Reset::DrainsOver));
        assert_eq!(is_over, compat == Repaired);
        cluster.alerts.clear();
        let decision = cluster.run_to(Phase::Upgraded);
        assert!(decision.gauges.contains(&Gauge::Reset(Reset::DrainsOver)));
    }
}

pub(super) fn fedramp() {
    for compat in COMPATS {
        for is_fedramp in [false, true] {
            let mut cluster = Cluster::new(compat);
            cluster.config.fedramp = is_fedramp;
            cluster.refuses = vec!["StateCompleted".into()];
            cluster.run_to(Phase::Upgrading);
            cluster.look();
            let annotated = cluster
                .written
                .iter()
                .filter(|write| **write == Write::ReinitFileIntegrity)
                .count();
            // The original annotates it at each look until the upgrade is completed.
            let looks = if compat == Strict { 2 } else { 1 };
            assert_eq!(annotated, if is_fedramp { looks } else { 0 });
        }
    }
    let annotations = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    let reinit = "file-integrity.openshift.io/re-init";
    let wanted = |more: Value| json!({"metadata": {"annotations": more}});
    let merged = wanted(json!({reinit: ""}));
    assert_eq!(patch(&annotations, Repaired), merged);
    assert_eq!(patch(&annotations, Strict), wanted(json!({reinit: "", "a": null})));
    assert_eq!((NAMESPACE, NAME), ("openshift-file-integrity", "osd-fileintegrity"));
}
