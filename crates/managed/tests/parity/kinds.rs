//! Rows of the kind UpgradeConfig.

use kube::core::crd::CustomResourceExt as _;
use refit_openshift::upgrade_config::UpgradeConfig;
use serde_json::{Value, json};

use crate::Row;

pub(crate) const ROWS: &[Row] = &[Row {
    number: 1,
    name: "the CRD has the original's names, columns, required fields, enums and minimum",
    test: the_crd_is_the_original_one,
}];

fn the_crd_is_the_original_one() {
    let crd = json!(UpgradeConfig::crd());
    let names = json!({
        "kind": "UpgradeConfig", "plural": "upgradeconfigs", "singular": "upgradeconfig",
        "shortNames": ["upgrade"],
    });
    assert_eq!(crd["metadata"]["name"], "upgradeconfigs.upgrade.managed.openshift.io");
    assert_eq!((&crd["spec"]["names"], &crd["spec"]["scope"]), (&names, &json!("Namespaced")));
    let version = &crd["spec"]["versions"][0];
    assert_eq!(
        (&version["name"], &version["subresources"]),
        (&json!("v1alpha1"), &json!({"status": {}}))
    );
    let columns: Vec<(&Value, &Value)> = version["additionalPrinterColumns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| (&column["name"], &column["jsonPath"]))
        .collect();
    let wanted = [
        ("desired_version", ".spec.desired.version"),
        ("phase", ".status.history[0].phase"),
        ("stage", ".status.history[0].conditions[0].type"),
        ("status", ".status.history[0].conditions[0].status"),
        ("reason", ".status.history[0].conditions[0].reason"),
        ("message", ".status.history[0].conditions[0].message"),
    ];
    let wanted = wanted.map(|(name, path)| (json!(name), json!(path)));
    assert_eq!(columns, wanted.iter().map(|(name, path)| (name, path)).collect::<Vec<_>>());
    let schema = &version["schema"]["openAPIV3Schema"]["properties"];
    let spec = &schema["spec"];
    let mut required: Vec<&str> =
        spec["required"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    required.sort_unstable();
    assert_eq!(required, ["PDBForceDrainTimeout", "desired", "type", "upgradeAt"]);
    let timeout = &spec["properties"]["PDBForceDrainTimeout"];
    assert_eq!((&timeout["minimum"], &timeout["format"]), (&json!(0.0), &json!("int32")));
    assert_eq!(spec["properties"]["type"]["enum"], json!(["OSD", "ARO"]));
    let history = &schema["status"]["properties"]["history"]["items"];
    assert_eq!(history["required"], json!(["phase"]));
    let phases = json!(["New", "Pending", "Upgrading", "Upgraded", "Failed"]);
    assert_eq!(history["properties"]["phase"]["enum"], phases);
    let condition = &history["properties"]["conditions"]["items"];
    assert_eq!(condition["required"], json!(["status", "type"]));
    for (of, names) in [
        (&spec["properties"]["desired"], &["channel", "image", "version"][..]),
        (condition, &["completeTime", "lastProbeTime", "lastTransitionTime", "startTime"]),
        (history, &["completeTime", "startTime", "workerCompleteTime", "workerStartTime"]),
    ] {
        for name in names {
            let property = &of["properties"][*name];
            assert_eq!(property["type"], "string", "{name} is optional text: {property}");
        }
    }
}
