use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use refit_cluster_api::kinds::{MachineSetSpec, MachineSpec};
use serde_json::{Value, json};

use super::*;
use crate::change::PolicyDefaults;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Machines that were created at second 100. The last ones are being deleted.
fn machines(count: usize, leaving: usize) -> Vec<Machine> {
    let machine = |number: usize| {
        let mut machine = Machine::new(&format!("m-{number}"), MachineSpec::default());
        machine.metadata.creation_timestamp = Some(Time(at(100)));
        if number >= count {
            machine.metadata.deletion_timestamp = Some(Time(at(200)));
        }
        machine
    };
    (0..count + leaving).map(machine).collect()
}

fn seen(replicas: i64, max_surge: i64, machines: &[Machine]) -> OwnerSeen<'_> {
    OwnerSeen {
        kind: HeldKind::KubeadmControlPlane,
        name: "edge-1".into(),
        replicas,
        max_surge,
        rollout_after: None,
        replaced_before_expiry: None,
        is_deleting: false,
        policy: Policy::default(),
        machines: machines.iter().collect(),
        sets: Vec::new(),
        template: MachineSpec::default(),
    }
}

/// Whether Machines may be created and deleted.
fn may(seen: &OwnerSeen<'_>) -> (bool, bool) {
    let allowed = |admission| admission == Admission::Allowed;
    let entry = seen.held(at(1000)).entry;
    entry.map_or((true, true), |entry| (allowed(entry.create), allowed(entry.delete)))
}

#[test]
fn the_numbers_of_machines_decide() {
    const BOTH: (bool, bool) = (false, false);
    const CREATES: (bool, bool) = (true, false);
    const DELETES: (bool, bool) = (false, true);
    // Replicas, surge, Machines, Machines that are being deleted.
    for (replicas, surge, count, leaving, wanted) in [
        (1, 1, 1, 0, BOTH), // its surge machine would replace it
        (1, 0, 1, 0, BOTH),
        (1, 1, 0, 0, CREATES), // the first machine
        (1, 1, 0, 1, CREATES), // deleted by a person or remediated
        (3, 0, 3, 0, BOTH),
        (3, 0, 2, 1, CREATES),
        (4, 0, 3, 0, CREATES), // scale-up
        (2, 0, 3, 0, DELETES), // scale-down
        (2, 0, 2, 1, BOTH),    // scale-down that has deleted enough
        (0, 1, 1, 0, DELETES),
        (3, 1, 3, 0, CREATES), // the surge machine
        (3, 1, 4, 0, DELETES), // the machine that it replaces
        (10, 3, 12, 0, (true, true)),
    ] {
        let machines = machines(count, leaving);
        let owner = seen(replicas, surge, &machines);
        assert_eq!(may(&owner), wanted, "{replicas} {surge} {count} {leaving}");
    }
}

#[test]
fn the_only_machine_is_held_if_a_surge_machine_would_replace_it() {
    // Replicas, surge, Machines, Machines that are being deleted.
    for (replicas, surge, count, leaving, held) in [
        (1, 1, 1, 0, true),
        (1, 0, 1, 0, false), // updated in place
        (1, 1, 2, 0, false),
        (1, 1, 0, 1, false), // deleted by a person or remediated
        (0, 1, 1, 0, false), // scale-down
        (0, 1, 0, 1, false),
        (2, 1, 1, 0, false), // scale-up
    ] {
        let machines = machines(count, leaving);
        let owner = seen(replicas, surge, &machines);
        assert_eq!(
            owner.held_only(at(1000)).is_some(),
            held,
            "{replicas} {surge} {count} {leaving}"
        );
    }
    let machines = machines(1, 0);
    let policy = Policy { on_uncovered: OnUncovered::Replace, ..Policy::default() };
    assert!(OwnerSeen { policy, ..seen(1, 1, &machines) }.held_only(at(1000)).is_none());
}

