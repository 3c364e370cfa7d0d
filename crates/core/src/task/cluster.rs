//! The next writes of a task for a whole Cluster, and what it shows. It makes a task for each group and hop; those do
//! the work.

use std::collections::BTreeMap;

use jiff::Timestamp;
use refit_kinds::{
    conditions,
    refit::{
        MAX_TASK_CHILDREN, Stage, TaskChild, TaskCounts, TaskFailure, TaskPhase, UpgradeTask,
        UpgradeTaskStatus, Via, hash_json, update_group_name,
    },
    version::{KubernetesVersion, StatedVersion},
};

use super::{
    GroupVersion, HopTo, Obstacle, Refused,
    hops::{HopError, Lead, name_of, next_hops},
    is_to_stop,
    status::{READY, REPLACED, Shown, hindered, keep_newest, obstructed, show},
};

/// How long the name of a child may be.
const MAX_NAME: usize = 253;

/// A group of the Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupNow {
    /// Its owner, and the lowest version of its Machines and of what the owner requests.
    pub at: GroupVersion,
    /// How many Machines it has.
    pub machines: usize,
    /// Cluster API does nothing for the owner: it is paused.
    pub is_paused: bool,
}

/// Everything that a task for a whole Cluster is decided on.
#[derive(Clone, Debug)]
pub struct ClusterSeen<'a> {
    /// The task.
    pub task: &'a UpgradeTask,
    /// What stands in the way.
    pub obstacle: Option<Obstacle>,
    /// The version of the Cluster's topology, if it has one.
    pub topology: Option<StatedVersion>,
    /// The control plane.
    pub control_plane: Option<GroupNow>,
    /// The MachineDeployments, by name.
    pub workers: Vec<GroupNow>,
    /// The tasks that this one has made.
    pub children: Vec<&'a UpgradeTask>,
    /// The time of the look.
    pub now: Timestamp,
}

/// A write of a task for a whole Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterAction {
    /// Create the task of a group, by this name.
    Create {
        /// The name.
        name: String,
        /// The group and its version.
        hop: HopTo,
    },
    /// Set the version of the Cluster's topology.
    SetTopology(KubernetesVersion),
    /// Stop a child.
    Abort(String),
}

/// The next writes, in order.
pub fn cluster_actions(seen: &ClusterSeen<'_>) -> Vec<ClusterAction> {
    if seen.has_ended() || is_to_stop(seen.task) {
        let aborts = seen
            .children
            .iter()
            .filter(|child| !child.phase().has_ended() && !seen.is_asked_to_stop(child));
        return aborts.map(|child| ClusterAction::Abort(name(child).to_owned())).collect();
    }
    if seen.obstacle.is_some() {
        return Vec::new();
    }
    let Ok(hops) = seen.next_hops() else { return Vec::new() };
    let named: Vec<(String, &HopTo)> =
        hops.iter().map(|hop| (child_name(name(seen.task), hop), hop)).collect();
    let is_other_at_work = seen.children.iter().any(|child| {
        !child.phase().has_ended() && !named.iter().any(|(known, _)| known == name(child))
    });
    if is_other_at_work {
        return Vec::new();
    }
    let missing = named.iter().filter(|(name, _)| seen.child(name).is_none());
    let creates: Vec<ClusterAction> = missing
        .map(|(name, hop)| ClusterAction::Create { name: name.clone(), hop: (*hop).clone() })
        .collect();
    if creates.is_empty()
        && let Some(version) = seen.topology_to_set(&hops)
        && seen.may_set_topology(&hops)
    {
        return vec![ClusterAction::SetTopology(version.clone())];
    }
    creates
}

