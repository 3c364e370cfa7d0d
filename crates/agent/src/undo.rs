//! Undo: what is rolled back when a plan fails before its point of no return, and what remains.
//!
//! Undo steps are steps like any other: they are journalled before they start and after they end,
//! retried, and found again after a kill. They are derived from the journal alone, so every agent
//! process derives the same ones. Past the point of no return nothing is rolled back: an older
//! kubeadm could not repair what the newer one has begun (`docs/facts/kubeadm.md#rolling-back`).

use std::collections::{BTreeMap, BTreeSet};

use refit_kinds::{
    refit::{
        HostStep, KubeletArgs, OsImageArgs, PlanState, PlannedStep, StepType, StepUndo, UnitArgs,
    },
    version::KubernetesVersion,
};

use crate::{
    engine::is_given_up,
    host::Undo,
    state::{AbortCause, Progress},
};

/// Prefix of the id of an undo step.
pub(crate) const UNDO: &str = "undo-";
/// How much of an undo step's message the report of what remains repeats.
const MESSAGE_CHARS: usize = 300;

/// Id of the step that undoes a step.
pub(crate) fn undo_id(step: &str) -> String {
    format!("{UNDO}{step}")
}

/// A step that undoes one step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UndoStep {
    /// Id: that of the undone step after [`UNDO`].
    pub(crate) id: String,
    /// What the step does.
    pub(crate) undo: Undo,
}

/// The undo steps of a plan in the order in which they run: the last step is undone first, but units
/// and then the kubelet restart only after everything that they read is restored. Empty past the
/// point of no return.
pub(crate) fn undo_steps(plan: &Progress) -> Vec<UndoStep> {
    if plan.past_no_return() {
        return Vec::new();
    }
    let mut steps: Vec<UndoStep> = plan
        .steps
        .iter()
        .rev()
        .filter(|step| was_started(plan, &step.id))
        .filter_map(|step| undo_step(plan, step))
        .collect();
    steps.sort_by_key(|step| restarts(&step.undo));
    steps
}

/// What an undo step restarts, in the order of restarts: nothing, units, the kubelet.
fn restarts(undo: &Undo) -> u8 {
    match undo {
        Undo::Packages { .. }
        | Undo::OsPackages
        | Undo::Configuration
        | Undo::Files { .. }
        | Undo::OsImage { .. } => 0,
        Undo::Units(_) => 1,
        Undo::KubeletRestart => 2,
    }
}

fn was_started(plan: &Progress, step: &str) -> bool {
    plan.runs.get(step).is_some_and(|run| !run.unit.is_empty())
}

/// The step that undoes `step`; `None` if `step` changed nothing that could be undone.
fn undo_step(plan: &Progress, step: &PlannedStep) -> Option<UndoStep> {
    let undo = match undo_kind(plan, step)? {
        StepUndo::Packages if installs_os_packages(step) => Undo::OsPackages,
        StepUndo::Packages => {
            let packages = packages_before(plan, step);
            (!packages.is_empty()).then_some(Undo::Packages { packages })?
        }
        StepUndo::Configuration => Undo::Configuration,
        StepUndo::Files => Undo::Files { step: step.id.clone() },
        StepUndo::OsImage => Undo::OsImage { os_image: os_image(step.step()?)?.clone() },
        StepUndo::KubeletRestart => Undo::KubeletRestart,
        StepUndo::Units => Undo::Units(units(step.step()?)?.clone()),
    };
    Some(UndoStep { id: undo_id(&step.id), undo })
}

fn os_image(step: &HostStep) -> Option<&OsImageArgs> {
    if let HostStep::OsImageStage { os_image, .. }
    | HostStep::OsImageFinalize { os_image }
    | HostStep::OsImageCommit { os_image } = step
    {
        return Some(os_image);
    }
    None
}

fn units(step: &HostStep) -> Option<&UnitArgs> {
    if let HostStep::UnitActions(units) = step { Some(units) } else { None }
}

/// Whether a step installs packages of the operating system. Which of them change is known only to the host.
fn installs_os_packages(step: &PlannedStep) -> bool {
    step.step_type() == Some(StepType::OsPackagesInstall)
}

/// How a step is rolled back. The plan of an older controller does not record it.
fn undo_kind(plan: &Progress, step: &PlannedStep) -> Option<StepUndo> {
    let older =
        plan.point_of_no_return.is_empty() && step.step_type() == Some(StepType::KubeadmInstall);
    step.undo.or(older.then_some(StepUndo::Packages))
}

/// The packages that steps name in addition to those of Kubernetes. An undo needs their versions.
pub(crate) fn named_packages(steps: &[PlannedStep]) -> BTreeSet<String> {
    let args = steps.iter().filter_map(|step| step.step()?.packages());
    let args = args.flat_map(|args| &args.install).map(|package| package.name.clone());
    let of_os = steps.iter().filter_map(|step| {
        if let HostStep::OsPackagesInstall(args) = step.step()? {
            Some(&args.install)
        } else {
            None
        }
    });
    args.chain(of_os.flatten().map(|package| package.name.clone())).collect()
}

/// Packages that a step was to install and that were not installed before. They stay installed:
/// nothing that ran before needs them to be absent.
fn new_packages(plan: &Progress, step: &PlannedStep) -> Vec<String> {
    if undo_kind(plan, step) != Some(StepUndo::Packages) {
        return Vec::new();
    }
    let named = named_packages(std::slice::from_ref(step)).into_iter();
    named.filter(|name| !plan.packages_before.contains_key(name)).collect()
}

