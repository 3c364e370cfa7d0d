//! What differs between a control plane's Machines and its spec (`spec/capi.md 2.3`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use kube::ResourceExt as _;
use refit_cluster_api::{
    desired::is_clone_of,
    kinds::Machine,
    kubeadm_config,
    rollout::{
        Expired, Strategy,
        control_plane::{Component, ControlPlane, ControlPlaneMachine},
    },
};
use refit_kinds::conditions;
use serde_json::Value;

use super::Plane;
use crate::{
    context::Context,
    error::Error,
    live::{Bare, Live},
    machine::Parts,
    snapshot,
};

/// What differs between one Machine and the control plane's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fact {
    /// For the condition `UpToDate`.
    pub(super) messages: Vec<String>,
    /// How many of them are about a date; no update in place helps against those.
    pub(super) by_date: usize,
}

impl Fact {
    /// Nothing differs.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.messages.is_empty()
    }

    fn spec_matches(&self) -> bool {
        self.messages.len() == self.by_date
    }
}

/// What differs, by the Machines' names.
pub(super) async fn all(
    context: &Arc<Context>,
    plane: &Plane,
) -> Result<BTreeMap<String, Fact>, Error> {
    let mut facts = BTreeMap::new();
    for machine in plane.machines(context) {
        let parts = Parts::load(context, &machine).await?;
        let bootstrap = parts.bootstrap.as_ref();
        let bootstrap = bootstrap.and_then(|part| part.object.as_deref());
        let infrastructure = parts.infrastructure.object.as_deref();
        let fact = compare(plane, &machine, infrastructure, bootstrap, context.now());
        facts.insert(machine.name_any(), fact);
    }
    Ok(facts)
}

fn compare(
    plane: &Plane,
    machine: &Live<Machine>,
    infrastructure: Option<&Live<Bare>>,
    bootstrap: Option<&Live<Bare>>,
    now: Timestamp,
) -> Fact {
    let mut messages = Vec::new();
    let expired = Expired::of(&plane.json, machine.json(), now);
    if expired.rollout_after {
        messages.push("KubeadmControlPlane spec.rolloutAfter expired".to_owned());
    }
    if expired.certificates {
        messages.push("Certificates will expire soon, rollout required".to_owned());
    }
    let has = machine.spec.version.as_deref().unwrap_or_default();
    let wants = plane.object.spec.version.as_str();
    if has != wants {
        messages.push(format!("Version {has}, {wants} required"));
    }
    if let Some(bootstrap) = bootstrap
        && !kubeadm_config::is_up_to_date(bootstrap.at("/spec"), &plane.json)
    {
        messages.push("KubeadmConfig is not up-to-date".to_owned());
    }
    if let Some(infrastructure) = infrastructure
        && !is_clone_of(infrastructure.annotations(), &plane.desired().infrastructure_template())
    {
        let kind = &machine.spec.infrastructure_ref.kind;
        messages.push(format!("{kind} is not up-to-date"));
    }
    Fact {
        messages,
        by_date: usize::from(expired.rollout_after) + usize::from(expired.certificates),
    }
}

/// The control plane as the plain data that the next step is decided on.
pub(super) fn snapshot(
    context: &Context,
    plane: &Plane,
    facts: &BTreeMap<String, Fact>,
) -> ControlPlane {
    let spec = &plane.object.spec;
    let replicas = spec.replicas.unwrap_or(1);
    let strategy = Strategy::of(&plane.json);
    let max_surge = strategy.map_or(1, |strategy| strategy.fenceposts(i64::from(replicas)).surge);
    let topology = plane.cluster.at("/spec/topology/version").as_str();
    ControlPlane {
        replicas: i64::from(replicas),
        max_surge,
        in_place_updates: true,
        topology_version_mismatch: topology.is_some_and(|version| version != spec.version),
        managed_etcd: plane.desired().has_managed_etcd(),
        failure_domains: failure_domains(plane),
        machines: plane
            .machines(context)
            .iter()
            .map(|machine| of_machine(machine, facts.get(&machine.name_any())))
            .collect(),
        can_update: BTreeMap::new(),
    }
}

fn of_machine(machine: &Live<Machine>, fact: Option<&Fact>) -> ControlPlaneMachine {
    let status = machine.status.as_ref();
    let list = status.map_or(&[][..], |status| &status.conditions);
    let all = [
        Component::ApiServer,
        Component::ControllerManager,
        Component::Scheduler,
        Component::EtcdPod,
        Component::EtcdMember,
    ];
    ControlPlaneMachine {
        name: machine.name_any(),
        created_at: snapshot::created_at(machine),
        failure_domain: machine.spec.failure_domain.clone(),
        annotations: machine.annotations().clone(),
        deleting: machine.is_deleting(),
        up_to_date: fact.is_none_or(Fact::spec_matches),
        expired: fact.is_some_and(|fact| fact.by_date > 0),
        has_node: status.is_some_and(|status| status.node_ref.is_some()),
        unhealthy: all
            .into_iter()
            .filter(|component| !conditions::is_true(list, component.condition()))
            .collect(),
    }
}

