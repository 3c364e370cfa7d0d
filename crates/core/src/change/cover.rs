//! Which updater claims which difference, and what remains.

use std::fmt;

use refit_kinds::{
    refit::{
        CONFIGURATION, ChangedConfiguration, Disruption, KUBEADM, UpdatePart, UpdaterAction,
        UpdaterHost,
    },
    version::KubernetesVersion,
};
use serde_json::Value;

use super::{
    claim::{Claim, claims_all, machine_kind},
    configuration::{self, ConfigurationUpdater},
    diff::{Change, MAX_CHANGES},
    host_part::{BadHostPart, host_part},
    kubeadm,
    objects::{Level, Objects, PARTS, Part, part_changes},
    patch::Patch,
    path::Path,
    secrets::{holds_secret, is_secret},
};

/// Changes, each with the object that it is in.
pub type PartChanges = Vec<(Part, Change)>;

/// A way of updating a machine in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Updater {
    /// Kubernetes with kubeadm and packages: built in.
    Kubeadm,
    /// An Updater that an operator has added.
    Added(AddedUpdater),
    /// The configuration of hosts, from KubeadmConfigs: built in.
    Configuration(ConfigurationUpdater),
}

/// An Updater that an operator has added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedUpdater {
    /// What claims and does it.
    pub part: UpdatePart,
    /// What it claims.
    pub claims: Vec<Claim>,
    /// Where the arguments of the agent's steps are, if the agent makes the changes.
    pub host: Option<UpdaterHost>,
}

impl Updater {
    /// Whether it takes values of a change from this object.
    pub fn claims_some_of(&self, object: &Value) -> bool {
        match self {
            Self::Kubeadm => false,
            Self::Added(added) => added.claims.iter().any(|claim| claim.is_of(object)),
            Self::Configuration(_) => is_kubeadm_config(object),
        }
    }
}

impl AddedUpdater {
    /// The part in an update to these objects of a machine; `None` if they ask the agent on the host for nothing.
    pub fn part(&self, desired: &Objects) -> Result<Option<UpdatePart>, BadHostPart> {
        self.part_of(Level::Machine, desired)
    }

    fn part_of(&self, level: Level, desired: &Objects) -> Result<Option<UpdatePart>, BadHostPart> {
        let Some(host) = &self.host else {
            return Ok(Some(self.part.clone()));
        };
        let host = host_part(&self.part.updater, host, &self.claims, (level, desired))?;
        Ok(host.map(|host| UpdatePart { host: Some(host), ..self.part.clone() }))
    }
}

impl Updater {
    /// Name, as shown in plans and messages.
    pub fn name(&self) -> &str {
        match self {
            Self::Kubeadm => KUBEADM,
            Self::Added(added) => &added.part.updater,
            Self::Configuration(_) => CONFIGURATION,
        }
    }

    /// Whether the updater brings machines to a Kubernetes version.
    pub fn brings_version(&self) -> bool {
        match self {
            Self::Kubeadm => true,
            Self::Added(added) => added.part.brings_version(),
            Self::Configuration(_) => false,
        }
    }

    /// Whether the updater does nothing about what it claims.
    fn leaves(&self) -> bool {
        match self {
            Self::Kubeadm | Self::Configuration(_) => false,
            Self::Added(added) => added.part.action == UpdaterAction::Leave,
        }
    }

    /// What the updater makes of the changes that differ.
    fn claimed(&self, changes: PartChanges, case: &Case<'_>) -> Claims {
        match self {
            Self::Kubeadm => Claims::of(kubeadm::claimed(changes, case), Disruption::Drain),
            Self::Added(added) => added.claims(changes, case),
            Self::Configuration(updater) => {
                let found = configuration::find(&updater.rules, changes, case);
                let reasons = found
                    .reasons
                    .into_iter()
                    .map(|(path, why)| ((Part::Bootstrap, path), Unclaimed::Configuration(why)));
                let reasons = reasons.collect();
                let changed = found.changed;
                let disruption =
                    changed.as_ref().map_or(Disruption::None, |changed| changed.disruption);
                Claims { claimed: found.claimed, disruption, changed, reasons }
            }
        }
    }
}

