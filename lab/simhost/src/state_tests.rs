use refit_agent::host::Since;
use refit_kinds::refit::{KubeadmArgs, KubeletArgs, PackageArgs};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn version(text: &str) -> KubernetesVersion {
    text.parse::<KubernetesVersion>().unwrap()
}

fn new() -> KubernetesVersion {
    version("v1.35.0")
}

fn worker() -> HostState {
    HostState::new("edge-1-md-0-1", false, "v1.34.2", at(0))
}

fn control_plane() -> HostState {
    HostState::new("edge-1-cp-1", true, "v1.34.2", at(0))
}

fn job(step: &str, command: Command) -> Job {
    Job::new("p", &format!("u-{step}"), step, command)
}

/// Runs a command to its end and returns its end time and exit code.
fn run(host: &mut HostState, second: i64, command: Command) -> (i64, i32) {
    let job = job(command.name(), command);
    host.start(&job, at(second));
    let ends = host.units[&job.unit].ends;
    host.tick(ends);
    let UnitState::Exited { code, .. } = host.poll(&job.unit) else {
        panic!("{:?}", host.poll(&job.unit));
    };
    (ends.as_second() - at(0).as_second(), code)
}

fn upgrade(role: Role) -> Command {
    Command::Step(HostStep::KubeadmUpgrade {
        role,
        version: new(),
        kubeadm: KubeadmArgs::default(),
    })
}

fn install_kubeadm() -> Command {
    Command::Step(HostStep::KubeadmInstall { version: new(), packages: PackageArgs::default() })
}

fn install_kubelet() -> Command {
    Command::Step(HostStep::KubeletInstall {
        version: new(),
        packages: PackageArgs::default(),
        kubelet: KubeletArgs::default(),
    })
}

fn fetch() -> Command {
    Command::Step(HostStep::Stage {
        version: new(),
        packages: PackageArgs::default(),
        images: None,
        bundle: None,
    })
}

fn since(second: i64, host: &HostState) -> Since {
    Since { at: at(second), boot_id: host.boot_id.clone() }
}

#[test]
fn a_whole_update_takes_a_minute_and_a_half_to_two_and_a_half() {
    for (node, role) in [
        ("edge-1-cp-1", Role::FirstControlPlane),
        ("edge-1-cp-2", Role::ControlPlane),
        ("edge-1-md-0-1", Role::Worker),
        ("edge-1-md-0-2", Role::Worker),
    ] {
        let commands = [
            Command::Step(HostStep::Preflight { version: None }),
            fetch(),
            Command::Step(HostStep::Snapshot {}),
            install_kubeadm(),
            upgrade(role),
            install_kubelet(),
            Command::Step(HostStep::KubeletRestart {}),
            Command::Step(HostStep::Verify { version: None }),
        ];
        let total: i64 = commands.iter().map(|c| duration(node, c).as_secs()).sum();
        assert!((85..=150).contains(&total), "{node}: {total}");
    }
}

#[test]
fn the_kubelet_runs_the_old_version_until_it_is_restarted() {
    let mut host = worker();
    let (end, _) = run(&mut host, 1, install_kubelet());
    assert_eq!(host.installed("kubelet"), Some(new()));
    assert_eq!(host.facts().kubelet_version, "v1.34.2".parse().ok());
    let restart = job("kubelet-restart", Command::Step(HostStep::KubeletRestart {}));
    host.start(&restart, at(end));
    assert!(!host.kubelet_up(at(end)));
    let up = host.kubelet_up_at;
    host.tick(up);
    assert!(host.kubelet_up(up));
    assert_eq!(host.facts().kubelet_version, "v1.35.0".parse().ok());
}

#[test]
fn a_host_between_two_versions_is_not_whole() {
    let mut host = control_plane();
    assert_eq!(host.other_version(), None);
    run(&mut host, 1, install_kubeadm());
    assert_eq!(host.other_version().as_deref(), Some("v1.35.0"), "a package");
    run(&mut host, 40, upgrade(Role::FirstControlPlane));
    run(&mut host, 120, install_kubelet());
    host.start_kubelet();
    assert_eq!(host.other_version(), None);
    host.configure("v1.34.2");
    assert_eq!(host.other_version().as_deref(), Some("v1.34.2"), "a static pod");
}

#[test]
fn a_reboot_changes_the_boot_id_and_runs_the_installed_kubelet() {
    let mut host = worker();
    let (end, _) = run(&mut host, 1, install_kubelet());
    let before = since(end, &host);
    let reboot = job("reboot", Command::Step(HostStep::Reboot {}));
    host.start(&reboot, at(end));
    assert!(!host.is_up(at(end + 1)));
    let back = host.down_until.unwrap();
    assert_eq!(host.tick(back), [Change::Booted]);
    assert_eq!(host.look(&reboot, &before), Evidence::Done);
    assert_eq!((host.boots, host.kubelet_version.as_str()), (2, "v1.35.0"));
    assert!(host.units.is_empty(), "units do not outlive a boot");
    assert!(!host.kubelet_up(back) && host.kubelet_up(host.kubelet_up_at));
}

