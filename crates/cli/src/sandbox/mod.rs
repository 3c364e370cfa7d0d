//! `refit sandbox`: a simulated fleet that stays up and serves the Kubernetes API.

mod hints;
mod script;

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use lab_world::{
    manifests,
    sandbox::{self, Ports, Sandbox, SandboxOptions},
    snapshot::Snapshot,
    world,
};

use crate::{
    demo::fleet,
    exit::interrupted,
    global::GlobalArgs,
    printer::{Format, Printer},
};

/// Flags of `refit sandbox`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit sandbox
  refit sandbox --manifests cluster.yaml     what `clusterctl generate cluster` prints
  refit sandbox --port 6443 --speed 1        hosts take as long as real ones
  refit sandbox --hosts-port 8099            with an API for a provider that upgrades hosts
  refit sandbox --script scenario.txt        a script in simulated time; `help` in a script lists the commands

The first line of stdout is the path of a kubeconfig. Its context `refit` is the management
cluster; each workload cluster has a context of its own name. The APIs listen on 127.0.0.1 only and
accept the credentials in the kubeconfig, which only you can read.

Exit codes:
  0  stopped by Ctrl-C or SIGTERM, or the script succeeded
  1  the sandbox cannot run, or a wait of the script timed out
  2  the command line is invalid")]
pub(crate) struct Args {
    /// Run these Cluster manifests instead of the built-in example.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    manifests: Vec<PathBuf>,
    /// Serve the management API on this port of 127.0.0.1 [default: a free one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Also serve an HTTP API that upgrades hosts without their agents, on this port of 127.0.0.1.
    /// A provider under development can call it: docs/write-a-provider.md.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    hosts_port: Option<u16>,
    /// Speed up the hosts by this factor. Everything else runs in real time.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    speed: u32,
    /// Run a scenario script on simulated time instead, print its output and exit. Opens no port.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["manifests", "port", "hosts_port", "speed"])]
    script: Option<PathBuf>,
}

/// Runs the sandbox until a signal ends it.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.script {
        return script::run(file);
    }
    let printer = Printer::new(Format::Text, global);
    // Bind the port first, so that a port in use is reported before any slow work.
    let ports = Ports::take(args.port, args.hosts_port)?;
    let world = make(args, global)?;
    let runtime = sandbox::runtime()?;
    let outcome = runtime.block_on(stay_up(args, global, printer, &world, ports));
    runtime.shutdown_background();
    outcome
}

/// Creates a new world.
fn make(args: &Args, global: &GlobalArgs) -> anyhow::Result<Snapshot> {
    let loaded = fleet::read(&args.manifests)?;
    world::runtime()?.block_on(manifests::rehearse(&loaded))?;
    for manifest in loaded.iter().filter(|manifest| !manifests::is_acted_on(&manifest.object)) {
        print_progress(global, &format!("stored, without effect: {}", manifest.title()));
    }
    let objects: Vec<_> = loaded.into_iter().map(|manifest| manifest.object).collect();
    print_progress(global, "Starting the machines in simulated time ...");
    let made = sandbox::bring_up(&objects, args.speed)?;
    let (available, machines) = (made.available, made.machines);
    print_progress(global, &format!("{available} of {machines} machines are available."));
    Ok(made.world)
}

/// Serves a world until Ctrl-C or SIGTERM.
async fn stay_up(
    args: &Args,
    global: &GlobalArgs,
    printer: Printer,
    world: &Snapshot,
    ports: Ports,
) -> anyhow::Result<ExitCode> {
    let ended = interrupted();
    tokio::pin!(ended);
    // After the first poll, signals are handled: even an early one leaves nothing behind.
    if futures::poll!(&mut ended).is_ready() {
        return Ok(ExitCode::SUCCESS);
    }
    let directory = temporary_directory()?;
    let options = SandboxOptions { directory: directory.path().to_owned(), hurry: args.speed };
    let sandbox = Sandbox::start(world, ports, options).await?;
    // Servers of Updaters under development run on this machine.
    sandbox.world().network().reach_loopback();
    announce(printer, args, &sandbox)?;
    ended.await;
    drop(sandbox);
    print_progress(global, "Stopped; the simulated clusters were removed.");
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
fn announce(printer: Printer, args: &Args, sandbox: &Sandbox) -> anyhow::Result<()> {
    let path = sandbox.kubeconfig();
    printer.result(&path.display().to_string())?;
    for line in hints::lines(sandbox.world(), path, args.speed) {
        printer.note(&line)?;
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
