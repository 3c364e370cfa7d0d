//! `refit release OWNER --accept-replacement`: Cluster API goes on with an owner that an UpgradeTask has left paused.

use std::{collections::BTreeMap, fmt::Debug};

use anyhow::bail;
use kube::{Resource, ResourceExt as _, core::NamespaceResourceScope};
use refit_cluster_api::kinds::{KubeadmControlPlane, MachineDeployment};
use refit_kinds::{
    keys,
    refit::{Stage, UpgradeTask},
    version::StatedVersion,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    ask::{Decision, ask},
    client::Cluster,
    except::Action,
    global::program,
    left::{LeftOwner, name, pausing_task},
    target::{Target, TargetKind},
};

/// How many machines a message names.
const NAMED: usize = 5;

/// The result for an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// Its namespace.
    pub(crate) namespace: String,
    /// `Kind/name`.
    pub(crate) owner: String,
    /// What was done.
    pub(crate) action: Action,
    /// A sentence about it.
    pub(crate) message: String,
}

/// Everything that the release of an owner is decided on, but for its annotations.
struct Facts {
    left: Option<LeftOwner>,
    /// The machines that have another version than the owner.
    outdated: Vec<String>,
    /// Whether the operator accepts that Cluster API replaces them.
    accepted: bool,
}

/// Parses what can be released: a Machine, with or without its kind, or the owner of a task's machines.
pub(crate) fn argument(text: &str) -> Result<Target, String> {
    let full = if text.contains('/') { text.to_owned() } else { format!("machine/{text}") };
    let target: Target = full.parse()?;
    match target.kind {
        TargetKind::Machine | TargetKind::ControlPlane | TargetKind::MachineDeployment => {
            Ok(target)
        }
        TargetKind::Cluster | TargetKind::MachineSet => {
            Err(format!("{target} cannot be released, expected MACHINE, kcp/NAME or md/NAME"))
        }
    }
}

/// Lets Cluster API go on with an owner.
pub(crate) async fn release(
    cluster: &Cluster,
    owner: &Target,
    accepted: bool,
    dry_run: bool,
) -> anyhow::Result<Row> {
    let found = owner.reference(cluster).await?;
    let facts =
        Facts { left: None, outdated: outdated(cluster, owner, &found.version).await?, accepted };
    match owner.kind {
        TargetKind::ControlPlane => {
            write::<KubeadmControlPlane>(cluster, owner, facts, dry_run).await
        }
        TargetKind::MachineDeployment => {
            write::<MachineDeployment>(cluster, owner, facts, dry_run).await
        }
        TargetKind::Cluster | TargetKind::MachineSet | TargetKind::Machine => {
            bail!("{owner} cannot be released, expected kcp/NAME or md/NAME")
        }
    }
}

/// The machines of an owner that have another version than it requests.
async fn outdated(
    cluster: &Cluster,
    owner: &Target,
    version: &StatedVersion,
) -> anyhow::Result<Vec<String>> {
    let machines = owner.gather(cluster).await?.machines;
    let is_outdated = machines.iter().filter(|machine| machine.spec.version != *version);
    Ok(is_outdated.map(kube::ResourceExt::name_any).collect())
}

async fn write<K>(
    cluster: &Cluster,
    owner: &Target,
    facts: Facts,
    dry_run: bool,
) -> anyhow::Result<Row>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    let object: K = cluster.get(&owner.name).await?.ok_or_else(|| owner.missing(cluster))?;
    // Read after the owner: a task that was created before this read pauses it again, and is seen.
    let left = LeftOwner::read(cluster, owner, &owner.reference(cluster).await?).await?;
    let facts = &Facts { left, ..facts };
    let decide = |object: &K| {
        let (action, message) = facts.decide(object.annotations());
        let namespace = object.namespace().unwrap_or_default();
        let row = Row { namespace, owner: owner.to_string(), action, message };
        let annotations = json!({keys::PAUSED: null, keys::TASK: null});
        let patch = json!({"metadata": {"annotations": annotations}});
        Some(Decision { row, patch: (action == Action::Set).then_some(patch) })
    };
    ask(cluster, &object, dry_run, decide).await?.ok_or_else(|| owner.missing(cluster))
}

impl Facts {
    /// Decides about an owner with these annotations.
    fn decide(&self, annotations: &BTreeMap<String, String>) -> (Action, String) {
        if !annotations.contains_key(keys::PAUSED) {
            return (Action::None, "not paused by Refit".to_owned());
        }
        let Some(task) = pausing_task(annotations) else {
            let message = format!(
                "paused by another client, not by Refit: annotation {} without {}; only that client can \
                 release it",
                keys::PAUSED,
                keys::TASK
            );
            return (Action::Refused, message);
        };
        let Some(left) = self.left.as_ref().filter(|left| left.task == task) else {
            let message = format!("UpgradeTask/{task} has paused it in the meantime; try again");
            return (Action::Refused, message);
        };
        if let Some(task) = left.unfinished() {
            return (Action::Refused, stop_first(task));
        }
        if let Some(task) = left.of_cluster.first() {
            let message = format!(
                "UpgradeTask/{task} of the whole Cluster has not ended, and would go on with it. {}",
                how_to_stop(task)
            );
            return (Action::Refused, message);
        }
        let machines = named(&self.outdated);
        if self.accepted {
            return (Action::Set, format!("Cluster API goes on, and replaces {machines}"));
        }
        let (program, owner) = (program(), left.argument());
        let message = format!(
            "Cluster API would replace {machines}. `{program} resume {owner}` upgrades them in place; `{program} \
             release {owner} --accept-replacement` lets Cluster API replace them"
        );
        (Action::Refused, message)
    }
}

