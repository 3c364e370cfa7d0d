//! Owners that an UpgradeTask has left paused: `refit resume` continues the task, `refit release` lets Cluster API go
//! on.

use std::collections::BTreeMap;

use kube::Resource as _;
use refit_core::{group::owner_argument, task::Paused};
use refit_kinds::{
    refit::{GroupOwner, OnAbort, Stage, TaskPhase, UpgradeTask, UpgradeTaskSpec, Via},
    version::{KubernetesVersion, StatedVersion},
};

use crate::{
    client::Cluster,
    target::{Reference, Target},
    upgrade::task::{has_ended, tasks},
};

/// What has left an owner paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PausedBy {
    /// The UpgradeTask of this name.
    Task(String),
    /// Refit, because Cluster API would replace its only machine, and replacements are held.
    Hold,
}

/// An owner that Refit has left paused, and the tasks that concern it.
#[derive(Clone, Debug)]
pub(crate) struct LeftOwner {
    /// The owner, as a task refers to it.
    pub(crate) owner: GroupOwner,
    /// Name of its Cluster.
    pub(crate) cluster: String,
    /// The version in its spec.
    pub(crate) version: StatedVersion,
    /// What has paused it.
    pub(crate) paused_by: PausedBy,
    /// The tasks of this owner.
    pub(crate) tasks: Vec<UpgradeTask>,
    /// Names of the unfinished tasks of the whole Cluster.
    pub(crate) of_cluster: Vec<String>,
}

/// What continues the work of a task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Continuation {
    /// An unfinished task does already.
    AtWork(String),
    /// An unfinished task does, once the failed ones that it waits for have been stopped.
    Unblock {
        /// The task that waits.
        task: String,
        /// Tasks to stop.
        stop: Vec<String>,
    },
    /// The task of the whole Cluster makes its part again, once that has been deleted.
    Remake {
        /// The part.
        task: String,
        /// The task of the Cluster.
        parent: String,
    },
    /// Another task with this spec, once the failed ones have been stopped.
    Create {
        /// Its spec.
        spec: Box<UpgradeTaskSpec>,
        /// Tasks to stop first: a failed one does not end by itself, and a later one would wait for it.
        stop: Vec<String>,
    },
}

/// Returns what of Refit pauses an owner with these annotations.
pub(crate) fn paused_by(annotations: &BTreeMap<String, String>) -> Option<PausedBy> {
    match Paused::of(annotations) {
        Paused::ByTask(task) => Some(PausedBy::Task(task)),
        Paused::ByHold => Some(PausedBy::Hold),
        Paused::No | Paused::ByOthers => None,
    }
}

impl LeftOwner {
    /// Reads the tasks of an owner; returns `None` if Refit has not paused it.
    pub(crate) async fn read(
        cluster: &Cluster,
        target: &Target,
        found: &Reference,
    ) -> anyhow::Result<Option<Self>> {
        let Some(paused_by) = paused_by(&found.annotations) else { return Ok(None) };
        let owner = GroupOwner {
            api_version: found.api_version.clone(),
            kind: target.kind.kind().to_owned(),
            name: target.name.clone(),
        };
        let mut tasks = tasks(cluster).await?;
        let of_cluster = tasks.iter().filter(|task| {
            task.spec.owner_ref.is_none()
                && task.spec.cluster_ref.name == found.cluster
                && !has_ended(task)
                && !is_stopping(task)
        });
        let of_cluster = of_cluster.map(|task| name(task).to_owned()).collect();
        tasks.retain(|task| task.spec.owner_ref.as_ref().is_some_and(|of| is_same(of, &owner)));
        Ok(Some(Self {
            owner,
            cluster: found.cluster.clone(),
            version: found.version.clone(),
            paused_by,
            tasks,
            of_cluster,
        }))
    }

    /// Decides what continues the work of the task.
    pub(crate) fn continuation(&self) -> Continuation {
        let unfinished = || self.tasks.iter().filter(|task| !has_ended(task));
        let is_failed = |task: &&UpgradeTask| task.phase() == TaskPhase::Failed;
        let failed = || unfinished().filter(is_failed).filter(|task| !is_stopping(task));
        let mut at_work = unfinished().filter(|task| !is_failed(task) && !is_stopping(task));
        if let Some(task) = at_work.next() {
            // It would wait for a failed one.
            return match failed().next() {
                Some(_) => Continuation::Unblock {
                    task: name(task).to_owned(),
                    stop: failed().map(|task| name(task).to_owned()).collect(),
                },
                None => Continuation::AtWork(name(task).to_owned()),
            };
        }
        if let Some(part) =
            failed().chain(self.pausing()).find(|task| self.parent_of(task).is_some())
            && let Some(parent) = self.parent_of(part)
        {
            return Continuation::Remake { task: name(part).to_owned(), parent };
        }
        let to_stop = failed();
        Continuation::Create {
            spec: Box::new(self.next_spec()),
            stop: to_stop.map(|task| name(task).to_owned()).collect(),
        }
    }

