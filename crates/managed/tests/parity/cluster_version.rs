//! Rows of what a ClusterVersion shows, and how an upgrade is requested there.

use jiff::{SignedDuration, Timestamp};
use refit_openshift::{
    Compat::{Repaired, Strict},
    cluster_version::{
        Commence, VersionError, check_upgradeable, commence, current, has_commenced, is_completed,
        is_late, preceding,
    },
    kinds::ClusterVersion,
    upgrade_config::{Desired, UpgradeConfigSpec},
};
use serde_json::{Value, json};

use crate::{Row, config::COMPATS};

pub(crate) const ROWS: &[Row] = &[
    Row {
        number: 50,
        name: "Upgradeable=False forbids another minor version, with its message",
        test: another_minor_is_forbidden,
    },
    Row {
        number: 52,
        name: "an upgrade is requested by channel, version, version and image, or image",
        test: requests,
    },
    Row {
        number: 53,
        name: "a version that is not offered yet is tried again",
        test: a_version_that_is_not_offered,
    },
    Row {
        number: 54,
        name: "the control plane is upgraded once the history shows the version as Completed",
        test: completion,
    },
    Row {
        number: 55,
        name: "a control plane is late after the window, from its start or upgradeAt",
        test: a_late_control_plane,
    },
];

const IMAGE: &str = "quay.io/openshift-release-dev/ocp-release@sha256:0a";

fn cluster(spec: &Value, status: &Value) -> ClusterVersion {
    let object = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "ClusterVersion",
        "metadata": {"name": "version"}, "spec": spec, "status": status,
    });
    serde_json::from_value(object).unwrap()
}

fn completed(version: &str, minute: &str) -> Value {
    json!({"state": "Completed", "version": version, "completionTime": format!("2026-03-02T08:{minute}:00Z")})
}

