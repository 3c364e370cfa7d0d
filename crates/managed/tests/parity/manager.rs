//! Rows of the manager of UpgradeConfigs.

use jiff::{SignedDuration, Timestamp};
use refit_openshift::{
    Compat::{self, Repaired, Strict},
    manager::{
        AfterDelete, Known, LastSync, Refresh, after_delete, is_managed, is_under_way, may_start,
        refresh,
    },
    upgrade_config::{UpgradeConfig, UpgradeConfigSpec},
};
use serde_json::{Value, from_value, json};

use crate::{
    Row,
    config::{COMPATS, config},
    providers::{history, spec, upgrade_config},
};

pub(crate) const ROWS: &[Row] = &[
    Row { number: 2, name: "objects with another name are ignored", test: other_names_are_ignored },
    Row {
        number: 10,
        name: "the first sync comes after 1 min, others after the interval, both ±10 %",
        test: syncs_are_spread,
    },
    Row {
        number: 11,
        name: "failed syncs back off from 1 min to 1 h, until one succeeds",
        test: failed_syncs_back_off,
    },
    Row {
        number: 12,
        name: "only a sync that succeeds has a timestamp",
        test: only_success_has_a_timestamp,
    },
    Row {
        number: 13,
        name: "a provider that wants nothing deletes the UpgradeConfig",
        test: nothing_wanted_deletes,
    },
    Row {
        number: 14,
        name: "another spec deletes, waits for at most 60 s, and creates",
        test: another_spec_replaces,
    },
    Row { number: 15, name: "the same spec changes nothing", test: the_same_spec_changes_nothing },
    Row {
        number: 16,
        name: "without a source, an upgrade that is due starts",
        test: no_source_is_no_kill_switch,
    },
];

fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

fn typed(spec: Value) -> UpgradeConfigSpec {
    serde_json::from_value(spec).unwrap()
}

fn other_names_are_ignored() {
    let mut object = upgrade_config(&json!([]));
    assert!(is_managed(&object));
    object.metadata.namespace = Some("default".to_owned());
    assert!(!is_managed(&object));
    let mut object = upgrade_config(&json!([]));
    object.metadata.name = Some("other".to_owned());
    assert!(!is_managed(&object));
}

fn syncs_are_spread() {
    let at = Timestamp::UNIX_EPOCH;
    let seconds = SignedDuration::from_secs;
    for (last, least, middle, most) in [
        (LastSync::Never, 54, 60, 66),
        (LastSync::Succeeded { at, interval: minutes(60) }, 3240, 3600, 3960),
        (LastSync::Unconfigured, 60, 60, 60),
    ] {
        assert_eq!(last.next_after(0), seconds(least));
        assert_eq!(last.next_after(1 << 31), seconds(middle));
        let latest = last.next_after(u32::MAX);
        assert!(latest <= seconds(most) && latest >= seconds(most - 1), "{latest:?}");
    }
}

fn failed_syncs_back_off() {
    let mut last = LastSync::Never;
    let mut waits = Vec::new();
    for _ in 0..9 {
        last = last.failed();
        waits.push(last.next_after(1 << 31));
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60].map(minutes));
    let many = LastSync::Failed { in_a_row: u32::MAX }.failed();
    assert_eq!(many.next_after(1 << 31), minutes(60));
    let success = LastSync::Succeeded { at: Timestamp::UNIX_EPOCH, interval: minutes(5) };
    assert_eq!(success.failed().next_after(1 << 31), minutes(1));
}

fn only_success_has_a_timestamp() {
    let at = Timestamp::from_second(1_700_000_000).unwrap();
    let success = LastSync::Succeeded { at, interval: minutes(5) };
    assert_eq!(success.timestamp(), Some(at));
    for last in [LastSync::Unconfigured, LastSync::Never, success.failed()] {
        assert_eq!(last.timestamp(), None);
    }
}

/// What the manager does with the object, in a cluster whose ClusterVersion has the release or not.
fn decide(
    existing: Option<&UpgradeConfig>,
    wanted: Option<&UpgradeConfigSpec>,
    commenced: bool,
    compat: Compat,
) -> Refresh {
    let hold = config("", compat).holds_while_upgrading().unwrap();
    refresh(Known { existing, wanted, commenced, hold })
}

fn nothing_wanted_deletes() {
    for compat in COMPATS {
        assert_eq!(decide(None, None, false, compat), Refresh::Unchanged);
        for (phase, commenced) in [
            ("New", false),
            ("Pending", false),
            ("Upgrading", false),
            ("Upgraded", true),
            ("Failed", false),
        ] {
            let existing = upgrade_config(&history(phase));
            let decided = decide(Some(&existing), None, commenced, compat);
            assert_eq!(decided, Refresh::Delete, "{phase}");
        }
    }
    // While the cluster is upgraded, the object is held; our key disables that.
    let existing = upgrade_config(&history("Upgrading"));
    assert_eq!(decide(Some(&existing), None, true, Strict), Refresh::Delete);
    let held = decide(Some(&existing), None, true, Repaired);
    let why = "The provider wants no upgrade any more, but the cluster is being upgraded: the UpgradeConfig stays until that is done.";
    assert_eq!(held, Refresh::Held { why: why.to_owned() });
    assert!(!held.changes());
    let disabled = config("configManager: {holdWhileUpgrading: false}", Repaired);
    assert!(!disabled.holds_while_upgrading().unwrap());
}