#[test]
fn the_machines_of_a_machine_deployment_that_may_be_deleted_are_named() {
    let mut machines = machines(3, 0);
    for machine in &mut machines {
        let owner = json!([{"apiVersion": "a", "kind": "MachineSet", "name": "set", "uid": "1", "controller": true}]);
        machine.metadata.owner_references = serde_json::from_value(owner).unwrap();
    }
    let set =
        MachineSet::new("set", MachineSetSpec { replicas: Some(0), ..MachineSetSpec::default() });
    let (kind, sets) = (HeldKind::MachineDeployment, vec![&set]);
    let owner = OwnerSeen { kind, sets, ..seen(2, 0, &machines) };
    assert_eq!(may(&owner), (false, false));
    let entry = owner.held(at(1000)).entry.unwrap();
    assert_eq!(entry.deletable_machines, ["m-0"]);
    let none = OwnerSeen { replicas: 3, ..owner.clone() }.held(at(1000)).entry.unwrap();
    assert!(none.deletable_machines.is_empty() && !allows_more(Some(&none), Some(&entry)));
    assert!(allows_more(Some(&entry), Some(&none)) && !allows_more(Some(&entry), Some(&entry)));
    let names = || vec!["m-1".into()];
    for another in [
        HeldOwner { deletable_machines: names(), ..entry.clone() },
        HeldOwner { deletable_machine_sets: names(), ..entry.clone() },
    ] {
        assert!(allows_more(Some(&another), Some(&entry)));
    }
    let all = HeldOwner { delete: Admission::Allowed, ..none };
    assert!(allows_more(Some(&all), Some(&entry)) && !allows_more(Some(&entry), Some(&all)));
}

#[test]
fn a_declared_replacement_is_not_held() {
    let machines = machines(1, 0);
    let policy = |key: &str, value: &str| {
        let annotations = [(key.to_owned(), value.to_owned())].into();
        crate::change::policy(&annotations, &[].into(), PolicyDefaults::default())
    };
    let held = seen(1, 1, &machines);
    for released in [
        OwnerSeen { policy: policy("refit.dev/on-uncovered", "Replace"), ..held.clone() },
        OwnerSeen { policy: policy("refit.dev/in-place", "Disabled"), ..held.clone() },
        OwnerSeen { is_deleting: true, ..held.clone() },
    ] {
        assert_eq!(released.held(at(1000)), Held { entry: None, again: None });
    }
    let invalid = policy("refit.dev/on-uncovered", "replace");
    assert_eq!(may(&OwnerSeen { policy: invalid, ..held }), (false, false));
}

#[test]
fn dates_of_the_owner_declare_replacements_from_then_on() {
    let mut machines = machines(1, 1);
    let at_once = OwnerSeen { rollout_after: Some(at(500)), ..seen(1, 1, &machines) };
    assert_eq!(at_once.held(at(500)), Held { entry: None, again: None });
    let later = at_once.held(at(499));
    assert!(later.entry.is_some());
    assert_eq!(later.again, Some(at(500)));
    let of_newer = OwnerSeen { rollout_after: Some(at(100)), ..seen(1, 1, &machines) };
    assert_eq!(of_newer.held(at(1000)).again, None);
    assert!(of_newer.held(at(1000)).entry.is_some());

    let expires = at(90_000).to_string();
    machines[0].status =
        serde_json::from_value(json!({"certificatesExpiryDate": expires})).unwrap();
    let day = Some(SignedDuration::from_hours(24));
    let before = OwnerSeen { replaced_before_expiry: day, ..seen(1, 1, &machines) };
    assert_eq!(before.held(at(3599)).again, Some(at(3600)));
    assert!(before.held(at(3599)).entry.is_some());
    assert_eq!(before.held(at(3600)).entry, None);
}

