//! What must hold before a machine is begun.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::core::Selector;
use refit_cluster_api::kinds::MachineDeletion;
use refit_kinds::{
    keys,
    refit::{Gate, Phase},
};

use super::world::*;
use crate::node::{preflight::Point, *};

fn budget(allows_none: bool, is_met: bool) -> BudgetView {
    BudgetView {
        namespace: "default".into(),
        name: "web".into(),
        selector: Selector::try_from(LabelSelector::default()).ok(),
        allows_none,
        allowed: i32::from(!allows_none),
        is_met,
        spares_unhealthy: true,
    }
}

/// A node with a Ready pod under a budget.
fn under(budget: BudgetView) -> One {
    let mut one = One::worker();
    one.pods = vec![PodView { ready: true, ..pod("web-1") }];
    one.budgets = vec![budget];
    one
}

fn expiring(mut one: One, second: i64) -> One {
    let facts = &mut one.plan.as_mut().unwrap().status.as_mut().unwrap().facts;
    facts.certificates = BTreeMap::from([
        ("pki/ca.crt".to_owned(), Time(at(second))),
        ("pki/etcd/ca.crt".to_owned(), Time(at(1_000_000))),
    ]);
    one
}

/// What the checks find before the machine of `one` is begun.
fn findings(one: &One) -> Vec<Found> {
    let snapshot = one.snapshot(None);
    let GroupState::Present(group) = &snapshot.group else { panic!("it has no group") };
    let status = one.machine.as_ref().and_then(|machine| machine.status.as_ref());
    let node = status.and_then(|status| status.node_ref.as_ref()).map(|node| &*node.name);
    let labels = one.machine.as_ref().and_then(|machine| machine.metadata.labels.as_ref());
    let preflight = Preflight {
        machine: one.machine.as_ref().unwrap(),
        node: &node.unwrap_or_default().into(),
        control_plane: labels.is_some_and(|labels| labels.contains_key(keys::CONTROL_PLANE)),
        goal: one.update.spec.goal.kubernetes_version.as_ref(),
        workload: &snapshot.workload,
        group: Some(group),
        drain: Some(&one.drain.policy),
        begun: Begun::No,
        now: at(one.now),
    };
    preflight.findings()
}

#[test]
fn every_check_of_the_preflight_refuses_its_machine() {
    let (worker, member) = (One::worker, One::control_plane);
    let with = |mut one: One, change: fn(&mut One)| {
        change(&mut one);
        one
    };
    let table = vec![
        (Check::WorkloadApi, "ApiUnreachable", with(worker(), |one| one.reachable = false)),
        (Check::Deleting, "MachineDeleting", with(worker(), One::delete_machine)),
        (Check::Node, "NoNode", with(worker(), |one| one.machine.as_mut().unwrap().status = None)),
        (Check::Skew, "ControlPlaneBehind", with(worker(), |one| one.api_server = FROM.into())),
        (
            Check::Versions,
            "VersionsNotComparable",
            with(member(), |one| {
                one.node_mut().kubelet_version = "v1.34.2-eks-0a1b2c3".into();
                one.static_pods[0].version = ImageVersion::of_tag("v1.34.2-eks-1-34-5");
            }),
        ),
        (
            Check::ControlPlane,
            "ControlPlaneUnhealthy",
            with(member(), |one| one.static_pods[3].ready = false),
        ),
        (Check::NodeReady, "NodeNotReady", with(worker(), |one| one.node_mut().ready = false)),
        (
            Check::Pressure,
            "NodePressure",
            with(worker(), |one| one.node_mut().pressure = Some("DiskPressure".into())),
        ),
        (Check::Cordon, "NodeCordoned", with(worker(), |one| one.node_mut().unschedulable = true)),
        (Check::Certificates, "CertificateExpires", expiring(worker(), 24 * 3600)),
        (
            Check::Availability,
            "GroupUnavailable",
            with(worker(), |one| one.others[0].available = false),
        ),
        (
            Check::Quorum,
            "EtcdQuorum",
            with(member(), |one| {
                one.control_plane.truncate(2);
                one.static_pods.truncate(4);
            }),
        ),
        (Check::Budgets, "PodDisruptionBudget", under(budget(true, true))),
    ];
    let checks: Vec<Check> = table.iter().map(|(check, ..)| *check).collect();
    assert_eq!(checks, Check::ALL);
    let documented = include_str!("../../../../../docs/preflight.md");
    for (check, reason, one) in table {
        let found: Vec<_> =
            findings(&one).iter().map(|found| (found.check, found.refusal.reason())).collect();
        assert_eq!(found, [(check, reason)]);
        let row = format!("| `{}` |", <&str>::from(check));
        let mut rows = documented.lines().filter(|line| line.starts_with(&row));
        assert!(rows.any(|row| row.contains(&format!("`{reason}`"))), "{row} {reason}");
    }
    for one in [worker(), member(), under(budget(false, true))] {
        assert_eq!(findings(&one), []);
    }
}

