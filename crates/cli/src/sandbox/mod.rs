//! `refit sandbox`: a simulated fleet, or an OpenShift cluster, that stays up and serves the Kubernetes API.

mod hints;
mod openshift;
mod script;

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use futures::FutureExt as _;
use lab_world::{
    manifests,
    sandbox::{self, Ports, Sandbox, SandboxOptions},
    snapshot::Snapshot,
    world,
};

use crate::{
    demo::fleet,
    exit::{self, interrupted},
    global::GlobalArgs,
    printer::{Format, Printer},
};

/// The last progress line.
const STOPPED: &str = "Stopped; the simulated clusters were removed.";

/// Flags of `refit sandbox`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit sandbox
  refit sandbox --manifests cluster.yaml     what `clusterctl generate cluster` prints
  refit sandbox --port 6443 --speed 1        hosts take as long as real ones
  refit sandbox --hosts-port 8099            with an API for a provider that upgrades hosts
  refit sandbox --platform openshift         an upgrade of OpenShift by refit-managed
  refit sandbox --script scenario.txt        a script in simulated time; `help` in a script lists the commands

The first line of stdout is the path of a kubeconfig. Its context `refit` is the management
cluster; each workload cluster has a context of its own name. The APIs listen on 127.0.0.1 only and
accept the credentials in the kubeconfig, which only you can read.

With `--platform openshift` there is one cluster, with the context `openshift`, and OCM (OpenShift
Cluster Manager), which has scheduled an upgrade. stderr shows its steps.

Exit codes:
  0  stopped by Ctrl-C or SIGTERM, or the script succeeded
  1  the sandbox cannot run, or a wait of the script timed out
  2  the command line is invalid")]
pub(crate) struct Args {
    /// Simulate this platform.
    #[arg(long, value_enum, default_value_t)]
    platform: Platform,
    /// Run these Cluster manifests instead of the built-in example (only cluster-api).
    #[arg(long, value_name = "FILE", num_args = 1..)]
    manifests: Vec<PathBuf>,
    /// Serve the management API, with openshift that of the cluster, on this port of 127.0.0.1
    /// [default: a free one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Also serve an HTTP API that upgrades hosts without their agents, on this port of 127.0.0.1.
    /// A provider under development can call it: docs/write-a-provider.md (only cluster-api).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    hosts_port: Option<u16>,
    /// Speed up the simulation by this factor [default: 10; with openshift: 30].
    ///
    /// With cluster-api, at most 100, it applies to the hosts; everything else runs in real time.
    /// With openshift it applies to all that happens in the cluster, whose clock starts a day ago
    /// and runs this many times as fast as real time until it has caught up.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    speed: Option<u32>,
    /// Run a scenario script on simulated time instead, print its output and exit. Opens no port.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["platform", "manifests", "port", "hosts_port", "speed"])]
    script: Option<PathBuf>,
}

/// A simulated platform.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Platform {
    /// Clusters of Cluster API, whose machines Refit upgrades in place.
    #[default]
    ClusterApi,
    /// A cluster of OpenShift 4.16, which refit-managed upgrades.
    #[value(name = "openshift")]
    OpenShift,
}

impl Args {
    /// Returns the factor of the simulation. Refuses flags that the platform does not have.
    fn checked_speed(&self) -> anyhow::Result<u32> {
        match self.platform {
            Platform::ClusterApi => {
                let speed = self.speed.unwrap_or(10);
                let why = "is invalid with --platform cluster-api: expected a number from 1 to 100";
                if speed > 100 {
                    return Err(exit::error(2, format!("--speed {speed} {why}")));
                }
                Ok(speed)
            }
            Platform::OpenShift => {
                let why =
                    "cannot be used with --platform openshift: it is for --platform cluster-api";
                let manifests = ("--manifests", !self.manifests.is_empty());
                let hosts_port = ("--hosts-port", self.hosts_port.is_some());
                match [manifests, hosts_port].iter().find(|(_, is_given)| *is_given) {
                    Some((flag, _)) => Err(exit::error(2, format!("{flag} {why}"))),
                    None => Ok(self.speed.unwrap_or(30)),
                }
            }
        }
    }
}

