//! Tables of Deployments, ReplicaSets, StatefulSets and DaemonSets.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{age_of, containers, labels, number, selector};
use super::{AGE, Col, Printer, plain};

const CONTAINERS: Col = Col("Containers", "string", 1);
const IMAGES: Col = Col("Images", "string", 1);
const SELECTOR: Col = Col("Selector", "string", 1);

static DEPLOYMENT: Printer = plain(
    &[
        Col("Ready", "string", 0),
        Col("Up-to-date", "integer", 0),
        Col("Available", "integer", 0),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    deployment,
);

static REPLICA_SET: Printer = plain(
    &[
        Col("Desired", "integer", 0),
        Col("Current", "integer", 0),
        Col("Ready", "integer", 0),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    replica_set,
);

static DAEMON_SET: Printer = plain(
    &[
        Col("Desired", "integer", 0),
        Col("Current", "integer", 0),
        Col("Ready", "integer", 0),
        Col("Up-to-date", "integer", 0),
        Col("Available", "integer", 0),
        Col("Node Selector", "string", 0),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    daemon_set,
);

static STATEFUL_SET: Printer =
    plain(&[Col("Ready", "string", 0), AGE, CONTAINERS, IMAGES], stateful_set);

pub(super) fn printer(kind: &str) -> Option<&'static Printer> {
    Some(match kind {
        "Deployment" => &DEPLOYMENT,
        "ReplicaSet" => &REPLICA_SET,
        "DaemonSet" => &DAEMON_SET,
        "StatefulSet" => &STATEFUL_SET,
        _ => return None,
    })
}

fn deployment(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(&object["spec"]["template"]);
    let ready = number(object, &["status", "readyReplicas"]);
    vec![
        json!(format!("{ready}/{}", number(object, &["spec", "replicas"]))),
        json!(number(object, &["status", "updatedReplicas"])),
        json!(number(object, &["status", "availableReplicas"])),
        age_of(object, now),
        names,
        images,
        json!(selector(&object["spec"]["selector"])),
    ]
}

fn replica_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(&object["spec"]["template"]);
    vec![
        json!(number(object, &["spec", "replicas"])),
        json!(number(object, &["status", "replicas"])),
        json!(number(object, &["status", "readyReplicas"])),
        age_of(object, now),
        names,
        images,
        json!(selector(&object["spec"]["selector"])),
    ]
}

fn daemon_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(&object["spec"]["template"]);
    let status = |key: &str| json!(number(object, &["status", key]));
    vec![
        status("desiredNumberScheduled"),
        status("currentNumberScheduled"),
        status("numberReady"),
        status("updatedNumberScheduled"),
        status("numberAvailable"),
        json!(labels(&object["spec"]["template"]["spec"]["nodeSelector"])),
        age_of(object, now),
        names,
        images,
        json!(selector(&object["spec"]["selector"])),
    ]
}

fn stateful_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(&object["spec"]["template"]);
    let ready = number(object, &["status", "readyReplicas"]);
    vec![
        json!(format!("{ready}/{}", number(object, &["spec", "replicas"]))),
        age_of(object, now),
        names,
        images,
    ]
}
