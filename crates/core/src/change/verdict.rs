//! What the answer to CanUpdateMachine and CanUpdateMachineSet is, and why.

use std::fmt;

use refit_kinds::{
    keys,
    version::{KubernetesVersion, StatedVersion},
};
use strum::IntoStaticStr;

use super::{
    cover::{Coverage, Patches},
    policy::{OnUncovered, Policy},
};

/// How many path lines a message carries; the UpdateGroup's status has more.
const LINES_IN_MESSAGE: usize = 8;

/// The answer to CanUpdate*.
#[derive(Clone, Debug, PartialEq, IntoStaticStr)]
pub enum Verdict {
    /// In place: these patches make current exactly what is wanted.
    #[strum(serialize = "Covered")]
    Cover(Patches),
    /// Nobody covers it, and policy lets Cluster API replace.
    #[strum(serialize = "UncoveredReplace")]
    Replace {
        /// Path lines of what nobody covers.
        uncovered: Vec<String>,
    },
    /// Nobody covers it, and nothing is replaced.
    #[strum(serialize = "UncoveredPreserve")]
    Preserve {
        /// Path lines of what nobody covers.
        uncovered: Vec<String>,
        /// What is shown.
        message: String,
    },
    /// Not now, or not known: the rollout waits.
    #[strum(transparent)]
    NotReady(NotReady),
    /// Refit is told to leave it to Cluster API.
    Disabled,
}

/// Why an answer has to wait. It is a Failure for Cluster API, which asks again; an empty Success
/// would delete machines and be remembered for a day (`spec/capi.md 3.4`).
///
/// What [`super::can_update()`] alone decides cannot be constructed outside this crate.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum NotReady {
    /// The caches are not complete.
    NotSynced,
    /// The request does not say what it is about.
    BadRequest {
        /// What is wrong with it.
        reason: String,
    },
    /// The live object is not known.
    ObjectUnknown {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
    },
    /// The Machine has no owner that Refit knows.
    OwnerUnknown {
        /// Name of the Machine.
        machine: String,
    },
    /// The Machine is being deleted.
    #[non_exhaustive]
    Deleting {
        /// Name of the Machine.
        machine: String,
    },
    /// Another machine of the control plane is not finished.
    #[non_exhaustive]
    #[strum(serialize = "AnotherMachineUpdating")]
    AnotherMachine {
        /// Name of that Machine.
        machine: String,
        /// What is not finished.
        what: Unfinished,
    },
    /// Hosts without a recent report of their agent.
    #[non_exhaustive]
    NoFreshReport {
        /// Nodes, and Machines without one, in order.
        nodes: Vec<String>,
    },
    /// The control plane has to go first.
    #[non_exhaustive]
    ControlPlaneBehind {
        /// Name of a control plane Machine.
        machine: String,
        /// What it runs.
        runs: StatedVersion,
        /// What is wanted.
        target: KubernetesVersion,
    },
    /// The answer took too long.
    Deadline,
}

/// What is not finished on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// A NodeUpdate of this name.
    NodeUpdate(String),
    /// Cluster API's own marks are still on it.
    Marked,
}

impl NotReady {
    /// CamelCase reason for status and metrics.
    pub fn reason(&self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSynced => f.write_str("Refit is starting and has not read the cluster yet"),
            Self::BadRequest { reason } => write!(f, "the request cannot be served: {reason}"),
            Self::ObjectUnknown { kind, name } => {
                write!(f, "{kind} {name} is not known to Refit (yet)")
            }
            Self::OwnerUnknown { machine } => write!(
                f,
                "Machine {machine} has no control plane or MachineSet as owner that Refit knows"
            ),
            Self::Deleting { machine } => write!(f, "Machine {machine} is being deleted"),
            Self::AnotherMachine { machine, what } => match what {
                Unfinished::NodeUpdate(name) => write!(
                    f,
                    "Machine {machine} of the same control plane is not finished (NodeUpdate {name})"
                ),
                Unfinished::Marked => write!(
                    f,
                    "Machine {machine} of the same control plane is still being updated in place"
                ),
            },
            Self::NoFreshReport { nodes } => write!(
                f,
                "no recent report of refit-agent from {}: check that it runs there",
                nodes.join(", ")
            ),
            Self::ControlPlaneBehind { machine, runs, target } => write!(
                f,
                "kubelets must not be newer than the API server: control plane Machine {machine} runs {runs}, {target} is wanted"
            ),
            Self::Deadline => f.write_str("no answer in time; the next call may do"),
        }
    }
}

impl Verdict {
    /// CamelCase reason for status and metrics.
    pub fn reason(&self) -> &'static str {
        self.into()
    }

    /// A whole sentence for status and events.
    pub fn message(&self) -> String {
        match self {
            Self::Cover(_) => "the change is made in place".to_owned(),
            Self::Replace { uncovered } => format!(
                "{}; Cluster API replaces the machines, as {} says",
                listed(uncovered),
                keys::ON_UNCOVERED
            ),
            Self::Preserve { message, .. } => message.clone(),
            Self::NotReady(why) => why.to_string(),
            Self::Disabled => format!(
                "Refit is switched off here by {}: Cluster API rolls out new machines",
                keys::IN_PLACE
            ),
        }
    }

    /// Path lines of what nobody covers.
    pub fn uncovered(&self) -> &[String] {
        match self {
            Self::Replace { uncovered } | Self::Preserve { uncovered, .. } => uncovered,
            Self::Cover(_) | Self::NotReady(_) | Self::Disabled => &[],
        }
    }
}

