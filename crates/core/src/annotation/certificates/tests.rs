use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use refit_kinds::{
    canonical::REFIT,
    refit::{
        Disruption, K8sdRefresh, MachineRef, NodeUpdateSpec, Origin, PartState, Stage, UpdatePart,
    },
};

use super::*;

/// A Machine whose annotations are changed as decided.
struct World {
    keys: Keys,
    compat: Compat,
    annotations: BTreeMap<String, String>,
    update: Option<NodeUpdate>,
    upgrade: Option<&'static str>,
    has_node: bool,
    is_deleting: bool,
    is_served_by_others: bool,
    events: Vec<String>,
}

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

fn goal(seconds: i64) -> Goal {
    let certificates = Some(GoalCertificates::of_lifetime(seconds));
    Goal { certificates, ..Goal::default() }
}

fn failed_times(failed_attempts: i32) -> K8sdRefresh {
    K8sdRefresh { failed_attempts, last_failure: "invalid token".into(), ..Default::default() }
}

const YEAR: i64 = 365 * 24 * 3600;

impl World {
    fn of(keys: Keys, compat: Compat) -> Self {
        Self {
            keys,
            compat,
            annotations: BTreeMap::from([("example.com/other".to_owned(), "kept".to_owned())]),
            update: None,
            upgrade: None,
            has_node: true,
            is_deleting: false,
            is_served_by_others: false,
            events: Vec::new(),
        }
    }

    fn asked(text: &str) -> Self {
        let mut world = Self::of(CANONICAL, Compat::Corrected);
        world.ask(Some(text));
        world
    }

    fn set(&mut self, key: &str, value: Option<&str>) {
        match value {
            Some(value) => self.annotations.insert(key.to_owned(), value.to_owned()),
            None => self.annotations.remove(key),
        };
    }

    fn ask(&mut self, text: Option<&str>) {
        self.set(self.keys.certificates.refresh, text);
    }

    fn seen(&self) -> CertificatesSeen<'_> {
        CertificatesSeen {
            keys: self.keys,
            compat: self.compat,
            annotations: &self.annotations,
            update: self.update.as_ref(),
            upgrade: self.upgrade.map(Upgrade::NodeUpdate),
            has_k8sd: true,
            has_node: self.has_node,
            is_deleting: self.is_deleting,
            is_served_by_others: self.is_served_by_others,
        }
    }

    /// Looks until nothing changes, and returns what is requested then.
    fn look(&mut self) -> Request {
        for _ in 0..5 {
            let decided = certificates(&self.seen());
            for event in decided.events {
                let Announcement { severity, reason, message } = event;
                self.events.push(format!("{severity:?} {reason}: {message}"));
            }
            if decided.changes.is_empty() {
                return decided.request;
            }
            for (key, value) in decided.changes {
                self.set(key, value.as_deref());
            }
        }
        panic!("the annotations do not settle: {:?}", self.annotations);
    }

    fn updates(&mut self, ordinal: u32, goal: Goal) {
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

    fn phase(&mut self, phase: Phase, state: PartState, refresh: Option<K8sdRefresh>) {
        let status = self.update.as_mut().unwrap().status.get_or_insert_default();
        status.phase = phase;
        status.parts =
            vec![PartStatus { updater: K8SD.into(), state, refresh, ..Default::default() }];
    }

    /// k8sd has issued certificates for an hour.
    fn succeeds(&mut self) {
        let certificates_expire_at = Some(at(1_767_229_200));
        let refresh = K8sdRefresh { certificates_expire_at, ..K8sdRefresh::default() };
        self.phase(Phase::Succeeded, PartState::Done, Some(refresh));
    }

    /// Request and status, without the prefix.
    fn shown(&self) -> Vec<String> {
        let own = |key: &str| {
            let (_, key) = key
                .split_once("/refresh-certificates")
                .filter(|(prefix, _)| ["v1beta2.k8sd.io", "refit.dev"].contains(prefix))?;
            (key.is_empty() || key == "-status").then(|| format!("refresh{key}"))
        };
        let all = self.annotations.iter();
        all.filter_map(|(key, value)| Some(format!("{}={value}", own(key)?))).collect()
    }
}

