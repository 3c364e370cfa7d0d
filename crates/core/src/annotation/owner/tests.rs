use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_kinds::{
    canonical::{CANONICAL, REFIT},
    refit::{TaskFailure, UpgradeTaskSpec, UpgradeTaskStatus, Via},
};

use super::*;

const CHANNEL: &str = "channel=1.34-classic/stable";

#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
struct World {
    annotations: BTreeMap<String, String>,
    task: Option<UpgradeTask>,
    /// Annotations and version of each Machine.
    machines: Vec<(BTreeMap<String, String>, KubernetesVersion)>,
    has_k8sd: bool,
    is_machine: bool,
    version: Option<KubernetesVersion>,
    are_workers: bool,
    control_plane: Option<KubernetesVersion>,
    version_by: Option<&'static str>,
    of_topology: bool,
    keys: Keys,
    is_served_by_others: bool,
    events: Vec<String>,
}

impl World {
    fn of<const N: usize>(annotations: [(&str, &str); N]) -> Self {
        let owned = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self {
            annotations: BTreeMap::from(owned),
            task: None,
            machines: vec![(BTreeMap::new(), KubernetesVersion::new(1, 33, 0)); 2],
            has_k8sd: true,
            is_machine: false,
            version: None,
            are_workers: false,
            control_plane: None,
            version_by: None,
            of_topology: false,
            keys: CANONICAL,
            is_served_by_others: false,
            events: Vec::new(),
        }
    }

