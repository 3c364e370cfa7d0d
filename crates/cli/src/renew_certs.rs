//! `refit renew-certs`: has kubeadm renew the certificates of control plane machines.

use std::process::ExitCode;

use jiff::Timestamp;
use kube::ResourceExt as _;
use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_kinds::{
    canonical::{K8SD_CONFIG, REFIT},
    keys,
    refit::{MachineUid, NodeUpdate, RENEW_ALWAYS_DAYS, RenewalRequest},
};
use serde::Serialize;
use serde_json::json;

use crate::{
    ask::{AskArgs, Decision, ask, report},
    client, exit,
    global::GlobalArgs,
    printer::Printer,
    target::TargetKind,
};

/// Exit code if no certificates are renewed.
const EXIT_NOTHING: u8 = 3;

/// Flags of `refit renew-certs`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit renew-certs cluster/edge-1
  refit renew-certs machine/edge-1-x7k2p --within 60 --dry-run

Has kubeadm renew the certificates of control plane machines, without an upgrade: those of the API \
server, of its clients and of etcd, and the kubeconfigs of the control plane. The static pods that \
read them are restarted, also those of other tools such as kube-vip. One machine is renewed after \
the other, while the other members of the control plane are healthy. Pods stay on the nodes, and \
no kubelet is restarted.

The command annotates each Machine with refit.dev/renew-certificates. The controller answers with \
a NodeUpdate and removes the annotation. A renewal waits until other updates of its machine have \
ended, and respects a pause, a hold and maintenance windows.

Workers have no certificates of kubeadm. They are left out, or refused if the target is one of \
them.

-o json writes one array of {namespace, machine, action, message}; action is renew, already \
(requested or under way) or refused (with the reason in message).

Exit codes:
  0  the renewal is requested, or was before, on at least one machine
  1  the cluster cannot be read or written
  2  the command line is invalid
  3  no certificates are renewed; the output has the reason for each machine")]
pub(crate) struct Args {
    #[command(flatten)]
    ask: AskArgs,
    /// Renew only where a certificate expires within this many days, instead of in any case.
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(i32).range(1..=RENEW_ALWAYS_DAYS.into()))]
    within: Option<i32>,
}

/// What becomes of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Action {
    /// Its renewal is requested.
    Renew,
    /// It was requested before, or is under way.
    Already,
    /// Its certificates cannot be renewed by kubeadm.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    machine: String,
    action: Action,
    message: String,
}

/// Runs `refit renew-certs`.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let Args { ask: args, within } = args;
    let printer = args.printer(global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        let found = args.target.gather(&cluster).await?;
        let request =
            RenewalRequest { asked_at: cluster.clock.now_seconds(), within_days: *within };
        let is_named = args.target.kind == TargetKind::Machine;
        let mut rows = Vec::new();
        for machine in found.machines.iter().filter(|one| is_named || is_control_plane(one)) {
            let decide = |machine: &Machine| Some(decide(machine, &found.updates, request));
            let asked = ask(&cluster, machine, args.dry_run, decide).await?;
            let deleted = || row(machine, Action::Refused, "it no longer exists".to_owned());
            rows.push(asked.unwrap_or_else(deleted));
        }
        show(printer, args, &rows)?;
        let asked = rows.iter().any(|row| row.action != Action::Refused);
        Ok(if asked { ExitCode::SUCCESS } else { ExitCode::from(EXIT_NOTHING) })
    })
}

fn is_control_plane(machine: &Machine) -> bool {
    machine.labels().contains_key(keys::CONTROL_PLANE)
}

/// Why kubeadm does not renew the certificates of a machine.
fn refusal(machine: &Machine) -> Option<String> {
    let config = machine.spec.bootstrap.config_ref.as_ref();
    if machine.metadata.deletion_timestamp.is_some() {
        Some("it is being deleted".to_owned())
    } else if config.is_some_and(|config| config.kind == K8SD_CONFIG) {
        Some(format!(
            "k8sd issues its certificates; annotate it with {} instead",
            REFIT.certificates.refresh
        ))
    } else if is_control_plane(machine) {
        None
    } else {
        Some("kubeadm issues no certificates on a worker: its kubelet renews its own".to_owned())
    }
}

/// Decides what to do about a machine.
fn decide(machine: &Machine, updates: &[NodeUpdate], request: RenewalRequest) -> Decision<Row> {
    let only = |action, message| Decision { row: row(machine, action, message), patch: None };
    if let Some(why) = refusal(machine) {
        return only(Action::Refused, why);
    }
    let text = machine.annotations().get(keys::RENEW_CERTIFICATES);
    let before = text.and_then(|text| text.parse::<RenewalRequest>().ok());
    if let Some(asked_at) = before.and_then(|before| answers(before, request)) {
        return only(Action::Already, format!("its renewal was requested at {asked_at}"));
    }
    let uid = MachineUid::of(&machine.metadata);
    let unfinished = updates
        .iter()
        .find(|update| update.spec.machine_ref.uid == uid && !update.phase().is_final());
    let goal = request.goal();
    let message = match unfinished {
        Some(update) if update.spec.goal.certificates == goal.certificates => {
            let (name, phase) = (update.name_any(), update.phase());
            return only(Action::Already, format!("NodeUpdate {name} renews them ({phase:?})"));
        }
        Some(update) => format!("once NodeUpdate {} has ended", update.name_any()),
        None => match (waits_for(machine), request.within_days) {
            (Some(other), _) => other.to_owned(),
            (None, Some(days)) => format!("if one of them expires within {days} days"),
            (None, None) => "all that kubeadm renews".to_owned(),
        },
    };
    Decision {
        row: row(machine, Action::Renew, message),
        patch: Some(json!({"metadata": {"annotations": {
            keys::RENEW_CERTIFICATES: request.to_string(),
        }}})),
    }
}

