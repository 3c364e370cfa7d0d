//! How long the update of one machine takes: by past ones, or by stated assumptions.

use jiff::SignedDuration;
use refit_core::{
    group::{expected_rest, median_seconds},
    node::{STEP_CORDON, STEP_DRAIN, STEP_NODE_READY, STEP_UNCORDON, step_names},
};
use refit_kinds::refit::{Disruption, Gate, PlannedStep, Role, StepDurations, StepType};
use serde::Serialize;

/// How long a new machine is assumed to take until it is available, in seconds.
const NEW_MACHINE_SECONDS: i64 = 600;
/// How long each of these steps is assumed to take, in seconds, where no past update shows it.
const ASSUMED_SECONDS: [(&str, i64); 4] =
    [(STEP_CORDON, 1), (STEP_DRAIN, 60), (STEP_NODE_READY, 20), (STEP_UNCORDON, 1)];
/// How long any other step is assumed to take, in seconds.
const ANOTHER_STEP_SECONDS: i64 = 10;

/// What a time is derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Source {
    /// The medians of past updates of the group.
    History,
    /// Past updates show some of the steps, and assumptions the others.
    Mixed,
    /// Assumptions only.
    Assumed,
}

/// How long one machine takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Takes {
    /// Where the seconds of an update come from.
    pub source: Source,
    /// How long a host prepares, before its machine is disturbed.
    pub prepare_seconds: i64,
    /// How long its machine is disturbed afterwards, until it is back.
    pub update_seconds: i64,
    /// How long a new machine takes until it is available: an assumption.
    pub new_machine_seconds: i64,
    /// What 95 of 100 past updates took at most from the turn of the machine on, if they show that.
    #[serde(skip)]
    pub(super) at_most: Option<SignedDuration>,
}

/// The steps of an update.
struct Steps {
    /// Those before the machine has its turn.
    prepare: Vec<String>,
    /// The others.
    rest: Vec<String>,
}

impl Takes {
    /// How long the machines of a role take for the steps of an upgrade, or for other changes that disturb them so much.
    pub(crate) fn of(
        role: Role,
        upgrade: Option<&[PlannedStep]>,
        disruption: Disruption,
        past: &[StepDurations],
    ) -> Self {
        let steps = Steps::of(role, upgrade, disruption);
        let all = steps.prepare.iter().chain(&steps.rest);
        let known = all.clone().filter(|step| median_seconds(past, step).is_some()).count();
        let source = match known {
            0 => Source::Assumed,
            known if known == all.count() => Source::History,
            _ => Source::Mixed,
        };
        let sum = |steps: &[String]| steps.iter().map(|step| seconds(past, step)).sum();
        Self {
            source,
            prepare_seconds: sum(&steps.prepare),
            update_seconds: sum(&steps.rest),
            new_machine_seconds: NEW_MACHINE_SECONDS,
            at_most: expected_rest(past, steps.rest.iter().map(String::as_str)),
        }
    }

    /// How long one update takes.
    pub fn seconds(&self) -> i64 {
        self.prepare_seconds.saturating_add(self.update_seconds)
    }
}

impl Steps {
    fn of(role: Role, upgrade: Option<&[PlannedStep]>, disruption: Disruption) -> Self {
        let Some(planned) = upgrade else { return Self::of_other_changes(disruption) };
        let is_prepared = |name: &str| {
            // A control plane machine has its turn before its host prepares.
            let early = planned.iter().filter(|step| step.gate <= Gate::Stage);
            role == Role::Worker && early.clone().any(|step| step.id == name)
        };
        let boots = planned.iter().any(|step| step.id == StepType::Reboot.id());
        let boot = StepType::Reboot.id();
        let boot = (disruption == Disruption::Reboot && !boots).then_some(boot);
        let names = step_names(planned).into_iter().chain(boot);
        let (prepare, rest) = names.map(str::to_owned).partition(|name: &String| is_prepared(name));
        Self { prepare, rest }
    }

