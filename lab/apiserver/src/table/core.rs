//! Tables of the other core kinds: namespaces, services, configuration, events, volume claims.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age::{age, since};
use super::cells::{
    NONE, UNSET, age_of, labels, list, number, plain as text_of, size, text_or_placeholder, words,
};
use super::{AGE, Col, Printer, plain};
use crate::object::{member, meta_text, text};

static NAMESPACE: Printer = plain(&[Col("Status", "string", 0), AGE], |object, now| {
    vec![words(object, &["status", "phase"]), age_of(object, now)]
});

static SECRET: Printer =
    plain(&[Col("Type", "string", 0), Col("Data", "integer", 0), AGE], |object, now| {
        vec![words(object, &["type"]), json!(size(object, &["data"])), age_of(object, now)]
    });

static CONFIG_MAP: Printer = plain(&[Col("Data", "integer", 0), AGE], |object, now| {
    vec![json!(size(object, &["data"]) + size(object, &["binaryData"])), age_of(object, now)]
});

static SERVICE_ACCOUNT: Printer = plain(&[Col("Secrets", "integer", 0), AGE], |object, now| {
    vec![json!(size(object, &["secrets"])), age_of(object, now)]
});

static SERVICE: Printer = plain(
    &[
        Col("Type", "string", 0),
        Col("Cluster-IP", "string", 0),
        Col("External-IP", "string", 0),
        Col("Port(s)", "string", 0),
        AGE,
        Col("Selector", "string", 1),
    ],
    service,
);

static EVENT: Printer = Printer {
    columns: &[
        Col("Last Seen", "string", 0),
        Col("Type", "string", 0),
        Col("Reason", "string", 0),
        Col("Object", "string", 0),
        Col("Subobject", "string", 1),
        Col("Source", "string", 1),
        Col("Message", "string", 0),
        Col("First Seen", "string", 1),
        Col("Count", "string", 1),
        Col("Name", "string", 1),
    ],
    cells: event,
    named: false,
};

static CLAIM: Printer = plain(
    &[
        Col("Status", "string", 0),
        Col("Volume", "string", 0),
        Col("Capacity", "string", 0),
        Col("Access Modes", "string", 0),
        Col("StorageClass", "string", 0),
        Col("VolumeAttributesClass", "string", 0),
        AGE,
        Col("VolumeMode", "string", 1),
    ],
    claim,
);

pub(super) fn printer(kind: &str) -> Option<&'static Printer> {
    Some(match kind {
        "Namespace" => &NAMESPACE,
        "Secret" => &SECRET,
        "ConfigMap" => &CONFIG_MAP,
        "ServiceAccount" => &SERVICE_ACCOUNT,
        "Service" => &SERVICE,
        "Event" => &EVENT,
        "PersistentVolumeClaim" => &CLAIM,
        _ => return None,
    })
}

fn service(service: &Value, now: Timestamp) -> Vec<Value> {
    let kind = match text(service, &["spec", "type"]) {
        "" => "ClusterIP",
        kind => kind,
    };
    let external: Vec<String> = match kind {
        "ExternalName" => vec![text(service, &["spec", "externalName"]).to_owned()],
        "LoadBalancer" => list(service, &["status", "loadBalancer", "ingress"])
            .iter()
            .map(|ingress| match text(ingress, &["ip"]) {
                "" => text(ingress, &["hostname"]).to_owned(),
                ip => ip.to_owned(),
            })
            .collect(),
        _ => list(service, &["spec", "externalIPs"]).iter().map(text_of).collect(),
    };
    let external = match (kind, external.is_empty()) {
        (_, false) => external.join(","),
        ("LoadBalancer", true) => "<pending>".to_owned(),
        _ => NONE.to_owned(),
    };
    let ports: Vec<String> = list(service, &["spec", "ports"])
        .iter()
        .map(|port| {
            let protocol = match text(port, &["protocol"]) {
                "" => "TCP",
                protocol => protocol,
            };
            match number(port, &["nodePort"]) {
                0 => format!("{}/{protocol}", number(port, &["port"])),
                node => format!("{}:{node}/{protocol}", number(port, &["port"])),
            }
        })
        .collect();
    let ports = if ports.is_empty() { NONE.to_owned() } else { ports.join(",") };
    vec![
        json!(kind),
        text_or_placeholder(service, &["spec", "clusterIP"]),
        json!(external),
        json!(ports),
        age_of(service, now),
        json!(labels(&service["spec"]["selector"])),
    ]
}

