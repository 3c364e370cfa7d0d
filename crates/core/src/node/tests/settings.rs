//! Updates that give a host its changed HostSettings.

use refit_kinds::refit::{
    FileArgs, Gate, Goal, KubeletArg, KubeletArgs, NtpArgs, PackageVersion, Phase, PlanSettings,
    SettingHashes, StepType, UpdatePart, UpdaterAction,
};

use super::world::*;
use crate::node::{decide, requires_live_settings};

fn ntp(server: &str) -> PlanSettings {
    let ntp = NtpArgs { servers: vec![server.into()], ..NtpArgs::default() };
    PlanSettings { ntp: Some(ntp), files: Some(FileArgs::default()), ..PlanSettings::default() }
}

fn flags(value: &str) -> KubeletArgs {
    let flag = KubeletArg { name: "v".into(), value: value.into() };
    KubeletArgs { extra_args: vec![flag], ..KubeletArgs::default() }
}

fn runtime(version: &str) -> Vec<PackageVersion> {
    vec![PackageVersion { name: "containerd.io".into(), version: version.into() }]
}

/// A machine that is to get these settings.
fn changed(mut one: One, settings: PlanSettings) -> One {
    let hash = SettingHashes::of(&settings).hash();
    one.update.spec.goal = Goal { host_settings: Some(hash), ..Goal::default() };
    one.update.spec.parts = Some(vec![UpdatePart::host_settings()]);
    one.settings = settings;
    let capabilities = &mut one.plan.as_mut().unwrap().status.as_mut().unwrap().capabilities;
    capabilities.extend([
        StepType::Files,
        StepType::Ntp,
        StepType::KubeletFlags,
        StepType::ContainerRuntimeInstall,
    ]);
    one
}

/// The same for a machine that has other settings by an earlier update.
fn changed_from(one: One, had: &PlanSettings, settings: PlanSettings) -> One {
    let mut one = changed(one, settings);
    let mut before = one.update.clone();
    before.metadata.name = Some("m-0-0".into());
    before.metadata.uid = Some("uid-m-0-0".into());
    let status = before.status.get_or_insert_default();
    status.phase = Phase::Succeeded;
    status.host_settings = Some(SettingHashes::of(had));
    one.siblings.push(before);
    one
}

fn finished(one: One) -> One {
    let mut one = one.upgraded();
    one.settle();
    one.host_works();
    // The kubelet of the same version reports.
    one.now += 10;
    let now = at(one.now);
    one.node_mut().heartbeat = Some(now);
    one.settle();
    one
}

fn steps(one: &One) -> Vec<&str> {
    one.plan.as_ref().unwrap().spec.steps.iter().map(|step| step.id.as_str()).collect()
}

fn count(one: &One, word: &str) -> usize {
    one.log.iter().filter(|known| known.starts_with(word)).count()
}

#[test]
fn the_settings_decide_how_much_a_machine_is_disturbed() {
    let with_flags = PlanSettings { kubelet: Some(flags("4")), ..ntp("a") };
    let with_runtime = PlanSettings { container_runtime: runtime("2"), ..ntp("a") };
    for (settings, planned, guards, cordons) in [
        (ntp("a"), vec!["snapshot", "files", "ntp", "verify"], 0, 0),
        (
            with_flags,
            vec!["snapshot", "files", "ntp", "kubelet-flags", "kubelet-restart", "verify"],
            1,
            0,
        ),
        (
            with_runtime,
            vec!["snapshot", "files", "ntp", "container-runtime-install", "verify"],
            1,
            1,
        ),
    ] {
        let one = finished(changed(One::worker(), settings.clone()));
        assert_eq!(one.phase(), Phase::Succeeded, "{:?} {:?}", one.blocked_by(), one.status());
        assert_eq!(steps(&one)[1..], planned);
        assert_eq!((count(&one, "guard"), count(&one, "cordon")), (guards, cordons));
        assert_eq!(one.slots(), 0);
        assert_eq!(one.status().message, "the machine has its HostSettings");
        assert_eq!(one.status().host_settings, Some(SettingHashes::of(&settings)));
        assert_eq!(one.condition(), None, "settings do not make a machine outdated");
    }
}