fn another_spec_replaces() {
    let wanted = typed(spec("4.16.4"));
    for compat in COMPATS {
        let created = decide(None, Some(&wanted), false, compat);
        assert_eq!(created, Refresh::Create(wanted.clone()));
        for history in [json!([]), history("Pending"), history("Failed"), history("Upgrading")] {
            let existing = upgrade_config(&history);
            let decided = decide(Some(&existing), Some(&wanted), false, compat);
            assert_eq!(decided, Refresh::Replace(wanted.clone()));
            assert!(decided.changes());
        }
    }
    let existing = upgrade_config(&history("Upgrading"));
    let replaced = decide(Some(&existing), Some(&wanted), true, Strict);
    assert_eq!(replaced, Refresh::Replace(wanted.clone()));
    let held = decide(Some(&existing), Some(&wanted), true, Repaired);
    assert!(matches!(held, Refresh::Held { .. }));
    assert!(!needs_extras(|_, _| {}), "the cluster runs what was requested");
    let degraded = |_: &mut Value, pool: &mut Value| {
        pool["status"]["updatedMachineCount"] = json!(2);
        pool["status"]["degradedMachineCount"] = json!(1);
    };
    assert!(!needs_extras(degraded), "a degraded worker is not updated any further");
    for (case, change) in [
        (
            "a request",
            (|version, _| version["spec"]["desiredUpdate"] = json!({"version": "4.16.4"}))
                as Change,
        ),
        ("an image", |version, _| version["spec"]["desiredUpdate"] = json!({"image": "quay.io/b"})),
        ("an update", |version, _| version["status"]["history"][0]["state"] = json!("Partial")),
        ("workers", |_, pool| pool["status"]["updatedMachineCount"] = json!(2)),
    ] {
        assert!(needs_extras(change), "{case}");
    }
    let seconds = SignedDuration::from_secs;
    assert_eq!(after_delete(false, seconds(0)), Ok(AfterDelete::Create));
    assert_eq!(after_delete(true, seconds(0)), Ok(AfterDelete::Poll(seconds(5))));
    assert_eq!(after_delete(true, seconds(59)), Ok(AfterDelete::Poll(seconds(5))));
    assert_eq!(after_delete(false, seconds(60)), Ok(AfterDelete::Create));
    assert_eq!(
        after_delete(true, seconds(60)).unwrap_err().to_string(),
        "UpgradeConfig managed-upgrade-config still exists 60 s after it was deleted, remove its finalizers"
    );
}

type Change = fn(&mut Value, &mut Value);

/// Whether extra nodes are needed in a cluster that is done apart from this.
fn needs_extras(change: Change) -> bool {
    let mut version = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "ClusterVersion", "metadata": {"name": "version"},
        "spec": {"desiredUpdate": {"version": "4.16.3"}},
        "status": {
            "desired": {"version": "4.16.3", "image": "quay.io/a"},
            "history": [{"state": "Completed", "version": "4.16.3"}],
        },
    });
    let mut pool = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
        "metadata": {"name": "worker"}, "spec": {}, "status": {"machineCount": 3, "updatedMachineCount": 3},
    });
    change(&mut version, &mut pool);
    let (version, pools) = (from_value(version).unwrap(), [from_value(pool).unwrap()]);
    is_under_way(&version, &pools, Repaired)
}

fn the_same_spec_changes_nothing() {
    let mut wanted = spec("4.16.3");
    wanted["desired"]["image"] = json!("");
    wanted["capacityReservation"] = json!(false);
    for compat in COMPATS {
        let existing = upgrade_config(&json!([]));
        let decided = decide(Some(&existing), Some(&typed(wanted.clone())), false, compat);
        assert_eq!(decided, Refresh::Unchanged);
        assert!(!decided.changes());
        for (field, value) in [
            ("upgradeAt", json!("2026-01-01T00:00:01Z")),
            ("PDBForceDrainTimeout", json!(61)),
            ("type", json!("ARO")),
            ("capacityReservation", json!(true)),
        ] {
            let mut other = wanted.clone();
            other[field] = value;
            assert!(
                decide(Some(&existing), Some(&typed(other)), false, compat).changes(),
                "{field}"
            );
        }
    }
}

fn no_source_is_no_kill_switch() {
    for compat in COMPATS {
        assert_eq!(config("configManager: {source: }", compat).provider(), Ok(None));
    }
    assert!(may_start(None));
    assert!(may_start(Some(&Refresh::Unchanged)));
    assert!(!may_start(Some(&Refresh::Delete)));
    assert!(!may_start(Some(&Refresh::Replace(typed(spec("4.16.3"))))));
}
