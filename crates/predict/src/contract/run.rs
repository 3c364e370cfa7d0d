//! What was seen of a provider in one update.

use jiff::Timestamp;
use refit_kinds::{
    json,
    refit::{Gate, ProviderStatus, Stage},
};
use serde_json::Value;

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum Purpose {
    /// An abort at once, while the gate Stage is open.
    AbortAtStage,
    /// An abort once the gate Upgrade is passed.
    AbortAtUpgrade,
    /// The object is deleted once the gate Upgrade is passed.
    Delete,
    /// The whole update.
    Update,
    /// The whole update again: there is nothing left to change.
    Repeat,
    /// An update of a Machine that has the name and another uid. It comes last: a provider that does not look
    /// has nothing left to change.
    OtherMachine,
}

impl Purpose {
    /// All, in the order in which they run.
    pub const ALL: [Self; 6] = [
        Self::AbortAtStage,
        Self::AbortAtUpgrade,
        Self::Delete,
        Self::Update,
        Self::Repeat,
        Self::OtherMachine,
    ];
}

/// The object, as the watch delivered it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// When.
    pub at: Timestamp,
    /// The whole object.
    pub object: Value,
    /// What the provider reports, or what is wrong with its form.
    pub status: Result<ProviderStatus, String>,
}

impl Seen {
    /// Reads an object.
    pub fn new(at: Timestamp, object: Value) -> Self {
        let status = object.get("status").cloned().unwrap_or_else(|| serde_json::json!({}));
        let status = serde_json::from_value(status).map_err(|error| error.to_string());
        Self { at, object, status }
    }

    /// Its generation.
    pub fn generation(&self) -> i64 {
        self.object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default()
    }

    /// Whether the report is on the newest order.
    pub fn is_observed(&self) -> bool {
        let observed = self.object.pointer("/status/observedGeneration").and_then(Value::as_i64);
        observed == Some(self.generation())
    }

    /// The gate that was open when the object was written.
    pub fn gate(&self) -> Gate {
        parsed(&self.object, "/spec/gate")
    }

    /// Whether the provider was to go on when the object was written.
    pub fn stage(&self) -> Stage {
        parsed(&self.object, "/spec/stage")
    }

    /// Whether it reports a failure that is not retriable.
    pub(super) fn reports_final_failure(&self) -> bool {
        let failed =
            |status: &ProviderStatus| !status.failure_reason.is_empty() && !status.retriable;
        self.status.as_ref().is_ok_and(failed)
    }

    /// Whether it reports such a failure about the newest order.
    pub fn has_failed_for_good(&self) -> bool {
        self.is_observed() && self.reports_final_failure()
    }

    /// Whether it reports `ready` about the newest order.
    pub fn is_ready(&self) -> bool {
        self.is_observed() && self.status.as_ref().is_ok_and(|status| status.ready)
    }

    /// Whether the provider has ended its work: with success, after an abort, or with a failure for good.
    pub fn has_ended(&self) -> bool {
        self.is_ready() || self.has_failed_for_good()
    }

    /// What happened, for a message: the fields of the status that the contract names.
    pub fn shown(&self) -> String {
        let status = self.object.get("status").cloned().unwrap_or(Value::Null);
        let shown =
            ["observedGeneration", "passed", "ready", "pastNoReturn", "failureReason", "retriable"];
        let shown =
            shown.iter().filter_map(|field| Some(format!("{field}: {}", status.get(field)?)));
        let shown = shown.collect::<Vec<_>>().join(", ");
        format!("generation {}, status {{{shown}}}", self.generation())
    }

    /// The fields that belong to the suite.
    pub(super) fn orders(&self) -> [(&'static str, Value); 4] {
        let at = |pointer: &str| self.object.pointer(pointer).cloned().unwrap_or(Value::Null);
        let refits = |pairs: std::collections::BTreeMap<String, String>| {
            pairs.into_iter().filter(|(key, _)| key.starts_with("refit.dev/")).collect()
        };
        [
            ("spec", at("/spec")),
            ("metadata.ownerReferences", at("/metadata/ownerReferences")),
            ("metadata.annotations", refits(json::annotations(&self.object))),
            ("metadata.labels", refits(json::labels(&self.object))),
        ]
    }
}

fn parsed<T: serde::de::DeserializeOwned + Default>(object: &Value, pointer: &str) -> T {
    let value = object.pointer(pointer).cloned();
    value.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
}

/// An order that the API server did not admit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The gate of the order.
    pub gate: Gate,
    /// The stage of the order.
    pub stage: Stage,
    /// The words of the API server.
    pub message: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { gate, stage, message: _ } = self;
        write!(f, "the API server refused the order spec.gate {gate:?}, spec.stage {stage:?}")
    }
}

/// What happened in a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The suite wrote the object, as the API server returned it.
    Ordered(Seen),
    /// The API server refused to write the object for what is in it.
    Refused(Refusal),
    /// The watch delivered the object.
    Seen(Seen),
    /// The provider was restarted, which ended at this time.
    Restarted(Timestamp),
    /// The provider was given time in which there was nothing to do.
    Waited,
    /// The watch was interrupted: its next delivery may be late.
    Interrupted,
    /// The watch began again with a list: writes since the last delivery may be missing.
    Relisted,
    /// The object was deleted by the suite.
    Deleted,
    /// It is gone.
    Gone,
}

impl Event {
    /// The object, if the watch delivered it.
    pub fn seen(&self) -> Option<&Seen> {
        match self {
            Self::Seen(seen) => Some(seen),
            Self::Ordered(_)
            | Self::Refused(_)
            | Self::Restarted(_)
            | Self::Waited
            | Self::Interrupted
            | Self::Relisted
            | Self::Deleted
            | Self::Gone => None,
        }
    }

