//! What belongs to a cluster as a whole: leases, CRDs, webhooks, classes, networks.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{
    NONE, UNSET, age_of, condition, few, list, number, plain as text_of, selector, size, words,
};
use super::{AGE, Col, Printer, plain};
use crate::object::text;

static LEASE: Printer = plain(&[Col("Holder", "string", 0), AGE], |object, now| {
    vec![words(object, &["spec", "holderIdentity"]), age_of(object, now)]
});

static CRD: Printer = plain(&[Col("Created At", "date", 0)], super::access::created_at);

static WEBHOOKS: Printer = plain(&[Col("Webhooks", "integer", 0), AGE], |object, now| {
    vec![json!(size(object, &["webhooks"])), age_of(object, now)]
});

static API_SERVICE: Printer =
    plain(&[Col("Service", "string", 0), Col("Available", "string", 0), AGE], api_service);

static PRIORITY: Printer = plain(
    &[
        Col("Value", "integer", 0),
        Col("Global-Default", "boolean", 0),
        AGE,
        Col("PreemptionPolicy", "string", 0),
    ],
    |object, now| {
        vec![
            json!(number(object, &["value"])),
            json!(object["globalDefault"] == true),
            age_of(object, now),
            words(object, &["preemptionPolicy"]),
        ]
    },
);

static STORAGE_CLASS: Printer = plain(
    &[
        Col("Provisioner", "string", 0),
        Col("ReclaimPolicy", "string", 0),
        Col("VolumeBindingMode", "string", 0),
        Col("AllowVolumeExpansion", "string", 0),
        AGE,
    ],
    |object, now| {
        vec![
            words(object, &["provisioner"]),
            words(object, &["reclaimPolicy"]),
            words(object, &["volumeBindingMode"]),
            json!((object["allowVolumeExpansion"] == true).to_string()),
            age_of(object, now),
        ]
    },
);

static RUNTIME_CLASS: Printer = plain(&[Col("Handler", "string", 0), AGE], |object, now| {
    vec![words(object, &["handler"]), age_of(object, now)]
});

static CSI_NODE: Printer = plain(&[Col("Drivers", "integer", 0), AGE], |object, now| {
    vec![json!(size(object, &["spec", "drivers"])), age_of(object, now)]
});

static ATTACHMENT: Printer = plain(
    &[
        Col("Attacher", "string", 0),
        Col("PV", "string", 0),
        Col("Node", "string", 0),
        Col("Attached", "boolean", 0),
        AGE,
    ],
    |object, now| {
        vec![
            words(object, &["spec", "attacher"]),
            words(object, &["spec", "source", "persistentVolumeName"]),
            words(object, &["spec", "nodeName"]),
            json!(object["status"]["attached"] == true),
            age_of(object, now),
        ]
    },
);

static INGRESS_CLASS: Printer =
    plain(&[Col("Controller", "string", 0), Col("Parameters", "string", 0), AGE], ingress_class);

static INGRESS: Printer = plain(
    &[
        Col("Class", "string", 0),
        Col("Hosts", "string", 0),
        Col("Address", "string", 0),
        Col("Ports", "string", 0),
        AGE,
    ],
    ingress,
);

static NETWORK_POLICY: Printer = plain(&[Col("Pod-Selector", "string", 0), AGE], |object, now| {
    vec![json!(selector(&object["spec"]["podSelector"])), age_of(object, now)]
});

static ENDPOINT_SLICE: Printer = plain(
    &[
        Col("AddressType", "string", 0),
        Col("Ports", "string", 0),
        Col("Endpoints", "string", 0),
        AGE,
    ],
    endpoint_slice,
);

pub(super) fn printer(kind: &str) -> Option<&'static Printer> {
    Some(match kind {
        "Lease" => &LEASE,
        "CustomResourceDefinition" => &CRD,
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => &WEBHOOKS,
        "APIService" => &API_SERVICE,
        "PriorityClass" => &PRIORITY,
        "StorageClass" => &STORAGE_CLASS,
        "RuntimeClass" => &RUNTIME_CLASS,
        "CSINode" => &CSI_NODE,
        "VolumeAttachment" => &ATTACHMENT,
        "IngressClass" => &INGRESS_CLASS,
        "Ingress" => &INGRESS,
        "NetworkPolicy" => &NETWORK_POLICY,
        "EndpointSlice" => &ENDPOINT_SLICE,
        _ => return None,
    })
}

fn api_service(object: &Value, now: Timestamp) -> Vec<Value> {
    let service = match text(object, &["spec", "service", "name"]) {
        "" => "Local".to_owned(),
        name => format!("{}/{name}", text(object, &["spec", "service", "namespace"])),
    };
    let available = condition(object, "Available").map_or_else(
        || "Unknown".to_owned(),
        |condition| match (text(condition, &["status"]), text(condition, &["reason"])) {
            ("True", _) | (_, "") => text(condition, &["status"]).to_owned(),
            (status, reason) => format!("{status} ({reason})"),
        },
    );
    vec![json!(service), json!(available), age_of(object, now)]
}

fn ingress_class(object: &Value, now: Timestamp) -> Vec<Value> {
    let parameters = &object["spec"]["parameters"];
    let shown = match text(parameters, &["kind"]) {
        "" => NONE.to_owned(),
        kind => {
            let group = text(parameters, &["apiGroup"]);
            let dot = if group.is_empty() { "" } else { "." };
            format!("{kind}{dot}{group}/{}", text(parameters, &["name"]))
        }
    };
    vec![words(object, &["spec", "controller"]), json!(shown), age_of(object, now)]
}

fn ingress(object: &Value, now: Timestamp) -> Vec<Value> {
    let hosts: Vec<String> = list(object, &["spec", "rules"])
        .iter()
        .map(|rule| text(rule, &["host"]).to_owned())
        .filter(|host| !host.is_empty())
        .collect();
    let addresses: Vec<&str> = list(object, &["status", "loadBalancer", "ingress"])
        .iter()
        .map(|entry| match text(entry, &["ip"]) {
            "" => text(entry, &["hostname"]),
            ip => ip,
        })
        .collect();
    let class = match text(object, &["spec", "ingressClassName"]) {
        "" => NONE,
        class => class,
    };
    let ports = if list(object, &["spec", "tls"]).is_empty() { "80" } else { "80, 443" };
    vec![
        json!(class),
        json!(few(&hosts, "*")),
        json!(addresses.join(",")),
        json!(ports),
        age_of(object, now),
    ]
}

fn endpoint_slice(object: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = list(object, &["ports"])
        .iter()
        .map(|port| match port["port"].as_i64() {
            Some(port) => port.to_string(),
            None => "*".to_owned(),
        })
        .collect();
    let addresses: Vec<String> = list(object, &["endpoints"])
        .iter()
        .flat_map(|endpoint| list(endpoint, &["addresses"]))
        .map(text_of)
        .collect();
    vec![
        words(object, &["addressType"]),
        json!(few(&ports, UNSET)),
        json!(few(&addresses, UNSET)),
        age_of(object, now),
    ]
}
