//! Admission webhooks that nothing answers while a node is drained.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
        ValidatingWebhookConfiguration, WebhookClientConfig,
    },
    core::v1::Pod,
};
use kube::ResourceExt as _;
use refit_kinds::refit::Disruption;

use super::Warning;

/// Requests that a drain, a kubelet or a recreated pod depends on: group, resource, operation.
const NEEDED: [(&str, &str, &str); 6] = [
    ("", "pods", "CREATE"),
    ("", "pods/eviction", "CREATE"),
    ("", "pods/status", "UPDATE"),
    ("", "nodes", "UPDATE"),
    ("", "nodes/status", "UPDATE"),
    ("coordination.k8s.io", "leases", "UPDATE"),
];

/// A webhook whose failure makes the API server refuse requests that an update depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    configuration: String,
    name: String,
    namespace: String,
    service: String,
    refuses: Vec<&'static str>,
    selector: BTreeMap<String, String>,
    /// Its Ready pods: node, name, and whether a drain leaves them there.
    pods: Vec<(String, String, bool)>,
}

impl Webhook {
    /// The webhooks of a ValidatingWebhookConfiguration that matter.
    pub fn of_validating(configuration: &ValidatingWebhookConfiguration) -> Vec<Self> {
        let name = format!("ValidatingWebhookConfiguration/{}", configuration.name_any());
        let all = configuration.webhooks.iter().flatten();
        all.filter_map(|one| {
            let (client, rules) = (&one.client_config, one.rules.as_deref());
            Self::of(&name, &one.name, client, one.failure_policy.as_deref(), rules)
        })
        .collect()
    }

    /// The webhooks of a MutatingWebhookConfiguration that matter.
    pub fn of_mutating(configuration: &MutatingWebhookConfiguration) -> Vec<Self> {
        let name = format!("MutatingWebhookConfiguration/{}", configuration.name_any());
        let all = configuration.webhooks.iter().flatten();
        all.filter_map(|one| {
            let (client, rules) = (&one.client_config, one.rules.as_deref());
            Self::of(&name, &one.name, client, one.failure_policy.as_deref(), rules)
        })
        .collect()
    }

    fn of(
        configuration: &str,
        name: &str,
        client: &WebhookClientConfig,
        failure_policy: Option<&str>,
        rules: Option<&[RuleWithOperations]>,
    ) -> Option<Self> {
        let ServiceReference { namespace, name: service, .. } = client.service.clone()?;
        let is_covered = |needed: &&(&'static str, &'static str, &'static str)| {
            rules.into_iter().flatten().any(|rule| covers(rule, **needed))
        };
        let refuses: Vec<&str> =
            NEEDED.iter().filter(is_covered).map(|(_, resource, _)| *resource).collect();
        let fails = failure_policy.is_none_or(|policy| policy == "Fail");
        (fails && !refuses.is_empty()).then(|| Self {
            configuration: configuration.to_owned(),
            name: name.to_owned(),
            namespace,
            service,
            refuses,
            selector: BTreeMap::new(),
            pods: Vec::new(),
        })
    }

    /// Namespace and name of its Service.
    pub fn service(&self) -> (&str, &str) {
        (&self.namespace, &self.service)
    }

    /// Sets the selector of its Service.
    pub fn select(&mut self, selector: BTreeMap<String, String>) {
        self.selector = selector;
    }

    /// Adds a pod if it answers the webhook; `may_leave` if a drain may evict it.
    pub(crate) fn add(&mut self, pod: &Pod, may_leave: bool) {
        let is_own = pod.metadata.namespace.as_deref() == Some(&*self.namespace)
            && !self.selector.is_empty()
            && self.selector.iter().all(|(key, value)| pod.labels().get(key) == Some(value));
        if !is_own || pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let is_ready =
            conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        if let Some(node) = node.filter(|_| is_ready) {
            self.pods.push((node, pod.name_any(), !may_leave));
        }
    }

    /// The warning, if all its Ready pods are on one of the nodes, and leave it.
    fn warning(&self, nodes: &BTreeSet<&str>, disruption: Disruption) -> Option<Warning> {
        let (node, first, _) = self.pods.first()?;
        let is_alone = self.pods.iter().all(|(other, ..)| other == node);
        let any_stays = self.pods.iter().any(|(.., stays)| *stays);
        let goes = disruption == Disruption::Reboot || !any_stays;
        if !is_alone || !goes || !nodes.contains(node.as_str()) {
            return None;
        }
        let Self { configuration, name, namespace, service, refuses, pods, .. } = self;
        let pods = match pods.len() {
            1 => format!("the only Ready pod of Service {namespace}/{service} ({first}) is"),
            count => format!("all {count} Ready pods of Service {namespace}/{service} are"),
        };
        Some(Warning {
            reason: "WebhookUnavailable",
            object: configuration.clone(),
            message: format!(
                "{pods} on Node {node}: while that node is drained, webhook {name} of {configuration} does not answer, \
                 and the API server refuses requests for {}, unless its selectors exempt them",
                refuses.join(", ")
            ),
            remedy: format!(
                "run more pods of it on other nodes, or exempt Namespace {namespace} and kube-system in its \
                 namespaceSelector, or set its failurePolicy to Ignore meanwhile"
            ),
        })
    }
}

