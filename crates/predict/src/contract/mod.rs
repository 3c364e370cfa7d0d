//! Whether a provider follows the contract (`docs/contract/`): turns what was seen of it into a verdict on
//! each clause.
//!
//! The suite drives a provider through [`Purpose::ALL`] runs, as Refit would drive it for updates. Each run is
//! recorded ([`Run`]); nothing is judged while it lasts.

mod definition;
mod ends;
mod reports;
mod run;

#[cfg(test)]
mod tests;

use refit_kinds::refit::Gate;
use serde::Serialize;
use strum::IntoEnumIterator as _;

pub use definition::{Definition, Needed};
pub use run::{Event, Look, NodeLook, Purpose, Refusal, Run, Seen};

/// A clause of the contract that a provider can be tested for.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display, strum::EnumIter,
)]
#[strum(serialize_all = "kebab-case")]
#[serde(rename_all = "kebab-case")]
pub enum Clause {
    /// The definition has the contract's label.
    Label,
    /// Both kinds are namespaced.
    Namespaced,
    /// The API server admits the template.
    Template,
    /// The kind has the subresource `status`.
    StatusSubresource,
    /// The definition keeps the contract's fields of `spec`.
    SpecFields,
    /// The definition keeps the contract's fields of `status`.
    StatusFields,
    /// Refit gets its permissions.
    Permissions,
    /// The API server admits what Refit writes.
    OrdersAdmitted,
    /// The gate Stage is passed.
    PassesStage,
    /// The gate Upgrade is passed.
    PassesUpgrade,
    /// The gate Disrupt is passed, and the provider is ready.
    PassesDisrupt,
    /// No gate is passed before it is open.
    ClosedGates,
    /// Nothing is disturbed at the gate Stage.
    Undisturbed,
    /// `passed` never goes back.
    PassedStays,
    /// Each generation is noted.
    ObservesGenerations,
    /// The status has the contract's form.
    StatusForm,
    /// `ready` comes with the last gate.
    ReadyLast,
    /// `ready` is not withdrawn.
    ReadyStays,
    /// `pastNoReturn` is noted before the change.
    NoReturnFirst,
    /// The progress is a share.
    Progress,
    /// A failure has a reason and a message.
    FailureForm,
    /// Nothing is written while the provider waits.
    Quiet,
    /// What Refit writes is left alone.
    OrdersKept,
    /// The machine has what it should.
    Verified,
    /// A goal that is reached already is reached again.
    Repeated,
    /// A provider that is restarted goes on.
    Restarted,
    /// An abort at the gate Stage ends the work.
    AbortAtStage,
    /// An abort at the gate Upgrade ends the work.
    AbortAtUpgrade,
    /// After an abort, no further gate is passed.
    AbortHolds,
    /// An abort leaves the machine as it was.
    Undone,
    /// A deleted object is released.
    Deleted,
    /// Another Machine of the name is not touched.
    OtherMachine,
    /// A final failure is final.
    FailureFinal,
}

impl Clause {
    /// What it requires, as a line of a report.
    pub const fn requirement(self) -> &'static str {
        match self {
            Self::Label => {
                "the kind's definition lists its version in the label refit.dev/v1alpha1"
            }
            Self::Namespaced => "both kinds are namespaced",
            Self::Template => "the API server admits the template",
            Self::StatusSubresource => "the kind has the subresource status",
            Self::SpecFields => "the kind keeps the contract's fields of spec",
            Self::StatusFields => "the kind keeps the contract's fields of status",
            Self::Permissions => "a ClusterRole that is aggregated gives Refit its permissions",
            Self::OrdersAdmitted => "the API server admits each order",
            Self::PassesStage => "the gate Stage is passed",
            Self::PassesUpgrade => "the gate Upgrade is passed",
            Self::PassesDisrupt => "the gate Disrupt is passed, with ready",
            Self::ClosedGates => "no gate is passed before it is open",
            Self::Undisturbed => "nothing is disturbed at the gate Stage",
            Self::PassedStays => "passed never goes back",
            Self::ObservesGenerations => "each new generation is noted within a minute",
            Self::StatusForm => "the status has the contract's types",
            Self::ReadyLast => "ready is set only with the last gate, or for an abort",
            Self::ReadyStays => "ready is not withdrawn",
            Self::NoReturnFirst => {
                "pastNoReturn is set after the gate Stage, before the change, and for good"
            }
            Self::Progress => "progress.percent is from 0 to 100",
            Self::FailureForm => "a failure has a CamelCase reason and a message, and is not ready",
            Self::Quiet => "nothing is written while there is nothing to do",
            Self::OrdersKept => "spec, owners, and Refit's annotations and labels are left alone",
            Self::Verified => "once ready, the machine has the change",
            Self::Repeated => "an update to what the machine already has passes all gates",
            Self::Restarted => "a provider that is restarted at each gate goes on",
            Self::AbortAtStage => "an abort at the gate Stage ends with ready",
            Self::AbortAtUpgrade => "an abort at the gate Upgrade ends with ready",
            Self::AbortHolds => "no gate is passed after an abort",
            Self::Undone => {
                "an abort or a deletion before Disrupt leaves the machine as it was, or leftBehind lists what is left"
            }
            Self::Deleted => "a deleted object is released",
            Self::OtherMachine => "a Machine with another uid is refused, for good",
            Self::FailureFinal => "after a final failure nothing is done any more",
        }
    }
}

