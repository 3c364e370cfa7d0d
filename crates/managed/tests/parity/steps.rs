//! Rows of the steps, and of what is next for an UpgradeConfig. A cluster that answers everything carries out what is asked
//! for, so each row is a look, or a whole upgrade, as the operator would make it.

pub(crate) mod cluster;
mod workers;

use jiff::SignedDuration;
use refit_openshift::{
    Compat::{self, Repaired, Strict},
    config::Platform,
    decide::Decision,
    metrics::{Reset, Series},
    notify::{Event, PolicyEvent},
    steps::{Gauge, Write, of},
    upgrade_config::{ARO, Desired, Phase},
};

use self::cluster::{Cluster, NEW};
use crate::{Row, config::COMPATS};

pub(crate) const ROWS: &[Row] = &[
    Row { number: 3, name: "one entry for each version, conditions in front", test: entries },
    Row { number: 4, name: "conditions have the original's texts and times", test: conditions },
    Row { number: 5, name: "a step that regresses loses its completeTime", test: regression },
    Row { number: 45, name: "OSD has 17 steps, each look restarts from the first", test: osd },
    Row { number: 46, name: "ARO has 14 steps", test: aro },
    Row { number: 47, name: "an upgrade that does not commence in time fails", test: failure },
    Row { number: 48, name: "failure removes extras, notifies, then fails", test: failure_order },
    Row {
        number: 49,
        name: "a delay is notified of once it is longer than the trigger",
        test: delay,
    },
    Row {
        number: 51,
        name: "steps before the request are done once it commenced",
        test: commenced,
    },
    Row { number: 55, name: "a late control plane is a metric", test: control_plane_is_late },
    Row { number: 71, name: "without a pool, the upgrade goes on", test: workers::without_a_pool },
    Row {
        number: 72,
        name: "all clones are created in one look",
        test: workers::extras_are_created_at_once,
    },
    Row {
        number: 75,
        name: "extras that take too long are skipped",
        test: workers::extras_that_take_too_long,
    },
    Row {
        number: 76,
        name: "extras are removed after the workers",
        test: workers::extras_are_removed,
    },
    Row {
        number: 56,
        name: "workers are upgraded by the counts of their pool",
        test: workers::workers,
    },
    Row {
        number: 57,
        name: "workers are late without a silence in force",
        test: workers::late_workers,
    },
    Row {
        number: 58,
        name: "the health check after it blocks, and resets drains",
        test: workers::post_health,
    },
    Row {
        number: 59,
        name: "FedRAMP clusters begin their FileIntegrity again",
        test: workers::fedramp,
    },
];

fn entries() {
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.run_to(Phase::Upgraded);
        cluster.upgrade.spec.desired.version = Some("4.17.9".into());
        cluster.look();
        let history = cluster.history();
        let versions: Vec<&str> = history.iter().map(|one| &*one.version).collect();
        assert_eq!(versions, ["4.17.9", NEW]);
        let steps: Vec<&str> = history[1].conditions.iter().map(|one| &*one.type_).collect();
        assert_eq!(steps[0], "CompletedNotificationSent", "{steps:?}");
        let at = |name| steps.iter().position(|step| *step == name).unwrap();
        assert!(at("ControlPlaneUpgraded") < at("UpgradeCommenced"), "{steps:?}");
    }
}

