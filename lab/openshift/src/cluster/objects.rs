//! The objects of a new cluster.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{conditions::is_crd_established, wait::await_condition},
};
use refit_kinds::json::name;
use refit_openshift::scaler::{MACHINE_SET, POOL};
use refit_runtime::apply::create_or_get;
use serde_json::{Value, json};

use super::{
    Blueprint, Cluster, Release, Workers,
    plan::{Call, Condition, conditions, rfc3339},
    settings::{RELEASES, SETTINGS},
    view::{Kind, MASTER, VERSION_NAMESPACE, WORKER},
};
use crate::{
    crds::crds,
    operators::{CURRENT, DESIRED, PAYLOAD, STATE, node_info, rendered},
};

const MACHINES: &str = "openshift-machine-api";
const MONITORING: &str = "openshift-monitoring";
const CONFIG: &str = "openshift-config";
const INTEGRITY: &str = "openshift-file-integrity";
const APPLICATION: &str = "shop";
/// Each of them exists in every cluster.
const NAMESPACES: [&str; 10] = [
    CONFIG,
    "openshift-config-managed",
    MACHINES,
    "openshift-machine-config-operator",
    MONITORING,
    VERSION_NAMESPACE,
    "openshift-ingress",
    INTEGRITY,
    "openshift-managed-upgrade-operator",
    APPLICATION,
];
/// How many nodes the control plane has.
const MASTERS: u32 = 3;

impl Cluster {
    /// Creates the kinds and objects of a cluster whose nodes are all up. Objects that exist stay as they are.
    pub async fn create(&self, blueprint: &Blueprint, now: Timestamp) -> kube::Result<()> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for crd in crds() {
            let (made, _) = create_or_get(&api, &crd).await?;
            let name = made.name_any();
            let served = await_condition(api.clone(), &name, is_crd_established());
            served.await.map_err(|error| kube::Error::Service(error.into()))?;
        }
        for namespace in NAMESPACES {
            let body =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            ensure(&self.client, "/api/v1/namespaces", body).await?;
            let body = object("v1", "ServiceAccount", namespace, "default");
            ensure_in(&self.client, "/api/v1", "serviceaccounts", body).await?;
        }
        for (base, plural, body) in blueprint.plain() {
            ensure_in(&self.client, base, plural, body).await?;
        }
        let Some(release) = blueprint.history.last() else { return Ok(()) };
        for (kind, body) in blueprint.simulated(release, now) {
            ensure(&self.client, &kind.collection(namespace_of(&body)), kind.typed(body)).await?;
        }
        Ok(())
    }
}

fn namespace_of(body: &Value) -> &str {
    body["metadata"]["namespace"].as_str().unwrap_or_default()
}

async fn ensure_in(client: &Client, base: &str, plural: &str, body: Value) -> kube::Result<()> {
    let collection = format!("{base}/namespaces/{}/{plural}", namespace_of(&body));
    ensure(client, &collection, body).await
}

/// Creates an object with its status, unless it exists.
async fn ensure(client: &Client, collection: &str, body: Value) -> kube::Result<()> {
    let status = body.get("status").cloned();
    let path = format!("{collection}/{}/status", name(&body));
    match Call::create(collection.to_owned(), body).send(client).await {
        Ok(_) => {}
        Err(kube::Error::Api(answer)) if answer.is_already_exists() => return Ok(()),
        Err(error) => return Err(error),
    }
    if let Some(status) = status {
        Call::merge(path, json!({ "status": status })).send(client).await?;
    }
    Ok(())
}

fn object(version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": version, "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
    })
}

fn with(mut object: Value, field: &str, value: Value) -> Value {
    object[field] = value;
    object
}

