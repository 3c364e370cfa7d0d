//! Packages of the operating system: their steps, and a drain only if the host reports that it must boot.

use refit_kinds::refit::{
    Disruption::{self, Drain, Reboot as Boot, Restart},
    Gate, Goal, HostFacts, HostPart, HostStep, NtpArgs, OsImageArgs, OsPackage, OsPackageArgs,
    PackageVersion, Phase, PlanSettings, PlannedStep, RebootChoice, Role, StepState, StepType,
    StepUndo, UnreadFact, UpdatePart, UpdaterAction,
};
use strum::VariantArray as _;

use super::world::*;
use crate::node::{
    BudgetView, HostWork, Reboot, STEP_CORDON, STEP_DRAIN, Workload, decide, requires_drain_ahead,
};

const WHY: &str = "a newer kernel is installed: 6.1.0-28-amd64; 6.1.0-9-amd64 runs";

fn packages(reboot: RebootChoice) -> OsPackageArgs {
    OsPackageArgs { security: true, reboot, ..OsPackageArgs::default() }
}

fn count(one: &One, word: &str) -> usize {
    one.log.iter().filter(|known| known.starts_with(word)).count()
}

fn facts(one: &mut One) -> &mut HostFacts {
    &mut one.plan.as_mut().unwrap().status.as_mut().unwrap().facts
}

fn disruption(one: &One) -> Disruption {
    one.plan.as_ref().unwrap().spec.disruption
}

/// An update that only installs packages, for an Updater, and they are installed.
fn installed(mut one: One) -> One {
    one.update.spec.goal = Goal::default();
    one.update.spec.parts = Some(vec![UpdatePart {
        updater: "patches".into(),
        action: UpdaterAction::Update,
        disruption: Restart,
        timeout_seconds: None,
        host: Some(HostPart::OsPackages(packages(RebootChoice::IfRequired))),
        template: None,
    }]);
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    status.capabilities = StepType::VARIANTS.to_vec();
    let one = one.upgraded();
    assert_eq!(disruption(&one), Restart);
    one
}

/// The host goes on to the end. A boot shows in its report and in its Node.
fn ends(mut one: One, boots: bool) -> One {
    one.settle();
    one.host_works();
    if boots {
        let facts = facts(&mut one);
        (facts.reboot_required, facts.boot_id) = (None, "boot-2".into());
        one.settle();
        assert_eq!(one.phase(), Phase::Verifying, "the Node shows the previous boot");
        one.node_mut().boot_id = "boot-2".into();
    }
    one.settle_with_static_pods();
    one
}

#[test]
fn a_node_is_drained_only_if_its_host_must_boot() {
    for machine in [One::worker, One::control_plane] {
        for boots in [false, true] {
            let mut one = installed(machine());
            facts(&mut one).reboot_required = boots.then(|| WHY.to_owned());
            let one = ends(one, boots);
            let case = format!("{boots}: {:?}", one.log);
            assert_eq!(one.phase(), Phase::Succeeded, "{case} {:?}", one.blocked_by());
            assert_eq!(disruption(&one), if boots { Boot } else { Restart }, "{case}");
            assert_eq!(count(&one, "cordon"), usize::from(boots), "{case}");
            assert_eq!(one.pods.len(), usize::from(!boots), "{case}");
            assert_eq!((count(&one, "claim"), count(&one, "release")), (1, 1), "{case}");
            let status = one.status();
            let drain = if boots { StepState::Done } else { StepState::Skipped };
            for name in [STEP_CORDON, STEP_DRAIN] {
                let step = status.steps.iter().find(|step| step.name == name).unwrap();
                assert_eq!(step.state, drain, "{case} {name}");
            }
        }
    }
}

#[test]
fn a_boot_that_is_required_before_the_packages_are_installed_raises_nothing() {
    let mut one = installed(One::worker());
    facts(&mut one).reboot_required = Some(WHY.into());
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    status.passed = Gate::Stage;
    one.settle();
    assert_eq!((disruption(&one), one.gate()), (Restart, Gate::Upgrade));
}

#[test]
fn a_raised_plan_stays_raised_whatever_the_report_shows() {
    let mut one = installed(One::worker());
    facts(&mut one).reboot_required = Some(WHY.into());
    while disruption(&one) == Restart {
        assert!(one.step(), "{:?}", one.blocked_by());
    }
    assert_eq!((count(&one, "cordon"), one.gate()), (0, Gate::Upgrade), "raised before the drain");
    let writes = one.log.len();
    // The host was booted by hand.
    facts(&mut one).reboot_required = None;
    let one = ends(one, false);
    assert_eq!((disruption(&one), one.pods.len(), count(&one, "cordon")), (Boot, 0, 1));
    assert_eq!(one.phase(), Phase::Succeeded);
    assert!(one.log.len() < writes + 20, "{:?}", one.log);
}

#[test]
fn a_budget_without_room_is_waited_for_before_the_node_is_cordoned() {
    let mut one = installed(One::worker());
    facts(&mut one).reboot_required = Some(WHY.into());
    one.budgets = vec![BudgetView {
        namespace: "default".into(),
        name: "web".into(),
        selector: Some(kube::core::Selector::default()),
        allows_none: true,
        allowed: 0,
        is_met: true,
        spares_unhealthy: true,
    }];
    one.pods[0].ready = true;
    one.settle();
    let waits = (one.phase(), one.blocked_by(), disruption(&one), count(&one, "cordon"));
    assert_eq!(waits, (Phase::Upgrading, vec!["PodDisruptionBudget".to_owned()], Restart, 0));
    assert!(crate::node::awaits_budget(&one.status()), "the controller reads budgets again");
    one.budgets.clear();
    let one = ends(one, true);
    assert_eq!((one.phase(), disruption(&one)), (Phase::Succeeded, Boot));
}

