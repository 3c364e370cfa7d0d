//! The response to CanUpdateMachine and CanUpdateMachineSet, and its reason.

use refit_kinds::keys;
use strum::IntoStaticStr;

use super::{
    cover::{Coverage, Patches},
    not_ready::NotReady,
    policy::{OnUncovered, Policy},
};

/// How many path lines a message contains; the UpdateGroup's status lists more.
const LINES_IN_MESSAGE: usize = 8;

/// The response to CanUpdate*.
#[derive(Clone, Debug, PartialEq, IntoStaticStr)]
pub enum Verdict {
    /// In place: these patches make the current objects exactly equal to the desired ones.
    #[strum(serialize = "Covered")]
    Cover {
        /// They make the current objects equal to the desired ones.
        patches: Patches,
        /// Whether a machine may be unavailable meanwhile.
        affects_availability: bool,
    },
    /// No updater covers the change, and the policy lets Cluster API replace machines.
    #[strum(serialize = "UncoveredReplace")]
    Replace {
        /// Path lines of uncovered changes.
        uncovered: Vec<String>,
    },
    /// No updater covers the change, and no machine is replaced.
    #[strum(serialize = "UncoveredPreserve")]
    Preserve {
        /// Path lines of uncovered changes.
        uncovered: Vec<String>,
        /// Message to show.
        message: String,
    },
    /// Not possible yet, or not known: the rollout waits.
    #[strum(transparent)]
    NotReady(NotReady),
    /// The policy disables Refit and leaves the rollout to Cluster API.
    Disabled,
}

impl Verdict {
    /// CamelCase reason for status and metrics.
    pub fn reason(&self) -> &'static str {
        self.into()
    }

    /// Whether Cluster API may replace machines after this response.
    pub fn replaces(&self) -> bool {
        match self {
            Self::Replace { .. } | Self::Disabled => true,
            Self::Cover { .. } | Self::Preserve { .. } | Self::NotReady(_) => false,
        }
    }

    /// A whole sentence for status and events.
    pub fn message(&self) -> String {
        match self {
            Self::Cover { .. } => "the change is made in place".to_owned(),
            Self::Replace { uncovered } => format!(
                "{}; Cluster API replaces the machines, as {} requires",
                listed(uncovered),
                keys::ON_UNCOVERED
            ),
            Self::Preserve { message, .. } => message.clone(),
            Self::NotReady(why) => why.to_string(),
            Self::Disabled => format!(
                "Refit is disabled here by {}: Cluster API rolls out new machines",
                keys::IN_PLACE
            ),
        }
    }

    /// Path lines of uncovered changes.
    pub fn uncovered(&self) -> &[String] {
        match self {
            Self::Replace { uncovered } | Self::Preserve { uncovered, .. } => uncovered,
            Self::Cover { .. } | Self::NotReady(_) | Self::Disabled => &[],
        }
    }
}

/// Combines coverage, policy and readiness.
///
/// Problems that an operator must fix are reported before conditions that pass without
/// intervention. A replacement waits only for a machine that is being updated: otherwise Cluster
/// API would remove two machines at once.
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
        None => Verdict::Cover {
            patches: coverage.patches.clone(),
            affects_availability: coverage.affects_availability(),
        },
    }
}

fn preserved(policy: &Policy, uncovered: &[String]) -> String {
    let why = match &policy.not_understood {
        Some((key, value)) if key == keys::ON_UNCOVERED => {
            format!("invalid value {value:?} of {key}, using Preserve")
        }
        _ => format!(
            "revert the change, or let Cluster API replace machines with {}: Replace",
            keys::ON_UNCOVERED
        ),
    };
    format!("{}; no machine is replaced: {why}", listed(uncovered))
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
    use crate::change::not_ready::Unfinished;
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
                    why: crate::change::Unclaimed::NoUpdater,
                })
                .collect(),
            ..Coverage::default()
        }
    }

    fn policy_with(on_uncovered: OnUncovered) -> Policy {
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
            (policy_with(Preserve), 0, None, None, "Covered"),
            (policy_with(Preserve), 0, Some(busy()), None, "AnotherMachineUpdating"),
            (policy_with(Preserve), 0, Some(busy()), Some(stale()), "AnotherMachineUpdating"),
            (policy_with(Preserve), 0, None, Some(stale()), "NoFreshReport"),
            (policy_with(Replace), 0, None, Some(stale()), "NoFreshReport"),
            (policy_with(Preserve), 1, None, None, "UncoveredPreserve"),
            (policy_with(Preserve), 1, Some(busy()), Some(stale()), "UncoveredPreserve"),
            (policy_with(Replace), 1, None, Some(stale()), "UncoveredReplace"),
            (policy_with(Replace), 1, Some(busy()), None, "AnotherMachineUpdating"),
            (
                Policy { disabled: true, ..policy_with(Preserve) },
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
            verdict(&policy_with(OnUncovered::Preserve), &uncovered(1), None, None)
        else {
            panic!("it is preserved");
        };
        assert_eq!(uncovered, ["K/n spec.f0: (absent) -> 1 (no updater)"]);
        assert_eq!(
            message,
            "K/n spec.f0: (absent) -> 1 (no updater); no machine is replaced: revert the change, or \
             let Cluster API replace machines with refit.dev/on-uncovered: Replace"
        );
    }

    #[test]
    fn many_paths_are_counted_in_the_message_and_all_listed() {
        let got = verdict(&policy_with(OnUncovered::Preserve), &uncovered(11), None, None);
        assert_eq!(got.uncovered().len(), 11);
        assert!(got.message().contains("; and 3 more;"), "{}", got.message());
    }

    #[test]
    fn an_invalid_value_is_quoted_in_the_message() {
        let policy = Policy {
            not_understood: Some((keys::ON_UNCOVERED.into(), "replace".into())),
            ..Policy::default()
        };
        let got = verdict(&policy, &uncovered(1), None, None);
        assert!(got.message().contains("invalid value \"replace\""), "{}", got.message());
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
