//! `refit retry`: requests one more attempt for updates that failed for good or were stopped.

use std::process::ExitCode;

use kube::ResourceExt as _;
use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_core::node::{newest, speaker};
use refit_kinds::{
    keys,
    refit::{MachineUid, NodeUpdate, Origin, Phase},
};
use serde::Serialize;
use serde_json::json;

use crate::{
    ask::{AskArgs, Decision, ask, report},
    client, exit,
    global::GlobalArgs,
    printer::Printer,
};

/// Flags of `refit retry`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit retry machine/edge-1-md-0-x7k2p
  refit retry cluster/edge-1 --dry-run

Fix the cause first: a failed or aborted update is not repeated by itself. The command requests \
exactly one more attempt on each such machine, by annotating it with refit.dev/retry and the \
name of its NodeUpdate.

-o json writes one array of {namespace, machine, nodeUpdate, action, message}; action is retry, \
already (requested before) or none (with the reason in message).

Exit codes:
  0  an attempt is requested, or was before, on at least one machine
  1  the cluster cannot be read or written
  2  the command line is invalid
  3  no machine can be retried; the output has the reason for each")]
pub(crate) struct Args {
    #[command(flatten)]
    ask: AskArgs,
}

/// Exit code if there is nothing to retry.
const EXIT_NOTHING: u8 = 3;

/// The action on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Action {
    /// One more attempt is requested.
    Retry,
    /// A retry was requested before.
    Already,
    /// There is nothing to retry.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    machine: String,
    node_update: String,
    action: Action,
    message: String,
}

/// Runs `refit retry`.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let args = &args.ask;
    let printer = args.printer(global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        let found = args.target.gather(&cluster).await?;
        let mut rows = Vec::new();
        for machine in &found.machines {
            let decide = |machine: &Machine| Some(decide(machine, &found.updates));
            let asked = ask(&cluster, machine, args.dry_run, decide).await?;
            rows.push(asked.unwrap_or_else(|| deleted_row(machine, &found.updates)));
        }
        show(printer, args, &rows)?;
        let asked = rows.iter().any(|row| row.action != Action::None);
        Ok(if asked { ExitCode::SUCCESS } else { ExitCode::from(EXIT_NOTHING) })
    })
}

/// Returns the row for a machine that was deleted in the meantime.
fn deleted_row(machine: &Machine, updates: &[NodeUpdate]) -> Row {
    Row {
        action: Action::None,
        message: "it no longer exists".to_owned(),
        ..decide(machine, updates).row
    }
}

/// Decides what to do about a machine.
fn decide(machine: &Machine, updates: &[NodeUpdate]) -> Decision<Row> {
    let last = last_attempt(updates, &MachineUid::of(&machine.metadata));
    let name = last.map(NodeUpdate::name_any).unwrap_or_default();
    let row = |action, message: String| Decision {
        row: Row {
            namespace: machine.namespace().unwrap_or_default(),
            machine: machine.name_any(),
            node_update: name.clone(),
            action,
            message,
        },
        patch: (action == Action::Retry)
            .then(|| json!({"metadata": {"annotations": {keys::RETRY: name}}})),
    };
    let none = |message: &str| row(Action::None, message.to_owned());
    let Some(update) = last else {
        return none("it was never updated in place");
    };
    let status = update.status.clone().unwrap_or_default();
    match status.phase {
        Phase::Failed | Phase::Stopped => {}
        Phase::Succeeded => return none("its newest update succeeded"),
        phase @ (Phase::Pending
        | Phase::Staging
        | Phase::Waiting
        | Phase::Upgrading
        | Phase::Draining
        | Phase::Disrupting
        | Phase::Verifying
        | Phase::Uncordoning
        | Phase::Stopping) => {
            return row(Action::None, format!("its update is in progress: {phase:?}"));
        }
    }
    if machine.metadata.deletion_timestamp.is_some() {
        return none("it is being deleted");
    }
    if update.spec.origin == Origin::Hook && !update_in_progress(machine) {
        return none("Cluster API no longer requests its update");
    }
    if update.spec.origin == Origin::Annotation
        && let Some(key) = update.annotations().get(keys::REQUESTED_BY)
        && !machine.annotations().contains_key(key)
    {
        if update.spec.renews_on_host() {
            return none("its certificates are renewed by another request: use renew-certs");
        }
        return none(&format!("its annotation {key} no longer requests its update"));
    }
    if machine.annotations().get(keys::RETRY) == Some(&name) {
        return row(Action::Already, format!("a retry of {name} is already requested"));
    }
    let how = format!("{:?}", status.phase).to_lowercase();
    let why = match status.failure_reason.as_str() {
        "" => String::new(),
        reason => format!(" ({reason})"),
    };
    row(Action::Retry, format!("{name} {how}{why}"))
}

/// The NodeUpdate that shows what may be retried: the one that speaks for the Machine, or, if that has succeeded, a newer
/// refresh of certificates.
fn last_attempt<'a>(updates: &'a [NodeUpdate], uid: &MachineUid) -> Option<&'a NodeUpdate> {
    let speaker = speaker(updates, uid)?;
    if speaker.phase() == Phase::Succeeded { newest(updates, uid) } else { Some(speaker) }
}