/// How an unfinished task ends, which would pause its owner again.
fn stop_first(task: &UpgradeTask) -> String {
    let name = name(task);
    match task.spec.stage {
        Stage::Ongoing => {
            let how = how_to_stop(name);
            format!("UpgradeTask/{name} has not ended, and would pause it again. {how}")
        }
        Stage::Abort => format!("UpgradeTask/{name} is being stopped; try again when it has ended"),
    }
}

fn how_to_stop(task: &str) -> String {
    format!(
        "Stop the task first: kubectl patch upgradetask {task} --type merge -p '{{\"spec\":{{\"stage\":\"Abort\"}}}}'"
    )
}

/// The first machines, and how many there are besides; others may differ from the owner's spec by more than their version.
fn named(machines: &[String]) -> String {
    let (first, more) = machines.split_at(machines.len().min(NAMED));
    match (first, more.len()) {
        ([], _) => "the machines that differ from its spec".to_owned(),
        (first, 0) => format!("{}, and others that differ from its spec", first.join(", ")),
        (first, more) => {
            format!("{} and {more} more, and others that differ from its spec", first.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::GroupOwner;
    use serde_json::Value;

    use super::*;

    fn annotations(keys: &[&str]) -> BTreeMap<String, String> {
        keys.iter().map(|key| ((*key).to_owned(), "old".to_owned())).collect()
    }

    fn facts(tasks: &Value, accepted: bool) -> Facts {
        let left = LeftOwner {
            owner: GroupOwner {
                api_version: "v1".into(),
                kind: "MachineDeployment".into(),
                name: "md".into(),
            },
            cluster: "c".into(),
            version: "v1.35.0".into(),
            task: "old".into(),
            tasks: serde_json::from_value(tasks.clone()).unwrap(),
            of_cluster: Vec::new(),
        };
        let outdated = ["a", "b", "c", "d", "e", "f"].map(str::to_owned).to_vec();
        Facts { left: Some(left), outdated, accepted }
    }

    fn task(phase: &str, stage: &str) -> Value {
        json!([{
            "metadata": {"name": "old"}, "status": {"phase": phase},
            "spec": {"clusterRef": {"name": "c"}, "via": "Machines", "stage": stage},
        }])
    }

    #[test]
    fn release_of_an_owner_names_the_machines_that_cluster_api_replaces() {
        let paused = annotations(&[keys::PAUSED, keys::TASK]);
        let (action, text) = facts(&task("Aborted", "Abort"), false).decide(&paused);
        assert_eq!(action, Action::Refused);
        for words in [
            "replace a, b, c, d, e and 1 more",
            "resume machinedeployment/md",
            "release machinedeployment/md --accept-replacement",
        ] {
            assert!(text.contains(words), "{text}");
        }
        let (action, text) = facts(&task("Aborted", "Abort"), true).decide(&paused);
        assert_eq!(action, Action::Set, "{text}");
        // The object of the task is gone.
        assert_eq!(facts(&json!([]), true).decide(&paused).0, Action::Set);
    }

    #[test]
    fn release_of_an_owner_waits_for_the_end_of_its_task() {
        let paused = annotations(&[keys::PAUSED, keys::TASK]);
        let table = [
            ("Ongoing", "Ongoing", "kubectl patch upgradetask old"),
            ("Failed", "Ongoing", r#"-p '{"spec":{"stage":"Abort"}}'"#),
            ("Ongoing", "Abort", "is being stopped"),
        ];
        for (phase, stage, words) in table {
            let (action, text) = facts(&task(phase, stage), true).decide(&paused);
            assert_eq!(action, Action::Refused, "{phase}");
            assert!(text.contains(words), "{phase}: {text}");
        }
    }

    #[test]
    fn release_leaves_the_pause_of_another_client() {
        let facts = facts(&json!([]), true);
        let (action, text) = facts.decide(&annotations(&[keys::PAUSED]));
        assert_eq!(action, Action::Refused);
        assert!(text.contains("paused by another client"), "{text}");
        assert_eq!(facts.decide(&annotations(&[])).0, Action::None);
        let mut newer = annotations(&[keys::PAUSED, keys::TASK]);
        newer.insert(keys::TASK.to_owned(), "new".to_owned());
        assert!(facts.decide(&newer).1.contains("try again"));
    }

    #[test]
    fn a_cluster_is_not_released() {
        assert_eq!(argument("x-1").unwrap().kind, TargetKind::Machine);
        assert_eq!(argument("kcp/x").unwrap().kind, TargetKind::ControlPlane);
        for text in ["cluster/x", "ms/x"] {
            assert!(argument(text).unwrap_err().contains("expected MACHINE, kcp/NAME or md/NAME"));
        }
    }
}
