//! A workload cluster on the in-memory provider.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use kube::Client;
use refit_kinds::keys;
use refit_runtime::{Clock, client::ClientStack, workload::Workloads};
use serde_json::{Value, json};

use crate::{
    controller::OPT_IN,
    objects::{
        self, CLUSTER, CONTROL_PLANE, HOST_PLAN, MACHINE, MACHINE_DEPLOYMENT, NODE_UPDATE, Objects,
        condition_text, number, text, uid,
    },
    proxy::Proxy,
    wait::eventually,
};

/// How long a cluster may take until all of its Machines are up.
const READY: Duration = Duration::from_mins(8);
/// If a cluster is not up after this many checks, the control plane is annotated to trigger its
/// controller, which otherwise waits for 15 s.
const CHECKS: u32 = 4;
/// The initial version of clusters.
pub const FROM: &str = "v1.34.2";
/// The version to which flows upgrade clusters.
pub const TO: &str = "v1.35.1";

/// Without this annotation Cluster API creates no worker that is older than its control plane.
const SKIP_CHECKS: (&str, &str) =
    ("machineset.cluster.x-k8s.io/skip-preflight-checks", "KubeadmVersionSkew");

/// The specification of a test cluster.
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    /// Number of control plane Machines.
    pub control_planes: u32,
    /// `maxSurge` of the control plane.
    pub surge: u32,
    /// MachineDeployments: name, replicas, `maxSurge`, `maxUnavailable`.
    pub workers: Vec<(&'static str, u32, u32, u32)>,
    /// Version of the control plane.
    pub version: &'static str,
    /// Version of the workers, at most that of the control plane.
    pub workers_version: &'static str,
    /// Annotations of the Cluster.
    pub annotations: BTreeMap<&'static str, &'static str>,
    /// `kubeadmConfigSpec` of the control plane; if `None`, that of the manifest.
    pub kubeadm_config: Option<Value>,
    /// Whether the namespace holds replacements.
    pub holds: bool,
}

impl Default for ClusterSpec {
    /// Three control plane Machines, all updated in place, and no workers.
    fn default() -> Self {
        Self {
            control_planes: 3,
            surge: 0,
            workers: Vec::new(),
            version: FROM,
            workers_version: FROM,
            annotations: BTreeMap::new(),
            kubeadm_config: None,
            holds: false,
        }
    }
}

/// A cluster in a separate namespace.
pub struct Cluster {
    /// Name of the cluster and of its control plane.
    pub name: String,
    /// Namespace of the cluster.
    pub namespace: String,
    /// Objects of the namespace.
    pub objects: Objects,
    management: Client,
    _proxy: Proxy,
}

impl Cluster {
    /// Creates a cluster in a namespace of the same name, and waits until all of its Machines are
    /// up and their agents have reported.
    pub async fn create(
        management: &Client,
        name: &str,
        spec: &ClusterSpec,
    ) -> anyhow::Result<Self> {
        let cluster = Self::apply(management, name, spec).await?;
        cluster.ready(spec).await?;
        Ok(cluster)
    }

    /// Creates a cluster without waiting for it.
    pub async fn apply(
        management: &Client,
        name: &str,
        spec: &ClusterSpec,
    ) -> anyhow::Result<Self> {
        let label = (keys::HOLD_REPLACEMENTS, "enabled");
        let labels = if spec.holds { &[OPT_IN, label][..] } else { &[OPT_IN] };
        Self::made_of(management, name, labels, |port| manifests(name, spec, port)).await
    }

    /// Creates a cluster from a ClusterClass without waiting for it: three control plane Machines,
    /// and MachineDeployments `a` with two replicas and `b` with one.
    pub async fn of_class(management: &Client, name: &str, version: &str) -> anyhow::Result<Self> {
        let yaml = include_str!("../manifests/topology.yaml");
        Self::made_of(management, name, &[OPT_IN], |port| {
            let placeholders = [("CLUSTER", name), ("NAMESPACE", name), ("VERSION", version)];
            let port = port.to_string();
            objects::documents(yaml, &[&placeholders[..], &[("PROXY", &port)]].concat())
        })
        .await
    }