/// Cells of an event; its last timestamp comes from whichever field is set.
fn event(event: &Value, now: Timestamp) -> Vec<Value> {
    let time = |paths: &[&[&str]]| {
        paths
            .iter()
            .filter_map(|path| member(event, path))
            .find_map(|time| since(time, now))
            .unwrap_or_else(|| age(&Value::Null, now))
    };
    let last = time(&[
        &["series", "lastObservedTime"],
        &["lastTimestamp"],
        &["deprecatedLastTimestamp"],
        &["eventTime"],
        &["firstTimestamp"],
        &["metadata", "creationTimestamp"],
    ]);
    let first = time(&[
        &["firstTimestamp"],
        &["deprecatedFirstTimestamp"],
        &["eventTime"],
        &["metadata", "creationTimestamp"],
    ]);
    let about = ["involvedObject", "regarding"]
        .into_iter()
        .find_map(|key| event.get(key))
        .unwrap_or(&Value::Null);
    let object = match (text(about, &["kind"]), text(about, &["name"])) {
        (kind, "") => kind.to_ascii_lowercase(),
        (kind, name) => format!("{}/{name}", kind.to_ascii_lowercase()),
    };
    let component = match text(event, &["source", "component"]) {
        "" => text(event, &["reportingComponent"]),
        component => component,
    };
    let component = match component {
        "" => text(event, &["reportingController"]),
        component => component,
    };
    let source = match text(event, &["source", "host"]) {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    };
    let count = [&["series", "count"] as &[&str], &["count"], &["deprecatedCount"]]
        .into_iter()
        .find_map(|path| member(event, path)?.as_i64())
        .unwrap_or(1);
    let message = match text(event, &["message"]) {
        "" => text(event, &["note"]),
        message => message,
    };
    vec![
        json!(last),
        words(event, &["type"]),
        words(event, &["reason"]),
        json!(object),
        words(about, &["fieldPath"]),
        json!(source),
        json!(message.trim()),
        json!(first),
        json!(count.to_string()),
        json!(meta_text(event, "name")),
    ]
}

fn modes(object: &Value, path: &[&str]) -> String {
    let short = |mode: &Value| {
        match mode.as_str().unwrap_or_default() {
            "ReadWriteOnce" => "RWO",
            "ReadOnlyMany" => "ROX",
            "ReadWriteMany" => "RWX",
            "ReadWriteOncePod" => "RWOP",
            other => other,
        }
        .to_owned()
    };
    let all: Vec<String> = list(object, path).iter().map(short).collect();
    all.join(",")
}

fn or_unset(object: &Value, path: &[&str]) -> Value {
    json!(match text(object, path) {
        "" => UNSET,
        text => text,
    })
}

fn phase(object: &Value) -> &str {
    match meta_text(object, "deletionTimestamp") {
        "" => text(object, &["status", "phase"]),
        _ => "Terminating",
    }
}

fn claim(claim: &Value, now: Timestamp) -> Vec<Value> {
    let bound = !text(claim, &["spec", "volumeName"]).is_empty();
    let capacity =
        if bound { text_of(&claim["status"]["capacity"]["storage"]) } else { String::new() };
    let access = if bound { modes(claim, &["status", "accessModes"]) } else { String::new() };
    vec![
        json!(phase(claim)),
        words(claim, &["spec", "volumeName"]),
        json!(capacity),
        json!(access),
        words(claim, &["spec", "storageClassName"]),
        or_unset(claim, &["spec", "volumeAttributesClassName"]),
        age_of(claim, now),
        or_unset(claim, &["spec", "volumeMode"]),
    ]
}