impl AddedUpdater {
    /// The changes that its claims name, unless the agent cannot make them because of their values.
    fn claims(&self, changes: PartChanges, case: &Case<'_>) -> Claims {
        let claimed = self.claimed(changes, case);
        match self.part_of(case.level, case.desired) {
            Err(why) if !claimed.is_empty() => {
                let reason = |(part, change): (Part, Change)| {
                    ((part, change.path), Unclaimed::Host(why.clone()))
                };
                let reasons = claimed.into_iter().map(reason).collect();
                Claims { reasons, ..Claims::of(Vec::new(), Disruption::None) }
            }
            Ok(_) | Err(_) => Claims::of(claimed, self.part.disruption),
        }
    }

    /// The changes that its claims name.
    fn claimed(&self, changes: PartChanges, case: &Case<'_>) -> PartChanges {
        let claimed =
            |(part, change): &(Part, Change)| case.is_claimed(&self.claims, *part, change);
        if !self.part.brings_version() {
            return changes.into_iter().filter(claimed).collect();
        }
        let with_version = kubeadm::claimed(changes.clone(), case);
        let is_possible = kubeadm::is_reachable(case) || case.from_version == case.to_version;
        let is_claimed =
            |one: &(Part, Change)| with_version.contains(one) || is_possible && claimed(one);
        changes.into_iter().filter(is_claimed).collect()
    }
}

/// Why no updater makes the changes at some paths.
type Reasons = Vec<((Part, Path), Unclaimed)>;

/// What an updater makes of some changes.
struct Claims {
    /// Those that it makes.
    claimed: PartChanges,
    /// How they disturb a machine.
    disruption: Disruption,
    /// What they are, if they are of the configuration of hosts.
    changed: Option<ChangedConfiguration>,
    /// Why it does not make others that it is for.
    reasons: Reasons,
}

impl Claims {
    fn of(claimed: PartChanges, disruption: Disruption) -> Self {
        Self { claimed, disruption, changed: None, reasons: Vec::new() }
    }
}

fn is_kubeadm_config(object: &Value) -> bool {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    machine_kind(kind) == "KubeadmConfig"
}

/// What an updater may use to decide.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// Machine or MachineSet.
    pub level: Level,
    /// Current objects, with the claims of earlier updaters already applied.
    pub current: &'a Objects,
    /// Current objects as they are.
    pub original: &'a Objects,
    /// Desired objects.
    pub desired: &'a Objects,
    /// The original version, if it is valid.
    pub from_version: Option<&'a KubernetesVersion>,
    /// The desired version, if it is valid.
    pub to_version: Option<&'a KubernetesVersion>,
    /// The version may be lower: every host runs it, so that the change only withdraws a request for another one; or workers
    /// are rolled back.
    pub returns: bool,
}

impl Case<'_> {
    /// Whether one of the claims names everything that the change changes.
    fn is_claimed(&self, claims: &[Claim], part: Part, change: &Change) -> bool {
        let (Some(from), Some(to)) = (self.original.part(part), self.desired.part(part)) else {
            return false;
        };
        let applies = |claim: &&Claim| [from, to].into_iter().all(|object| claim.is_of(object));
        let (from, to) = (self.level.machine_view(from), self.level.machine_view(to));
        let (Some(from), Some(to), Some(at)) = (from, to, self.level.machine_path(&change.path))
        else {
            return false;
        };
        claims.iter().filter(applies).any(|claim| claims_all(&claim.paths, at, from, to))
    }
}

/// Patches that make each current object exactly equal to the desired one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patches {
    /// For the Machine or MachineSet.
    pub owner: Option<Patch>,
    /// For the infrastructure machine or its template.
    pub infrastructure: Option<Patch>,
    /// For the bootstrap config or its template.
    pub bootstrap: Option<Patch>,
}

/// A change that no updater covers, with its object.
///
/// Shown as a path line: the same text in hook messages, conditions and plans.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The object that differs.
    pub part: Part,
    /// Kind of the current object.
    pub kind: String,
    /// Name of the current object.
    pub name: String,
    /// What differs.
    pub change: Change,
    /// Why none makes it.
    pub why: Unclaimed,
}