#[test]
fn a_machine_shows_how_far_its_refresh_is() {
    for keys in [CANONICAL, REFIT] {
        let mut world = World { keys, ..World::asked("1y") };
        world.ask(Some("1y"));
        world.annotations.retain(|key, _| key.starts_with(keys.certificates.refresh));
        assert_eq!(world.look(), Request::Ask(goal(YEAR)));
        world.updates(1, goal(YEAR));
        assert_eq!(world.look(), Request::None);
        assert_eq!(world.shown(), ["refresh=1y"], "k8sd has not been asked yet");
        world.phase(Phase::Disrupting, PartState::Running, Some(K8sdRefresh::default()));
        assert_eq!(world.look(), Request::None);
        assert_eq!(world.shown(), ["refresh=1y", "refresh-status=in-progress"]);
        world.succeeds();
        assert_eq!(world.look(), Request::None);
        assert_eq!(world.shown(), ["refresh-status=done"]);
        assert_eq!(world.annotations[CERTIFICATES_EXPIRY], "2026-01-01T01:00:00Z");
        assert_eq!(
            world.events,
            [
                "Normal CertificatesRefreshInProgress: Certificates refresh in progress. TTL: 1y",
                "Normal CertificatesRefreshDone: Certificates refreshed, will expire at 2026-01-01 01:00:00 \
                 +0000 UTC",
            ]
        );
        // A request that is made again is carried out again.
        world.ask(Some("1y"));
        assert_eq!(world.look(), Request::Ask(goal(YEAR)));
    }
}

#[test]
fn each_failed_attempt_is_announced_once() {
    let mut world = World::asked("90d");
    world.updates(1, goal(90 * 24 * 3600));
    for attempt in 1..=3 {
        world.phase(Phase::Disrupting, PartState::Pending, Some(failed_times(attempt)));
        assert_eq!(world.look(), Request::None);
        assert_eq!(world.shown(), ["refresh=90d", "refresh-status=failed"]);
        world.phase(Phase::Disrupting, PartState::Running, Some(failed_times(attempt)));
        world.look();
        assert_eq!(world.shown(), ["refresh=90d", "refresh-status=in-progress"]);
    }
    let failed = "Warning CertificatesRefreshFailed: Failed to refresh certificates: invalid token";
    assert_eq!(world.events.iter().filter(|event| *event == failed).count(), 3);
    assert_eq!(world.events.len(), 6);
}

#[test]
fn an_invalid_lifetime_is_announced_once_with_its_remedy() {
    let mut world = World::asked("soon");
    for _ in 0..3 {
        assert_eq!(world.look(), Request::None);
    }
    assert_eq!(world.shown(), ["refresh=soon", "refresh-status=failed"]);
    assert_eq!(
        world.events,
        ["Warning CertificatesRefreshFailed: Failed to refresh certificates: annotation \
          v1beta2.k8sd.io/refresh-certificates: invalid lifetime \"soon\": expected one such as 1y, 6mo, 90d or 720h"]
    );
    world.ask(Some("1y"));
    assert_eq!(world.look(), Request::Ask(goal(YEAR)));
    world.ask(None);
    world.look();
    assert_eq!(world.shown(), [""; 0]);
}

#[test]
fn an_invalid_lifetime_in_strict_mode_has_the_event_of_canonicals_controller() {
    let mut world = World { compat: Compat::Strict, ..World::asked("soon") };
    world.look();
    assert_eq!(world.shown(), ["refresh=soon", "refresh-status=failed"]);
    let event = "Normal CertificatesRefreshInProgress: Certificates refresh in progress. TTL: soon";
    assert_eq!(world.events, [event]);
}