fn show(printer: Printer, args: &AskArgs, rows: &[Row]) -> anyhow::Result<()> {
    report(printer, rows, &format!("{} has no machines", args.target), |row| {
        let what = match row.action {
            Action::Retry if args.dry_run => "would be retried (dry run: nothing was written)",
            Action::Retry => "will be retried",
            Action::Already => "unchanged",
            Action::None => "nothing to retry",
        };
        format!("{}: {what}: {}", row.machine, row.message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(pending: bool, retry: Option<&str>) -> Machine {
        let mut machine: Machine = serde_json::from_value(json!({
            "metadata": {"name": "m", "namespace": "n", "uid": "u", "annotations": {}},
            "spec": {"clusterName": "c", "version": "v1.35.0"},
        }))
        .unwrap();
        if pending {
            let hooks = "UpdateMachine".to_owned();
            machine.annotations_mut().insert(keys::PENDING_HOOKS.into(), hooks);
        }
        if let Some(name) = retry {
            machine.annotations_mut().insert(keys::RETRY.into(), name.into());
        }
        machine
    }

    fn update(phase: Phase, origin: &str) -> Vec<NodeUpdate> {
        vec![
            serde_json::from_value(json!({
                "metadata": {"name": "m-1", "namespace": "n"},
                "spec": {"machineRef": {"name": "m", "uid": "u"}, "origin": origin,
                    "goal": {"kubernetesVersion": "v1.35.0"}, "goalHash": "h"},
                "status": {"phase": phase, "failureReason": "HostStepFailed"},
            }))
            .unwrap(),
        ]
    }

    #[test]
    fn failed_and_stopped_updates_are_retried_once() {
        for phase in [Phase::Failed, Phase::Stopped] {
            let row = decide(&machine(true, None), &update(phase, "Hook")).row;
            assert_eq!((row.action, row.node_update.as_str()), (Action::Retry, "m-1"));
            assert!(row.message.contains("(HostStepFailed)"));
            let again = decide(&machine(true, Some("m-1")), &update(phase, "Hook")).row;
            assert_eq!(again.action, Action::Already);
            let older = decide(&machine(true, Some("m-0")), &update(phase, "Hook")).row;
            assert_eq!(older.action, Action::Retry);
            // Also an operator's own, whether Cluster API requests the same or nothing.
            for requested in [true, false] {
                let by_hand = decide(&machine(requested, None), &update(phase, "Task")).row;
                assert_eq!(by_hand.action, Action::Retry);
            }
        }
    }

    #[test]
    fn a_refresh_of_certificates_is_retried_after_its_machine_is_upgraded() {
        let key = "refit.dev/refresh-certificates";
        let mut asking = machine(false, None);
        asking.annotations_mut().insert(key.into(), "1h".into());
        let mut refresh = update(Phase::Failed, "Annotation").remove(0);
        refresh.metadata.name = Some("m-2".into());
        refresh.annotations_mut().insert(keys::REQUESTED_BY.into(), key.into());
        refresh.spec.goal =
            serde_json::from_value(json!({"certificates": {"lifetimeSeconds": 3600}})).unwrap();
        for (of_upgrade, machine, asked) in [
            (Phase::Succeeded, &asking, (Action::Retry, "m-2")),
            (Phase::Failed, &asking, (Action::Retry, "m-1")),
            (Phase::Succeeded, &machine(false, None), (Action::None, "m-2")),
        ] {
            let mut all = update(of_upgrade, "Task");
            all.push(refresh.clone());
            let row = decide(machine, &all).row;
            assert_eq!((row.action, &*row.node_update), asked, "{}", row.message);
        }
    }

    #[test]
    fn a_renewal_of_certificates_is_not_retried_but_requested_again() {
        let mut renewal = update(Phase::Failed, "Annotation").remove(0);
        let key = keys::RENEW_CERTIFICATES.to_owned();
        renewal.annotations_mut().insert(keys::REQUESTED_BY.into(), key);
        renewal.spec.goal = serde_json::from_value(json!({"certificates": {}})).unwrap();
        let row = decide(&machine(false, None), &[renewal]).row;
        assert_eq!(row.action, Action::None);
        assert!(row.message.ends_with("use renew-certs"), "{}", row.message);
    }

    #[test]
    fn the_reason_for_no_retry_is_reported() {
        let failed = update(Phase::Failed, "Hook");
        let mut deleting = machine(true, None);
        deleting.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                "2026-03-02T08:00:00Z".parse().unwrap(),
            ));
        let table = [
            (machine(true, None), Vec::new(), "never updated"),
            (machine(true, None), update(Phase::Succeeded, "Hook"), "succeeded"),
            (machine(true, None), update(Phase::Draining, "Hook"), "in progress"),
            (machine(false, None), failed.clone(), "no longer requests"),
            (deleting, failed, "being deleted"),
        ];
        for (machine, updates, words) in table {
            let row = decide(&machine, &updates).row;
            assert_eq!(row.action, Action::None, "{words}");
            assert!(row.message.contains(words), "{}", row.message);
        }
    }
}
