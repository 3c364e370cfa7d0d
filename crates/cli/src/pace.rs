//! `refit pause`, `refit resume` and `refit approve`: when the next machine of a group may begin.

use std::process::ExitCode;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{ResourceExt as _, api::DeleteParams};
use refit_core::group::{OwnerPacing, Pace, stopped_rollout};
use refit_kinds::{
    keys,
    refit::{
        GroupOwner, Pacing, Stage, UpdateGroup, UpdateGroupSpec, UpgradeTask, update_group_name,
    },
};
use refit_runtime::apply;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    ask::{AskArgs, Decision, ask, report},
    client::{self, Cluster, attempt_on},
    exit,
    global::GlobalArgs,
    left::{Continuation, LeftOwner, PausedBy},
    printer::Printer,
    target::{Target, TargetKind},
    upgrade::task,
};

/// Exit code if there is nothing to do.
const EXIT_NOTHING: u8 = 3;

/// Flags of `refit pause`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit pause md/edge-1-md-0
  refit pause cluster/edge-1

The command sets spec.pacing.paused of the UpdateGroups of KIND/NAME. Machines that are being updated are \
finished; the others wait with the reason Paused, whatever requests their update. Unlike a paused owner, \
Cluster API goes on with everything else.

-o json writes one array of {namespace, owner, action, message}; action is set, already or none.

Exit codes:
  0  at least one group is paused
  1  the cluster cannot be read or written
  2  the command line is invalid
  3  KIND/NAME has no machines")]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    ask: AskArgs,
}

/// Flags of `refit resume`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit resume md/edge-1-md-0

The command ends what `refit pause` began. If the failures of a rollout have stopped it, it goes on \
without the machines that failed: only later failures count (spec.pacing.failuresSince). To repeat \
their updates, use `refit retry`.

If an UpgradeTask that was aborted, has failed, or left machines out keeps the owner paused, the command \
creates another UpgradeTask with the same spec, which upgrades the outdated machines in place. A failed \
task is stopped first. For a control plane that Refit has paused because its namespace holds replacements \
(cluster.x-k8s.io/paused: refit.dev/held), it creates one for what the control plane requests. To let Cluster API replace the machines instead, use `refit release`.

-o json writes one array of {namespace, owner, action, message}; action is set, already or none.

Exit codes:
  0  at least one group goes on, or an UpgradeTask works on it
  1  the cluster cannot be read or written
  2  the command line is invalid
  3  nothing was paused or stopped")]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    ask: AskArgs,
}

/// Flags of `refit approve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit approve md/edge-1-md-0

A group with spec.pacing.pauseAfter waits after so many machines of each rollout. The command lets the \
rollout that waits go on (spec.pacing.approve), and no later one.

-o json writes one array of {namespace, owner, action, message}; action is set, already or none.

Exit codes:
  0  at least one rollout goes on
  1  the cluster cannot be read or written
  2  the command line is invalid
  3  no rollout waits for an approval")]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    ask: AskArgs,
}

/// What a command does with a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Action {
    /// The group's pacing was changed.
    Set,
    /// It was so before.
    Already,
    /// There is nothing to do.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    owner: String,
    action: Action,
    message: String,
}

/// Decides what a command changes of a group's pacing, and the message.
type Decide = fn(&UpdateGroup) -> (Action, String, Value);

/// Runs `refit pause`.
pub(crate) fn pause(args: &PauseArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    run(&args.ask, global, paused, false)
}

/// Runs `refit resume`.
pub(crate) fn resume(args: &ResumeArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    run(&args.ask, global, resumed, true)
}

/// Runs `refit approve`.
pub(crate) fn approve(args: &ApproveArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    run(&args.ask, global, approved, false)
}

