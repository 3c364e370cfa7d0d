//! Rows of the metrics.

use jiff::Timestamp;
use refit_openshift::{
    Compat,
    health::Reason,
    kinds::ClusterVersion,
    metrics::{Gauges, Milestone, Reset, Sample, ScrapeError, Series, collect, milestones},
    notify::{Event, PolicyEvent},
    upgrade_config::{Phase, UpgradeConfig, UpgradeHistory},
};
use serde_json::{Value, json};
use strum::VariantArray as _;

use crate::{Row, nodes::from};

pub(crate) const ROWS: &[Row] = &[
    Row {
        number: 102,
        name: "every gauge has its name, labels and resets, and timestamps stand in the repaired mode",
        test: gauges_have_their_names_labels_and_resets,
    },
    Row {
        number: 103,
        name: "the series of the collector follow the UpgradeConfig",
        test: the_collector_follows_the_upgrade_config,
    },
];

/// One series of each metric.
fn all_series() -> Vec<Series> {
    let text = |text: &str| text.to_owned();
    let version = || text("V");
    let milestone = |milestone: &Milestone| Series::Milestone {
        milestone: *milestone,
        cluster_id: text("ID"),
        version: version(),
    };
    let others = vec![
        Series::ValidationFailed,
        Series::ScalingFailed,
        Series::WindowBreached,
        Series::ControlPlaneTimeout { version: version() },
        Series::HealthcheckFailed {
            state: Phase::Upgrading,
            version: None,
            reason: Reason::CriticalAlertsFiring,
        },
        Series::WorkerTimeout { version: version() },
        Series::NodeDrainTimeout { node: text("N") },
        Series::Notification { event: Event::Policy(PolicyEvent::Delayed), version: version() },
        Series::NotificationFailed { event: Event::Policy(PolicyEvent::Delayed) },
        Series::UpgradeResult {
            preceding_version: text("P"),
            stream: text("y"),
            version: version(),
            alerts: text("A,B"),
        },
        Series::SyncTimestamp,
    ];
    others.into_iter().chain(Milestone::VARIANTS.iter().map(milestone)).collect()
}

/// A sample as the exposition format shows it.
fn line(sample: &Sample) -> String {
    let labels: Vec<String> =
        sample.labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    format!("{}{{{}}} {}", sample.name, labels.join(","), sample.value)
}