    /// Applies the manifests of a cluster, which depend on the port of its proxy, in a namespace with these labels.
    async fn made_of(
        management: &Client,
        name: &str,
        labels: &[(&str, &str)],
        manifests: impl FnOnce(u16) -> anyhow::Result<Vec<Value>>,
    ) -> anyhow::Result<Self> {
        let proxy = Proxy::start(management.clone(), name, name).await?;
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": labels.iter().copied().collect::<BTreeMap<_, _>>()},
        });
        objects::apply(management, &namespace).await?;
        for object in manifests(proxy.port)? {
            objects::apply(management, &object).await?;
        }
        Ok(Self {
            name: name.to_owned(),
            namespace: name.to_owned(),
            objects: Objects::in_namespace(management.clone(), name),
            management: management.clone(),
            _proxy: proxy,
        })
    }

    /// Waits until every Machine is up, and every agent has reported.
    pub async fn ready(&self, spec: &ClusterSpec) -> anyhow::Result<()> {
        let workers: u32 = spec.workers.iter().map(|(_, replicas, ..)| replicas).sum();
        self.up(usize::try_from(spec.control_planes + workers)?).await
    }

    /// Waits until this many Machines are up and their agents have reported.
    pub async fn up(&self, wanted: usize) -> anyhow::Result<()> {
        let what = format!("cluster {} is up", self.name);
        let mut checks = 0_u32;
        eventually(&what, READY, async || {
            let machines = self.machines().await.map_err(error_text)?;
            if machines.len() != wanted {
                checks += 1;
                if checks.is_multiple_of(CHECKS) {
                    let checks = checks.to_string();
                    let note = [("refit-testbed/look", Some(checks.as_str()))];
                    let noted = self.objects.annotate(CONTROL_PLANE, &self.name, &note);
                    noted.await.map_err(error_text)?;
                }
                let cluster = self.objects.get(CLUSTER, &self.name).await.map_err(error_text)?;
                let why = condition_text(&cluster, "Available");
                return Err(format!("{} of {wanted} Machines: {why}", machines.len()));
            }
            for machine in &machines {
                if !objects::is_true(machine, "Ready") {
                    let why = condition_text(machine, "Ready");
                    return Err(format!("Machine {}: {why}", objects::name(machine)));
                }
            }
            let plans = self.objects.list(HOST_PLAN).await.map_err(error_text)?;
            let reported = plans.iter().filter(|p| !text(p, "/status/reportedAt").is_empty());
            let reported = reported.count();
            (reported == wanted)
                .then_some(())
                .ok_or_else(|| format!("{reported} of {wanted} agents have reported"))
        })
        .await
    }

    /// Returns the Machines of the cluster, by name.
    pub async fn machines(&self) -> anyhow::Result<Vec<Value>> {
        self.objects.list(MACHINE).await
    }

    /// Returns the Machines of the control plane.
    pub async fn control_plane_machines(&self) -> anyhow::Result<Vec<Value>> {
        self.objects.select(MACHINE, "cluster.x-k8s.io/control-plane").await
    }

    /// Returns the Machines of a MachineDeployment.
    pub async fn worker_machines(&self, workers: &str) -> anyhow::Result<Vec<Value>> {
        let labels = format!("cluster.x-k8s.io/deployment-name={}-{workers}", self.name);
        self.objects.select(MACHINE, &labels).await
    }

    /// Returns the control plane.
    pub async fn control_plane(&self) -> anyhow::Result<Value> {
        self.objects.get(CONTROL_PLANE, &self.name).await
    }

    /// Returns a MachineDeployment.
    pub async fn deployment(&self, workers: &str) -> anyhow::Result<Value> {
        let name = format!("{}-{workers}", self.name);
        self.objects.get(MACHINE_DEPLOYMENT, &name).await
    }

    /// Changes the spec of the control plane.
    pub async fn change_control_plane(&self, spec: &Value) -> anyhow::Result<()> {
        let patch = json!({"spec": spec});
        self.objects.merge(CONTROL_PLANE, &self.name, &patch).await?;
        Ok(())
    }

    /// Changes the spec of a MachineDeployment.
    pub async fn change_workers(&self, workers: &str, spec: &Value) -> anyhow::Result<()> {
        let name = format!("{}-{workers}", self.name);
        self.objects.merge(MACHINE_DEPLOYMENT, &name, &json!({"spec": spec})).await?;
        Ok(())
    }

    /// Waits until all replicas of the control plane have a version, and the status of the control
    /// plane agrees.
    pub async fn control_plane_is_at(&self, version: &str, within: Duration) -> anyhow::Result<()> {
        let what = format!("the control plane of {} is at {version}", self.name);
        eventually(&what, within, async || {
            let found = self.control_plane().await.map_err(error_text)?;
            settled(&found, &["Available", "MachinesReady", "MachinesUpToDate"])?;
            self.machines_are_at(&self.control_plane_machines().await.map_err(error_text)?, version)
                .await
        })
        .await
    }

    /// Waits until all replicas of a MachineDeployment have a version.
    pub async fn workers_are_at(
        &self,
        workers: &str,
        version: &str,
        within: Duration,
    ) -> anyhow::Result<()> {
        let what = format!("{}-{workers} is at {version}", self.name);
        eventually(&what, within, async || {
            let found = self.deployment(workers).await.map_err(error_text)?;
            settled(&found, &["Available", "MachinesReady", "MachinesUpToDate"])?;
            self.machines_are_at(&self.worker_machines(workers).await.map_err(error_text)?, version)
                .await
        })
        .await
    }

    async fn machines_are_at(&self, machines: &[Value], version: &str) -> Result<(), String> {
        let updates = self.objects.list(NODE_UPDATE).await.map_err(error_text)?;
        for machine in machines {
            let name = objects::name(machine);
            let found = text(machine, "/spec/version");
            let kubelet = text(machine, "/status/nodeInfo/kubeletVersion");
            if found != version || kubelet != version {
                let of_machine =
                    updates.iter().filter(|u| text(u, "/spec/machineRef/name") == name);
                let phases: Vec<String> = of_machine
                    .map(|u| format!("{} {}", objects::name(u), text(u, "/status/phase")))
                    .collect();
                return Err(format!(
                    "Machine {name} requests {found}, its kubelet is {kubelet}; {}; {phases:?}",
                    condition_text(machine, "Updating")
                ));
            }
            for kind in ["Updating", "Paused"] {
                if objects::is_true(machine, kind) {
                    return Err(format!("Machine {name}: {}", condition_text(machine, kind)));
                }
            }
        }
        Ok(())
    }

    /// Returns a client of the workload API server.
    pub async fn workload(&self) -> anyhow::Result<Client> {
        let stack = ClientStack::production("refit-testbed");
        let workloads = Workloads::new(self.management.clone(), stack, Clock::real());
        let client = workloads.client(&self.namespace, &self.name).await;
        client.context("failed to create a client for the workload cluster")
    }

    /// Deletes the cluster and waits until its Machines are gone.
    pub async fn delete(&self) -> anyhow::Result<()> {
        self.objects.delete(CLUSTER, &self.name).await?;
        let what = format!("cluster {} is deleted", self.name);
        eventually(&what, READY, async || {
            match self.objects.find(CLUSTER, &self.name).await.map_err(error_text)? {
                None => Ok(()),
                Some(cluster) => Err(condition_text(&cluster, "Deleting")),
            }
        })
        .await
    }
}

