//! The annotations of an owner of Machines: they ask for an UpgradeTask, and show how far it is.
//!
//! | `upgrade-to` | task for it | what follows |
//! |---|---|---|
//! | absent, no release | unfinished | it is stopped |
//! | absent, a release | | a Machine without the release is new: the request is set again |
//! | not an option | | status `failed` |
//! | an option | none, or its end is shown | a task is requested |
//! | an option | for another option | it is stopped |
//! | an option | has begun | status `in-progress`, or `failed` while a Machine has failed |
//! | an option | complete | status `done`, the release, and no request any more |

use std::collections::BTreeMap;

use jiff::Timestamp;
use refit_kinds::{
    canonical::{Keys, UpgradeStatus, Wanted},
    conditions, keys,
    refit::{GoalOption, Stage, TaskPhase, UpgradeTask, UpgradeTaskStatus, Via},
    version::{Hop, KubernetesVersion},
};

use super::{
    Compat,
    notes::{
        DONE, IN_PROGRESS, LEFT, cancelled, changed, failed, failed_with, left_note,
        left_to_others, normal, refused_note, stopped_note,
    },
};
use crate::{node::Announcement, task::status::READY};

/// Prefix of [`Keys::noted`] for a failure of a Machine that is announced.
const FAILURE: &str = "failure: ";

/// Seconds after which Canonical's controllers repeat that an owner is done: they look at everything again.
const DONE_AGAIN: u64 = 600;
/// The same while a Machine has failed. They do so every 5 seconds, and the library that writes their events merges those.
const FAILED_AGAIN: u64 = 60;

/// A Machine of an owner.
#[derive(Clone, Copy, Debug)]
pub struct OwnedMachine<'a> {
    /// Its name.
    pub name: &'a str,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// It is being deleted.
    pub deleting: bool,
    /// All its annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// The version in its spec, which is that of its first installation.
    pub version: Option<&'a KubernetesVersion>,
    /// k8sd runs on it.
    pub has_k8sd: bool,
}

/// What the Machines of an owner are.
#[derive(Clone, Copy, Debug)]
pub enum OwnerRole<'a> {
    /// The control plane of a Cluster.
    ControlPlane,
    /// Workers, next to a control plane whose spec requests this version, if it is known.
    Workers(Option<&'a KubernetesVersion>),
}

/// What is known of an owner and of the annotations of one prefix.
#[derive(Clone, Debug)]
pub struct OwnerSeen<'a> {
    /// The prefix.
    pub keys: Keys,
    /// How closely Canonical's controllers are followed.
    pub compat: Compat,
    /// All annotations of the owner.
    pub annotations: &'a BTreeMap<String, String>,
    /// The newest task that annotations of this prefix have requested for the owner.
    pub task: Option<&'a UpgradeTask>,
    /// Its Machines; of a Machine, it alone.
    pub machines: Vec<OwnedMachine<'a>>,
    /// It is a Machine: of the owner, its own version is asked for at most.
    pub is_machine: bool,
    /// The version in the owner's spec.
    pub version: Option<&'a KubernetesVersion>,
    /// What its Machines are.
    pub role: OwnerRole<'a>,
    /// The Updater that brings its Machines to a version in place of their hosts.
    pub version_by: Option<String>,
    /// A topology of the Cluster writes the owner's spec.
    pub of_topology: bool,
    /// Another controller serves this prefix.
    pub is_served_by_others: bool,
}

/// What is to be requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OwnerRequest {
    /// Nothing.
    #[default]
    None,
    /// A task.
    Ask {
        /// What it brings its Machines to.
        wanted: Wanted,
        /// On which Machines; `None` for all.
        machines: Option<Vec<String>>,
    },
    /// The stop of the task.
    Stop,
}

/// What follows from an owner's annotations: events, then the change of annotations, then a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnerAnnounced {
    /// Annotations to set (`Some`) or to remove (`None`).
    pub changes: BTreeMap<&'static str, Option<String>>,
    /// The events that announce the change.
    pub events: Vec<Announcement>,
    /// What is to be requested.
    pub request: OwnerRequest,
    /// An event that every look repeats, and the next look in seconds: only as Canonical's controllers do it.
    pub repeated: Option<(Announcement, u64)>,
}