/// The failure domains that the Cluster offers to control planes.
pub(super) fn failure_domains(plane: &Plane) -> BTreeSet<String> {
    let domains = plane.cluster.at("/status/failureDomains").as_array();
    let usable = |domain: &&Value| domain["controlPlane"] == true;
    let name = |domain: &Value| Some(domain["name"].as_str()?.to_owned());
    domains.into_iter().flatten().filter(usable).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plane(rollout: Value) -> Plane {
        let object = Live::read(json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
            "metadata": {"name": "edge-1", "namespace": "d", "uid": "kcp"},
            "spec": {
                "version": "v1.35.0",
                "kubeadmConfigSpec": {"joinConfiguration": {"nodeRegistration": {"name": "n"}}},
                "machineTemplate": {"spec": {"infrastructureRef": {
                    "apiGroup": "infrastructure.cluster.x-k8s.io",
                    "kind": "DockerMachineTemplate", "name": "new",
                }}},
                "rollout": rollout,
            },
        }))
        .unwrap();
        Plane {
            json: snapshot::defaulted(&object),
            namespace: "d".to_owned(),
            object: Arc::new(object),
            cluster: Arc::new(
                Live::read(json!({
                    "metadata": {"name": "edge-1"}, "spec": {},
                    "status": {"failureDomains": [
                        {"name": "b", "controlPlane": true}, {"name": "a", "controlPlane": false},
                    ]},
                }))
                .unwrap(),
            ),
            reached: None,
        }
    }

    fn machine(version: &str) -> Live<Machine> {
        Live::read(json!({
            "metadata": {"name": "m", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {
                "clusterName": "edge-1", "version": version,
                "infrastructureRef": {"apiGroup": "i", "kind": "DockerMachine", "name": "m"},
            },
        }))
        .unwrap()
    }

    fn infrastructure(template: &str) -> Live<Bare> {
        Live::read(json!({"metadata": {"name": "m", "annotations": {
            "cluster.x-k8s.io/cloned-from-name": template,
            "cluster.x-k8s.io/cloned-from-groupkind":
                "DockerMachineTemplate.infrastructure.cluster.x-k8s.io",
        }}}))
        .unwrap()
    }

    fn bootstrap(name: &str) -> Live<Bare> {
        Live::read(json!({"metadata": {"name": "m"}, "spec": {
            "clusterConfiguration": {"featureGates": {"ControlPlaneKubeletLocalMode": true}},
            "joinConfiguration": {"nodeRegistration": {"name": name}},
        }}))
        .unwrap()
    }

    fn now() -> Timestamp {
        "2026-02-01T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn each_difference_has_its_message() {
        let plane = plane(json!({"after": "2026-01-15T00:00:00Z"}));
        let fact = compare(
            &plane,
            &machine("v1.34.2"),
            Some(&infrastructure("old")),
            Some(&bootstrap("other")),
            now(),
        );
        assert_eq!(
            fact.messages,
            [
                "KubeadmControlPlane spec.rolloutAfter expired",
                "Version v1.34.2, v1.35.0 required",
                "KubeadmConfig is not up-to-date",
                "DockerMachine is not up-to-date",
            ]
        );
        assert!(fact.by_date == 1 && !fact.spec_matches());
    }

    #[test]
    fn a_machine_like_its_spec_is_up_to_date() {
        let plane = plane(json!({"after": "2026-03-01T00:00:00Z"}));
        let fact = compare(
            &plane,
            &machine("v1.35.0"),
            Some(&infrastructure("new")),
            Some(&bootstrap("n")),
            now(),
        );
        assert_eq!(fact, Fact::default());
    }

    #[test]
    fn certificates_are_renewed_before_they_end() {
        let plane = plane(json!({"before": {"certificatesExpiryDays": 30}}));
        let until = |end: Value| {
            let mut json = machine("v1.35.0").json().clone();
            json["status"] = json!({"certificatesExpiryDate": end});
            let fact = compare(&plane, &Live::read(json).unwrap(), None, None, now());
            fact.by_date
        };
        assert_eq!(until(json!("2026-03-03T00:00:00Z")), 1);
        assert_eq!(until(json!("2026-03-04T00:00:00Z")), 0);
        assert_eq!(until(Value::Null), 0);
    }

    #[test]
    fn what_is_missing_counts_as_a_match() {
        let plane = plane(json!({}));
        let fact = compare(&plane, &machine("v1.35.0"), None, None, now());
        assert!(fact.is_up_to_date());
        let unknown = Live::read(json!({"metadata": {"name": "m"}})).unwrap();
        let fact = compare(&plane, &machine("v1.35.0"), Some(&unknown), None, now());
        assert!(fact.is_up_to_date());
    }

    #[test]
    fn only_failure_domains_for_control_planes_are_offered() {
        assert_eq!(failure_domains(&plane(json!({}))), BTreeSet::from(["b".to_owned()]));
    }

    #[test]
    fn a_component_that_nobody_reported_is_unhealthy() {
        let found = of_machine(&machine("v1.35.0"), None);
        assert_eq!(found.unhealthy.len(), 5);
        assert!(!found.has_node);
    }
}
