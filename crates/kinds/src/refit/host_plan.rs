//! HostPlan: the steps of one host, how far it may go, and its report.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::{ClaimId, Disruption, PackageDriver, PlanId, PlannedStep, StepState, StepType};
use crate::version::{self, KubernetesVersion};

/// How often an agent reports when nothing changes, in seconds.
pub const REPORT_INTERVAL_SECONDS: i64 = 300;

/// Longest message in a report, in bytes. The schema, in characters, accepts twice as much.
pub const MAX_MESSAGE: usize = 4096;
/// Longest text of a fact in a report.
pub const MAX_FACT: usize = 1024;
/// Longest id, reason or version in a report.
pub const MAX_NAME: usize = 253;
/// Most steps of a report: those of the plan, and those that roll them back.
pub const MAX_REPORTED_STEPS: usize = 160;
/// Most sentences of a report on what was left behind.
pub const MAX_LEFT_BEHIND: usize = 64;

/// The plan for the agent on a host, and the agent's report. There is one HostPlan per node, with
/// the node's name; the agent creates it with an empty plan and reports before it has a plan.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "refit.dev",
    version = "v1alpha1",
    kind = "HostPlan",
    doc = "The steps for the agent on a host, the gate up to which it may go, and its report.",
    plural = "hostplans",
    shortname = "hp",
    category = "refit",
    namespaced,
    status = "HostPlanStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Plan", type_ = "string", json_path = ".spec.nodeUpdate"),
    printcolumn(name = "Gate", type_ = "string", json_path = ".spec.gate"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Kubelet", type_ = "string", json_path = ".status.facts.kubeletVersion"),
    printcolumn(name = "Agent", type_ = "string", json_path = ".status.agentVersion"),
    printcolumn(name = "Reported", type_ = "date", json_path = ".status.reportedAt")
)]
#[serde(rename_all = "camelCase")]
pub struct HostPlanSpec {
    /// Name of the NodeUpdate of the plan; empty without a plan.
    #[serde(default)]
    pub node_update: String,
    /// uid of that NodeUpdate; it identifies the plan.
    #[serde(default)]
    #[schemars(length(max = MAX_NAME))]
    pub plan_id: PlanId,
    /// How far the agent may go. It only moves forward within one plan.
    #[serde(default)]
    pub gate: Gate,
    /// Whether to stop at the next safe step.
    #[serde(default)]
    pub abort: bool,
    /// The claim of a slot that was returned unused. The gate opens only for a later claim.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub returned_claim: ClaimId,
    /// Id of the first step that cannot be rolled back. A failure or an abort before it rolls back
    /// completed steps. Empty in plans older than this field; the agent then judges by the steps'
    /// types.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub point_of_no_return: String,
    /// How the update of the plan disturbs the machine: whether it takes a slot, whether pods leave first, and whether the
    /// host reboots. Absent: `Drain`, as in plans older than this field. The agent does not read it.
    #[serde(default, skip_serializing_if = "Disruption::is_drain")]
    pub disruption: Disruption,
    /// The steps, in order.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub steps: Vec<PlannedStep>,
}

/// How far an agent may go in its plan.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Gate {
    /// No step may start.
    #[default]
    Closed,
    /// Downloads, checks and snapshots may run: nothing is disturbed.
    Stage,
    /// kubeadm may run: static pods are replaced, workloads keep running.
    Upgrade,
    /// All steps may run: the node is drained.
    Disrupt,
}

impl Gate {
    /// The gate before this one.
    #[must_use]
    pub fn before(self) -> Self {
        match self {
            Self::Closed | Self::Stage => Self::Closed,
            Self::Upgrade => Self::Stage,
            Self::Disrupt => Self::Upgrade,
        }
    }
}

/// The agent's report on its host and its plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostPlanStatus {
    /// Version of the agent.
    #[serde(default)]
    #[schemars(length(max = MAX_NAME))]
    pub agent_version: String,
    /// Step types that the agent supports, without those of a newer agent that this version does
    /// not know.
    #[serde(default, deserialize_with = "known_types")]
    #[schemars(length(max = 64))]
    pub capabilities: Vec<StepType>,
    /// The state of the host.
    #[serde(default)]
    pub facts: HostFacts,
    /// When the agent last reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_at: Option<Time>,
    /// The plan that `state` and `steps` refer to.
    #[serde(default)]
    #[schemars(length(max = MAX_NAME))]
    pub plan_id: PlanId,
    /// Progress of that plan.
    #[serde(default)]
    pub state: PlanState,
    /// The gate up to which every step is done.
    #[serde(default)]
    pub passed: Gate,
    /// The steps, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = MAX_REPORTED_STEPS),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"])
    )]
    pub steps: Vec<HostStepStatus>,
    /// Whether the plan has passed its point of no return: it runs to completion and is not rolled
    /// back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub past_no_return: bool,
    /// What a failed or stopped plan has left on the host, each entry a whole sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_LEFT_BEHIND), inner(length(max = 4096)))]
    pub left_behind: Vec<String>,
}

fn known_types<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<StepType>, D::Error> {
    let names = Vec::<serde_json::Value>::deserialize(deserializer)?;
    Ok(names.into_iter().filter_map(|name| serde_json::from_value(name).ok()).collect())
}