    /// The task that pauses the owner.
    fn pausing(&self) -> Option<&UpgradeTask> {
        match &self.paused_by {
            PausedBy::Task(of) => self.tasks.iter().find(|task| name(task) == of),
            PausedBy::Hold => None,
        }
    }

    /// Name of the unfinished task of the whole Cluster that a task is a part of.
    fn parent_of(&self, task: &UpgradeTask) -> Option<String> {
        let owners = task.metadata.owner_references.iter().flatten();
        let mut parents = owners.filter(|owner| owner.kind == UpgradeTask::kind(&()));
        let parent = parents.find(|owner| self.of_cluster.contains(&owner.name))?;
        Some(parent.name.clone())
    }

    /// The spec of the task that continues: that of the previous one.
    fn next_spec(&self) -> UpgradeTaskSpec {
        let requested = self.version.version();
        let Some(task) = self.pausing() else {
            return UpgradeTaskSpec {
                owner_ref: Some(self.owner.clone()),
                version: requested.cloned(),
                ..UpgradeTaskSpec::of(&self.cluster, Via::Machines)
            };
        };
        let spec = task.spec.clone();
        let version = newest(spec.version.clone(), requested);
        UpgradeTaskSpec {
            stage: Stage::Ongoing,
            on_abort: OnAbort::RollBack,
            // A bundle is for one version.
            bundle: spec.bundle.filter(|_| {
                let of_task = task.status.as_ref().and_then(|status| status.version.as_ref());
                version == spec.version && (version.is_some() || of_task == requested)
            }),
            version,
            // A complete task is done with its Machines: the others keep the owner paused.
            machines: spec.machines.filter(|_| task.phase() != TaskPhase::Complete),
            ..spec
        }
    }

    /// Returns the unfinished task that pauses the owner, or would pause it again.
    pub(crate) fn unfinished(&self) -> Option<&UpgradeTask> {
        self.tasks.iter().find(|task| !has_ended(task))
    }

    /// The owner as a command names it.
    pub(crate) fn argument(&self) -> String {
        owner_argument(&self.owner)
    }
}

/// The version of a task that sets one, or the owner's if that has been raised meanwhile: Kubernetes does not go back.
fn newest(
    of_task: Option<KubernetesVersion>,
    of_owner: Option<&KubernetesVersion>,
) -> Option<KubernetesVersion> {
    let version = of_task?;
    Some(of_owner.filter(|newer| **newer > version).cloned().unwrap_or(version))
}

/// Whether two references name the same owner. The version of the API does not count.
fn is_same(one: &GroupOwner, other: &GroupOwner) -> bool {
    (&one.kind, &one.name) == (&other.kind, &other.name)
}

/// Whether a task is being stopped or deleted.
pub(crate) fn is_stopping(task: &UpgradeTask) -> bool {
    match task.spec.stage {
        Stage::Ongoing => task.metadata.deletion_timestamp.is_some(),
        Stage::Abort => true,
    }
}