/// Decides what follows from the annotations of one prefix.
pub fn owner(seen: &OwnerSeen<'_>) -> OwnerAnnounced {
    let keys = seen.keys;
    let Some(text) = seen.get(keys.upgrade_to) else {
        return match seen.get(keys.release) {
            Some(release) if seen.unfinished().is_none() => seen.at_rest(release),
            Some(_) | None => seen.without_request(),
        };
    };
    if seen.is_served_by_others {
        return seen.left_to_others(text);
    }
    let wanted = match Wanted::parse(keys, text) {
        Ok(wanted) => wanted,
        Err(bad) => return seen.refused(text, &bad.to_string()),
    };
    if let Some(why) = seen.refusal(&wanted) {
        return seen.refused(text, &why);
    }
    if seen.was_given_up(text) {
        return OwnerAnnounced::default();
    }
    let Some(task) = seen.task.filter(|task| !seen.has_shown(task)) else {
        return seen.ask(wanted);
    };
    let is_for_version = match &wanted {
        // It is for what the owner requested then.
        Wanted::Bundle { version: None, .. } => task.spec.version.as_ref() == seen.version,
        Wanted::Bundle { version: Some(_), .. } | Wanted::Version(_) | Wanted::Option(_) => true,
    };
    let is_for_it = is_for_version && requested(task) == Some(&wanted.to_string());
    match task.phase() {
        TaskPhase::Complete if is_for_it => seen.done(task),
        TaskPhase::Aborted if is_for_it && is_stopped_by_a_person(task) => seen.ended(task, text),
        TaskPhase::Complete | TaskPhase::Aborted => seen.ask(wanted),
        TaskPhase::Pending | TaskPhase::Ongoing | TaskPhase::Failed if is_for_it => {
            seen.under_way(task)
        }
        TaskPhase::Pending | TaskPhase::Ongoing | TaskPhase::Failed => stop(task),
    }
}

impl<'a> OwnerSeen<'a> {
    fn is_strict(&self) -> bool {
        self.compat.is_strict(self.keys)
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.annotations.get(key).map(String::as_str)
    }

