//! Runs in which UpgradeTasks upgrade the machines: what operators do with them, and how their end is judged.

use refit_kinds::{
    json::{annotation, condition, name, text, whole_condition},
    keys,
};
use serde_json::Value;

use super::{
    fault::Setting,
    rule::{Problem, Rule},
    shape::CLUSTER,
};
use crate::{
    random::Random,
    script::{look::owners, session::Session},
    world::World,
};

/// Numbers of tasks that follow an aborted or deleted one.
const NUMBERS: u32 = 1_000_000;

/// The line that creates the UpgradeTask of an owner for a version. A task that follows another one has a number.
pub(super) fn create(owner: &str, version: &str, number: Option<u32>) -> String {
    let (_, owner_name) = owner.split_once('/').unwrap_or_default();
    let (group, kind) = if owner.starts_with("md/") {
        ("cluster.x-k8s.io", "MachineDeployment")
    } else {
        ("controlplane.cluster.x-k8s.io", "KubeadmControlPlane")
    };
    let name = task_name(owner, version, number);
    format!(
        "apply <<END\n{{apiVersion: refit.dev/v1alpha1, kind: UpgradeTask, \
         metadata: {{name: {name}, namespace: default}}, \
         spec: {{clusterRef: {{name: {CLUSTER}}}, ownerRef: {{apiVersion: {group}/v1beta2, \
         kind: {kind}, name: {owner_name}}}, version: {version}, via: Machines}}}}\nEND"
    )
}

fn task_name(owner: &str, version: &str, number: Option<u32>) -> String {
    let (kind, _) = owner.split_once('/').unwrap_or_default();
    let number = number.map(|number| format!("-{number}")).unwrap_or_default();
    format!("{kind}-{version}{number}")
}

/// An operator aborts the newest task of an owner, and later creates another one.
pub(super) fn abort(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let (task, again) = newest_and_next(random, setting);
    vec![format!("change {task} spec.stage Abort"), again]
}

/// An operator deletes the newest task of an owner, and later creates another one.
pub(super) fn delete(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let (task, again) = newest_and_next(random, setting);
    vec![format!("delete {task}"), again]
}

fn newest_and_next(random: &mut Random, setting: &Setting<'_>) -> (String, String) {
    let owner = setting.shape.owner(random);
    let version = &setting.version.now;
    let (minutes, number) = (random.between(1, 30), random.between(1, NUMBERS));
    let task = format!("upgradetask/{}", task_name(&owner, version, None));
    (task, format!("at {minutes}m {}", create(&owner, version, Some(number))))
}

/// The line that requests a version of the whole cluster.
pub(super) fn request_cluster(version: &str) -> String {
    format!(
        "apply <<END\n{{apiVersion: refit.dev/v1alpha1, kind: ClusterUpgrade, \
         metadata: {{name: {CLUSTER}, namespace: default}}, \
         spec: {{version: {version}, stage: Ongoing, startWithinMinutes: 0}}}}\nEND"
    )
}

/// An operator cancels the upgrade of the cluster, and later requests it again.
pub(super) fn cancel_cluster(random: &mut Random) -> Vec<String> {
    let stage = format!("change clusterupgrade/{CLUSTER} spec.stage");
    vec![format!("{stage} Abort"), format!("at {}m {stage} Ongoing", random.between(1, 30))]
}

/// An operator deletes the upgrade of the cluster, and later creates it again.
pub(super) fn delete_cluster(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let again = request_cluster(&setting.version.now);
    vec![
        format!("delete clusterupgrade/{CLUSTER}"),
        format!("at {}m {again}", random.between(1, 30)),
    ]
}

/// The status of the upgrade of the cluster is lost.
pub(super) fn lose_cluster() -> Vec<String> {
    vec![format!("change clusterupgrade/{CLUSTER} status -")]
}

/// Whether the upgrade of a cluster has ended for its last request.
pub(super) fn cluster_has_ended(upgrade: &Value) -> bool {
    let status = &upgrade["status"];
    ["Completed", "Failed"].contains(&text(status, "/phase"))
        && status["observedGeneration"] == upgrade["metadata"]["generation"]
}

/// What is wrong with the upgrades of clusters in a world that had hours to settle. `is_done` is whether all machines of a
/// Cluster are.
pub(super) fn cluster_problems(session: &Session, is_done: impl Fn(&str) -> bool) -> Vec<Problem> {
    let problem = |upgrade: &Value| {
        let machines_are_done = is_done(name(upgrade));
        let message = message(upgrade, "Ready");
        let phase = text(upgrade, "/status/phase");
        let version = text(upgrade, "/spec/version");
        let runs_another = || {
            let machines = session.world.machines();
            let is_another = |machine: &Value| {
                text(machine, "/spec/clusterName") == name(upgrade)
                    && text(machine, "/spec/version") != version
            };
            let mut others = machines.iter().filter(|one| is_another(one));
            others.next().map(|machine| name(machine).to_owned())
        };
        let (rule, what) = if message.is_empty() {
            (Rule::NotShown, "gives no reason".to_owned())
        } else if machines_are_done && !cluster_has_ended(upgrade) {
            (Rule::WaitWithoutEnd, format!("does not end although nothing is wrong: {message}"))
        } else if machines_are_done && phase == "Failed" {
            (Rule::WaitWithoutEnd, format!("has failed: {message}"))
        } else if let Some(machine) = runs_another().filter(|_| phase == "Completed") {
            (Rule::TurnNeverComes, format!("is completed, and {machine} has another version"))
        } else {
            return None;
        };
        let text = format!("ClusterUpgrade {} to {version} is {phase} and {what}", name(upgrade));
        Some(Problem { rule, text: session.names.shown(&text) })
    };
    session.world.cluster_upgrades().iter().filter_map(problem).collect()
}