fn gauges_have_their_names_labels_and_resets() {
    let mut all = Gauges::default();
    for series in all_series() {
        all.set(series, true);
    }
    let name = r#"upgradeconfig_name="managed-upgrade-config""#;
    let lines: Vec<String> =
        all.samples().map(|sample| line(&sample).replace(name, "NAME")).collect();
    assert_eq!(
        lines,
        [
            r"upgradeoperator_upgradeconfig_validation_failed{NAME} 1",
            r"upgradeoperator_scaling_failed{NAME} 1",
            r"upgradeoperator_upgrade_window_breached{NAME} 1",
            r#"upgradeoperator_controlplane_timeout{NAME,version="V"} 1"#,
            r#"upgradeoperator_healthcheck_failed{NAME,state="Upgrading",version="unknown",reason="critical_alerts_firing"} 1"#,
            r#"upgradeoperator_worker_timeout{NAME,version="V"} 1"#,
            r#"upgradeoperator_node_drain_timeout{node_name="N"} 1"#,
            r#"upgradeoperator_upgrade_notification{NAME,event="StateDelayed",version="V"} 1"#,
            r#"upgrade_notification_failed{NAME,event="StateDelayed"} 1"#,
            r#"upgradeoperator_upgrade_result{NAME,preceding_version="P",stream="y",version="V",alerts="A,B"} 1"#,
            r"upgradeoperator_upgradeconfig_sync_timestamp{NAME} 1",
            r#"upgradeoperator_upgrade_started_timestamp{NAME,_id="ID",version="V"} 1"#,
            r#"upgradeoperator_upgrade_completed_timestamp{NAME,_id="ID",version="V"} 1"#,
            r#"upgradeoperator_controlplane_upgrade_started_timestamp{NAME,_id="ID",version="V"} 1"#,
            r#"upgradeoperator_controlplane_upgrade_completed_timestamp{NAME,_id="ID",version="V"} 1"#,
            r#"upgradeoperator_workernode_upgrade_started_timestamp{NAME,_id="ID",version="V"} 1"#,
            r#"upgradeoperator_workernode_upgrade_completed_timestamp{NAME,_id="ID",version="V"} 1"#,
        ]
    );
    assert!(all.samples().all(|sample| !sample.help.is_empty()));
    let left = |reset| {
        let mut gauges = all.clone();
        gauges.reset(reset);
        gauges.samples().map(|sample| sample.name).collect::<Vec<_>>()
    };
    assert_eq!(left(Reset::ConfigGone), ["upgradeoperator_upgrade_result"]);
    assert_eq!(
        left(Reset::UpgradeFailed),
        [
            "upgradeoperator_upgrade_window_breached",
            "upgradeoperator_upgrade_result",
            "upgradeoperator_upgradeconfig_sync_timestamp",
            "upgradeoperator_upgrade_completed_timestamp",
            "upgradeoperator_controlplane_upgrade_started_timestamp",
            "upgradeoperator_controlplane_upgrade_completed_timestamp",
            "upgradeoperator_workernode_upgrade_started_timestamp",
            "upgradeoperator_workernode_upgrade_completed_timestamp",
        ]
    );
    let names: Vec<&str> = all.samples().map(|sample| sample.name).collect();
    let drains: Vec<&str> =
        names.iter().copied().filter(|name| !name.ends_with("node_drain_timeout")).collect();
    assert_eq!(left(Reset::DrainsOver), drains);
    let looked: Vec<&str> =
        names.iter().copied().filter(|name| *name != "upgrade_notification_failed").collect();
    assert_eq!(left(Reset::Looked), looked);
    timestamps_stand_in_the_repaired_mode();
}

/// An upgrade whose steps were done at the minutes that are given, on 2026-08-20 from 10:00.
fn entry(steps: &[(&str, Option<u8>)]) -> UpgradeHistory {
    let conditions: Vec<Value> = steps
        .iter()
        .map(|(step, done)| match done {
            Some(minute) => json!({
                "type": step, "status": "True",
                "completeTime": format!("2026-08-20T10:{minute:02}:00Z"),
            }),
            None => json!({"type": step, "status": "False"}),
        })
        .collect();
    from(json!({"version": "4.16.3", "phase": "Upgrading", "conditions": conditions}))
}

fn at_ten() -> Timestamp {
    "2026-08-20T10:00:00Z".parse().unwrap()
}

/// The milestones after a look at 10:50, with their minutes.
fn minutes(entry: &UpgradeHistory, was_commenced: bool, compat: Compat) -> Vec<(Milestone, i64)> {
    let now = "2026-08-20T10:50:00Z".parse().unwrap();
    let view = |(series, second): (Series, i64)| match series {
        Series::Milestone { milestone, cluster_id, version } => {
            assert_eq!((cluster_id.as_str(), version.as_str()), ("unknown", "4.16.3"));
            (milestone, (second - at_ten().as_second()) / 60)
        }
        other => panic!("{other:?}"),
    };
    milestones(entry, "", was_commenced, now, compat).into_iter().map(view).collect()
}

