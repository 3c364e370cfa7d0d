//! Rows of the silences.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::refit::{AlertMatcher, MatchType, SilencedPart};
use refit_openshift::{
    Compat,
    maintenance::{
        CREATED_BY, ControlPlane, NewSilence, Silence, SilenceState, SilenceStatus, SilenceWrite,
        SilencesSeen, Workers,
    },
};
use serde_json::json;
use strum::VariantArray as _;

use crate::Row;

pub(crate) const ROWS: &[Row] = &[
    Row {
        number: 78,
        name: "the control plane has a default and a critical silence",
        test: the_control_plane_has_two_silences,
    },
    Row {
        number: 79,
        name: "a silence that exists is not created again",
        test: existing_silences_are_not_created_again,
    },
    Row {
        number: 79,
        name: "which silence of the control plane exists does not depend on expired ones",
        test: silences_of_the_control_plane_follow_the_upgrade,
    },
    Row {
        number: 80,
        name: "the window of the workers follows from their number and the drain times",
        test: the_window_of_workers_follows_from_their_number,
    },
    Row {
        number: 81,
        name: "the silence of the workers is set again when their number changes",
        test: the_silence_of_workers_follows_their_number,
    },
    Row {
        number: 82,
        name: "only active silences of the operator with the comment of the part are deleted",
        test: silences_end_by_creator_state_and_comment,
    },
    Row {
        number: 82,
        name: "a failed upgrade keeps its silences in the original only",
        test: a_failed_upgrade_ends_its_silences,
    },
];

const NOISE: &str = "Silence for OSD control plane upgrade to version 4.16.3";
const CRITICAL: &str =
    "Silence for critical alerts during OSD control plane upgrade to version 4.16.3";
const FIVE: &str = "Silence for OSD worker node upgrade to version 4.16.3 with remaining 5 nodes";
const FOUR: &str = "Silence for OSD worker node upgrade to version 4.16.3 with remaining 4 nodes";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn now() -> Timestamp {
    at("2026-08-14T12:00:00Z")
}

fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

fn silence(id: &str, comment: &str, state: SilenceState, starts_at: &str) -> Silence {
    Silence {
        id: id.to_owned(),
        status: SilenceStatus { state },
        created_by: CREATED_BY.to_owned(),
        comment: comment.to_owned(),
        starts_at: at(starts_at),
    }
}

fn active(id: &str, comment: &str) -> Silence {
    silence(id, comment, SilenceState::Active, "2026-08-14T11:00:00Z")
}

fn expired(id: &str, comment: &str) -> Silence {
    silence(id, comment, SilenceState::Expired, "2026-08-14T10:00:00Z")
}

fn seen(compat: Compat, silences: &[Silence]) -> SilencesSeen<'_> {
    SilencesSeen { compat, silences, version: "4.16.3", now: now() }
}

fn control_plane(compat: Compat, silences: &[Silence], state: ControlPlane) -> Vec<SilenceWrite> {
    let criticals = ["ClusterOperatorDown", "KubeletDown"].map(str::to_owned);
    seen(compat, silences).control_plane(state, minutes(130), &criticals)
}

fn workers(updated: i32, pdb: i64) -> Workers {
    Workers {
        machines: 5,
        updated,
        pdb_force_drain: minutes(pdb),
        node_drain: minutes(45),
        expected_drain: minutes(8),
    }
}

fn matcher(name: &str, value: &str) -> AlertMatcher {
    AlertMatcher { name: name.to_owned(), value: value.to_owned(), match_type: MatchType::Matches }
}

fn noise() -> Vec<AlertMatcher> {
    vec![
        matcher("severity", "(warning|info)"),
        matcher("namespace", "(^openshift.*|^kube.*|^redhat.*|^default$)"),
    ]
}

fn create(matchers: Vec<AlertMatcher>, comment: &str, ends_at: &str) -> SilenceWrite {
    let (comment, ends_at) = (comment.to_owned(), at(ends_at));
    SilenceWrite::Create(NewSilence { matchers, comment, starts_at: now(), ends_at })
}