/// Whether a task has ended for good.
pub(super) fn has_ended(task: &Value) -> bool {
    ["Complete", "Aborted"].contains(&text(task, "/status/phase"))
}

pub(super) fn of_owner<'a>(all: &'a [Value], owner: &'a str) -> impl Iterator<Item = &'a Value> {
    all.iter().filter(move |task| text(task, "/spec/ownerRef/name") == owner)
}

/// Whether a task of this owner names a Machine as failed, and so that an operator has to act.
pub(super) fn names_as_failed(world: &World, owner: &str, machine: &str) -> bool {
    of_owner(&world.upgrade_tasks(), owner).any(|task| {
        let failures = task.pointer("/status/failures").and_then(Value::as_array);
        failures.into_iter().flatten().any(|failure| text(failure, "/machine") == machine)
    })
}

/// Whether a task of this owner has not ended, and shows what it waits for.
pub(super) fn shows_why(world: &World, owner: &str) -> bool {
    of_owner(&world.upgrade_tasks(), owner)
        .any(|task| !has_ended(task) && !message(task, "Ready").is_empty())
}

/// Whether a task of this owner has failed because a Machine is missing, and shows that only an operator ends it.
pub(super) fn lacks_a_machine(world: &World, owner: &str) -> bool {
    of_owner(&world.upgrade_tasks(), owner).any(|task| {
        let ready = whole_condition(task, "Ready");
        let reason = ready.map_or("", |ready| text(ready, "/reason"));
        text(task, "/status/phase") == "Failed" && reason == "MachineMissing"
    })
}

/// Whether a task of this owner has ended, and shows that the owner stays paused because of a Machine.
pub(super) fn is_left(world: &World, owner: &str, machine: &str) -> bool {
    of_owner(&world.upgrade_tasks(), owner).any(|task| {
        let is_paused = condition(task, "OwnerPaused") == Some("True");
        let mut words = message(task, "OwnerPaused").split(' ');
        let names = |word: &str| word.trim_end_matches([',', '.', ';']) == machine;
        has_ended(task) && is_paused && words.any(names)
    })
}

fn message<'a>(task: &'a Value, condition: &str) -> &'a str {
    whole_condition(task, condition).map_or("", |condition| text(condition, "/message"))
}

/// The problems of tasks in a world that had hours to settle. `done` are the owners all of whose machines are
/// updated.
pub(super) fn problems(session: &Session, done: &[String]) -> Vec<Problem> {
    let all = session.world.upgrade_tasks();
    let mut found: Vec<Problem> =
        all.iter().filter_map(|task| problem(session, task, done)).collect();
    for owner in owners(&session.world) {
        let is_done = done.iter().any(|one| one == name(&owner));
        let by = annotation(&owner, keys::TASK);
        if let Some(task) = by.filter(|_| is_done && of_owner(&all, name(&owner)).all(has_ended)) {
            let text =
                format!("{} is updated, and stays paused by UpgradeTask {task}", name(&owner));
            found.push(Problem { rule: Rule::Invariant8, text: session.names.shown(&text) });
        }
    }
    for machine in session.world.machines() {
        let Some(task) = annotation(&machine, keys::TASK) else { continue };
        if !all.iter().any(|one| name(one) == task && !has_ended(one)) {
            let text = format!("Machine {} has the mark of UpgradeTask {task}", name(&machine));
            found.push(Problem { rule: Rule::Invariant8, text: session.names.shown(&text) });
        }
    }
    found
}

/// What is wrong with a task that has not ended.
fn problem(session: &Session, task: &Value, done: &[String]) -> Option<Problem> {
    if has_ended(task) {
        return None;
    }
    let message = message(task, "Ready");
    let phase = text(task, "/status/phase");
    let (rule, what) = if message.is_empty() {
        (Rule::NotShown, "gives no reason".to_owned())
    } else if done.iter().any(|owner| owner == text(task, "/spec/ownerRef/name")) {
        (Rule::WaitWithoutEnd, format!("does not end although all machines are updated: {message}"))
    } else {
        return None;
    };
    let text = format!("UpgradeTask {} is {phase} and {what}", name(task));
    Some(Problem { rule, text: session.names.shown(&text) })
}
