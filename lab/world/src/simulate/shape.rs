//! The cluster of a simulation.

use std::fmt::Write as _;

use refit_kinds::canonical::{CANONICAL, Keys, REFIT};

use super::{
    fault::Version,
    fleet::Fleet,
    held::{self, Held},
    snaps, tasks,
};
use crate::{env::canonical, random::Random};

/// Name of the Cluster and of its control plane.
pub(super) const CLUSTER: &str = "edge-1";
/// Name of the MachineDeployment.
pub(super) const DEPLOYMENT: &str = "edge-1-md-0";
/// Version before the first upgrade.
pub(super) const FIRST_VERSION: &str = "v1.34.2";

/// The cluster of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Control plane machines: 1 or 3.
    pub(super) control_plane: u32,
    /// Workers.
    pub(super) workers: u32,
    pub(super) max_unavailable: u32,
    pub(super) max_surge: u32,
    /// Whether a MachineHealthCheck looks after the workers.
    pub(super) health_check: bool,
    /// Whether there are two controllers.
    pub(super) standby: bool,
    /// The external Updater, if there is one: memory changes with each version.
    pub(super) updater: Option<Updater>,
    /// What the UpgradeTasks are for that upgrade the machines instead of Cluster API, if any do.
    pub(super) tasks: Option<TaskFor>,
    /// The prefix of annotations that have k8sd refresh the snaps of all machines; `None` without k8sd.
    pub(super) snaps: Option<Keys>,
    /// The Clusters that a ClusterUpgradePlan upgrades, if there are any.
    pub(super) fleet: Option<Fleet>,
    /// How operators hold replacements in the namespace, if they do.
    pub(super) held: Option<Held>,
}

/// What UpgradeTasks are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskFor {
    /// An owner, as an operator requests it.
    Owner,
    /// The whole cluster, as a ClusterUpgrade requests it.
    Cluster,
}

/// An Updater of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Updater {
    /// `examples/hook-updater`, with this disruption.
    Hook(&'static str),
    /// `examples/provider`.
    Provider,
}

impl Shape {
    /// The shape of a seed. Every fifth cluster has an Updater with a hook, and every seventh one with a provider.
    /// Every seventh of those without an Updater is upgraded by UpgradeTasks, half of them by a ClusterUpgrade, and every eleventh is one of Canonical
    /// Kubernetes.
    pub(super) fn of_seed(seed: u64, random: &mut Random) -> Self {
        let updater = match seed % 15 {
            2 | 12 => Some(Updater::Provider),
            4 => Some(Updater::Hook("None")),
            9 => Some(Updater::Hook("Restart")),
            14 => Some(Updater::Hook("Drain")),
            _ => None,
        };
        let tasks = match seed % 14 {
            3 => Some(TaskFor::Owner),
            10 => Some(TaskFor::Cluster),
            _ => None,
        };
        let tasks = tasks.filter(|_| updater.is_none());
        let has_k8sd = updater.is_none() && tasks.is_none() && seed % 11 == 5;
        let shape = Self { updater, tasks, ..Self::new(random) };
        if has_k8sd { shape.with_snaps(seed) } else { shape }
    }

    fn new(random: &mut Random) -> Self {
        // The application cannot leave the only worker, and must not leave all at once: its budget
        // would hold both drains for ever.
        let workers = *random.pick(&[0, 2, 2, 3]);
        Self {
            control_plane: if workers == 0 || random.chance(1, 2) { 3 } else { 1 },
            workers,
            max_unavailable: random.between(1, workers.clamp(2, 3) - 1),
            max_surge: u32::from(random.chance(1, 6)),
            health_check: workers > 0 && random.chance(1, 3),
            standby: random.chance(1, 4),
            updater: None,
            tasks: None,
            snaps: None,
            fleet: None,
            held: None,
        }
    }

    /// Names of all machines of the cluster.
    pub(super) fn machines(&self) -> Vec<String> {
        let control_plane = (1..=self.control_plane).map(|i| format!("{CLUSTER}-{i}"));
        control_plane.chain(self.worker_names()).collect()
    }

