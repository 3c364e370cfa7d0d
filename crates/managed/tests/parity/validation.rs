//! Rows of the validation of a request.

use refit_openshift::{
    Compat,
    kinds::{ClusterVersion, OperatorCondition},
    upgrade_config::{Desired, UpgradeConfigSpec},
    validation::{
        DEFAULT_UPSTREAM, ImageRef, Validating, Validity, go_architecture, offered_by, validate,
    },
};
use serde_json::{Value, json};

use crate::Row;

pub(crate) const ROWS: &[Row] = &[
    Row { number: 37, name: "upgradeAt is a time of RFC 3339", test: upgrade_at },
    Row {
        number: 38,
        name: "the label of a release image is its version, and malformed images are refused",
        test: images,
    },
    Row { number: 39, name: "neither an image nor a version is invalid", test: no_source },
    Row { number: 40, name: "a version is one of semver", test: bad_version },
    Row { number: 41, name: "downgrades and the current version are errors", test: not_higher },
    Row {
        number: 42,
        name: "in the cluster's channel, the version is an available or a conditional update",
        test: own_channel,
    },
    Row {
        number: 43,
        name: "of another channel, the version graph offers the version, if it is asked",
        test: another_channel,
    },
    Row {
        number: 44,
        name: "the version graph is the ClusterVersion's upstream or the default one",
        test: upstream,
    },
];

const IMAGE: &str = "quay.io/openshift-release-dev/ocp-release@sha256:0a";

fn cluster(more: &Value) -> ClusterVersion {
    let mut object = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "ClusterVersion",
        "metadata": {"name": "version"},
        "spec": {"clusterID": "id", "channel": "stable-4.16"},
        "status": {
            "history": [{"state": "Completed", "version": "4.16.3"}],
            "availableUpdates": [{"version": "4.16.4", "image": "a"}],
            "conditionalUpdates": [{"release": {"version": "4.16.5", "image": "b"}}],
        },
    });
    let spec = object["spec"].as_object_mut().unwrap();
    spec.extend(more.as_object().unwrap().clone());
    serde_json::from_value(object).unwrap()
}

fn request(version: &str, channel: &str, image: &str) -> UpgradeConfigSpec {
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    UpgradeConfigSpec {
        desired: Desired { version: given(version), channel: given(channel), image: given(image) },
        upgrade_at: "2026-03-02T09:00:00Z".into(),
        ..UpgradeConfigSpec::default()
    }
}

fn validated(spec: &UpgradeConfigSpec) -> Validity {
    validate(&Validating {
        spec,
        cluster: &cluster(&json!({})),
        compat: Compat::Repaired,
        asks_cincinnati: true,
        architecture: "arm64",
        release: None,
        offered: None,
    })
}

fn upgrade_at() {
    for (text, is_valid) in [
        ("2026-03-02T09:00:00Z", true),
        ("2026-03-02T09:00:00+02:00", true),
        ("2026-03-02T09:00:00.5Z", true),
        ("2026-03-02 09:00:00Z", false),
        ("2026-03-02T09Z", false),
        ("2026-03-02T09:00Z", false),
        ("2026-03-02T09:00:00Z[UTC]", false),
        ("2026-03-02T09:00:00+02", false),
        ("2026-03-02", false),
        ("", false),
    ] {
        let spec =
            UpgradeConfigSpec { upgrade_at: text.into(), ..request("4.16.4", "stable-4.16", "") };
        assert_eq!(validated(&spec) == Validity::Valid, is_valid, "{text}");
    }
}

fn images() {
    let found = |version, release: Result<&str, &str>| {
        let release = release.map(str::to_owned).map_err(str::to_owned);
        validate(&Validating {
            spec: &request(version, "", IMAGE),
            cluster: &cluster(&json!({})),
            compat: Compat::Repaired,
            asks_cincinnati: true,
            architecture: "arm64",
            release: Some(&release),
            offered: None,
        })
    };
    let image = ImageRef {
        registry: "quay.io".into(),
        repository: "openshift-release-dev/ocp-release".into(),
        digest: "sha256:0a".into(),
    };
    assert_eq!(validated(&request("", "", IMAGE)), Validity::AskRelease(image));
    assert_eq!(found("", Ok("4.17.0")), Validity::SetVersion("4.17.0".into()));
    assert_eq!(found("4.17.1", Ok("4.17.0")), Validity::SetVersion("4.17.0".into()));
    assert_eq!(found("4.17.0", Ok("4.17.0")), Validity::Valid);
    assert_eq!(found("4.16.0", Ok("4.16.0")), Validity::Valid, "an image may be an older release");
    assert_eq!(found("4.17.0", Err("404 Not Found")), Validity::Error("404 Not Found".into()));
    for (image, part) in [
        ("openshift-release-dev/ocp-release@sha256:0a", "registry"),
        ("ocp-release@sha256:0a", "registry"),
        ("quay.io/ocp-release@sha256:0a", "repository"),
        ("quay.io//ocp-release@sha256:0a", "repository"),
        ("quay.io/openshift-release-dev/@sha256:0a", "image name"),
        ("quay.io/openshift-release-dev/ocp-release:4.17.0", "image digest"),
        ("quay.io/openshift-release-dev/ocp-release@", "image digest"),
    ] {
        let Validity::Invalid(why) = validated(&request("", "", image)) else { panic!("{image}") };
        assert!(why.ends_with(&format!("no {part} specified")), "{why}");
    }
    let local = ImageRef::parse("localhost:5000/a/b/c@sha256:0a").unwrap();
    assert_eq!((&*local.registry, &*local.repository), ("localhost:5000", "a/b/c"));
}

