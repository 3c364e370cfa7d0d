//! `refit doctor`: checks whether an installation works.

mod gather;
mod rights;

#[cfg(test)]
#[cfg(feature = "sandbox")]
mod world_tests;

use std::{io, process::ExitCode};

use refit_predict::doctor::{Finding, Level, examine};
use serde_json::json;

use self::gather::gather;
use crate::{
    client, exit,
    global::GlobalArgs,
    plan::reader::Reader,
    printer::{Format, Printer},
};

/// Exit code if a check fails.
const EXIT_UNSOUND: u8 = 3;

/// Flags of `refit doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit doctor
  refit doctor -o json

The command writes nothing. It checks Refit's CustomResourceDefinitions, the permissions of the \
controller's ServiceAccount, the ExtensionConfig and the namespaces with Clusters, what holds replacements there, the hook \
server's certificate, version and feature gates of Cluster API, the client certificates of its \
managers, the controller's Deployment and \
Lease, who serves the annotations of Canonical's providers, the agents on the hosts, the versions of kubelets and API servers, machines whose update \
would have to wait (docs/preflight.md), rollouts that are \
blocked, and leftovers of ended updates (cordons, annotations on Machines, slots). An object that you lack permission to read is \
a warning.

-o json writes one document: sound (whether no check failed), findings [{check, level (Ok, Warn, \
Fail), object, message, remedy}].

Exit codes:
  0  no check failed; there may be warnings
  1  the cluster cannot be read
  2  the command line is invalid
  3  a check failed
  130, 143  interrupted by Ctrl-C or SIGTERM")]
pub(crate) struct Args {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Runs `refit doctor`.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output, global);
    exit::run(async {
        let reader = Reader::new(client::connect(global).await?);
        let found = examine(&gather(&reader).await?);
        let sound = found.iter().all(|finding| finding.level != Level::Fail);
        if printer.is_json() {
            let document = json!({"sound": sound, "findings": found});
            printer.result(&serde_json::to_string_pretty(&document)?)?;
        } else {
            show(printer, &found)?;
        }
        Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNSOUND) })
    })
}

fn show(printer: Printer, found: &[Finding]) -> io::Result<()> {
    for finding in found {
        let word = match finding.level {
            Level::Ok => printer.good("ok  "),
            Level::Warn => printer.notable("warn"),
            Level::Fail => printer.bad("FAIL"),
        };
        let line = format!("{word}  {}: {}", finding.object, finding.message);
        if finding.level == Level::Ok {
            printer.note(&line)?;
            continue;
        }
        printer.result(&line)?;
        if !finding.remedy.is_empty() {
            printer.result(&format!("        {}", finding.remedy))?;
        }
    }
    let count = |level: Level| found.iter().filter(|finding| finding.level == level).count();
    let (failed, warned) = (count(Level::Fail), count(Level::Warn));
    printer.result(&match (failed, warned) {
        (0, 0) => printer.good("Sound."),
        (0, _) => format!("No check failed; warnings: {warned}."),
        _ => printer.bad(&format!("Checks failed: {failed}; warnings: {warned}.")),
    })
}