    fn of_other_changes(disruption: Disruption) -> Self {
        let restart = [StepType::KubeletRestart.id(), STEP_NODE_READY];
        let drain = [STEP_CORDON, STEP_DRAIN, STEP_UNCORDON];
        let boot = [StepType::Reboot.id(), STEP_NODE_READY];
        let more: Vec<&str> = match disruption {
            Disruption::None => Vec::new(),
            Disruption::Restart => restart.to_vec(),
            Disruption::Drain => [&drain[..], &restart].concat(),
            Disruption::Reboot => [&drain[..], &boot].concat(),
        };
        let always = [StepType::Files.id(), StepType::Verify.id()];
        Self {
            prepare: vec![StepType::Preflight.id().to_owned()],
            rest: always.into_iter().chain(more).map(str::to_owned).collect(),
        }
    }
}

/// The median of a step, or what is assumed.
fn seconds(past: &[StepDurations], step: &str) -> i64 {
    if let Some(median) = median_seconds(past, step) {
        return median.into();
    }
    // Downloads, kubeadm on a control plane, and a boot take longer than other steps.
    let long = [
        (StepType::Stage, 60),
        (StepType::ImagePreload, 60),
        (StepType::KubeadmUpgrade, 90),
        (StepType::Reboot, 180),
        (StepType::RebootIfRequired, 180),
    ];
    let long = long.map(|(step, seconds)| (step.id(), seconds));
    let known = ASSUMED_SECONDS.into_iter().chain(long).find(|(known, _)| *known == step);
    known.map_or(ANOTHER_STEP_SECONDS, |(_, seconds)| seconds)
}

#[cfg(test)]
mod tests {
    use refit_core::node::plan_steps;

    use super::*;

    fn steps(role: Role) -> Vec<PlannedStep> {
        plan_steps(role, &"v1.35.0".parse().unwrap())
    }

    fn past(steps: &[&str], seconds: i32) -> Vec<StepDurations> {
        let of = |step: &&str| StepDurations { step: (*step).to_owned(), seconds: vec![seconds] };
        steps.iter().map(of).collect()
    }

    #[test]
    fn times_are_assumed_until_past_updates_show_them() {
        let planned = steps(Role::Worker);
        let of = |past: &[StepDurations]| {
            Takes::of(Role::Worker, Some(&planned), Disruption::Drain, past)
        };
        let assumed = of(&[]);
        assert_eq!(assumed.source, Source::Assumed);
        assert_eq!(assumed.at_most, None);
        assert!(assumed.prepare_seconds > 0 && assumed.update_seconds > 0, "{assumed:?}");
        assert_eq!(of(&past(&[STEP_DRAIN], 7)).source, Source::Mixed);
        let names = step_names(&planned);
        let known = of(&past(&names, 7));
        assert_eq!(known.source, Source::History);
        assert_eq!(known.seconds(), 7 * i64::try_from(names.len()).unwrap());
        assert!(known.at_most.is_some());
    }

    #[test]
    fn a_control_plane_machine_prepares_in_its_turn() {
        let of = |role| Takes::of(role, Some(&steps(role)), Disruption::Drain, &[]);
        assert_eq!(of(Role::ControlPlane).prepare_seconds, 0);
        assert!(of(Role::ControlPlane).update_seconds > of(Role::Worker).update_seconds);
    }

    #[test]
    fn an_update_that_disturbs_more_takes_longer() {
        let of = |disruption| Takes::of(Role::Worker, None, disruption, &[]).seconds();
        let all = [Disruption::None, Disruption::Restart, Disruption::Drain, Disruption::Reboot];
        assert!(all.map(of).is_sorted());
        let planned = steps(Role::Worker);
        let with_boot = Takes::of(Role::Worker, Some(&planned), Disruption::Reboot, &[]);
        let without = Takes::of(Role::Worker, Some(&planned), Disruption::Drain, &[]);
        assert_eq!(with_boot.seconds() - without.seconds(), 180);
    }
}
