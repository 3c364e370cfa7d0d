//! A rollout for which Cluster API requests no update: its own checks hold it back, and only its
//! controllers know why.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_kinds::{conditions, refit::UpdateGroupStatus, version::StatedVersion};

use super::summary::{COVERED, OWNER_CHANGED, PROGRESSING};

/// Reason of [`super::BLOCKED`]: machines are outdated, and Cluster API requests no update.
pub const REASON_NOT_REQUESTED: &str = "UpdateNotRequested";
/// Reason of Cluster API's condition `Available` (`docs/facts/machine.md#conditions`).
const WAITS_FOR_MIN_READY_SECONDS: &str = "WaitingForMinReadySeconds";
/// How long Cluster API may take between two requests.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);
/// How long nothing may change while it creates or deletes machines: to bootstrap one on bare metal takes 10
/// to 15 minutes.
const PATIENCE_WITH_CHANGES: SignedDuration = SignedDuration::from_mins(20);
/// How many Machines a message names.
const NAMED: usize = 3;

/// An owner's rollout, as Cluster API shows it.
#[derive(Clone, Debug)]
pub struct Rollout<'a> {
    /// Kind and name of the owner.
    pub owner: String,
    /// Whether the owner is a control plane.
    pub control_plane: bool,
    /// The version that the owner requests.
    pub version: StatedVersion,
    /// When the owner's conditions last changed; `None` unless it is rolling out a change by itself.
    pub unchanged_since: Option<Timestamp>,
    /// Whether the owner is adding or removing Machines.
    pub scales: bool,
    /// Desired number of machines.
    pub replicas: i32,
    /// The Machines of the group.
    pub machines: Vec<&'a Machine>,
}

impl Rollout<'_> {
    /// When the group counts as blocked because no update is requested: some time after the last change
    /// of the owner or of a Machine. `None` if updates are requested, or none is needed, or Cluster API
    /// waits for something that ends by itself.
    pub fn blocks_at(&self, status: &UpdateGroupStatus) -> Option<Timestamp> {
        let progressing = conditions::get(&status.conditions, PROGRESSING)?;
        let owner = self.unchanged_since?;
        let machines = &self.machines;
        let goes_on =
            |machine: &&Machine| update_in_progress(*machine) || becomes_available(machine);
        if progressing.status != "False"
            || is_answered_otherwise(status)
            || machines.iter().any(goes_on)
            || !machines.iter().any(|machine| is_outdated(machine))
        {
            return None;
        }
        let changes = machines.iter().flat_map(|machine| last_changes(machine));
        let since = changes.chain([owner, progressing.last_transition_time.0]).max()?;
        Some(since + self.patience())
    }

    fn patience(&self) -> SignedDuration {
        let is_complete =
            i32::try_from(self.machines.len()).is_ok_and(|count| count == self.replicas);
        let changes = |machine: &&Machine| is_leaving(machine) || has_no_node(machine);
        let settled = is_complete && !self.scales && !self.machines.iter().any(changes);
        if settled { PATIENCE } else { PATIENCE_WITH_CHANGES }
    }

    /// The message of the condition.
    pub(super) fn message(&self) -> String {
        if let Some(message) = self.updated_by_hand() {
            return message;
        }
        format!(
            "{} is rolling out a change, and Cluster API has requested no update of {} for {} minutes; \
             {}",
            self.owner,
            self.named(is_outdated),
            self.patience().as_mins(),
            self.remedy()
        )
    }

    /// The message if all Machines are there, and the only outdated ones are those that an operator took to
    /// another version than their owner requests of them.
    fn updated_by_hand(&self) -> Option<String> {
        let by_hand = |machine: &Machine| {
            is_outdated(machine)
                && runs_another_version(machine)
                && machine.spec.version == self.version
        };
        let mut outdated = self.machines.iter().filter(|machine| is_outdated(machine));
        let first = outdated.next().filter(|machine| by_hand(machine))?;
        let in_the_way = |machine: &&Machine| is_leaving(machine) || has_no_node(machine);
        if !outdated.all(|machine| by_hand(machine)) || self.machines.iter().any(in_the_way) {
            return None;
        }
        let (runs, wanted) = (observed_version(first), &first.spec.version);
        let remedy = if runs.version() > wanted.version() {
            format!("request {runs} of {}", self.owner)
        } else {
            format!("create a NodeUpdate that takes it to {wanted}")
        };
        Some(format!(
            "{} runs another version than its Machine requests, which Cluster API does not change: {remedy}",
            self.named(by_hand)
        ))
    }

    fn remedy(&self) -> String {
        let Self { owner, control_plane, replicas, machines, .. } = self;
        let leaving = self.named(is_leaving);
        if !leaving.is_empty() {
            return format!(
                "being deleted: {leaving}; see the condition Deleting of these Machines"
            );
        }
        let without_node = self.named(has_no_node);
        if !without_node.is_empty() {
            return format!("without a Node: {without_node}; see the conditions of these Machines");
        }
        let count = machines.len();
        if i32::try_from(count) != Ok(*replicas) {
            return format!(
                "{count} of {replicas} Machines exist: see the conditions of {owner} and of its \
                 MachineSets"
            );
        }
        let unavailable = self.named(is_unavailable);
        // All Machines count as unavailable while Cluster API does not reach their cluster.
        let all_are = machines.iter().all(|machine| is_unavailable(machine));
        match (unavailable.as_str(), all_are || *control_plane) {
            ("", _) => format!("see the conditions of {owner}"),
            (names, true) => {
                format!("unavailable: {names}; see the conditions of {owner} and of these Machines")
            }
            (names, false) => format!(
                "it requests none while too few machines are available: repair {names}, or delete \
                 what cannot be repaired"
            ),
        }
    }

    /// The first names of the Machines of which something is true.
    fn named(&self, is: impl Fn(&Machine) -> bool) -> String {
        let machines = self.machines.iter().filter(|machine| is(machine));
        let names: Vec<&str> =
            machines.filter_map(|machine| machine.metadata.name.as_deref()).collect();
        let more = names.len().saturating_sub(NAMED);
        let list = names[..names.len() - more].join(", ");
        if more == 0 { list } else { format!("{list} and {more} more") }
    }
}

