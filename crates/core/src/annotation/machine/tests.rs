use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    canonical::{CANONICAL, REFIT},
    refit::{
        Disruption, Goal, MachineRef, NodeUpdateSpec, Origin, PartState, PartStatus, UpdatePart,
    },
};

use super::*;

const CHANNEL: &str = "channel=1.35-classic/stable";

/// A Machine whose annotations are changed as decided.
struct World {
    keys: Keys,
    annotations: BTreeMap<String, String>,
    update: Option<NodeUpdate>,
    has_k8sd: bool,
    is_served_by_others: bool,
    events: Vec<String>,
}

impl World {
    fn asked(to: &str) -> Self {
        let annotations = BTreeMap::from([
            (CANONICAL.upgrade_to.to_owned(), to.to_owned()),
            ("example.com/other".to_owned(), "kept".to_owned()),
        ]);
        Self {
            keys: CANONICAL,
            annotations,
            update: None,
            has_k8sd: true,
            is_served_by_others: false,
            events: Vec::new(),
        }
    }

    /// Looks until nothing changes, and returns what is requested then.
    fn look(&mut self) -> Request {
        for _ in 0..10 {
            let seen = MachineSeen {
                keys: self.keys,
                compat: Compat::Corrected,
                annotations: &self.annotations,
                update: self.update.as_ref(),
                has_k8sd: self.has_k8sd,
                is_served_by_others: self.is_served_by_others,
                now: Timestamp::from_second(1_730_277_457).unwrap(),
            };
            let decided = machine(&seen);
            self.events.extend(
                decided.events.into_iter().map(|event| {
                    format!("{:?} {}: {}", event.severity, event.reason, event.message)
                }),
            );
            if decided.changes.is_empty() {
                return decided.request;
            }
            for (key, value) in decided.changes {
                match value {
                    Some(value) => self.annotations.insert(key.to_owned(), value),
                    None => self.annotations.remove(key),
                };
            }
        }
        panic!("the annotations do not settle: {:?}", self.annotations);
    }

    fn updates(&mut self, ordinal: u32, to: &str) {
        let goal = Goal { option: Some(to.parse().unwrap()), ..Goal::default() };
        let spec = NodeUpdateSpec {
            stage: Stage::Ongoing,
            until: refit_kinds::refit::Until::Disrupt,
            machine_ref: MachineRef::default(),
            origin: Origin::Annotation,
            goal_hash: goal.hash(),
            goal,
            parts: Some(vec![UpdatePart::k8sd(Disruption::Restart)]),
            bundle: None,
        };
        self.update = Some(NodeUpdate::new(&format!("m-{ordinal}"), spec));
    }

    fn phase(&mut self, phase: Phase, refresh: Option<K8sdRefresh>) {
        let status = self.update.as_mut().unwrap().status.get_or_insert_default();
        status.phase = phase;
        let state = PartState::Running;
        status.parts =
            vec![PartStatus { updater: K8SD.into(), state, refresh, ..Default::default() }];
    }

    /// The annotations of the prefix, without it.
    fn shown(&self) -> Vec<String> {
        let all = self.annotations.iter();
        let own = all.filter_map(|(key, value)| {
            let key = key.strip_prefix("v1beta2.k8sd.io/in-place-upgrade-")?;
            Some(format!("{key}={value}"))
        });
        own.collect()
    }
}

fn change(id: &str) -> K8sdRefresh {
    K8sdRefresh { change_id: Some(id.into()), ..K8sdRefresh::default() }
}

fn attempt_failed(second: i64) -> K8sdRefresh {
    K8sdRefresh {
        failed_attempts: 1,
        last_failed_at: Some(Time(Timestamp::from_second(second).unwrap())),
        last_failure: "no space left".into(),
        ..K8sdRefresh::default()
    }
}

fn asks(option: &str) -> Request {
    Request::of_option(option.parse().unwrap())
}

#[test]
fn a_machine_shows_how_far_its_upgrade_is() {
    let mut world = World::asked(CHANNEL);
    assert_eq!(world.look(), asks(CHANNEL));
    world.updates(1, CHANNEL);
    assert_eq!(world.look(), Request::None);
    assert_eq!(world.shown(), [format!("to={CHANNEL}")], "k8sd has not accepted it yet");
    world.phase(Phase::Disrupting, Some(change("12")));
    assert_eq!(world.look(), Request::None);
    let to = format!("to={CHANNEL}");
    assert_eq!(world.shown(), ["change-id=12", "status=in-progress", &to]);
    world.phase(Phase::Succeeded, Some(change("12")));
    assert_eq!(world.look(), Request::None);
    assert_eq!(world.shown(), [format!("release={CHANNEL}"), "status=done".to_owned()]);
    assert_eq!(world.annotations["example.com/other"], "kept");
    assert_eq!(
        world.events,
        [
            format!("Normal InPlaceUpgradeInProgress: Performing in place upgrade with {CHANNEL}"),
            format!(
                "Normal InPlaceUpgradeDone: Successfully performed in place upgrade with {CHANNEL}"
            ),
        ]
    );
}

