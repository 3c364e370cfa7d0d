//! Updates in which kubeadm renews the certificates of a control plane host.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use refit_kinds::canonical::CERTIFICATES_EXPIRY;
use refit_kinds::refit::{
    Disruption, Gate, Goal, GoalCertificates, HostStep, NodeUpdateStatus, Phase, PlanSettings,
    Role, StepLimits, StepState, StepType, UpdatePart,
};

use super::world::*;
use crate::node::{STEP_CORDON, STEP_DRAIN};

const RENEW: StepType = StepType::CertificatesRenew;

/// A machine whose certificates are to be renewed by these parts.
fn renewal(mut one: One, certificates: GoalCertificates, parts: &[UpdatePart]) -> One {
    one.update.spec.goal = Goal { certificates: Some(certificates), ..Goal::default() };
    one.update.spec.parts = Some(parts.to_vec());
    one.plan.as_mut().unwrap().status.as_mut().unwrap().capabilities.push(RENEW);
    one
}

fn of_kubeadm(one: One) -> One {
    renewal(one, GoalCertificates::default(), &[UpdatePart::renewal()])
}

fn count(one: &One, word: &str) -> usize {
    one.log.iter().filter(|known| known.starts_with(word)).count()
}

/// Continues until the host has run every step.
fn verified(one: One) -> One {
    let mut one = one.upgraded();
    one.settle();
    one.host_works();
    one
}

#[test]
fn certificates_are_renewed_with_a_slot_and_without_a_drain() {
    let mut one = verified(of_kubeadm(One::control_plane()));
    let plan = one.plan.as_ref().unwrap().spec.clone();
    let ids: Vec<&str> = plan.steps.iter().map(|step| step.id.as_str()).collect();
    assert_eq!(ids, ["preflight", "certificates-renew", "verify"]);
    assert_eq!(plan.point_of_no_return, "certificates-renew");
    assert!(plan.steps.iter().all(|step| step.undo.is_none() && !step.disruptive));
    one.settle();
    assert_eq!(one.blocked_by(), ["NodeNotVerified"], "its static pods have just restarted");
    one.settle_with_static_pods();
    assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.blocked_by());
    let status = one.status();
    assert_eq!(status.message, "the machine has new certificates");
    assert_eq!(status.role, Some(Role::ControlPlane));
    for name in [STEP_CORDON, STEP_DRAIN] {
        let step = status.steps.iter().find(|step| step.name == name).unwrap();
        assert_eq!(step.state, StepState::Skipped, "{name}");
    }
    assert_eq!((count(&one, "cordon"), count(&one, "evict"), one.pods.len()), (0, 0, 1));
    assert_eq!((count(&one, "claim"), count(&one, "release"), one.slots()), (1, 1, 0));
    let at = |word: &str| one.log.iter().position(|known| known == word);
    assert!(at("claim") < at("gate Upgrade") && at("guard") < at("gate Upgrade"), "{:?}", one.log);
    assert!(one.annotations().is_empty(), "{:?}", one.annotations());
    assert_eq!(one.condition(), None, "certificates do not make a machine outdated");
}

