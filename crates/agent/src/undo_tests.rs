use proptest::prelude::*;
use refit_kinds::refit::{
    CommandArgs, FailureKind, FileArgs, Gate, KeyArgs, NtpArgs, PackageArgs, PackageVersion,
    USUAL_ATTEMPTS, UnitAction, UnitVerb,
};

use super::*;
use crate::{
    engine::{self, Next},
    state::{JournalState, Record, StepOutcome},
};

fn at(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn new() -> KubernetesVersion {
    KubernetesVersion::new(1, 35, 0)
}

fn installs(install: Vec<PackageVersion>) -> PackageArgs {
    PackageArgs { install, ..PackageArgs::default() }
}

fn kubeadm(packages: PackageArgs) -> HostStep {
    HostStep::KubeadmInstall { version: new(), packages }
}

fn kubelet(kubelet: KubeletArgs) -> HostStep {
    HostStep::KubeletInstall { version: new(), packages: PackageArgs::default(), kubelet }
}

/// The steps of a worker, as a controller plans them.
fn worker() -> Vec<PlannedStep> {
    let steps = [
        HostStep::Preflight { version: None },
        kubeadm(PackageArgs::default()),
        HostStep::KubeadmUpgrade {
            version: new(),
            role: refit_kinds::refit::Role::Worker,
            kubeadm: refit_kinds::refit::KubeadmArgs::default(),
        },
        kubelet(KubeletArgs::default()),
        HostStep::KubeletRestart {},
        HostStep::Verify { version: None },
    ];
    steps.map(PlannedStep::new).into()
}

fn packages(version: &str) -> BTreeMap<String, String> {
    ["kubeadm", "kubectl", "kubelet"].map(|name| (name.to_owned(), version.to_owned())).into()
}

fn plan_of(steps: Vec<PlannedStep>, point: &str) -> JournalState {
    let mut state = JournalState::default();
    state.apply(&Record::PlanAccepted {
        plan: "p".into(),
        node_update: "m-1".to_owned(),
        steps,
        point_of_no_return: point.to_owned(),
        packages: packages("1.34.2-1.1"),
        static_pods: BTreeMap::from([("etcd".to_owned(), "e:1".to_owned())]),
        at: at(0),
    });
    state.apply(&Record::GateSeen { plan: "p".into(), gate: Gate::Disrupt });
    state
}

fn start(state: &mut JournalState, step: &str, attempt: i32) {
    state.apply(&Record::StepStarted {
        plan: "p".into(),
        step: step.to_owned(),
        attempt,
        unit: engine::unit_name("p", step, attempt),
        boot_id: "b".to_owned(),
        at: at(1),
    });
}

fn finish(
    state: &mut JournalState,
    step: &str,
    attempt: i32,
    outcome: StepOutcome,
    unchanged: bool,
) {
    let failed = outcome != StepOutcome::Done;
    state.apply(&Record::StepFinished {
        plan: "p".into(),
        step: step.to_owned(),
        attempt,
        outcome,
        failure: failed.then_some(FailureKind::NeedsPerson),
        unchanged,
        reason: if failed { "DiskFull" } else { "" }.to_owned(),
        message: if failed { "no room." } else { "" }.to_owned(),
        at: at(2),
    });
}

/// A plan in which all steps before `step` are done and `step` has failed for good.
fn failed_at(steps: Vec<PlannedStep>, point: &str, step: &str, unchanged: bool) -> JournalState {
    let ids = steps.iter().map(|known| known.id.clone());
    let before: Vec<String> = ids.take_while(|id| id != step).collect();
    let mut state = plan_of(steps, point);
    for done in &before {
        start(&mut state, done, 1);
        finish(&mut state, done, 1, StepOutcome::Done, false);
    }
    start(&mut state, step, 1);
    finish(&mut state, step, 1, StepOutcome::FailedForGood, unchanged);
    state
}

fn ids(state: &JournalState) -> Vec<String> {
    let steps = undo_steps(state.plan.as_ref().unwrap());
    steps.into_iter().map(|step| step.id).collect()
}

/// Runs every undo step; those in `broken` fail for good.
fn run_undo_steps(state: &mut JournalState, broken: &[&str]) -> (Vec<String>, PlanState) {
    let mut taken = Vec::new();
    for _ in 0..50 {
        match engine::next(state, None, at(10)) {
            Next::Start { job, attempt } => {
                start(state, &job.step, attempt);
                let outcome = if broken.contains(&job.step.as_str()) {
                    StepOutcome::FailedForGood
                } else {
                    StepOutcome::Done
                };
                finish(state, &job.step, attempt, outcome, false);
                taken.push(job.step);
            }
            Next::End { state: ended } => {
                state.apply(&Record::PlanEnded { plan: "p".into(), state: ended, at: at(11) });
                return (taken, ended);
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("it never ends: {taken:?}");
}

#[test]
fn a_worker_is_rolled_back_and_its_kubelet_restarts_last() {
    let mut state = failed_at(worker(), "node-ready", "verify", false);
    let (taken, ended) = run_undo_steps(&mut state, &[]);
    assert_eq!(
        taken,
        [
            "undo-kubelet-install",
            "undo-kubeadm-upgrade",
            "undo-kubeadm-install",
            "undo-kubelet-restart",
        ]
    );
    assert_eq!(ended, PlanState::Failed);
    let plan = state.plan.as_ref().unwrap();
    assert!(!plan.past_no_return());
    assert_eq!(left_behind(plan), []);
    assert!(not_taken(plan).contains("the plan left nothing on the host"));
}

#[test]
fn units_restart_after_their_files_are_restored_and_before_the_kubelet() {
    let action = UnitAction { unit: "app.service".to_owned(), verb: UnitVerb::Restart };
    let units = UnitArgs { units: vec![action] };
    let steps = [
        HostStep::Files(FileArgs::default()),
        HostStep::KeysRevoke(KeyArgs::default()),
        HostStep::NtpReplace(NtpArgs::default()),
        HostStep::UnitActions(units.clone()),
        HostStep::Commands(CommandArgs::default()),
        HostStep::KubeletFlags(KubeletArgs::default()),
        HostStep::KubeletRestart {},
        HostStep::Verify { version: None },
    ];
    let steps: Vec<_> = steps.map(PlannedStep::new).into();
    let mut state = failed_at(steps, "node-ready", "verify", false);
    let undo = undo_steps(state.plan.as_ref().unwrap());
    let units = Undo::Units(units);
    assert!(undo.iter().any(|step| step.id == "undo-unit-actions" && step.undo == units));
    let (taken, _) = run_undo_steps(&mut state, &[]);
    assert_eq!(
        taken,
        [
            "undo-kubelet-flags",
            "undo-ntp-replace",
            "undo-keys-revoke",
            "undo-files",
            "undo-unit-actions",
            "undo-kubelet-restart",
        ]
    );
    let left = left_behind(state.plan.as_ref().unwrap());
    let expected = "Step commands was applied and was not rolled back: it cannot be rolled back.";
    assert_eq!(left, [("commands".to_owned(), expected.to_owned())]);
}

#[test]
fn only_started_steps_are_rolled_back() {
    for (step, expected) in [
        ("preflight", &[][..]),
        ("kubeadm-install", &["undo-kubeadm-install"]),
        (
            "kubelet-install",
            &["undo-kubelet-install", "undo-kubeadm-upgrade", "undo-kubeadm-install"],
        ),
    ] {
        assert_eq!(ids(&failed_at(worker(), "node-ready", step, false)), expected);
    }
}

#[test]
fn packages_are_restored_to_their_exact_versions() {
    let state = failed_at(worker(), "node-ready", "kubelet-install", false);
    let plan = state.plan.as_ref().unwrap();
    let undo = &undo_steps(plan)[0];
    let packages = BTreeMap::from([
        ("kubectl".to_owned(), "1.34.2-1.1".to_owned()),
        ("kubelet".to_owned(), "1.34.2-1.1".to_owned()),
    ]);
    assert_eq!(undo.undo, Undo::Packages { packages });
}

#[test]
fn packages_that_were_there_already_are_left_alone() {
    let mut state = failed_at(worker(), "node-ready", "kubeadm-upgrade", false);
    state.plan.as_mut().unwrap().packages_before = packages("1.35.0-1.1");
    assert_eq!(ids(&state), ["undo-kubeadm-upgrade"]);
}

#[test]
fn the_runtime_is_rolled_back_and_a_new_package_stays() {
    let mut steps = worker();
    let package =
        |name: &str| PackageVersion { name: name.to_owned(), version: "2.1.4-1".to_owned() };
    let packages = installs(vec![package("containerd.io"), package("new-one")]);
    steps.insert(3, PlannedStep::new(HostStep::ContainerRuntimeInstall { packages }));
    let mut state = failed_at(steps, "node-ready", "kubelet-install", false);
    let plan = state.plan.as_mut().unwrap();
    let before = ("containerd.io".to_owned(), "1.7.27-1".to_owned());
    plan.packages_before.extend([before.clone()]);
    let undo = undo_steps(plan).into_iter().nth(1).unwrap();
    assert_eq!(undo.id, "undo-container-runtime-install");
    assert_eq!(undo.undo, Undo::Packages { packages: BTreeMap::from([before]) });
}

#[test]
fn a_new_package_is_reported() {
    let mut steps = worker();
    let package =
        |name: &str| PackageVersion { name: name.to_owned(), version: "1.35.1-1".to_owned() };
    steps[1] = PlannedStep::new(kubeadm(installs(vec![package("cri-o"), package("runc")])));
    assert_eq!(named_packages(&steps).into_iter().collect::<Vec<_>>(), ["cri-o", "runc"]);
    let mut state = failed_at(steps, "node-ready", "kubeadm-upgrade", false);
    let before = ("cri-o".to_owned(), "1.34.0-1".to_owned());
    state.plan.as_mut().unwrap().packages_before.extend([before]);
    let (taken, _) = run_undo_steps(&mut state, &[]);
    assert_eq!(taken, ["undo-kubeadm-upgrade", "undo-kubeadm-install"]);
    let left = left_behind(state.plan.as_ref().unwrap());
    let expected = "Package runc was installed by the plan and is left on the host.";
    assert_eq!(left, [("kubeadm-install".to_owned(), expected.to_owned())]);
}

#[test]
fn kubelet_flags_are_rolled_back_without_a_new_version() {
    let mut steps = worker();
    let flags = KubeletArgs { remove_args: vec!["v".to_owned()], ..KubeletArgs::default() };
    for args in [KubeletArgs::default(), flags.clone()] {
        steps[3] = PlannedStep::new(kubelet(args.clone()));
        let mut state = failed_at(steps.clone(), "node-ready", "kubelet-install", false);
        state.plan.as_mut().unwrap().packages_before = packages("1.35.0-1.1");
        let undone = ids(&state).contains(&"undo-kubelet-install".to_owned());
        assert_eq!(undone, args == flags, "{args:?}");
    }
}

#[test]
fn package_sources_are_rolled_back_last() {
    let mut steps = worker();
    let stage = HostStep::Stage {
        version: new(),
        packages: PackageArgs::default(),
        images: None,
        bundle: None,
    };
    steps.insert(1, PlannedStep::new(stage));
    let mut state = failed_at(steps, "node-ready", "kubeadm-upgrade", false);
    let plan = state.plan.as_ref().unwrap();
    let undo = undo_steps(plan).pop().unwrap();
    assert_eq!(undo.undo, Undo::Files { step: "stage".to_owned() });
    let (taken, _) = run_undo_steps(&mut state, &["undo-stage"]);
    assert_eq!(taken.last().map(String::as_str), Some("undo-stage"));
    let left = left_behind(state.plan.as_ref().unwrap());
    assert!(left[0].1.contains("undo-stage failed"), "{left:?}");
}

#[test]
fn past_no_return_nothing_is_undone_and_the_rest_is_reported() {
    let mut state = failed_at(worker(), "kubeadm-upgrade", "kubelet-install", false);
    assert_eq!(run_undo_steps(&mut state, &[]), (Vec::new(), PlanState::Failed));
    let plan = state.plan.as_ref().unwrap();
    assert!(plan.past_no_return());
    let left = left_behind(plan);
    let steps: Vec<&str> = left.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(steps, ["kubeadm-install", "kubeadm-upgrade", "kubelet-install"]);
    for (_, sentence) in &left {
        assert!(sentence.contains("point of no return (kubeadm-upgrade)"), "{sentence}");
    }
    assert!(left[2].1.contains(" failed and was not rolled back"), "{}", left[2].1);
}

#[test]
fn a_kubeadm_that_restored_itself_is_not_past_no_return() {
    let mut state = failed_at(worker(), "kubeadm-upgrade", "kubeadm-upgrade", true);
    let (taken, ended) = run_undo_steps(&mut state, &[]);
    assert_eq!(taken, ["undo-kubeadm-upgrade", "undo-kubeadm-install"]);
    assert_eq!(ended, PlanState::Failed);
    assert_eq!(left_behind(state.plan.as_ref().unwrap()), []);
    let changed = failed_at(worker(), "kubeadm-upgrade", "kubeadm-upgrade", false);
    assert_eq!(ids(&changed), Vec::<String>::new());
}

#[test]
fn a_failed_undo_does_not_block_the_others() {
    let mut state = failed_at(worker(), "node-ready", "kubelet-restart", false);
    let (taken, _) = run_undo_steps(&mut state, &["undo-kubelet-install"]);
    assert_eq!(taken.len(), 4);
    let plan = state.plan.as_ref().unwrap();
    let left = left_behind(plan);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].0, "kubelet-install");
    let expected = "undo-kubelet-install failed (DiskFull): no room.";
    assert!(left[0].1.ends_with(expected), "{}", left[0].1);
    assert!(
        not_taken(plan)
            .contains("the plan left changes of these steps on the host: kubelet-install")
    );
}

#[test]
fn an_undo_is_retried_like_any_step() {
    let mut state = failed_at(worker(), "node-ready", "kubeadm-install", false);
    for attempt in 1..=USUAL_ATTEMPTS {
        start(&mut state, "undo-kubeadm-install", attempt);
        finish(&mut state, "undo-kubeadm-install", attempt, StepOutcome::Failed, false);
        let next = engine::next(&state, None, at(1000));
        if attempt < USUAL_ATTEMPTS {
            assert!(matches!(next, Next::Start { attempt: a, .. } if a == attempt + 1));
        } else {
            assert!(matches!(next, Next::End { .. }), "{next:?}");
        }
    }
}

#[test]
fn a_plan_in_progress_has_left_nothing_yet() {
    let state = failed_at(worker(), "node-ready", "kubelet-restart", false);
    assert_eq!(left_behind(state.plan.as_ref().unwrap()), []);
}

#[test]
fn a_plan_without_a_point_uses_its_step_types() {
    let mut steps = worker();
    for step in &mut steps {
        step.undo = None;
    }
    let early = failed_at(steps.clone(), "", "kubeadm-install", false);
    assert_eq!(ids(&early), ["undo-kubeadm-install"]);
    let late = failed_at(steps, "", "kubeadm-upgrade", false);
    assert!(late.plan.as_ref().unwrap().past_no_return());
}

proptest! {
    /// Whichever step fails and in whatever order undo steps fail: the plan ends, every undo is
    /// tried, no undo is repeated after it succeeded, and exactly the steps that were not rolled
    /// back are reported as left.
    #[test]
    fn every_failure_ends_and_reports_what_remains(
        failing in 0..6_usize,
        point in 0..7_usize,
        broken in prop::collection::vec(any::<bool>(), 6),
    ) {
        let steps = worker();
        let names: Vec<String> = steps.iter().map(|step| step.id.clone()).collect();
        let point = names.get(point).map_or("node-ready", String::as_str);
        let mut state = failed_at(steps, point, &names[failing], false);
        let undos = ids(&state);
        let bad: Vec<&str> = undos.iter().zip(&broken).filter(|(_, b)| **b).map(|(u, _)| u.as_str()).collect();
        let bad: Vec<String> = bad.into_iter().map(str::to_owned).collect();
        let refs: Vec<&str> = bad.iter().map(String::as_str).collect();
        let (taken, ended) = run_undo_steps(&mut state, &refs);
        prop_assert_eq!(ended, PlanState::Failed);
        prop_assert_eq!(&taken, &undos);
        let plan = state.plan.as_ref().unwrap();
        let left: Vec<String> = left_behind(plan).into_iter().map(|(id, _)| undo_id(&id)).collect();
        if !plan.past_no_return() {
            let mut left = left;
            left.sort();
            bad.clone().sort();
            let mut bad = bad;
            bad.sort();
            prop_assert_eq!(left, bad);
        }
    }
}