    pub(super) fn worker_names(&self) -> impl Iterator<Item = String> {
        (1..=self.workers).map(|i| format!("{DEPLOYMENT}-{i}"))
    }

    /// A machine without which the cluster still has an API.
    pub(super) fn expendable(&self, random: &mut Random) -> String {
        let all =
            if self.control_plane > 1 { self.machines() } else { self.worker_names().collect() };
        random.pick(&all).clone()
    }

    /// All owners of machines, as a script names them.
    pub(super) fn owners(&self) -> Vec<String> {
        let workers = (self.workers > 0).then(|| format!("md/{DEPLOYMENT}"));
        [self.control_plane_owner()].into_iter().chain(workers).collect()
    }

    /// An owner of machines, as a script names it.
    pub(super) fn owner(&self, random: &mut Random) -> String {
        if self.workers > 0 && random.chance(1, 2) {
            format!("md/{DEPLOYMENT}")
        } else {
            self.control_plane_owner()
        }
    }

    /// The same cluster, as one of Canonical Kubernetes.
    pub(super) fn with_snaps(self, seed: u64) -> Self {
        let keys = if seed.is_multiple_of(2) { CANONICAL } else { REFIT };
        Self { snaps: Some(keys), updater: None, tasks: None, ..self }
    }

    /// The control plane, as a script names it.
    pub(super) fn control_plane_owner(&self) -> String {
        format!("{}/{CLUSTER}", self.control_plane_kind().to_lowercase())
    }