fn by_version(version: &str) -> UpgradeConfigSpec {
    UpgradeConfigSpec {
        desired: Desired {
            version: Some(version.into()),
            channel: Some("stable-4.17".into()),
            image: None,
        },
        upgrade_at: "2026-03-02T09:00:00Z".into(),
        ..UpgradeConfigSpec::default()
    }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn another_minor_is_forbidden() {
    let not_upgradeable = json!({"type": "Upgradeable", "status": "False", "reason": "AdminAckRequired", "message": "APIs are removed"});
    let seen = |history: Value| {
        cluster(&json!({}), &json!({"history": history, "conditions": [not_upgradeable]}))
    };
    let four = seen(json!([completed("4.16.3", "00")]));
    let error = check_upgradeable(&four, &by_version("4.17.0")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cluster upgrade to version 4.17.0 on Mon Mar  2 09:00:00 UTC 2026 has been cancelled: \
         AdminAckRequired: APIs are removed"
    );
    assert_eq!(check_upgradeable(&four, &by_version("4.16.9")), Ok(()), "another patch release");
    // The original compares the minor alone: a lower one of the next major version is not forbidden.
    assert_eq!(check_upgradeable(&four, &by_version("5.0.0")), Ok(()));
    let free = cluster(&json!({}), &json!({"history": [completed("4.16.3", "00")]}));
    assert_eq!(check_upgradeable(&free, &by_version("4.17.0")), Ok(()));
    let odd = check_upgradeable(&free, &by_version("4.17"));
    assert_eq!(odd, Err(VersionError::Version("4.17".into())));
    let never = UpgradeConfigSpec { upgrade_at: "soon".into(), ..by_version("4.17.0") };
    assert_eq!(check_upgradeable(&free, &never), Err(VersionError::UpgradeAt("soon".into())));
    let fresh = cluster(&json!({}), &json!({}));
    assert_eq!(check_upgradeable(&fresh, &by_version("4.17.0")), Err(VersionError::NoCurrent));
}

fn requests() {
    let offered = json!({
        "availableUpdates": [{"version": "4.17.0", "image": "a"}],
        "conditionalUpdates": [{"release": {"version": "4.17.1", "image": "b"}}],
    });
    let seen = |channel: &str| cluster(&json!({"channel": channel}), &offered);
    let request = |channel, version| commence(&seen(channel), &by_version(version).desired);
    let channel = json!({"spec": {"channel": "stable-4.17"}});
    assert_eq!(request("stable-4.16", "4.17.0"), Ok(Commence::Channel(channel)));
    let update = |version: &str, image: Value| {
        Ok(Commence::Patch(
            json!({"spec": {"desiredUpdate": {"version": version, "image": image}}}),
        ))
    };
    assert_eq!(request("stable-4.17", "4.17.0"), update("4.17.0", Value::Null));
    assert_eq!(request("stable-4.17", "4.17.1"), update("4.17.1", json!("b")), "with known risks");
    let by_image = Desired { image: Some(IMAGE.into()), ..by_version("4.17.0").desired };
    let image = json!({"spec": {"desiredUpdate": {"image": IMAGE, "version": null}}});
    assert_eq!(commence(&seen("any"), &by_image), Ok(Commence::Patch(image)));

    let commenced = |update: Value| cluster(&json!({"desiredUpdate": update}), &json!({}));
    let version = commenced(json!({"version": "4.17.1", "image": "b"}));
    assert_eq!(has_commenced(&version, &by_version("4.17.1").desired), Ok(true));
    assert_eq!(commence(&version, &by_version("4.17.1").desired), Ok(Commence::Done));
    assert_eq!(has_commenced(&version, &by_version("4.17.0").desired), Ok(false));
    assert_eq!(has_commenced(&commenced(json!({"image": IMAGE})), &by_image), Ok(true));
    assert_eq!(has_commenced(&version, &by_image), Ok(false));
    for desired in [
        Desired::default(),
        Desired { channel: None, ..by_version("4.17.0").desired },
        Desired { version: Some(String::new()), ..by_version("4.17.0").desired },
    ] {
        let error = has_commenced(&version, &desired).unwrap_err();
        assert_eq!(error.to_string(), "cannot find the correct upgrade spec source");
    }
}

fn a_version_that_is_not_offered() {
    let without_image = json!({
        "availableUpdates": [{"version": "4.17.0"}], "conditionalUpdates": [{"release": {"version": "4.17.0"}}],
    });
    for status in [json!({}), json!({"availableUpdates": null}), without_image] {
        let seen = cluster(&json!({"channel": "stable-4.17"}), &status);
        assert_eq!(commence(&seen, &by_version("4.17.0").desired), Ok(Commence::NotOffered));
    }
}

fn completion() {
    let partial =
        json!({"state": "Partial", "version": "4.17.0", "startedTime": "2026-03-02T09:00:00Z"});
    let history = json!([partial, completed("4.16.3", "00"), completed("4.15.9", "30")]);
    let status = |desired: &str| json!({"history": history, "desired": {"version": desired}});
    let under_way = cluster(&json!({}), &status("4.17.0"));
    for compat in COMPATS {
        assert!(!is_completed(&under_way, "4.17.0", compat));
    }
    // An earlier upgrade to a version is not the one that was requested again.
    assert!(is_completed(&under_way, "4.16.3", Strict));
    assert!(!is_completed(&under_way, "4.16.3", Repaired));
    let done = cluster(&json!({}), &json!({"history": [completed("4.17.0", "40")]}));
    for compat in COMPATS {
        assert!(is_completed(&done, "4.17.0", compat));
        assert!(!is_completed(&cluster(&json!({}), &json!({})), "4.17.0", compat));
    }
    assert_eq!(current(&under_way), Ok("4.15.9"), "what was completed last counts, not the order");
    assert_eq!(preceding(&under_way, "4.17.0"), "4.16.3");
    let before = cluster(&json!({}), &status("4.16.3"));
    assert_eq!(preceding(&before, "4.17.0"), "4.16.3");
    assert_eq!(preceding(&cluster(&json!({}), &json!({})), "4.17.0"), "");
}

fn a_late_control_plane() {
    let window = SignedDuration::from_mins(90);
    let late_in = |compat, history: Value, now: &str| {
        let seen = cluster(&json!({}), &json!({"history": history}));
        is_late(&seen, &by_version("4.17.0"), window, (at(now), compat))
    };
    let late = |history: Value, now: &str| {
        let [repaired, strict] = COMPATS.map(|compat| late_in(compat, history.clone(), now));
        assert_eq!(repaired, strict);
        repaired
    };
    let began = |more: Value| {
        let mut one =
            json!({"state": "Partial", "version": "4.17.0", "startedTime": "2026-03-02T09:10:00Z"});
        one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([one])
    };
    assert_eq!(late(began(json!({})), "2026-03-02T10:40:00Z"), Ok(false));
    assert_eq!(late(began(json!({})), "2026-03-02T10:40:01Z"), Ok(true));
    let done = json!({"state": "Completed", "completionTime": "2026-03-02T11:00:00Z"});
    assert_eq!(late(began(done), "2026-03-02T12:00:00Z"), Ok(false));
    assert_eq!(late(json!([]), "2026-03-02T10:30:00Z"), Ok(false), "from upgradeAt");
    // The cluster has run the version before.
    let again = json!([completed("4.16.3", "10"), completed("4.17.0", "00")]);
    assert_eq!(late_in(Strict, again.clone(), "2026-03-02T10:30:01Z"), Ok(false));
    assert_eq!(late_in(Repaired, again, "2026-03-02T10:30:01Z"), Ok(true));
    assert_eq!(late(json!([]), "2026-03-02T10:30:01Z"), Ok(true));
    let seen = cluster(&json!({}), &json!({}));
    let never = UpgradeConfigSpec { upgrade_at: String::new(), ..by_version("4.17.0") };
    assert!(is_late(&seen, &never, window, (at("2026-03-02T10:30:01Z"), Repaired)).is_err());
}