fn created(writes: &[SilenceWrite]) -> Vec<(&str, String)> {
    let created = writes.iter().map(|write| match write {
        SilenceWrite::Create(new) => (&*new.comment, new.ends_at.to_string()),
        SilenceWrite::Delete { id } => panic!("deletes {id}"),
    });
    created.collect()
}

fn deleted(ids: &[&str]) -> Vec<SilenceWrite> {
    ids.iter().map(|id| SilenceWrite::Delete { id: (*id).to_owned() }).collect()
}

fn the_control_plane_has_two_silences() {
    let critical = vec![matcher("alertname", "(ClusterOperatorDown|KubeletDown)")];
    let end = "2026-08-14T14:10:00Z";
    for compat in Compat::VARIANTS {
        assert_eq!(
            control_plane(*compat, &[], ControlPlane::Ahead),
            [create(noise(), NOISE, end), create(critical.clone(), CRITICAL, end)]
        );
        let without = seen(*compat, &[]).control_plane(ControlPlane::Ahead, minutes(130), &[]);
        assert_eq!(without, [create(noise(), NOISE, end)], "without names");
    }
}

fn existing_silences_are_not_created_again() {
    for compat in Compat::VARIANTS {
        let both = [active("a", NOISE), active("b", CRITICAL)];
        assert_eq!(control_plane(*compat, &both, ControlPlane::Ahead), []);
        let end = "2026-08-14T14:10:00Z".to_owned();
        let writes = control_plane(*compat, &both[1..], ControlPlane::Ahead);
        assert_eq!(created(&writes), [(NOISE, end.clone())]);
        let writes = control_plane(*compat, &both[..1], ControlPlane::Ahead);
        assert_eq!(created(&writes), [(CRITICAL, end)]);
        assert_eq!(seen(*compat, &[active("a", FIVE)]).workers(&workers(0, 60)), []);
        // One that ran out is not extended: this is how a timeout is detected.
        assert_eq!(seen(*compat, &[expired("a", FIVE)]).workers(&workers(0, 60)), []);
    }
    // The original does not look at the creator.
    let foreign = |comment| Silence { created_by: "admin".to_owned(), ..active("a", comment) };
    let both = [foreign(NOISE), foreign(CRITICAL)];
    assert_eq!(control_plane(Compat::Strict, &both, ControlPlane::Ahead), []);
    assert_eq!(control_plane(Compat::Repaired, &both, ControlPlane::Ahead).len(), 2);
}

fn silences_of_the_control_plane_follow_the_upgrade() {
    let ran_out = [expired("a", NOISE), expired("b", CRITICAL)];
    let works = |since| ControlPlane::Works { since: at(since) };
    let cases = [
        // A failed attempt, which is tried again.
        (ControlPlane::Ahead, &ran_out[..], None, Some("2026-08-14T14:10:00Z")),
        // The upgrade takes too long, or an operator has ended them.
        (works("2026-08-14T11:00:00Z"), &ran_out[..], None, None),
        // Alertmanager has lost them.
        (
            works("2026-08-14T11:00:00Z"),
            &[],
            Some("2026-08-14T14:10:00Z"),
            Some("2026-08-14T13:10:00Z"),
        ),
        (works("2026-08-14T09:00:00Z"), &[], Some("2026-08-14T14:10:00Z"), None),
        (ControlPlane::Done, &[], Some("2026-08-14T14:10:00Z"), None),
        (ControlPlane::Done, &ran_out[..], None, None),
    ];
    for (state, silences, strict, repaired) in cases {
        for (compat, end) in [(Compat::Strict, strict), (Compat::Repaired, repaired)] {
            let writes = control_plane(compat, silences, state);
            let wanted: Vec<(&str, String)> = end
                .into_iter()
                .flat_map(|end| [(NOISE, end.to_owned()), (CRITICAL, end.to_owned())])
                .collect();
            assert_eq!(created(&writes), wanted, "{compat}: {state:?} with {silences:?}");
        }
    }
}