#[test]
fn owners_are_read_as_cluster_api_reads_them() {
    let rollout = |surge: Value| json!({"strategy": {"rollingUpdate": {"maxSurge": surge}}});
    let plane = |spec: Value| {
        let mut body = json!({"metadata": {"name": "edge-1"}, "spec": {"version": "v1.35.0"}});
        body["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let plane: KubeadmControlPlane = serde_json::from_value(body).unwrap();
        OwnerSeen::control_plane(&plane, Policy::default(), Vec::new())
    };
    let read = |seen: &OwnerSeen<'_>| (seen.replicas, seen.max_surge);
    assert_eq!(read(&plane(json!({}))), (1, 1));
    assert_eq!(read(&plane(json!({"replicas": 3, "rollout": rollout(json!(0))}))), (3, 0));
    let dated = plane(json!({"rollout": {
        "after": "1970-01-01T00:08:20Z", "before": {"certificatesExpiryDays": 21},
    }}));
    assert_eq!(dated.rollout_after, Some(at(500)));
    assert_eq!(dated.replaced_before_expiry, Some(SignedDuration::from_hours(21 * 24)));
    let deployment = |spec: Value| {
        let mut body = json!({"metadata": {"name": "md"}, "spec": {"clusterName": "edge-1"}});
        body["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let deployment: MachineDeployment = serde_json::from_value(body).unwrap();
        OwnerSeen::deployment(&deployment, Policy::default(), Vec::new(), Vec::new())
    };
    assert_eq!(read(&deployment(json!({"replicas": 3}))), (3, 1));
    let percent = deployment(json!({"replicas": 5, "rollout": rollout(json!("25%"))}));
    assert_eq!(read(&percent), (5, 2));
    let on_delete = json!({"strategy": {"type": "OnDelete"}});
    assert_eq!(read(&deployment(json!({"replicas": 3, "rollout": on_delete}))), (3, 0));
}

#[test]
fn an_entry_allows_more_if_one_verb_does() {
    let machines = machines(3, 0);
    let entry = |replicas| seen(replicas, 0, &machines).held(at(1000)).entry;
    let (held, creates, deletes) = (entry(3), entry(4), entry(2));
    let more = |one: &Option<HeldOwner>, than: &Option<HeldOwner>| {
        allows_more(one.as_ref(), than.as_ref())
    };
    assert!(more(&creates, &held) && more(&deletes, &held) && more(&creates, &deletes));
    assert!(more(&None, &held));
    assert!(!more(&held, &creates) && !more(&held, &held) && !more(&held, &None));
}

#[test]
fn an_intersection_of_entries_allows_only_what_both_of_them_allow() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let entry = |delete: bool, machines: &[&str], sets: &[&str]| HeldOwner {
        delete: admission(delete),
        deletable_machines: names(machines),
        deletable_machine_sets: names(sets),
        ..refused(HeldKind::MachineDeployment, "md")
    };
    for (known, next, both) in [
        (entry(false, &[], &["a"]), entry(false, &["a-1"], &[]), entry(false, &[], &[])),
        (
            entry(false, &["a-1", "a-2"], &[]),
            entry(false, &["a-2", "b-1"], &[]),
            entry(false, &["a-2"], &[]),
        ),
        (entry(true, &[], &[]), entry(false, &["a-1"], &["b"]), entry(false, &["a-1"], &["b"])),
        (entry(false, &["a-1"], &[]), entry(true, &[], &[]), entry(false, &["a-1"], &[])),
    ] {
        assert_eq!(both_allow(&known, Some(&next)), both, "{known:?} {next:?}");
        assert!(!allows_more(Some(&both), Some(&known)) && !allows_more(Some(&both), Some(&next)));
        assert_eq!(both_allow(&known, None), known);
    }
}

#[test]
fn an_entry_without_a_known_owner_refuses_everything() {
    let machines = machines(3, 0);
    let least = refused(HeldKind::KubeadmControlPlane, "edge-1");
    for replicas in [2, 4] {
        assert!(allows_more(
            seen(replicas, 0, &machines).held(at(1000)).entry.as_ref(),
            Some(&least)
        ));
    }
    assert!(allows_more(None, Some(&least)));
    assert_eq!(seen(3, 0, &machines).held(at(1000)).entry, Some(least));
}

#[test]
fn the_finalizer_stays_until_the_namespace_has_no_machines_or_does_not_hold() {
    for (namespace_holds, is_deleting, has_machines, wanted) in [
        (true, false, false, true),
        (true, false, true, true),
        (true, true, true, true),
        (true, true, false, false),
        (false, false, true, false),
        (false, true, true, false),
    ] {
        let keeps = keeps_finalizer(namespace_holds, is_deleting, has_machines);
        assert_eq!(keeps, wanted, "{namespace_holds} {is_deleting} {has_machines}");
    }
}

proptest! {
    /// Cluster API takes what it may, one request after the other.
    #[test]
    fn a_group_keeps_its_machines_unless_its_owner_surges(
        replicas in 1_i64..6, surge in 0_i64..3, requests in prop::collection::vec(any::<bool>(), 0..40),
    ) {
        let mut count = usize::try_from(replicas).unwrap();
        for creates in requests {
            let machines = machines(count, 0);
            let before = count;
            match (creates, may(&seen(replicas, surge, &machines))) {
                (true, (true, _)) => count += 1,
                (false, (_, true)) => count -= 1,
                (true, (false, _)) | (false, (_, false)) => {}
            }
            let number = i64::try_from(count).unwrap();
            prop_assert!(number >= replicas && number <= replicas + surge);
            if surge == 0 || replicas == 1 {
                prop_assert_eq!(count, before);
            }
        }
    }
}