#[test]
fn settings_that_the_host_has_are_not_applied_again() {
    let had =
        PlanSettings { container_runtime: runtime("2"), kubelet: Some(flags("4")), ..ntp("a") };
    for (wanted, planned) in [
        (PlanSettings { ntp: ntp("b").ntp, ..had.clone() }, vec!["snapshot", "ntp", "verify"]),
        (
            PlanSettings { kubelet: Some(flags("5")), ..had.clone() },
            vec!["kubelet-flags", "kubelet-restart", "verify"],
        ),
    ] {
        let one = finished(changed_from(One::worker(), &had, wanted.clone()));
        assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.blocked_by());
        assert_eq!(steps(&one).split_off(1), planned);
        assert_eq!(count(&one, "cordon"), 0);
        assert_eq!(one.status().host_settings, Some(SettingHashes::of(&wanted)));
    }
}

#[test]
fn an_upgrade_notes_its_settings_and_a_renewal_notes_nothing() {
    let settings = PlanSettings { kubelet: Some(flags("4")), ..ntp("a") };
    let mut one = changed(One::worker(), settings.clone());
    (one.update.spec.goal, one.update.spec.parts) =
        (Goal::of_version("v1.35.0".parse().unwrap()), None);
    one.settle();
    assert_eq!(one.status().host_settings, Some(SettingHashes::of(&settings)));
    let mut one = changed(One::control_plane(), settings);
    one.update.spec.goal = Goal {
        certificates: Some(refit_kinds::refit::GoalCertificates::default()),
        ..Goal::default()
    };
    one.update.spec.parts = Some(vec![UpdatePart::renewal()]);
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    status.capabilities.push(StepType::CertificatesRenew);
    one.settle();
    assert!(one.plan.as_ref().unwrap().spec.gate >= Gate::Stage);
    assert_eq!(one.status().host_settings, None);
}

#[test]
fn settings_that_have_changed_meanwhile_supersede_the_update_by_a_live_read() {
    let mut one = changed(One::worker(), ntp("a"));
    one.settings = ntp("b");
    let snapshot = one.snapshot(None);
    let decision = decide(&snapshot, at(one.now));
    assert!(requires_live_settings(&snapshot, &decision));
    one.settle();
    let status = one.status();
    assert_eq!((status.phase, &*status.failure_reason), (Phase::Stopped, "Superseded"));
    assert!(status.failure_message.contains("have changed since"), "{}", status.failure_message);
    assert_eq!(steps(&one), [""; 0], "nothing is sent to the host");
    // Which settings apply is not known.
    let mut one = changed(One::worker(), ntp("a"));
    one.settings = ntp("b");
    one.settings_refused = Some(crate::report::Refusal::HostSettingsUnreadable {
        name: "web".into(),
        why: "unknown field".into(),
    });
    one.settle();
    assert_eq!(one.phase(), Phase::Pending);
    assert_eq!(one.blocked_by(), ["HostSettingsUnreadable"]);
}

#[test]
fn settings_that_change_once_the_plan_is_made_wait_for_the_next_update() {
    let mut one = changed(One::worker(), ntp("a"));
    one.settle();
    assert!(steps(&one).contains(&"ntp"));
    one.settings = ntp("b");
    let one = finished(one);
    assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.blocked_by());
    assert_eq!(one.status().host_settings, Some(SettingHashes::of(&ntp("a"))));
}

#[test]
fn a_goal_without_settings_for_the_host_fails() {
    let mut one = changed(One::worker(), PlanSettings::default());
    one.settle();
    assert_eq!(one.status().failure_reason, "NothingToDo", "{:?}", one.blocked_by());
    let mut one = changed(One::worker(), ntp("a"));
    let other = UpdatePart {
        updater: "memory".into(),
        action: UpdaterAction::Update,
        ..UpdatePart::host_settings()
    };
    one.update.spec.parts.as_mut().unwrap().push(other);
    one.settle();
    assert_eq!(one.status().failure_reason, "HostSettingsNotSupported");
}
