//! A step in a plan: what runs, when, and how often. Unknown actions are kept unchanged, and
//! actions in the format before the union are read.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use strum::VariantArray as _;

use super::{Gate, HostStep, StepType, StepUndo, host_step::lower_first};

/// One step of a host's plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedStep {
    /// Unique in the plan, such as `kubeadm-upgrade`.
    #[schemars(length(max = 63))]
    pub id: String,
    /// The gate that must be open.
    pub gate: Gate,
    /// The step to run.
    pub action: PlannedAction,
    /// Whether pods on the node may notice.
    pub disruptive: bool,
    /// Timeout of one attempt, in seconds; default: the agent's timeout for the step type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub timeout_seconds: Option<i32>,
    /// Maximum number of attempts, the first one included; default: the agent's limit for the step
    /// type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20))]
    pub max_attempts: Option<i32>,
    /// How the step is rolled back if the plan fails or is aborted before its point of no return;
    /// absent: there is nothing to roll back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<StepUndo>,
}

impl PlannedStep {
    /// A step with the id, gate and rollback of its type, and without its own limits.
    pub fn new(step: HostStep) -> Self {
        let rules = step.rules();
        Self {
            id: StepType::from(&step).id().to_owned(),
            gate: rules.gate,
            action: PlannedAction::Known(step),
            disruptive: rules.disruptive,
            timeout_seconds: None,
            max_attempts: None,
            undo: rules.undo,
        }
    }

    /// The step, if this program knows it.
    pub fn step(&self) -> Option<&HostStep> {
        match &self.action {
            PlannedAction::Known(step) => Some(step),
            PlannedAction::Unknown(_) => None,
        }
    }

    /// The type of the step, if this program knows it.
    pub fn step_type(&self) -> Option<StepType> {
        self.step().map(StepType::from)
    }
}

/// The action of a planned step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the set is small and nearly always complete")]
pub enum PlannedAction {
    /// A step that this program can carry out.
    Known(HostStep),
    /// A step that this program cannot carry out: it is from a newer program, or its arguments are
    /// invalid.
    Unknown(UnknownStep),
}

/// A step that cannot be carried out. A plan that contains one can still be read: the agent refuses
/// the step by name before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStep {
    /// The action as it was read.
    value: Value,
    /// Why it cannot be carried out.
    error: StepError,
}

/// Why an action cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The action's member is not a member of [`HostStep`].
    #[error("unknown step {member:?}; install a newer version of the program")]
    Member {
        /// Name of the member.
        member: String,
    },
    /// The member is known, but its arguments are invalid.
    #[error("{member}: {why}")]
    Arguments {
        /// Name of the member.
        member: String,
        /// Why the arguments are invalid.
        why: String,
    },
    /// The action does not have exactly one member.
    #[error("invalid action with {0} members, expected exactly one, such as kubeadmUpgrade")]
    NotOne(usize),
    /// The action has no member: none was written, or the API server pruned it.
    #[error(
        "the action is empty: the CRD of HostPlan lacks its member, or the plan is older than the \
         CRD; let the controller create a new plan"
    )]
    Empty,
}

impl UnknownStep {
    /// Why the step cannot be carried out.
    pub fn error(&self) -> &StepError {
        &self.error
    }
}

impl PlannedAction {
    /// Reads an action; an action that cannot be carried out is kept unchanged.
    fn read(value: Map<String, Value>) -> Self {
        let value = modernised(value);
        let read = serde_json::from_value::<HostStep>(Value::Object(value.clone()));
        let error = match read.map_err(|error| error.to_string()).map(|step| (step.fault(), step)) {
            Ok((None, step)) => return Self::Known(step),
            Ok((Some(fault), _)) => StepError::of(&value, fault),
            Err(error) => StepError::of(&value, error),
        };
        Self::Unknown(UnknownStep { value: Value::Object(value), error })
    }
}

impl StepError {
    fn of(value: &Map<String, Value>, why: String) -> Self {
        if value.is_empty() {
            return Self::Empty;
        }
        let mut members = value.keys();
        let (Some(member), None) = (members.next(), members.next()) else {
            return Self::NotOne(value.len());
        };
        let member = member.clone();
        if StepType::VARIANTS.iter().any(|known| known.member() == member) {
            Self::Arguments { member, why }
        } else {
            Self::Member { member }
        }
    }
}

/// Converts an action in the format before the union: a `type`, next to the arguments of all types.
fn modernised(mut value: Map<String, Value>) -> Map<String, Value> {
    let Some(Value::String(type_)) = value.get("type").cloned() else {
        return value;
    };
    value.remove("type");
    // Arguments of a single type are now fields of its member.
    let own_field = match type_.as_str() {
        "Files" => Some("files"),
        "Ntp" => Some("ntp"),
        "CertificatesRenew" => Some("certificates"),
        "KubeletFlags" => Some("kubelet"),
        _ => None,
    };
    let arguments = match own_field {
        Some(field) => value.remove(field).unwrap_or_default(),
        None => Value::Object(value),
    };
    Map::from_iter([(lower_first(&type_), arguments)])
}

