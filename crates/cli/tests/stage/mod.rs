//! A management cluster without controllers: a real API over TCP. Tests play the controllers.

mod process;

use std::{convert::Infallible, path::PathBuf, process::Command, sync::Arc, time::Duration};

use kube::{
    Client,
    api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use lab_apiserver::{ApiServer, Options};
use refit_runtime::{Clock, client::ClientStack, net::Listener, serve::serve};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tower::Service as _;

pub(crate) use process::{Ended, Running, refit};

/// The current version.
pub(crate) const OLD: &str = "v1.34.2";
/// The version to upgrade to.
pub(crate) const NEW: &str = "v1.35.0";

/// A management cluster with a kubeconfig.
pub(crate) struct Stage {
    runtime: Runtime,
    server: ApiServer,
    client: Client,
    directory: tempfile::TempDir,
    address: std::net::SocketAddr,
    serving: tokio::task::JoinHandle<()>,
}

impl Stage {
    /// An empty cluster with Refit and Cluster API installed; the default namespace is opted in.
    pub(crate) fn new() -> Self {
        let stage = Self::bare();
        let crds = refit_kinds::crds::refit_crds().into_iter().chain(refit_cluster_api::crds());
        for crd in crds {
            stage.create(
                "apiextensions.k8s.io/v1/CustomResourceDefinition",
                serde_json::to_value(crd).unwrap(),
            );
        }
        stage.patch(
            "v1/Namespace",
            "default",
            json!({"metadata": {"labels": {"refit.dev/in-place": "enabled"}}}),
        );
        stage.create(
            "runtime.cluster.x-k8s.io/v1beta2/ExtensionConfig",
            json!({
                "metadata": {"name": "refit"},
                "spec": {
                    "clientConfig": {"url": "https://refit", "caBundle": "eA=="},
                    "namespaceSelector": {"matchLabels": {"refit.dev/in-place": "enabled"}},
                },
            }),
        );
        let handler = |hook: &str| {
            json!({
                "name": format!("{}.refit", hook.to_lowercase()),
                "requestHook": {"apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "hook": hook},
            })
        };
        let handlers = ["CanUpdateMachine", "CanUpdateMachineSet", "UpdateMachine"].map(handler);
        stage.status("runtime.cluster.x-k8s.io/v1beta2/ExtensionConfig", "refit", json!({
            "handlers": handlers,
            "conditions": [{"type": "Discovered", "status": "True", "reason": "Discovered", "message": "",
                "lastTransitionTime": "2026-03-02T08:00:00Z"}],
        }));
        stage
    }

    /// A cluster without any CRD.
    pub(crate) fn bare() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        refit_runtime::tls::install_provider();
        let clock = Clock::real();
        let server = ApiServer::new(Options::new(Arc::new(move || clock.now())));
        let (address, serving) = listen(&runtime, &server, 0);
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        let client =
            runtime.block_on(async { ClientStack::production("test").client(&config).unwrap() });
        let directory = tempfile::Builder::new()
            .prefix("refit-stage-")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "stage",
            "clusters": [{"name": "stage", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "stage", "context": {"cluster": "stage", "user": "me", "namespace": "default"}}],
        });
        std::fs::write(directory.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        Self { runtime, server, client, directory, address, serving }
    }

    /// Closes the API server's listener and all connections, then listens again.
    pub(crate) fn restart(&mut self) {
        self.serving.abort();
        std::thread::sleep(Duration::from_millis(300));
        let port = self.address.port();
        self.serving = listen(&self.runtime, &self.server, port).1;
    }

    /// Returns the API server.
    pub(crate) fn server(&self) -> &ApiServer {
        &self.server
    }

    /// Returns the path of a file next to the kubeconfig.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Builds the command with this cluster's kubeconfig.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = refit(args);
        command.env("KUBECONFIG", self.path("kubeconfig"));
        command
    }

    /// Runs the command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        Ended::of(self.command(args).output().expect("the binary runs"))
    }

    /// Starts the command, to read its output while it runs.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args))
    }

    /// Returns a client of the API server.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Runs a controller next to the API server, until the cluster is dropped.
    pub(crate) fn spawn(&self, controller: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(controller);
    }

    /// Lists the objects of a kind.
    pub(crate) fn list(&self, kind: &str) -> Vec<DynamicObject> {
        let api = self.api(kind);
        self.runtime.block_on(async { api.list(&ListParams::default()).await.unwrap().items })
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let mut parts: Vec<&str> = kind.split('/').collect();
        if parts.len() == 2 {
            parts.insert(0, "");
        }
        let gvk = GroupVersionKind::gvk(parts[0], parts[1], parts[2]);
        let resource = ApiResource::from_gvk(&gvk);
        let global =
            ["ClusterRole", "CustomResourceDefinition", "Namespace", "Node", "ExtensionConfig"];
        match parts[2] {
            "Deployment" => Api::namespaced_with(self.client.clone(), "capi-system", &resource),
            kind if global.contains(&kind) => Api::all_with(self.client.clone(), &resource),
            _ => Api::namespaced_with(self.client.clone(), "default", &resource),
        }
    }

    /// Creates an object of `group/version/Kind`; also writes its `status`.
    pub(crate) fn create(&self, kind: &str, mut object: Value) {
        let api = self.api(kind);
        let (api_version, name) = kind.rsplit_once('/').unwrap();
        object["apiVersion"] = json!(api_version);
        object["kind"] = json!(name);
        let status = object.get("status").cloned().filter(|status| !status.is_null());
        let typed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        self.runtime.block_on(async {
            api.create(&PostParams::default(), &typed)
                .await
                .unwrap_or_else(|e| panic!("{kind}: {e}"));
        });
        if let Some(status) = status.filter(|_| name != "CustomResourceDefinition") {
            self.status(kind, object["metadata"]["name"].as_str().unwrap(), status);
        }
    }

    /// Merges a patch into an object.
    pub(crate) fn patch(&self, kind: &str, name: &str, patch: Value) {
        let api = self.api(kind);
        self.runtime.block_on(async {
            let patch = Patch::Merge(patch);
            api.patch(name, &PatchParams::default(), &patch)
                .await
                .unwrap_or_else(|e| panic!("{kind}: {e}"));
        });
    }

    /// Applies an object as this field manager.
    pub(crate) fn apply(&self, kind: &str, name: &str, manager: &str, mut object: Value) {
        let (api_version, short) = kind.rsplit_once('/').unwrap();
        object["apiVersion"] = json!(api_version);
        object["kind"] = json!(short);
        object["metadata"] = json!({"name": name});
        let api = self.api(kind);
        self.runtime.block_on(async {
            let params = PatchParams::apply(manager).force();
            api.patch(name, &params, &Patch::Apply(object))
                .await
                .unwrap_or_else(|e| panic!("{kind}: {e}"));
        });
    }

    /// Merges a patch into an object's status.
    pub(crate) fn status(&self, kind: &str, name: &str, status: Value) {
        let api = self.api(kind);
        self.runtime.block_on(async {
            let patch = Patch::Merge(json!({"status": status}));
            api.patch_status(name, &PatchParams::default(), &patch)
                .await
                .unwrap_or_else(|e| panic!("{kind}: {e}"));
        });
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, kind: &str, name: &str) {
        let api = self.api(kind);
        self.runtime.block_on(async {
            api.delete(name, &kube::api::DeleteParams::default()).await.unwrap();
        });
    }

    /// Reads an object.
    pub(crate) fn get(&self, kind: &str, name: &str) -> Value {
        let api = self.api(kind);
        let object = self.runtime.block_on(async { api.get(name).await.unwrap() });
        serde_json::to_value(object).unwrap()
    }

    /// A healthy cluster `edge-1` with three control plane machines and one worker, all at [`OLD`].
    pub(crate) fn with_cluster(self) -> Self {
        self.create(
            CLUSTER,
            json!({
                "metadata": {"name": "edge-1"},
                "spec": {"controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io",
                    "kind": "KubeadmControlPlane", "name": "edge-1"}},
            }),
        );
        self.create(
            CONTROL_PLANE,
            json!({
                "metadata": {"name": "edge-1"},
                "spec": {"replicas": 3, "version": OLD,
                    "rollout": {"strategy": {"rollingUpdate": {"maxSurge": 0}}}},
            }),
        );
        self.create(DEPLOYMENT, json!({
            "metadata": {"name": "edge-1-md"},
            "spec": {"clusterName": "edge-1", "replicas": 1,
                "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
                "template": {"spec": {"clusterName": "edge-1", "version": OLD}}},
        }));
        self.create(MACHINE_SET, json!({
            "metadata": {"name": "edge-1-md-1"}, "spec": {"clusterName": "edge-1", "replicas": 1},
        }));
        let owner = self.get(CONTROL_PLANE, "edge-1");
        for name in ["edge-1-a", "edge-1-b", "edge-1-c"] {
            let labels = json!({
                "cluster.x-k8s.io/control-plane": "", "cluster.x-k8s.io/control-plane-name": "edge-1",
            });
            self.create(MACHINE, machine(name, labels, &owner));
        }
        let owner = self.get(MACHINE_SET, "edge-1-md-1");
        let labels = json!({"cluster.x-k8s.io/deployment-name": "edge-1-md"});
        self.create(MACHINE, machine("edge-1-md-a", labels, &owner));
        for name in MACHINES {
            self.machine(name, OLD, "Running");
        }
        self.settle(CONTROL_PLANE, "edge-1", 3);
        self.settle(DEPLOYMENT, "edge-1-md", 1);
        self
    }

    /// The Deployments of Cluster API, with the feature gates that in-place updates need.
    pub(crate) fn with_managers(self) -> Self {
        self.create("v1/Namespace", json!({"metadata": {"name": "capi-system"}}));
        for provider in ["cluster-api", "control-plane-kubeadm"] {
            let container = json!({
                "name": "manager", "image": "manager:v1.14.0",
                "args": ["--feature-gates=RuntimeSDK=true,InPlaceUpdates=true"],
            });
            self.create("apps/v1/Deployment", json!({
                "metadata": {"name": provider, "labels": {"cluster.x-k8s.io/provider": provider}},
                "spec": {
                    "selector": {"matchLabels": {"app": provider}},
                    "template": {
                        "metadata": {"labels": {"app": provider}},
                        "spec": {"containers": [container]},
                    },
                },
            }));
        }
        self
    }

    /// Plays a task that has ended: it has left an owner paused.
    pub(crate) fn left_paused(&self, kind: &str, owner: &str, task: &str) {
        let annotations =
            json!({"cluster.x-k8s.io/paused": "refit.dev/task", "refit.dev/task": task});
        self.patch(kind, owner, json!({"metadata": {"annotations": annotations}}));
    }

    /// Plays Cluster API: the owner has observed its spec, and all machines match it.
    pub(crate) fn settle(&self, kind: &str, name: &str, replicas: i32) {
        let generation = self.get(kind, name)["metadata"]["generation"].clone();
        self.status(kind, name, json!({
            "observedGeneration": generation, "replicas": replicas, "upToDateReplicas": replicas,
        }));
    }

    /// Plays Cluster API: sets the kubelet version and phase of a Machine.
    pub(crate) fn machine(&self, name: &str, kubelet: &str, phase: &str) {
        self.status(
            MACHINE,
            name,
            json!({
                "phase": phase, "nodeRef": {"name": name},
                "nodeInfo": {"kubeletVersion": kubelet, "bootID": "b"},
            }),
        );
    }

    /// Plays Cluster API and Refit: requests a Machine's update to [`NEW`] and sets its status.
    pub(crate) fn update(&self, machine: &str, status: Value) {
        self.update_to(machine, NEW, status);
    }

    /// The same for another version.
    pub(crate) fn update_to(&self, machine: &str, version: &str, status: Value) {
        let uid = self.get(MACHINE, machine)["metadata"]["uid"].clone();
        self.patch(MACHINE, machine, json!({
            "metadata": {"annotations": {"runtime.cluster.x-k8s.io/pending-hooks": "UpdateMachine"}},
            "spec": {"version": version},
        }));
        self.create(NODE_UPDATE, json!({
            "metadata": {"name": format!("{machine}-1")},
            "spec": {"machineRef": {"name": machine, "uid": uid}, "origin": "Hook", "stage": "Ongoing",
                "goal": {"kubernetesVersion": version}, "goalHash": "h"},
            "status": status,
        }));
    }

    /// Plays the end of an update.
    pub(crate) fn updated(&self, machine: &str) {
        self.status(
            NODE_UPDATE,
            &format!("{machine}-1"),
            json!({"phase": "Succeeded", "blockedBy": null}),
        );
        self.patch(
            MACHINE,
            machine,
            json!({
                "metadata": {"annotations": {"runtime.cluster.x-k8s.io/pending-hooks": null}},
            }),
        );
        self.machine(machine, NEW, "Running");
    }
}