    /// Kind of the control plane.
    pub(super) fn control_plane_kind(&self) -> &'static str {
        if self.snaps.is_some() { canonical::CONTROL_PLANE } else { "KubeadmControlPlane" }
    }

    pub(super) fn has_provider(&self) -> bool {
        self.updater == Some(Updater::Provider)
    }

    pub(super) fn has_hook(&self) -> bool {
        matches!(self.updater, Some(Updater::Hook(_)))
    }

    /// The lines that add the Updater.
    pub(super) fn updater(&self) -> Vec<String> {
        let updater = |disruption, how| {
            format!(
                "apply <<END\n{{apiVersion: refit.dev/v1alpha1, kind: Updater, \
                 metadata: {{name: memory}}, spec: {{action: Update, disruption: {disruption}, \
                 claims: [{{group: infrastructure.cluster.x-k8s.io, kind: SandboxMachine, \
                 paths: [/spec/memoryMiB]}}], {how}, \
                 verify: [\"infrastructureMachine.metadata.annotations['memory.example/has'] == \
                 string(infrastructureMachine.spec.memoryMiB)\"]}}}}\nEND"
            )
        };
        match self.updater {
            None => Vec::new(),
            Some(Updater::Hook(disruption)) => {
                vec![updater(disruption, "hook: {url: \"https://hook-updater.updaters.svc\"}")]
            }
            Some(Updater::Provider) => vec![
                MEMORY_TEMPLATE.to_owned(),
                updater("Drain", MEMORY_PROVIDER),
                "wait updater/memory Accepted 1m".to_owned(),
            ],
        }
    }

    /// The same with a template for each version, whose machines have another memory.
    fn request_with_memory(&self, version: &str) -> Vec<String> {
        let numbers: Vec<u32> = version.split('.').filter_map(|part| part.parse().ok()).collect();
        let memory = 8192 + numbers.iter().fold(0, |sum, number| sum * 64 + number);
        let name = format!("memory-{memory}");
        let template = format!(
            "apply <<END\n{{apiVersion: infrastructure.cluster.x-k8s.io/v1beta2, \
             kind: SandboxMachineTemplate, metadata: {{name: {name}, namespace: default}}, \
             spec: {{template: {{spec: {{cpus: 4, memoryMiB: {memory}}}}}}}}}\nEND"
        );
        let mut lines = vec![
            template,
            format!(
                "change kcp/{CLUSTER} spec.version {version} \
                 spec.machineTemplate.spec.infrastructureRef.name {name}"
            ),
        ];
        if self.workers > 0 {
            lines.push(format!(
                "change md/{DEPLOYMENT} spec.template.spec.version {version} \
                 spec.template.spec.infrastructureRef.name {name}"
            ));
        }
        lines
    }

    /// The lines that request a version for all machines.
    pub(super) fn request(&self, version: &str) -> Vec<String> {
        if self.updater.is_some() {
            return self.request_with_memory(version);
        }
        if let Some(keys) = self.snaps {
            return snaps::request(keys, self, version);
        }
        match self.tasks {
            Some(TaskFor::Cluster) => return vec![tasks::request_cluster(version)],
            Some(TaskFor::Owner) => {
                let owners = self.owners().into_iter();
                return owners.map(|owner| tasks::create(&owner, version, None)).collect();
            }
            None => {}
        }
        let mut lines = vec![format!("change kcp/{CLUSTER} spec.version {version}")];
        if self.workers > 0 {
            lines.push(format!("change md/{DEPLOYMENT} spec.template.spec.version {version}"));
        }
        lines
    }

    /// The lines by which a provider's upgrade defaults a new field in templates and machines.
    pub(super) fn new_default(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "change sandboxmachinetemplate/{CLUSTER}-control-plane \
             spec.template.spec.powerOffMode hard"
        )];
        if self.workers > 0 {
            lines.push(format!(
                "change sandboxmachinetemplate/{DEPLOYMENT} spec.template.spec.powerOffMode hard"
            ));
        }
        let machines = self.machines();
        lines.extend(
            machines
                .iter()
                .map(|name| format!("change sandboxmachine/{name} spec.powerOffMode hard")),
        );
        lines
    }

    /// The manifests of the cluster.
    pub(super) fn manifests(&self) -> String {
        let mut yaml = String::new();
        if self.held.is_some() {
            yaml.push_str(held::NAMESPACE);
        }
        if self.has_provider() {
            yaml.push_str(PROVIDER_KINDS);
            yaml.push_str("\n---\n");
        }
        if self.fleet.is_some() {
            yaml.push_str(&Fleet::manifests());
        }
        let template = |name: &str| {
            format!(
                "apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\n\
                 kind: SandboxMachineTemplate\n\
                 metadata: {{name: {name}, namespace: default}}\n\
                 spec: {{template: {{spec: {{cpus: 4, memoryMiB: 8192}}}}}}\n---\n"
            )
        };
        let reference = |group: &str, kind: &str, name: &str| {
            format!("{{apiGroup: {group}.cluster.x-k8s.io, kind: {kind}, name: {name}}}")
        };
        let _ = write!(
            yaml,
            "apiVersion: cluster.x-k8s.io/v1beta2\n\
             kind: Cluster\n\
             metadata: {{name: {CLUSTER}, namespace: default}}\n\
             spec:\n  \
               controlPlaneRef: {}\n  \
               infrastructureRef: {}\n---\n\
             apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\n\
             kind: SandboxCluster\n\
             metadata: {{name: {CLUSTER}, namespace: default}}\n\
             spec: {{controlPlaneEndpoint: {{host: {CLUSTER}.example.com, port: 6443}}}}\n---\n\
             apiVersion: controlplane.cluster.x-k8s.io/v1beta2\n\
             kind: {}\n\
             metadata: {{name: {CLUSTER}, namespace: default{}}}\n\
             spec:\n  \
               replicas: {}\n  \
               version: {FIRST_VERSION}\n  \
               {}\
               machineTemplate: {}\n---\n{}",
            reference("controlplane", self.control_plane_kind(), CLUSTER),
            reference("infrastructure", "SandboxCluster", CLUSTER),
            self.control_plane_kind(),
            // Where operators create tasks, these update the machine.
            self.held
                .filter(|_| self.tasks.is_none())
                .map_or_else(String::new, |held| held.annotations(self.control_plane)),
            self.control_plane,
            // Cluster API replaces the only machine of a control plane: it rejects maxSurge 0 there.
            if self.control_plane > 1 && self.snaps.is_none() { NO_SURGE } else { "" },
            if self.snaps.is_some() {
                MACHINES_OF_CANONICAL.to_owned()
            } else {
                let template =
                    reference("infrastructure", "SandboxMachineTemplate", "edge-1-control-plane");
                format!("{{spec: {{infrastructureRef: {template}}}}}")
            },
            template("edge-1-control-plane"),
        );
        if self.workers > 0 {
            self.add_workers(&mut yaml, reference);
            yaml.push_str(&template(DEPLOYMENT));
        }
        if self.health_check {
            yaml.push_str(HEALTH_CHECK);
        }
        yaml
    }

    fn add_workers(&self, yaml: &mut String, reference: impl Fn(&str, &str, &str) -> String) {
        let config =
            if self.snaps.is_some() { "CK8sConfigTemplate" } else { "KubeadmConfigTemplate" };
        let _ = write!(
            yaml,
            "apiVersion: bootstrap.cluster.x-k8s.io/v1beta2\n\
             kind: {config}\n\
             metadata: {{name: {DEPLOYMENT}, namespace: default}}\n\
             spec: {{template: {{spec: {{}}}}}}\n---\n\
             apiVersion: cluster.x-k8s.io/v1beta2\n\
             kind: MachineDeployment\n\
             metadata: {{name: {DEPLOYMENT}, namespace: default}}\n\
             spec:\n  \
               clusterName: {CLUSTER}\n  \
               replicas: {}\n  \
               rollout:\n    \
                 strategy:\n      \
                   type: RollingUpdate\n      \
                   rollingUpdate: {{maxSurge: {}, maxUnavailable: {}}}\n  \
               selector: {{matchLabels: {{}}}}\n  \
               template:\n    \
                 spec:\n      \
                   clusterName: {CLUSTER}\n      \
                   version: {FIRST_VERSION}\n      \
                   bootstrap: {{configRef: {}}}\n      \
                   infrastructureRef: {}\n---\n",
            self.workers,
            self.max_surge,
            self.max_unavailable,
            reference("bootstrap", config, DEPLOYMENT),
            reference("infrastructure", "SandboxMachineTemplate", DEPLOYMENT),
        );
    }

    /// The versions of a run, before its first upgrade.
    pub(super) fn versions() -> Version {
        Version { previous: FIRST_VERSION.to_owned(), now: FIRST_VERSION.to_owned(), upgrades: 0 }
    }
}