/// Why no updater makes a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Unclaimed {
    /// None claims it.
    #[default]
    NoUpdater,
    /// The API server refuses it, in these words.
    Refused(String),
    /// The agent on the host cannot make it: its value is wrong.
    Host(BadHostPart),
    /// A running host cannot get it from the KubeadmConfig, for this reason.
    Configuration(String),
}

/// A change that an updater claims.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// The change.
    pub difference: Difference,
    /// Name of the updater.
    pub updater: String,
    /// Whether the updater does nothing about it.
    pub is_left: bool,
    /// How the change disturbs a machine.
    pub disruption: Disruption,
}

impl Claimed {
    /// The path line.
    pub fn line(&self) -> String {
        let Self { difference, updater, is_left, disruption: _ } = self;
        if *is_left {
            difference.line(&format!("left as it is by {updater}"))
        } else {
            difference.line(updater)
        }
    }
}

/// Which updater makes which change, and what no updater covers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coverage {
    /// Claimed changes as patches. Complete only if nothing is uncovered.
    pub patches: Patches,
    /// Claimed changes, in the order of the claims.
    pub claimed: Vec<Claimed>,
    /// What of the claimed changes is the configuration of hosts.
    pub configuration: Option<ChangedConfiguration>,
    /// Changes that no updater claimed.
    pub uncovered: Vec<Difference>,
}

impl Coverage {
    /// Whether the updaters can make every desired change in place.
    pub fn is_complete(&self) -> bool {
        self.uncovered.is_empty()
    }

    /// The claimed changes of the infrastructure machine, or of its template.
    pub fn of_infrastructure(&self) -> impl Iterator<Item = &Difference> {
        let all = self.claimed.iter().map(|claimed| &claimed.difference);
        all.filter(|difference| difference.part == Part::Infrastructure)
    }

    /// Whether a built-in updater makes one of the changes, or no change is claimed: then the agents
    /// on the hosts are needed.
    pub(super) fn needs_agents(&self) -> bool {
        let by_host = |claimed: &Claimed| [KUBEADM, CONFIGURATION].contains(&&*claimed.updater);
        self.claimed.is_empty() || self.claimed.iter().any(by_host)
    }

    /// Whether the machines may be unavailable meanwhile.
    pub fn affects_availability(&self) -> bool {
        let disturbs = |claimed: &Claimed| claimed.disruption > Disruption::None;
        self.claimed.is_empty() || self.claimed.iter().any(disturbs)
    }

    /// The changes that other updaters than that of the version claim.
    pub fn of_updaters(&self) -> impl Iterator<Item = &Claimed> {
        self.claimed.iter().filter(|claimed| claimed.updater != KUBEADM)
    }

    /// The same coverage if the API server refuses the claimed changes of the infrastructure machine.
    /// `sides` are its states: an API server may quote any of their values.
    pub(super) fn refused(mut self, why: &str, sides: [&Value; 2]) -> Self {
        let hides = sides.into_iter().any(holds_secret);
        let why = if hides { "its words are hidden, because the object has secrets" } else { why };
        let of_infrastructure = |claimed: &Claimed| claimed.difference.part == Part::Infrastructure;
        let refused = self.claimed.iter().filter(|claimed| of_infrastructure(claimed));
        let refused = refused.map(|claimed| Difference {
            why: Unclaimed::Refused(shorten(why, REFUSAL_CHARACTERS)),
            ..claimed.difference.clone()
        });
        self.uncovered = refused.chain(self.uncovered.iter().cloned()).collect();
        self.claimed.retain(|claimed| !of_infrastructure(claimed));
        self
    }

    /// The path lines of uncovered changes.
    pub fn lines(&self) -> Vec<String> {
        self.uncovered.iter().map(ToString::to_string).collect()
    }
}