fn conditions() {
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.alerts = vec!["EtcdDown".into()];
        cluster.run_to(Phase::Upgrading);
        let began = cluster.now;
        let started = cluster.condition("StartedNotificationSent");
        assert_eq!(started.reason, "StartedNotificationSent done");
        assert_eq!(started.message, "StartedNotificationSent is completed");
        assert_eq!(started.complete_time.as_ref().unwrap().0, began);
        let healthy = cluster.condition("ClusterHealthyBeforeUpgrade");
        assert_eq!(
            (&*healthy.status, &*healthy.reason),
            ("False", "ClusterHealthyBeforeUpgrade not done")
        );
        assert_eq!(healthy.message, "critical alert(s) firing: EtcdDown");
        cluster.pass(SignedDuration::from_mins(1));
        cluster.look();
        let later = cluster.condition("ClusterHealthyBeforeUpgrade");
        assert_eq!(later.last_transition_time, healthy.last_transition_time);
        let probed = later.last_probe_time.as_ref().unwrap().0;
        assert_eq!(probed == cluster.now, compat == Strict, "the original writes at each look");
        // The cluster-version operator has five minutes to offer a version; the original does not show that it does not.
        for (minutes, repaired) in [(4, false), (6, true)] {
            let mut withdrawn = waits(compat, 1, minutes);
            withdrawn.look();
            let shown = withdrawn.condition("UpgradeCommenced").message;
            let why = "the cluster-version operator does not offer version 4.17.0 yet; it is tried again until ";
            if repaired && compat == Repaired {
                assert!(shown.starts_with(why), "{shown}");
            } else {
                assert_eq!(shown, "UpgradeCommenced still in progress", "{compat}");
            }
        }
        // With its gate, the original does not show why.
        let mut gated = Cluster::new(compat);
        gated.config.gates.pre_health_check = true;
        gated.alerts = vec!["EtcdDown".into()];
        gated.run_to(Phase::Upgrading);
        let text = match compat {
            Strict => "ClusterHealthyBeforeUpgrade still in progress",
            Repaired => "critical alert(s) firing: EtcdDown",
        };
        assert_eq!(gated.condition("ClusterHealthyBeforeUpgrade").message, text);
    }
}

fn regression() {
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.offers.clear();
        cluster.run_to(Phase::Upgrading);
        assert!(cluster.condition("ClusterHealthyBeforeUpgrade").complete_time.is_some());
        cluster.alerts = vec!["EtcdDown".into()];
        cluster.look();
        let healthy = cluster.condition("ClusterHealthyBeforeUpgrade");
        assert_eq!((&*healthy.status, healthy.complete_time), ("False", None));
    }
}

fn names(platform: Platform) -> Vec<&'static str> {
    of(platform).iter().map(|step| step.name).collect()
}

fn osd() {
    let steps = [
        "StartedNotificationSent",
        "StartedNotificationSent",
        "IsClusterUpgradable",
        "ClusterHealthyBeforeUpgrade",
        "ExternalDependenciesAvailable",
        "ComputeCapacityReserved",
        "ControlPlaneMaintenanceWindowCreated",
        "UpgradeCommenced",
        "ControlPlaneUpgraded",
        "ControlPlaneMaintenanceWindowRemoved",
        "WorkersMaintenanceWindowCreated",
        "WorkerNodesUpgraded",
        "ComputeCapacityRemoved",
        "WorkersMaintenanceWindowRemoved",
        "ClusterHealthyAfterUpgrade",
        "PostUpgradeTasksCompleted",
        "CompletedNotificationSent",
    ];
    assert_eq!(names(Platform::Osd), steps);
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.dependency_is_down = true;
        cluster.run_to(Phase::Upgrading);
        let shown: Vec<String> =
            cluster.entry().conditions.iter().map(|one| one.type_.clone()).collect();
        assert_eq!(shown[0], "ExternalDependenciesAvailable", "the first that is not done");
        cluster.dependency_is_down = false;
        cluster.alerts = vec!["EtcdDown".into()];
        cluster.look();
        assert_eq!(
            cluster.condition("ClusterHealthyBeforeUpgrade").status,
            "False",
            "from the first"
        );
        assert_eq!(cluster.condition("ExternalDependenciesAvailable").status, "False");
    }
}

