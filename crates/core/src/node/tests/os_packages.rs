//! Packages of the operating system of an Updater: their steps, and what else must not change the operating system.

use refit_kinds::refit::{
    Disruption::{self, Drain, Reboot, Restart},
    FileArgs, Goal, HostPart, HostStep, OsImageArgs, OsPackage, OsPackageArgs, PackageVersion,
    PartState, Phase, RebootChoice, StepType, UpdatePart, UpdaterAction,
};
use strum::VariantArray as _;

use super::world::*;

fn packages(name: &str, reboot: RebootChoice) -> OsPackageArgs {
    let package = OsPackage { name: name.into(), version: "*".into() };
    OsPackageArgs { install: vec![package], reboot, ..OsPackageArgs::default() }
}

fn part(updater: &str, disruption: Disruption, host: HostPart) -> UpdatePart {
    UpdatePart {
        updater: updater.into(),
        action: UpdaterAction::Update,
        disruption,
        timeout_seconds: None,
        host: Some(host),
        template: None,
    }
}

fn patches(disruption: Disruption, reboot: RebootChoice) -> UpdatePart {
    part("patches", disruption, HostPart::OsPackages(packages("vim", reboot)))
}

fn with(mut one: One, parts: &[UpdatePart]) -> One {
    one.update.spec.parts = Some(parts.to_vec());
    if !parts.contains(&UpdatePart::kubeadm()) {
        one.update.spec.goal = Goal::default();
    }
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    status.capabilities = StepType::VARIANTS.to_vec();
    status.facts.os_image = "os-1".into();
    one
}

fn image(name: &str) -> OsImageArgs {
    OsImageArgs { name: name.into(), ..OsImageArgs::default() }
}

fn ids(one: &One) -> Vec<&str> {
    one.plan.as_ref().unwrap().spec.steps.iter().map(|step| step.id.as_str()).collect()
}

#[test]
fn packages_alone_need_neither_kubeadm_nor_a_drain() {
    use RebootChoice::{IfRequired, Never};
    let begin = ["preflight", "os-packages-stage"];
    let install = "os-packages-install";
    let (files, boot, verify) = ("files", "reboot-if-required", "verify");
    for (disruption, reboot, rest, point) in [
        (Restart, IfRequired, vec![install, boot, verify], boot),
        (Restart, Never, vec![install, verify], "node-ready"),
        // Settings are applied on the way where the node is drained in any case.
        (Drain, IfRequired, vec!["snapshot", install, files, boot, verify], boot),
        (Reboot, IfRequired, vec!["snapshot", install, files, boot, verify], boot),
    ] {
        for one in [One::worker(), One::control_plane()] {
            let mut one = with(one, &[patches(disruption, reboot)]);
            one.settings.files = Some(FileArgs::default());
            one.settings.container_runtime =
                vec![PackageVersion { name: "own-runtime".into(), version: "2".into() }];
            let mut one = one.disrupted();
            one.settle_with_static_pods();
            let case = format!("{disruption:?} {reboot:?}: {:?}", one.log);
            assert_eq!(one.phase(), Phase::Succeeded, "{case} {:?}", one.blocked_by());
            assert_eq!(ids(&one), [&begin[..], &rest].concat(), "{case}");
            let plan = &one.plan.as_ref().unwrap().spec;
            assert_eq!((plan.disruption, &*plan.point_of_no_return), (disruption, point), "{case}");
            let drained = one.log.iter().any(|word| word == "cordon");
            assert_eq!((drained, one.pods.is_empty()), (disruption.drains(), disruption.drains()));
            assert!(one.log.iter().any(|word| word.starts_with("claim")), "{case}");
            assert_eq!(one.status().parts[0].state, PartState::Done, "{case}");
            let Some(HostStep::OsPackagesInstall(args)) =
                plan.steps.iter().find(|step| step.id == install).unwrap().step()
            else {
                panic!("{case}")
            };
            assert_eq!(args.install, packages("vim", reboot).install);
            assert!(args.keeps("own-runtime") && !args.keeps("vim"), "{args:?}");
        }
    }
}

#[test]
fn packages_and_a_version_are_one_plan() {
    let parts = [UpdatePart::kubeadm(), patches(Restart, RebootChoice::IfRequired)];
    let mut one = with(One::worker(), &parts).disrupted();
    one.settle();
    assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.blocked_by());
    let wanted = [
        "preflight",
        "stage",
        "os-packages-stage",
        "os-packages-install",
        "kubeadm-install",
        "kubeadm-upgrade",
        "kubelet-install",
        "kubelet-restart",
        "reboot-if-required",
        "verify",
    ];
    assert_eq!(ids(&one), wanted);
    assert_eq!(one.plan.as_ref().unwrap().spec.disruption, Drain);
    assert_eq!(one.log.iter().filter(|word| *word == "cordon").count(), 1, "{:?}", one.log);
}

#[test]
fn an_agent_that_cannot_install_packages_is_waited_for() {
    let mut one = with(One::worker(), &[patches(Restart, RebootChoice::Never)]);
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    status.capabilities.retain(|type_| *type_ != StepType::OsPackagesInstall);
    one.settle();
    assert_eq!((one.phase(), one.blocked_by()), (Phase::Pending, vec!["AgentTooOld".to_owned()]));
}

#[test]
fn nothing_else_may_change_the_operating_system() {
    type Change = fn(&mut One);
    let other =
        || part("others", Restart, HostPart::OsPackages(packages("emacs", RebootChoice::Never)));
    let new_image = || part("image", Reboot, HostPart::OsImage(image("os-2")));
    let of_settings: Change = |one| {
        one.settings.os_packages = Some(packages("emacs", RebootChoice::Never));
    };
    let no_change: Change = |_| ();
    let other_image: Change = |one| one.settings.os_image = Some(image("os-2"));
    let same_image: Change = |one| one.settings.os_image = Some(image("os-1"));
    let own = || patches(Restart, RebootChoice::Never);
    for (parts, change, sources) in [
        (vec![own()], of_settings, Some("Updater patches and a HostSettings")),
        (vec![own(), other()], no_change, Some("Updater patches and Updater others")),
        (
            vec![UpdatePart::kubeadm(), own()],
            other_image,
            Some("Updater patches and the OS image os-2"),
        ),
        (vec![new_image(), own()], no_change, Some("Updater patches and the OS image os-2")),
        // The host runs that image already, or does not get it in this update.
        (vec![UpdatePart::kubeadm(), own()], same_image, None),
        (vec![own()], other_image, None),
    ] {
        let mut one = with(One::worker(), &parts);
        change(&mut one);
        if sources.is_none() {
            one = one.disrupted();
        }
        one.settle();
        let blockers = one.status().blocked_by;
        let found = blockers.first().map(|blocker| (&*blocker.reason, &*blocker.object));
        assert_eq!(found, sources.map(|sources| ("OsPackagesConflict", sources)), "{parts:?}");
        let phase = if sources.is_some() { Phase::Pending } else { Phase::Succeeded };
        assert_eq!(one.phase(), phase, "{parts:?}");
    }
}
