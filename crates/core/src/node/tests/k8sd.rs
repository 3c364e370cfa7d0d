//! Updates in which k8sd refreshes the snap of a node.

use refit_kinds::{
    canonical::RefreshStatus,
    refit::{Disruption, Goal, GoalCertificates, GoalOption, PartState, Phase, Stage, UpdatePart},
};

use super::world::*;
use crate::node::{CertificatesFailure, K8sdRequest, is_past_return};

/// A machine without an agent, on its way to this option.
fn snap(mut one: One, option: &str, disruption: Disruption) -> One {
    one.update.spec.parts = Some(vec![UpdatePart::k8sd(disruption)]);
    let option: GoalOption = option.parse().unwrap();
    one.update.spec.goal = Goal { option: Some(option), ..Goal::default() };
    one.plan = None;
    one.node_mut().kubelet_version = "v1.34.2".into();
    one.static_pods.clear();
    one
}

/// A machine without an agent whose certificates are to be issued for an hour.
fn certificates(one: One) -> One {
    let mut one = snap(one, "revision=9", Disruption::Restart);
    let certificates = Some(GoalCertificates::of_lifetime(3600));
    one.update.spec.goal = Goal { certificates, ..Goal::default() };
    one
}

fn not_issued(request: K8sdRequest) -> Result<jiff::Timestamp, CertificatesFailure> {
    Err(CertificatesFailure { why: "no space".into(), request })
}

fn failed() -> RefreshStatus {
    RefreshStatus { status: "Error".into(), completed: true, error_message: "no space".into() }
}

fn doing() -> RefreshStatus {
    RefreshStatus { status: "Doing".into(), ..RefreshStatus::default() }
}

fn run(one: &mut One, seconds: i64) {
    let end = one.now + seconds;
    while one.now < end {
        one.settle();
        one.now += 1;
    }
}

fn count(one: &One, word: &str) -> usize {
    one.log.iter().filter(|known| known.starts_with(word)).count()
}

#[test]
fn a_snap_is_refreshed_with_a_slot_and_without_a_drain() {
    for one in [One::worker(), One::control_plane()] {
        let mut one = snap(one, "channel=1.35-classic/stable", Disruption::Restart);
        one.changes.extend([doing(), doing()]);
        run(&mut one, 180);
        assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.blocked_by());
        assert_eq!(count(&one, "refresh to channel=1.35-classic/stable"), 1);
        assert_eq!((count(&one, "claim"), count(&one, "release")), (1, 1));
        assert_eq!((count(&one, "cordon"), one.pods.len()), (0, 1));
        assert_eq!(one.status().message, "the machine has channel=1.35-classic/stable");
    }
}

#[test]
fn a_drain_comes_first_where_it_is_asked_for() {
    let mut one = snap(One::worker(), "revision=9", Disruption::Drain);
    run(&mut one, 180);
    assert_eq!(one.phase(), Phase::Succeeded);
    let at = |word: &str| one.log.iter().position(|known| known.starts_with(word));
    assert!(
        at("cordon") < at("evict") && at("evict") < at("refresh") && at("refresh") < at("uncordon")
    );
    assert!(one.pods.is_empty());
}

#[test]
fn a_refresh_that_fails_is_repeated_until_it_succeeds() {
    let mut one = snap(One::worker(), "revision=9", Disruption::Restart);
    one.changes.extend((0..5).map(|_| failed()));
    run(&mut one, 30);
    assert_eq!(one.blocked_by(), ["UpdaterFails"]);
    assert!(one.status().message.contains("no space"), "{}", one.status().message);
    assert_eq!(one.slots(), 1, "the rest of the group waits");
    run(&mut one, 3600);
    assert_eq!(one.phase(), Phase::Succeeded);
    assert_eq!(count(&one, "refresh"), 6);
    assert_eq!(one.status().part("k8sd").refresh.unwrap().failed_attempts, 5);
}