/// Whether a provider keeps a clause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "verdict", content = "message")]
pub enum Verdict {
    /// It does, in all that was seen.
    Kept,
    /// It does not: what was seen, and what to do.
    Broken(String),
    /// It was not tested, and why.
    NotTested(String),
}

impl Verdict {
    /// Broken with the first problem, or kept.
    fn of_first(mut problems: impl Iterator<Item = String>) -> Self {
        problems.next().map_or(Self::Kept, Self::Broken)
    }

    /// The first that is broken, else the first that is not tested, else kept.
    fn combined(verdicts: impl Iterator<Item = Self>) -> Self {
        let mut not_tested = None;
        for verdict in verdicts {
            match verdict {
                Self::Kept => {}
                Self::Broken(_) => return verdict,
                Self::NotTested(_) => not_tested = not_tested.or(Some(verdict)),
            }
        }
        not_tested.unwrap_or(Self::Kept)
    }
}

/// A clause and its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The clause.
    pub clause: Clause,
    /// Whether it is kept.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Judges every clause, in the order of the contract.
pub fn judge(definition: &Definition, runs: &[Run]) -> Vec<Finding> {
    let verdict = |clause| Finding { clause, verdict: verdict(clause, definition, runs) };
    Clause::iter().map(verdict).collect()
}

fn verdict(clause: Clause, definition: &Definition, runs: &[Run]) -> Verdict {
    let reports = |problem: fn(&Run) -> Option<String>| reports::verdict(runs, problem);
    let combined = |judge: fn(&Run) -> Verdict| Verdict::combined(runs.iter().map(judge));
    let run = |purpose, judge: fn(&Run) -> Verdict| {
        let untested = || Verdict::NotTested("the suite did not get there".to_owned());
        runs.iter().find(|run| run.purpose == purpose).map_or_else(untested, judge)
    };
    let is_about_kinds = clause <= Clause::OrdersAdmitted;
    if !is_about_kinds
        && clause != Clause::ObservesGenerations
        && !runs.iter().any(Run::has_reported)
    {
        return Verdict::NotTested("the provider has reported nothing".to_owned());
    }
    match clause {
        Clause::Label => definition.label(),
        Clause::Namespaced => definition.namespaced(),
        Clause::Template => definition.template(),
        Clause::StatusSubresource => definition.status_subresource(),
        Clause::SpecFields => definition.spec_fields(),
        Clause::StatusFields => definition.status_fields(),
        Clause::Permissions => definition.permissions(),
        Clause::OrdersAdmitted => ends::orders_admitted(runs),
        Clause::PassesStage => ends::passes(runs, Gate::Stage),
        Clause::PassesUpgrade => ends::passes(runs, Gate::Upgrade),
        Clause::PassesDisrupt => run(Purpose::Update, ends::reaches),
        Clause::ClosedGates => reports(reports::closed_gate),
        Clause::Undisturbed => ends::undisturbed(runs),
        Clause::PassedStays => reports(reports::passed_went_back),
        Clause::ObservesGenerations => reports::observes_generations(runs),
        Clause::StatusForm => reports(reports::malformed),
        Clause::ReadyLast => reports(reports::ready_early),
        Clause::ReadyStays => reports(reports::ready_withdrawn),
        Clause::NoReturnFirst => combined(reports::no_return),
        Clause::Progress => reports(reports::progress),
        Clause::FailureForm => reports(reports::failure_form),
        Clause::Quiet => reports(reports::noise),
        Clause::OrdersKept => reports(reports::changed_orders),
        Clause::Verified => run(Purpose::Update, ends::verified),
        Clause::Repeated if !runs.iter().any(ends::has_updated) => {
            Verdict::NotTested("the update was not made".to_owned())
        }
        Clause::Repeated => run(Purpose::Repeat, ends::reaches),
        Clause::Restarted => run(Purpose::Update, ends::restarted),
        Clause::AbortAtStage => run(Purpose::AbortAtStage, ends::stops),
        Clause::AbortAtUpgrade => run(Purpose::AbortAtUpgrade, ends::stops),
        Clause::AbortHolds => combined(reports::passed_after_abort),
        Clause::Undone => ends::undone(runs),
        Clause::Deleted => Verdict::of_first(runs.iter().filter_map(ends::left_over)),
        Clause::OtherMachine => run(Purpose::OtherMachine, ends::other_machine),
        Clause::FailureFinal => run(Purpose::OtherMachine, ends::final_failure),
    }
}