/// All machines of [`Stage::with_cluster`].
pub(crate) const MACHINES: [&str; 4] = ["edge-1-a", "edge-1-b", "edge-1-c", "edge-1-md-a"];
/// Kinds for [`Stage::create`] and similar functions.
pub(crate) const CLUSTER: &str = "cluster.x-k8s.io/v1beta2/Cluster";
pub(crate) const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/v1beta2/KubeadmControlPlane";
pub(crate) const DEPLOYMENT: &str = "cluster.x-k8s.io/v1beta2/MachineDeployment";
pub(crate) const MACHINE: &str = "cluster.x-k8s.io/v1beta2/Machine";
pub(crate) const MACHINE_SET: &str = "cluster.x-k8s.io/v1beta2/MachineSet";
pub(crate) const NODE_UPDATE: &str = "refit.dev/v1alpha1/NodeUpdate";
pub(crate) const UPDATE_GROUP: &str = "refit.dev/v1alpha1/UpdateGroup";
pub(crate) const UPGRADE_TASK: &str = "refit.dev/v1alpha1/UpgradeTask";
pub(crate) const CLUSTER_UPGRADE: &str = "refit.dev/v1alpha1/ClusterUpgrade";

fn machine(name: &str, mut labels: Value, owner: &Value) -> Value {
    labels["cluster.x-k8s.io/cluster-name"] = json!("edge-1");
    json!({
        "metadata": {"name": name, "labels": labels, "ownerReferences": [{
            "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"], "controller": true,
        }]},
        "spec": {"clusterName": "edge-1", "version": OLD},
    })
}

fn listen(
    runtime: &Runtime,
    server: &ApiServer,
    port: u16,
) -> (std::net::SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = runtime.block_on(Listener::tcp(([127, 0, 0, 1], port).into())).unwrap();
    let address = listener.local_addr().unwrap();
    let server = server.clone();
    let service = tower::service_fn(move |request| {
        let answer = server.clone().call(request);
        async move { Ok::<_, Infallible>(answer.await.expect("no fault is set")) }
    });
    let serving = runtime.spawn(serve(listener, None, service, std::future::pending()));
    (address, serving)
}
