use proptest::prelude::*;
use refit_kinds::refit::MatchType;

use super::*;

fn at(minute: i64) -> Timestamp {
    Timestamp::from_second(minute * 60).unwrap()
}

fn silence(name: &str, during: SilencedPart) -> UpgradeSilence {
    let cluster = AlertMatcher {
        name: "cluster".into(),
        value: "$(namespace)-$(cluster)".into(),
        match_type: MatchType::Equal,
    };
    UpgradeSilence { name: name.into(), during, matchers: vec![cluster], minutes_per_machine: 10 }
}

/// An upgrade with a silence for each part.
struct Upgrade {
    wanted: Vec<UpgradeSilence>,
    created: Vec<SilenceRecord>,
    control_plane: PartState,
    workers: PartState,
}

impl Upgrade {
    fn new() -> Self {
        Self {
            wanted: vec![
                silence("plane", SilencedPart::ControlPlane),
                silence("workers", SilencedPart::Workers),
            ],
            created: Vec::new(),
            control_plane: PartState::Begins { left: 3 },
            workers: PartState::Ahead,
        }
    }

    fn seen<T>(&self, minute: i64, with: impl FnOnce(SilencesSeen<'_>) -> T) -> T {
        with(SilencesSeen {
            wanted: &self.wanted,
            created: &self.created,
            control_plane: self.control_plane,
            workers: self.workers,
            cluster: GatedCluster { namespace: "site", name: "edge-1" },
            version: &"v1.36.1".parse().unwrap(),
            uid: "uid",
            now: at(minute),
        })
    }

    fn due(&self, minute: i64) -> Vec<SilenceWrite> {
        self.seen(minute, |seen| seen.due())
    }

    /// Makes what is due, as a server does.
    fn write(&mut self, minute: i64) -> Vec<SilenceWrite> {
        let due = self.due(minute);
        let tried: Vec<SilenceTried> = due
            .iter()
            .map(|write| match write {
                SilenceWrite::Set(wish) => {
                    (write.clone(), SilenceOutcome::Set(format!("id-{}", wish.name)))
                }
                SilenceWrite::Remove { .. } => (write.clone(), SilenceOutcome::Removed),
            })
            .collect();
        note(&mut self.created, &tried);
        due
    }

    fn shown(&self, minute: i64) -> (bool, &'static str, String) {
        self.seen(minute, |seen| seen.condition(&[])).unwrap()
    }
}

fn note(created: &mut Vec<SilenceRecord>, tried: &[SilenceTried]) {
    note_set(created, tried);
    note_removed(created, tried);
}

fn set(writes: &[SilenceWrite]) -> Vec<(&str, i32, Timestamp)> {
    let wishes = writes.iter().map(|write| match write {
        SilenceWrite::Set(wish) => (&*wish.name, wish.updates_left, wish.ends_at),
        SilenceWrite::Remove { .. } => panic!("{write:?}"),
    });
    wishes.collect()
}

#[test]
fn the_silences_of_a_part_exist_before_it_begins_and_end_with_it() {
    let mut upgrade = Upgrade::new();
    let writes = upgrade.write(0);
    assert_eq!(set(&writes), [("plane", 3, at(20))]);
    let SilenceWrite::Set(wish) = &writes[0] else { panic!("{writes:?}") };
    assert_eq!(wish.matchers[0].value, "site-edge-1");
    assert!(wish.comment.contains("the control plane of Cluster site/edge-1 to v1.36.1"));
    upgrade.control_plane = PartState::Works { left: 3 };
    assert_eq!(upgrade.write(5), []);
    // It is set again when one of its machines is done.
    upgrade.control_plane = PartState::Works { left: 2 };
    assert_eq!(set(&upgrade.write(10)), [("plane", 2, at(30))]);
    (upgrade.control_plane, upgrade.workers) = (PartState::Done, PartState::Works { left: 9 });
    let writes = upgrade.write(20);
    assert_eq!(writes[0], SilenceWrite::Remove { name: "plane".into(), id: "id-plane".into() });
    assert_eq!(set(&writes[1..]), [("workers", 9, at(40))]);
    upgrade.workers = PartState::Done;
    assert_eq!(upgrade.write(30).len(), 1);
    assert_eq!(upgrade.write(31), []);
    assert_eq!(upgrade.shown(31).1, "NothingSilenced");
}

#[test]
fn a_machine_that_hangs_is_not_silenced_for_ever() {
    let mut upgrade = Upgrade::new();
    upgrade.write(0);
    upgrade.control_plane = PartState::Works { left: 3 };
    assert_eq!(upgrade.shown(19).1, "Silenced");
    assert_eq!(upgrade.seen(19, |seen| seen.next_end()), Some(at(20)));
    assert_eq!(upgrade.write(21), []);
    let shown = upgrade.shown(21);
    assert_eq!((shown.0, shown.1), (false, "SilenceExpired"));
    // The next one that is done shows that it goes on.
    upgrade.control_plane = PartState::Works { left: 2 };
    assert_eq!(set(&upgrade.write(50)), [("plane", 2, at(70))]);
}

#[test]
fn an_upgrade_that_begins_late_has_silences_that_are_in_force() {
    let mut upgrade = Upgrade::new();
    upgrade.write(0);
    assert_eq!(upgrade.write(19), []);
    assert_eq!(set(&upgrade.write(20)), [("plane", 3, at(40))]);
    // It is put off.
    upgrade.control_plane = PartState::Done;
    assert_eq!(upgrade.write(39).len(), 1);
    upgrade.control_plane = PartState::Begins { left: 3 };
    assert_eq!(set(&upgrade.write(100)), [("plane", 3, at(120))]);
}

#[test]
fn a_silence_that_another_client_has_removed_is_not_created_again() {
    let mut upgrade = Upgrade::new();
    let due = upgrade.due(0);
    let tried = [(due[0].clone(), SilenceOutcome::Ended("id-plane".into()))];
    note(&mut upgrade.created, &tried);
    assert_eq!(upgrade.due(1), []);
    upgrade.control_plane = PartState::Works { left: 1 };
    assert_eq!(upgrade.due(2), []);
    assert_eq!(upgrade.shown(2).1, "SilenceEnded");
}

#[test]
fn a_write_that_fails_is_due_again_and_shown() {
    let upgrade = Upgrade::new();
    let due = upgrade.due(0);
    let tried = [(due[0].clone(), SilenceOutcome::Failed("no answer".into()))];
    let mut created = upgrade.created.clone();
    note(&mut created, &tried);
    assert_eq!(created, []);
    let shown = upgrade.seen(0, |seen| seen.condition(&tried)).unwrap();
    assert_eq!(shown, (false, "SilenceFailed", "silence plane: no answer".into()));
    assert_eq!(upgrade.due(1).len(), 1);
}

#[test]
fn a_silence_that_is_not_wanted_any_more_is_removed() {
    let mut upgrade = Upgrade::new();
    upgrade.write(0);
    upgrade.wanted.clear();
    assert!(matches!(&upgrade.write(1)[..], [SilenceWrite::Remove { .. }]));
    assert_eq!(upgrade.due(2), []);
    forget(&mut upgrade.created, &upgrade.wanted, at(2));
    assert_eq!(upgrade.created, []);
}

fn state() -> impl Strategy<Value = PartState> {
    prop_oneof![
        Just(PartState::Ahead),
        (0..4).prop_map(|left| PartState::Begins { left }),
        (0..4).prop_map(|left| PartState::Works { left }),
        Just(PartState::Done),
    ]
}

proptest! {
    #[test]
    fn silences_settle_and_hide_alerts_only_while_their_part_is_worked_on(
        looks in proptest::collection::vec((state(), state(), 0_i64..60), 1..30)
    ) {
        let (mut upgrade, mut minute) = (Upgrade::new(), 0);
        for (control_plane, workers, passed) in looks {
            minute += passed;
            (upgrade.control_plane, upgrade.workers) = (control_plane, workers);
            upgrade.write(minute);
            prop_assert_eq!(upgrade.due(minute), [], "what was written is not due again");
            for created in &upgrade.created {
                let part = if created.name == "plane" { control_plane } else { workers };
                let hides = is_in_force(created, at(minute));
                prop_assert!(part != PartState::Done || !hides);
                let begins = matches!(part, PartState::Begins { .. });
                prop_assert!(!begins || hides);
                let longest = at(minute + 20);
                prop_assert!(created.ends_at.0 <= longest);
            }
        }
    }
}