#[test]
fn a_failed_attempt_is_shown_until_the_next_one_and_its_time_until_a_success() {
    let mut world = World::asked(CHANNEL);
    world.updates(1, CHANNEL);
    world.phase(Phase::Disrupting, Some(attempt_failed(1_730_277_457)));
    world.look();
    let at = "last-failed-attempt-at=Wed, 30 Oct 2024 08:37:37 +0000";
    let to = format!("to={CHANNEL}");
    assert_eq!(world.shown(), [at, "status=failed", &to]);
    assert!(world.events[0].ends_with(&format!("{CHANNEL}: no space left")), "{:?}", world.events);
    let refresh = K8sdRefresh { change_id: Some("13".into()), ..attempt_failed(1_730_277_457) };
    world.phase(Phase::Disrupting, Some(refresh));
    world.look();
    assert_eq!(world.shown(), ["change-id=13", at, "status=in-progress", &to]);
    world.phase(Phase::Succeeded, None);
    world.look();
    assert_eq!(world.shown(), [format!("release={CHANNEL}"), "status=done".to_owned()]);
    assert_eq!(world.events.len(), 3);
}

#[test]
fn a_request_for_what_is_installed_is_carried_out_again() {
    let mut world = World::asked(CHANNEL);
    world.updates(1, CHANNEL);
    world.phase(Phase::Succeeded, None);
    world.look();
    assert_eq!(world.look(), Request::None, "there is no request any more");
    world.annotations.insert(CANONICAL.upgrade_to.into(), CHANNEL.into());
    assert_eq!(world.look(), asks(CHANNEL));
    world.updates(2, CHANNEL);
    assert_eq!(world.look(), Request::None);
}

#[test]
fn the_release_is_what_was_installed_and_not_what_is_asked_for_by_now() {
    let mut world = World::asked(CHANNEL);
    world.updates(1, CHANNEL);
    world.phase(Phase::Disrupting, Some(change("12")));
    world.look();
    world.annotations.insert(CANONICAL.upgrade_to.into(), "revision=9".into());
    assert_eq!(world.look(), Request::Stop("m-1".into()), "if that is still possible");
    world.phase(Phase::Succeeded, Some(change("12")));
    assert_eq!(world.look(), asks("revision=9"), "the request is not lost");
    assert_eq!(world.annotations[CANONICAL.release], CHANNEL);
}

#[test]
fn a_removed_request_stops_the_upgrade_and_leaves_no_status() {
    let mut world = World::asked(CHANNEL);
    world.updates(1, CHANNEL);
    world.phase(Phase::Disrupting, Some(attempt_failed(1)));
    world.look();
    world.annotations.remove(CANONICAL.upgrade_to);
    assert_eq!(world.look(), Request::Stop("m-1".into()));
    world.update.as_mut().unwrap().spec.stage = Stage::Abort;
    assert_eq!(world.look(), Request::None, "it is asked once");
    world.phase(Phase::Stopped, None);
    world.look();
    assert_eq!(world.shown(), [""; 0]);
    assert_eq!(
        world.events.last().unwrap(),
        "Normal InPlaceUpgradeCancelled: The in-place upgrade is cancelled."
    );
    let events = world.events.len();
    world.look();
    assert_eq!(world.events.len(), events);
}

#[test]
fn a_request_that_was_removed_too_late_shows_what_is_installed() {
    let mut world = World::asked(CHANNEL);
    world.updates(1, CHANNEL);
    world.phase(Phase::Disrupting, Some(change("12")));
    world.look();
    world.annotations.remove(CANONICAL.upgrade_to);
    world.phase(Phase::Succeeded, Some(change("12")));
    world.look();
    assert_eq!(world.shown(), [format!("release={CHANNEL}"), "status=done".to_owned()]);
}

#[test]
fn a_text_that_is_no_option_fails_once_and_names_what_is_expected() {
    for (text, expected) in [
        ("1.35", "expected channel=, revision= or localPath="),
        ("version=v1.35.0", "unknown upgrade option"),
        ("channel=", "has no value"),
    ] {
        let mut world = World::asked(text);
        assert_eq!(world.look(), Request::None);
        assert_eq!(world.annotations[CANONICAL.status], "failed");
        world.look();
        assert_eq!(world.events.len(), 1, "{:?}", world.events);
        assert!(world.events[0].contains(expected), "{:?}", world.events);
        world.annotations.insert(CANONICAL.upgrade_to.into(), CHANNEL.into());
        assert_eq!(world.look(), asks(CHANNEL));
        world.annotations.remove(CANONICAL.upgrade_to);
        world.look();
        assert_eq!(world.shown(), [""; 0], "nothing is left of it");
    }
}

