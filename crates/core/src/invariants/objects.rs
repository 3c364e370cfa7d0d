//! The few fields that the invariants read, parsed directly from JSON.

use std::collections::BTreeMap;

use jiff::Timestamp;
use refit_cluster_api::IntOrPercent;
use refit_kinds::{
    canonical::K8SD,
    json::{annotation, condition, controller, label, name, text, time},
    keys,
    refit::{Disruption, Gate, HostStep, Phase, PlannedStep, StepType},
    version::StatedVersion,
};
use serde::Deserialize as _;
use serde_json::Value;
use strum::VariantArray as _;

fn parsed<T: serde::de::DeserializeOwned + Default>(value: &Value, pointer: &str) -> T {
    let value = value.pointer(pointer).cloned();
    value.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
}

fn owned((kind, name): (&str, &str)) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

pub(super) fn deleted_at(value: &Value) -> Option<Timestamp> {
    time(value, "/metadata/deletionTimestamp")
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub(super) struct Machine {
    pub(super) uid: String,
    pub(super) cluster: String,
    pub(super) node: String,
    pub(super) owner: Option<(String, String)>,
    pub(super) version: StatedVersion,
    pub(super) control_plane: bool,
    pub(super) deleted_at: Option<Timestamp>,
    pub(super) updating: bool,
    pub(super) guarded: bool,
    pub(super) to_be_remediated: bool,
    /// Whether it has ever been available.
    pub(super) has_joined: bool,
    /// Whether its Cluster has it only for an upgrade.
    pub(super) is_extra: bool,
}

impl Machine {
    pub(super) fn of(value: &Value) -> Self {
        let remediation = condition(value, "OwnerRemediated") == Some("False");
        let note = annotation(value, keys::GUARDED_BY_US);
        Self {
            uid: text(value, "/metadata/uid").to_owned(),
            cluster: text(value, "/spec/clusterName").to_owned(),
            node: text(value, "/status/nodeRef/name").to_owned(),
            owner: controller(value).map(owned),
            version: text(value, "/spec/version").into(),
            control_plane: label(value, keys::CONTROL_PLANE).is_some(),
            deleted_at: deleted_at(value),
            updating: annotation(value, keys::UPDATE_IN_PROGRESS).is_some(),
            guarded: note.is_some(),
            to_be_remediated: remediation || annotation(value, keys::REMEDIATE_MACHINE).is_some(),
            has_joined: condition(value, "Available") == Some("True"),
            is_extra: label(value, keys::EXTRA_CAPACITY).is_some(),
        }
    }
}

/// A control plane, MachineDeployment or MachineSet.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) parent: Option<(String, String)>,
    pub(super) replicas: Option<i32>,
    pub(super) may_be_down: i32,
    pub(super) surges: bool,
    pub(super) on_delete: bool,
    pub(super) version: StatedVersion,
    pub(super) policy: Policy,
    pub(super) deleting: bool,
}

/// The policy in annotations.
#[derive(Clone, Debug, Default)]
pub(super) struct Policy {
    pub(super) on_uncovered: Option<String>,
    pub(super) in_place: Option<String>,
}

impl Policy {
    pub(super) fn of(value: &Value) -> Self {
        Self {
            on_uncovered: annotation(value, keys::ON_UNCOVERED).map(str::to_owned),
            in_place: annotation(value, keys::IN_PLACE).map(str::to_owned),
        }
    }

    pub(super) fn allows_replacement(&self) -> bool {
        self.on_uncovered.as_deref() == Some("Replace")
            || self.in_place.as_deref() == Some("Disabled")
    }
}

