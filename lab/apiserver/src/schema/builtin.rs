//! How the lists and maps of built-in kinds merge: the exceptions to "lists are atomic, maps by
//! key".

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::{ANY, ListType, NAMED, Node, OBJECT_META};

/// The merge rule of one path.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// A list of objects, identified by these fields.
    Items(&'static [&'static str]),
    /// A list of scalars, each with its own owners.
    Set,
    /// A map with one owner for the whole map.
    Whole,
    /// A map from arbitrary keys to values (labels, data), as opposed to a struct.
    Keys,
    /// An `ObjectMeta`.
    Meta,
}

use Shape::{Items, Keys, Meta, Set, Whole};

type Table = &'static [(&'static str, Shape)];

const OBJECT_META_TABLE: Table = &[
    ("annotations", Keys),
    ("finalizers", Set),
    ("labels", Keys),
    ("ownerReferences", Items(&["uid"])),
];

const CONDITIONS: Table = &[("status.conditions", Items(&["type"]))];

const CONTAINER: Table = &[
    ("env", Items(&["name"])),
    ("env.valueFrom.configMapKeyRef", Whole),
    ("env.valueFrom.fieldRef", Whole),
    ("env.valueFrom.resourceFieldRef", Whole),
    ("env.valueFrom.secretKeyRef", Whole),
    ("ports", Items(&["containerPort", "protocol"])),
    ("resources.claims", Items(&["name"])),
    ("resources.limits", Keys),
    ("resources.requests", Keys),
    ("volumeDevices", Items(&["devicePath"])),
    ("volumeMounts", Items(&["mountPath"])),
];

const POD_SPEC: Table = &[
    ("containers", Items(&["name"])),
    ("ephemeralContainers", Items(&["name"])),
    ("hostAliases", Items(&["ip"])),
    ("imagePullSecrets", Items(&["name"])),
    ("initContainers", Items(&["name"])),
    ("nodeSelector", Whole),
    ("overhead", Keys),
    ("resourceClaims", Items(&["name"])),
    ("schedulingGates", Items(&["name"])),
    ("topologySpreadConstraints", Items(&["topologyKey", "whenUnsatisfiable"])),
    ("topologySpreadConstraints.labelSelector", Whole),
    ("volumes", Items(&["name"])),
];

const POD_STATUS: Table = &[("status.hostIPs", Items(&["ip"])), ("status.podIPs", Items(&["ip"]))];

const NODE: Table = &[
    ("spec.podCIDRs", Set),
    ("status.addresses", Items(&["type"])),
    ("status.allocatable", Keys),
    ("status.capacity", Keys),
];

const SERVICE: Table = &[("spec.ports", Items(&["port", "protocol"])), ("spec.selector", Whole)];

const SERVICE_ACCOUNT: Table = &[("secrets", Items(&["name"]))];

const DATA: Table = &[("binaryData", Keys), ("data", Keys), ("stringData", Keys)];

const SELECTOR: Table = &[("spec.selector", Whole)];

const VOLUME_CLAIM: Table = &[
    ("spec.resources.limits", Keys),
    ("spec.resources.requests", Keys),
    ("spec.selector", Whole),
    ("status.capacity", Keys),
];

const ROLE: Table = &[("roleRef", Whole)];

/// The node of a whole built-in object.
pub(super) fn root(group: &str, kind: &str) -> Node {
    let mut root = named();
    root.properties.insert("metadata".to_owned(), OBJECT_META.clone());
    add(&mut root, "", CONDITIONS);
    match (group, kind) {
        ("", "Pod") => {
            add_pod_spec(&mut root, "spec");
            add(&mut root, "", POD_STATUS);
        }
        ("", "Node") => add(&mut root, "", NODE),
        ("", "Service") => {
            add(&mut root, "", SERVICE);
            default_protocol(&mut root, "spec.ports");
        }
        ("", "ServiceAccount") => add(&mut root, "", SERVICE_ACCOUNT),
        ("", "ConfigMap" | "Secret") => add(&mut root, "", DATA),
        ("", "PersistentVolumeClaim") => add(&mut root, "", VOLUME_CLAIM),
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet") => {
            add(&mut root, "", SELECTOR);
            add_pod_template(&mut root, "spec.template");
        }
        ("policy", "PodDisruptionBudget") => add(&mut root, "", SELECTOR),
        ("rbac.authorization.k8s.io", _) => add(&mut root, "", ROLE),
        _ => {}
    }
    root
}

/// The node of `metadata`.
pub(super) fn object_meta() -> Node {
    let mut node = named();
    add(&mut node, "", OBJECT_META_TABLE);
    node
}

fn named() -> Node {
    Node::clone(&NAMED)
}

fn add_pod_template(root: &mut Node, path: &str) {
    add(root, path, &[("metadata", Meta)]);
    add_pod_spec(root, &format!("{path}.spec"));
}

fn add_pod_spec(root: &mut Node, path: &str) {
    add(root, path, POD_SPEC);
    for containers in ["containers", "ephemeralContainers", "initContainers"] {
        let path = format!("{path}.{containers}");
        add(root, &path, CONTAINER);
        default_protocol(root, &format!("{path}.ports"));
    }
}

/// Makes TCP the default protocol of a port: the protocol is part of its identity.
fn default_protocol(root: &mut Node, ports: &str) {
    at(root, ports, |list| {
        let mut item = named();
        let protocol = Node { default: Some(json!("TCP")), ..named() };
        item.properties.insert("protocol".to_owned(), Arc::new(protocol));
        list.items = Some(Arc::new(item));
    });
}

fn add(root: &mut Node, prefix: &str, table: Table) {
    for (path, shape) in table {
        let path = if prefix.is_empty() { (*path).to_owned() } else { format!("{prefix}.{path}") };
        at(root, &path, |node| set_shape(node, *shape));
    }
}

fn set_shape(node: &mut Node, shape: Shape) {
    match shape {
        Items(keys) => {
            node.list = ListType::Map(keys.iter().map(|&key| key.to_owned()).collect());
        }
        Set => node.list = ListType::Set,
        Whole => node.atomic = true,
        Keys => *node = Node { additional: Some(ANY.clone()), ..named() },
        Meta => *node = Node::clone(&OBJECT_META),
    }
}

/// Calls `change` with the node at a dotted path, created if missing; a list's name refers to its
/// items if the path continues.
fn at(root: &mut Node, path: &str, change: impl FnOnce(&mut Node)) {
    let mut node = root;
    for segment in path.split('.') {
        if node.list != ListType::Atomic {
            node = Arc::make_mut(node.items.get_or_insert_with(|| NAMED.clone()));
        }
        let properties: &mut BTreeMap<_, _> = &mut node.properties;
        node = Arc::make_mut(properties.entry(segment.to_owned()).or_insert_with(|| NAMED.clone()));
    }
    change(node);
}
