//! `refit release OWNER --accept-replacement`: Cluster API goes on with an owner that an UpgradeTask has left paused.

use std::{collections::BTreeMap, fmt::Debug};

use anyhow::bail;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Resource, ResourceExt as _, core::NamespaceResourceScope};
use refit_cluster_api::kinds::{Cluster as ClusterObject, KubeadmControlPlane, MachineDeployment};
use refit_core::change::{OnUncovered, PolicyDefaults, asked::holds_replacements, policy};
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
    left::{LeftOwner, PausedBy, name, paused_by},
    plan::gather::default_policy,
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
    /// For a control plane of one machine, in a namespace that holds replacements.
    hold: Option<Hold>,
    /// Whether the operator accepts that Cluster API replaces them.
    accepted: bool,
}

/// What decides whether a second machine is refused, but for the annotations of the control plane.
#[derive(Default)]
struct Hold {
    /// Annotations of its Cluster.
    of_cluster: BTreeMap<String, String>,
    /// The controller's default.
    on_uncovered: OnUncovered,
}

impl Hold {
    /// Reads the hold of a control plane. A namespace that cannot be read counts as one without holds.
    async fn read(cluster: &Cluster, owner: &Target, of: &str) -> anyhow::Result<Option<Self>> {
        let Some(plane) = cluster.get::<KubeadmControlPlane>(&owner.name).await? else {
            return Ok(None);
        };
        let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
        let namespace = namespaces.get(&cluster.namespace).await.ok();
        let holds = namespace.is_some_and(|one| holds_replacements(one.labels()));
        if plane.spec.replicas.unwrap_or(1) != 1 || !holds {
            return Ok(None);
        }
        let of_cluster = cluster.get::<ClusterObject>(of).await?;
        Ok(Some(Self {
            of_cluster: of_cluster.map(|one| one.annotations().clone()).unwrap_or_default(),
            on_uncovered: default_policy(cluster).await,
        }))
    }

    /// Whether the API server refuses a second machine of a control plane with these annotations.
    fn refuses(&self, owner: &BTreeMap<String, String>) -> bool {
        let default =
            PolicyDefaults { on_uncovered: self.on_uncovered, ..PolicyDefaults::default() };
        let policy = policy(owner, &self.of_cluster, default);
        !policy.disabled && policy.on_uncovered != OnUncovered::Replace
    }
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
    let hold = match owner.kind {
        TargetKind::ControlPlane => Hold::read(cluster, owner, &found.cluster).await?,
        TargetKind::Cluster
        | TargetKind::MachineDeployment
        | TargetKind::MachineSet
        | TargetKind::Machine => None,
    };
    let outdated = outdated(cluster, owner, &found.version).await?;
    let facts = Facts { left: None, outdated, hold, accepted };
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
        let Some(by) = paused_by(annotations) else {
            let message = format!(
                "paused by another client: annotation {paused} is neither {held}, nor {task} next to annotation {task} with \
                 the name of a task; only that client can release it",
                paused = keys::PAUSED,
                held = keys::HELD,
                task = keys::TASK
            );
            return (Action::Refused, message);
        };
        let task = match &by {
            PausedBy::Task(task) => task,
            PausedBy::Hold => return (Action::Refused, held()),
        };
        let Some(left) = self.left.as_ref().filter(|left| left.paused_by == by) else {
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
        let would_be_replaced = !self.outdated.is_empty();
        if would_be_replaced && self.hold.as_ref().is_some_and(|hold| hold.refuses(annotations)) {
            return (Action::Refused, would_be_held(&left.argument()));
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

/// The ways out for a control plane that Refit has paused because of a hold.
fn held() -> String {
    format!(
        "Refit has paused it because Cluster API would replace its only machine, and the namespace holds replacements. To \
         have the machine replaced, annotate the control plane or its Cluster with {}=Replace: Refit then removes the pause \
         itself. To update it in place, annotate with {}=InPlace. To keep it as it is, set the spec of the control plane back",
        keys::ON_UNCOVERED,
        keys::SINGLE_REPLICA
    )
}

/// Why a control plane of one machine that a task has left paused is not released.
fn would_be_held(owner: &str) -> String {
    format!(
        "the API server would refuse the machine that replaces the only one, because the namespace holds replacements, and \
         Refit would pause the control plane again. `{} resume {owner}` updates the machine in place; to have it replaced, \
         annotate the control plane or its Cluster with {}=Replace first",
        program(),
        keys::ON_UNCOVERED
    )
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
        let value = |key: &str| if key == keys::PAUSED { keys::TASK } else { "old" };
        keys.iter().map(|key| ((*key).to_owned(), value(key).to_owned())).collect()
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
            paused_by: PausedBy::Task("old".into()),
            tasks: serde_json::from_value(tasks.clone()).unwrap(),
            of_cluster: Vec::new(),
        };
        let outdated = ["a", "b", "c", "d", "e", "f"].map(str::to_owned).to_vec();
        Facts { left: Some(left), outdated, hold: None, accepted }
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
    fn release_names_the_ways_out_of_a_hold() {
        let held = BTreeMap::from([(keys::PAUSED.to_owned(), keys::HELD.to_owned())]);
        let (action, text) = facts(&json!([]), true).decide(&held);
        assert_eq!(action, Action::Refused);
        for words in ["on-uncovered=Replace", "single-replica=InPlace", "set the spec"] {
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn release_does_not_let_cluster_api_run_into_a_hold() {
        let of = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let none = BTreeMap::new();
        let (replace, disabled) =
            (of(keys::ON_UNCOVERED, "Replace"), of(keys::IN_PLACE, "Disabled"));
        let table = [
            (&none, &none, OnUncovered::Preserve, Action::Refused),
            (&replace, &none, OnUncovered::Preserve, Action::Set),
            (&none, &replace, OnUncovered::Preserve, Action::Set),
            (&none, &disabled, OnUncovered::Preserve, Action::Set),
            (&none, &none, OnUncovered::Replace, Action::Set),
        ];
        for (owner, cluster, on_uncovered, wanted) in table {
            let hold = Some(Hold { of_cluster: cluster.clone(), on_uncovered });
            let facts = Facts { hold, ..facts(&json!([]), true) };
            let mut paused = annotations(&[keys::PAUSED, keys::TASK]);
            paused.extend(owner.clone());
            let (action, text) = facts.decide(&paused);
            assert_eq!(action, wanted, "{text}");
            assert_eq!(action == Action::Refused, text.contains("on-uncovered=Replace"), "{text}");
        }
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
