//! HostPlans written by hand, and the agent's reports about them.

use std::time::Duration;

use anyhow::Context as _;
use kube::{Api, Client};
use refit_core::node::{HostWork, Reboot};
use refit_kinds::{
    keys,
    refit::{
        Gate, HostFacts, HostPlan, HostPlanStatus, HostStep, HostStepStatus, PlanSettings,
        PlanState, PlannedStep, Role, StepType,
    },
};
use serde_json::{Value, json};
use strum::VariantArray as _;

use crate::{eventually, host::Host, management::send};

/// A plan for a host.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// ID of the plan.
    pub id: &'a str,
    /// Role of the host.
    pub role: Role,
    /// The version to reach.
    pub goal: &'a str,
    /// When to reboot.
    pub reboot: Reboot,
    /// How far the agent may proceed.
    pub gate: Gate,
}

/// A cluster whose hosts have plans.
pub trait Planned {
    /// A client of its API with all permissions.
    fn workload(&self) -> &Client;
}

impl Planned for crate::cluster::Cluster {
    fn workload(&self) -> &Client {
        &self.workload
    }
}

impl Planned for crate::kubernetes::Cluster {
    fn workload(&self) -> &Client {
        &self.client
    }
}

impl Order<'_> {
    /// Returns the steps, and the first step that cannot be rolled back.
    pub fn steps(&self) -> (Vec<PlannedStep>, &'static str) {
        self.steps_with(&PlanSettings::default())
    }

    /// As [`Self::steps`], on hosts with these settings.
    fn steps_with(&self, settings: &PlanSettings) -> (Vec<PlannedStep>, &'static str) {
        let version = self.goal.parse().expect("the tests use valid versions");
        let work = HostWork {
            reboot: self.reboot,
            os_image: None,
            facts: Some(&HostFacts::default()),
            ..HostWork::upgrade(self.role, &version, settings)
        };
        (work.steps(), work.point_of_no_return())
    }
}

fn path(node: &str) -> String {
    format!("/apis/refit.dev/v1alpha1/namespaces/{}/hostplans/{node}", keys::HOST_PLAN_NAMESPACE)
}

/// Creates a plan for the host, as the controller does, with the gate open.
pub async fn order(cluster: &impl Planned, host: &Host, order: Order<'_>) -> anyhow::Result<()> {
    order_part(cluster, host, order, StepType::VARIANTS).await
}

/// As [`order`], with only the steps of these types.
pub async fn order_part(
    cluster: &impl Planned,
    host: &Host,
    order: Order<'_>,
    types: &[StepType],
) -> anyhow::Result<()> {
    order_part_with(cluster, host, order, types, &PlanSettings::default()).await
}

/// As [`order_part`], on hosts with these settings.
pub async fn order_part_with(
    cluster: &impl Planned,
    host: &Host,
    order: Order<'_>,
    types: &[StepType],
    settings: &PlanSettings,
) -> anyhow::Result<()> {
    let (mut steps, point_of_no_return) = order.steps_with(settings);
    steps.retain(|step| step.step_type().is_some_and(|type_| types.contains(&type_)));
    send_plan(cluster, host, order.id, order.gate, point_of_no_return, &steps).await
}

/// Creates a plan with this step alone, with the gate open. It has one attempt.
pub async fn order_step(
    cluster: &impl Planned,
    host: &Host,
    id: &str,
    step: HostStep,
) -> anyhow::Result<()> {
    let step = PlannedStep { max_attempts: Some(1), ..PlannedStep::new(step) };
    send_plan(cluster, host, id, Gate::Disrupt, "", &[step]).await
}

async fn send_plan(
    cluster: &impl Planned,
    host: &Host,
    id: &str,
    gate: Gate,
    point_of_no_return: &str,
    steps: &[PlannedStep],
) -> anyhow::Result<()> {
    let body = json!({"spec": {
        "nodeUpdate": id,
        "planId": id,
        "gate": gate,
        "abort": false,
        "pointOfNoReturn": point_of_no_return,
        "steps": steps,
    }});
    send(cluster.workload(), "PATCH", &path(&host.name), &body).await.map(drop)
}

/// Requests an abort from the agent.
pub async fn abort(cluster: &impl Planned, host: &Host) -> anyhow::Result<()> {
    let body = json!({"spec": {"abort": true}});
    send(cluster.workload(), "PATCH", &path(&host.name), &body).await.map(drop)
}

/// Returns the status that the agent reports.
pub async fn status(cluster: &impl Planned, host: &Host) -> anyhow::Result<HostPlanStatus> {
    let plans: Api<HostPlan> =
        Api::namespaced(cluster.workload().clone(), keys::HOST_PLAN_NAMESPACE);
    let plan = plans.get(&host.name).await?;
    plan.status.with_context(|| format!("the agent of {} has not reported a status", host.name))
}

/// Waits until the agent reports that this plan has ended, and returns the result.
pub async fn ended(
    cluster: &impl Planned,
    host: &Host,
    id: &str,
    seconds: u64,
) -> anyhow::Result<HostPlanStatus> {
    let ask = async || {
        let status = status(cluster, host).await.map_err(|error| format!("{error:#}"))?;
        let over =
            matches!(status.state, PlanState::Succeeded | PlanState::Failed | PlanState::Stopped);
        if over && status.plan_id == id {
            return Ok(status);
        }
        let steps: Vec<String> = status
            .steps
            .iter()
            .map(|step| format!("{} {:?} {} {}", step.id, step.state, step.reason, step.message))
            .collect();
        Err(format!("{} {:?}: {}", status.plan_id, status.state, steps.join("; ")))
    };
    eventually(&format!("plan {id} of {} has ended", host.name), Duration::from_secs(seconds), ask)
        .await
}

/// Returns the report on a step of this type.
pub fn step(status: &HostPlanStatus, type_: StepType) -> anyhow::Result<&HostStepStatus> {
    let found = status.steps.iter().find(|step| step.id == type_.id());
    found.with_context(|| format!("there is no report on {}: {status:?}", type_.id()))
}

/// Whether the agent's journal records the end of a plan.
pub fn has_ended(host: &Host, id: &str) -> bool {
    entries(host).iter().any(|entry| entry["type"] == "PlanEnded" && entry["plan"] == id)
}

/// Returns the records of the agent's journal, oldest first, each as `Type step`; an incomplete
/// last record is omitted.
pub fn records(host: &Host) -> Vec<String> {
    let shown = |entry: &Value| {
        let word = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        format!("{} {}{}", word("type"), word("step"), word("gate"))
    };
    entries(host).iter().map(shown).collect()
}

/// The complete entries of the agent's journal, oldest first.
fn entries(host: &Host) -> Vec<Value> {
    let text = host.read("var/lib/refit-agent/journal.jsonl");
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let lines = whole.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.map(|mut line| line["entry"].take()).collect()
}