fn aro() {
    let osd_only = ["IsClusterUpgradable", "PostUpgradeTasksCompleted"];
    let mut wanted = names(Platform::Osd);
    wanted.remove(1);
    wanted.retain(|step| !osd_only.contains(step));
    assert_eq!(names(Platform::Aro), wanted);
    assert_eq!(wanted.len(), 14);
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.upgrade.spec.type_.0 = ARO.into();
        // Its health check before the upgrade has no client in the original, if the gate is on.
        cluster.config.gates.pre_health_check = false;
        cluster.run_to(Phase::Upgraded);
    }
}

/// An upgrade that cannot commence, as long after its time and its start.
fn waits(compat: Compat, late: i64, minutes: i64) -> Cluster {
    let mut cluster = Cluster::new(compat);
    cluster.offers.clear();
    cluster.now = cluster.upgrade_at() + SignedDuration::from_mins(late);
    cluster.run_to(Phase::Upgrading);
    cluster.pass(SignedDuration::from_mins(minutes));
    cluster
}

fn failure() {
    let ends = |compat, late, minutes| {
        let mut cluster = waits(compat, late, minutes);
        cluster.look();
        cluster.entry().phase
    };
    for compat in COMPATS {
        assert_eq!(ends(compat, 1, 118), Phase::Upgrading);
        assert_eq!(ends(compat, 1, 121), Phase::Failed);
    }
    // From upgradeAt (M8), in the original from when the steps began.
    assert_eq!(ends(Repaired, 60, 70), Phase::Failed);
    assert_eq!(ends(Strict, 60, 70), Phase::Upgrading);
    // One that begins after its time has failed at once, and its start is reported as well: OCM demands it.
    let mut late = Cluster::new(Repaired);
    late.pass(SignedDuration::from_mins(120));
    late.run_to(Phase::Failed);
    assert_eq!(late.sent, ["StateStarted", "StateFailed"]);
    // One that never began, too; the original keeps it Pending.
    for compat in COMPATS {
        for case in ["a downgrade", "OCM is down", "nothing requested"] {
            if compat == Strict && case == "nothing requested" {
                continue; // It has no entry.
            }
            let mut pending = Cluster::new(compat);
            match case {
                "a downgrade" => pending.upgrade.spec.desired.version = Some("4.16.1".into()),
                "OCM is down" => pending.refreshed = Err("OCM is down".into()),
                _ => pending.upgrade.spec.desired.channel = None,
            }
            pending.look();
            pending.pass(SignedDuration::from_mins(118));
            pending.look();
            assert_eq!(pending.entry().phase, Phase::Pending, "{case}");
            pending.pass(SignedDuration::from_mins(2));
            pending.look();
            let (phase, sent) = (pending.entry().phase, pending.sent.join(" "));
            match compat {
                Repaired => {
                    assert_eq!((phase, &*sent), (Phase::Failed, "StateStarted StateFailed"));
                }
                Strict => assert_eq!((phase, &*sent), (Phase::Pending, ""), "{case}"),
            }
        }
    }
    // What is under way waits until its spec is corrected, and one that never began removes nothing.
    let mut under_way = Cluster::new(Repaired);
    under_way.control_plane_hangs = true;
    under_way.run_to(Phase::Upgrading);
    let silences = under_way.active_silences();
    under_way.pass(SignedDuration::from_mins(500));
    under_way.upgrade.spec.desired.channel = None;
    under_way.look();
    assert_eq!(under_way.entry().phase, Phase::Upgrading);
    under_way.upgrade.spec.desired = Desired {
        version: Some("4.17.9".into()),
        channel: Some("stable-4.18".into()),
        image: None,
    };
    under_way.run_to(Phase::Failed);
    assert_eq!((silences, under_way.active_silences()), (1, 1));
    // One that replaces what is under way, begins and fails, removes nothing of it either. The original does.
    for (compat, workers) in COMPATS.into_iter().flat_map(|one| [(one, false), (one, true)]) {
        let mut edited = Cluster::new(compat);
        edited.upgrade.spec.capacity_reservation = Some(true);
        (edited.control_plane_hangs, edited.workers_take_time) = (!workers, workers);
        edited.run_to(Phase::Upgrading);
        edited.extras_join();
        edited.look();
        assert!(edited.condition("UpgradeCommenced").complete_time.is_some());
        edited.upgrade.spec.desired.version = Some("4.17.9".into());
        edited.upgrade.spec.upgrade_at = edited.now.to_string();
        edited.pass(SignedDuration::from_mins(1));
        edited.alerts = vec!["EtcdDown".into()];
        edited.run_to(Phase::Upgrading);
        edited.pass(SignedDuration::from_mins(121));
        edited.written.clear();
        edited.run_to(Phase::Failed);
        let removes =
            edited.written.iter().any(|write| matches!(write, Write::DeleteMachineSet(_)));
        assert_eq!(removes, compat == Strict, "{compat}");
        // No failure ends that of the workers.
        assert!(workers || edited.active_silences() == 1, "{compat}");
    }
    // Degraded workers need nothing.
    let mut degraded = Cluster::new(Repaired);
    degraded.upgrade.spec.capacity_reservation = Some(true);
    degraded.offers.clear();
    degraded.run_to(Phase::Upgrading);
    degraded.extras_join();
    degraded.look();
    let workers = degraded.pools[0].status.as_mut().unwrap();
    (workers.updated_machine_count, workers.degraded_machine_count) = (2, 1);
    degraded.pass(SignedDuration::from_mins(121));
    degraded.written.clear();
    degraded.run_to(Phase::Failed);
    assert!(matches!(degraded.written[0], Write::DeleteMachineSet(_)), "{:?}", degraded.written);
    assert_eq!(degraded.active_silences(), 0);
    let mut never = waits(Repaired, 1, 500);
    never.config.window.timeout = None;
    never.look();
    assert_eq!(never.entry().phase, Phase::Upgrading);
    let mut commenced = Cluster::new(Repaired);
    commenced.control_plane_hangs = true;
    commenced.run_to(Phase::Upgrading);
    commenced.pass(SignedDuration::from_mins(500));
    commenced.look();
    assert_eq!(commenced.entry().phase, Phase::Upgrading, "what was commenced is finished");
}

