//! `refit cancel`: stops the upgrade of a whole cluster.

use std::process::ExitCode;

use kube::api::{Patch, PatchParams};
use refit_kinds::{
    keys,
    refit::{ClusterUpgrade, Stage, UpgradePhase},
};
use serde_json::json;

use super::{ClusterName, EXIT_NOTHING, newest, of_cluster, why};
use crate::{
    client::{self, attempt_on},
    exit,
    global::{GlobalArgs, program},
    printer::{Format, Printer},
};

/// Flags of `refit cancel`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit cancel edge-1
  refit cancel edge-1 --dry-run

An upgrade that has not begun ends at once. One that has: machines that have not passed their point of \
no return are rolled back, the others are finished, and no further machine begins. Machines that are \
upgraded stay so. `refit schedule` requests it again, and continues where it was stopped.

-o json writes {cluster, version, phase, action, dryRun}, where action is cancelled, already or nothing.

Exit codes:
  0  the upgrade is stopped, or will be; or that was requested before
  1  the cluster cannot be read or written
  2  the command line is invalid
  3  the cluster has no upgrade that could be stopped")]
pub(crate) struct CancelArgs {
    /// Name of the cluster.
    #[arg(value_name = "CLUSTER")]
    cluster: ClusterName,
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
        let name = &args.cluster.0;
        let upgrade = of_cluster(&cluster, name).await?;
        let record = newest(&upgrade);
        let version = record.map_or(&upgrade.spec.version, |record| &record.version).to_string();
        let phase = upgrade.status.as_ref().map(|status| status.phase).unwrap_or_default();
        let is_current = upgrade.status.as_ref().and_then(|status| status.observed_generation)
            == upgrade.metadata.generation;
        let has_ended = phase.has_ended() && is_current;
        let (action, message, code) = if has_ended {
            ("nothing", format!("has ended: {}", why(&upgrade)), EXIT_NOTHING)
        } else if upgrade.spec.stage == Stage::Abort {
            ("already", "was stopped before".to_owned(), 0)
        } else {
            let params = PatchParams {
                dry_run: args.dry_run,
                field_manager: Some(keys::MANAGER.to_owned()),
                ..PatchParams::default()
            };
            let patch = Patch::Merge(json!({"spec": {"stage": Stage::Abort}}));
            let done = cluster.here::<ClusterUpgrade>().patch(name, &params, &patch).await;
            let attempt = attempt_on::<ClusterUpgrade>("patch", name);
            done.map_err(|error| cluster.explain(error, &attempt))?;
            ("cancelled", consequence(phase).to_owned(), 0)
        };
        if printer.is_json() {
            let line = json!({
                "cluster": name, "version": version, "phase": phase, "action": action,
                "dryRun": args.dry_run,
            });
            printer.result(&line.to_string())?;
            return Ok(ExitCode::from(code));
        }
        let rest = if args.dry_run { " (dry run: nothing was written)" } else { "" };
        printer.result(&format!("ClusterUpgrade/{name} to {version}: {message}{rest}"))?;
        if code == 0 {
            printer.note(&format!("`{} history {name}` shows how it ends", program()))?;
        }
        Ok(ExitCode::from(code))
    })
}

fn consequence(phase: UpgradePhase) -> &'static str {
    match phase {
        UpgradePhase::New | UpgradePhase::Pending => "cancelled before it has begun",
        UpgradePhase::Upgrading | UpgradePhase::Completed | UpgradePhase::Failed => {
            "cancelled; machines that can go back do, the others are finished, and no further one begins"
        }
    }
}
