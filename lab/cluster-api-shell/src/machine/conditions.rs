//! The conditions of a Machine (`docs/facts/machine.md#conditions`), computed from observed state.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use refit_kinds::conditions;

use crate::conditions::{DesiredCondition, Status};

/// The observed state of an infrastructure machine or bootstrap config.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedPart {
    /// Its kind.
    pub(super) kind: String,
    /// Whether it exists.
    pub(super) exists: bool,
    /// Whether its provider reports it as ready.
    pub(super) ready: bool,
    /// The status field that reports readiness.
    pub(super) field: &'static str,
}

/// The observed state of a Node.
#[derive(Clone, Debug)]
pub(super) enum NodeState {
    /// The workload cluster is unreachable: the previous condition is kept.
    NotConnected,
    /// The Node has not registered yet.
    Awaited {
        /// The expected providerID.
        provider_id: Option<String>,
    },
    /// Registered before and now missing.
    Gone(String),
    /// Its Ready condition: status, reason, message.
    Known(Option<(String, String, String)>),
}

/// The inputs of a Machine's conditions.
#[derive(Clone, Debug)]
pub(super) struct MachineObservation {
    /// Infrastructure machine.
    pub(super) infrastructure: ObservedPart,
    /// Bootstrap config, if the Machine has one.
    pub(super) bootstrap: Option<ObservedPart>,
    /// Node.
    pub(super) node: NodeState,
    /// Whether a Node was ever found, even if it is not visible now.
    pub(super) registered: bool,
    /// Reason and message of an update in progress.
    pub(super) updating: Option<(String, String)>,
    /// Reason and message of a deletion in progress.
    pub(super) deleting: Option<(String, String)>,
    /// `UpToDate`, if this controller sets it.
    pub(super) up_to_date: Option<DesiredCondition>,
    /// Types of further conditions that must be true.
    pub(super) gates: Vec<String>,
    /// `spec.minReadySeconds`.
    pub(super) min_ready_seconds: i64,
}

/// All conditions, in order of dependency.
pub(super) fn all(
    seen: &MachineObservation,
    existing: &[Condition],
    now: Timestamp,
) -> Vec<DesiredCondition> {
    let mut list = vec![
        part("InfrastructureReady", &seen.infrastructure),
        seen.bootstrap.as_ref().map_or_else(
            || DesiredCondition::new("BootstrapConfigReady", true, "DataSecretProvided", ""),
            |bootstrap| part("BootstrapConfigReady", bootstrap),
        ),
    ];
    list.extend(node(&seen.node, existing));
    list.push(match &seen.updating {
        Some((reason, message)) => {
            DesiredCondition::new(conditions::UPDATING, true, reason, message)
        }
        None => DesiredCondition::new(conditions::UPDATING, false, "NotUpdating", ""),
    });
    list.push(match &seen.deleting {
        Some((reason, message)) => DesiredCondition::new("Deleting", true, reason, message),
        None => DesiredCondition::new("Deleting", false, "NotDeleting", ""),
    });
    list.extend(seen.up_to_date.clone());
    let ready = ready(&list, &seen.gates, existing);
    let available = available(&ready, seen.min_ready_seconds, existing, now);
    list.push(ready);
    list.push(available);
    list
}

/// How long until a Ready Machine has been Ready for `minReadySeconds`.
pub(super) fn wait_for_available(
    min_ready_seconds: i64,
    conditions_now: &[Condition],
    now: Timestamp,
) -> Option<SignedDuration> {
    if min_ready_seconds <= 0 {
        return None;
    }
    let ready = conditions::get(conditions_now, conditions::READY)?;
    if ready.status != "True" {
        return None;
    }
    let since = now.duration_since(ready.last_transition_time.0);
    let rest = SignedDuration::from_secs(min_ready_seconds) - since;
    (rest > SignedDuration::ZERO).then_some(rest)
}

fn part(type_: &str, seen: &ObservedPart) -> DesiredCondition {
    if seen.ready && seen.exists {
        DesiredCondition::new(type_, true, "Ready", "")
    } else if seen.exists {
        let message = format!("{} {} is false", seen.kind, seen.field);
        DesiredCondition::new(type_, false, "NotReady", message)
    } else {
        let message = format!("{} does not exist", seen.kind);
        DesiredCondition::new(type_, false, "DoesNotExist", message)
    }
}