/// Puts coverage, policy and readiness together.
///
/// A person who has to change something hears of it before anything that passes by itself. What is
/// to be replaced waits only for the machine that is being worked on: Cluster API would take two
/// away at once.
pub fn verdict(
    policy: &Policy,
    coverage: &Coverage,
    busy: Option<NotReady>,
    unready: Option<NotReady>,
) -> Verdict {
    if policy.disabled {
        return Verdict::Disabled;
    }
    if !coverage.is_complete() {
        let uncovered = coverage.lines();
        return match (policy.on_uncovered, busy) {
            (OnUncovered::Preserve, _) => {
                Verdict::Preserve { message: preserved(policy, &uncovered), uncovered }
            }
            (OnUncovered::Replace, Some(busy)) => Verdict::NotReady(busy),
            (OnUncovered::Replace, None) => Verdict::Replace { uncovered },
        };
    }
    match busy.or(unready) {
        Some(why) => Verdict::NotReady(why),
        None => Verdict::Cover(coverage.patches.clone()),
    }
}

fn preserved(policy: &Policy, uncovered: &[String]) -> String {
    let why = match &policy.not_understood {
        Some((key, value)) if key == keys::ON_UNCOVERED => {
            format!("{key}: {value:?} is not understood and counts as Preserve")
        }
        _ => format!(
            "revert the change, or let Cluster API replace machines with {}: Replace",
            keys::ON_UNCOVERED
        ),
    };
    format!("{}; nothing is replaced: {why}", listed(uncovered))
}

fn listed(lines: &[String]) -> String {
    let shown = lines.iter().take(LINES_IN_MESSAGE).cloned().collect::<Vec<_>>().join("; ");
    match lines.len().saturating_sub(LINES_IN_MESSAGE) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::change::{cover::Difference, diff::Change, objects::Part, path::Path};

    fn uncovered(count: usize) -> Coverage {
        Coverage {
            uncovered: (0..count)
                .map(|n| Difference {
                    part: Part::Infrastructure,
                    kind: "K".into(),
                    name: "n".into(),
                    change: Change {
                        path: Path::of(&["spec", &format!("f{n}")]),
                        from: None,
                        to: Some(json!(1)),
                    },
                })
                .collect(),
            ..Coverage::default()
        }
    }

    fn says(on_uncovered: OnUncovered) -> Policy {
        Policy { on_uncovered, ..Policy::default() }
    }

    fn busy() -> NotReady {
        NotReady::AnotherMachine { machine: "m".into(), what: Unfinished::NodeUpdate("m-1".into()) }
    }

    fn stale() -> NotReady {
        NotReady::NoFreshReport { nodes: vec!["n".into()] }
    }

    #[test]
    fn the_table_of_verdicts() {
        use OnUncovered::{Preserve, Replace};
        let table = [
            (says(Preserve), 0, None, None, "Covered"),
            (says(Preserve), 0, Some(busy()), None, "AnotherMachineUpdating"),
            (says(Preserve), 0, Some(busy()), Some(stale()), "AnotherMachineUpdating"),
            (says(Preserve), 0, None, Some(stale()), "NoFreshReport"),
            (says(Replace), 0, None, Some(stale()), "NoFreshReport"),
            (says(Preserve), 1, None, None, "UncoveredPreserve"),
            (says(Preserve), 1, Some(busy()), Some(stale()), "UncoveredPreserve"),
            (says(Replace), 1, None, Some(stale()), "UncoveredReplace"),
            (says(Replace), 1, Some(busy()), None, "AnotherMachineUpdating"),
            (
                Policy { disabled: true, ..says(Preserve) },
                1,
                Some(busy()),
                Some(stale()),
                "Disabled",
            ),
        ];
        for (policy, paths, busy, unready, reason) in table {
            let got = verdict(&policy, &uncovered(paths), busy, unready);
            assert_eq!(got.reason(), reason, "{policy:?} {paths}");
        }
    }

    #[test]
    fn the_message_names_the_paths_and_what_to_do() {
        let Verdict::Preserve { message, uncovered } =
            verdict(&says(OnUncovered::Preserve), &uncovered(1), None, None)
        else {
            panic!("it is preserved");
        };
        assert_eq!(uncovered, ["K/n spec.f0: (absent) -> 1 (no updater)"]);
        assert_eq!(
            message,
            "K/n spec.f0: (absent) -> 1 (no updater); nothing is replaced: revert the change, or \
             let Cluster API replace machines with refit.dev/on-uncovered: Replace"
        );
    }

    #[test]
    fn many_paths_are_counted_in_the_message_and_kept_in_the_list() {
        let got = verdict(&says(OnUncovered::Preserve), &uncovered(11), None, None);
        assert_eq!(got.uncovered().len(), 11);
        assert!(got.message().contains("; and 3 more;"), "{}", got.message());
    }

    #[test]
    fn a_value_that_is_not_understood_is_quoted_in_the_message() {
        let policy = Policy {
            not_understood: Some((keys::ON_UNCOVERED.into(), "replace".into())),
            ..Policy::default()
        };
        let got = verdict(&policy, &uncovered(1), None, None);
        assert!(got.message().contains("\"replace\" is not understood"), "{}", got.message());
    }

    #[test]
    fn every_reason_is_one_camel_case_word() {
        let all = [
            NotReady::NotSynced,
            NotReady::Deadline,
            NotReady::BadRequest { reason: "x".into() },
            NotReady::Deleting { machine: "m".into() },
            busy(),
            stale(),
        ];
        for why in all {
            assert!(why.reason().chars().all(char::is_alphanumeric));
            assert!(!why.to_string().is_empty());
        }
    }
}
