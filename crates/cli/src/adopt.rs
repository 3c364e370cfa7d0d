//! `refit adopt`: takes a node that was upgraded by hand as it is.

use std::process::ExitCode;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt as _, api::ListParams};
use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_core::node::{StaticPod, speaker, version_differences};
use refit_kinds::{
    keys,
    refit::{MachineUid, NodeName, NodeUpdate, Origin, Phase},
    version::StatedVersion,
};
use refit_runtime::{client::ClientStack, workload::Workloads};
use serde::Serialize;
use serde_json::json;

use crate::{
    ask::{Decision, ask, report},
    client::{self, Cluster},
    exit,
    global::{GlobalArgs, program},
    printer::{Format, Printer},
    target::{Target, machine_argument},
};

/// Exit code if the node is not adopted.
const EXIT_REFUSED: u8 = 3;
/// The static pods of a control plane, as kubeadm labels them.
const CONTROL_PLANE_PODS: &str = "tier=control-plane";

/// Flags of `refit adopt`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit adopt edge-1-md-0-x7k2p

For a machine whose update failed, was stopped or has not begun, and whose node you have upgraded by hand. \
The command compares the versions that the node runs with the goal of the update: that of its kubelet and, \
on a control plane machine, those of its static pods. If they are equal, it annotates the Machine with \
refit.dev/adopt and the name of the NodeUpdate. The next NodeUpdate then changes nothing on the host: it \
verifies the same, uncordons the node if Refit cordoned it, and succeeds.

The command reads the Secret with the kubeconfig of the workload cluster, its Node and its control plane \
pods.

-o json writes {namespace, machine, nodeUpdate, action, message}; action is adopt, already or refused.

Exit codes:
  0  the node is adopted, or was to be before
  1  a cluster cannot be read or written
  2  the command line is invalid
  3  the node cannot be adopted; the output has the reason")]
pub(crate) struct Args {
    /// Name of the Machine, with or without machine/.
    #[arg(value_name = "MACHINE", value_parser = machine_argument)]
    machine: Target,
    /// Report what would happen, without writing anything.
    #[arg(long)]
    dry_run: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// What becomes of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Action {
    /// It is adopted.
    Adopt,
    /// That was requested before.
    Already,
    /// It cannot be adopted.
    Refused,
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

/// The versions that a node runs.
#[derive(Clone, Debug, Default)]
struct Live {
    kubelet: StatedVersion,
    /// Static pods, for a control plane machine.
    pods: Option<Vec<StaticPod>>,
}

/// Runs `refit adopt`.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let Args { machine: target, dry_run, output } = args;
    let printer = Printer::new(*output, global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        let found = target.gather(&cluster).await?;
        let machine = found.machines.first().ok_or_else(|| target.missing(&cluster))?;
        let update = speaker(&found.updates, &MachineUid::of(&machine.metadata));
        let row = if let Some(why) = refusal(machine, update) {
            row(machine, update, Action::Refused, why)
        } else {
            let live = live(&cluster, machine).await?;
            let decide = |machine: &Machine| Some(decide(machine, update, &live));
            let asked = ask(&cluster, machine, *dry_run, decide).await?;
            asked.ok_or_else(|| target.missing(&cluster))?
        };
        let refused = row.action == Action::Refused;
        show(printer, *dry_run, &row)?;
        Ok(if refused { ExitCode::from(EXIT_REFUSED) } else { ExitCode::SUCCESS })
    })
}

