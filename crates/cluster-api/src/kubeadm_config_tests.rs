use super::*;

fn prepared(mut desired: Value, mut current: Value) -> (Value, Value) {
    prepare(&mut desired, &mut current, Entry::Join);
    (desired, current)
}

fn same(desired: Value, current: Value) -> bool {
    let (desired, current) = prepared(desired, current);
    desired == current
}

#[expect(clippy::needless_pass_by_value, reason = "keeps tables of literals short")]
fn join(registration: Value) -> Value {
    json!({"joinConfiguration": {"nodeRegistration": registration}})
}

fn control_plane(version: &str, config: &Value) -> Value {
    json!({"spec": {"version": version, "kubeadmConfigSpec": config}})
}

fn any_config() -> Value {
    json!({
        "clusterConfiguration": {"apiServer": {}},
        "initConfiguration": {"nodeRegistration": {"name": "i"}},
        "joinConfiguration": {"nodeRegistration": {"name": "j"}},
        "files": [],
    })
}

/// A KubeadmConfig as the bootstrap provider writes it for the machine.
fn on_a_machine(control_plane: &Value, entry: Entry) -> Value {
    let mut spec = desired_spec(control_plane, entry);
    spec["clusterConfiguration"]["controlPlaneEndpoint"] = json!("10.0.0.10:6443");
    match entry {
        Entry::Init => {
            spec["initConfiguration"]["localAPIEndpoint"] = json!({});
            spec["initConfiguration"]["bootstrapTokens"] = json!([{"token": "t"}]);
        }
        Entry::Join => {
            spec["joinConfiguration"]["controlPlane"] = json!({});
            spec["joinConfiguration"]["discovery"] = json!({"bootstrapToken": {"token": "t"}});
        }
    }
    spec
}

#[test]
fn the_table_of_verdicts_holds() {
    let table: Value =
        serde_json::from_str(include_str!("../testdata/kubeadm_config_verdicts.json")).unwrap();
    for row in table["changes"].as_array().unwrap() {
        let counts = row["counts"].as_bool().unwrap();
        let before = control_plane("v1.34.2", &table["base"]);
        let mut config = table["base"].clone();
        json_patch::merge(&mut config, &row["change"]);
        let after = control_plane("v1.34.2", &config);
        for entry in [Entry::Init, Entry::Join] {
            let machine = on_a_machine(&before, entry);
            assert!(is_up_to_date(&machine, &before), "{entry:?} before: {}", row["what"]);
            assert_eq!(is_up_to_date(&machine, &after), !counts, "{entry:?}: {}", row["what"]);
            // The updater's comparison with the goal agrees, except for defaults that were written.
            let (mut machine, version) = (machine, "v1.34.2".parse().ok());
            let wanted = desired_spec(&after, Entry::Join);
            init_to_join(&mut machine, &wanted);
            let equal =
                normalised(&machine, version.as_ref()) == normalised(&wanted, version.as_ref());
            let is_default = row["what"].as_str().unwrap().contains("former default");
            assert_eq!(equal, !counts && !is_default, "normalised, {entry:?}: {}", row["what"]);
        }
    }
}

#[test]
fn an_init_config_is_compared_as_a_join_config() {
    let desired = json!({"joinConfiguration": {
        "caCertPath": "/ca", "nodeRegistration": {"criSocket": "s"},
        "controlPlane": {"localAPIEndpoint": {"bindPort": 6443}},
    }});
    let current = json!({
        "initConfiguration": {
            "nodeRegistration": {"criSocket": "s"}, "localAPIEndpoint": {"bindPort": 6443},
            "bootstrapTokens": [{"token": "secret"}],
        },
        // A remnant of a conversion from v1beta1.
        "joinConfiguration": {"timeouts": {"kubeletHealthCheckSeconds": 3}},
    });
    let (desired, current) = prepared(desired, current);
    assert_eq!(desired, current);
    assert!(!current.to_string().contains("secret"));
}

#[test]
fn defaults_of_cluster_api_do_not_count() {
    let desired = join(json!({"criSocket": "s"}));
    let mut current = desired.clone();
    current["joinConfiguration"]["discovery"] = json!({"bootstrapToken": {"token": "t"}});
    current["joinConfiguration"]["timeouts"] =
        json!({"controlPlaneComponentHealthCheckSeconds": 240});
    current["clusterConfiguration"] = json!({"controlPlaneEndpoint": "10.0.0.10:6443"});
    current["joinConfiguration"]["nodeRegistration"]["imagePullPolicy"] = json!("IfNotPresent");
    current["format"] = json!("cloud-config");
    assert!(same(desired, current));
}

#[test]
fn dns_is_not_compared() {
    let config = |tag: &str, x: i64| json!({"clusterConfiguration": {"dns": {"imageTag": tag}, "apiServer": {"x": x}}});
    assert!(same(config("a", 1), config("b", 1)));
    assert!(!same(config("a", 1), config("a", 2)));
    assert!(same(json!({}), json!({"clusterConfiguration": {"dns": {"imageTag": "b"}}})));
}

