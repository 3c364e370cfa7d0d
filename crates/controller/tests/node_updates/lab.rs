//! Three workers behind real API servers, and a controller that may die.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use lab_apiserver::ChangeKind;
use refit_cluster_api::kinds::{Cluster, Machine, MachineDeployment, MachineSet};
use refit_controller::{NewNodeUpdate, node_update, sabotage::Safeguard};
use refit_core::invariants::World;
use refit_kinds::{
    conditions, keys,
    refit::{
        Gate, Goal, HostPlan, HostPlanSpec, HostPlanStatus, HostStepStatus, MachineRef, NodeUpdate,
        Origin, Phase, PlanState, StepState, StepType, Until, UpdateGroup,
    },
};
use refit_runtime::Clock;
use serde_json::{Value, json};

use crate::common::{
    objects::{install_kinds, made, made_in, owner, status},
    site::Site,
};

pub(crate) const FROM: &str = "v1.34.2";
pub(crate) const GOAL: &str = "v1.35.0";
pub(crate) const WORKERS: [&str; 3] = ["w-0", "w-1", "w-2"];

/// Two API servers, hosts and kubelets; controllers start and stop.
pub(crate) struct Lab {
    pub(crate) site: Site,
    pub(crate) without: Option<Safeguard>,
    pub(crate) violations: Arc<Mutex<Vec<String>>>,
}

impl Lab {
    pub(crate) async fn new() -> Self {
        let lab = Self { site: Site::new(), without: None, violations: Arc::default() };
        lab.watch_invariants();
        lab.set_up_management().await;
        lab.set_up_workload().await;
        lab
    }

    fn watch_invariants(&self) {
        let world = Arc::new(Mutex::new(World::new()));
        for (server, cluster) in
            [(&self.site.management, None), (&self.site.workload, Some("edge-1"))]
        {
            let (world, violations) = (world.clone(), self.violations.clone());
            server.observe(Box::new(move |event| {
                let parse = |bytes: &bytes::Bytes| serde_json::from_slice::<Value>(bytes).unwrap();
                let old = event.old.map(parse);
                let new = (event.kind != ChangeKind::Deleted).then(|| parse(event.new));
                let by_controller = event.user_agent.starts_with("refit-controller");
                let actor = if by_controller { "controller" } else { "user" };
                let found = world.lock().unwrap().observe(
                    &event.resource.group,
                    &event.resource.kind,
                    cluster,
                    old.as_ref(),
                    new.as_ref(),
                    actor,
                );
                violations.lock().unwrap().extend(found.iter().map(ToString::to_string));
            }));
        }
    }

    pub(crate) async fn set_up_management(&self) {
        let client = self.site.client();
        install_kinds(&client).await;
        let cluster: Cluster =
            made(&client, json!({"metadata": {"name": "edge-1"}, "spec": {}})).await;
        let ready = json!({"initialization": {"controlPlaneInitialized": true}});
        status(&client, &cluster, ready).await;
        let deployment: MachineDeployment = made(&client, json!({
            "metadata": {"name": "md"},
            "spec": {
                "clusterName": "edge-1", "replicas": 3, "selector": {},
                "template": {"spec": {"clusterName": "edge-1", "version": GOAL}},
                "rollout": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
            },
        }))
        .await;
        let set: MachineSet = made(
            &client,
            json!({
                "metadata": {"name": "md-a", "ownerReferences": [owner(&deployment)]},
                "spec": {
                    "clusterName": "edge-1", "replicas": 3, "selector": {},
                    "template": {"spec": {"clusterName": "edge-1", "version": GOAL}},
                },
            }),
        )
        .await;
        for name in WORKERS {
            let machine: Machine = made(
                &client,
                json!({
                    "metadata": {"name": name, "ownerReferences": [owner(&set)]},
                    "spec": {"clusterName": "edge-1", "version": GOAL},
                }),
            )
            .await;
            let available = json!({
                "nodeRef": {"name": name},
                "conditions": [{
                    "type": "Available", "status": "True", "reason": "Available", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            });
            status(&client, &machine, available).await;
        }
        self.site.connect(&client, "edge-1").await;
    }

    pub(crate) async fn set_up_workload(&self) {
        let client = self.site.workload_client();
        for name in WORKERS {
            let node: Node =
                made_in(&Api::all(client.clone()), json!({"metadata": {"name": name}})).await;
            self.kubelet_reports(&node.name_any(), FROM).await;
            let _: Pod = made(
                &client,
                json!({
                    "metadata": {"name": format!("web-{name}"), "labels": {"app": "web"},
                        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet",
                            "name": "web", "uid": "no-such", "controller": true}]},
                    "spec": {"nodeName": name, "containers": [{"name": "web", "image": "web"}]},
                }),
            )
            .await;
        }
    }