/// Reads what the Node of a Machine runs, in its workload cluster.
async fn live(cluster: &Cluster, machine: &Machine) -> anyhow::Result<Live> {
    let stack = ClientStack::production(concat!("refit-cli/", env!("CARGO_PKG_VERSION")));
    let workloads = Workloads::new(cluster.client.clone(), stack, cluster.clock);
    let name = &machine.spec.cluster_name;
    let client = workloads.client(&cluster.namespace, name).await?;
    let node = node_of(machine);
    let api: Api<Node> = Api::all(client.clone());
    let read = |what: String| format!("cannot read {what} of cluster {name}");
    let found = api.get(&node).await.with_context(|| read(format!("Node {node}")))?;
    let info = found.status.and_then(|status| status.node_info);
    let kubelet = info.map(|info| info.kubelet_version.as_str().into()).unwrap_or_default();
    let is_control_plane = machine.labels().contains_key(keys::CONTROL_PLANE);
    let pods = if is_control_plane {
        let api: Api<Pod> = Api::namespaced(client, "kube-system");
        let selected = ListParams::default().labels(CONTROL_PLANE_PODS);
        let list = api.list(&selected).await;
        let list = list.with_context(|| read("the control plane pods".to_owned()))?;
        Some(list.items.iter().filter_map(StaticPod::of).collect())
    } else {
        None
    };
    Ok(Live { kubelet, pods })
}

fn node_of(machine: &Machine) -> String {
    let node = machine.status.as_ref().and_then(|status| status.node_ref.as_ref());
    node.map(|node| node.name.clone()).unwrap_or_default()
}

/// Why a machine cannot be adopted, whatever its node runs.
fn refusal(machine: &Machine, update: Option<&NodeUpdate>) -> Option<String> {
    let Some(update) = update else {
        return Some("it was never updated in place: there is nothing to adopt".to_owned());
    };
    let phase = update.status.as_ref().map(|status| status.phase).unwrap_or_default();
    let name = machine.name_any();
    if phase == Phase::Succeeded {
        return Some("its newest update succeeded".to_owned());
    }
    if !phase.is_final() && !phase.is_undisturbed() {
        return Some(format!(
            "its update is under way ({phase:?}): wait until it has ended, or stop it with `{} abort \
             machine/{name}`",
            program()
        ));
    }
    if machine.metadata.deletion_timestamp.is_some() {
        return Some("it is being deleted".to_owned());
    }
    if update.spec.origin == Origin::Hook && !update_in_progress(machine) {
        return Some("Cluster API no longer requests its update".to_owned());
    }
    if node_of(machine).is_empty() {
        return Some("it has no Node".to_owned());
    }
    (!update.spec.can_be_adopted()).then(|| {
        "its update brings it to more than a Kubernetes version, which its Node does not show"
            .to_owned()
    })
}

fn decide(machine: &Machine, update: Option<&NodeUpdate>, live: &Live) -> Decision<Row> {
    let refused = |why| Decision { row: row(machine, update, Action::Refused, why), patch: None };
    if let Some(why) = refusal(machine, update) {
        return refused(why);
    }
    let name = update.map(NodeUpdate::name_any).unwrap_or_default();
    if machine.annotations().get(keys::ADOPT) == Some(&name) {
        let message = format!("the adoption after {name} is already requested");
        return Decision { row: row(machine, update, Action::Already, message), patch: None };
    }
    let goal = update.and_then(|update| update.spec.goal.kubernetes_version.as_ref());
    let Some(goal) = goal else {
        return refused("its update has no Kubernetes version".to_owned());
    };
    let node = NodeName::from(node_of(machine));
    let differences = version_differences(&node, &live.kubelet, live.pods.as_deref(), goal);
    if !differences.is_empty() {
        return refused(format!(
            "node {node} does not run {goal}: {}. Upgrade the rest by hand, or let Refit do it: `{} retry \
             machine/{}`",
            differences.join("; "),
            program(),
            machine.name_any()
        ));
    }
    let message = format!("node {node} runs {goal}");
    Decision {
        row: row(machine, update, Action::Adopt, message),
        patch: Some(json!({"metadata": {"annotations": {keys::ADOPT: name}}})),
    }
}

fn row(machine: &Machine, update: Option<&NodeUpdate>, action: Action, message: String) -> Row {
    Row {
        namespace: machine.namespace().unwrap_or_default(),
        machine: machine.name_any(),
        node_update: update.map(NodeUpdate::name_any).unwrap_or_default(),
        action,
        message,
    }
}

