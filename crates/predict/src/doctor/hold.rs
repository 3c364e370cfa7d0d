//! Whether the API server refuses what would replace machines, as the labels of namespaces ask it to.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use refit_cluster_api::rollout::{Strategy, predict};
use refit_core::change::{
    OnUncovered, PolicyDefaults,
    asked::{holds_replacements, opted_in},
    policy,
};
use refit_kinds::{json::annotations, keys, refit::REPLACEMENT_HOLD};
use serde_json::Value;

use super::{Facts, Findings, Namespace};
use crate::reach::{Read, Shape};

const NAMESPACES: &str = "Namespaces";
/// Names of the ValidatingAdmissionPolicies that hold replacements.
const POLICIES: [&str; 2] = ["refit-replacement-holds", "refit-replacement-holds-machine-sets"];
/// From this number of owners on, the ReplacementHold of a namespace may come to exceed what etcd takes for one object,
/// 1.5 MiB: an entry has about 90 bytes, and 142 with a name of 63 characters.
const MANY_OWNERS: usize = 10_000;

/// Whether a MachineDeployment replaces its only machine by means of a second one, without having declared that.
pub fn is_replaced_by_surge(
    deployment: &Value,
    cluster: Option<&Value>,
    on_uncovered: OnUncovered,
) -> bool {
    let Shape::Deployment { replicas: 1, strategy: strategy @ Strategy::RollingUpdate { .. } } =
        Shape::of(deployment)
    else {
        return false;
    };
    let default = PolicyDefaults { on_uncovered, ..PolicyDefaults::default() };
    let of_cluster = cluster.map(annotations).unwrap_or_default();
    let policy = policy(&annotations(deployment), &of_cluster, default);
    predict::machine_deployment(1, &strategy).kept == 0
        && !policy.disabled
        && policy.on_uncovered == OnUncovered::Preserve
}

pub(super) fn check(facts: &Facts, found: &mut Findings) {
    let label = format!("{}={}", keys::HOLD_REPLACEMENTS, keys::OPTED_IN);
    // Those that cannot be read have a separate check.
    let Read::Known(namespaces) = &facts.namespaces else {
        return found.unknown(NAMESPACES, "they are unknown");
    };
    let held: Vec<&Namespace> = namespaces.iter().filter(|one| is_held(one)).collect();
    if held.is_empty() && !namespaces.is_empty() {
        let message = format!(
            "no namespace with Clusters has the label {label}: Cluster API replaces some machines \
             without calling Refit"
        );
        let names: Vec<&str> = namespaces.iter().map(|one| one.name.as_str()).collect();
        let remedy = format!("kubectl label namespace {} {label}", names.join(" "));
        return found.warn(NAMESPACES, message, &remedy);
    }
    if !held.is_empty() {
        policies(facts, found);
    }
    for namespace in &held {
        let object = format!("Namespace/{}", namespace.name);
        if matches!(&namespace.labels, Read::Known(labels) if !opted_in(labels)) {
            let message = format!(
                "it has the label {label}, but lacks {}={}: its machines are neither updated in \
                 place nor replaced",
                keys::IN_PLACE,
                keys::OPTED_IN
            );
            found.warn(&object, message, "set the latter, or remove the former");
        }
        callers(facts, &namespace.name, found);
        size(facts, &namespace.name, found);
        surges(facts, &namespace.name, found);
    }
    let count = namespaces.len();
    let message = format!("replacements are held in {} of {count} with Clusters", held.len());
    found.or_ok(NAMESPACES, message);
}

fn is_held(namespace: &Namespace) -> bool {
    matches!(&namespace.labels, Read::Known(labels) if holds_replacements(labels))
}

/// What is missing of the ValidatingAdmissionPolicies that hold replacements, and of their bindings.
pub fn missing_policies(
    policies: &[ValidatingAdmissionPolicy],
    bindings: &[ValidatingAdmissionPolicyBinding],
) -> Vec<String> {
    let denies = |binding: &ValidatingAdmissionPolicyBinding, policy: &str| {
        binding.spec.as_ref().is_some_and(|spec| {
            let denies = spec.validation_actions.iter().flatten().any(|action| action == "Deny");
            spec.policy_name.as_deref() == Some(policy) && spec.param_ref.is_some() && denies
        })
    };
    let mut missing = Vec::new();
    for policy in POLICIES {
        if !policies.iter().any(|one| one.metadata.name.as_deref() == Some(policy)) {
            missing.push(format!("ValidatingAdmissionPolicy/{policy}"));
        }
        if !bindings.iter().any(|binding| denies(binding, policy)) {
            missing.push(format!("ValidatingAdmissionPolicyBinding of {policy}"));
        }
    }
    missing
}

fn policies(facts: &Facts, found: &mut Findings) {
    match &facts.missing_hold_policies {
        Read::Unknown(why) => found.unknown("ValidatingAdmissionPolicies", why),
        Read::Known(missing) => {
            for object in missing {
                let message =
                    "missing, or denies nothing: replacements are not refused as they should be"
                        .to_owned();
                found.fail(object, message, "refit install --only rbac --apply");
            }
        }
    }
}

/// Whether the ReplacementHold of a namespace may become too large for etcd.
fn size(facts: &Facts, namespace: &str, found: &mut Findings) {
    let owners = facts.owners.get(namespace).copied().unwrap_or_default();
    if owners >= MANY_OWNERS {
        let object = format!("ReplacementHold/{namespace}/{REPLACEMENT_HOLD}");
        let message = format!(
            "it has an entry for each of {owners} KubeadmControlPlanes and MachineDeployments, and etcd takes no object of \
             more than about 1.5 MB: no further owner can be held then"
        );
        found.warn(&object, message, "spread the Clusters over several namespaces");
    }
}

/// The MachineDeployments of a namespace whose next rollout is held.
fn surges(facts: &Facts, namespace: &str, found: &mut Findings) {
    for (_, name) in facts.replaced_by_surge.iter().filter(|(of, _)| of == namespace) {
        let object = format!("MachineDeployment/{name} ({namespace})");
        let message = "its rollout would create a second machine and delete the only one, which the API server refuses, \
            because the namespace holds replacements"
            .to_owned();
        let remedy = format!(
            "set spec.rollout.strategy.rollingUpdate to maxSurge 0 and maxUnavailable 1, or annotate it with {}=Replace",
            keys::ON_UNCOVERED
        );
        found.warn(&object, message, &remedy);
    }
}

/// Whether a namespace has its ReplacementHold, with the users of Cluster API's managers.
fn callers(facts: &Facts, namespace: &str, found: &mut Findings) {
    let object = format!("ReplacementHold/{namespace}/{REPLACEMENT_HOLD}");
    let holds = match &facts.replacement_holds {
        Read::Known(holds) => holds,
        Read::Unknown(why) => return found.unknown(&object, why),
    };
    let Some(callers) = holds.get(namespace) else {
        let message = "it does not exist: the API server refuses every request to create or \
            delete a Machine there"
            .to_owned();
        let remedy = format!(
            "check refit-controller, which creates it; or kubectl label namespace {namespace} {}-",
            keys::HOLD_REPLACEMENTS
        );
        return found.fail(&object, message, &remedy);
    };
    // Managers that cannot be read have a separate check.
    let Read::Known(managers) = &facts.managers else { return };
    for manager in managers.iter().filter(|one| !callers.contains(&one.user)) {
        let message = format!(
            "spec.callers lacks {}, as which Deployment/{} runs: its requests are not held",
            manager.user, manager.deployment
        );
        let remedy = "add it to --hold-callers of the controller";
        found.warn(&object, message, remedy);
    }
}