/// What a renewal waits for, apart from the NodeUpdates of its machine.
fn waits_for(machine: &Machine) -> Option<&'static str> {
    if update_in_progress(machine) {
        Some(
            "once Cluster API's update of the machine has ended; if it has failed, `refit retry` or its owner's former \
             version ends it",
        )
    } else if machine.annotations().contains_key(keys::TASK) {
        Some(
            "once the UpgradeTask that updates the machine has ended: see `kubectl get upgradetasks`",
        )
    } else {
        None
    }
}

/// When a request was made that asks for the same as another one.
fn answers(before: RenewalRequest, request: RenewalRequest) -> Option<Timestamp> {
    (before.within_days == request.within_days).then_some(before.asked_at)
}

fn row(machine: &Machine, action: Action, message: String) -> Row {
    Row {
        namespace: machine.namespace().unwrap_or_default(),
        machine: machine.name_any(),
        action,
        message,
    }
}

fn show(printer: Printer, args: &AskArgs, rows: &[Row]) -> anyhow::Result<()> {
    report(printer, rows, &format!("{} has no control plane machines", args.target), |row| {
        let what = match row.action {
            Action::Renew if args.dry_run => {
                "certificates would be renewed (dry run: nothing was written)"
            }
            Action::Renew => "certificates will be renewed",
            Action::Already => "unchanged",
            Action::Refused => "refused",
        };
        format!("{}: {what}: {}", row.machine, row.message)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn request(within_days: Option<i32>) -> RenewalRequest {
        RenewalRequest { asked_at: "2026-03-02T08:00:00Z".parse().unwrap(), within_days }
    }

    /// A control plane machine with more in its metadata, bootstrapped by a config of this kind.
    fn machine(more: &Value, config: &str) -> Machine {
        let mut machine = json!({
            "metadata": {"name": "m", "namespace": "n", "uid": "u"},
            "spec": {"clusterName": "c", "bootstrap": {"configRef": {
                "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": config, "name": "m",
            }}},
        });
        for (key, value) in more.as_object().unwrap() {
            machine["metadata"][key] = value.clone();
        }
        serde_json::from_value(machine).unwrap()
    }

    fn member(more: &Value) -> Machine {
        let mut more = more.clone();
        more["labels"] = json!({keys::CONTROL_PLANE: ""});
        machine(&more, "KubeadmConfig")
    }

    fn update(goal: &Value, phase: &str) -> Vec<NodeUpdate> {
        vec![
            serde_json::from_value(json!({
                "metadata": {"name": "m-1", "namespace": "n"},
                "spec": {"machineRef": {"name": "m", "uid": "u"}, "origin": "Annotation",
                    "goal": goal, "goalHash": "h"},
                "status": {"phase": phase},
            }))
            .unwrap(),
        ]
    }

    #[test]
    fn control_plane_machines_are_asked_to_renew_their_certificates() {
        let none = json!({});
        let renewing = || update(&json!({"certificates": {}}), "Waiting");
        let upgrading = || update(&json!({"kubernetesVersion": "v1.35.0"}), "Draining");
        let ended = || update(&json!({"certificates": {}}), "Succeeded");
        let asked = json!({"annotations": {keys::RENEW_CERTIFICATES: "2026-03-01T08:00:00Z"}});
        let rubbish = json!({"annotations": {keys::RENEW_CERTIFICATES: "now"}});
        let in_progress = json!({"annotations": {keys::UPDATE_IN_PROGRESS: ""}});
        let in_task = json!({"annotations": {keys::TASK: "workers"}});
        let (renew, already) = (Action::Renew, Action::Already);
        for (machine, updates, within, action, words) in [
            (member(&none), vec![], None, renew, "all that kubeadm renews"),
            (member(&none), vec![], Some(60), renew, "within 60 days"),
            (member(&none), ended(), None, renew, "all that kubeadm renews"),
            (member(&none), upgrading(), None, renew, "once NodeUpdate m-1 has ended"),
            (member(&none), renewing(), None, already, "NodeUpdate m-1 renews them (Waiting)"),
            (member(&none), renewing(), Some(60), renew, "once NodeUpdate m-1 has ended"),
            (member(&asked), vec![], None, already, "at 2026-03-01T08:00:00Z"),
            (member(&asked), vec![], Some(60), renew, "within 60 days"),
            (member(&rubbish), vec![], None, renew, "all that kubeadm renews"),
            (member(&in_progress), vec![], None, renew, "once Cluster API's update"),
            (member(&in_task), vec![], Some(60), renew, "once the UpgradeTask"),
        ] {
            let request = request(within);
            let Decision { row, patch } = decide(&machine, &updates, request);
            assert_eq!(row.action, action, "{}", row.message);
            assert!(row.message.contains(words), "{}", row.message);
            let written = patch
                .map(|patch| patch["metadata"]["annotations"][keys::RENEW_CERTIFICATES].clone());
            let expected = (action == renew).then(|| json!(request.to_string()));
            assert_eq!(written, expected, "{}", row.message);
        }
    }

    #[test]
    fn the_command_refuses_what_kubeadm_cannot_renew_with_the_reason() {
        let deleting = json!({"deletionTimestamp": "2026-03-02T08:00:00Z"});
        for (machine, words) in [
            (machine(&json!({}), "KubeadmConfig"), "on a worker: its kubelet renews its own"),
            (machine(&json!({}), "CK8sConfig"), "refit.dev/refresh-certificates"),
            (member(&deleting), "being deleted"),
        ] {
            let Decision { row, patch } = decide(&machine, &[], request(None));
            assert_eq!((row.action, patch), (Action::Refused, None), "{}", row.message);
            assert!(row.message.contains(words), "{}", row.message);
        }
    }
}