/// `resumes`: whether what else pauses the owner counts, too.
fn run(
    args: &AskArgs,
    global: &GlobalArgs,
    decide: Decide,
    resumes: bool,
) -> anyhow::Result<ExitCode> {
    let printer = args.printer(global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        let mut rows = Vec::new();
        let mut outcome = Ok(());
        for owner in owners(&cluster, &args.target).await? {
            match set(&cluster, &owner, args.dry_run, decide).await {
                Ok(row) if resumes => {
                    match with_owner(&cluster, &owner, row.clone(), args.dry_run).await {
                        Ok(row) => rows.push(row),
                        Err(error) => {
                            rows.push(row);
                            outcome = Err(error);
                            break;
                        }
                    }
                }
                Ok(row) => rows.push(row),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // What is done is shown, also if the rest is not.
        if outcome.is_ok() || !rows.is_empty() {
            show(printer, args, &rows)?;
        }
        outcome?;
        let nothing = rows.iter().all(|row| row.action == Action::None);
        Ok(if nothing { ExitCode::from(EXIT_NOTHING) } else { ExitCode::SUCCESS })
    })
}

/// The owners of the target's groups.
async fn owners(cluster: &Cluster, target: &Target) -> anyhow::Result<Vec<Target>> {
    match target.kind {
        TargetKind::Cluster => {
            let found = target.gather(cluster).await?;
            let of_groups = found.groups.iter().filter_map(|group| {
                let owner = &group.spec.owner;
                format!("{}/{}", owner.kind, owner.name).parse().ok()
            });
            let mut owners: Vec<Target> = of_groups.chain(target.owners(cluster).await?).collect();
            owners.retain(Target::owns_machines);
            owners.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
            owners.dedup();
            Ok(owners)
        }
        TargetKind::ControlPlane | TargetKind::MachineDeployment | TargetKind::MachineSet => {
            target.check(cluster).await?;
            Ok(vec![target.clone()])
        }
        TargetKind::Machine => {
            let owners = target.owners(cluster).await?;
            let of = owners.first().map(|owner| format!(", here {owner}")).unwrap_or_default();
            anyhow::bail!("{target} has no pacing of its own; name its owner{of}")
        }
    }
}

async fn set(
    cluster: &Cluster,
    owner: &Target,
    dry_run: bool,
    decide: Decide,
) -> anyhow::Result<Row> {
    let name = update_group_name(owner.kind.kind(), &owner.name);
    let known = cluster.get::<UpdateGroup>(&name).await?;
    let group = if let Some(group) = known {
        group
    } else {
        let group = new_group(cluster, owner, name).await?;
        // A group that has no pacing needs no object.
        if dry_run || decide(&group).0 == Action::None {
            return Ok(decision(owner, &group, decide).row);
        }
        create(cluster, &group).await?
    };
    let asked = ask(cluster, &group, dry_run, |group| Some(decision(owner, group, decide))).await?;
    asked.ok_or_else(|| owner.missing(cluster))
}

/// Continues what a task has left on the owner, and adds what pauses the group still.
async fn with_owner(
    cluster: &Cluster,
    owner: &Target,
    mut row: Row,
    dry_run: bool,
) -> anyhow::Result<Row> {
    let found = owner.reference(cluster).await?;
    if let Some(left) = LeftOwner::read(cluster, owner, &found).await? {
        let (action, message) = continued(cluster, &left, dry_run).await?;
        row = with_task(row, action, &message);
    }
    if !OwnerPacing::of(&found.annotations).paused {
        return Ok(row);
    }
    let message = format!(
        "{}; but its annotation pauses it: kubectl annotate {} {} {}-",
        row.message,
        owner.kind.kind().to_lowercase(),
        owner.name,
        keys::GROUP_PAUSED
    );
    Ok(Row { message, ..row })
}

/// Creates the task that continues what another one has left, unless one is at work.
async fn continued(
    cluster: &Cluster,
    left: &LeftOwner,
    dry_run: bool,
) -> anyhow::Result<(Action, String)> {
    match left.continuation() {
        Continuation::AtWork(task) => {
            Ok((Action::Already, format!("UpgradeTask/{task} works on it already")))
        }
        Continuation::Unblock { task, stop } => {
            let failed = stop.join(", UpgradeTask/");
            stop_all(cluster, left, &stop, dry_run).await?;
            Ok((
                Action::Set,
                format!("UpgradeTask/{task} continues when UpgradeTask/{failed} has ended"),
            ))
        }
        Continuation::Remake { task, parent } => {
            let params = DeleteParams { dry_run, ..DeleteParams::default() };
            let deleted = cluster.here::<UpgradeTask>().delete(&task, &params).await;
            let attempt = attempt_on::<UpgradeTask>("delete", &task);
            deleted.map_err(|error| cluster.explain(error, &attempt))?;
            Ok((Action::Set, format!("UpgradeTask/{parent} makes its part {task} again")))
        }
        Continuation::Create { spec, stop } => {
            // What is stopped is to be continued: first whether that is allowed.
            if !stop.is_empty() {
                task::create(cluster, &left.owner.name, (*spec).clone(), true).await?;
            }
            stop_all(cluster, left, &stop, dry_run).await?;
            let name = task::create(cluster, &left.owner.name, *spec, dry_run).await?;
            let name =
                if dry_run { "an UpgradeTask".to_owned() } else { format!("UpgradeTask/{name}") };
            let what = match &left.paused_by {
                PausedBy::Task(of) => format!("continues in place what UpgradeTask/{of} left"),
                PausedBy::Hold => "updates its only machine in place".to_owned(),
            };
            Ok((Action::Set, format!("{name} {what}")))
        }
    }
}

/// Stops the tasks with these names.
async fn stop_all(
    cluster: &Cluster,
    left: &LeftOwner,
    names: &[String],
    dry_run: bool,
) -> anyhow::Result<()> {
    for task in left.tasks.iter().filter(|task| names.contains(&task.name_any())) {
        let abort = |task: &UpgradeTask| {
            let is_to_stop = task.spec.stage == Stage::Ongoing;
            let patch = is_to_stop.then(|| json!({"spec": {"stage": Stage::Abort}}));
            Some(Decision { row: (), patch })
        };
        ask(cluster, task, dry_run, abort).await?;
    }
    Ok(())
}

/// Adds what a task does to the row of a group.
fn with_task(row: Row, action: Action, task: &str) -> Row {
    match row.action {
        Action::None => Row { action, message: task.to_owned(), ..row },
        Action::Set | Action::Already => Row { message: format!("{}; {task}", row.message), ..row },
    }
}

fn decision(owner: &Target, group: &UpdateGroup, decide: Decide) -> Decision<Row> {
    let (action, message, pacing) = decide(group);
    let row = Row {
        namespace: group.namespace().unwrap_or_default(),
        owner: owner.to_string(),
        action,
        message,
    };
    let patch = (action == Action::Set).then(|| json!({"spec": {"pacing": pacing}}));
    Decision { row, patch }
}

/// The UpdateGroup of an owner of which no machine has been updated yet.
async fn new_group(cluster: &Cluster, owner: &Target, name: String) -> anyhow::Result<UpdateGroup> {
    let found = owner.reference(cluster).await?;
    let spec = UpdateGroupSpec {
        cluster_name: found.cluster.clone(),
        owner: GroupOwner {
            api_version: found.api_version.clone(),
            kind: owner.kind.kind().to_owned(),
            name: owner.name.clone(),
        },
        control_plane: owner.kind == TargetKind::ControlPlane,
        pacing: Pacing::default(),
    };
    let mut group = UpdateGroup::new(&name, spec);
    group.metadata.namespace = Some(cluster.namespace.clone());
    group.metadata.labels = Some([(keys::CLUSTER_NAME.to_owned(), found.cluster)].into());
    group.metadata.owner_references = Some(vec![OwnerReference {
        api_version: found.api_version,
        kind: owner.kind.kind().to_owned(),
        name: owner.name.clone(),
        uid: found.uid,
        controller: None,
        block_owner_deletion: Some(false),
    }]);
    Ok(group)
}

async fn create(cluster: &Cluster, group: &UpdateGroup) -> anyhow::Result<UpdateGroup> {
    // The controller may be faster.
    let made = apply::create_or_get(&cluster.here(), group).await;
    let attempt = || attempt_on::<UpdateGroup>("create", &group.name_any());
    Ok(made.map_err(|error| cluster.explain(error, &attempt()))?.0)
}

fn paused(group: &UpdateGroup) -> (Action, String, Value) {
    if group.spec.pacing.paused {
        return (Action::Already, "paused before".to_owned(), Value::Null);
    }
    let slots = group.status.as_ref().map_or(&[][..], |status| &status.slots);
    let busy: Vec<&str> = slots.iter().map(|slot| slot.machine.as_str()).collect();
    let rest = if busy.is_empty() {
        "no machine holds a slot".to_owned()
    } else {
        format!("machines that hold a slot are finished: {}", busy.join(", "))
    };
    (Action::Set, format!("paused; {rest}"), json!({"paused": true}))
}

fn resumed(group: &UpdateGroup) -> (Action, String, Value) {
    let pacing = &group.spec.pacing;
    let status = group.status.clone().unwrap_or_default();
    let pace = Pace { pacing: pacing.clone(), ..Pace::default() };
    // Only a limit that is reached is reset.
    let stopped = stopped_rollout(&status, &pace);
    let rollout = status.rollout.filter(|_| stopped.is_some());
    let failures = rollout.map(|rollout| rollout.failures).unwrap_or_default();
    let last = failures.iter().map(|failure| failure.at.clone()).max_by_key(|at| at.0);
    let failed: Vec<&str> = failures.iter().map(|failure| failure.machine.as_str()).collect();
    let without = format!("; the failures of {} do not count any more", failed.join(", "));
    match (pacing.paused, last) {
        (false, None) => {
            (Action::None, "neither paused nor stopped by failures".to_owned(), Value::Null)
        }
        (true, None) => (Action::Set, "goes on".to_owned(), json!({"paused": null})),
        (_, Some(last)) => {
            let pacing = json!({"paused": null, "failuresSince": last});
            (Action::Set, format!("goes on{without}"), pacing)
        }
    }
}

fn approved(group: &UpdateGroup) -> (Action, String, Value) {
    let status = group.status.as_ref();
    let rollout = status.and_then(|status| status.rollout.as_ref());
    let is_approved = |number: &i64| group.spec.pacing.approve == Some(*number);
    // It is not shown as waiting any more once it is approved.
    let before = rollout.map(|rollout| rollout.number).filter(is_approved);
    let Some(number) = status.and_then(|status| status.awaits_approval).or(before) else {
        let why = match group.spec.pacing.pause_after {
            Some(_) => "no rollout waits for an approval",
            None => "its rollouts need no approval (spec.pacing.pauseAfter is not set)",
        };
        return (Action::None, why.to_owned(), Value::Null);
    };
    if is_approved(&number) {
        return (Action::Already, format!("rollout {number} was approved before"), Value::Null);
    }
    (Action::Set, format!("rollout {number} is approved"), json!({"approve": number}))
}

fn show(printer: Printer, args: &AskArgs, rows: &[Row]) -> anyhow::Result<()> {
    report(printer, rows, &format!("{} has no machines", args.target), |row| {
        let dry = args.dry_run && row.action == Action::Set;
        let rest = if dry { " (dry run: nothing was written)" } else { "" };
        format!("{}: {}{rest}", row.owner, row.message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(pacing: &Value, status: &Value) -> UpdateGroup {
        serde_json::from_value(json!({
            "metadata": {"name": "machinedeployment-md", "namespace": "n"},
            "spec": {
                "clusterName": "c", "controlPlane": false, "pacing": pacing,
                "owner": {"apiVersion": "v1", "kind": "MachineDeployment", "name": "md"},
            },
            "status": status,
        }))
        .unwrap()
    }

    fn failed(at: &str) -> Value {
        let failure = |machine: &str| json!({"machine": machine, "machineUid": machine, "nodeUpdate": machine, "cause": "c", "at": at});
        json!({"rollout": {"number": 1, "origin": "Hook", "target": "v1.35.0",
            "since": "2026-03-02T08:00:00Z",
            "failures": [failure("k"), failure("l"), failure("m")]}})
    }

    #[test]
    fn a_group_is_paused_once_and_resumed() {
        let slot = json!({"slots": [{"machine": "m", "machineUid": "u", "nodeUpdate": "m-1",
            "since": "2026-03-02T08:00:00Z"}]});
        let (action, message, patch) = paused(&group(&json!({}), &slot));
        assert_eq!((action, patch), (Action::Set, json!({"paused": true})));
        assert_eq!(message, "paused; machines that hold a slot are finished: m");
        let held = group(&json!({"paused": true}), &slot);
        assert_eq!(paused(&held).0, Action::Already);
        assert_eq!(resumed(&held).2, json!({"paused": null}));
        assert_eq!(resumed(&group(&json!({}), &slot)).0, Action::None);
    }

    #[test]
    fn after_a_resume_only_later_failures_count() {
        let at = "2026-03-02T09:00:00Z";
        let (action, message, patch) = resumed(&group(&json!({}), &failed(at)));
        assert_eq!(action, Action::Set);
        assert_eq!(message, "goes on; the failures of k, l, m do not count any more");
        assert_eq!(patch["failuresSince"], at);
        let resumed_before = group(&json!({"failuresSince": at}), &failed(at));
        assert_eq!(resumed(&resumed_before).0, Action::None);
        // A limit that is not reached is not reset.
        let below = group(&json!({"paused": true, "sameCauseStops": 4}), &failed(at));
        assert_eq!(resumed(&below).2, json!({"paused": null}));
    }

    #[test]
    fn resume_shows_the_group_and_its_task() {
        let row = |action, message: &str| Row {
            namespace: "n".into(),
            owner: "MachineDeployment/md".into(),
            action,
            message: message.into(),
        };
        let nothing = with_task(row(Action::None, "neither paused"), Action::Already, "t works");
        assert_eq!(nothing, row(Action::Already, "t works"));
        let both = with_task(row(Action::Set, "goes on"), Action::Set, "t continues");
        assert_eq!(both, row(Action::Set, "goes on; t continues"));
    }

    #[test]
    fn the_rollout_that_waits_is_approved() {
        let waits = json!({"awaitsApproval": 3});
        let (action, _, patch) = approved(&group(&json!({"pauseAfter": 1}), &waits));
        assert_eq!((action, patch), (Action::Set, json!({"approve": 3})));
        let before = group(&json!({"pauseAfter": 1, "approve": 3}), &waits);
        assert_eq!(approved(&before).0, Action::Already);
        let none = approved(&group(&json!({"pauseAfter": 1}), &json!({})));
        assert_eq!(none.1, "no rollout waits for an approval");
        assert!(approved(&group(&json!({}), &json!({}))).1.contains("need no approval"));
    }
}