fn no_source() {
    for (version, channel) in [("", ""), ("4.16.4", ""), ("", "stable-4.16")] {
        let found = validated(&request(version, channel, ""));
        assert!(matches!(found, Validity::Invalid(_)), "{found:?}");
    }
}

fn bad_version() {
    for version in ["4.17", "v4.17.0", "latest"] {
        let found = validated(&request(version, "stable-4.16", ""));
        assert!(matches!(&found, Validity::Error(why) if why.contains(version)), "{found:?}");
    }
}

fn not_higher() {
    let error = |version| validated(&request(version, "stable-4.16", ""));
    let down = "downgrades to desired version 4.16.2 from 4.16.3 are unsupported";
    assert_eq!(error("4.16.2"), Validity::Error(down.into()));
    let equal = "desired version 4.16.3 matches the current version 4.16.3";
    assert_eq!(error("4.16.3"), Validity::Error(equal.into()));
    assert!(matches!(error("4.16.3-rc.1"), Validity::Error(_)));
}

fn own_channel() {
    for version in ["4.16.4", "4.16.5"] {
        assert_eq!(validated(&request(version, "stable-4.16", "")), Validity::Valid, "{version}");
    }
    let missing = "cannot find version 4.16.6 in available updates".to_owned();
    assert_eq!(
        validated(&request("4.16.6", "stable-4.16", "")),
        Validity::Invalid(missing.clone())
    );
    // The cluster-version operator cannot read what is offered.
    let mut unread = cluster(&json!({}));
    unread.status.as_mut().unwrap().conditions.push(OperatorCondition {
        type_: "RetrievedUpdates".into(),
        status: "False".into(),
        reason: "RemoteFailed".into(),
        message: "no route to host".into(),
    });
    let found = |version, compat| {
        validate(&Validating {
            spec: &request(version, "stable-4.16", ""),
            cluster: &unread,
            compat,
            asks_cincinnati: false,
            architecture: "arm64",
            release: None,
            offered: None,
        })
    };
    let why = format!("{missing}: the cluster-version operator cannot read them: no route to host");
    assert_eq!(found("4.16.6", Compat::Repaired), Validity::Invalid(why));
    assert_eq!(found("4.16.6", Compat::Strict), Validity::Invalid(missing));
    assert_eq!(found("4.16.4", Compat::Repaired), Validity::Valid);
}

fn another_channel() {
    let graph = json!({
        "nodes": [{"version": "4.16.3"}, {"version": "4.17.0"}, {"version": "4.17.1"}, {"version": "4.17.2"}],
        "edges": [[0, 1], [1, 2], [0, 9]],
        "conditionalEdges": [{"edges": [{"from": "4.16.3", "to": "4.17.2"}], "risks": []}],
    });
    let graph = serde_json::to_vec(&graph).unwrap();
    let offered = offered_by(&graph, "4.16.3");
    assert_eq!(offered, Ok(vec!["4.17.0".to_owned(), "4.17.2".to_owned()]));
    assert!(offered_by(&graph, "4.16.2").unwrap_err().contains("4.16.2"));
    assert!(offered_by(b"<html>", "4.16.3").unwrap_err().contains("not a version graph"));
    let found = |version, asks_cincinnati, offered: &Result<Vec<String>, String>| {
        validate(&Validating {
            spec: &request(version, "stable-4.17", ""),
            cluster: &cluster(&json!({})),
            compat: Compat::Repaired,
            asks_cincinnati,
            architecture: "arm64",
            release: None,
            offered: Some(offered),
        })
    };
    assert_eq!(found("4.17.0", true, &offered), Validity::Valid);
    assert_eq!(found("4.17.2", true, &offered), Validity::Valid, "with known risks");
    let missing = "cannot find version 4.17.1 in available updates".to_owned();
    assert_eq!(found("4.17.1", true, &offered), Validity::Invalid(missing));
    assert_eq!(found("4.17.1", false, &offered), Validity::Valid, "not asked");
    let none = "no available upgrade for the given clusterversion".to_owned();
    assert_eq!(found("4.17.1", true, &Ok(Vec::new())), Validity::Invalid(none));
    assert_eq!(found("4.17.1", true, &Err("down".into())), Validity::Error("down".into()));
}

fn upstream() {
    for (rust, go) in
        [("x86_64", "amd64"), ("aarch64", "arm64"), ("powerpc64", "ppc64le"), ("s390x", "s390x")]
    {
        assert_eq!(go_architecture(rust), go);
    }
    for (spec, url) in
        [(json!({}), DEFAULT_UPSTREAM), (json!({"upstream": "https://a/graph"}), "https://a/graph")]
    {
        let found = validate(&Validating {
            spec: &request("4.17.0", "stable-4.17", ""),
            cluster: &cluster(&spec),
            compat: Compat::Repaired,
            asks_cincinnati: true,
            architecture: "arm64",
            release: None,
            offered: None,
        });
        let Validity::AskGraph(request) = found else { panic!("{found:?}") };
        assert_eq!((&*request.url, &*request.channel), (url, "stable-4.17"));
        let query =
            [("arch", "arm64"), ("channel", "stable-4.17"), ("id", "id"), ("version", "4.16.3")];
        assert_eq!(request.query(), query);
    }
}