/// The state of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// Version of the running kubelet, `vX.Y.Z`; empty if no kubelet runs.
    #[serde(default, with = "version::or_empty")]
    #[schemars(schema_with = "version::or_empty::schema")]
    pub kubelet_version: Option<KubernetesVersion>,
    /// ID that changes with each boot.
    #[serde(default, rename = "bootID")]
    #[schemars(length(max = MAX_NAME))]
    pub boot_id: String,
    /// Pretty name of the operating system.
    #[serde(default)]
    #[schemars(length(max = MAX_FACT))]
    pub os_image: String,
    /// Versions of the installed packages that Refit manages, by package name.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 64, "additionalProperties" = {"type": "string", "maxLength": MAX_FACT}))]
    pub packages: BTreeMap<String, String>,
    /// Images in the manifests of the static pods, by component; empty on a worker.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16, "additionalProperties" = {"type": "string", "maxLength": MAX_FACT}))]
    pub static_pods: BTreeMap<String, String>,
    /// The package manager that installed Kubernetes on the host; absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_driver: Option<PackageDriver>,
    /// When the certificates expire that kubeadm does not renew on the host, by their absolute
    /// paths.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub certificates: BTreeMap<String, Time>,
    /// When the first of the certificates expires that kubeadm renews on the host; absent if it has no such certificate,
    /// or one cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates_end: Option<Time>,
    /// Why the host must boot before all its installed packages are in use; absent if it need not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_FACT))]
    pub reboot_required: Option<String>,
    /// The facts that the agent could not read. Above, each has its last known value, or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["fact"])
    )]
    pub unread: Vec<UnreadFact>,
}

/// A fact that the agent could not read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnreadFact {
    /// Name of its field, such as `packages`.
    #[schemars(length(max = 63))]
    pub fact: String,
    /// Why it could not be read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_MESSAGE))]
    pub message: String,
}

/// Progress of a plan on its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PlanState {
    /// There is no plan.
    #[default]
    Idle,
    /// A step is under way.
    Running,
    /// The next step needs a gate that is not open.
    AtGate,
    /// A step failed and will be retried.
    Retrying,
    /// A step failed permanently, or the plan was aborted: completed steps are being rolled back.
    Undoing,
    /// Every step is done.
    Succeeded,
    /// A step failed permanently.
    Failed,
    /// The plan was aborted, and everything that could be rolled back was.
    Stopped,
}

/// Status of one step on its host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostStepStatus {
    /// Id of the planned step.
    #[schemars(length(max = MAX_NAME))]
    pub id: String,
    /// State of the step.
    pub state: StepState,
    /// Number of the current attempt, from 1.
    #[serde(default)]
    pub attempt: i32,
    /// When the first attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the step finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// CamelCase reason of a failure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_NAME))]
    pub reason: String,
    /// What can resolve the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureKind>,
    /// What failed and what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 2 * MAX_MESSAGE))]
    pub message: String,
}

/// What can resolve a failure.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum FailureKind {
    /// A retry: the cause is a lock, a mirror or a timeout.
    Retriable,
    /// A different plan: this plan cannot be carried out on this host.
    Final,
    /// Manual intervention on this host or on something it depends on; then a retry.
    NeedsPerson,
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt as _;
    use serde_json::Value;

    use super::*;

    /// The parts of a schema that accept a value of any size.
    fn unbounded(path: &str, schema: &Value) -> Vec<String> {
        let lacks = |limit: &str| schema.get(limit).is_none();
        let is_free = match schema["type"].as_str() {
            Some("string") => {
                lacks("maxLength") && lacks("enum") && schema["format"] != "date-time"
            }
            Some("array") => lacks("maxItems"),
            Some("object") => lacks("properties") && lacks("maxProperties"),
            _ => false,
        };
        let fields = schema["properties"].as_object().into_iter().flatten();
        let fields = fields.map(|(name, field)| (&**name, field));
        let rest = ["items", "additionalProperties"];
        let rest = rest.into_iter().filter_map(|name| Some((name, schema.get(name)?)));
        let inside =
            fields.chain(rest).flat_map(|(name, part)| unbounded(&format!("{path}.{name}"), part));
        is_free.then(|| path.to_owned()).into_iter().chain(inside).collect()
    }

    #[test]
    fn a_plan_without_a_disruption_drains_and_is_written_as_before() {
        let old = serde_json::json!({"nodeUpdate": "m-0-1", "planId": "u", "gate": "Stage"});
        let plan: HostPlanSpec = serde_json::from_value(old).unwrap();
        assert_eq!(plan.disruption, Disruption::Drain);
        let written = serde_json::to_value(&plan).unwrap();
        assert_eq!(written.get("disruption"), None, "an older agent may verify its signature");
        for disruption in [Disruption::None, Disruption::Restart, Disruption::Reboot] {
            let plan = HostPlanSpec { disruption, ..plan.clone() };
            let written = serde_json::to_value(&plan).unwrap();
            assert_eq!(written["disruption"], serde_json::json!(disruption));
            assert_eq!(serde_json::from_value::<HostPlanSpec>(written).unwrap(), plan);
        }
    }

    #[test]
    fn everything_in_a_report_is_bounded() {
        let crd = serde_json::to_value(HostPlan::crd()).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let status = &schema["properties"]["status"];
        assert!(status["properties"]["steps"].is_object());
        assert_eq!(unbounded("status", status), Vec::<String>::new());
    }
}