/// The kinds of `examples/provider`.
const PROVIDER_KINDS: &str = include_str!("../../../../examples/provider/crds.yaml");

const MEMORY_TEMPLATE: &str = "apply <<END\n{apiVersion: memory.example/v1, kind: MemoryUpdateTemplate, \
     metadata: {name: memory, namespace: default}, spec: {template: {spec: {}}}}\nEND";

/// What an Updater with a provider has in place of a hook. Its time is short, so that some are too late.
const MEMORY_PROVIDER: &str = "timeoutSeconds: 1200, template: {apiVersion: memory.example/v1, \
     kind: MemoryUpdateTemplate, name: memory}";

const NO_SURGE: &str =
    "rollout: {strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0}}}\n  ";

const MACHINES_OF_CANONICAL: &str = "{infrastructureTemplate: \
     {apiVersion: infrastructure.cluster.x-k8s.io/v1beta2, kind: SandboxMachineTemplate, name: edge-1-control-plane}}";

const HEALTH_CHECK: &str = r#"apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineHealthCheck
metadata: {name: edge-1-workers, namespace: default}
spec:
  clusterName: edge-1
  selector: {matchLabels: {cluster.x-k8s.io/deployment-name: edge-1-md-0}}
  checks:
    unhealthyNodeConditions:
    - {type: Ready, status: Unknown, timeoutSeconds: 300}
    - {type: Ready, status: "False", timeoutSeconds: 300}
  remediation: {triggerIf: {unhealthyLessThanOrEqualTo: 1}}
"#;