impl Blueprint {
    /// What the operator reads apart from the simulated kinds: API, plural and body of each.
    fn plain(&self) -> Vec<(&'static str, &'static str, Value)> {
        let core = "/api/v1";
        let auths = json!({"auths": {"cloud.openshift.com": {"auth": self.ocm_token, "email": "ops@example.com"}}});
        let pull_secret = with(
            with(
                object("v1", "Secret", CONFIG, "pull-secret"),
                "type",
                json!("kubernetes.io/dockerconfigjson"),
            ),
            "stringData",
            json!({".dockerconfigjson": auths.to_string()}),
        );
        let releases: Vec<&Release> = self.history.iter().chain(&self.releases).collect();
        let settings = json!({RELEASES: serde_json::to_string(&releases).unwrap_or_default()});
        let ca = json!({"service-ca.crt": self.service_ca});
        let config_map =
            |namespace, name, data| with(object("v1", "ConfigMap", namespace, name), "data", data);
        let mut all = vec![
            (core, "secrets", pull_secret),
            (core, "configmaps", config_map(MONITORING, "serving-certs-ca-bundle", ca)),
            (core, "configmaps", config_map(VERSION_NAMESPACE, SETTINGS, settings)),
            (core, "serviceaccounts", object("v1", "ServiceAccount", MONITORING, "prometheus-k8s")),
        ];
        for (name, port) in [("alertmanager-main", 9094), ("prometheus-k8s", 9091)] {
            let ports = json!({"ports": [{"name": "web", "port": port, "protocol": "TCP"}]});
            all.push((
                core,
                "services",
                with(object("v1", "Service", MONITORING, name), "spec", ports),
            ));
            let spec = json!({
                "host": format!("{name}-{MONITORING}.apps.lab.example.com"),
                "to": {"kind": "Service", "name": name}, "port": {"targetPort": "web"},
            });
            let route =
                with(object("route.openshift.io/v1", "Route", MONITORING, name), "spec", spec);
            all.push(("/apis/route.openshift.io/v1", "routes", route));
        }
        if self.has_file_integrity {
            let api = "fileintegrity.openshift.io/v1alpha1";
            let body = object(api, "FileIntegrity", INTEGRITY, "osd-fileintegrity");
            let spec = json!({"config": {"gracePeriod": 3600}});
            all.push((
                "/apis/fileintegrity.openshift.io/v1alpha1",
                "fileintegrities",
                with(body, "spec", spec),
            ));
        }
        all
    }

    /// The objects of the simulated operators.
    fn simulated(&self, release: &Release, now: Timestamp) -> Vec<(Kind, Value)> {
        let mut all = vec![(Kind::ClusterVersion, self.cluster_version(release, now))];
        all.extend(PAYLOAD.iter().map(|(name, _)| {
            let shown = [
                Condition::flag("Available", true, ""),
                Condition::flag("Progressing", false, ""),
                Condition::flag("Degraded", false, ""),
            ];
            let status = json!({
                "versions": [{"name": "operator", "version": release.version}],
                "conditions": conditions(&Value::Null, &shown, now),
            });
            (
                Kind::ClusterOperator,
                json!({"metadata": {"name": name}, "spec": {}, "status": status}),
            )
        }));
        all.push((Kind::MachineConfigPool, config_pool("master", MASTER, release)));
        all.push((Kind::MachineConfigPool, config_pool("worker", WORKER, release)));
        for index in 0..MASTERS {
            let name = format!("lab-master-{index}");
            let labels = json!({MASTER: "", "node-role.kubernetes.io/control-plane": ""});
            all.push((Kind::Machine, machine(&name, "master", &json!({}), &json!({}))));
            let mut node = node(&name, "master", &labels, release, now);
            node["spec"]["taints"] = json!([{"key": MASTER, "effect": "NoSchedule"}]);
            all.push((Kind::Node, node));
        }
        for workers in &self.workers {
            all.extend(workers.objects(release, now));
        }
        all.extend(application(self.application));
        all
    }

    fn cluster_version(&self, release: &Release, now: Timestamp) -> Value {
        let newest = self.history.iter().rev().zip(1_i64..);
        let history = newest.map(|(release, months)| {
            let ago = |days: i64| {
                let by = SignedDuration::from_hours(24 * (30 * months + days));
                rfc3339(now.checked_sub(by).unwrap_or(now))
            };
            json!({
                "state": "Completed", "version": release.version, "image": release.image,
                "startedTime": ago(1), "completionTime": ago(0), "verified": true,
            })
        });
        let mut spec = json!({"clusterID": self.cluster_id, "channel": self.channel});
        spec["desiredUpdate"] = json!({"version": release.version});
        let status = json!({
            "desired": {"version": release.version, "image": release.image},
            "history": history.collect::<Vec<Value>>(), "availableUpdates": null,
        });
        json!({"metadata": {"name": "version"}, "spec": spec, "status": status})
    }
}

fn config_pool(name: &str, role: &str, release: &Release) -> Value {
    let config = json!({"name": rendered(name, &release.version)});
    json!({
        "metadata": {"name": name},
        "spec": {
            "configuration": config, "paused": false,
            "nodeSelector": {"matchLabels": {role: ""}},
            "machineConfigSelector": {"matchLabels": {"machineconfiguration.openshift.io/role": name}},
        },
        "status": {"configuration": config},
    })
}