impl<'de> Deserialize<'de> for PlannedAction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Map::deserialize(deserializer).map(Self::read)
    }
}

impl Serialize for PlannedAction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Known(step) => step.serialize(serializer),
            Self::Unknown(unknown) => unknown.value.serialize(serializer),
        }
    }
}

impl JsonSchema for PlannedAction {
    fn schema_name() -> Cow<'static, str> {
        HostStep::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        HostStep::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        refit::{KubeadmArgs, Role},
        version::KubernetesVersion,
    };

    fn read(action: Value) -> PlannedAction {
        serde_json::from_value(action).unwrap()
    }

    #[test]
    fn a_step_is_a_union_with_one_member() {
        let action = json!({"kubeadmUpgrade": {"version": "v1.35.0", "role": "Worker"}});
        let step = HostStep::KubeadmUpgrade {
            version: KubernetesVersion::new(1, 35, 0),
            role: Role::Worker,
            kubeadm: KubeadmArgs::default(),
        };
        assert_eq!(read(action.clone()), PlannedAction::Known(step.clone()));
        assert_eq!(serde_json::to_value(&step).unwrap(), action);
        assert_eq!(serde_json::to_value(HostStep::Reboot {}).unwrap(), json!({"reboot": {}}));
    }

    #[test]
    fn an_unknown_step_is_kept_with_its_error() {
        for (action, why) in [
            (
                json!({"firmwareUpdate": {"version": "2"}}),
                "unknown step \"firmwareUpdate\"; install a newer version of the program",
            ),
            (
                json!({"kubeadmUpgrade": {"version": "v1.35.0"}}),
                "kubeadmUpgrade: missing field `role`",
            ),
            (
                json!({"verify": {"version": "1.35"}}),
                "verify: invalid Kubernetes version \"1.35\": it does not start with v; expected vX.Y.Z",
            ),
            (
                json!({"certificatesRenew": {"renewWithinDays": 0}}),
                "certificatesRenew: renewWithinDays is less than 1",
            ),
            (
                json!({"containerRuntimeInstall": {"packages": {"driver": "Apt"}}}),
                "containerRuntimeInstall: packages.install names no package",
            ),
            (
                json!({"ntpReplace": {"enabled": true}}),
                "ntpReplace: servers is empty, so the host would have no time server; name one",
            ),
            (
                json!({"unitActions": {"units": [{"unit": "kubelet.service", "verb": "Restart"}]}}),
                "unitActions: units contains kubelet.service; use the step kubeletRestart instead",
            ),
            (
                json!({"etcdUpgrade": {"imageTag": "3.6 5"}}),
                "etcdUpgrade: invalid imageTag \"3.6 5\", expected a tag such as 3.6.5-0",
            ),
            (
                json!({"osPackagesInstall": {"reboot": "Never"}}),
                "osPackagesInstall: osPackages asks for nothing: name packages in install, or set security",
            ),
            (
                json!({}),
                "the action is empty: the CRD of HostPlan lacks its member, or the plan is older \
                 than the CRD; let the controller create a new plan",
            ),
            (
                json!({"reboot": {}, "verify": {}}),
                "invalid action with 2 members, expected exactly one, such as kubeadmUpgrade",
            ),
        ] {
            let PlannedAction::Unknown(unknown) = read(action.clone()) else {
                panic!("{action} is known");
            };
            assert_eq!(unknown.error().to_string(), why);
            assert_eq!(serde_json::to_value(PlannedAction::Unknown(unknown)).unwrap(), action);
        }
    }

    #[test]
    fn an_action_from_before_the_union_is_read() {
        let certificates = json!({"renewWithinDays": 60});
        for (old, new) in [
            (json!({"type": "Snapshot", "role": "Worker"}), json!({"snapshot": {}})),
            (
                json!({"type": "Stage", "version": "v1.35.0", "packages": {"driver": "Apt"}}),
                json!({"stage": {"version": "v1.35.0", "packages": {"driver": "Apt"}}}),
            ),
            (
                json!({"type": "OsImageCommit", "osImage": {"name": "os-2", "url": "u", "sha384": "ab"}}),
                json!({"osImageCommit": {"osImage": {
                    "name": "os-2", "url": "u", "sha384": "ab", "bringsKubelet": false,
                }}}),
            ),
            (
                json!({"type": "CertificatesRenew", "certificates": certificates}),
                json!({"certificatesRenew": certificates}),
            ),
            (json!({"type": "Ntp", "ntp": {"enabled": true}}), json!({"ntp": {"enabled": true}})),
        ] {
            assert_eq!(serde_json::to_value(read(old)).unwrap(), new);
        }
    }

    #[test]
    fn an_old_action_without_its_arguments_does_nothing() {
        for type_ in ["Files", "Ntp", "KubeletFlags", "CertificatesRenew", "Stage"] {
            let action = read(json!({"type": type_}));
            assert!(matches!(action, PlannedAction::Unknown(_)), "{action:?}");
        }
    }
}