fn node(seen: &NodeState, existing: &[Condition]) -> Vec<DesiredCondition> {
    let both = |status: Status, reasons: [&str; 2], message: &str| {
        vec![
            DesiredCondition::new("NodeReady", status, reasons[0], message),
            DesiredCondition::new("NodeHealthy", status, reasons[1], message),
        ]
    };
    match seen {
        NodeState::NotConnected if conditions::get(existing, "NodeHealthy").is_some() => Vec::new(),
        NodeState::NotConnected => {
            both(Status::Unknown, ["ConnectionDown"; 2], "Remote connection not established yet")
        }
        NodeState::Awaited { provider_id: None } => both(
            Status::Unknown,
            ["InspectionFailed"; 2],
            "Waiting for the infrastructure machine to report spec.providerID",
        ),
        NodeState::Awaited { provider_id: Some(provider_id) } => both(
            Status::Unknown,
            ["InspectionFailed"; 2],
            &format!("Waiting for a Node with spec.providerID {provider_id} to exist"),
        ),
        NodeState::Gone(name) => both(
            Status::False,
            ["NodeDeleted"; 2],
            &format!("Node {name} has been deleted while the Machine still exists"),
        ),
        NodeState::Known(ready) => {
            let (status, message) = match ready {
                None => (Status::Unknown, "* Node.Ready: Condition not yet reported".to_owned()),
                Some((status, _, message)) => match status.as_str() {
                    "True" => (Status::True, String::new()),
                    "False" => (Status::False, format!("* Node.Ready: {message}")),
                    _ => (Status::Unknown, format!("* Node.Ready: {message}")),
                },
            };
            let reasons = match status {
                Status::True => ["NodeReady", "NodeHealthy"],
                Status::False => ["NodeNotReady", "NodeNotHealthy"],
                Status::Unknown => ["NodeReadyUnknown", "NodeHealthUnknown"],
            };
            both(status, reasons, &message)
        }
    }
}

/// The summary: all counted conditions must be good; `Updating` and `Deleting` are good if they are
/// false.
fn ready(list: &[DesiredCondition], gates: &[String], existing: &[Condition]) -> DesiredCondition {
    let stored = |type_: &str| {
        let condition = conditions::get(existing, type_)?;
        let status = match condition.status.as_str() {
            "True" => Status::True,
            "False" => Status::False,
            _ => Status::Unknown,
        };
        Some(DesiredCondition::new(type_, status, &condition.reason, &condition.message))
    };
    let find = |type_: &str| {
        let computed = list.iter().find(|one| one.type_ == type_).cloned();
        computed.or_else(|| stored(type_))
    };
    let mut bad = Vec::new();
    let mut unknown = Vec::new();
    let mut check = |type_: &str, good: Status| match find(type_) {
        Some(one) if one.status == good => {}
        Some(one) if one.status == Status::Unknown => {
            unknown.push(line(type_, &one));
        }
        Some(one) => bad.push(line(type_, &one)),
        None => unknown.push(format!("* {type_}: Condition not yet reported")),
    };
    check("Deleting", Status::False);
    check("BootstrapConfigReady", Status::True);
    check("InfrastructureReady", Status::True);
    check("NodeHealthy", Status::True);
    if stored("HealthCheckSucceeded").is_some() {
        check("HealthCheckSucceeded", Status::True);
    }
    for gate in gates {
        check(gate, Status::True);
    }
    check(conditions::UPDATING, Status::False);
    let is_bad = !bad.is_empty();
    let message = bad.into_iter().chain(unknown).collect::<Vec<_>>();
    match (is_bad, message.is_empty()) {
        (true, _) => {
            DesiredCondition::new(conditions::READY, false, "NotReady", message.join("\n"))
        }
        (false, false) => {
            let message = message.join("\n");
            DesiredCondition::new(conditions::READY, Status::Unknown, "ReadyUnknown", message)
        }
        (false, true) => DesiredCondition::new(conditions::READY, true, "Ready", ""),
    }
}

/// Formats `* Type: message`, with a multi-line message indented below it.
fn line(type_: &str, condition: &DesiredCondition) -> String {
    if condition.message.starts_with("* ") {
        let below = condition.message.replace('\n', "\n  ");
        format!("* {type_}:\n  {below}")
    } else if condition.message.is_empty() {
        format!("* {type_}: {}", condition.reason)
    } else {
        format!("* {type_}: {}", condition.message)
    }
}

fn available(
    ready: &DesiredCondition,
    min_ready_seconds: i64,
    existing: &[Condition],
    now: Timestamp,
) -> DesiredCondition {
    if ready.status != Status::True {
        return DesiredCondition::new(conditions::AVAILABLE, false, "NotReady", "");
    }
    let was_ready = conditions::is_true(existing, conditions::READY);
    let waits = if was_ready {
        wait_for_available(min_ready_seconds, existing, now).is_some()
    } else {
        min_ready_seconds > 0
    };
    if waits {
        let reason = "WaitingForMinReadySeconds";
        DesiredCondition::new(conditions::AVAILABLE, false, reason, "")
    } else {
        DesiredCondition::new(conditions::AVAILABLE, true, "Available", "")
    }
}

#[cfg(test)]
#[path = "conditions_tests.rs"]
mod tests;