/// Name of a task.
pub(crate) fn name(task: &UpgradeTask) -> &str {
    task.metadata.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use refit_kinds::keys;
    use serde_json::{Value, json};

    use super::*;

    fn task(name: &str, phase: &str, spec: &Value) -> UpgradeTask {
        let mut all = json!({
            "clusterRef": {"name": "c"}, "version": "v1.35.0", "via": "Machines",
            "ownerRef": {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "name": "md"},
        });
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": all, "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn left(tasks: Vec<UpgradeTask>) -> LeftOwner {
        LeftOwner {
            owner: GroupOwner {
                api_version: "cluster.x-k8s.io/v1beta2".into(),
                kind: "MachineDeployment".into(),
                name: "md".into(),
            },
            cluster: "c".into(),
            version: "v1.35.0".into(),
            paused_by: PausedBy::Task("old".into()),
            tasks,
            of_cluster: vec!["all".into()],
        }
    }

    fn created(left: &LeftOwner) -> (UpgradeTaskSpec, Vec<String>) {
        match left.continuation() {
            Continuation::Create { spec, stop } => (*spec, stop),
            other @ (Continuation::AtWork(_)
            | Continuation::Unblock { .. }
            | Continuation::Remake { .. }) => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_a_task_that_pauses_an_owner_has_left_it_paused() {
        let of = |keys: &[&str]| {
            let value = |key: &str| if key == keys::PAUSED { keys::TASK } else { "old" };
            let pairs = keys.iter().map(|key| ((*key).to_owned(), value(key).to_owned()));
            pairs.collect::<BTreeMap<_, _>>()
        };
        let of_task = Some(PausedBy::Task("old".into()));
        assert_eq!(paused_by(&of(&[keys::PAUSED, keys::TASK])), of_task);
        assert_eq!(paused_by(&of(&[keys::PAUSED])), None, "another client paused it");
        assert_eq!(paused_by(&of(&[keys::TASK])), None);
        let mut held = BTreeMap::from([(keys::PAUSED.to_owned(), keys::HELD.to_owned())]);
        assert_eq!(paused_by(&held), Some(PausedBy::Hold));
        held.insert(keys::TASK.to_owned(), "old".to_owned());
        assert_eq!(paused_by(&held), Some(PausedBy::Hold), "a client has left the name of a task");
    }

    #[test]
    fn a_held_owner_gets_a_task_for_what_it_requests() {
        let held = LeftOwner { paused_by: PausedBy::Hold, ..left(Vec::new()) };
        let (spec, stop) = created(&held);
        assert_eq!((spec.via, spec.version), (Via::Machines, Some("v1.35.0".parse().unwrap())));
        assert_eq!(spec.owner_ref.map(|owner| owner.name), Some("md".into()));
        assert!(stop.is_empty());
        let tasks = vec![task("new", "Pending", &json!({}))];
        let at_work = LeftOwner { paused_by: PausedBy::Hold, ..left(tasks) };
        assert_eq!(at_work.continuation(), Continuation::AtWork("new".into()));
    }

    #[test]
    fn a_task_continues_an_aborted_one_with_its_spec() {
        let machines = json!({"machines": ["a"], "stage": "Abort"});
        let old = task("old", "Aborted", &machines);
        let (spec, stop) = created(&left(vec![old.clone()]));
        assert_eq!(spec, UpgradeTaskSpec { stage: Stage::Ongoing, ..old.spec });
        assert!(stop.is_empty(), "{stop:?}");
        // A complete one is done with its Machines.
        let (spec, _) = created(&left(vec![task("old", "Complete", &machines)]));
        assert_eq!(spec.machines, None);
    }

    #[test]
    fn a_failed_task_is_stopped_first() {
        let (_, stop) = created(&left(vec![task("old", "Failed", &json!({}))]));
        assert_eq!(stop, ["old"]);
        let stopping = task("old", "Failed", &json!({"stage": "Abort"}));
        assert!(created(&left(vec![stopping])).1.is_empty());
    }

    #[test]
    fn without_the_object_the_task_is_for_what_the_owner_requests() {
        let (spec, _) = created(&left(Vec::new()));
        assert_eq!(spec.version, Some("v1.35.0".parse().unwrap()));
        assert_eq!((spec.cluster_ref.name.as_str(), spec.via), ("c", Via::Machines));
        assert_eq!(spec.owner_ref.unwrap().name, "md");
    }

    #[test]
    fn an_unfinished_task_is_at_work() {
        let tasks = vec![task("old", "Aborted", &json!({})), task("new", "Pending", &json!({}))];
        assert_eq!(left(tasks.clone()).continuation(), Continuation::AtWork("new".into()));
        assert_eq!(left(tasks).unfinished().map(name), Some("new"));
    }

    #[test]
    fn a_task_that_waits_for_a_failed_one_is_unblocked() {
        let tasks = vec![task("old", "Failed", &json!({})), task("new", "Pending", &json!({}))];
        let (task, stop) = ("new".to_owned(), vec!["old".to_owned()]);
        assert_eq!(left(tasks).continuation(), Continuation::Unblock { task, stop });
    }

    #[test]
    fn a_task_that_is_being_deleted_is_not_at_work() {
        let mut old = task("old", "Ongoing", &json!({}));
        old.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        assert!(created(&left(vec![old])).1.is_empty());
    }

    #[test]
    fn the_part_of_a_clusters_task_is_made_again_by_it() {
        let mut old = task("old", "Failed", &json!({}));
        old.metadata.owner_references = Some(vec![
            serde_json::from_value(json!({
                "apiVersion": "refit.dev/v1alpha1", "kind": "UpgradeTask", "name": "all", "uid": "u",
            }))
            .unwrap(),
        ]);
        let (task, parent) = ("old".to_owned(), "all".to_owned());
        let mut left = left(vec![old]);
        assert_eq!(left.continuation(), Continuation::Remake { task, parent });
        left.of_cluster.clear();
        assert_eq!(created(&left).1, ["old"], "the Cluster's task has ended");
    }

    #[test]
    fn an_owner_that_was_raised_meanwhile_keeps_its_version() {
        let mut owner = left(vec![task("old", "Aborted", &json!({}))]);
        owner.version = "v1.35.4".into();
        assert_eq!(created(&owner).0.version, Some("v1.35.4".parse().unwrap()));
        owner.version = "v1.34.2".into();
        assert_eq!(created(&owner).0.version, Some("v1.35.0".parse().unwrap()));
    }
}