#[test]
fn a_change_that_k8sd_does_not_know_for_a_moment_blocks_nothing() {
    let mut one = snap(One::worker(), "revision=9", Disruption::Restart);
    let unknown = RefreshStatus::default;
    one.changes.extend([doing(), unknown(), unknown(), doing(), doing()]);
    for _ in 0..60 {
        run(&mut one, 1);
        assert!(!one.blocked_by().contains(&"UpdaterFails".to_owned()));
    }
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn a_refresh_stops_between_two_attempts_and_never_during_one() {
    let mut one = snap(One::worker(), "revision=9", Disruption::Drain);
    one.changes.extend([doing(), doing(), failed(), failed(), failed()]);
    while one.status().part("k8sd").refresh.is_none_or(|refresh| refresh.change_id.is_none()) {
        run(&mut one, 1);
    }
    one.update.spec.stage = Stage::Abort;
    one.settle();
    assert!(is_past_return(&one.status()));
    assert_eq!(one.phase(), Phase::Disrupting);
    run(&mut one, 300);
    assert_eq!(one.phase(), Phase::Stopped, "{}", one.status().message);
    assert_eq!(count(&one, "refresh"), 1);
    assert!(!one.node_mut().unschedulable && one.slots() == 0, "nothing is left behind");
}

#[test]
fn a_paused_machine_is_not_tried_again() {
    let mut one = snap(One::worker(), "revision=9", Disruption::Restart);
    one.changes.extend([failed(), failed(), failed(), failed()]);
    run(&mut one, 20);
    let tried = count(&one, "refresh");
    one.paused = Some("Cluster edge-1".into());
    run(&mut one, 1200);
    assert_eq!(count(&one, "refresh"), tried);
    assert_eq!(one.blocked_by(), ["Paused"]);
    one.paused = None;
    run(&mut one, 1200);
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn a_channel_neither_skips_a_minor_version_nor_goes_back() {
    let outcome = |one: One, channel: &str| {
        let mut one = snap(one, channel, Disruption::Restart);
        run(&mut one, 180);
        (one.phase(), one.status().failure_reason, count(&one, "refresh"))
    };
    let failed = |reason: &str| (Phase::Failed, reason.to_owned(), 0);
    let (worker, member) = (One::worker, One::control_plane);
    assert_eq!(outcome(worker(), "channel=1.33-classic/stable"), failed("DowngradeNotAsked"));
    assert_eq!(outcome(member(), "channel=1.36-classic/stable"), failed("SkipsMinor"));
    let succeeded = (Phase::Succeeded, String::new(), 1);
    assert_eq!(outcome(worker(), "channel=1.34-classic/edge"), succeeded);
    assert_eq!(outcome(worker(), "channel=latest/edge"), succeeded, "its version is not known");
    let newer = outcome(worker(), "channel=1.36-classic/stable");
    assert_eq!(newer, (Phase::Waiting, String::new(), 0), "the control plane comes first");
}

#[test]
fn a_node_must_be_ready_after_the_refresh() {
    let mut one = snap(One::worker(), "revision=9", Disruption::Restart);
    one.changes.extend([doing()]);
    while one.status().part("k8sd").state != PartState::Running {
        run(&mut one, 1);
    }
    one.node_mut().ready = false;
    run(&mut one, 180);
    assert_eq!((one.phase(), one.slots()), (Phase::Verifying, 1));
    one.node_mut().ready = true;
    run(&mut one, 180);
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn a_lost_change_may_run_and_keeps_its_machine_busy() {
    let mut one = snap(One::worker(), "revision=9", Disruption::Restart);
    one.changes.extend((0..6).map(|_| RefreshStatus::default()));
    while one.status().part("k8sd").refresh.is_none_or(|refresh| refresh.failed_attempts == 0) {
        run(&mut one, 1);
    }
    one.update.spec.stage = Stage::Abort;
    assert!(is_past_return(&one.status()));
    run(&mut one, 180);
    assert_eq!(one.phase(), Phase::Succeeded, "it ran to its end");
    assert_eq!(count(&one, "refresh"), 2);
}

#[test]
fn a_node_that_never_returns_from_a_refresh_is_left_to_remediation() {
    let mut one = snap(One::worker(), "revision=9", Disruption::Restart);
    one.host_lost_after = Some(jiff::SignedDuration::from_secs(900));
    one.changes.extend((0..1000).map(|_| doing()));
    while one.status().part("k8sd").state != PartState::Running {
        run(&mut one, 1);
    }
    let node = one.node_mut();
    (node.ready, node.heartbeat) = (false, Some(at(0)));
    run(&mut one, 800);
    assert_eq!(one.phase(), Phase::Disrupting);
    run(&mut one, 200);
    assert_eq!((one.phase(), one.status().failure_reason.as_str()), (Phase::Failed, "NodeNotBack"));
    assert!(
        !one.log.iter().rev().take_while(|word| *word != "unguard").any(|word| word == "guard")
    );
}

#[test]
fn certificates_are_issued_with_a_slot_and_without_a_drain() {
    for one in [One::worker(), One::control_plane()] {
        let mut one = certificates(one);
        one.issued.extend([not_issued(K8sdRequest::Refused), not_issued(K8sdRequest::Unknown)]);
        run(&mut one, 30);
        assert_eq!((one.blocked_by(), one.slots()), (vec!["UpdaterFails".to_owned()], 1));
        run(&mut one, 180);
        assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.blocked_by());
        assert_eq!(count(&one, "certificates for 3600 s"), 3);
        assert_eq!((count(&one, "claim"), count(&one, "release")), (1, 1));
        assert_eq!((count(&one, "cordon"), one.pods.len()), (0, 1));
        assert_eq!(one.status().message, "the machine has new certificates");
    }
}

#[test]
fn certificates_that_may_be_issued_end_before_an_abort() {
    let mut one = certificates(One::control_plane());
    one.issued.extend([not_issued(K8sdRequest::Unknown)]);
    while count(&one, "certificates") == 0 {
        run(&mut one, 1);
    }
    one.update.spec.stage = Stage::Abort;
    assert!(is_past_return(&one.status()));
    run(&mut one, 180);
    assert_eq!((one.phase(), count(&one, "certificates")), (Phase::Succeeded, 2));
    let mut one = certificates(One::control_plane());
    one.issued.extend((0..9).map(|_| not_issued(K8sdRequest::Refused)));
    run(&mut one, 20);
    one.update.spec.stage = Stage::Abort;
    run(&mut one, 60);
    assert_eq!((one.phase(), one.slots()), (Phase::Stopped, 0));
}

#[test]
fn new_certificates_leave_what_a_failed_upgrade_has_done_to_its_node() {
    let mut one = certificates(One::worker());
    let node = one.node_mut();
    node.unschedulable = true;
    (node.cordoned_by, node.excluded_by) = (Some("m-0-0".into()), Some("m-0-0".into()));
    run(&mut one, 180);
    let (phase, blockers) = (one.phase(), one.blocked_by());
    assert_eq!((phase, count(&one, "certificates")), (Phase::Succeeded, 1), "{blockers:?}");
    let node = one.node().unwrap();
    assert!(node.unschedulable && node.excluded_by.is_some(), "{:?}", one.log);
    assert_eq!(one.slots(), 1, "the machine is still down");
    let node = one.node_mut();
    (node.unschedulable, node.cordoned_by, node.excluded_by) = (false, None, None);
    run(&mut one, 10);
    assert_eq!(one.slots(), 0);
}

#[test]
fn certificates_need_k8sd() {
    let mut one = certificates(One::worker());
    one.update.spec.parts =
        Some(vec![UpdatePart { updater: "memory".into(), ..UpdatePart::kubeadm() }]);
    run(&mut one, 10);
    let reason = one.status().failure_reason;
    assert_eq!((one.phase(), &*reason), (Phase::Failed, "CertificatesNotSupported"));
}