    /// Looks until nothing changes, and returns what is requested then.
    fn look(&mut self) -> OwnerRequest {
        for _ in 0..10 {
            let machines = self.machines.iter().map(|(annotations, version)| OwnedMachine {
                name: if *version < KubernetesVersion::new(1, 35, 0) { "old" } else { "new" },
                created: Some(jiff::Timestamp::from_second(10).unwrap()),
                deleting: false,
                annotations,
                version: Some(version),
                has_k8sd: self.has_k8sd,
            });
            let decided = owner(&OwnerSeen {
                keys: self.keys,
                compat: Compat::Corrected,
                annotations: &self.annotations,
                task: self.task.as_ref(),
                machines: machines.collect(),
                is_machine: self.is_machine,
                version: self.version.as_ref(),
                role: if self.are_workers {
                    OwnerRole::Workers(self.control_plane.as_ref())
                } else {
                    OwnerRole::ControlPlane
                },
                version_by: self.version_by.map(str::to_owned),
                of_topology: self.of_topology,
                is_served_by_others: self.is_served_by_others,
            });
            self.events.extend(decided.events.into_iter().map(|event| event.message));
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
        panic!("the annotations change without end: {:?}", self.annotations);
    }

    fn runs(&mut self, option: &str, phase: TaskPhase) -> &mut UpgradeTaskStatus {
        let spec = UpgradeTaskSpec {
            version: self.version.clone(),
            option: option.parse().ok(),
            ..UpgradeTaskSpec::of("", Via::Machines)
        };
        let mut task = UpgradeTask::new("t-1", spec);
        let requested = (keys::REQUESTED.to_owned(), option.to_owned());
        task.metadata.annotations = Some(BTreeMap::from([requested]));
        let started_at = (phase != TaskPhase::Pending).then_some(Time(jiff::Timestamp::UNIX_EPOCH));
        task.status = Some(UpgradeTaskStatus { phase, started_at, ..UpgradeTaskStatus::default() });
        self.task.insert(task).status.as_mut().unwrap()
    }

    fn shown(&self) -> Vec<(&str, &str)> {
        let prefix = "v1beta2.k8sd.io/in-place-upgrade-";
        let own = self.annotations.iter();
        own.filter_map(|(key, value)| Some((key.strip_prefix(prefix)?, value.as_str()))).collect()
    }
}

fn asks(option: &str, machines: Option<Vec<String>>) -> OwnerRequest {
    OwnerRequest::Ask { wanted: Wanted::parse(REFIT, option).unwrap(), machines }
}

#[test]
fn a_request_makes_a_task_and_its_end_is_shown() {
    let mut world = World::of([(CANONICAL.upgrade_to, CHANNEL), (CANONICAL.release, "revision=1")]);
    assert_eq!(world.look(), asks(CHANNEL, None));
    world.runs(CHANNEL, TaskPhase::Pending);
    assert_eq!(world.look(), OwnerRequest::None);
    assert_eq!(world.shown(), [("release", "revision=1"), ("to", CHANNEL)], "nothing has begun");
    world.runs(CHANNEL, TaskPhase::Ongoing);
    world.look();
    assert_eq!(world.shown(), [("status", "in-progress"), ("to", CHANNEL)]);
    world.runs(CHANNEL, TaskPhase::Complete);
    let created = jiff::Timestamp::from_second(11).unwrap();
    world.task.as_mut().unwrap().metadata.creation_timestamp = Some(Time(created));
    world.look();
    assert_eq!(world.shown(), [("release", CHANNEL), ("status", "done")]);
    assert_eq!(world.events, ["In-place upgrade is done"]);
    assert_eq!(world.look(), OwnerRequest::None, "Machines that were left out are not new");
}

#[test]
fn the_same_request_again_makes_another_task() {
    let mut world = World::of([(CANONICAL.upgrade_to, CHANNEL), (CANONICAL.shown, "t-1")]);
    world.runs(CHANNEL, TaskPhase::Complete);
    assert_eq!(world.look(), asks(CHANNEL, None));
}

#[test]
fn a_failure_is_announced_once_for_each_attempt() {
    let mut world = World::of([(CANONICAL.upgrade_to, CHANNEL)]);
    for (at, announced) in [(1, 1), (1, 1), (2, 2)] {
        let status = world.runs(CHANNEL, TaskPhase::Ongoing);
        status.failures.push(TaskFailure {
            machine: "m-0".into(),
            node_update: String::new(),
            reason: String::new(),
            message: String::new(),
            at: Some(Time(jiff::Timestamp::from_second(at).unwrap())),
        });
        world.look();
        assert_eq!(world.events.len(), announced);
        assert_eq!(world.shown(), [("status", "failed"), ("to", CHANNEL)]);
    }
    world.runs(CHANNEL, TaskPhase::Ongoing);
    world.look();
    assert_eq!(world.shown(), [("status", "in-progress"), ("to", CHANNEL)]);
}

#[test]
fn an_edited_or_removed_request_stops_the_task() {
    for to in [Some("revision=2"), None] {
        let mut world = World::of([]);
        world.annotations.extend(to.map(|to| (CANONICAL.upgrade_to.to_owned(), to.to_owned())));
        world.runs(CHANNEL, TaskPhase::Ongoing);
        assert_eq!(world.look(), OwnerRequest::Stop);
        world.task.as_mut().unwrap().spec.stage = Stage::Abort;
        assert_eq!(world.look(), OwnerRequest::None);
        world.task.as_mut().unwrap().status.as_mut().unwrap().phase = TaskPhase::Aborted;
        let next = to.map_or(OwnerRequest::None, |to| asks(to, None));
        assert_eq!(world.look(), next);
    }
}

#[test]
fn a_task_that_a_person_stops_is_not_made_again_until_the_request_is_set_again() {
    let mut world = World::of([(CANONICAL.upgrade_to, CHANNEL)]);
    world.runs(CHANNEL, TaskPhase::Aborted);
    world.task.as_mut().unwrap().spec.stage = Stage::Abort;
    assert_eq!(world.look(), OwnerRequest::None);
    assert!(world.events[0].contains("UpgradeTask t-1 was stopped"), "{:?}", world.events);
    assert_eq!(world.look(), OwnerRequest::None);
    world.annotations.remove(CANONICAL.upgrade_to);
    world.look();
    world.annotations.insert(CANONICAL.upgrade_to.into(), CHANNEL.into());
    assert_eq!(world.look(), asks(CHANNEL, None));
}

#[test]
fn a_text_that_is_no_option_is_refused_once() {
    let mut world = World::of([(CANONICAL.upgrade_to, "channel")]);
    assert_eq!((world.look(), world.look()), (OwnerRequest::None, OwnerRequest::None));
    assert_eq!(world.events.len(), 1);
    assert_eq!(world.shown(), [("status", "failed"), ("to", "channel")]);
    world.has_k8sd = false;
    world.annotations.insert(CANONICAL.upgrade_to.into(), CHANNEL.into());
    world.look();
    assert!(world.events[1].contains("no k8sd runs on Machine old"), "{:?}", world.events);
}

#[test]
fn a_machine_without_the_release_is_brought_to_it_unless_it_is_newer() {
    let mut world = World::of([(CANONICAL.release, CHANNEL), (CANONICAL.status, "done")]);
    world.machines[0].0.insert(CANONICAL.release.into(), CHANNEL.into());
    world.machines[1].1 = KubernetesVersion::new(1, 35, 0);
    assert_eq!(world.look(), OwnerRequest::None);
    assert_eq!(world.shown(), [("release", CHANNEL), ("status", "done")]);
    world.machines.push((BTreeMap::new(), KubernetesVersion::new(1, 34, 0)));
    assert_eq!(world.look(), asks(CHANNEL, Some(vec!["old".into(), "old".into()])));
    assert_eq!(world.shown(), [("status", "in-progress"), ("to", CHANNEL)]);
}

#[test]
fn a_revision_is_not_installed_on_machines_that_are_newer_than_those_that_have_it() {
    let mut world = World::of([(CANONICAL.release, "revision=7")]);
    world.machines[0].0.insert(CANONICAL.release.into(), "revision=7".into());
    world.machines[1].1 = KubernetesVersion::new(1, 35, 0);
    assert_eq!(world.look(), OwnerRequest::None);
    assert_eq!(world.shown(), [("release", "revision=7")]);
    world.machines[1].1 = KubernetesVersion::new(1, 33, 4);
    assert_eq!(world.look(), asks("revision=7", None));
}

#[test]
fn an_older_channel_than_that_of_all_machines_is_refused() {
    let mut world = World::of([(CANONICAL.upgrade_to, "channel=1.32-classic/stable")]);
    assert_eq!(world.look(), OwnerRequest::None);
    assert!(world.events[0].contains("installed with a newer version"), "{:?}", world.events);
}

#[test]
fn machines_that_others_serve_are_left_to_them() {
    let mut world = World::of([(CANONICAL.upgrade_to, CHANNEL)]);
    world.is_served_by_others = true;
    assert_eq!((world.look(), world.look()), (OwnerRequest::None, OwnerRequest::None));
    assert_eq!((world.events.len(), world.shown()), (1, vec![("to", CHANNEL)]));
    world.runs(CHANNEL, TaskPhase::Ongoing);
    assert_eq!(world.look(), OwnerRequest::Stop, "two orchestrators are one too many");
    world.task = None;
    world.annotations.remove(CANONICAL.upgrade_to);
    world.annotations.insert(CANONICAL.status.into(), "done".into());
    world.look();
    assert_eq!(world.shown(), [("status", "done")], "what others have written stays");
}

const VERSION: &str = "version=v1.35.0";

fn versioned() -> World {
    let mut world = World::of([(REFIT.upgrade_to, VERSION)]);
    (world.keys, world.has_k8sd, world.version) =
        (REFIT, false, Some(KubernetesVersion::new(1, 34, 0)));
    world
}

#[test]
fn a_version_makes_a_task_and_becomes_the_release() {
    let mut world = versioned();
    assert_eq!(world.look(), asks(VERSION, None));
    world.runs(VERSION, TaskPhase::Complete);
    assert_eq!(world.look(), OwnerRequest::None);
    assert_eq!(world.annotations[REFIT.release], VERSION);
    assert_eq!(world.look(), OwnerRequest::None, "what the owner's spec requests is not repeated");
}

#[test]
fn a_version_is_refused_where_it_would_be_behind_the_back_of_the_owner() {
    type Case = (&'static str, fn(&mut World));
    let cases: [Case; 3] = [
        ("its owner requests v1.34.0", |world| world.is_machine = true),
        ("a topology of its Cluster requests v1.34.0", |world| world.of_topology = true),
        ("k8sd runs on Machine old", |world| world.has_k8sd = true),
    ];
    for (why, change) in cases {
        let mut world = versioned();
        change(&mut world);
        assert_eq!(world.look(), OwnerRequest::None);
        assert!(world.events[0].contains(why), "{:?}", world.events);
        assert_eq!(world.annotations[REFIT.status], "failed");
    }
    for is_machine in [true, false] {
        let mut world = versioned();
        (world.is_machine, world.of_topology) = (is_machine, !is_machine);
        world.version = Some(KubernetesVersion::new(1, 35, 0));
        assert_eq!(world.look(), asks(VERSION, None), "the owner's own version");
    }
}

#[test]
fn a_task_that_waits_for_a_person_is_shown_as_failed() {
    let mut world = versioned();
    let status = world.runs(VERSION, TaskPhase::Failed);
    let what = (READY, "False", "OwnerEdited", "the spec was edited");
    conditions::set(&mut status.conditions, jiff::Timestamp::UNIX_EPOCH, None, what);
    assert_eq!((world.look(), world.look()), (OwnerRequest::None, OwnerRequest::None));
    assert_eq!(world.events.len(), 1);
    assert!(world.events[0].contains("the spec was edited"), "{:?}", world.events);
}

#[test]
fn a_version_that_refit_upgrade_would_not_set_is_refused() {
    let version = |text: &str| Some(text.parse::<KubernetesVersion>().unwrap());
    let cases = [
        ("version=v1.33.9", false, None, "not an upgrade of v1.34.0"),
        ("version=v2.0.0", false, None, "not an upgrade of v1.34.0"),
        ("version=v1.36.0", false, None, "one minor version at a time"),
        ("version=v1.36.0", true, version("v1.35.0"), "v1.35.0"),
        ("version=v1.35.0", true, None, "is not known"),
    ];
    for (text, are_workers, control_plane, why) in cases {
        let mut world = World { are_workers, control_plane, ..versioned() };
        world.annotations.insert(REFIT.upgrade_to.into(), text.into());
        assert_eq!(world.look(), OwnerRequest::None);
        assert!(world.events[0].contains(why), "{:?}", world.events);
    }
    let control_plane = version("v1.34.0");
    let mut workers = World { are_workers: true, control_plane, ..versioned() };
    assert_eq!(workers.look(), OwnerRequest::None, "the control plane comes first");
    workers.control_plane = version("v1.35.0");
    assert_eq!(workers.look(), asks(VERSION, None));
}

const BUNDLE: &str = "bundle=https://mirror.example/v1.35.0/";

fn refused(world: &mut World, request: &str) -> String {
    world.annotations.insert(REFIT.upgrade_to.into(), request.into());
    assert_eq!((world.look(), world.look()), (OwnerRequest::None, OwnerRequest::None));
    assert_eq!(world.events.len(), 1, "{:?}", world.events);
    world.events.remove(0)
}

#[test]
fn a_bundle_goes_with_a_version_or_with_what_the_owner_requests_already() {
    let mut world = versioned();
    let both = format!("{VERSION},{BUNDLE}");
    world.annotations.insert(REFIT.upgrade_to.into(), both.clone());
    assert_eq!(world.look(), asks(&both, None));
    let mut outdated = World { is_machine: true, ..versioned() };
    outdated.annotations.insert(REFIT.upgrade_to.into(), BUNDLE.into());
    assert_eq!(outdated.look(), asks(BUNDLE, None));
    outdated.runs(BUNDLE, TaskPhase::Complete);
    assert_eq!(outdated.look(), OwnerRequest::None);
    assert_eq!(outdated.annotations[REFIT.release], BUNDLE);
    let mut raised = versioned();
    raised.annotations.insert(REFIT.upgrade_to.into(), BUNDLE.into());
    raised.runs(BUNDLE, TaskPhase::Ongoing);
    raised.version = Some(KubernetesVersion::new(1, 35, 0));
    assert_eq!(raised.look(), OwnerRequest::Stop, "the task is for the version before");
    raised.runs(BUNDLE, TaskPhase::Aborted);
    assert_eq!(raised.look(), asks(BUNDLE, None));
}

#[test]
fn a_bundle_is_for_machines_that_cluster_api_has_begun_with_and_for_those_to_come() {
    let mut world = versioned();
    world.annotations.insert(REFIT.upgrade_to.into(), BUNDLE.into());
    let begun = BTreeMap::from([(keys::UPDATE_IN_PROGRESS.to_owned(), String::new())]);
    world.machines = vec![(begun, KubernetesVersion::new(1, 34, 0))];
    assert_eq!(world.look(), asks(BUNDLE, None));
    world.machines.clear();
    assert_eq!(world.look(), asks(BUNDLE, None));
}

#[test]
fn a_bundle_is_refused_where_it_would_not_be_used() {
    let at = |minor| vec![(BTreeMap::new(), KubernetesVersion::new(1, minor, 0)); 2];
    let reached = World { machines: at(34), ..versioned() };
    let by_updater = World { version_by: Some("appliance"), ..versioned() };
    let cases = [
        (reached, BUNDLE, "version=VERSION,bundle=LOCATION"),
        (by_updater, BUNDLE, "Updater appliance installs from no bundle"),
        (World { has_k8sd: true, ..versioned() }, BUNDLE, "neither a version nor a bundle"),
        (versioned(), "bundle=mirror.example/v1.35.0", "expected an absolute path"),
        (versioned(), "version=v1.35.0,bundle=", "expected an absolute path"),
    ];
    for (mut world, request, why) in cases {
        let event = refused(&mut world, request);
        assert!(event.contains(why), "{event}");
    }
    let mut theirs = World::of([(CANONICAL.upgrade_to, BUNDLE)]);
    assert_eq!(theirs.look(), OwnerRequest::None);
    assert!(theirs.events[0].contains("unknown upgrade option \"bundle\""), "{:?}", theirs.events);
}

#[test]
fn a_task_that_a_person_deletes_is_not_made_again_and_one_of_an_edited_request_is() {
    let mut world = World::of([(CANONICAL.upgrade_to, CHANNEL)]);
    world.runs(CHANNEL, TaskPhase::Aborted);
    let deleted = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    world.task.as_mut().unwrap().metadata.deletion_timestamp = deleted;
    assert_eq!(world.look(), OwnerRequest::None);
    world.task = None;
    assert_eq!(world.look(), OwnerRequest::None);
    let mut edited = World::of([(CANONICAL.upgrade_to, CHANNEL)]);
    edited.runs(CHANNEL, TaskPhase::Aborted);
    let task = edited.task.as_mut().unwrap();
    task.spec.stage = Stage::Abort;
    task.metadata.annotations.as_mut().unwrap().insert(keys::GOAL_CHANGED.into(), String::new());
    assert_eq!(edited.look(), asks(CHANNEL, None), "the first option again, after another one");
}

#[test]
fn a_refused_request_of_a_machine_makes_no_task_later() {
    let mut world = versioned();
    world.is_machine = true;
    assert_eq!(world.look(), OwnerRequest::None);
    world.version = Some(KubernetesVersion::new(1, 35, 0));
    assert_eq!(world.look(), OwnerRequest::None);
    world.annotations.remove(REFIT.upgrade_to);
    world.look();
    world.annotations.insert(REFIT.upgrade_to.into(), VERSION.into());
    assert_eq!(world.look(), asks(VERSION, None));
}