/// M16
fn timestamps_stand_in_the_repaired_mode() {
    use Milestone::{
        ControlPlaneCompleted, ControlPlaneStarted, UpgradeCompleted, UpgradeStarted,
        WorkersCompleted, WorkersStarted,
    };
    let started = entry(&[("StartedNotificationSent", Some(1)), ("UpgradeCommenced", None)]);
    assert_eq!(minutes(&started, false, Compat::Repaired), [(UpgradeStarted, 1)]);
    let moved = [(UpgradeStarted, 50), (ControlPlaneStarted, 50)];
    assert_eq!(minutes(&started, false, Compat::Strict), moved);
    let whole = entry(&[
        ("CompletedNotificationSent", Some(40)),
        ("WorkerNodesUpgraded", Some(30)),
        ("ControlPlaneUpgraded", Some(20)),
        ("UpgradeCommenced", Some(5)),
        ("StartedNotificationSent", Some(1)),
    ]);
    let stands = [
        (UpgradeStarted, 1),
        (UpgradeCompleted, 40),
        (ControlPlaneStarted, 5),
        (ControlPlaneCompleted, 20),
        (WorkersStarted, 20),
        (WorkersCompleted, 30),
    ];
    let upgraded = UpgradeHistory { phase: Phase::Upgraded, ..whole.clone() };
    for entry in [&whole, &upgraded] {
        assert_eq!(minutes(entry, true, Compat::Repaired), stands);
    }
    let moved = [UpgradeCompleted, ControlPlaneCompleted, WorkersStarted, WorkersCompleted];
    assert_eq!(minutes(&whole, true, Compat::Strict), moved.map(|milestone| (milestone, 50)));
    for phase in [Phase::New, Phase::Pending, Phase::Failed] {
        let other = UpgradeHistory { phase, ..whole.clone() };
        for compat in [Compat::Repaired, Compat::Strict] {
            assert_eq!(minutes(&other, true, compat), []);
        }
    }
}

fn cluster(history: &Value) -> ClusterVersion {
    from(json!({
        "metadata": {"name": "version"}, "spec": {"clusterID": "ID"},
        "status": {"desired": {"version": "4.16.3"}, "history": history},
    }))
}

fn release(version: &str, state: &str, completed: Option<&str>) -> Value {
    json!({"version": version, "state": state, "completionTime": completed})
}

fn config(history: &Value) -> UpgradeConfig {
    from(json!({
        "metadata": {"name": "managed-upgrade-config"},
        "spec": {
            "desired": {"version": "4.16.3"}, "upgradeAt": "1970-01-01T00:01:00Z",
            "PDBForceDrainTimeout": 60, "type": "OSD",
        },
        "status": {"history": history},
    }))
}

fn lines(config: &UpgradeConfig, cluster: &ClusterVersion) -> Vec<String> {
    let samples = collect(Some(config), cluster).unwrap();
    samples.iter().map(line).collect()
}