fn the_window_of_workers_follows_from_their_number() {
    for compat in Compat::VARIANTS {
        let writes = |updated, pdb| seen(*compat, &[]).workers(&workers(updated, pdb));
        // 5 * (60 + 8) minutes.
        assert_eq!(writes(0, 60), [create(noise(), FIVE, "2026-08-14T17:40:00Z")]);
        // The drain timeout is the longer one: 4 * (45 + 8) minutes.
        assert_eq!(writes(1, 30), [create(noise(), FOUR, "2026-08-14T15:32:00Z")]);
        assert_eq!(writes(5, 60), []);
        assert_eq!(writes(6, 60), []);
        let absurd = Workers { machines: i32::MAX, updated: i32::MIN, ..workers(0, i64::MAX / 60) };
        assert_eq!(created(&seen(*compat, &[]).workers(&absurd)).len(), 1);
    }
}

fn the_silence_of_workers_follows_their_number() {
    let new = create(noise(), FOUR, "2026-08-14T16:32:00Z");
    let four = |compat, silences: &[Silence]| seen(compat, silences).workers(&workers(1, 60));
    let [delete_a, delete_b] = [deleted(&["a"]), deleted(&["b"])];
    let old = [active("a", FIVE)];
    // The original has a gap between the two.
    assert_eq!(four(Compat::Strict, &old), [delete_a[0].clone(), new.clone()]);
    assert_eq!(four(Compat::Repaired, &old), [new.clone(), delete_a[0].clone()]);
    // The first deletion failed: the original leaves the longer one in force.
    let later = silence("b", FOUR, SilenceState::Active, "2026-08-14T11:30:00Z");
    let both = [active("a", FIVE), later];
    assert_eq!(four(Compat::Strict, &both), []);
    assert_eq!(four(Compat::Repaired, &both), delete_a);
    // A worker was added: the original leaves the shorter one in force, as the longer one from before is listed.
    let later = silence("b", FIVE, SilenceState::Active, "2026-08-14T11:30:00Z");
    let grown = [expired("a", FOUR), later];
    assert_eq!(four(Compat::Strict, &grown), []);
    assert_eq!(four(Compat::Repaired, &grown), [new.clone(), delete_b[0].clone()]);
    // Another version that begins alike.
    let other = [active("a", &FIVE.replace("4.16.3", "4.16.30"))];
    assert_eq!(four(Compat::Strict, &other), [delete_a[0].clone(), new.clone()]);
    assert_eq!(four(Compat::Repaired, &other), [new]);
}

fn silences_end_by_creator_state_and_comment() {
    let listed = json!([
        {"id": "1", "createdBy": CREATED_BY, "comment": NOISE, "status": {"state": "active"}},
        {"id": "2", "createdBy": CREATED_BY, "comment": CRITICAL, "status": {"state": "active"}},
        {"id": "3", "createdBy": CREATED_BY, "comment": FOUR, "status": {"state": "active"}},
        {"id": "4", "createdBy": CREATED_BY, "comment": NOISE, "status": {"state": "expired"}},
        {"id": "5", "createdBy": "admin", "comment": NOISE, "status": {"state": "active"}},
        {"id": "6", "createdBy": CREATED_BY, "comment": FIVE, "status": {"state": "pending"}},
        {"id": "7", "createdBy": CREATED_BY, "comment": "mine", "status": {"state": "active"}},
    ]);
    let listed = listed.as_array().unwrap().iter().map(|one| {
        let mut one = one.clone();
        one["startsAt"] = json!("2026-08-14T11:00:00.123Z");
        one["matchers"] = json!([]);
        serde_json::from_value(one).unwrap()
    });
    let listed: Vec<Silence> = listed.collect();
    for (compat, of_workers) in [(Compat::Strict, &["3"][..]), (Compat::Repaired, &["3", "6"])] {
        let seen = seen(compat, &listed);
        assert_eq!(seen.end(SilencedPart::ControlPlane), deleted(&["1", "2"]));
        assert_eq!(seen.end(SilencedPart::Workers), deleted(of_workers));
        assert!(seen.is_active());
        let without = SilencesSeen { silences: &listed[3..5], ..seen };
        assert!(!without.is_active(), "an expired one, and one of another creator");
    }
}

fn a_failed_upgrade_ends_its_silences() {
    let silences = [active("a", NOISE), active("b", CRITICAL), active("c", FOUR)];
    assert_eq!(seen(Compat::Strict, &silences).after_failure(), []);
    assert_eq!(seen(Compat::Repaired, &silences).after_failure(), deleted(&["a", "b"]));
}
