//! Updates by hand of control plane machines that Cluster API would replace.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use refit_kinds::{
    conditions,
    refit::{Gate, Phase},
};

use super::world::*;
use crate::node::{Replacer, awaits_request};

const OWNER: &str = "KubeadmControlPlane edge-1";

fn replacer(has_observed: bool) -> Replacer {
    Replacer { object: OWNER.to_owned(), has_observed }
}

/// A member whose control plane is rolled out by Cluster API, with this version and condition UpToDate.
fn member(version: &str, up_to_date: Option<&str>) -> One {
    let mut one = One { replacer: Some(replacer(true)), ..One::control_plane() };
    let machine = one.machine.as_mut().unwrap();
    machine.spec.version = version.into();
    let mut shown: Vec<Condition> = Vec::new();
    if let Some(status) = up_to_date {
        let what = (conditions::UP_TO_DATE, status, "R", "m");
        conditions::set(&mut shown, jiff::Timestamp::UNIX_EPOCH, Some(1), what);
    }
    machine.status.as_mut().unwrap().conditions.extend(shown);
    one
}

#[test]
fn a_member_that_cluster_api_would_replace_is_not_begun_by_hand() {
    let paused = |one| One { replacer: None, ..one };
    let edited = |one| One { replacer: Some(replacer(false)), ..one };
    let table = vec![
        ("outdated", member(FROM, None), true),
        ("shown as outdated", member(GOAL, Some("False")), true),
        ("up to date", member(GOAL, Some("True")), false),
        ("not judged yet", member(GOAL, None), false),
        ("judged by an earlier spec", edited(member(GOAL, Some("True"))), true),
        ("of a paused control plane", paused(member(FROM, Some("False"))), false),
        ("requested by Cluster API", member(FROM, Some("False")).awaited(), false),
    ];
    for (what, mut one, waits) in table {
        one.settle();
        assert_eq!(
            one.blocked_by() == ["WouldBeReplaced"],
            waits,
            "{what}: {:?}",
            one.blocked_by()
        );
        assert_eq!((one.slots() == 0, one.gate() == Gate::Closed), (waits, waits), "{what}");
        assert_eq!(awaits_request(&one.status()), waits, "{what}");
    }
}

#[test]
fn a_member_that_becomes_outdated_after_it_has_prepared_is_not_disturbed_and_returns_its_slot() {
    let mut one = member(GOAL, Some("True")).staged();
    assert_eq!(one.slots(), 1);
    one.machine.as_mut().unwrap().spec.version = FROM.into();
    one.settle();
    assert_eq!((one.phase(), one.gate(), one.slots()), (Phase::Waiting, Gate::Stage, 0));
    assert_eq!(one.blocked_by(), ["WouldBeReplaced"]);
    one.replacer = None;
    one.settle();
    assert_eq!((one.gate(), one.slots()), (Gate::Upgrade, 1), "it is paused");
}