fn show(printer: Printer, dry_run: bool, row: &Row) -> anyhow::Result<()> {
    report(printer, std::slice::from_ref(row), "", |row| {
        let what = match row.action {
            Action::Adopt if dry_run => "would be adopted (dry run: nothing was written)",
            Action::Adopt => "will be adopted",
            Action::Already => "unchanged",
            Action::Refused => "not adopted",
        };
        format!("{}: {what}: {}", row.machine, row.message)
    })
}

#[cfg(test)]
mod tests {
    use refit_core::node::ImageVersion;

    use super::*;

    fn machine(requested: bool) -> Machine {
        let mut machine: Machine = serde_json::from_value(json!({
            "metadata": {"name": "m", "namespace": "n", "uid": "u", "annotations": {}},
            "spec": {"clusterName": "c", "version": "v1.35.0"},
            "status": {"nodeRef": {"name": "m"}},
        }))
        .unwrap();
        if requested {
            machine.annotations_mut().insert(keys::PENDING_HOOKS.into(), "UpdateMachine".into());
        }
        machine
    }

    fn update(phase: Phase, origin: &str) -> NodeUpdate {
        serde_json::from_value(json!({
            "metadata": {"name": "m-1", "namespace": "n"},
            "spec": {"machineRef": {"name": "m", "uid": "u"}, "origin": origin,
                "goal": {"kubernetesVersion": "v1.35.0"}, "goalHash": "h"},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn live(kubelet: &str, api_server: Option<&str>) -> Live {
        let pod = |tag: &str| StaticPod {
            node: "m".into(),
            component: "kube-apiserver".into(),
            version: ImageVersion::of_tag(tag),
            ready: true,
        };
        Live { kubelet: kubelet.into(), pods: api_server.map(|tag| vec![pod(tag)]) }
    }

    #[test]
    fn a_node_that_runs_the_goal_is_adopted_whatever_requested_its_update() {
        for (requested, origin) in [(true, "Hook"), (false, "Task")] {
            for phase in [Phase::Failed, Phase::Stopped, Phase::Pending, Phase::Waiting] {
                let update = update(phase, origin);
                let live = live("v1.35.0", Some("v1.35.0"));
                let decision = decide(&machine(requested), Some(&update), &live);
                assert_eq!(decision.row.action, Action::Adopt, "{phase:?} {origin}");
                let patch = decision.patch.unwrap();
                assert_eq!(patch["metadata"]["annotations"]["refit.dev/adopt"], "m-1");
            }
        }
    }

    #[test]
    fn every_difference_is_named() {
        let update = update(Phase::Failed, "Task");
        let decision = decide(&machine(false), Some(&update), &live("v1.34.2", Some("v1.34.2")));
        assert_eq!((decision.row.action, decision.patch), (Action::Refused, None));
        let message = decision.row.message;
        assert!(message.contains("its kubelet runs v1.34.2"), "{message}");
        assert!(message.contains("its kube-apiserver runs v1.34.2"), "{message}");
    }

    #[test]
    fn the_reason_for_no_adoption_is_reported() {
        let mut deleting = machine(true);
        deleting.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-03-02T08:00:00Z")).unwrap();
        let mut lost = machine(true);
        lost.status = None;
        let mut option = update(Phase::Failed, "Hook");
        option.spec.goal.kubernetes_version = None;
        let table = [
            (machine(true), None, "never updated"),
            (machine(true), Some(update(Phase::Succeeded, "Hook")), "succeeded"),
            (machine(true), Some(update(Phase::Draining, "Hook")), "under way (Draining)"),
            (machine(false), Some(update(Phase::Failed, "Hook")), "no longer requests"),
            (deleting, Some(update(Phase::Failed, "Hook")), "being deleted"),
            (lost, Some(update(Phase::Failed, "Hook")), "no Node"),
            (machine(true), Some(option), "more than a Kubernetes version"),
        ];
        for (machine, update, words) in table {
            let decision = decide(&machine, update.as_ref(), &live("v1.35.0", None));
            assert_eq!(decision.row.action, Action::Refused, "{words}");
            assert!(decision.row.message.contains(words), "{}", decision.row.message);
        }
    }
}
