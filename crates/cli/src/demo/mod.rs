//! `refit demo`: an in-place upgrade on simulated hosts.

pub(crate) mod fleet;
mod outcome;
mod report;
mod run;

use std::{path::PathBuf, process::ExitCode};

use crate::{
    exit::{by_signal, interrupted},
    global::GlobalArgs,
    printer::{Format, Printer},
};

/// Exit code if a machine was replaced unexpectedly.
const EXIT_REPLACED: u8 = 3;

/// Flags of `refit demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit demo
  refit demo --manifests cluster.yaml             what `clusterctl generate cluster` prints
  refit demo --manifests cluster.yaml --no-surge  every machine is updated in place
  refit demo -o json | jq '.machines[] | {machine, sameMachine}'

Exit codes:
  0  every machine runs the new version; only a group's own maxSurge replaced machines
  1  the manifests are invalid, or the run failed
  2  the command line is invalid
  3  a machine was replaced unexpectedly
  130, 143  interrupted by Ctrl-C or SIGTERM; the simulated cluster was removed")]
pub(crate) struct Args {
    /// Run these Cluster manifests instead of the built-in example.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    manifests: Vec<PathBuf>,
    /// Upgrade to this version [default: v1.35.0 if that is at most one minor up, else the next
    /// minor's .0].
    #[arg(long, value_name = "VERSION")]
    to: Option<String>,
    /// Set KubeadmControlPlane maxSurge 0 and MachineDeployment maxSurge 0, maxUnavailable 1 before
    /// the run.
    #[arg(long)]
    no_surge: bool,
    /// Set the number of simulated seconds per second.
    #[arg(long, value_name = "N", default_value_t = 60.0, value_parser = speed)]
    speed: f64,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed.is_finite() && (0.1..=100_000.0).contains(&speed) => Ok(speed),
        _ => Err("expected a number from 0.1 to 100000".to_owned()),
    }
}

/// Runs the demo.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output, global);
    let manifests = fleet::read(&args.manifests)?;
    let runtime = lab_world::world::runtime()?;
    let code = runtime.block_on(async {
        let demo = async {
            lab_world::manifests::rehearse(&manifests).await?;
            let fleet = fleet::make(manifests, args.no_surge, args.to.as_deref())?;
            run::run(printer, &fleet, args.speed, args.no_surge).await
        };
        tokio::select! {
            biased;
            number = interrupted() => {
                // After an interrupt, stdout may be closed already.
                let line = if printer.shows_bars() { "\n" } else { "" };
                let _ = printer.note(&format!("{line}interrupted; the simulated cluster was \
                    removed"));
                Ok(by_signal(number))
            }
            code = demo => code,
        }
    });
    // A blocking tick of the pacer may still be running; do not wait for it.
    runtime.shutdown_background();
    code
}