#[test]
fn only_forms_that_decode_differently_differ() {
    let cases = [
        (json!({"files": []}), json!({}), true),
        (json!({"clusterConfiguration": {"apiServer": {"extraArgs": []}}}), json!({}), true),
        (json!({"files": [{"path": "/a", "owner": ""}]}), json!({"files": [{"path": "/a"}]}), true),
        (json!({"joinConfiguration": {"controlPlane": {}}}), json!({}), true),
        (join(json!({"imagePullPolicy": "IfNotPresent"})), json!({}), true),
        (join(json!({"imagePullPolicy": ""})), json!({}), true),
        (join(json!({"taints": []})), join(json!({})), false),
        (join(json!({"taints": null})), join(json!({})), true),
        (join(json!({"taints": []})), join(json!({"taints": []})), true),
        (
            join(json!({"taints": [{"key": "a", "value": ""}]})),
            join(json!({"taints": [{"key": "a"}]})),
            true,
        ),
        (
            join(json!({"kubeletExtraArgs": [{"name": "a", "value": ""}]})),
            join(json!({"kubeletExtraArgs": [{"name": "a"}]})),
            false,
        ),
        (join(json!({"imagePullSerial": false})), join(json!({})), false),
        (json!({"files": [{"path": "/a"}]}), json!({}), false),
        (json!({"preKubeadmCommands": ["a"]}), json!({"preKubeadmCommands": ["b"]}), false),
        (json!({"preKubeadmCommands": [""]}), json!({"preKubeadmCommands": []}), false),
    ];
    for (desired, current, want) in cases {
        assert_eq!(same(desired.clone(), current.clone()), want, "{desired} {current}");
        assert_eq!(same(current.clone(), desired.clone()), want, "{current} {desired}");
    }
}

#[test]
fn a_machine_that_initialised_the_cluster_may_match_either_form() {
    let plane = control_plane("v1.30.0", &any_config());
    let init = |name: &str| json!({"initConfiguration": {"nodeRegistration": {"name": name}}, "files": []});
    assert!(is_up_to_date(&init("i"), &plane));
    assert!(is_up_to_date(&init("j"), &plane));
    assert!(!is_up_to_date(&init("x"), &plane));
    assert!(is_up_to_date(&join(json!({"name": "j"})), &plane));
    assert!(!is_up_to_date(&join(json!({"name": "i"})), &plane));
}

#[test]
fn an_invalid_config_is_compared_as_an_empty_one() {
    assert!(same(json!({}), json!({})));
    assert!(same(Value::Null, json!({"files": []})));
    assert!(is_up_to_date(&Value::Null, &json!({})));
    assert_eq!(normalised(&json!("none"), None), json!({}));
}

#[test]
fn the_first_machine_initialises_and_the_others_join() {
    let plane = control_plane("v1.30.0", &any_config());
    let init = desired_spec(&plane, Entry::Init);
    assert!(init.get("joinConfiguration").is_none());
    assert_eq!(init["initConfiguration"]["nodeRegistration"]["name"], "i");
    let join = desired_spec(&plane, Entry::Join);
    assert!(join.get("initConfiguration").is_none());
    assert!(join["clusterConfiguration"].is_object());
}

#[test]
fn a_minor_version_can_change_the_bootstrap_config() {
    let gate = |version: &str| {
        let spec = desired_spec(&control_plane(version, &any_config()), Entry::Join);
        spec["clusterConfiguration"]["featureGates"][LOCAL_MODE].clone()
    };
    for (version, want) in [
        ("v1.30.9", Value::Null),
        ("v1.31.0", json!(true)),
        ("v1.35.0", json!(true)),
        ("v1.36.0-rc.1", Value::Null),
        ("v1.36.0", Value::Null),
        ("v2.31.0", Value::Null),
        ("latest", Value::Null),
    ] {
        assert_eq!(gate(version), want, "{version}");
    }
    let mut config = any_config();
    config["clusterConfiguration"]["featureGates"] = json!({LOCAL_MODE: false});
    let spec = desired_spec(&control_plane("v1.35.0", &config), Entry::Join);
    assert_eq!(spec["clusterConfiguration"]["featureGates"][LOCAL_MODE], false);
}

#[test]
fn the_version_dependent_gate_does_not_count_across_versions() {
    let normalised_for = |version: &str| {
        let plane = control_plane(version, &any_config());
        normalised(&desired_spec(&plane, Entry::Join), version.parse().ok().as_ref())
    };
    assert_eq!(normalised_for("v1.30.0"), normalised_for("v1.31.0"));
    assert_eq!(normalised_for("v1.35.0"), normalised_for("v1.36.0"));
}

#[test]
fn an_invalid_configuration_is_unchanged() {
    assert_eq!(desired_spec(&json!({"spec": {"version": "v1.36.0"}}), Entry::Join), json!({}));
    for configuration in [json!("none"), json!({"featureGates": [1]})] {
        let mut config = any_config();
        config["clusterConfiguration"] = configuration.clone();
        let spec = desired_spec(&control_plane("v1.35.0", &config), Entry::Join);
        assert_eq!(spec["clusterConfiguration"], configuration);
    }
}