/// The packages of a step at their previous versions. Empty unless the step was to change a package
/// or a file that is rolled back with the packages.
fn packages_before(plan: &Progress, step: &PlannedStep) -> BTreeMap<String, String> {
    let Some(step) = step.step() else {
        return BTreeMap::new();
    };
    let kubernetes = step.rules().installs.iter().map(|name| {
        let same = |before: &str| {
            KubernetesVersion::of_package(before).is_ok_and(|found| Some(&found) == step.version())
        };
        let before = plan.packages_before.get(*name);
        (*name, before, before.is_some_and(|before| same(before)))
    });
    let others = step.packages().into_iter().flat_map(|args| &args.install);
    let others = others.map(|package| {
        let before = plan.packages_before.get(&package.name);
        let same = before.is_some_and(|before| *before == package.version);
        (package.name.as_str(), before, same)
    });
    let all: Vec<_> = kubernetes.chain(others).collect();
    let flags = matches!(
        step,
        HostStep::KubeletInstall { kubelet, .. } if *kubelet != KubeletArgs::default()
    );
    if !flags && all.iter().all(|(_, before, same)| before.is_none() || *same) {
        return BTreeMap::new();
    }
    all.into_iter()
        .filter_map(|(name, before, _)| Some((name.to_owned(), before?.clone())))
        .collect()
}

/// What a failed or stopped plan left on the host: the id of each such step, and a whole sentence.
pub(crate) fn left_behind(plan: &Progress) -> Vec<(String, String)> {
    if !matches!(plan.ended, Some(PlanState::Failed | PlanState::Stopped)) {
        return Vec::new();
    }
    let past = plan.past_no_return();
    let undos = undo_steps(plan);
    plan.steps
        .iter()
        .filter(|step| changes_the_host(step))
        .filter_map(|step| {
            let run = plan.runs.get(&step.id).filter(|run| run.left_its_mark())?;
            let undo = undo_id(&step.id);
            let planned = undos.iter().any(|step| step.id == undo);
            let nothing = !planned && undo_kind(plan, step).is_some();
            if !past && (nothing || plan.is_done(&undo)) {
                return Some((step.id.clone(), left_packages_message(&new_packages(plan, step))?));
            }
            let what = if run.is_done() { "was applied" } else { "failed" };
            let why = if past {
                let point = plan.irreversible().first().map_or("", |step| &step.id);
                format!("nothing is rolled back after the point of no return ({point})")
            } else if planned {
                undo_failure(plan, &undo)
            } else {
                "it cannot be rolled back".to_owned()
            };
            let sentence = format!("Step {} {what} and was not rolled back: {why}.", step.id);
            Some((step.id.clone(), sentence))
        })
        .collect()
}

fn left_packages_message(packages: &[String]) -> Option<String> {
    let list = packages.join(", ");
    match packages.len() {
        0 => None,
        1 => Some(format!("Package {list} was installed by the plan and is left on the host.")),
        _ => Some(format!("Packages {list} were installed by the plan and are left on the host.")),
    }
}

fn undo_failure(plan: &Progress, undo: &str) -> String {
    match plan.runs.get(undo) {
        Some(run) if is_given_up(plan, undo) => {
            let message: String = run.message.chars().take(MESSAGE_CHARS).collect();
            let message = message.trim_end_matches('.').replace('\n', " ");
            format!("{undo} failed ({}): {message}", run.reason)
        }
        _ => format!("{undo} did not run"),
    }
}

/// Whether the report lists a step of this type as left on the host: not a step that only inspects,
/// fetches or saves.
fn changes_the_host(step: &PlannedStep) -> bool {
    match step.step_type() {
        // A step that only fetches has no undo; one with an undo has changed the package sources.
        Some(StepType::Stage) => step.undo.is_some(),
        Some(
            StepType::Preflight
            | StepType::ImagePreload
            | StepType::OsPackagesStage
            | StepType::Snapshot
            | StepType::Verify,
        )
        | None => false,
        Some(
            StepType::OsImageStage
            | StepType::OsPackagesInstall
            | StepType::RebootIfRequired
            | StepType::KubeadmInstall
            | StepType::KubeadmUpgrade
            | StepType::EtcdUpgrade
            | StepType::CertificatesRenew
            | StepType::Files
            | StepType::KeysRevoke
            | StepType::Ntp
            | StepType::NtpReplace
            | StepType::UnitActions
            | StepType::ContainerRuntimeInstall
            | StepType::Commands
            | StepType::OsImageFinalize
            | StepType::KubeletFlags
            | StepType::KubeletInstall
            | StepType::KubectlInstall
            | StepType::KubeletRestart
            | StepType::Reboot
            | StepType::OsImageCommit,
        ) => true,
    }
}

/// Why the rest of a plan was not run, and what the plan left on the host.
pub(crate) fn not_taken(plan: &Progress) -> String {
    let why = match (plan.ended, plan.abort) {
        (Some(PlanState::Failed), _) => "an earlier step failed",
        (_, Some(AbortCause::Superseded)) => "another plan replaced this one",
        _ => "the plan was aborted",
    };
    let left: Vec<String> = left_behind(plan).into_iter().map(|(id, _)| id).collect();
    if left.is_empty() {
        format!("{why}; the plan left nothing on the host")
    } else {
        format!("{why}; the plan left changes of these steps on the host: {}", left.join(", "))
    }
}

#[cfg(test)]
#[path = "undo_tests.rs"]
mod tests;