impl ClusterSeen<'_> {
    /// Whether the group of a child is at the child's version, also if the child has not brought it there.
    fn has_reached(&self, child: &UpgradeTask) -> bool {
        let group =
            self.groups().find(|group| child.spec.owner_ref.as_ref() == Some(&group.at.owner));
        group.is_some_and(|group| child.spec.version.as_ref() <= Some(&group.at.version))
    }

    /// Whether a child stops in the same way as this task.
    fn is_asked_to_stop(&self, child: &UpgradeTask) -> bool {
        child.spec.stage == Stage::Abort && child.spec.on_abort == self.task.spec.on_abort
    }

    fn has_ended(&self) -> bool {
        self.task.phase().has_ended()
    }

    fn child(&self, wanted: &str) -> Option<&UpgradeTask> {
        self.children.iter().find(|child| name(child) == wanted).copied()
    }

    fn groups(&self) -> impl Iterator<Item = &GroupNow> {
        self.control_plane.iter().chain(&self.workers)
    }

    /// The next hop. A group whose task for a version is complete has reached that version: what is skipped does
    /// not keep the others waiting.
    fn next_hops(&self) -> Result<Vec<HopTo>, HopError> {
        let (Some(plane), Some(target)) = (&self.control_plane, &self.task.spec.version) else {
            return Ok(Vec::new());
        };
        let reached = |group: &GroupNow| {
            let done = self.children.iter().filter(|child| {
                child.phase() == TaskPhase::Complete
                    && child.spec.owner_ref.as_ref() == Some(&group.at.owner)
            });
            let highest = done.filter_map(|child| child.spec.version.clone()).max();
            let version = highest.into_iter().chain([group.at.version.clone()]).max();
            let version = version.unwrap_or_else(|| group.at.version.clone());
            let highest = group.at.highest.clone().max(version.clone());
            GroupVersion { owner: group.at.owner.clone(), version, highest }
        };
        let workers: Vec<GroupVersion> = self.workers.iter().map(reached).collect();
        let named = self.task.spec.hops.as_deref().unwrap_or_default();
        next_hops(&reached(plane), &workers, (target, named), self.lead())
    }

    fn lead(&self) -> Lead {
        if self.topology.is_some() { Lead::Topology } else { Lead::Groups }
    }

    /// The version that the topology still has to get.
    fn topology_to_set<'b>(&self, hops: &'b [HopTo]) -> Option<&'b KubernetesVersion> {
        let asked = self.topology.as_ref()?;
        let version = &hops.first()?.version;
        let is_older = asked.version().is_none_or(|asked| asked < version);
        is_older.then_some(version)
    }

    /// Whether Cluster API would replace no Machine of these groups.
    fn may_set_topology(&self, hops: &[HopTo]) -> bool {
        match self.task.spec.via {
            Via::Spec => true,
            Via::Machines => self
                .groups()
                .filter(|group| hops.iter().any(|hop| hop.owner == group.at.owner))
                .all(|group| group.is_paused),
        }
    }
}

/// The name of the child of a task: it shows the group and the version.
pub fn child_name(task: &str, hop: &HopTo) -> String {
    let group = update_group_name(&hop.owner.kind, &hop.owner.name);
    let version = hop.version.to_string().to_lowercase().replace('+', "-");
    let name = format!("{task}-{group}-{version}");
    if name.len() <= MAX_NAME {
        return name;
    }
    let hash = hash_json(&serde_json::json!(name));
    let kept: String = name.chars().take(MAX_NAME - 17).collect();
    format!("{}-{}", kept.trim_end_matches(['-', '.']), &hash[..16])
}

/// The status of a task for a whole Cluster. `refused` are the objects that could not be written, by kind and name.
pub fn cluster_status(
    seen: &ClusterSeen<'_>,
    refused: &BTreeMap<String, Refused>,
) -> UpgradeTaskStatus {
    let old = seen.task.status.clone().unwrap_or_default();
    if old.phase.has_ended() {
        return old;
    }
    let mut next = UpgradeTaskStatus {
        version: seen.task.spec.version.clone(),
        counts: Some(counts(seen)),
        failures: failures(seen),
        children: children(seen),
        observed_generation: seen.task.metadata.generation,
        ..old
    };
    show(&mut next, seen.now, shown(seen, refused));
    next
}

fn shown(seen: &ClusterSeen<'_>, refused: &BTreeMap<String, Refused>) -> Shown {
    let waits = |reason, message| {
        let phase = if seen.children.is_empty() { TaskPhase::Pending } else { TaskPhase::Ongoing };
        (phase, reason, message)
    };
    let unfinished: Vec<&UpgradeTask> =
        seen.children.iter().filter(|child| !child.phase().has_ended()).copied().collect();
    if is_to_stop(seen.task) {
        return match unfinished.first() {
            None => (TaskPhase::Aborted, "Aborted", "the task was stopped on request".to_owned()),
            Some(child) => {
                (TaskPhase::Ongoing, "Aborting", format!("the task ends with {}", of_child(child)))
            }
        };
    }
    if let Some(obstacle) = &seen.obstacle {
        return obstructed(obstacle, waits);
    }
    if seen.control_plane.is_none() {
        return waits("OwnerUnknown", "the control plane is not known yet".to_owned());
    }
    if let Some(shown) = hindered(refused, |message| waits("Waiting", message)) {
        return shown;
    }
    let mut aborted = seen
        .children
        .iter()
        .filter(|child| child.phase() == TaskPhase::Aborted && !seen.has_reached(child));
    if let Some(child) = aborted.clone().find(|child| is_replaced(child)) {
        return waits("Upgrading", of_child(child));
    }
    if let Some(child) = aborted.next() {
        let message = format!(
            "{}. Abort this task, too; or delete that one, and this one makes it again",
            of_child(child)
        );
        return (TaskPhase::Failed, "ChildAborted", message);
    }
    if let Some(child) = unfinished.iter().find(|child| child.phase() == TaskPhase::Failed) {
        return (TaskPhase::Failed, "ChildFailed", of_child(child));
    }
    match seen.next_hops() {
        Err(error) => (TaskPhase::Failed, "VersionNotReachable", error.to_string()),
        Ok(hops) if hops.is_empty() && unfinished.is_empty() => {
            let version =
                seen.task.spec.version.as_ref().map(ToString::to_string).unwrap_or_default();
            (TaskPhase::Complete, "Complete", format!("all groups are updated to {version}"))
        }
        Ok(hops) => {
            let now: Vec<String> = unfinished.iter().map(|child| of_child(child)).collect();
            if now.is_empty() {
                let next: Vec<String> = hops
                    .iter()
                    .map(|hop| format!("{} goes to {}", name_of(&hop.owner), hop.version))
                    .collect();
                return waits("Upgrading", next.join("; "));
            }
            (TaskPhase::Ongoing, "Upgrading", now.join("; "))
        }
    }
}