#[test]
fn a_request_waits_for_a_node_and_for_an_upgrade() {
    let mut world = World { has_node: false, ..World::asked("1y") };
    assert_eq!(world.look(), Request::None);
    assert!(world.events.is_empty());
    (world.has_node, world.upgrade) = (true, Some("m-1"));
    assert_eq!(world.look(), Request::None);
    assert_eq!(world.look(), Request::None);
    let waits = "Normal CertificatesRefreshWaiting: The refresh of certificates waits until NodeUpdate m-1 has ended.";
    assert_eq!(world.events, [waits]);
    world.upgrade = None;
    assert_eq!(world.look(), Request::Ask(goal(YEAR)));
}

#[test]
fn a_removed_request_is_stopped_and_leaves_no_status() {
    let mut world = World::asked("1y");
    world.updates(1, goal(YEAR));
    world.phase(Phase::Disrupting, PartState::Pending, Some(failed_times(1)));
    world.look();
    world.ask(None);
    assert_eq!(world.look(), Request::Stop("m-1".into()));
    world.phase(Phase::Stopped, PartState::Pending, Some(failed_times(1)));
    assert_eq!(world.look(), Request::None);
    assert_eq!(world.shown(), [""; 0]);
    assert!(!world.annotations.contains_key(CANONICAL.certificates.noted));
}

#[test]
fn a_status_in_progress_without_a_request_is_removed_in_both_modes() {
    for compat in [Compat::Corrected, Compat::Strict] {
        let mut world = World::of(CANONICAL, compat);
        world.set(CANONICAL.certificates.status, Some("in-progress"));
        world.look();
        assert_eq!(world.shown(), [""; 0]);
        world.set(CANONICAL.certificates.status, Some("done"));
        world.look();
        assert_eq!(world.shown(), ["refresh-status=done"]);
    }
}

#[test]
fn a_refresh_of_another_controller_continues_unless_the_mode_is_strict() {
    let mut world = World::asked("1y");
    world.set(CANONICAL.certificates.status, Some("in-progress"));
    assert_eq!(world.look(), Request::Ask(goal(YEAR)));
    world.compat = Compat::Strict;
    assert_eq!(world.look(), Request::None);
}

#[test]
fn an_edited_request_is_not_lost() {
    let mut world = World::asked("2y");
    world.updates(1, goal(YEAR));
    assert_eq!(world.look(), Request::Stop("m-1".into()), "if that is still possible");
    world.succeeds();
    assert_eq!(world.look(), Request::Ask(goal(2 * YEAR)), "after the end is shown");
    assert_eq!(world.shown(), ["refresh=2y", "refresh-status=done"]);
}

#[test]
fn an_update_that_has_failed_for_good_is_retried_on_request() {
    let mut world = World::asked("1y");
    world.updates(1, goal(YEAR));
    world.phase(Phase::Failed, PartState::Running, Some(K8sdRefresh::default()));
    world.update.as_mut().unwrap().status.as_mut().unwrap().failure_message = "gone".into();
    assert_eq!(world.look(), Request::None);
    assert_eq!(world.look(), Request::None);
    let event = "Warning CertificatesRefreshFailed: Failed to refresh certificates: gone";
    assert_eq!(world.events, [event]);
    world.set(keys::RETRY, Some("m-1"));
    assert_eq!(world.look(), Request::Ask(goal(YEAR)));
}

#[test]
fn others_are_left_alone_with_one_event() {
    let mut world = World { is_served_by_others: true, ..World::asked("1y") };
    world.look();
    world.look();
    assert_eq!(world.events.len(), 1, "{:?}", world.events);
    assert!(world.events[0].contains("v1beta2.k8sd.io/refresh-certificates"));
    world.ask(None);
    world.look();
    assert_eq!(world.annotations.len(), 1);
}

