//! Flags and feature gates of a group's configuration that the target version does not know any more.

use std::collections::BTreeSet;

use refit_kinds::{
    json::{namespace, text},
    version::KubernetesVersion,
};
use serde_json::Value;

use super::removed;
use crate::{reach::Read, view::View};

/// Where the programs of a control plane have their flags in a ClusterConfiguration.
const COMPONENTS: [(&str, &str); 3] = [
    ("kube-apiserver", "/clusterConfiguration/apiServer/extraArgs"),
    ("kube-controller-manager", "/clusterConfiguration/controllerManager/extraArgs"),
    ("kube-scheduler", "/clusterConfiguration/scheduler/extraArgs"),
];
/// Where kubelets have theirs.
const KUBELETS: [&str; 2] = [
    "/initConfiguration/nodeRegistration/kubeletExtraArgs",
    "/joinConfiguration/nodeRegistration/kubeletExtraArgs",
];
/// The object with the configuration of all kubelets, for messages.
const KUBELET_CONFIG: &str = "ConfigMap/kube-system/kubelet-config";

/// A flag or a gate that is not known any more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Removed {
    reason: &'static str,
    object: String,
    name: String,
    message: String,
}

impl View<'_> {
    /// Adds blockers for flags and gates that the programs of the target version do not know.
    pub(super) fn look_for_removed_flags(&mut self) {
        let Some(minor) = self.plan.to.version().map(KubernetesVersion::minor) else { return };
        let removes = self.removed_by_settings();
        let mut found = BTreeSet::new();
        if let Some((object, spec)) = self.configuration() {
            for (program, pointer) in COMPONENTS {
                found.extend(removed_of(&object, program, spec.pointer(pointer), minor));
            }
            for pointer in KUBELETS {
                let all = removed_of(&object, "kubelet", spec.pointer(pointer), minor);
                found.extend(all.into_iter().filter(|one| !removes.contains(&*one.name)));
            }
        }
        if let Some(Read::Known(hosts)) = self.hosts() {
            let gates = hosts.target.kubelet_gates.iter();
            found.extend(
                gates.filter_map(|gate| removed_gate(KUBELET_CONFIG, "kubelet", gate, minor)),
            );
        }
        for Removed { reason, object, message, .. } in found {
            self.block(reason, object, message);
        }
    }

    /// Flags of kubelets that HostSettings of the namespace remove.
    fn removed_by_settings(&self) -> BTreeSet<&str> {
        let settings = self.input.current.of_kind("HostSettings");
        let settings = settings.filter(|one| namespace(one) == self.group.namespace);
        let lists = settings.filter_map(|one| {
            one.pointer("/spec/settings/kubelet/removeArgs").and_then(Value::as_array)
        });
        let flags = lists.flatten().filter_map(Value::as_str);
        flags.map(|flag| flag.trim_start_matches('-')).collect()
    }

    /// The desired KubeadmConfigSpec and the object that contains it.
    fn configuration(&self) -> Option<(String, &Value)> {
        if let Some(spec) = self.wanted.pointer("/spec/kubeadmConfigSpec") {
            return Some((self.title(), spec));
        }
        let reference = self.wanted.pointer("/spec/template/spec/bootstrap/configRef")?;
        let (kind, name) = (text(reference, "/kind"), text(reference, "/name"));
        let template = self.input.desired.get(kind, namespace(self.wanted), name)?;
        Some((format!("{kind}/{name}"), template.pointer("/spec/template/spec")?))
    }
}

/// The arguments in a list (Cluster API's v1beta2) or in a map (v1beta1).
fn arguments(list: Option<&Value>) -> Vec<(&str, &str)> {
    let of_list = list.and_then(Value::as_array).into_iter().flatten();
    let of_map = list.and_then(Value::as_object).into_iter().flatten();
    of_list
        .map(|one| (text(one, "/name"), text(one, "/value")))
        .chain(of_map.map(|(name, value)| (name.as_str(), value.as_str().unwrap_or_default())))
        .collect()
}

fn removed_of(object: &str, program: &str, list: Option<&Value>, minor: u64) -> Vec<Removed> {
    let mut found = Vec::new();
    for (name, value) in arguments(list) {
        if let Some(since) = removed::flag(program, name, minor) {
            let message = format!(
                "{object} sets --{name} of {program}, which v1.{since} has removed: {}; remove the flag",
                what_happens(program)
            );
            let (object, name) = (object.to_owned(), name.to_owned());
            found.push(Removed { reason: "RemovedFlag", object, name, message });
        }
        if name == "feature-gates" {
            let gates = value.split(',').filter_map(|one| one.split('=').next());
            found
                .extend(gates.filter_map(|gate| removed_gate(object, program, gate.trim(), minor)));
        }
    }
    found
}

fn removed_gate(object: &str, program: &str, gate: &str, minor: u64) -> Option<Removed> {
    let since = removed::gate(gate, minor)?;
    let message = format!(
        "{object} sets the feature gate {gate} of {program}, which v1.{since} has removed: {}; remove the gate",
        what_happens(program)
    );
    let (object, name) = (object.to_owned(), gate.to_owned());
    Some(Removed { reason: "RemovedFeatureGate", object, name, message })
}

/// What an update does with a program that would not start.
fn what_happens(program: &str) -> &'static str {
    if program == "kubelet" {
        "the update stops before it restarts the kubelet, and manual intervention is required"
    } else {
        "its static pod would not start, so kubeadm fails and rolls it back"
    }
}

/// The feature gates in the KubeletConfiguration that kubeadm writes to a ConfigMap.
pub(super) fn gates_of(configuration: &str) -> BTreeSet<String> {
    let lines = configuration.lines().skip_while(|line| line.trim_end() != "featureGates:").skip(1);
    let gates = lines.take_while(|line| line.starts_with(' '));
    gates.filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_gates_of_a_configuration_are_those_below_its_field() {
        let text = "evictionHard:\n  a: b\nfeatureGates:\n  CPUManager: true\n  NodeSwap: false\n\
                    fileCheckFrequency: 0s\n";
        assert_eq!(gates_of(text), ["CPUManager", "NodeSwap"].map(str::to_owned).into());
        assert!(gates_of("kind: KubeletConfiguration\n").is_empty());
    }

    #[test]
    fn arguments_are_read_as_lists_and_as_maps() {
        let list = json!([{"name": "cloud-config", "value": "/x"}]);
        let map = json!({"feature-gates": "NodeSwap=true, CPUManager=false"});
        let reasons = |list: &Value, minor| {
            let found = removed_of("KubeadmControlPlane/cp", "kubelet", Some(list), minor);
            found.into_iter().map(|one| one.reason).collect::<Vec<_>>()
        };
        assert_eq!(reasons(&list, 34), ["RemovedFlag"]);
        assert_eq!(reasons(&list, 33), Vec::<&str>::new());
        assert_eq!(reasons(&map, 33), ["RemovedFeatureGate"]);
        assert_eq!(reasons(&map, 32), Vec::<&str>::new());
        assert!(removed_of("x", "kubelet", None, 99).is_empty());
    }
}