    fn unfinished(&self) -> Option<&'a UpgradeTask> {
        self.task.filter(|task| !task.phase().has_ended())
    }

    /// Whether the end of this task is shown.
    fn has_shown(&self, task: &UpgradeTask) -> bool {
        task.metadata.name.as_deref() == self.get(self.keys.shown)
    }

    /// Whether a person has stopped this request, or it was refused to a Machine: it must be made again.
    fn was_given_up(&self, text: &str) -> bool {
        let noted = self.get(self.keys.noted);
        noted == Some(&stopped_note(text)) || self.is_machine && noted == Some(&refused_note(text))
    }

    /// Why a request asks for what cannot be done.
    fn refusal(&self, wanted: &Wanted) -> Option<String> {
        match wanted {
            Wanted::Option(option) => self.refusal_of_option(option),
            Wanted::Version(version) => self.refusal_of_version(Some(version)),
            Wanted::Bundle { version, .. } => {
                self.refusal_of_version(version.as_ref()).or_else(|| {
                    Some(format!("Updater {} installs from no bundle", self.version_by.as_ref()?))
                })
            }
        }
    }

    fn refusal_of_option(&self, option: &GoalOption) -> Option<String> {
        if let Some(machine) = self.machines.iter().find(|machine| !machine.has_k8sd) {
            let name = machine.name;
            return Some(format!(
                "no k8sd runs on Machine {name}, and its updater has no such option"
            ));
        }
        let are_all_newer = !self.machines.is_empty()
            && self.machines.iter().all(|machine| self.is_newer(machine, option));
        are_all_newer.then(|| "all of its Machines were installed with a newer version".to_owned())
    }

    /// Why Machines are not brought to a version; `None` for what the owner's spec requests.
    fn refusal_of_version(&self, version: Option<&KubernetesVersion>) -> Option<String> {
        if let Some(machine) = self.machines.iter().find(|machine| machine.has_k8sd) {
            return Some(format!(
                "k8sd runs on Machine {}, and installs a channel, revision or localPath, neither a version nor a bundle",
                machine.name
            ));
        }
        let Some(from) = self.version else {
            return Some("its owner requests no version".to_owned());
        };
        let version = version.filter(|version| *version != from)?;
        let of_owner = from.to_string();
        if self.is_machine {
            Some(format!(
                "its owner requests {of_owner}, and a Machine gets no other version: annotate the owner"
            ))
        } else if self.of_topology {
            Some(format!(
                "a topology of its Cluster requests {of_owner}: set the version of the topology"
            ))
        } else {
            self.refusal_of_hop(from, version)
        }
    }

    /// Why the owner's spec does not go from one version to another, as with `refit upgrade`.
    fn refusal_of_hop(&self, from: &KubernetesVersion, to: &KubernetesVersion) -> Option<String> {
        match (from.hop_to(to), self.role) {
            (Hop::OtherMajor | Hop::Downgrade, _) => {
                Some(format!("{to} is not an upgrade of {from}"))
            }
            (Hop::TooFar { .. }, OwnerRole::ControlPlane) => Some(format!(
                "a control plane goes from {from} one minor version at a time: create an UpgradeTask for the Cluster"
            )),
            (Hop::Same | Hop::Patch | Hop::Minor, OwnerRole::ControlPlane) => None,
            (
                Hop::Same | Hop::Patch | Hop::Minor | Hop::TooFar { .. },
                OwnerRole::Workers(server),
            ) => {
                let Some(server) = server else {
                    let why = "the version of the control plane of its Cluster is not known";
                    return Some(why.to_owned());
                };
                to.check_kubelet_of(server).err().map(|skew| skew.to_string())
            }
        }
    }

    /// A task for all Machines, but for those that were installed with a newer version than an option: what an owner's
    /// spec has rolled out meanwhile is not taken away.
    fn ask(&self, wanted: Wanted) -> OwnerAnnounced {
        let machines = match &wanted {
            Wanted::Option(option) => {
                let others = self.machines.iter().filter(|machine| !self.is_newer(machine, option));
                let others: Vec<String> = others.map(|machine| machine.name.to_owned()).collect();
                (others.len() < self.machines.len()).then_some(others)
            }
            Wanted::Bundle { version: None, .. } if self.are_all_at_version() => {
                let how = if self.of_topology {
                    "set the version of the topology of its Cluster"
                } else {
                    "set version=VERSION,bundle=LOCATION"
                };
                let why = format!(
                    "its Machines have the version that their owner requests, and a bundle alone requests no other one: {how}"
                );
                return self.refused(&wanted.to_string(), &why);
            }
            Wanted::Version(_) | Wanted::Bundle { .. } => None,
        };
        let request = OwnerRequest::Ask { wanted, machines };
        OwnerAnnounced { request, ..OwnerAnnounced::default() }
    }

    /// Whether it has Machines, and all were brought to the version of the owner's spec already. Cluster API writes the version
    /// of a Machine before it requests its update.
    fn are_all_at_version(&self) -> bool {
        let is_awaited =
            |machine: &OwnedMachine<'_>| machine.annotations.contains_key(keys::UPDATE_IN_PROGRESS);
        let mut staying = self.machines.iter().filter(|machine| !machine.deleting).peekable();
        staying.peek().is_some()
            && staying.all(|machine| machine.version == self.version && !is_awaited(machine))
    }

    /// Whether a Machine was installed with a newer version than an option installs.
    fn is_newer(&self, machine: &OwnedMachine<'_>, option: &GoalOption) -> bool {
        let minor = |version: &KubernetesVersion| (version.major(), version.minor());
        let of_option = option.minor_version();
        let is_newer =
            machine.version.zip(of_option.as_ref()).map(|(of, to)| minor(of) > minor(to));
        self.release_of(machine).is_none() && is_newer == Some(true)
    }

    /// The same for an option that names no version: whether the Machines that have it as their release are all older.
    fn is_newer_than_the_others(&self, machine: &OwnedMachine<'_>, release: &str) -> bool {
        let minor = |of: &OwnedMachine<'_>| of.version.map(|of| (of.major(), of.minor()));
        let others = self.machines.iter().filter(|other| self.release_of(other) == Some(release));
        let newest = others.filter_map(minor).max();
        newest.zip(minor(machine)).is_some_and(|(newest, of)| of > newest)
    }

    fn release_of<'m>(&self, machine: &OwnedMachine<'m>) -> Option<&'m str> {
        machine.annotations.get(self.keys.release).map(String::as_str)
    }

    /// The last request was reached. Machines that were added since are brought to it as well.
    fn at_rest(&self, release: &str) -> OwnerAnnounced {
        if self.is_served_by_others {
            return OwnerAnnounced::default();
        }
        let Ok(option) = release.parse::<GoalOption>() else { return OwnerAnnounced::default() };
        let asked_at = self.task.and_then(|task| task.metadata.creation_timestamp.as_ref());
        // One that was there before was left out on purpose.
        let is_new = |machine: &OwnedMachine<'_>| {
            machine.created.zip(asked_at).is_none_or(|(created, asked_at)| created >= asked_at.0)
        };
        let names_version = option.minor_version().is_some();
        let is_behind = |machine: &OwnedMachine<'_>| {
            is_new(machine)
                && !machine.deleting
                && machine.has_k8sd
                && self.release_of(machine).is_none()
                && !machine.annotations.contains_key(self.keys.upgrade_to)
                && !self.is_newer(machine, &option)
                && (names_version || !self.is_newer_than_the_others(machine, release))
        };
        if !self.machines.iter().any(is_behind) {
            let done = || (is_done(), DONE_AGAIN);
            let repeated = self.is_strict().then(done);
            return OwnerAnnounced { repeated, ..OwnerAnnounced::default() };
        }
        let Keys { upgrade_to, status, release: of_owner, .. } = self.keys;
        self.shows(
            [
                (upgrade_to, Some(release.to_owned())),
                (status, Some(UpgradeStatus::InProgress.to_string())),
                (of_owner, None),
            ],
            Vec::new(),
        )
    }

    fn shows<const N: usize>(
        &self,
        values: [(&'static str, Option<String>); N],
        events: Vec<Announcement>,
    ) -> OwnerAnnounced {
        let changes = changed(self.annotations, values);
        let events = if changes.is_empty() { Vec::new() } else { events };
        OwnerAnnounced { changes, events, ..OwnerAnnounced::default() }
    }

    /// What is shown when the API server does not let Refit create the task.
    pub fn not_permitted(&self, wanted: &Wanted, why: &str) -> OwnerAnnounced {
        self.refused(&wanted.to_string(), why)
    }

    /// A text that asks for nothing that can be done.
    fn refused(&self, text: &str, why: &str) -> OwnerAnnounced {
        let noted = refused_note(text);
        let request = self.unfinished().map(stop).unwrap_or_default().request;
        if self.is_strict() || self.get(self.keys.noted) == Some(&noted) {
            return OwnerAnnounced { request, ..OwnerAnnounced::default() };
        }
        OwnerAnnounced { request, ..self.failed_for_good(text, why, noted) }
    }

    fn failed_for_good(&self, option: &str, why: &str, noted: String) -> OwnerAnnounced {
        self.shows(
            [
                (self.keys.status, Some(UpgradeStatus::Failed.to_string())),
                (self.keys.noted, Some(noted)),
            ],
            vec![failed_with(option, why)],
        )
    }

    fn left_to_others(&self, text: &str) -> OwnerAnnounced {
        let noted = left_note(text);
        let request = self.unfinished().map(stop).unwrap_or_default().request;
        let events = vec![left_to_others(self.keys.upgrade_to, "these Machines")];
        OwnerAnnounced { request, ..self.shows([(self.keys.noted, Some(noted))], events) }
    }

    /// Nothing is requested any more: what runs is stopped, and its end is shown.
    fn without_request(&self) -> OwnerAnnounced {
        match self.task.filter(|task| !self.has_shown(task)) {
            Some(task) if !task.phase().has_ended() => stop(task),
            Some(task) if task.phase() == TaskPhase::Complete => self.done(task),
            Some(task) => self.cancelled(task.metadata.name.clone(), Some(task)),
            None => match self.get(self.keys.noted) {
                Some(noted) if noted.starts_with(LEFT) => {
                    self.shows([(self.keys.noted, None)], Vec::new())
                }
                Some(_) => self.cancelled(self.get(self.keys.shown).map(str::to_owned), None),
                None => OwnerAnnounced::default(),
            },
        }
    }

    fn cancelled(&self, shown: Option<String>, task: Option<&UpgradeTask>) -> OwnerAnnounced {
        if self.is_strict() {
            return self.shows([(self.keys.shown, shown), (self.keys.noted, None)], Vec::new());
        }
        let values = [(self.keys.status, None), (self.keys.shown, shown), (self.keys.noted, None)];
        let of_spec = task.filter(|task| task.spec.via == Via::Spec);
        let event = match of_spec.and_then(|task| task.spec.version.as_ref()) {
            Some(version) if self.version == Some(version) => Announcement {
                message: format!(
                    "The UpgradeTask is stopped. The owner's spec keeps {version}, and Cluster API goes on with it: \
                     pause the owner, or set its version back"
                ),
                ..cancelled()
            },
            Some(_) | None => cancelled(),
        };
        self.shows(values, vec![event])
    }

    fn done(&self, task: &UpgradeTask) -> OwnerAnnounced {
        let Keys { upgrade_to, status, release, shown, noted, .. } = self.keys;
        self.shows(
            [
                (upgrade_to, None),
                (status, Some(UpgradeStatus::Done.to_string())),
                (release, requested(task).cloned()),
                (shown, task.metadata.name.clone()),
                (noted, None),
            ],
            vec![is_done()],
        )
    }

    /// A person has stopped the task: another one follows when the request is edited or set again.
    fn ended(&self, task: &UpgradeTask, text: &str) -> OwnerAnnounced {
        let name = task.metadata.name.as_deref().unwrap_or_default();
        let why = format!("UpgradeTask {name} was stopped. Remove the request, and set it again");
        let wanted = requested(task).map_or("", String::as_str);
        self.failed_for_good(wanted, &why, stopped_note(text))
    }

    /// The task waits for a person, and no Machine of it is the reason.
    fn stuck(&self, task: &UpgradeTask) -> OwnerAnnounced {
        let known = task.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let ready = conditions::get(known, READY);
        let (reason, why) = ready.map_or(("", ""), |ready| (&ready.reason, &ready.message));
        let wanted = requested(task).map_or("", String::as_str);
        self.failed_for_good(wanted, why, format!("{FAILURE}{reason}"))
    }

    /// How far the task is. A failure is announced once, and again after each attempt.
    fn under_way(&self, task: &UpgradeTask) -> OwnerAnnounced {
        let has_begun = |shown: &&UpgradeTaskStatus| {
            shown.started_at.is_some() || shown.phase == TaskPhase::Failed
        };
        let Some(shown) = task.status.as_ref().filter(has_begun) else {
            return OwnerAnnounced::default();
        };
        let Keys { status, release, noted, .. } = self.keys;
        let Some(failure) = shown.failures.first() else {
            if shown.phase == TaskPhase::Failed {
                return self.stuck(task);
            }
            let values = [
                (status, Some(UpgradeStatus::InProgress.to_string())),
                (release, None),
                (noted, None),
            ];
            return self.shows(values, Vec::new());
        };
        let at = failure.at.as_ref().map(|at| at.0.to_string()).unwrap_or_default();
        let values = [
            (status, Some(UpgradeStatus::Failed.to_string())),
            (release, None),
            (noted, Some(format!("{FAILURE}{} {at}", failure.machine))),
        ];
        let message = format!("In-place upgrade failed for machine \"{}\".", failure.machine);
        let announced = self.shows(values, vec![failed(message.clone())]);
        let is_repeated = self.is_strict() && announced.changes.is_empty();
        let repeated = is_repeated.then(|| (failed(message), FAILED_AGAIN));
        OwnerAnnounced { repeated, ..announced }
    }
}

/// Whether a task is stopped, or deleted, for another reason than that another request was made.
fn is_stopped_by_a_person(task: &UpgradeTask) -> bool {
    let annotations = task.metadata.annotations.as_ref();
    let is_ours = annotations.is_some_and(|all| all.contains_key(keys::GOAL_CHANGED));
    let is_stopped = match task.spec.stage {
        Stage::Abort => true,
        Stage::Ongoing => task.metadata.deletion_timestamp.is_some(),
    };
    is_stopped && !is_ours
}

/// The request that made a task.
fn requested(task: &UpgradeTask) -> Option<&String> {
    task.metadata.annotations.as_ref()?.get(keys::REQUESTED)
}

fn is_done() -> Announcement {
    normal(DONE, "In-place upgrade is done".to_owned())
}

/// The two events of an owner when a Machine of it is asked for an option, in the words of Canonical's controllers.
pub fn machine_begins(machine: &str, option: &GoalOption) -> [Announcement; 2] {
    [
        normal(IN_PROGRESS, format!("Machine \"{machine}\" is upgrading to \"{option}\"")),
        normal(IN_PROGRESS, format!("In-place upgrade is in-progress for \"{machine}\"")),
    ]
}

/// The stop of an unfinished task that has not been asked to stop.
fn stop(task: &UpgradeTask) -> OwnerAnnounced {
    let request = match task.spec.stage {
        Stage::Ongoing => OwnerRequest::Stop,
        Stage::Abort => OwnerRequest::None,
    };
    OwnerAnnounced { request, ..OwnerAnnounced::default() }
}

#[cfg(test)]
mod tests;
