//! `refit cancel`: stops the upgrade of a whole cluster.

use std::process::ExitCode;

use jiff::Timestamp;
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use refit_cluster_api::kinds::Machine;
use refit_core::task::roll_back::{WorkersSeen, version_before};
use refit_kinds::{
    keys,
    refit::{ClusterUpgrade, OnAbort, Stage, UpgradePhase},
    version::KubernetesVersion,
};
use serde::Serialize;
use serde_json::json;

use super::{ClusterName, EXIT_NOTHING, EXIT_REFUSED, newest, of_cluster, why};
use crate::{
    client::{self, Cluster, attempt_on},
    exit,
    global::{GlobalArgs, program},
    printer::{Format, Printer},
    target::{Gathered, Target, TargetKind},
};

/// Flags of `refit cancel`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit cancel edge-1
  refit cancel edge-1 --dry-run
  refit cancel edge-1 --finish
  refit cancel edge-1 --roll-back-workers

An upgrade that has not begun ends at once. One that has: machines that have not passed their point of \
no return are rolled back, the others are finished, and no further machine begins. With --finish, those \
in progress are finished, and only those that have disturbed nothing yet are stopped. Machines that are \
upgraded stay so. `refit schedule` requests it again, and continues where it was stopped.

With --roll-back-workers, the workers that this upgrade has updated return in place to the version that \
they had before, once the machines in progress are done: first the spec of each MachineDeployment, then \
its machines, one after the other. That is possible to a patch release of the same minor version, and \
not in a cluster with a topology. If it is not possible for one MachineDeployment, the command changes \
nothing. The control plane never goes back.

-o json writes {cluster, version, phase, action, workers, dryRun}, where action is cancelled, already or \
nothing, and workers are {object, to} for each MachineDeployment whose workers return.

Exit codes:
  0  the upgrade is stopped, or will be; or that was requested before
  1  the cluster cannot be read or written
  2  the command line is invalid
  3  the cluster has no upgrade that could be stopped
  4  workers cannot go back, and nothing was written")]
pub(crate) struct CancelArgs {
    /// Name of the cluster.
    #[arg(value_name = "CLUSTER")]
    cluster: ClusterName,
    /// Finish the machines in progress, also those that could be rolled back.
    #[arg(long)]
    finish: bool,
    /// Bring the workers that are upgraded back to the version that they had before.
    #[arg(long)]
    roll_back_workers: bool,
    /// Run all checks, including the API server's, without writing anything.
    #[arg(long)]
    dry_run: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Runs `refit cancel`.
pub(crate) fn cancel(args: &CancelArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output, global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        let upgrade = of_cluster(&cluster, &args.cluster.0).await?;
        let status = upgrade.status.as_ref();
        let phase = status.map(|status| status.phase).unwrap_or_default();
        let is_current =
            status.and_then(|status| status.observed_generation) == upgrade.metadata.generation;
        if phase.has_ended() && is_current {
            let message = format!("has ended: {}", why(&upgrade));
            let outcome = Outcome { action: "nothing", message, workers: Vec::new() };
            outcome.show(printer, args, &upgrade)?;
            return Ok(ExitCode::from(EXIT_NOTHING));
        }
        let workers = if args.roll_back_workers {
            let since = newest(&upgrade).and_then(|record| record.start_time.as_ref());
            match since {
                Some(since) => returning(&cluster, &args.cluster.0, since.0).await?,
                None => Vec::new(),
            }
        } else {
            Vec::new()
        };
        let outcome = if is_requested(args, &upgrade) {
            Outcome { action: "already", message: "was stopped before".to_owned(), workers }
        } else {
            request(&cluster, args).await?;
            let message = consequence(phase, args.finish).to_owned();
            Outcome { action: "cancelled", message, workers }
        };
        outcome.show(printer, args, &upgrade)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// A MachineDeployment whose workers return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Returns {
    object: String,
    to: KubernetesVersion,
}

/// What the command has done.
struct Outcome {
    action: &'static str,
    message: String,
    workers: Vec<Returns>,
}

impl Outcome {
    fn show(
        &self,
        printer: Printer,
        args: &CancelArgs,
        upgrade: &ClusterUpgrade,
    ) -> anyhow::Result<()> {
        let (name, record) = (&args.cluster.0, newest(upgrade));
        let version = record.map_or(&upgrade.spec.version, |record| &record.version).to_string();
        let Self { action, message, workers } = self;
        if printer.is_json() {
            let phase = upgrade.status.as_ref().map(|status| status.phase).unwrap_or_default();
            let line = json!({
                "cluster": name, "version": version, "phase": phase, "action": action,
                "workers": workers, "dryRun": args.dry_run,
            });
            printer.result(&line.to_string())?;
            return Ok(());
        }
        let rest = if args.dry_run { " (dry run: nothing was written)" } else { "" };
        printer.result(&format!("ClusterUpgrade/{name} to {version}: {message}{rest}"))?;
        for Returns { object, to } in workers {
            printer.result(&format!("{object}: returns to {to}{rest}"))?;
        }
        if *action != "nothing" {
            printer.note(&format!("`{} history {name}` shows how it ends", program()))?;
        }
        Ok(())
    }
}

/// Whether the upgrade is to stop in this way already. Without flags, the way is left as it is.
fn is_requested(args: &CancelArgs, upgrade: &ClusterUpgrade) -> bool {
    let spec = &upgrade.spec;
    let is_same =
        spec.on_abort == on_abort(args) && spec.roll_back_workers == args.roll_back_workers;
    let has_flags = args.finish || args.roll_back_workers;
    spec.stage == Stage::Abort && (is_same || !has_flags)
}

fn on_abort(args: &CancelArgs) -> OnAbort {
    if args.finish { OnAbort::Finish } else { OnAbort::RollBack }
}

async fn request(cluster: &Cluster, args: &CancelArgs) -> anyhow::Result<()> {
    let name = &args.cluster.0;
    let params = PatchParams {
        dry_run: args.dry_run,
        field_manager: Some(keys::MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"spec": {
        "stage": Stage::Abort, "onAbort": on_abort(args), "rollBackWorkers": args.roll_back_workers,
    }}));
    let done = cluster.here::<ClusterUpgrade>().patch(name, &params, &patch).await;
    let attempt = attempt_on::<ClusterUpgrade>("patch", name);
    done.map_err(|error| cluster.explain(error, &attempt))?;
    Ok(())
}

