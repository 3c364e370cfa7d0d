//! Computes the desired state of each MachineSet of a MachineDeployment
//! (`docs/facts/machine-deployment.md#machineset-intents` and
//! `docs/facts/machine-deployment.md#rolling-update`).
//!
//! An intent is full: a server-side apply drops every annotation that is not in it. This removes
//! `move`, `receive` and `acknowledged-move` once they are no longer needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;

use super::find::find_new_and_old;
use super::keys;
use super::types::{Fenceposts, Machine, MachineDeployment, MachineSet, Strategy};
use super::{on_delete, rolling_update};

/// Whether the machines of an old MachineSet can be updated in place to a new one's template, by
/// `(old, new)` name: the extension's responses, requested beforehand.
pub type Decisions = BTreeMap<(String, String), bool>;

/// The input of an intent.
#[derive(Debug, Clone, Copy)]
pub struct IntentInput<'a> {
    /// The MachineDeployment.
    pub deployment: &'a MachineDeployment,
    /// All its MachineSets.
    pub machine_sets: &'a [MachineSet],
    /// All its Machines.
    pub machines: &'a [Machine],
    /// The feature gate `InPlaceUpdates`.
    pub in_place_updates: bool,
    /// The extension's responses so far.
    pub decisions: &'a Decisions,
    /// Name for a new MachineSet, if one is needed.
    pub new_name: &'a str,
    /// The time of the snapshot.
    pub now: Timestamp,
}

/// Role of a MachineSet in its MachineDeployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It has the MachineDeployment's template.
    Current,
    /// It is scaled down.
    Old,
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Current => "current",
            Self::Old => "old",
        })
    }
}

/// Why a MachineSet changes; the texts are Cluster API's own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the text of each variant is its description")]
pub enum Note {
    NowCurrent,
    Acknowledge { machines: String },
    AlignToDeployment,
    BelowMax { current: i64, replicas: i64, max_surge: Option<i64> },
    AvailableAboveMinimum { available: i64, minimum: i64 },
    AlignOrRemoveUnavailable,
    AlignToExisting,
    MoveTo { machine_set: String },
    SurgeAllowed,
    SurgeDropped { surge: i64 },
    UnblockStuck { machine_set: String },
}

impl fmt::Display for Note {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NowCurrent => write!(out, "this is now the current MachineSet"),
            Self::Acknowledge { machines } => {
                write!(out, "acknowledge Machines {machines} moved from an old MachineSet")
            }
            Self::AlignToDeployment => write!(
                out,
                "scale down to align MachineSet spec.replicas to MachineDeployment spec.replicas"
            ),
            Self::BelowMax { current, replicas, max_surge } => {
                write!(
                    out,
                    "{current} current Machines < {replicas} MachineDeployment spec.replicas"
                )?;
                max_surge.map_or(Ok(()), |surge| write!(out, " + {surge} maxSurge"))
            }
            Self::AvailableAboveMinimum { available, minimum } => {
                write!(out, "{available} available replicas > {minimum} minimum available replicas")
            }
            Self::AlignOrRemoveUnavailable => write!(
                out,
                "scale down to align to existing Machines or scale down by removing unavailable \
                 replicas (and no available replicas exist on the MachineSet)"
            ),
            Self::AlignToExisting => write!(out, "scale down to align to existing Machines"),
            Self::MoveTo { machine_set } => {
                write!(out, "should scale down by moving Machines to MachineSet {machine_set}")
            }
            Self::SurgeAllowed => {
                write!(out, "surge 1 allowed to create availability for in-place updates")
            }
            Self::SurgeDropped { surge } => {
                write!(out, "surge {surge} dropped to prioritize in-place updates")
            }
            Self::UnblockStuck { machine_set } => write!(
                out,
                "scaling down by 1 to unblock rollout stuck due to unavailable Machine on \
                 {machine_set}"
            ),
        }
    }
}

/// The desired state of an existing MachineSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineSetIntent {
    /// Role in the MachineDeployment.
    pub role: Role,
    /// Current `spec.replicas`.
    pub replicas_before: i64,
    /// `spec.replicas` to write.
    pub replicas: i64,
    /// All annotations of this protocol to write; its other keys must be removed.
    pub annotations: BTreeMap<String, String>,
    /// The reasons, in order and without duplicates.
    pub notes: Vec<Note>,
}

/// A MachineSet to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMachineSet {
    /// Name given by the caller.
    pub name: String,
    /// Its `spec.replicas`.
    pub replicas: i64,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Why it is needed.
    pub create_reason: String,
    /// The reasons for its replicas.
    pub notes: Vec<Note>,
}

