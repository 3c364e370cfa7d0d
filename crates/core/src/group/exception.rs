//! Which machines do not begin although their group goes on: held and skipped ones.

use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    keys,
    refit::{ExceptionRule, MAX_EXCEPTION_REASON, Pacing},
};

use crate::report::Refusal;

/// What stands for the reason of an annotation that has none.
const NO_REASON: &str = "no reason given";

/// Why a Machine does not begin, as an operator wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// Name of the Machine.
    pub machine: String,
    /// For how long.
    pub rule: ExceptionRule,
    /// Why.
    pub reason: String,
}

impl From<Exception> for Refusal {
    fn from(Exception { machine, rule, reason }: Exception) -> Self {
        match rule {
            ExceptionRule::Hold => Self::Held { machine, reason },
            ExceptionRule::Skip => Self::Skipped { machine, reason },
        }
    }
}

/// Whether a Machine is held, or skipped in the rollout of this number, by its own annotations or by the pacing of its
/// group. It does not cover a Machine that has begun.
///
/// A hold comes before a skip. An annotation without a reason counts; one whose rollout cannot be read skips every
/// rollout.
pub fn exception_of(machine: &Machine, pacing: &Pacing, rollout: i64) -> Option<Exception> {
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let annotation = |key| machine.metadata.annotations.as_ref().and_then(|all| all.get(key));
    let last = annotation(keys::SKIP_ROLLOUT).and_then(|text| text.parse().ok());
    let annotated = [
        (ExceptionRule::Hold, annotation(keys::HOLD), None),
        (ExceptionRule::Skip, annotation(keys::SKIP), last),
    ];
    let annotated =
        annotated.into_iter().filter_map(|(rule, reason, last)| Some((rule, reason?, last)));
    let listed = pacing.exceptions.iter().filter(|one| one.machine == name);
    let listed = listed.map(|one| (one.rule, &one.reason, one.rollout));
    let counts = |(rule, _, last): &(ExceptionRule, &String, Option<i64>)| match rule {
        ExceptionRule::Hold => true,
        ExceptionRule::Skip => last.is_none_or(|last| rollout <= last),
    };
    let found = annotated.chain(listed).filter(counts);
    let (rule, reason, _) = found.min_by_key(|(rule, ..)| *rule == ExceptionRule::Skip)?;
    Some(Exception { machine: name.to_owned(), rule, reason: shown(reason) })
}

/// A reason in one line of bounded length.
fn shown(reason: &str) -> String {
    let plain = reason.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    let text: String = plain.take(MAX_EXCEPTION_REASON).collect();
    if text.is_empty() { NO_REASON.to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use refit_cluster_api::kinds::MachineSpec;
    use refit_kinds::refit::PacingException;

    use super::*;

    /// Annotations of the Machine, pacing of its group, and what follows.
    type Row =
        (&'static [(&'static str, &'static str)], Pacing, Option<(ExceptionRule, &'static str)>);

    fn machine(annotations: &[(&str, &str)]) -> Machine {
        let mut machine = Machine::new("m", MachineSpec::default());
        let all = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        machine.metadata.annotations = Some(all.collect());
        machine
    }

    fn pacing(machine: &str, rule: ExceptionRule, rollout: Option<i64>) -> Pacing {
        let (machine, reason) = (machine.to_owned(), "listed".to_owned());
        let exceptions = vec![PacingException { machine, rule, reason, rollout }];
        Pacing { exceptions, ..Pacing::default() }
    }

    #[test]
    fn annotations_and_pacing_hold_and_skip_a_machine() {
        use ExceptionRule::{Hold, Skip};
        let none = Pacing::default;
        let table: [Row; 16] = [
            (&[], none(), None),
            (&[(keys::HOLD, "disk")], none(), Some((Hold, "disk"))),
            (&[(keys::SKIP, "disk")], none(), Some((Skip, "disk"))),
            (&[], pacing("m", Hold, None), Some((Hold, "listed"))),
            (&[], pacing("m", Skip, None), Some((Skip, "listed"))),
            (&[], pacing("other", Hold, None), None),
            // A hold comes before a skip, wherever it is.
            (&[(keys::SKIP, "s"), (keys::HOLD, "h")], none(), Some((Hold, "h"))),
            (&[(keys::SKIP, "s")], pacing("m", Hold, None), Some((Hold, "listed"))),
            (&[(keys::HOLD, "h")], pacing("m", Hold, None), Some((Hold, "h"))),
            // Up to a rollout.
            (&[(keys::SKIP, "s"), (keys::SKIP_ROLLOUT, "3")], none(), Some((Skip, "s"))),
            (&[(keys::SKIP, "s"), (keys::SKIP_ROLLOUT, "2")], none(), None),
            (&[], pacing("m", Skip, Some(3)), Some((Skip, "listed"))),
            (&[], pacing("m", Skip, Some(2)), None),
            // The safe side.
            (&[(keys::SKIP, "s"), (keys::SKIP_ROLLOUT, "two")], none(), Some((Skip, "s"))),
            (&[(keys::HOLD, " ")], none(), Some((Hold, NO_REASON))),
            (&[(keys::SKIP_ROLLOUT, "3")], none(), None),
        ];
        for (annotations, pacing, wanted) in table {
            let found = exception_of(&machine(annotations), &pacing, 3);
            let found = found.map(|one| (one.rule, one.reason));
            let wanted = wanted.map(|(rule, reason)| (rule, reason.to_owned()));
            assert_eq!(found, wanted, "{annotations:?} {pacing:?}");
        }
    }

    #[test]
    fn a_reason_is_one_line_of_bounded_length() {
        let long = format!("a\nb{}", "x".repeat(1000));
        let found = exception_of(&machine(&[(keys::HOLD, &long)]), &Pacing::default(), 1).unwrap();
        assert!(found.reason.starts_with("a bx"), "{}", found.reason);
        assert_eq!(found.reason.chars().count(), MAX_EXCEPTION_REASON);
    }
}
