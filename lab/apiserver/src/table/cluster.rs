//! Tables of Leases, CRDs, volume attachments, network policies.

use serde_json::json;

use super::cells::{age_of, selector, words};
use super::{AGE, Col, Printer, plain};

static LEASE: Printer = plain(&[Col("Holder", "string", 0), AGE], |object, now| {
    vec![words(object, &["spec", "holderIdentity"]), age_of(object, now)]
});

static CRD: Printer = plain(&[Col("Created At", "date", 0)], super::access::created_at);

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

static NETWORK_POLICY: Printer = plain(&[Col("Pod-Selector", "string", 0), AGE], |object, now| {
    vec![json!(selector(&object["spec"]["podSelector"])), age_of(object, now)]
});

pub(super) fn printer(kind: &str) -> Option<&'static Printer> {
    Some(match kind {
        "Lease" => &LEASE,
        "CustomResourceDefinition" => &CRD,
        "VolumeAttachment" => &ATTACHMENT,
        "NetworkPolicy" => &NETWORK_POLICY,
        _ => return None,
    })
}
