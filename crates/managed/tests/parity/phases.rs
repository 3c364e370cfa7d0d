//! Rows of the phases of an upgrade.

use jiff::SignedDuration;
use refit_openshift::{
    Compat::{Repaired, Strict},
    cluster_version::VersionError,
    history::first as first_entry,
    kinds::{ClusterVersion, ClusterVersionSpec},
    metrics::Series,
    steps::{Gauge, Write},
    upgrade_config::{Desired, Phase},
};
use serde_json::json;

use crate::{
    Row,
    config::COMPATS,
    steps::cluster::{Cluster, NEW},
};

pub(crate) const ROWS: &[Row] = &[
    Row { number: 25, name: "a new entry shows what the cluster is doing", test: first_entries },
    Row { number: 26, name: "a new request is Pending a minute before the next look", test: new },
    Row { number: 27, name: "a request more than two hours ahead is checked", test: pre_check },
    Row { number: 28, name: "a failed validation is a metric", test: validation_metric },
    Row {
        number: 38,
        name: "an image has its version from its label, and another channel its graph",
        test: an_image_and_another_channel,
    },
    Row { number: 29, name: "what is due in less than five minutes is looked at then", test: soon },
    Row { number: 30, name: "the provider is asked before an upgrade starts", test: kill_switch },
    Row { number: 31, name: "an upgrade that starts runs its steps at once", test: start },
    Row { number: 32, name: "the last step completes the upgrade", test: complete },
    Row { number: 33, name: "the result has the stream and the paging alerts", test: result },
    Row { number: 34, name: "a failed upgrade stays failed", test: failed_stays },
    Row {
        number: 108,
        name: "an UpgradeConfig that is created again goes on",
        test: created_again,
    },
];

fn first_entries() {
    let mut cluster = Cluster::new(Repaired);
    cluster.look();
    assert_eq!(cluster.entry().preceding_version, "4.16.3");
    assert_eq!(cluster.entry().start_time, None);
    let mut again = Cluster::new(Repaired);
    again.request(&json!({"spec": {"desiredUpdate": {"version": NEW}}}));
    let first = again.first_entry();
    assert_eq!(
        (first.phase, first.start_time.map(|time| time.0)),
        (Phase::Upgrading, Some(again.now))
    );
    assert_eq!(first.preceding_version, "4.16.3", "what was completed before");
    let mut nothing = Cluster::new(Repaired);
    nothing.upgrade.spec.desired = Desired::default();
    nothing.look();
    nothing.look();
    assert_eq!(nothing.condition("UpgradeConfigValid").status, "False");
    let version = ClusterVersion::new("version", ClusterVersionSpec::default());
    let strict = first_entry(&nothing.upgrade, &version, (nothing.now, Strict));
    assert_eq!(strict, Err(VersionError::NoSource));
}

fn new() {
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        let decision = cluster.look();
        assert_eq!(
            (cluster.entry().phase, decision.again),
            (Phase::Pending, Some(SignedDuration::from_mins(1)))
        );
    }
}

fn pre_check() {
    let checked = |compat, minutes, gate| {
        let mut cluster = Cluster::new(compat);
        cluster.config.gates.pre_health_check = gate;
        cluster.alerts = vec!["EtcdDown".into()];
        cluster.now = cluster.upgrade_at() - SignedDuration::from_mins(minutes);
        let decision = cluster.look();
        assert_eq!(cluster.entry().phase, Phase::Pending, "it blocks nothing");
        let failed = decision.gauges.iter().any(|gauge| {
            matches!(gauge, Gauge::Set(Series::HealthcheckFailed { state: Phase::New, .. }, 1))
        });
        assert_eq!(failed, cluster.sent.contains(&"StatePreHealthCheckSL".to_owned()));
        failed
    };
    for (minutes, is_checked) in [(119, false), (120, false), (121, true)] {
        assert_eq!(checked(Strict, minutes, true), is_checked, "{minutes}");
        assert_eq!(checked(Repaired, minutes, false), is_checked, "{minutes}: always");
    }
    assert!(!checked(Strict, 300, false), "its gate is off");
}

fn validation_metric() {
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.upgrade.spec.desired.version = Some("4.16.1".into());
        cluster.look();
        let decision = cluster.look();
        assert!(decision.gauges.contains(&Gauge::Set(Series::ValidationFailed, 1)));
        assert_eq!((cluster.entry().phase, decision.error.is_some()), (Phase::Pending, true));
        // Repaired, people see why (M13).
        let shown = cluster.entry().conditions.first().map(|one| one.message.clone());
        let why = "downgrades to desired version 4.16.1 from 4.16.3 are unsupported".to_owned();
        assert_eq!(shown, (compat == Repaired).then_some(why));
        cluster.upgrade.spec.desired.version = Some(NEW.into());
        cluster.look();
        let decision = cluster.look();
        assert!(decision.gauges.contains(&Gauge::Set(Series::ValidationFailed, 0)));
    }
}