/// Whether a child has ended so that Cluster API replaces the Machines of its group.
fn is_replaced(child: &UpgradeTask) -> bool {
    let shown = child.status.as_ref().map_or(&[][..], |status| &status.conditions);
    conditions::get(shown, READY).is_some_and(|ready| ready.reason == REPLACED)
}

/// What a child shows, with its group and its name.
fn of_child(child: &UpgradeTask) -> String {
    let owner = child.spec.owner_ref.as_ref().map(name_of).unwrap_or_default();
    let version = child.spec.version.as_ref().map(ToString::to_string).unwrap_or_default();
    let shown = child.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let ready = conditions::get(shown, READY);
    let message = ready.map_or_else(|| "not begun".to_owned(), |ready| ready.message.clone());
    format!("{owner} to {version} (UpgradeTask {}): {message}", name(child))
}

/// The Machines of each group: as its newest child counts them; those of a group without a child wait.
fn counts(seen: &ClusterSeen<'_>) -> TaskCounts {
    let mut counts = TaskCounts::default();
    for group in seen.groups() {
        let of_group = seen
            .children
            .iter()
            .filter(|child| child.spec.owner_ref.as_ref() == Some(&group.at.owner));
        let newest = of_group.max_by(|a, b| a.spec.version.cmp(&b.spec.version));
        let shown = newest.and_then(|child| child.status.as_ref()?.counts);
        let machines = i32::try_from(group.machines).unwrap_or(i32::MAX);
        let is_current = seen.task.spec.version.as_ref() == Some(&group.at.version);
        let of_group = shown.unwrap_or(TaskCounts {
            total: machines,
            updated: if is_current { machines } else { 0 },
            waiting: if is_current { 0 } else { machines },
            ..TaskCounts::default()
        });
        counts.total = counts.total.saturating_add(of_group.total);
        counts.updated = counts.updated.saturating_add(of_group.updated);
        counts.updating = counts.updating.saturating_add(of_group.updating);
        counts.waiting = counts.waiting.saturating_add(of_group.waiting);
        counts.failed = counts.failed.saturating_add(of_group.failed);
        counts.excepted = counts.excepted.saturating_add(of_group.excepted);
    }
    counts
}

/// The failures of the children that are not complete.
fn failures(seen: &ClusterSeen<'_>) -> Vec<TaskFailure> {
    let statuses = seen.children.iter().filter_map(|child| child.status.as_ref());
    let unfinished = statuses.filter(|status| !status.phase.has_ended());
    let mut failures: Vec<TaskFailure> =
        unfinished.flat_map(|status| status.failures.clone()).collect();
    keep_newest(&mut failures);
    failures
}

/// The children in their order: by version, the control plane first.
fn children(seen: &ClusterSeen<'_>) -> Vec<TaskChild> {
    let plane = seen.control_plane.as_ref().map(|group| &group.at.owner);
    let mut found: Vec<(KubernetesVersion, bool, TaskChild)> = Vec::new();
    for child in &seen.children {
        let Some(version) = &child.spec.version else { continue };
        let is_plane = child.spec.owner_ref.as_ref() == plane;
        let shown = TaskChild {
            name: name(child).to_owned(),
            version: version.clone(),
            phase: child.phase(),
        };
        found.push((version.clone(), !is_plane, shown));
    }
    found.sort_by(|a, b| (&a.0, a.1, &a.2.name).cmp(&(&b.0, b.1, &b.2.name)));
    let excess = found.len().saturating_sub(MAX_TASK_CHILDREN);
    found.into_iter().skip(excess).map(|(_, _, child)| child).collect()
}

fn name(task: &UpgradeTask) -> &str {
    task.metadata.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