#[test]
fn another_expiry_is_noted_for_cluster_api_before_the_update_succeeds() {
    const OLD: &str = "2026-01-01T00:00:00Z";
    const NEW: &str = "2027-01-01T00:00:00Z";
    for (own, shown, ends, noted) in [
        (None, None, Some(NEW), None),
        (None, Some(OLD), Some(NEW), Some(NEW)),
        (None, Some(NEW), Some(OLD), None),
        (None, Some(OLD), None, None),
        (Some(OLD), None, Some(NEW), Some(NEW)),
        (Some(NEW), Some(OLD), Some(OLD), Some(OLD)),
        (Some(NEW), Some(OLD), Some(NEW), Some(NEW)),
        (Some("soon"), Some(OLD), Some(NEW), Some("soon")),
    ] {
        for kind in ["upgrade", "renewal"] {
            let member = One::control_plane();
            let mut one = if kind == "upgrade" { member } else { of_kubeadm(member) };
            let machine = one.machine.as_mut().unwrap();
            if let Some(own) = own {
                machine.annotations_mut().insert(CERTIFICATES_EXPIRY.into(), own.into());
            }
            machine.status.get_or_insert_default().certificates_expiry_date =
                shown.map(str::to_owned);
            let mut one = if kind == "upgrade" { one.disrupted() } else { verified(one) };
            let report = one.plan.as_mut().unwrap().status.as_mut().unwrap();
            report.facts.certificates_end = ends.map(|ends| Time(ends.parse().unwrap()));
            one.settle_with_static_pods();
            let case = format!("{kind}: {own:?} {shown:?} {ends:?}");
            assert_eq!(one.phase(), Phase::Succeeded, "{case} {:?}", one.blocked_by());
            let found = one.annotations().get(CERTIFICATES_EXPIRY).cloned();
            assert_eq!(found.as_deref(), noted, "{case}");
        }
    }
}

#[test]
fn the_days_and_the_limits_reach_the_plan() {
    let within = GoalCertificates { within_days: Some(60), ..GoalCertificates::default() };
    for (certificates, days) in [(GoalCertificates::default(), 36_500), (within, 60)] {
        let mut one = renewal(One::control_plane(), certificates, &[UpdatePart::renewal()]);
        let limits = StepLimits { timeout_seconds: Some(900), max_attempts: Some(2) };
        one.settings = PlanSettings::default();
        one.settings.limits.insert("certificates-renew".into(), limits);
        one.settle();
        let plan = one.plan.unwrap().spec;
        let step = plan.steps.iter().find(|step| step.step_type() == Some(RENEW)).unwrap();
        let Some(HostStep::CertificatesRenew(args)) = step.step() else { panic!("{step:?}") };
        assert_eq!(args.renew_within_days, days);
        assert_eq!((step.timeout_seconds, step.max_attempts), (Some(900), Some(2)));
    }
}

#[test]
fn the_goal_and_the_machine_decide_who_can_issue_certificates() {
    let none = GoalCertificates::default();
    let hour = GoalCertificates::of_lifetime(3600);
    let within = GoalCertificates { within_days: Some(60), ..none };
    let both = GoalCertificates { within_days: Some(60), ..hour };
    let kubeadm = || vec![UpdatePart::renewal()];
    let k8sd = || vec![UpdatePart::k8sd(Disruption::Restart)];
    let memory = || UpdatePart { updater: "memory".into(), ..UpdatePart::renewal() };
    let with = |mut parts: Vec<UpdatePart>, more| {
        parts.push(more);
        parts
    };
    for (parts, certificates, worker, member) in [
        (kubeadm(), none, "NoCertificates", ""),
        (kubeadm(), within, "NoCertificates", ""),
        (kubeadm(), hour, "LifetimeNotSupported", "LifetimeNotSupported"),
        (k8sd(), hour, "", ""),
        (k8sd(), none, "LifetimeMissing", "LifetimeMissing"),
        (k8sd(), within, "LifetimeMissing", "LifetimeMissing"),
        (k8sd(), both, "CertificatesNotSupported", "CertificatesNotSupported"),
        (with(kubeadm(), memory()), none, "CertificatesNotSupported", "CertificatesNotSupported"),
        (with(k8sd(), memory()), hour, "CertificatesNotSupported", "CertificatesNotSupported"),
        (
            with(k8sd(), kubeadm()[0].clone()),
            hour,
            "CertificatesNotSupported",
            "CertificatesNotSupported",
        ),
        (vec![], none, "CertificatesNotSupported", "CertificatesNotSupported"),
    ] {
        for (one, expected) in [(One::worker(), worker), (One::control_plane(), member)] {
            let mut one = renewal(one, certificates, &parts);
            one.settle();
            let NodeUpdateStatus { phase, failure_reason, .. } = one.status();
            let names: Vec<_> = parts.iter().map(|part| part.updater.as_str()).collect();
            assert_eq!(failure_reason, expected, "{names:?} {certificates:?}");
            assert_eq!(phase == Phase::Failed, !expected.is_empty(), "{names:?} {certificates:?}");
            if phase == Phase::Failed {
                assert_eq!((one.gate(), one.slots()), (Gate::Closed, 0), "nothing has begun");
            }
        }
    }
}