#[test]
fn a_plan_is_raised_with_a_look_at_the_pods_of_its_node() {
    let look = |one: &One| {
        let mut snapshot = one.snapshot(None);
        let Workload::Seen(seen) = &mut snapshot.workload else { panic!("it is reachable") };
        seen.ahead = None;
        let decision = decide(&snapshot, at(one.now));
        requires_drain_ahead(&snapshot, &decision, at(one.now))
    };
    let mut one = installed(One::worker());
    assert!(!look(&one));
    facts(&mut one).reboot_required = Some(WHY.into());
    while !look(&one) {
        assert!(one.step(), "{:?}", one.log);
    }
    assert_eq!(disruption(&one), Restart);
    one.settle();
    assert!(!look(&one), "it is raised");
}

#[test]
fn an_update_waits_if_it_is_not_known_whether_the_host_must_boot() {
    let mut one = installed(One::worker());
    let message = "rpm: exit code 1".to_owned();
    facts(&mut one).unread = vec![UnreadFact { fact: "rebootRequired".into(), message }];
    one.settle();
    assert_eq!((one.blocked_by(), one.gate()), (vec!["HostUnreadable".to_owned()], Gate::Upgrade));
    facts(&mut one).unread.clear();
    assert_eq!(ends(one, false).phase(), Phase::Succeeded);
}

#[test]
fn a_version_and_a_kernel_are_one_drain() {
    for required in [false, true] {
        let mut one = One::worker();
        one.settings.os_packages = Some(packages(RebootChoice::IfRequired));
        let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
        status.capabilities = StepType::VARIANTS.to_vec();
        let mut one = one.upgraded();
        assert_eq!(disruption(&one), Drain);
        facts(&mut one).reboot_required = required.then(|| WHY.to_owned());
        one.settle();
        one.host_works();
        one.kubelet_returns();
        facts(&mut one).reboot_required = None;
        one.settle();
        assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.blocked_by());
        assert_eq!(disruption(&one), if required { Boot } else { Drain });
        assert_eq!((count(&one, "cordon"), count(&one, "uncordon")), (1, 1), "{:?}", one.log);
    }
}

#[test]
fn steps_for_packages_are_planned_around_the_upgrade() {
    let version = GOAL.parse().unwrap();
    let settings = PlanSettings {
        os_packages: Some(OsPackageArgs {
            install: vec![OsPackage { name: "vim".into(), version: "*".into() }],
            ..packages(RebootChoice::IfRequired)
        }),
        container_runtime: vec![PackageVersion { name: "own-runtime".into(), version: "2".into() }],
        ntp: Some(NtpArgs::default()),
        ..PlanSettings::default()
    };
    let work = |settings| HostWork::upgrade(Role::Worker, &version, settings);
    let ids = |work: HostWork<'_>| -> Vec<String> {
        work.steps().into_iter().map(|step| step.id).collect()
    };
    let steps = work(&settings).steps();
    let wanted = [
        "preflight",
        "stage",
        "os-packages-stage",
        "snapshot",
        "os-packages-install",
        "kubeadm-install",
        "kubeadm-upgrade",
        "ntp",
        "container-runtime-install",
        "kubelet-install",
        "kubelet-restart",
        "reboot-if-required",
        "verify",
    ];
    assert_eq!(ids(work(&settings)), wanted);
    assert!(
        steps.is_sorted_by_key(|step| step.gate) && steps.is_sorted_by_key(PlannedStep::step_type)
    );
    let step = |id: &str| steps.iter().find(|step| step.id == id).unwrap();
    assert_eq!(step("os-packages-install").undo, Some(StepUndo::Packages));
    assert_eq!(step("kubelet-restart").undo, Some(StepUndo::KubeletRestart));
    assert_eq!(work(&settings).point_of_no_return(), "reboot-if-required");
    for id in ["os-packages-stage", "os-packages-install"] {
        let Some(HostStep::OsPackagesStage(args) | HostStep::OsPackagesInstall(args)) =
            step(id).step()
        else {
            panic!("{id}")
        };
        assert!(args.keeps("own-runtime") && args.keeps("kubelet") && !args.keeps("vim"));
    }

    let never =
        PlanSettings { os_packages: Some(packages(RebootChoice::Never)), ..settings.clone() };
    assert!(!ids(work(&never)).contains(&"reboot-if-required".to_owned()));
    assert_eq!(work(&never).point_of_no_return(), "node-ready");
    let always = HostWork { reboot: Reboot::Always, ..work(&settings) };
    let ids_always = ids(always);
    assert!(
        ids_always.contains(&"reboot".to_owned())
            && !ids_always.contains(&"reboot-if-required".to_owned())
    );
    // A new image has its own packages.
    let image = OsImageArgs { name: "os-2".into(), ..OsImageArgs::default() };
    let with_image = ids(HostWork { os_image: Some(&image), ..work(&settings) });
    let of_packages = |id: &String| id.starts_with("os-packages") || id == "reboot-if-required";
    assert!(!with_image.iter().any(of_packages), "{with_image:?}");
}