#[test]
fn a_gate_runs_every_check_before_a_machine_is_disturbed() {
    let points = [Point::Prepare, Point::Disturb, Point::Claim];
    let mut all = Check::ALL.to_vec();
    all.sort_by_key(|check| check.at());
    let mut runs: Vec<Check> = Vec::new();
    for point in points {
        runs.extend(Check::ALL.iter().filter(|check| check.at() == point));
    }
    assert_eq!(runs, all);
}

#[test]
fn a_machine_whose_node_an_admin_has_cordoned_is_not_begun() {
    for mut one in [One::worker(), One::control_plane()] {
        one.node_mut().unschedulable = true;
        let mut one = super::rules::refused(one, "NodeCordoned");
        one.node_mut().unschedulable = false;
        one.settle();
        assert_eq!(one.phase(), Phase::Staging);
    }
    let mut staged = One::worker().staged();
    staged.node_mut().unschedulable = true;
    staged.settle();
    assert_eq!((staged.gate(), staged.slots()), (Gate::Stage, 0));
    assert_eq!(staged.blocked_by(), ["NodeCordoned"]);
    assert!(!staged.log.contains(&"uncordon".to_owned()));
}

#[test]
fn a_certificate_holds_an_update_only_while_it_is_about_to_expire() {
    for second in [0, 3600, 24 * 3600] {
        super::rules::refused(expiring(One::worker(), second), "CertificateExpires");
    }
    let mut later = expiring(One::worker(), 25 * 3600);
    later.settle();
    assert_eq!(later.phase(), Phase::Staging);
}

#[test]
fn etcd_keeps_its_quorum_or_has_one_member() {
    for (members, refused) in [(1, false), (2, true), (3, false), (4, false), (5, false)] {
        let mut one = One::control_plane();
        let of_etcd = |n: usize| StaticPod {
            component: "etcd".into(),
            version: ImageVersion::Untagged,
            ..api_server(&format!("m-{n}"), FROM)
        };
        one.control_plane.truncate(1);
        one.static_pods = (0..members).map(of_etcd).collect();
        let found: Vec<_> = findings(&one).into_iter().map(|found| found.check).collect();
        let expected = if refused { vec![Check::Quorum] } else { Vec::new() };
        assert_eq!(found, expected, "{members} members");
    }
    // Those left still agree with each other, and the machine is repaired.
    let mut broken = One::control_plane();
    broken.static_pods.retain(|pod| pod.component != "etcd" || pod.node != "m-0");
    assert_eq!(findings(&broken), []);
}