/// Runs the sandbox until a signal ends it.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.script {
        return script::run(file);
    }
    let speed = args.checked_speed()?;
    let printer = Printer::new(Format::Text, global);
    // Bind the port first, so that a port in use is reported before any slow work.
    let ports = Ports::take(args.port, args.hosts_port)?;
    let stay_up = match args.platform {
        Platform::ClusterApi => {
            let world = make(args, global, speed)?;
            stay_up(global, printer, world, ports, speed).boxed_local()
        }
        Platform::OpenShift => openshift::stay_up(global, printer, ports, speed).boxed_local(),
    };
    let runtime = sandbox::runtime()?;
    let outcome = runtime.block_on(stay_up);
    runtime.shutdown_background();
    outcome
}

/// Creates a new world.
fn make(args: &Args, global: &GlobalArgs, speed: u32) -> anyhow::Result<Snapshot> {
    let loaded = fleet::read(&args.manifests)?;
    world::runtime()?.block_on(manifests::rehearse(&loaded))?;
    for manifest in loaded.iter().filter(|manifest| !manifests::is_acted_on(&manifest.object)) {
        print_progress(global, &format!("stored, without effect: {}", manifest.title()));
    }
    let objects: Vec<_> = loaded.into_iter().map(|manifest| manifest.object).collect();
    print_progress(global, "Starting the machines in simulated time ...");
    let made = sandbox::bring_up(&objects, speed)?;
    let (available, machines) = (made.available, made.machines);
    print_progress(global, &format!("{available} of {machines} machines are available."));
    Ok(made.world)
}

/// Serves a world until Ctrl-C or SIGTERM.
async fn stay_up(
    global: &GlobalArgs,
    printer: Printer,
    world: Snapshot,
    ports: Ports,
    speed: u32,
) -> anyhow::Result<ExitCode> {
    let ended = interrupted();
    tokio::pin!(ended);
    // After the first poll, signals are handled: even an early one leaves nothing behind.
    if futures::poll!(&mut ended).is_ready() {
        return Ok(ExitCode::SUCCESS);
    }
    let directory = temporary_directory()?;
    let options = SandboxOptions { directory: directory.path().to_owned(), hurry: speed };
    let sandbox = Sandbox::start(&world, ports, options).await?;
    // Servers of Updaters under development run on this machine.
    sandbox.world().network().reach_loopback();
    announce(printer, &sandbox, speed)?;
    ended.await;
    drop(sandbox);
    print_progress(global, STOPPED);
    Ok(ExitCode::SUCCESS)
}

/// Creates the directory of the kubeconfig, which is removed with the sandbox. The kubeconfig holds
/// keys, so only its owner may read it.
fn temporary_directory() -> anyhow::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("refit-sandbox-")
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir()
        .context("failed to create a temporary directory for the kubeconfig; check TMPDIR")
}

/// Prints the path on its own line, followed by hints.
fn announce(printer: Printer, sandbox: &Sandbox, speed: u32) -> anyhow::Result<()> {
    let path = sandbox.kubeconfig();
    print_hints(printer, path, &hints::lines(sandbox.world(), path, speed))
}

/// Prints the path of the kubeconfig, followed by hints.
fn print_hints(printer: Printer, path: &Path, hints: &[String]) -> anyhow::Result<()> {
    printer.result(&path.display().to_string())?;
    for line in hints {
        printer.note(line)?;
    }
    io::stdout().flush()?;
    Ok(())
}

/// Writes a progress line to stderr: stdout is for the path.
fn print_progress(global: &GlobalArgs, line: &str) {
    if !global.quiet {
        // If stderr is closed, nothing important is lost.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_survive_a_shell() {
        assert_eq!(quoted(Path::new("/a/b-1")), "/a/b-1");
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }
}
