//! What the host of one machine does: its agent and its kubelet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::refit::{Gate, HostStepStatus, PlanState, StepState};

use super::world::{GOAL, One, at};
use crate::node::ImageVersion;

impl One {
    /// The agent runs every step that its gate allows.
    pub(super) fn host_works(&mut self) {
        let now = self.now;
        let plan = self.plan.as_mut().unwrap();
        let spec = plan.spec.clone();
        let status = plan.status.get_or_insert_default();
        status.plan_id.clone_from(&spec.plan_id);
        status.reported_at = Some(Time(at(now)));
        if spec.abort {
            status.state = PlanState::Stopped;
            return;
        }
        status.steps = spec
            .steps
            .iter()
            .map(|step| {
                let done = step.gate <= spec.gate;
                HostStepStatus {
                    id: step.id.clone(),
                    state: if done { StepState::Done } else { StepState::Pending },
                    attempt: i32::from(done),
                    started_at: done.then(|| Time(at(now))),
                    finished_at: done.then(|| Time(at(now + 5))),
                    ..HostStepStatus::default()
                }
            })
            .collect();
        status.passed = spec.gate;
        status.state =
            if spec.gate == Gate::Disrupt { PlanState::Succeeded } else { PlanState::AtGate };
    }

    /// The agent fails permanently at a step.
    pub(super) fn host_fails(&mut self, id: &str) {
        self.host_works();
        let status = self.plan.as_mut().unwrap().status.as_mut().unwrap();
        let step = status.steps.iter_mut().find(|step| step.id == id).unwrap();
        step.state = StepState::Failed;
        step.reason = "PackageMissing".into();
        step.message = "put the package into the repository".into();
        status.state = PlanState::Failed;
    }

    /// The new kubelet reports its version.
    pub(super) fn kubelet_returns(&mut self) {
        self.now += 10;
        let now = self.now;
        let node = self.node_mut();
        node.ready = true;
        node.kubelet_version = GOAL.into();
        node.heartbeat = Some(at(now));
        let name = &self.update.spec.machine_ref.name;
        for pod in self.static_pods.iter_mut().filter(|pod| *pod.node == **name) {
            if pod.component != "etcd" {
                pod.version = ImageVersion::of_tag(GOAL);
            }
        }
    }
}