fn control_plane_is_late() {
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.control_plane_hangs = true;
        cluster.run_to(Phase::Upgrading);
        for (type_, status, message, shown) in [
            (
                "ReleaseAccepted",
                "False",
                "its signature is wrong",
                "the cluster-version operator does not accept the release: its signature is wrong",
            ),
            (
                "Failing",
                "True",
                "etcd is not available",
                "the cluster-version operator reports a failure: etcd is not available",
            ),
            ("Failing", "False", "", "ControlPlaneUpgraded still in progress"),
        ] {
            cluster.show_version_condition(type_, status, message);
            cluster.look();
            let condition = cluster.condition("ControlPlaneUpgraded");
            match compat {
                Repaired => assert_eq!(condition.message, shown),
                Strict => assert_eq!(condition.message, "ControlPlaneUpgraded still in progress"),
            }
        }
    }
    let series = || Series::ControlPlaneTimeout { version: NEW.into() };
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.control_plane_hangs = true;
        cluster.run_to(Phase::Upgrading);
        cluster.pass(SignedDuration::from_mins(91));
        let decision = cluster.look();
        assert!(decision.gauges.contains(&Gauge::Set(series(), 1)), "{:?}", decision.gauges);
        let mut in_time = Cluster::new(compat);
        in_time.workers_take_time = true;
        in_time.run_to(Phase::Upgrading);
        let decision = in_time.look();
        assert!(decision.gauges.contains(&Gauge::Set(series(), 0)));
    }
}