    pub(crate) async fn kubelet_reports(&self, node: &str, version: &str) {
        let api: Api<Node> = Api::all(self.site.workload_client());
        let body = kubelet_status(&self.site.clock, version);
        api.patch_status(node, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    }

    /// Creates a NodeUpdate for every worker at once.
    pub(crate) async fn ask(&self) {
        let machines: Api<Machine> = Api::default_namespaced(self.site.client());
        for name in WORKERS {
            let machine = machines.get(name).await.unwrap();
            self.ask_for(name, &machine.uid().unwrap()).await;
        }
    }

    /// Creates a NodeUpdate for one Machine.
    pub(crate) async fn ask_for(&self, machine: &str, uid: &str) {
        let updates: Api<NodeUpdate> = Api::default_namespaced(self.site.client());
        updates.create(&PostParams::default(), &asked(machine, uid)).await.unwrap();
    }

    /// Advances each agent and kubelet by one step.
    pub(crate) async fn hosts_work(&self) {
        let pods: Api<Pod> = Api::default_namespaced(self.site.workload_client());
        for pod in pods.list(&ListParams::default()).await.unwrap() {
            if pod.metadata.deletion_timestamp.is_some() {
                let now = DeleteParams::default().grace_period(0);
                pods.delete(&pod.name_any(), &now).await.unwrap();
            }
        }
        let api: Api<HostPlan> =
            Api::namespaced(self.site.workload_client(), keys::HOST_PLAN_NAMESPACE);
        for name in WORKERS {
            let Ok(plan) = api.get_opt(name).await else {
                return;
            };
            let Some(plan) = plan else {
                let plan = HostPlan::new(name, HostPlanSpec::default());
                if api.create(&PostParams::default(), &plan).await.is_err() {
                    return;
                }
                continue;
            };
            let next = agent_status(&plan, self.site.clock.now_seconds());
            if plan.status.as_ref() != Some(&next) {
                let body = json!({"status": next});
                api.patch_status(name, &PatchParams::default(), &Patch::Merge(&body))
                    .await
                    .unwrap();
                if next.passed == Gate::Disrupt {
                    self.kubelet_reports(name, GOAL).await;
                }
            }
        }
    }

    pub(crate) async fn updates(&self) -> Vec<NodeUpdate> {
        let api: Api<NodeUpdate> = Api::default_namespaced(self.site.client());
        api.list(&ListParams::default()).await.unwrap().items
    }

    /// Runs hosts until the update of every worker has succeeded; each controller lives for
    /// `lifetime`.
    pub(crate) async fn run(&self, lifetime: Duration) {
        let work = async {
            for _ in 0..2000 {
                tokio::time::sleep(Duration::from_secs(2)).await;
                self.hosts_work().await;
                let mut updates = self.updates().await;
                updates.retain(|update| WORKERS.contains(&&*update.spec.machine_ref.name));
                if updates.iter().all(|update| phase(update) == Phase::Succeeded) {
                    // The remaining cleanup needs no host.
                    tokio::time::sleep(Duration::from_mins(2)).await;
                    return;
                }
            }
            panic!("it never ends: {:#?}", self.updates().await);
        };
        tokio::select! {
            biased;
            () = work => {}
            () = self.lives(lifetime) => {}
        }
    }

    /// Runs one controller after the other, each killed at any point.
    pub(crate) async fn lives(&self, lifetime: Duration) {
        loop {
            let life = self.site.controller(self.without);
            if let Ok(ended) = tokio::time::timeout(lifetime, life).await {
                ended.unwrap();
            }
        }
    }

    pub(crate) async fn assert_clean(&self) {
        let violations = self.violations.lock().unwrap().clone();
        assert!(violations.is_empty(), "{violations:#?}");
        let client = self.site.client();
        let machines: Api<Machine> = Api::default_namespaced(client.clone());
        for machine in machines.list(&ListParams::default()).await.unwrap() {
            assert!(machine.annotations().is_empty(), "{:?}", machine.annotations());
            let list = &machine.status.as_ref().unwrap().conditions;
            assert!(conditions::is_true(list, conditions::MACHINE_UP_TO_DATE));
            assert!(conditions::is_true(list, conditions::AVAILABLE));
        }
        let groups: Api<UpdateGroup> = Api::default_namespaced(client);
        let groups = groups.list(&ListParams::default()).await.unwrap().items;
        assert_eq!(groups.len(), 1);
        let status = groups[0].status.as_ref().unwrap();
        assert!(status.slots.is_empty() && status.waiting.is_empty(), "{status:?}");
        assert_eq!(status.durations[0].seconds.len(), WORKERS.len());
        let nodes: Api<Node> = Api::all(self.site.workload_client());
        for node in nodes.list(&ListParams::default()).await.unwrap() {
            assert_eq!(node.spec.unwrap_or_default().unschedulable, None);
            assert_eq!(node.metadata.annotations, None);
        }
    }
}

/// The NodeUpdate for one Machine.
pub(crate) fn asked(machine: &str, uid: &str) -> NodeUpdate {
    let new = NewNodeUpdate {
        namespace: "default".into(),
        machine: MachineRef { name: machine.into(), uid: uid.into() },
        origin: Origin::Task,
        annotation: None,
        until: Until::Disrupt,
        parts: None,
        bundle: None,
        goal: Goal::of_version(GOAL.parse().unwrap()),
    };
    node_update(&new, 1)
}

pub(crate) fn phase(update: &NodeUpdate) -> Phase {
    update.status.as_ref().map(|status| status.phase).unwrap_or_default()
}

/// The status of a Node whose kubelet has just reported this version.
pub(crate) fn kubelet_status(clock: &Clock, version: &str) -> Value {
    json!({"status": {
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
            "lastHeartbeatTime": clock.now_seconds().to_string(),
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
        "nodeInfo": {
            "kubeletVersion": version, "bootID": "b", "architecture": "", "kernelVersion": "",
            "containerRuntimeVersion": "", "kubeProxyVersion": "", "machineID": "",
            "operatingSystem": "", "osImage": "", "systemUUID": "",
        },
    }})
}

/// An agent that immediately runs all steps that its gate allows.
pub(crate) fn agent_status(plan: &HostPlan, now: Timestamp) -> HostPlanStatus {
    let old = plan.status.clone().unwrap_or_default();
    let gate = plan.spec.gate;
    if old.reported_at.is_some() && old.plan_id == plan.spec.plan_id && old.passed == gate {
        return old;
    }
    let steps = plan.spec.steps.iter().map(|step| {
        let done = step.gate <= gate;
        HostStepStatus {
            id: step.id.clone(),
            state: if done { StepState::Done } else { StepState::Pending },
            attempt: i32::from(done),
            started_at: done.then_some(Time(now)),
            finished_at: done.then_some(Time(now)),
            ..HostStepStatus::default()
        }
    });
    HostPlanStatus {
        agent_version: "test".into(),
        capabilities: vec![
            StepType::Preflight,
            StepType::Stage,
            StepType::KubeadmInstall,
            StepType::KubeadmUpgrade,
            StepType::KubeletInstall,
            StepType::KubeletRestart,
            StepType::Verify,
        ],
        reported_at: Some(Time(now)),
        plan_id: plan.spec.plan_id.clone(),
        state: match gate {
            Gate::Closed => PlanState::Idle,
            Gate::Disrupt => PlanState::Succeeded,
            _ => PlanState::AtGate,
        },
        passed: gate,
        steps: steps.collect(),
        ..old
    }
}