fn an_image_and_another_channel() {
    let image = || Some("quay.io/openshift-release-dev/ocp-release@sha256:0a".to_owned());
    let mut cluster = Cluster::new(Repaired);
    cluster.upgrade.spec.desired = Desired { image: image(), ..Desired::default() };
    cluster.look();
    cluster.refuses = vec!["SetVersion".into()];
    assert!(cluster.look().error.is_some(), "a refused write is an error");
    cluster.refuses.clear();
    let decision = cluster.look();
    assert_eq!(decision.again, Some(SignedDuration::ZERO));
    assert!(cluster.written.contains(&Write::SetVersion(NEW.into())));
    cluster.run_to(Phase::Upgraded);
    assert_eq!(cluster.entry().version, NEW);
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.upgrade.spec.desired = Desired { image: image(), ..Desired::default() };
        cluster.look();
        assert_eq!(cluster.entry().version, "", "its registry was not asked yet");
        cluster.look();
        cluster.run_to(Phase::Upgrading);
        let history = cluster.history();
        let versions: Vec<&str> = history.iter().map(|one| &*one.version).collect();
        match compat {
            Repaired => assert_eq!(versions, [NEW]),
            Strict => assert_eq!(versions, [NEW, ""]),
        }
    }
    let mut cluster = Cluster::new(Repaired);
    cluster.asks_cincinnati = true;
    cluster.run_to(Phase::Upgraded);
}

fn soon() {
    for (seconds, again) in [(301, None), (300, None), (299, Some(299)), (1, Some(1)), (0, Some(0))]
    {
        let mut cluster = Cluster::new(Repaired);
        cluster.now = cluster.upgrade_at() - SignedDuration::from_secs(seconds);
        cluster.look();
        let decision = cluster.look();
        assert_eq!(cluster.entry().phase, Phase::Pending);
        assert_eq!(decision.again, again.map(SignedDuration::from_secs), "{seconds}");
    }
}

fn kill_switch() {
    let started = |refreshed: Result<bool, String>| {
        let mut cluster = Cluster::new(Repaired);
        cluster.refreshed = refreshed;
        cluster.look();
        let decision = cluster.look();
        (cluster.entry().phase, decision.error)
    };
    assert_eq!(started(Ok(true)), (Phase::Upgrading, None));
    assert_eq!(started(Ok(false)), (Phase::New, None), "the provider wants something else");
    let down = Some("OCM does not answer".to_owned());
    assert_eq!(started(Err("OCM does not answer".into())), (Phase::Pending, down));
}

fn start() {
    let mut cluster = Cluster::new(Repaired);
    cluster.look();
    let decision = cluster.look();
    assert_eq!(cluster.entry().start_time.as_ref().map(|time| time.0), Some(cluster.now));
    assert_eq!(decision.again, Some(SignedDuration::ZERO), "the status is written first");
    cluster.look();
    assert_eq!(cluster.condition("UpgradeCommenced").status, "True");
}

fn complete() {
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        let decision = cluster.run_to(Phase::Upgraded);
        assert_eq!(cluster.entry().complete_time.as_ref().map(|time| time.0), Some(cluster.now));
        assert_eq!(decision.again, Some(SignedDuration::from_mins(1)));
    }
}

fn result() {
    for (from, alerts, stream, value) in [
        ("4.16.3", vec![], "y", 1),
        ("4.17.1", vec!["UpgradeNodeDrainFailedSRE".to_owned()], "z", 0),
        ("", vec![], "unknown", 1),
    ] {
        let mut cluster = Cluster::new(Repaired);
        cluster.run_to(Phase::Upgraded);
        cluster.edit_entry(|entry| entry.preceding_version = from.into());
        cluster.paging.clone_from(&alerts);
        let decision = cluster.look();
        let series = Series::UpgradeResult {
            preceding_version: from.into(),
            stream: stream.into(),
            version: NEW.into(),
            alerts: alerts.join(","),
        };
        assert!(decision.gauges.contains(&Gauge::Set(series, value)), "{:?}", decision.gauges);
        assert_eq!(decision.again, None);
    }
}

fn failed_stays() {
    let mut cluster = Cluster::new(Repaired);
    cluster.offers.clear();
    cluster.run_to(Phase::Upgrading);
    cluster.pass(SignedDuration::from_mins(121));
    cluster.run_to(Phase::Failed);
    cluster.pass(SignedDuration::from_hours(1));
    let before = cluster.history();
    let decision = cluster.look();
    assert_eq!((cluster.history(), decision.again, decision.error), (before, None, None));
}

fn created_again() {
    for compat in COMPATS {
        let mut cluster = Cluster::new(compat);
        cluster.workers_take_time = true;
        cluster.run_to(Phase::Upgrading);
        cluster.look();
        cluster.upgrade.status = None;
        cluster.look();
        assert_eq!(cluster.entry().phase, Phase::Upgrading);
        assert_eq!(cluster.condition("ControlPlaneUpgraded").status, "True");
        cluster.pools[0].status.as_mut().unwrap().updated_machine_count = 3;
        cluster.run_to(Phase::Upgraded);
    }
}