fn failure_order() {
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.upgrade.spec.capacity_reservation = Some(true);
        cluster.offers.clear();
        cluster.run_to(Phase::Upgrading);
        cluster.extras_join();
        cluster.look();
        cluster.pass(SignedDuration::from_mins(121));
        cluster.refuses = vec!["StateFailed".into()];
        cluster.written.clear();
        let decision = cluster.look();
        assert_eq!(cluster.entry().phase, Phase::Upgrading, "it stays");
        assert_eq!(decision.error.is_some(), compat == Repaired, "the original hides why");
        let entry = cluster.entry();
        let shown = entry.condition("FailedUpgrade").map(|one| (&*one.status, &*one.message));
        // The original does not show why.
        assert_eq!(shown, (compat == Repaired).then_some(("False", "refused")));
        assert!(matches!(cluster.written[0], Write::DeleteMachineSet(_)), "{:?}", cluster.written);
        let timeout = cluster.config.window.timeout.take();
        cluster.look();
        assert_eq!(cluster.entry().condition("FailedUpgrade"), None, "it is not due any more");
        cluster.config.window.timeout = timeout;
        cluster.refuses.clear();
        let decision = cluster.look();
        assert_eq!(cluster.entry().phase, Phase::Failed);
        assert!(cluster.sent.contains(&"StateFailed".to_owned()));
        let gauges = &decision.gauges;
        assert!(gauges.contains(&Gauge::Set(Series::WindowBreached, 1)));
        assert!(gauges.contains(&Gauge::Reset(Reset::UpgradeFailed)));
        // Repaired, the silences end (M9), and the failure is shown (M11).
        assert_eq!(cluster.active_silences() == 0, compat == Repaired);
        let first = &cluster.entry().conditions[0].type_;
        assert_eq!(first == "FailedUpgrade", compat == Repaired);
    }
}

fn delay() {
    for compat in COMPATS {
        let delayed = |minutes| waits(compat, 1, minutes);
        let mut early = delayed(30);
        early.look();
        assert!(!early.sent.contains(&"StateDelayed".to_owned()));
        let mut late = delayed(31);
        late.look();
        late.look();
        let sent = late.sent.iter().filter(|event| *event == "StateDelayed").count();
        assert_eq!(sent, 1);
        let mut off = delayed(31);
        off.config.window.delay_trigger = None;
        off.look();
        assert!(!off.sent.contains(&"StateDelayed".to_owned()));
        let mut refused = delayed(31);
        refused.refuses = vec!["StateDelayed".into()];
        let decision = refused.look();
        assert!(decision.error.is_some(), "it blocks");
        assert_eq!(refused.condition("StartedNotificationSent").status, "False");
        let event = Event::Policy(PolicyEvent::Delayed);
        let failed = Gauge::Set(Series::NotificationFailed { event }, 1);
        let clear = Gauge::Reset(Reset::Looked);
        let at = |gauge: &Gauge, of: &Decision| of.gauges.iter().position(|one| one == gauge);
        assert!(at(&failed, &decision).is_some());
        assert!(at(&clear, &decision) < at(&failed, &decision));
        // It is not tried again.
        refused.config.window.delay_trigger = None;
        let decision = refused.look();
        assert_eq!(at(&failed, &decision), None);
        assert_eq!(at(&clear, &decision), (compat == Repaired).then_some(0));
    }
}

fn commenced() {
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.control_plane_hangs = true;
        cluster.upgrade.spec.capacity_reservation = Some(true);
        cluster.run_to(Phase::Upgrading);
        cluster.extras_join();
        cluster.look();
        assert_eq!(cluster.condition("UpgradeCommenced").status, "True");
        cluster.alerts = vec!["EtcdDown".into()];
        cluster.dependency_is_down = true;
        cluster.written.clear();
        cluster.look();
        for step in [
            "ClusterHealthyBeforeUpgrade",
            "ExternalDependenciesAvailable",
            "ComputeCapacityReserved",
        ] {
            assert_eq!(cluster.condition(step).status, "True", "{step}");
        }
        assert_eq!(cluster.written, [], "nothing is asked again");
    }
}