impl Owner {
    pub(super) fn of(kind: &str, value: &Value) -> Self {
        let replicas: Option<i32> = parsed(value, "/spec/replicas");
        let limit = |field: &str| {
            let field = value.pointer(&format!("/spec/rollout/strategy/rollingUpdate/{field}"))?;
            IntOrPercent::try_from(field).ok()
        };
        let desired = i64::from(replicas.unwrap_or(1));
        let unavailable = limit("maxUnavailable").map_or(0, |limit| limit.rounded_down(desired));
        let unavailable = i32::try_from(unavailable).unwrap_or(i32::MAX);
        let owner = refit_kinds::refit::Owner::of_kind(kind);
        let deployment = owner == Some(refit_kinds::refit::Owner::Deployment);
        // Cluster API's default is to surge by one.
        let on_delete = text(value, "/spec/rollout/strategy/type") == "OnDelete";
        let surges = limit("maxSurge").is_none_or(|limit| limit.rounded_up(desired) > 0);
        Self {
            parent: controller(value).map(owned),
            replicas,
            may_be_down: if deployment && surges { unavailable } else { unavailable.max(1) },
            surges,
            on_delete,
            version: owner.map_or("", |owner| text(value, owner.version_path())).into(),
            policy: Policy::of(value),
            deleting: deleted_at(value).is_some(),
        }
    }
}

/// The steps of a plan that renews certificates.
const OF_CERTIFICATES: &[&str] = &["preflight", "certificates-renew", "verify"];

#[derive(Clone, Debug)]
pub(super) struct Update {
    pub(super) uid: String,
    pub(super) machine_uid: String,
    pub(super) phase: Phase,
    pub(super) goal: StatedVersion,
    pub(super) started_at: String,
    pub(super) failure_reason: String,
    pub(super) blocked: bool,
    pub(super) aborted: bool,
    pub(super) cordoned_by_us: bool,
    /// When the refresh of the node's snap began that may run now.
    pub(super) refreshes_since: Option<String>,
    pub(super) origin: String,
    /// How it disturbs its machine, by its parts.
    pub(super) disruption: Disruption,
    /// The only steps that its plan may have, if it issues certificates and none of its parts drains the node.
    pub(super) only_steps: Option<&'static [&'static str]>,
    pub(super) rank: (bool, bool, Option<u32>, String, String),
}

impl Update {
    pub(super) fn of(value: &Value) -> Self {
        let name = name(value);
        let machine = text(value, "/spec/machineRef/name");
        let phase: Phase = parsed(value, "/status/phase");
        let blocked = value.pointer("/status/blockedBy").and_then(Value::as_array);
        let parts = value.pointer("/status/parts").and_then(Value::as_array);
        let certificates = value.pointer("/spec/goal/certificates").is_some();
        let disruption = disruption_of(value, certificates);
        let snap = parts.into_iter().flatten().find(|part| text(part, "/updater") == K8SD);
        Self {
            uid: text(value, "/metadata/uid").to_owned(),
            machine_uid: text(value, "/spec/machineRef/uid").to_owned(),
            phase,
            goal: text(value, "/spec/goal/kubernetesVersion").into(),
            started_at: text(value, "/status/startedAt").to_owned(),
            failure_reason: text(value, "/status/failureReason").to_owned(),
            blocked: blocked.is_some_and(|list| !list.is_empty()),
            aborted: text(value, "/spec/stage") == "Abort",
            cordoned_by_us: value.pointer("/status/cordonedByUs") == Some(&Value::Bool(true)),
            refreshes_since: snap
                .filter(|snap| !phase.is_final() && text(snap, "/state") == "Running")
                .map(|snap| text(snap, "/refresh/beganAt").to_owned()),
            origin: text(value, "/spec/origin").to_owned(),
            disruption,
            only_steps: (certificates && !disruption.drains()).then_some(OF_CERTIFICATES),
            rank: (
                !phase.is_final(),
                !phase.is_final() || !certificates,
                refit_kinds::refit::ordinal_of(name, machine),
                text(value, "/metadata/creationTimestamp").to_owned(),
                name.to_owned(),
            ),
        }
    }
}

/// How the parts of a NodeUpdate disturb its machine: what an absent field means is in the kinds.
fn disruption_of(update: &Value, certificates: bool) -> Disruption {
    let Some(parts) = update.pointer("/spec/parts").and_then(Value::as_array) else {
        return if certificates { Disruption::Restart } else { Disruption::Drain };
    };
    let of_part = |part: &Value| {
        let stated: Disruption = parsed(part, "/disruption");
        // A provider works on a drained machine.
        if part.get("template").is_some() { stated.max(Disruption::Drain) } else { stated }
    };
    let made = parts.iter().filter(|part| text(part, "/action") != "Leave");
    made.map(of_part).max().unwrap_or(Disruption::None)
}