/// Finds every path that differs, lets each updater in order claim what it can change, applies the
/// claims and continues with the rest. If more than [`MAX_CHANGES`] paths differ, no updater is asked.
/// `returns` is for [`Case::returns`].
pub fn cover(
    level: Level,
    current: &Objects,
    desired: &Objects,
    returns: bool,
    updaters: &[&Updater],
) -> Coverage {
    let (from_version, to_version) = (current.version(level), desired.version(level));
    let difference = |(part, change): (Part, Change)| {
        let named = current.part(part).or(desired.part(part));
        Difference {
            part,
            kind: word(named, "/kind"),
            name: word(named, "/metadata/name"),
            change,
            why: Unclaimed::NoUpdater,
        }
    };
    let mut patched = current.clone();
    let mut coverage = Coverage::default();
    let mut reasons = Reasons::new();
    for updater in updaters {
        let case = Case {
            level,
            current: &patched,
            original: current,
            desired,
            from_version: from_version.version(),
            to_version: to_version.version(),
            returns,
        };
        let changes = all_changes(level, case.current, desired);
        if changes.len() > MAX_CHANGES {
            break;
        }
        let claims = updater.claimed(changes, &case);
        coverage.configuration = coverage.configuration.or(claims.changed);
        reasons.extend(claims.reasons);
        for (part, change) in claims.claimed {
            if let Some(object) = patched.part_mut(part) {
                change.apply(object);
            }
            coverage.claimed.push(Claimed {
                difference: difference((part, change)),
                updater: updater.name().to_owned(),
                is_left: updater.leaves(),
                disruption: claims.disruption,
            });
        }
    }
    let between = |part: Part| Patch::between(current.part(part)?, patched.part(part)?);
    coverage.patches = Patches {
        owner: between(Part::Owner),
        infrastructure: between(Part::Infrastructure),
        bootstrap: between(Part::Bootstrap),
    };
    let rest = all_changes(level, &patched, desired);
    let explained = |(part, change): (Part, Change)| {
        let mut reasons =
            reasons.iter().filter(|((of, path), _)| *of == part && *path == change.path);
        let why = reasons.next().map(|(_, why)| why.clone());
        Difference { why: why.unwrap_or_default(), ..difference((part, change)) }
    };
    coverage.uncovered = rest.into_iter().map(explained).collect();
    coverage
}

fn all_changes(level: Level, current: &Objects, desired: &Objects) -> PartChanges {
    let of_part = |part: &Part| {
        let part = *part;
        part_changes(level, part, current, desired).into_iter().map(move |change| (part, change))
    };
    PARTS.iter().flat_map(of_part).collect()
}

fn word(object: Option<&Value>, pointer: &str) -> String {
    object.and_then(|o| o.pointer(pointer)?.as_str()).unwrap_or("?").to_owned()
}

/// Longest text of one value in a path line, in characters.
const SHOWN_CHARACTERS: usize = 80;
/// Longest text of a refusal in a path line, in characters.
const REFUSAL_CHARACTERS: usize = 240;

impl Difference {
    /// The path line with the updater that makes the change.
    pub fn line(&self, updater: &str) -> String {
        format!("{}/{} {} ({updater})", self.kind, self.name, self.shown())
    }

    /// The difference without object and updater; secrets are hidden.
    pub fn shown(&self) -> String {
        let Self { part, change: Change { path, from, to }, .. } = self;
        if path.segments().is_empty() {
            let there = |side: &Option<Value>| if side.is_some() { "present" } else { "absent" };
            return format!("{} -> {}", there(from), there(to));
        }
        let show = |value: &Option<Value>| match value {
            None => "(absent)".to_owned(),
            Some(value) if is_secret(*part, path, value) => "(hidden)".to_owned(),
            Some(value) => shorten(&value.to_string(), SHOWN_CHARACTERS),
        };
        format!("{path}: {} -> {}", show(from), show(to))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match &self.why {
            Unclaimed::NoUpdater => "no updater".to_owned(),
            Unclaimed::Refused(why) => format!("the API server refuses it: {why}"),
            Unclaimed::Host(why) => why.to_string(),
            Unclaimed::Configuration(why) => format!("{CONFIGURATION}: {why}"),
        };
        f.write_str(&self.line(&why))
    }
}

fn shorten(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    let head: String = text.chars().take(characters).collect();
    format!("{head}...")
}