#[test]
fn an_option_of_a_snap_is_refused_where_no_k8sd_runs() {
    let mut world = World::asked(CHANNEL);
    world.has_k8sd = false;
    assert_eq!(world.look(), Request::None);
    assert_eq!(world.annotations[CANONICAL.status], "failed");
    assert!(world.events[0].contains("no k8sd runs on this machine"), "{:?}", world.events);
}

#[test]
fn an_upgrade_that_cannot_be_reached_fails_once() {
    let mut world = World::asked(CHANNEL);
    world.updates(1, CHANNEL);
    world.phase(Phase::Failed, None);
    let status = world.update.as_mut().unwrap().status.as_mut().unwrap();
    status.failure_message = "it is older than the node's version".into();
    assert_eq!(world.look(), Request::None);
    assert_eq!(world.look(), Request::None, "the same request is not repeated by itself");
    assert_eq!(world.events.len(), 1);
    world.annotations.insert(keys::RETRY.into(), "m-1".into());
    assert_eq!(world.look(), asks(CHANNEL), "but by refit retry");
    world.annotations.remove(keys::RETRY);
    assert!(world.events[0].contains("older than the node's version"));
    world.annotations.remove(CANONICAL.upgrade_to);
    world.look();
    world.annotations.insert(CANONICAL.upgrade_to.into(), CHANNEL.into());
    assert_eq!(world.look(), asks(CHANNEL), "a request that is made again is");
}

#[test]
fn refits_own_prefix_shows_no_change_id() {
    let mut world = World { keys: REFIT, ..World::asked(CHANNEL) };
    world.annotations.insert(REFIT.upgrade_to.into(), CHANNEL.into());
    world.updates(1, CHANNEL);
    world.phase(Phase::Disrupting, Some(change("12")));
    world.look();
    assert_eq!(world.annotations[REFIT.status], "in-progress");
    assert!(!world.annotations.keys().any(|key| key.contains("change-id")));
    assert_eq!(world.shown(), [format!("to={CHANNEL}")], "the other prefix is left alone");
}

#[test]
fn refit_leaves_a_machine_to_canonicals_controllers_and_reports_it_once() {
    let mut world = World::asked(CHANNEL);
    world.is_served_by_others = true;
    assert_eq!(world.look(), Request::None);
    world.look();
    assert_eq!(world.events.len(), 1, "{:?}", world.events);
    assert!(world.events[0].contains("--canonical ControllersAbsent"), "{:?}", world.events);
    assert_eq!(world.shown(), [format!("to={CHANNEL}")], "their annotations are untouched");
    world.is_served_by_others = false;
    assert_eq!(world.look(), asks(CHANNEL), "once they are gone, Refit serves it");
}

#[test]
fn a_failed_attempt_is_shown_even_if_the_next_one_has_begun() {
    let mut world = World::asked(CHANNEL);
    world.updates(1, CHANNEL);
    let refresh = K8sdRefresh { change_id: Some("2".into()), ..attempt_failed(1) };
    world.phase(Phase::Disrupting, Some(refresh));
    world.look();
    let shown = world.shown();
    assert!(shown.iter().any(|one| one.starts_with("last-failed-attempt-at=")), "{shown:?}");
    assert!(shown.contains(&"status=in-progress".to_owned()), "{shown:?}");
    assert!(world.events[0].contains("no space left"), "{:?}", world.events);
    assert_eq!(world.events.len(), 2);
}

#[test]
fn a_refusal_does_not_hide_what_was_shown_before() {
    for end in [Phase::Succeeded, Phase::Stopped] {
        let mut world = World::asked(CHANNEL);
        world.updates(1, CHANNEL);
        world.phase(end, None);
        if end == Phase::Stopped {
            world.annotations.remove(CANONICAL.upgrade_to);
        }
        world.look();
        world.annotations.insert(CANONICAL.upgrade_to.into(), "chanel=x".into());
        assert_eq!(world.look(), Request::None);
        world.annotations.insert(CANONICAL.upgrade_to.into(), CHANNEL.into());
        assert_eq!(world.look(), asks(CHANNEL), "it is carried out, not taken as done");
    }
}

#[test]
fn a_request_that_is_removed_and_made_again_is_carried_out() {
    let mut world = World::asked(CHANNEL);
    world.updates(1, CHANNEL);
    world.phase(Phase::Waiting, None);
    world.annotations.remove(CANONICAL.upgrade_to);
    assert_eq!(world.look(), Request::Stop("m-1".into()));
    world.annotations.insert(CANONICAL.upgrade_to.into(), CHANNEL.into());
    world.phase(Phase::Stopped, None);
    let status = world.update.as_mut().unwrap().status.as_mut().unwrap();
    SUPERSEDED.clone_into(&mut status.failure_reason);
    assert_eq!(world.look(), asks(CHANNEL));
}
