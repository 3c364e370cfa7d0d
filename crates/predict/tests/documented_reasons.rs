//! Every reason that users may see is documented.

use refit_core::{
    change::{
        Coverage, Level, NotReady, Objects, OnUncovered, Policy, Verdict, can_update,
        can_update::{ControlPlaneMachine, Host, HostReport, Known, Peer},
        not_ready::Unfinished,
        verdict,
    },
    group::Exception,
    report::Reason,
};
use refit_kinds::{refit::ExceptionRule, version::StatedVersion};
use refit_predict::{
    BLOCKED_REASONS, CauseReason, DrainOutcome, Unreached, doctor::Check, drains::CONCERN_REASONS,
    target::WARNING_REASONS,
};
use serde_json::json;
use strum::VariantNames as _;

const TROUBLESHOOTING: &str = include_str!("../../../docs/troubleshooting.md");
const PLAN: &str = include_str!("../../../docs/plan.md");

/// Whether the documentation has a line for a word.
fn has(text: &str, word: &str) -> bool {
    let quoted = format!("`{word}`");
    text.lines()
        .any(|line| line.starts_with('|') && line.split('|').nth(1).unwrap_or("").contains(&quoted))
}

fn missing<'a>(text: &str, words: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    words.into_iter().filter(|word| !has(text, word)).collect()
}

/// The verdict of the hooks about an upgrade.
fn decided(known: &Known) -> NotReady {
    decided_for("v1.34.2", "v1.35.0", known)
}

/// The verdict of the hooks for these facts.
fn decided_for(from: &str, to: &str, known: &Known) -> NotReady {
    let side = |version: &str| Objects {
        owner: json!({"kind": "Machine", "spec": {"version": version}}),
        infrastructure: json!({"kind": "DockerMachine", "spec": {}}),
        bootstrap: Some(json!({"kind": "KubeadmConfig", "spec": {}})),
    };
    let answer = can_update(Level::Machine, &side(from), &side(to), known);
    match answer.verdict {
        Verdict::NotReady(why) => why,
        other => panic!("it waits for nothing: {other:?}"),
    }
}

/// One of each: a new variant does not compile here without a line of its own.
fn not_ready() -> Vec<NotReady> {
    let s = String::new;
    let peer = Peer { machine: s(), unfinished: Some(Unfinished::Marked) };
    let host = Host {
        machine: s(),
        deleting: false,
        report: HostReport::NoNode,
        kubelet: StatedVersion::Absent,
        unfinished: None,
        half_upgraded: false,
        exception: None,
    };
    let exception = Exception { machine: s(), rule: ExceptionRule::Hold, reason: s() };
    let held = Host { exception: Some(exception), ..host.clone() };
    let leaving = Host { deleting: true, ..host.clone() };
    let old_kubelet = Host { kubelet: "v1.33.0".into(), ..host.clone() };
    let returning =
        Host { kubelet: "v1.34.2".into(), unfinished: Some(Unfinished::Marked), ..host.clone() };
    let old = ControlPlaneMachine { machine: s(), runs: "v1.34.2".into() };
    let all = vec![
        NotReady::NotSynced,
        NotReady::BadRequest { reason: s() },
        NotReady::NotOptedIn { namespace: s() },
        NotReady::ObjectUnknown { kind: s(), name: s() },
        NotReady::OwnerUnknown { machine: s() },
        NotReady::TaskAtWork { task: s() },
        decided(&Known { hosts: vec![leaving], ..Known::default() }),
        decided(&Known { hosts: vec![held], ..Known::default() }),
        decided(&Known { peers: vec![peer], ..Known::default() }),
        decided_for("v1.35.0", "v1.34.2", &Known { hosts: vec![returning], ..Known::default() }),
        decided(&Known { hosts: vec![host], ..Known::default() }),
        decided(&Known { control_plane: vec![old], ..Known::default() }),
        decided(&Known { api_server: Some("v1.34.2".into()), ..Known::default() }),
        decided(&Known { hosts: vec![old_kubelet], ..Known::default() }),
        NotReady::ProviderUnknown { object: s(), why: s() },
        NotReady::ProviderForbidden { object: s(), why: s() },
        NotReady::NotRecorded { error: s() },
        NotReady::OwnerDiffers { owner: s() },
        NotReady::OwnerUnread { owner: s(), error: s() },
        NotReady::Unconfirmed { error: s() },
        NotReady::Deadline,
    ];
    for why in &all {
        match why {
            NotReady::NotSynced
            | NotReady::BadRequest { .. }
            | NotReady::NotOptedIn { .. }
            | NotReady::ObjectUnknown { .. }
            | NotReady::OwnerUnknown { .. }
            | NotReady::TaskAtWork { .. }
            | NotReady::Deleting { .. }
            | NotReady::Refused { .. }
            | NotReady::AnotherMachine { .. }
            | NotReady::Returning { .. }
            | NotReady::NoFreshReport { .. }
            | NotReady::ControlPlaneBehind { .. }
            | NotReady::ApiServerBehind { .. }
            | NotReady::KubeletBehind { .. }
            | NotReady::OwnerDiffers { .. }
            | NotReady::OwnerUnread { .. }
            | NotReady::Unconfirmed { .. }
            | NotReady::ProviderUnknown { .. }
            | NotReady::ProviderForbidden { .. }
            | NotReady::NotRecorded { .. }
            | NotReady::Deadline => {}
        }
    }
    all
}

#[test]
fn every_reason_to_wait_is_documented() {
    assert_eq!(missing(TROUBLESHOOTING, Reason::all()), Vec::<&str>::new());
    let not_ready = not_ready();
    let reasons = not_ready.iter().map(NotReady::reason);
    assert_eq!(missing(TROUBLESHOOTING, reasons), Vec::<&str>::new());
}

#[test]
fn every_verdict_is_documented() {
    let covered = verdict(&Policy::default(), &Coverage::default(), None, None);
    let disabled =
        Policy { disabled: true, on_uncovered: OnUncovered::Replace, ..Policy::default() };
    let disabled = verdict(&disabled, &Coverage::default(), None, None);
    let words = [covered.reason(), disabled.reason(), "UncoveredPreserve", "UncoveredReplace"];
    assert_eq!(missing(TROUBLESHOOTING, words), Vec::<&str>::new());
}

#[test]
fn every_unreached_reason_is_documented() {
    assert_eq!(missing(TROUBLESHOOTING, Unreached::VARIANTS.iter().copied()), Vec::<&str>::new());
}

#[test]
fn every_reason_in_a_plan_is_documented() {
    assert_eq!(missing(TROUBLESHOOTING, BLOCKED_REASONS), Vec::<&str>::new());
    for cause in CauseReason::ALL {
        assert!(has(PLAN, &format!("{cause:?}")), "{cause:?}");
    }
}

#[test]
fn every_concern_and_warning_is_documented() {
    assert_eq!(missing(PLAN, CONCERN_REASONS), Vec::<&str>::new());
    assert_eq!(missing(PLAN, WARNING_REASONS), Vec::<&str>::new());
    for outcome in DrainOutcome::ALL {
        assert!(has(PLAN, &format!("{outcome:?}")), "{outcome:?}");
    }
}

#[test]
fn every_doctor_check_is_documented() {
    for check in Check::ALL {
        assert!(has(TROUBLESHOOTING, &format!("{check:?}")), "{check:?}");
    }
}
