//! Keeps reports within the limits of their schema: a report that the API refuses would be silence.

use refit_kinds::{
    clip,
    refit::{
        HostFacts, HostPlanStatus, HostStepStatus, MAX_FACT, MAX_LEFT_BEHIND, MAX_MESSAGE,
        MAX_NAME, MAX_REPORTED_STEPS,
    },
};

/// The report, with long texts clipped and long lists cut off.
pub(crate) fn bounded(mut status: HostPlanStatus) -> HostPlanStatus {
    status.steps.truncate(MAX_REPORTED_STEPS);
    for HostStepStatus { id, reason, message, .. } in &mut status.steps {
        clip_to(id, MAX_NAME);
        clip_to(reason, MAX_NAME);
        clip_to(message, MAX_MESSAGE);
    }
    status.left_behind.truncate(MAX_LEFT_BEHIND);
    for sentence in &mut status.left_behind {
        clip_to(sentence, MAX_FACT);
    }
    let HostFacts { boot_id, os_image, packages, static_pods, unread, .. } = &mut status.facts;
    clip_to(boot_id, MAX_NAME);
    clip_to(os_image, MAX_FACT);
    for text in packages.values_mut().chain(static_pods.values_mut()) {
        clip_to(text, MAX_FACT);
    }
    for fact in unread {
        clip_to(&mut fact.message, MAX_FACT);
    }
    status
}

fn clip_to(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        *text = clip(text, bytes);
    }
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt as _;
    use refit_kinds::refit::{HostPlan, UnreadFact};
    use serde_json::Value;

    use super::*;

    fn long() -> String {
        "é".repeat(10_000)
    }

    /// A report as long as a host can make it.
    fn longest() -> HostPlanStatus {
        let map = |names: [&str; 2]| names.map(|name| (name.to_owned(), long())).into();
        let step = |number: usize| HostStepStatus {
            id: format!("{number}"),
            reason: long(),
            message: long(),
            ..HostStepStatus::default()
        };
        let unread = |fact: &str| UnreadFact { fact: fact.to_owned(), message: long() };
        HostPlanStatus {
            steps: (0..200).map(step).collect(),
            left_behind: vec![long(); 100],
            facts: HostFacts {
                boot_id: long(),
                os_image: long(),
                packages: map(["kubeadm", "kubelet"]),
                static_pods: map(["etcd", "kube-apiserver"]),
                unread: ["bootID", "packages"].map(unread).into(),
                ..HostFacts::default()
            },
            ..HostPlanStatus::default()
        }
    }

    /// Where a value exceeds the limits of its schema.
    fn excesses(path: &str, schema: &Value, value: &Value) -> Vec<String> {
        let most = |limit: &str| schema[limit].as_u64().unwrap_or(u64::MAX);
        let count = |size: usize| u64::try_from(size).unwrap();
        let (size, limit, parts): (usize, _, Vec<_>) = match value {
            Value::String(text) => (text.chars().count(), most("maxLength"), Vec::new()),
            Value::Array(list) => {
                let parts = list.iter().map(|item| ("items", &schema["items"], item));
                (list.len(), most("maxItems"), parts.collect())
            }
            Value::Object(map) => {
                let schema_of = |name: &str| match &schema["properties"][name] {
                    Value::Null => &schema["additionalProperties"],
                    known => known,
                };
                let parts = map.iter().map(|(name, value)| (&**name, schema_of(name), value));
                (map.len(), most("maxProperties"), parts.collect())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => return Vec::new(),
        };
        let excess = (count(size) > limit).then(|| format!("{path}: {size}"));
        let inside = parts
            .into_iter()
            .flat_map(|(name, schema, value)| excesses(&format!("{path}.{name}"), schema, value));
        excess.into_iter().chain(inside).collect()
    }

    #[test]
    fn a_report_keeps_to_its_schema_whatever_the_host_writes() {
        let crd = serde_json::to_value(HostPlan::crd()).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        let excesses = |status: &HostPlanStatus| {
            excesses("status", &schema["status"], &serde_json::to_value(status).unwrap())
        };
        assert!(excesses(&longest()).len() > 400);
        assert_eq!(excesses(&bounded(longest())), Vec::<String>::new());
    }

    #[test]
    fn a_usual_report_stays_as_it_is() {
        let mut status = HostPlanStatus::default();
        let message = format!("preflight failed: {}", "x".repeat(4000));
        status.steps.push(HostStepStatus { message, ..HostStepStatus::default() });
        assert_eq!(bounded(status.clone()), status);
    }
}