#[test]
fn parts_that_are_not_said_are_kubeadms_also_for_certificates() {
    let mut one = of_kubeadm(One::control_plane());
    one.update.spec.parts = None;
    let mut one = verified(one);
    one.settle_with_static_pods();
    assert_eq!(one.phase(), Phase::Succeeded, "{:?}", one.blocked_by());
    assert_eq!(count(&one, "cordon"), 0);
}

#[test]
fn the_other_members_are_healthy_before_certificates_are_renewed_and_before_they_are_verified() {
    let ill = |one: &mut One, ready| {
        let mut pods = one.static_pods.iter_mut().filter(|pod| &*pod.node == "m-1");
        pods.next().unwrap().ready = ready;
    };
    let mut one = of_kubeadm(One::control_plane());
    ill(&mut one, false);
    one.settle();
    assert_eq!((one.blocked_by(), one.slots()), (vec!["ControlPlaneUnhealthy".to_owned()], 0));
    ill(&mut one, true);
    let mut one = one.upgraded();
    ill(&mut one, false);
    one.settle();
    assert_eq!((one.phase(), one.gate()), (Phase::Upgrading, Gate::Upgrade));
    assert_eq!(one.blocked_by(), ["ControlPlaneUnhealthy"]);
    ill(&mut one, true);
    one.settle();
    assert_eq!(one.gate(), Gate::Disrupt);
}

#[test]
fn a_renewal_ends_when_the_static_pods_of_its_own_node_are_ready() {
    let mut one = verified(of_kubeadm(One::control_plane()));
    let own = |one: &mut One, ready| {
        let mut pods = one.static_pods.iter_mut().filter(|pod| &*pod.node == "m-0");
        pods.next().unwrap().ready = ready;
    };
    own(&mut one, false);
    one.settle_with_static_pods();
    assert_eq!((one.phase(), one.slots()), (Phase::Verifying, 1));
    let message = one.status().message;
    assert!(message.contains("kube-apiserver is not Ready"), "{message}");
    own(&mut one, true);
    one.settle_with_static_pods();
    assert_eq!(one.phase(), Phase::Succeeded);
}

#[test]
fn a_renewal_follows_an_update_that_was_rolled_back() {
    let mut one = of_kubeadm(One::control_plane());
    let mut failed = update("m-0", 0);
    failed.status = Some(NodeUpdateStatus { phase: Phase::Failed, ..NodeUpdateStatus::default() });
    one.siblings.push(failed);
    one.settle();
    assert_eq!((one.phase(), one.gate()), (Phase::Staging, Gate::Stage));
}

#[test]
fn a_renewal_waits_for_an_agent_that_can_renew() {
    let mut one = of_kubeadm(One::control_plane());
    let status = one.plan.as_mut().unwrap().status.as_mut().unwrap();
    status.capabilities.retain(|step| *step != RENEW);
    one.settle();
    assert_eq!((one.blocked_by(), one.slots()), (vec!["AgentTooOld".to_owned()], 0));
}

#[test]
fn a_renewal_that_fails_leaves_nothing_cordoned() {
    let mut one = of_kubeadm(One::control_plane()).staged();
    one.settle();
    one.host_fails("certificates-renew");
    one.settle();
    let NodeUpdateStatus { phase, failure_reason, .. } = one.status();
    assert_eq!((phase, &*failure_reason), (Phase::Failed, "PackageMissing"));
    assert!(!one.node_mut().unschedulable && one.slots() == 0, "the node serves");
    assert!(one.annotations().is_empty(), "{:?}", one.annotations());
}