/// The writes for a MachineDeployment.
///
/// Write the current MachineSet first, then the old ones in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutIntent {
    /// The name of the current MachineSet, existing or to be created.
    pub current: String,
    /// The MachineSet to create first, if there is no current one.
    pub create: Option<NewMachineSet>,
    /// The desired state of every existing MachineSet.
    pub machine_sets: BTreeMap<String, MachineSetIntent>,
    /// Old MachineSets, oldest first.
    pub old_in_order: Vec<String>,
    /// `(old, new)` pairs that the extension has not been called for. The intent treats them as
    /// refused: call the extension, add the responses and decide again before writing anything.
    pub pairs_to_ask: BTreeSet<(String, String)>,
    /// The MachineDeployment's revision.
    pub revision: String,
}

impl RolloutIntent {
    /// Reports whether every response is known, so that this intent may be written.
    pub fn is_complete(&self) -> bool {
        self.pairs_to_ask.is_empty()
    }
}

/// Joins notes to the reason for events and logs.
pub fn reason(notes: &[Note]) -> String {
    notes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Plans the next step of a MachineDeployment's rollout.
pub fn intend(input: &IntentInput<'_>) -> RolloutIntent {
    let mut planner = Planner::new(input);
    match input.deployment.strategy {
        Strategy::RollingUpdate { .. } => rolling_update::decide(&mut planner),
        Strategy::OnDelete => on_delete::decide(&mut planner),
    }
    planner.finish()
}

/// Plans the writes for a MachineDeployment with `spec.paused: true`: its MachineSets unchanged,
/// but without the annotations of a move
/// (`docs/facts/machine-deployment.md#paused-machinedeployment`). It creates nothing.
pub fn intend_paused(input: &IntentInput<'_>) -> RolloutIntent {
    RolloutIntent { create: None, ..intend_unmoved(input) }
}

/// Plans the MachineSets of a MachineDeployment without moving or scaling any: what each of them has in
/// common with the others, and an empty one for the current template if it does not exist. For a caller that moves the
/// Machines instead of Cluster API.
pub fn intend_unmoved(input: &IntentInput<'_>) -> RolloutIntent {
    Planner::new(input).finish()
}

/// A MachineSet while its intent is being computed.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) name: String,
    pub(super) created_at: Timestamp,
    pub(super) replicas_before: i64,
    pub(super) spec: i64,
    pub(super) status: i64,
    pub(super) available: i64,
    pub(super) up_to_date: i64,
    pub(super) intent: Option<i64>,
    pub(super) eligible: bool,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) notes: Vec<Note>,
}

impl Draft {
    fn existing(set: &MachineSet, eligible: bool, shared: &BTreeMap<String, String>) -> Self {
        let mut annotations = shared.clone();
        if let Some(revision) = set.annotations.get(keys::REVISION) {
            annotations.insert(keys::REVISION.to_owned(), revision.clone());
        }
        Self {
            name: set.name.clone(),
            created_at: set.created_at,
            replicas_before: set.spec_replicas,
            spec: set.spec_replicas,
            status: set.status_replicas,
            available: set.available_replicas,
            up_to_date: set.up_to_date_replicas,
            intent: None,
            eligible,
            annotations,
            notes: Vec::new(),
        }
    }

    fn created(name: &str, now: Timestamp, shared: &BTreeMap<String, String>) -> Self {
        Self {
            name: name.to_owned(),
            created_at: now,
            replicas_before: 0,
            spec: 0,
            status: 0,
            available: 0,
            up_to_date: 0,
            intent: None,
            eligible: false,
            annotations: shared.clone(),
            notes: Vec::new(),
        }
    }

    /// Returns `spec.replicas` as decided so far.
    pub(super) fn intended(&self) -> i64 {
        self.intent.unwrap_or(self.spec)
    }

    pub(super) fn note(&mut self, note: Note) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// The state of the computation.
pub(super) struct Planner<'a> {
    pub(super) input: &'a IntentInput<'a>,
    pub(super) fenceposts: Fenceposts,
    pub(super) new: Draft,
    pub(super) old: Vec<Draft>,
    pub(super) pairs_to_ask: BTreeSet<(String, String)>,
    create_reason: Option<String>,
    revision: String,
}