#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) ready: bool,
    pub(super) unschedulable: bool,
    pub(super) cordoned_by: Option<String>,
    pub(super) excluded_by: Option<String>,
    pub(super) version: StatedVersion,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) taints: Vec<Value>,
}

impl Node {
    pub(super) fn of(value: &Value) -> Self {
        let taints: Vec<Value> = parsed(value, "/spec/taints");
        Self {
            ready: condition(value, "Ready") == Some("True"),
            unschedulable: value.pointer("/spec/unschedulable") == Some(&Value::Bool(true)),
            cordoned_by: annotation(value, keys::CORDONED_BY).map(str::to_owned),
            excluded_by: annotation(value, keys::EXCLUDED_BY).map(str::to_owned),
            version: text(value, "/status/nodeInfo/kubeletVersion").into(),
            labels: parsed(value, "/metadata/labels"),
            taints: taints
                .into_iter()
                .filter(|taint| taint["key"] != "node.kubernetes.io/unschedulable")
                .collect(),
        }
    }

    pub(super) fn cordoned_by_us(&self) -> bool {
        self.unschedulable && self.cordoned_by.is_some()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) plan_id: String,
    pub(super) gate: Gate,
    pub(super) passed: Gate,
    pub(super) ended: bool,
    /// How its update disturbs the machine.
    pub(super) disruption: Disruption,
    /// Ids of its steps, and how much each disturbs the machine at least.
    pub(super) steps: Vec<(String, Disruption)>,
}

impl Plan {
    pub(super) fn of(value: &Value) -> Self {
        let plan_id = text(value, "/spec/planId").to_owned();
        let state = text(value, "/status/state");
        let is_reported = text(value, "/status/planId") == plan_id;
        let passed: Gate = parsed(value, "/status/passed");
        let steps = value.pointer("/spec/steps").and_then(Value::as_array);
        Self {
            gate: parsed(value, "/spec/gate"),
            passed: if is_reported { passed } else { Gate::Closed },
            ended: is_reported && matches!(state, "Succeeded" | "Failed" | "Stopped"),
            disruption: parsed(value, "/spec/disruption"),
            steps: steps.into_iter().flatten().map(step).collect(),
            plan_id,
        }
    }
}

/// The id of a planned step, and how much it disturbs the machine at least.
fn step(value: &Value) -> (String, Disruption) {
    let id = text(value, "/id");
    let planned = PlannedStep::deserialize(value).ok();
    let least = planned.as_ref().and_then(PlannedStep::step).map(HostStep::least_disruption);
    let of_type = || {
        let type_ = StepType::VARIANTS.iter().find(|type_| type_.id() == id)?;
        Some(type_.rules().least_disruption)
    };
    (id.to_owned(), least.or_else(of_type).unwrap_or(Disruption::None))
}

/// A mirror pod of the control plane.
#[derive(Clone, Debug)]
pub(super) struct StaticPod {
    pub(super) node: String,
    pub(super) component: String,
    pub(super) ready: bool,
}

impl StaticPod {
    pub(super) fn of(value: &Value) -> Option<Self> {
        (label(value, "tier") == Some("control-plane")).then(|| Self {
            node: text(value, "/spec/nodeName").to_owned(),
            component: label(value, "component").unwrap_or_default().to_owned(),
            ready: condition(value, "Ready") == Some("True"),
        })
    }
}

/// Machine and its uid of each slot, and of each update without one.
pub(super) fn slots(value: &Value) -> Vec<(String, String)> {
    let lists = ["/status/slots", "/status/undisturbed"];
    let lists = lists.into_iter().filter_map(|list| value.pointer(list)?.as_array());
    lists
        .flatten()
        .map(|slot| (text(slot, "/machine").to_owned(), text(slot, "/machineUid").to_owned()))
        .collect()
}