#[test]
fn the_expiry_is_read_once_where_canonicals_controllers_are_replaced() {
    let mut world = World::of(CANONICAL, Compat::Corrected);
    assert!(world.seen().lacks_expiry());
    let seen = world.seen();
    for other in [
        CertificatesSeen { keys: REFIT, ..seen },
        CertificatesSeen { has_k8sd: false, ..seen },
        CertificatesSeen { has_node: false, ..seen },
        CertificatesSeen { is_deleting: true, ..seen },
        CertificatesSeen { is_served_by_others: true, ..seen },
    ] {
        assert!(!other.lacks_expiry(), "{other:?}");
    }
    world.set(CERTIFICATES_EXPIRY, Some("2026-01-01T00:00:00Z"));
    assert!(!world.seen().lacks_expiry());
}

/// What happens to a Machine between two looks.
#[derive(Clone, Debug)]
enum Happens {
    Asks(Option<&'static str>),
    Fails,
    Runs,
    Succeeds,
    Ends(Phase),
    Upgrade(Option<&'static str>),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        prop::sample::select(vec![None, Some("1y"), Some("90d"), Some("soon")])
            .prop_map(Happens::Asks),
        Just(Happens::Fails),
        Just(Happens::Runs),
        Just(Happens::Succeeds),
        prop::sample::select(vec![Phase::Failed, Phase::Stopped]).prop_map(Happens::Ends),
        prop::sample::select(vec![None, Some("m-99")]).prop_map(Happens::Upgrade),
    ]
}

impl World {
    fn happens(&mut self, what: &Happens) {
        let is_unfinished = self.update.as_ref().is_some_and(|update| !update.phase().is_final());
        match what {
            Happens::Asks(text) => self.ask(*text),
            // One update of a Machine at a time.
            Happens::Upgrade(upgrade) if !is_unfinished => self.upgrade = *upgrade,
            Happens::Fails if is_unfinished => {
                self.phase(Phase::Disrupting, PartState::Pending, Some(failed_times(1)));
            }
            Happens::Runs if is_unfinished => {
                self.phase(Phase::Disrupting, PartState::Running, Some(K8sdRefresh::default()));
            }
            Happens::Succeeds if is_unfinished => self.succeeds(),
            Happens::Ends(phase) if is_unfinished => self.phase(*phase, PartState::Pending, None),
            Happens::Upgrade(_)
            | Happens::Fails
            | Happens::Runs
            | Happens::Succeeds
            | Happens::Ends(_) => {}
        }
    }
}

proptest! {
    #[test]
    fn one_update_at_a_time_and_no_status_without_a_request_but_done(
        is_strict in any::<bool>(),
        all in prop::collection::vec(happens(), 1..40),
    ) {
        let compat = if is_strict { Compat::Strict } else { Compat::Corrected };
        let mut world = World::of(CANONICAL, compat);
        let mut ordinal = 0;
        for what in &all {
            world.happens(what);
            let is_unfinished = |world: &World| {
                world.update.as_ref().is_some_and(|update| !update.phase().is_final())
            };
            match world.look() {
                Request::Ask(goal) => {
                    prop_assert!(!is_unfinished(&world) && world.upgrade.is_none());
                    ordinal += 1;
                    world.updates(ordinal, goal);
                }
                Request::Stop(name) => {
                    prop_assert!(is_unfinished(&world));
                    prop_assert_eq!(Some(name), world.update.as_ref().unwrap().metadata.name.clone());
                }
                Request::None => {}
            }
            prop_assert_eq!(&world.annotations["example.com/other"], "kept");
        }
        world.upgrade = None;
        world.happens(&Happens::Asks(None));
        world.happens(&Happens::Ends(Phase::Stopped));
        prop_assert_eq!(world.look(), Request::None);
        let status = world.annotations.get(CANONICAL.certificates.status).map(String::as_str);
        prop_assert!(matches!(status, None | Some("done")) || is_strict, "{:?}", status);
        prop_assert_ne!(status, Some("in-progress"));
        prop_assert!(!world.annotations.contains_key(CANONICAL.certificates.noted));
    }
}