impl<'a> Planner<'a> {
    fn new(input: &'a IntentInput<'a>) -> Self {
        let deployment = input.deployment;
        let fenceposts = deployment.fenceposts();
        let max = deployment.replicas.saturating_add(fenceposts.surge);
        let shared = BTreeMap::from([
            (keys::DESIRED_REPLICAS.to_owned(), deployment.replicas.to_string()),
            (keys::MAX_REPLICAS.to_owned(), max.to_string()),
        ]);
        let found = find_new_and_old(deployment, input.machine_sets, input.now);
        let old_may_create = deployment.strategy != Strategy::OnDelete;
        let mut old: Vec<Draft> = found
            .old
            .iter()
            .map(|old| Draft::existing(&old.machine_set, old.eligible_for_in_place, &shared))
            .collect();
        for draft in &mut old {
            let disabled = (!old_may_create).to_string();
            draft.annotations.insert(keys::DISABLE_MACHINE_CREATE.to_owned(), disabled);
        }

        let (mut new, create_reason) = match &found.new {
            Some(set) => (Draft::existing(set, false, &shared), None),
            None => (Draft::created(input.new_name, input.now, &shared), Some(found.create_reason)),
        };
        let before = new.annotations.get(keys::REVISION).cloned();
        let revision = next_revision(before.as_deref(), &old);
        if create_reason.is_none() && before.as_deref() != Some(&revision) {
            new.note(Note::NowCurrent);
        }
        new.annotations.insert(keys::REVISION.to_owned(), revision.clone());
        new.annotations.insert(keys::DISABLE_MACHINE_CREATE.to_owned(), false.to_string());
        Self { input, fenceposts, new, old, pairs_to_ask: BTreeSet::new(), create_reason, revision }
    }

    pub(super) fn replicas(&self) -> i64 {
        self.input.deployment.replicas
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Draft> {
        self.old.iter().chain([&self.new])
    }

    /// Sorts old MachineSets by age, the oldest first; names break ties.
    pub(super) fn sort_old_by_age(&mut self) {
        self.old.sort_by(|a, b| (a.created_at, &a.name).cmp(&(b.created_at, &b.name)));
    }

    /// Sets the current MachineSet's replicas: down to the MachineDeployment's, or up as far as
    /// existing and requested machines leave room
    /// (`docs/facts/machine-deployment.md#rolling-update`, section B).
    pub(super) fn reconcile_new_machine_set(&mut self) {
        let replicas = self.replicas();
        if self.new.spec == replicas {
            return;
        }
        if self.new.spec > replicas {
            self.new.intent = Some(replicas);
            self.new.note(Note::AlignToDeployment);
            return;
        }
        let current: i64 = self.all().map(|set| set.spec.max(set.status)).sum();
        let max = replicas.saturating_add(self.fenceposts.surge);
        if current >= max {
            return;
        }
        let up = (max - current).min(replicas - self.new.spec);
        let max_surge = match self.input.deployment.strategy {
            Strategy::RollingUpdate { .. } => Some(self.fenceposts.surge),
            Strategy::OnDelete => None,
        };
        self.new.intent = Some(self.new.spec + up);
        self.new.note(Note::BelowMax { current, replicas, max_surge });
    }

    fn finish(mut self) -> RolloutIntent {
        self.sort_old_by_age();
        let old_in_order = self.old.iter().map(|old| old.name.clone()).collect();
        let current = self.new.name.clone();
        let finished = |draft: Draft, role: Role| MachineSetIntent {
            role,
            replicas_before: draft.replicas_before,
            replicas: draft.intended(),
            annotations: draft.annotations,
            notes: draft.notes,
        };
        let mut machine_sets: BTreeMap<String, MachineSetIntent> = self
            .old
            .into_iter()
            .map(|draft| (draft.name.clone(), finished(draft, Role::Old)))
            .collect();
        let mut create = None;
        match self.create_reason {
            Some(create_reason) => {
                create = Some(NewMachineSet {
                    name: current.clone(),
                    replicas: self.new.intended(),
                    annotations: self.new.annotations,
                    create_reason,
                    notes: self.new.notes,
                });
            }
            None => {
                machine_sets.insert(current.clone(), finished(self.new, Role::Current));
            }
        }
        RolloutIntent {
            current,
            create,
            machine_sets,
            old_in_order,
            pairs_to_ask: self.pairs_to_ask,
            revision: self.revision,
        }
    }
}

/// Returns a revision above every other MachineSet's, so that the history shows the order in which
/// they became current.
fn next_revision(before: Option<&str>, old: &[Draft]) -> String {
    let number = |text: &String| text.parse::<i64>().ok();
    let highest =
        old.iter().filter_map(|draft| draft.annotations.get(keys::REVISION)).filter_map(number);
    let next = highest.max().unwrap_or(0).saturating_add(1);
    match before.and_then(|text| text.parse::<i64>().ok()) {
        Some(own) if own >= next => own.to_string(),
        _ => next.to_string(),
    }
}

#[cfg(test)]
#[path = "intent_tests.rs"]
mod tests;
