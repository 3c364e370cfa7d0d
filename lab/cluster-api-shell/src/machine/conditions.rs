//! The conditions of a Machine (`docs/facts/machine.md#conditions`), computed from what was seen.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use refit_kinds::conditions;

use crate::conditions::{Says, Status};

/// What was seen of an infrastructure machine or bootstrap config.
#[derive(Clone, Debug, Default)]
pub(super) struct PartSeen {
    /// Its kind.
    pub(super) kind: String,
    /// It exists.
    pub(super) exists: bool,
    /// Its provider is done.
    pub(super) ready: bool,
    /// The field of its status that says so.
    pub(super) field: &'static str,
}

/// What was seen of a Node.
#[derive(Clone, Debug)]
pub(super) enum NodeState {
    /// The workload cluster cannot be asked: what was said stays.
    NotConnected,
    /// It has not registered.
    Awaited {
        /// By which identity it will be known.
        provider_id: Option<String>,
    },
    /// It was there and is gone.
    Gone(String),
    /// Its Ready condition: status, reason, message.
    Known(Option<(String, String, String)>),
}

/// Everything that a Machine's conditions are made of.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Infrastructure machine.
    pub(super) infrastructure: PartSeen,
    /// Bootstrap config, where there is one.
    pub(super) bootstrap: Option<PartSeen>,
    /// Node.
    pub(super) node: NodeState,
    /// A Node was found once, whether or not it can be seen now.
    pub(super) registered: bool,
    /// Reason and message of an update that is under way.
    pub(super) updating: Option<(String, String)>,
    /// Reason and message of a deletion that is under way.
    pub(super) deleting: Option<(String, String)>,
    /// `UpToDate`, where this controller says it.
    pub(super) up_to_date: Option<Says>,
    /// Types of conditions that have to be true besides.
    pub(super) gates: Vec<String>,
    /// `spec.minReadySeconds`.
    pub(super) min_ready_seconds: i64,
}

/// All conditions, in the order in which they are made of each other.
pub(super) fn all(seen: &Seen, existing: &[Condition], now: Timestamp) -> Vec<Says> {
    let mut list = vec![
        part("InfrastructureReady", &seen.infrastructure),
        seen.bootstrap.as_ref().map_or_else(
            || Says::new("BootstrapConfigReady", true, "DataSecretProvided", ""),
            |bootstrap| part("BootstrapConfigReady", bootstrap),
        ),
    ];
    list.extend(node(&seen.node, existing));
    list.push(match &seen.updating {
        Some((reason, message)) => Says::new(conditions::UPDATING, true, reason, message),
        None => Says::new(conditions::UPDATING, false, "NotUpdating", ""),
    });
    list.push(match &seen.deleting {
        Some((reason, message)) => Says::new("Deleting", true, reason, message),
        None => Says::new("Deleting", false, "NotDeleting", ""),
    });
    list.extend(seen.up_to_date.clone());
    let ready = ready(&list, &seen.gates, existing);
    let available = available(&ready, seen.min_ready_seconds, existing, now);
    list.push(ready);
    list.push(available);
    list
}

/// How long until a Ready Machine has been Ready for long enough.
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

fn part(type_: &str, seen: &PartSeen) -> Says {
    if seen.ready && seen.exists {
        Says::new(type_, true, "Ready", "")
    } else if seen.exists {
        let message = format!("{} {} is false", seen.kind, seen.field);
        Says::new(type_, false, "NotReady", message)
    } else {
        let message = format!("{} does not exist", seen.kind);
        Says::new(type_, false, "DoesNotExist", message)
    }
}

fn node(seen: &NodeState, existing: &[Condition]) -> Vec<Says> {
    let both = |status: Status, reasons: [&str; 2], message: &str| {
        vec![
            Says::new("NodeReady", status, reasons[0], message),
            Says::new("NodeHealthy", status, reasons[1], message),
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

/// The summary: all of the conditions that count have to be good; `Updating` and `Deleting` are
/// good when they are false.
fn ready(list: &[Says], gates: &[String], existing: &[Condition]) -> Says {
    let stored = |type_: &str| {
        let condition = conditions::get(existing, type_)?;
        let status = match condition.status.as_str() {
            "True" => Status::True,
            "False" => Status::False,
            _ => Status::Unknown,
        };
        Some(Says::new(type_, status, &condition.reason, &condition.message))
    };
    let find = |type_: &str| {
        let said = list.iter().find(|one| one.type_ == type_).cloned();
        said.or_else(|| stored(type_))
    };
    let mut bad = Vec::new();
    let mut unknown = Vec::new();
    let mut look = |type_: &str, good: Status| match find(type_) {
        Some(one) if one.status == good => {}
        Some(one) if one.status == Status::Unknown => {
            unknown.push(line(type_, &one));
        }
        Some(one) => bad.push(line(type_, &one)),
        None => unknown.push(format!("* {type_}: Condition not yet reported")),
    };
    look("Deleting", Status::False);
    look("BootstrapConfigReady", Status::True);
    look("InfrastructureReady", Status::True);
    look("NodeHealthy", Status::True);
    if stored("HealthCheckSucceeded").is_some() {
        look("HealthCheckSucceeded", Status::True);
    }
    for gate in gates {
        look(gate, Status::True);
    }
    look(conditions::UPDATING, Status::False);
    let is_bad = !bad.is_empty();
    let message = bad.into_iter().chain(unknown).collect::<Vec<_>>();
    match (is_bad, message.is_empty()) {
        (true, _) => Says::new(conditions::READY, false, "NotReady", message.join("\n")),
        (false, false) => {
            let message = message.join("\n");
            Says::new(conditions::READY, Status::Unknown, "ReadyUnknown", message)
        }
        (false, true) => Says::new(conditions::READY, true, "Ready", ""),
    }
}

/// `* Type: message`, with a message of several lines set below it.
fn line(type_: &str, says: &Says) -> String {
    if says.message.starts_with("* ") {
        let below = says.message.replace('\n', "\n  ");
        format!("* {type_}:\n  {below}")
    } else if says.message.is_empty() {
        format!("* {type_}: {}", says.reason)
    } else {
        format!("* {type_}: {}", says.message)
    }
}

fn available(ready: &Says, min_ready_seconds: i64, existing: &[Condition], now: Timestamp) -> Says {
    if ready.status != Status::True {
        return Says::new(conditions::AVAILABLE, false, "NotReady", "");
    }
    let was_ready = conditions::is_true(existing, conditions::READY);
    let waits = if was_ready {
        wait_for_available(min_ready_seconds, existing, now).is_some()
    } else {
        min_ready_seconds > 0
    };
    if waits {
        let reason = "WaitingForMinReadySeconds";
        Says::new(conditions::AVAILABLE, false, reason, "")
    } else {
        Says::new(conditions::AVAILABLE, true, "Available", "")
    }
}

#[cfg(test)]
#[path = "conditions_tests.rs"]
mod tests;