/// The version that a Machine's kubelet reports.
pub fn observed_version(machine: &Machine) -> StatedVersion {
    let info = machine.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.map(|info| info.kubelet_version.clone()).unwrap_or_default()
}

/// Whether a Machine's kubelet runs another version than the Machine's spec requests.
pub fn runs_another_version(machine: &Machine) -> bool {
    let (runs, wanted) = (observed_version(machine), &machine.spec.version);
    matches!((runs.version(), wanted.version()), (Some(runs), Some(wanted)) if runs != wanted)
}

fn conditions_of(machine: &Machine) -> &[Condition] {
    machine.status.as_ref().map_or(&[], |status| &status.conditions)
}

/// When a Machine was created or deleted, and when its conditions changed.
fn last_changes(machine: &Machine) -> impl Iterator<Item = Timestamp> {
    let Machine { metadata, .. } = machine;
    let ends = [&metadata.creation_timestamp, &metadata.deletion_timestamp].into_iter().flatten();
    let transitions = conditions_of(machine).iter().map(|one| &one.last_transition_time);
    ends.chain(transitions).map(|time| time.0)
}

fn is_outdated(machine: &Machine) -> bool {
    let shown = conditions::get(conditions_of(machine), conditions::UP_TO_DATE);
    shown.is_some_and(|condition| condition.status == "False")
}

fn is_unavailable(machine: &Machine) -> bool {
    let shown = conditions::get(conditions_of(machine), conditions::AVAILABLE);
    shown.is_some_and(|condition| condition.status == "False")
}

fn is_leaving(machine: &Machine) -> bool {
    machine.metadata.deletion_timestamp.is_some()
}

fn has_no_node(machine: &Machine) -> bool {
    machine.status.as_ref().is_none_or(|status| status.node_ref.is_none())
}

/// Whether a Machine only has to stay Ready for some time.
fn becomes_available(machine: &Machine) -> bool {
    conditions::get(conditions_of(machine), conditions::AVAILABLE)
        .is_some_and(|shown| shown.reason == WAITS_FOR_MIN_READY_SECONDS)
}

/// Whether Refit's own answer holds the rollout back, or lets Cluster API replace machines.
fn is_answered_otherwise(status: &UpdateGroupStatus) -> bool {
    conditions::get(&status.conditions, COVERED)
        .is_some_and(|answer| answer.status != "True" && answer.reason != OWNER_CHANGED)
}

#[cfg(test)]
#[path = "unrequested_tests.rs"]
mod tests;