fn machine(name: &str, role: &str, labels: &Value, spec: &Value) -> Value {
    let mut all = json!({
        "machine.openshift.io/cluster-api-machine-role": role,
        "machine.openshift.io/cluster-api-machine-type": role,
    });
    json_patch::merge(&mut all, labels);
    let mut full = json!({"providerID": format!("aws:///us-east-1a/{name}")});
    json_patch::merge(&mut full, spec);
    json!({
        "metadata": {
            "name": name, "namespace": MACHINES, "labels": all,
            "finalizers": ["machine.machine.openshift.io"],
        },
        "spec": full,
        "status": {"phase": "Running", "nodeRef": {"kind": "Node", "name": name}},
    })
}

fn node(name: &str, pool: &str, labels: &Value, release: &Release, now: Timestamp) -> Value {
    let config = rendered(pool, &release.version);
    let mut all = json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"});
    json_patch::merge(&mut all, labels);
    let shown =
        [Condition::flag("Ready", true, "kubelet is posting ready status").because("KubeletReady")];
    json!({
        "metadata": {
            "name": name, "labels": all,
            "annotations": {
                CURRENT: config, DESIRED: config, STATE: "Done",
                "machine.openshift.io/machine": format!("{MACHINES}/{name}"),
            },
        },
        "spec": {"providerID": format!("aws:///us-east-1a/{name}")},
        "status": {
            "capacity": {"cpu": "4", "memory": "16Gi", "pods": "250"},
            "allocatable": {"cpu": "3500m", "memory": "15Gi", "pods": "250"},
            "conditions": conditions(&Value::Null, &shown, now),
            "nodeInfo": node_info(release, name),
        },
    })
}

impl Workers {
    /// The MachineSet, its Machines and their nodes; before them a MachineConfigPool, if the pool has its own.
    fn objects(&self, release: &Release, now: Timestamp) -> Vec<(Kind, Value)> {
        let set = self.machine_set();
        let role = format!("node-role.kubernetes.io/{}", self.pool);
        let mut all = Vec::new();
        let mut config = "worker";
        if self.has_own_config {
            config = &self.pool;
            all.push((Kind::MachineConfigPool, config_pool(config, &role, release)));
        }
        let labels = json!({MACHINE_SET: set, "machine.openshift.io/zone": self.zone});
        let node_labels = json!({role.as_str(): ""});
        let spec = json!({
            "metadata": {"labels": node_labels},
            "providerSpec": {"value": {"instanceType": "m5.xlarge", "placement": {"availabilityZone": self.zone}}},
        });
        all.push((
            Kind::MachineSet,
            json!({
                "metadata": {"name": set, "namespace": MACHINES, "labels": {POOL: self.pool}},
                "spec": {
                    "replicas": self.replicas,
                    "selector": {"matchLabels": {MACHINE_SET: set}},
                    "template": {"metadata": {"labels": labels}, "spec": spec},
                },
            }),
        ));
        for index in 0..self.replicas {
            let name = format!("{set}-{index}");
            let labels_of_node =
                json!({WORKER: "", role.as_str(): "", "topology.kubernetes.io/zone": self.zone});
            all.push((Kind::Machine, machine(&name, "worker", &labels, &spec)));
            all.push((Kind::Node, node(&name, config, &labels_of_node, release, now)));
        }
        all
    }
}

/// An application with a PodDisruptionBudget, and the daemon of the machine-config operator.
fn application(replicas: u32) -> Vec<(Kind, Value)> {
    let template = |labels: &Value, image: &str| {
        let containers = json!([{"name": "main", "image": image}]);
        json!({"metadata": {"labels": labels}, "spec": {"containers": containers}})
    };
    let (web, daemon) = (json!({"app": "web"}), json!({"k8s-app": "machine-config-daemon"}));
    let set = |namespace: &str, name: &str, labels: &Value| {
        json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"selector": {"matchLabels": labels}, "template": template(labels, "quay.io/example/app:1")},
        })
    };
    let mut replica_set = set(APPLICATION, "web", &web);
    replica_set["spec"]["replicas"] = json!(replicas);
    vec![
        (Kind::ReplicaSet, replica_set),
        (
            Kind::DaemonSet,
            set("openshift-machine-config-operator", "machine-config-daemon", &daemon),
        ),
        (
            Kind::Budget,
            json!({
                "metadata": {"name": "web", "namespace": APPLICATION},
                "spec": {"maxUnavailable": 1, "selector": {"matchLabels": web}},
            }),
        ),
    ]
}