/// Whether a rule covers a request.
fn covers(rule: &RuleWithOperations, (group, resource, operation): (&str, &str, &str)) -> bool {
    let any = |list: &Option<Vec<String>>, matches: &dyn Fn(&str) -> bool| {
        list.iter().flatten().any(|one| one == "*" || matches(one))
    };
    let is_resource = |pattern: &str| match (pattern.split_once('/'), resource.split_once('/')) {
        (Some((of, sub)), Some((own, own_sub))) => {
            (of == "*" || of == own) && (sub == "*" || sub == own_sub)
        }
        (Some((of, "*")), None) => of == "*" || of == resource,
        (Some(_), None) | (None, Some(_)) => false,
        (None, None) => pattern == resource,
    };
    // Without a slash, `*` means all resources and no subresource.
    let is_any = |list: &Option<Vec<String>>| list.iter().flatten().any(|one| one == "*");
    let named = rule.resources.iter().flatten().any(|one| is_resource(one))
        || (is_any(&rule.resources) && !resource.contains('/'));
    named
        && any(&rule.api_groups, &|one| one == group)
        && any(&rule.operations, &|one| one == operation)
}

/// The warnings for the nodes of a plan.
pub(super) fn warnings(
    webhooks: &[Webhook],
    nodes: &BTreeSet<&str>,
    disruption: Disruption,
) -> Vec<Warning> {
    webhooks.iter().filter_map(|webhook| webhook.warning(nodes, disruption)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn webhooks(policy: Option<&str>, client: &Value, rule: &Value) -> Vec<Webhook> {
        let configuration = json!({"metadata": {"name": "w"}, "webhooks": [{
            "name": "w.example.com", "clientConfig": client, "failurePolicy": policy,
            "rules": [rule], "admissionReviewVersions": ["v1"], "sideEffects": "None",
        }]});
        let validating = serde_json::from_value(configuration.clone()).unwrap();
        let mutating = serde_json::from_value(configuration).unwrap();
        let (validating, mutating) =
            (Webhook::of_validating(&validating), Webhook::of_mutating(&mutating));
        assert_eq!(validating.len(), mutating.len());
        validating
    }

    fn service() -> Value {
        json!({"service": {"namespace": "sys", "name": "w"}})
    }

    fn rule(groups: &str, resources: &str, operations: &str) -> Value {
        json!({"apiGroups": [groups], "apiVersions": ["*"], "resources": [resources],
            "operations": [operations]})
    }

    #[test]
    fn webhooks_that_an_update_depends_on_are_kept() {
        for (policy, client, rule, refuses) in [
            (Some("Fail"), service(), rule("", "pods", "CREATE"), vec!["pods"]),
            (None, service(), rule("", "pods", "*"), vec!["pods"]),
            (Some("Ignore"), service(), rule("", "pods", "CREATE"), vec![]),
            (None, json!({"url": "https://x"}), rule("", "pods", "CREATE"), vec![]),
            (None, service(), rule("", "pods", "DELETE"), vec![]),
            (None, service(), rule("apps", "*", "*"), vec![]),
            (None, service(), rule("", "nodes/status", "UPDATE"), vec!["nodes/status"]),
            (None, service(), rule("", "pods/*", "CREATE"), vec!["pods", "pods/eviction"]),
            (None, service(), rule("*", "*", "*"), vec!["pods", "nodes", "leases"]),
            (
                None,
                service(),
                rule("*", "*/*", "*"),
                vec!["pods", "pods/eviction", "pods/status", "nodes", "nodes/status", "leases"],
            ),
        ] {
            let found = webhooks(policy, &client, &rule);
            let found = found.first().map(|one| one.refuses.clone()).unwrap_or_default();
            assert_eq!(found, refuses, "{rule}");
        }
    }

    #[test]
    fn a_webhook_whose_pods_all_leave_one_node_is_a_warning() {
        let pod = |name: &str, node: &str, ready: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "sys", "labels": {"app": "w"}},
                "spec": {"nodeName": node, "containers": []},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }))
            .unwrap()
        };
        let warns = |pods: &[(Pod, bool)], disruption| {
            let mut all = webhooks(None, &service(), &rule("", "pods", "CREATE"));
            all[0].select([("app".to_owned(), "w".to_owned())].into());
            for (pod, may_leave) in pods {
                all[0].add(pod, *may_leave);
            }
            warnings(&all, &["a", "b"].into(), disruption)
        };
        let (drain, reboot) = (Disruption::Drain, Disruption::Reboot);
        let one = || (pod("w-1", "a", "True"), true);
        let found = warns(&[one()], drain);
        assert!(
            found[0].message.contains("the only Ready pod of Service sys/w (w-1)"),
            "{found:?}"
        );
        assert_eq!(warns(&[one(), (pod("w-2", "a", "True"), true)], drain).len(), 1);
        assert_eq!(warns(&[one(), (pod("w-2", "b", "False"), true)], drain).len(), 1);
        assert!(warns(&[one(), (pod("w-2", "b", "True"), true)], drain).is_empty());
        assert!(warns(&[(pod("w-1", "c", "True"), true)], drain).is_empty());
        // A pod of a DaemonSet stays in a drain.
        assert!(warns(&[(pod("w-1", "a", "True"), false)], drain).is_empty());
        assert_eq!(warns(&[(pod("w-1", "a", "True"), false)], reboot).len(), 1);
        assert!(warns(&[], drain).is_empty());
    }
}