    /// The object, if the suite wrote it.
    pub fn order(&self) -> Option<&Seen> {
        match self {
            Self::Ordered(order) => Some(order),
            Self::Seen(_)
            | Self::Refused(_)
            | Self::Restarted(_)
            | Self::Waited
            | Self::Interrupted
            | Self::Relisted
            | Self::Deleted
            | Self::Gone => None,
        }
    }

    /// The order that was not admitted.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Seen(_)
            | Self::Ordered(_)
            | Self::Restarted(_)
            | Self::Waited
            | Self::Interrupted
            | Self::Relisted
            | Self::Deleted
            | Self::Gone => None,
        }
    }
}

/// The node of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLook {
    /// The version of its kubelet.
    pub kubelet_version: String,
    /// Changes with each boot.
    pub boot_id: String,
    /// Whether it is cordoned.
    pub unschedulable: bool,
    /// Whether its kubelet reports it as ready.
    pub ready: bool,
}

/// The machine at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether the expressions of the Updater hold, or why not; `None` without expressions.
    pub verified: Option<Result<(), String>>,
    /// Its node, or why it cannot be read.
    pub node: Result<NodeLook, String>,
    /// `spec`, `annotations` and `labels` of its infrastructure machine.
    pub infrastructure: Value,
}

impl Look {
    /// What differs at a later moment, other than by what an operator does; `None` if nothing does.
    pub(super) fn change(&self, later: &Self) -> Option<String> {
        if let (Some(Err(_)), Some(Ok(()))) = (&self.verified, &later.verified) {
            return Some("the whole change was made".to_owned());
        }
        if let (Some(Ok(())), Some(Err(why))) = (&self.verified, &later.verified) {
            return Some(format!("the machine has no longer what it had: {why}"));
        }
        let (Ok(before), Ok(after)) = (&self.node, &later.node) else {
            return None;
        };
        let version = |node: &NodeLook| node.kubelet_version.clone();
        if version(before) != version(after) {
            return Some(format!("the kubelet had {} and has {}", version(before), version(after)));
        }
        if before.boot_id != after.boot_id {
            return Some("the node has booted".to_owned());
        }
        if !before.unschedulable && after.unschedulable {
            return Some("the node is cordoned".to_owned());
        }
        (before.ready && !after.ready).then(|| "the node is not ready any more".to_owned())
    }

    /// What differs at a later moment, with all that may be changed and undone.
    pub(super) fn any_change(&self, later: &Self) -> Option<String> {
        self.change(later).or_else(|| {
            let what = difference(&self.infrastructure, &later.infrastructure, "")?;
            Some(format!("of the infrastructure machine, {what}"))
        })
    }

    /// Why nothing of the machine can be observed; `None` if something can.
    pub(super) fn unobservable(&self) -> Option<String> {
        match (&self.verified, &self.node) {
            (None, Err(why)) => {
                Some(format!("the Updater has no verify, and the Node cannot be read: {why}"))
            }
            (Some(_), _) | (None, Ok(_)) => None,
        }
    }
}

/// The first difference of two values.
fn difference(before: &Value, after: &Value, path: &str) -> Option<String> {
    if before == after {
        return None;
    }
    let none = serde_json::Map::new();
    let (Value::Object(_), Value::Object(_)) = (before, after) else {
        return Some(format!("{path} was {before} and is {after}"));
    };
    let [old, new] = [before, after].map(|value| value.as_object().unwrap_or(&none));
    let keys: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    keys.into_iter().find_map(|key| {
        let [old, new] = [old, new].map(|members| members.get(key).unwrap_or(&Value::Null));
        difference(old, new, &format!("{path}/{key}"))
    })
}

/// One update, from the first order until the object is gone.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What it is for.
    pub purpose: Purpose,
    /// Whether the provider was restarted at each gate, or why not.
    pub restarts: Result<(), String>,
    /// The version that the node must have at the end, if the provider brings machines to versions.
    pub version: Option<String>,
    /// The machine before the first order.
    pub before: Look,
    /// The machine once the gate Stage was passed.
    pub staged: Option<Look>,
    /// The machine at the end.
    pub after: Option<Look>,
    /// What happened, in order.
    pub events: Vec<Event>,
}

impl Run {
    /// The object as it was delivered, in order.
    pub fn seen(&self) -> impl Iterator<Item = &Seen> {
        self.events.iter().filter_map(Event::seen)
    }

    /// Whether the provider has reported anything.
    pub fn has_reported(&self) -> bool {
        self.seen().any(|seen| seen.object.get("status").is_some())
    }

    /// The object at the end.
    pub(super) fn last(&self) -> Option<&Seen> {
        self.seen().last()
    }

    /// Whether a gate was passed, as Refit would believe it.
    pub(super) fn has_passed(&self, gate: Gate) -> bool {
        self.seen().any(|seen| {
            seen.gate() >= gate && seen.status.as_ref().is_ok_and(|status| status.passed >= gate)
        })
    }

    /// Whether a gate was opened.
    pub(super) fn opened(&self, gate: Gate) -> bool {
        self.orders().any(|order| order.gate() >= gate)
    }

    /// The orders of the suite.
    pub fn orders(&self) -> impl Iterator<Item = &Seen> {
        self.events.iter().filter_map(Event::order)
    }

    /// The first order that the API server did not admit. It ended the run.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.events.iter().find_map(Event::refusal)
    }

    /// Where a problem is, for a message.
    pub(super) fn located(&self, seen: &Seen, problem: &str) -> String {
        let (gate, stage) = (seen.gate(), seen.stage());
        let stage = if stage == Stage::Abort { ", stage Abort" } else { "" };
        format!("{problem} (run {}, gate {gate:?}{stage}: {})", self.purpose, seen.shown())
    }
}
