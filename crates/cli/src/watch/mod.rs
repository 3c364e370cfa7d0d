//! `refit watch`: shows the progress of updates until they are done.

mod feed;
mod follow;
mod json;
mod view;

use std::{process::ExitCode, time::Duration};

pub(crate) use follow::follow;
pub(crate) use json::{Line, write_line};
pub(crate) use view::{GroupRow, Objects, Scope, View};

use crate::{
    client, exit,
    global::GlobalArgs,
    printer::{Format, Printer},
    target::Target,
};

/// Flags of `refit watch`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit watch                         everything in the namespace
  refit watch cluster/edge-1          its control plane and its workers
  refit watch md/edge-1-md-0 --timeout 1h
  refit watch -A -o json | jq 'select(.type == \"machine\")'

On a terminal each machine has a progress bar; otherwise each change is a line. Blockers of a \
group are shown with their reason; docs/troubleshooting.md lists the remedies.

-o json writes one object per line, each with a type:
  machine  namespace, name, owner, node, version (requested), kubeletVersion, nodeUpdate, phase, step, percent,
           remainingSeconds, blockedBy [{reason, object, pod, message, since}], message, done, failed
  gone     namespace, name
  group    namespace, owner, version, blocked, reason, message, remainingSeconds, done
  end      target, outcome (done, failed or timeout), message, machines, done

Exit codes:
  0  every machine runs the version that its owner requests
  1  the cluster cannot be read
  2  the command line is invalid
  3  an update failed or was aborted, and no other update is in progress
  5  --timeout has passed; the update continues
  130, 143  interrupted by Ctrl-C or SIGTERM; the update continues")]
pub(crate) struct Args {
    /// cluster/NAME, kcp/NAME, md/NAME, ms/NAME or machine/NAME [default: everything].
    #[arg(value_name = "KIND/NAME")]
    target: Option<Target>,
    /// Watch all namespaces.
    #[arg(short = 'A', long, conflicts_with = "target")]
    all_namespaces: bool,
    /// Stop watching after this duration, such as 90s, 30m or 2h.
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Parses a duration such as `90s`, `30m`, `1h30m`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().ok();
    parsed
        .and_then(|duration| Duration::try_from(duration).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| format!("invalid duration {text:?}; examples: 90s, 30m, 1h30m"))
}

/// Runs `refit watch`.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output, global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        if let Some(target) = &args.target {
            target.check(&cluster).await?;
        }
        let scope = Scope {
            target: args.target.clone(),
            namespace: (!args.all_namespaces).then(|| cluster.namespace.clone()),
            ..Scope::default()
        };
        follow(&cluster, &scope, printer, args.timeout).await?;
        Ok(ExitCode::SUCCESS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("1h30m"), Ok(Duration::from_mins(90)));
        for bad in ["", "0s", "-5m", "soon", "10"] {
            assert!(time(bad).unwrap_err().contains("examples: 90s"), "{bad}");
        }
    }
}