#[test]
fn a_budget_without_room_is_waited_for_before_the_node_is_cordoned() {
    let mut one = under(budget(true, true)).staged();
    one.settle();
    assert_eq!((one.gate(), one.slots(), one.phase()), (Gate::Stage, 0, Phase::Waiting));
    assert_eq!(one.blocked_by(), ["PodDisruptionBudget"]);
    assert_eq!(one.status().blocked_by[0].object, "default/web");
    let events: Vec<_> = one.events.iter().map(|event| event.reason).collect();
    assert_eq!(events, ["DrainBlocked"]);
    assert!(!one.node().unwrap().unschedulable);
    one.budgets[0].allows_none = false;
    one.settle();
    assert_eq!((one.gate(), one.slots()), (Gate::Upgrade, 1));
    // The drain itself waits for budgets that are used up later.
    one.budgets[0].allows_none = true;
    one.host_works();
    one.settle();
    assert!(one.node().unwrap().cordoned_by_us());
}

#[test]
fn the_preflight_weighs_a_budget_by_what_ends_it() {
    let weight = |one: &One| findings(one).first().map(|found| found.weight);
    assert_eq!(weight(&under(budget(true, true))), Some(Weight::Waits));
    assert_eq!(weight(&under(budget(true, false))), Some(Weight::Passes));
    let mut deletes = under(budget(true, true));
    deletes.drain.policy.delete_after = Some(jiff::SignedDuration::from_mins(30));
    let mut gives_up = under(budget(true, true));
    gives_up.machine.as_mut().unwrap().spec.deletion = Some(MachineDeletion {
        node_drain_timeout_seconds: Some(600),
        ..MachineDeletion::default()
    });
    for mut one in [deletes, gives_up] {
        assert_eq!(weight(&one), Some(Weight::Overridden));
        one = one.staged();
        one.settle();
        assert_eq!(one.gate(), Gate::Upgrade);
    }
}

#[test]
fn a_budget_without_room_does_not_matter_where_it_stops_no_eviction() {
    type Change = fn(&mut One);
    let free: [(&str, Change); 8] = [
        ("the pod has not started", |one| one.pods[0].pending = true),
        ("the pod leaves already", |one| one.pods[0].terminating = true),
        ("the pod of a DaemonSet stays", |one| one.pods[0].daemon_set = true),
        ("an unhealthy pod of a met budget", |one| one.pods[0].ready = false),
        ("an unhealthy pod of AlwaysAllow", |one| {
            one.pods[0].ready = false;
            one.budgets[0].is_met = false;
            one.budgets[0].spares_unhealthy = false;
        }),
        ("another namespace", |one| one.budgets[0].namespace = "other".into()),
        ("no other node takes the pods", |one| one.nodes.truncate(1)),
        ("the Machine is not drained", |one| {
            let annotations = &mut one.machine.as_mut().unwrap().metadata.annotations;
            annotations
                .get_or_insert_default()
                .insert(keys::EXCLUDE_NODE_DRAINING.to_owned(), String::new());
        }),
    ];
    for (why, change) in free {
        let mut one = under(budget(true, true));
        change(&mut one);
        assert_eq!(findings(&one), [], "{why}");
    }
    let mut unhealthy = under(budget(true, false));
    unhealthy.pods[0].ready = false;
    assert_eq!(findings(&unhealthy)[0].weight, Weight::Passes);
}

#[test]
fn a_claim_needs_a_look_at_the_pods_of_its_node() {
    let look = |one: &One| {
        let mut snapshot = one.snapshot(None);
        let Workload::Seen(seen) = &mut snapshot.workload else { panic!("it is reachable") };
        seen.ahead = None;
        let decision = decide(&snapshot, at(one.now));
        requires_drain_ahead(&snapshot, &decision, at(one.now))
    };
    let claiming = |mut one: One| {
        one = one.staged();
        while !matches!(one.decide().write, Some(Write::Management(ManagementWrite::ClaimSlot(_))))
        {
            assert!(!look(&one));
            assert!(one.step());
        }
        one
    };
    assert!(look(&claiming(One::worker())));
    let mut deletes = One::worker();
    deletes.drain.policy.force_after = Some(jiff::SignedDuration::from_mins(30));
    assert!(!look(&claiming(deletes)));
}