/// The MachineDeployments whose workers return, if all that have to can.
async fn returning(
    cluster: &Cluster,
    name: &str,
    since: Timestamp,
) -> anyhow::Result<Vec<Returns>> {
    let target = Target { kind: TargetKind::Cluster, name: name.to_owned() };
    let Gathered { cluster: object, deployments, machines, updates, .. } =
        target.gather(cluster).await?;
    let Some(object) = object else { return Ok(Vec::new()) };
    let is_of_plane = |machine: &&Machine| machine.labels().contains_key(keys::CONTROL_PLANE);
    let members = machines.iter().filter(is_of_plane);
    let control_plane = members.filter_map(|machine| machine.spec.version.version()).max();
    let (mut returning, mut refused) = (Vec::new(), Vec::new());
    for deployment in &deployments {
        let name = deployment.name_any();
        let is_member =
            |machine: &&Machine| machine.labels().get(keys::DEPLOYMENT_NAME) == Some(&name);
        let seen = WorkersSeen {
            name: &name,
            requested: &deployment.spec.template.spec.version,
            machines: machines.iter().filter(is_member).collect(),
            updates: updates.iter().collect(),
            cluster: &object,
            control_plane,
            since,
        };
        match version_before(&seen) {
            Ok(None) => {}
            Ok(Some(to)) => {
                returning.push(Returns { object: format!("MachineDeployment/{name}"), to });
            }
            Err(why) => {
                refused.push(why.to_string().replace("`refit ", &format!("`{} ", program())));
            }
        }
    }
    if refused.is_empty() {
        return Ok(returning);
    }
    Err(exit::error(EXIT_REFUSED, format!("nothing was written: {}", refused.join("; "))))
}

fn consequence(phase: UpgradePhase, finishes: bool) -> &'static str {
    match phase {
        UpgradePhase::New | UpgradePhase::Pending => "cancelled before it has begun",
        UpgradePhase::Upgrading | UpgradePhase::Completed | UpgradePhase::Failed if finishes => {
            "cancelled; machines in progress are finished, and no further one begins"
        }
        UpgradePhase::Upgrading | UpgradePhase::Completed | UpgradePhase::Failed => {
            "cancelled; machines that can go back do, the others are finished, and no further one begins"
        }
    }
}