fn the_collector_follows_the_upgrade_config() {
    let previous = release("4.15.1", "Completed", Some("2026-08-01T00:00:00Z"));
    let older = release("4.14.9", "Completed", Some("2026-06-01T00:00:00Z"));
    let partial = release("4.16.3", "Partial", None);
    let running = cluster(&json!([partial, older, previous]));
    let just_created = config(&json!([{"version": "4.16.3", "phase": "New"}]));
    let versions = r#"version="4.15.1",desired_version="4.16.3""#;
    assert_eq!(
        lines(&just_created, &running),
        [
            format!(r#"managed_upgrade_upgrade_scheduled{{{versions},phase="New"}} 60"#),
            format!(r"managed_upgrade_upgrade_pdb_timeout_minutes{{{versions}}} 60"),
        ]
    );
    assert_eq!(collect(None, &running), Ok(Vec::new()), "no UpgradeConfig");
    let (mut conditions, names) = conditions();
    conditions.extend([
        json!({"type": "IsClusterUpgradable", "status": "True", "completeTime": "1970-01-01T00:00:09Z"}),
        json!({"type": "PostUpgradeTasksCompleted", "status": "True", "completeTime": "1970-01-01T00:00:09Z"}),
    ]);
    let upgraded = config(&json!([{
        "version": "4.16.3", "phase": "Upgraded", "startTime": "1970-01-01T00:02:00Z",
        "completeTime": "1970-01-01T00:03:00Z", "conditions": conditions,
    }]));
    let completed = release("4.16.3", "Completed", Some("2026-08-20T00:00:00Z"));
    // The requested version is the current one, so its predecessor is the source.
    let done = cluster(&json!([completed, older, previous]));
    let shown = lines(&upgraded, &done);
    let phase = r#"phase="Upgraded""#;
    assert_eq!(
        shown[..4],
        [
            format!("managed_upgrade_upgrade_scheduled{{{versions},{phase}}} 60"),
            format!("managed_upgrade_upgrade_start_timestamp{{{versions},{phase}}} 120"),
            format!("managed_upgrade_upgrade_complete_timestamp{{{versions},{phase}}} 180"),
            format!("managed_upgrade_upgrade_pdb_timeout_minutes{{{versions}}} 60"),
        ]
    );
    assert_eq!(
        shown[4..],
        names.map(|(name, status, value)| {
            let name = format!("managed_upgrade_condition_{name}_timestamp");
            let labels = format!(r#"upgradeconfig_name="managed-upgrade-config",{versions}"#);
            format!(r#"{name}{{{labels},condition="{status}"}} {value}"#)
        })
    );
    scrapes_fail_without_a_source(&just_created, &running);
}

/// The conditions that have a metric, and of each the name, status and value. What is done has the end, the rest the start.
fn conditions() -> (Vec<Value>, [(&'static str, &'static str, i64); 14]) {
    let rows = [
        ("StartedNotificationSent", "notification_start", "True"),
        ("ClusterHealthyBeforeUpgrade", "health_check", "False"),
        ("ExternalDependenciesAvailable", "external_dep_check", "Unknown"),
        ("ComputeCapacityReserved", "capacity_added", "True"),
        ("ControlPlaneMaintenanceWindowCreated", "control_plane_maint_start", "True"),
        ("UpgradeCommenced", "control_plane_upgrade_start", "True"),
        ("ControlPlaneUpgraded", "control_plane_completion", "False"),
        ("ControlPlaneMaintenanceWindowRemoved", "control_plane_maint_removed", "True"),
        ("WorkersMaintenanceWindowCreated", "workers_maint_start", "True"),
        ("WorkerNodesUpgraded", "workers_upgraded", "True"),
        ("ComputeCapacityRemoved", "capacity_removed", "True"),
        ("WorkersMaintenanceWindowRemoved", "workers_maint_removed", "True"),
        ("ClusterHealthyAfterUpgrade", "post_upgrade_healthcheck", "True"),
        ("CompletedNotificationSent", "notification_complete", "True"),
    ];
    let condition = |(step, _, status): &(&str, &str, &str)| {
        json!({
            "type": step, "status": status, "startTime": "1970-01-01T00:00:07Z",
            "completeTime": "1970-01-01T00:00:08Z",
        })
    };
    let conditions = rows.iter().map(condition).collect();
    (conditions, rows.map(|(_, name, status)| (name, status, if status == "True" { 8 } else { 7 })))
}

fn scrapes_fail_without_a_source(config: &UpgradeConfig, running: &ClusterVersion) {
    let only = release("4.16.3", "Completed", Some("2026-08-20T00:00:00Z"));
    let error = |config: &UpgradeConfig, cluster: &ClusterVersion| {
        collect(Some(config), cluster).unwrap_err()
    };
    let version = || "4.16.3".to_owned();
    assert_eq!(error(config, &cluster(&json!([]))), ScrapeError::NoCurrentVersion);
    let no_previous = ScrapeError::NoPrecedingVersion { version: version() };
    assert_eq!(error(config, &cluster(&json!([only]))), no_previous);
    let mut wrong = config.clone();
    "soon".clone_into(&mut wrong.spec.upgrade_at);
    let invalid = ScrapeError::InvalidUpgradeAt { text: "soon".to_owned() };
    assert_eq!(error(&wrong, running), invalid);
    let mut new = config.clone();
    new.status = None;
    assert_eq!(error(&new, running), ScrapeError::NoEntry { version: version() });
}