#[test]
fn kubeadm_replaces_the_static_pods_of_a_control_plane() {
    let mut host = control_plane();
    run(&mut host, 1, install_kubeadm());
    let before = since(20, &host);
    let command = upgrade(Role::FirstControlPlane);
    let upgrade = job("kubeadm-upgrade", command.clone());
    assert!(matches!(host.look(&upgrade, &before), Evidence::Missing { .. }));
    let (_, code) = run(&mut host, 20, command);
    assert_eq!(code, 0);
    for component in CONTROL_PLANE {
        assert_eq!(host.static_pod_version(component).as_deref(), Some("v1.35.0"));
    }
    assert_eq!(host.static_pod_image("etcd").as_deref(), Some(ETCD_IMAGE));
    assert_eq!(host.look(&upgrade, &before), Evidence::Done);
}

#[test]
fn kubeadm_refuses_a_target_that_is_not_its_own_version() {
    let mut host = worker();
    assert_eq!(run(&mut host, 1, upgrade(Role::Worker)).1, 1);
    assert!(host.static_pod_image("kube-apiserver").is_none());
}

#[test]
fn kubeadm_refuses_the_role_of_another_kind_of_machine() {
    let mut host = worker();
    let (end, _) = run(&mut host, 1, install_kubeadm());
    assert_eq!(run(&mut host, end, upgrade(Role::ControlPlane)).1, 1);
}

#[test]
fn a_broken_step_fails_as_often_as_asked_and_changes_nothing() {
    let mut host = worker();
    host.break_step("kubelet-install", 2);
    let command = install_kubelet();
    let mut second = 1;
    for expected in [1, 1, 0] {
        let (end, code) = run(&mut host, second, command.clone());
        assert_eq!(code, expected);
        assert_eq!(host.installed("kubelet") == Some(new()), expected == 0);
        second = end + 11;
        host.tick(at(second));
    }
}

#[test]
fn only_runs_of_commands_that_are_not_idempotent_are_counted() {
    let mut host = worker();
    run(&mut host, 1, Command::Step(HostStep::Snapshot {}));
    run(&mut host, 40, Command::Step(HostStep::KubeletRestart {}));
    run(&mut host, 80, upgrade(Role::Worker));
    let runs: Vec<_> = host.runs.iter().map(|(n, c)| (n.as_str(), *c)).collect();
    assert_eq!(runs, [("kubeadm-upgrade", 1), ("kubelet-restart", 1)]);
}

#[test]
fn an_ended_unit_is_forgotten_after_ten_seconds() {
    let mut host = worker();
    let (end, _) = run(&mut host, 1, Command::Step(HostStep::Snapshot {}));
    host.tick(at(end + 9));
    assert!(matches!(host.poll("u-snapshot"), UnitState::Exited { code: 0, .. }));
    host.tick(at(end + 10));
    assert_eq!(host.poll("u-snapshot"), UnitState::Unknown);
}

#[test]
fn an_existing_unit_is_not_started_again() {
    let mut host = worker();
    let job = job("kubelet-restart", Command::Step(HostStep::KubeletRestart {}));
    host.start(&job, at(1));
    host.start(&job, at(2));
    assert_eq!(host.runs["kubelet-restart"], 1);
}

#[test]
fn a_command_that_runs_again_after_its_success_was_recorded_is_noted() {
    let mut host = worker();
    host.break_step("kubelet-install", 1);
    let mut second = 1;
    // An agent that was away at the end of the second run does not know that it succeeded.
    for (expected, recorded, repeated) in [(1, true, 0), (0, false, 0), (0, true, 0), (0, true, 1)]
    {
        let (end, code) = run(&mut host, second, install_kubelet());
        assert_eq!((code, host.repeated.len()), (expected, repeated));
        if recorded {
            host.release(&job("kubelet-install", install_kubelet()).unit);
        }
        second = end + 11;
        host.tick(at(second));
    }
}

#[test]
fn ticking_often_or_once_ends_in_the_same_state() {
    let mut often = worker();
    often.start(&job("a", install_kubelet()), at(0));
    often.start(&job("b", Command::Step(HostStep::KubeletRestart {})), at(1));
    let mut once = often.clone();
    for second in 0..60 {
        often.tick(at(second));
    }
    once.tick(at(59));
    assert_eq!(often, once);
    assert_eq!(often.next_due(at(60)), None);
}

#[test]
fn the_time_of_the_next_change_is_known() {
    let mut host = worker();
    assert_eq!(host.next_due(at(1)), None);
    host.start(&job("a", Command::Step(HostStep::Preflight { version: None })), at(1));
    let ends = host.units["u-a"].ends;
    assert_eq!(host.next_due(at(1)), Some(ends));
    host.tick(ends);
    assert_eq!(host.next_due(ends), Some(ends + COLLECTED_AFTER));
}

#[test]
fn a_restored_host_behaves_the_same() {
    let mut host = control_plane();
    host.break_step("x", 1);
    host.start(&job("a", upgrade(Role::FirstControlPlane)), at(3));
    let text = serde_json::to_string(&host).unwrap();
    let mut copy: HostState = serde_json::from_str(&text).unwrap();
    assert_eq!(copy, host);
    host.tick(at(500));
    copy.tick(at(500));
    assert_eq!(copy, host);
}

#[test]
fn verify_sees_a_kubelet_that_was_not_restarted() {
    let mut host = worker();
    run(&mut host, 1, install_kubelet());
    let command = Command::Step(HostStep::Verify { version: Some(new()) });
    assert_eq!(run(&mut host, 40, command.clone()).1, 1);
    host.tick(at(70));
    run(&mut host, 70, Command::Step(HostStep::KubeletRestart {}));
    assert_eq!(run(&mut host, 90, command).1, 0);
}