/// The manifests of a cluster whose workload API server is behind `port`.
pub fn manifests(name: &str, spec: &ClusterSpec, port: u16) -> anyhow::Result<Vec<Value>> {
    let placeholders = |version| [("CLUSTER", name), ("NAMESPACE", name), ("VERSION", version)];
    let port = port.to_string();
    let yaml = include_str!("../manifests/cluster.yaml");
    let mut all =
        objects::documents(yaml, &[&placeholders(spec.version)[..], &[("PROXY", &port)]].concat())?;
    for object in all.iter_mut().filter(|object| object["kind"] == "Cluster") {
        object["metadata"]["annotations"] = json!(spec.annotations);
    }
    let (replicas, surge) = (spec.control_planes.to_string(), spec.surge.to_string());
    let values = [("REPLICAS", replicas.as_str()), ("SURGE", &surge)];
    let yaml = include_str!("../manifests/control_plane.yaml");
    all.extend(objects::documents(yaml, &[&placeholders(spec.version)[..], &values].concat())?);
    if let Some(config) = &spec.kubeadm_config {
        for object in all.iter_mut().filter(|object| object["kind"] == "KubeadmControlPlane") {
            object["spec"]["kubeadmConfigSpec"] = config.clone();
        }
    }
    for (workers, replicas, surge, unavailable) in &spec.workers {
        let numbers = [replicas, surge, unavailable].map(u32::to_string);
        let values = [
            ("NAME", *workers),
            ("REPLICAS", &numbers[0]),
            ("SURGE", &numbers[1]),
            ("UNAVAILABLE", &numbers[2]),
        ];
        let yaml = include_str!("../manifests/workers.yaml");
        for mut object in
            objects::documents(yaml, &[&placeholders(spec.workers_version)[..], &values].concat())?
        {
            if object["kind"] == "MachineDeployment" {
                object["metadata"]["annotations"] = json!({SKIP_CHECKS.0: SKIP_CHECKS.1});
            }
            all.push(object);
        }
    }
    Ok(all)
}

/// Checks that an owner of Machines has settled: its generation is observed, and these conditions
/// are True.
pub fn settled(owner: &Value, conditions: &[&str]) -> Result<(), String> {
    let generation = number(owner, "/metadata/generation");
    let observed = number(owner, "/status/observedGeneration");
    if generation != observed {
        return Err(format!("observedGeneration is {observed}, generation is {generation}"));
    }
    let replicas = number(owner, "/spec/replicas");
    for key in ["replicas", "readyReplicas", "availableReplicas", "upToDateReplicas"] {
        let found = number(owner, &format!("/status/{key}"));
        if found != replicas {
            return Err(format!("status.{key} is {found} of {replicas}"));
        }
    }
    let wrong = conditions.iter().find(|kind| !objects::is_true(owner, kind));
    wrong.map_or(Ok(()), |kind| Err(format!("{kind}: {}", condition_text(owner, kind))))
}

/// What identifies a Machine: name, uid and providerID.
pub fn identity(machine: &Value) -> [String; 3] {
    [
        objects::name(machine).to_owned(),
        uid(machine).to_owned(),
        text(machine, "/spec/providerID").to_owned(),
    ]
}

/// Formats an error for [`eventually`].
#[expect(clippy::needless_pass_by_value, reason = "it is passed to `map_err`")]
pub fn error_text(error: anyhow::Error) -> String {
    format!("{error:#}")
}
