//! `refit sandbox`: a simulated fleet that stays up and answers kubectl.

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
  refit sandbox --port 6443 --speed 1        hosts that take as long as real ones
  refit sandbox --script scenario.txt        a script on simulated time; `help` in a script tells how

The first line of the output is the path of a kubeconfig. Its context `refit` is the management
cluster; each workload cluster has a context of its own name. The APIs listen on 127.0.0.1 only, and
the kubeconfig, which only you may read, is what lets you in.

Exit codes:
  0  ended by Ctrl-C or SIGTERM, which is how a sandbox ends; a script did what it says
  1  it cannot run, and the text says why; a wait of a script ran out
  2  the command line is wrong")]
pub(crate) struct Args {
    /// Cluster manifests to run instead of the built-in example.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    manifests: Vec<PathBuf>,
    /// Port of the management API on 127.0.0.1 [default: a free one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// How many times faster than real ones the hosts work. Everything else runs in real time.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    speed: u32,
    /// Run a scenario script on simulated time instead, print its output and exit. Opens no port.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["manifests", "port", "speed"])]
    script: Option<PathBuf>,
}

/// Runs the sandbox until somebody ends it.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.script {
        return script::run(file);
    }
    let printer = Printer::new(Format::Text, global);
    // First of all, so that a port that is taken is known before anything takes time.
    let ports = Ports::take(args.port)?;
    let world = make(args, global)?;
    let runtime = sandbox::runtime()?;
    let outcome = runtime.block_on(stay_up(args, global, printer, &world, ports));
    runtime.shutdown_background();
    outcome
}

/// Makes a new world.
fn make(args: &Args, global: &GlobalArgs) -> anyhow::Result<Snapshot> {
    let loaded = fleet::read(&args.manifests)?;
    world::runtime()?.block_on(manifests::rehearse(&loaded))?;
    for manifest in loaded.iter().filter(|manifest| !manifests::is_acted_on(&manifest.object)) {
        tell(global, &format!("kept, not acted on: {}", manifest.title()));
    }
    let objects: Vec<_> = loaded.into_iter().map(|manifest| manifest.object).collect();
    tell(global, "Bringing the machines up in simulated time ...");
    let made = sandbox::bring_up(&objects, args.speed)?;
    let (available, machines) = (made.available, made.machines);
    tell(global, &format!("{available} of {machines} machines are available."));
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
    // From the first poll on the signals are ours: nothing is left behind by one that comes early.
    if futures::poll!(&mut ended).is_ready() {
        return Ok(ExitCode::SUCCESS);
    }
    let directory = temporary_directory()?;
    let options = SandboxOptions { directory: directory.path().to_owned(), hurry: args.speed };
    let sandbox = Sandbox::start(world, ports, options).await?;
    announce(printer, args, &sandbox)?;
    ended.await;
    drop(sandbox);
    tell(global, "Ended; nothing is left behind.");
    Ok(ExitCode::SUCCESS)
}

/// The directory of the kubeconfig, which ends with the sandbox. The kubeconfig holds keys, so only
/// its owner may read it.
fn temporary_directory() -> anyhow::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("refit-sandbox-")
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir()
        .context("failed to create a temporary directory for the kubeconfig; check TMPDIR")
}

/// The path alone on a line, then what to do with it.
fn announce(printer: Printer, args: &Args, sandbox: &Sandbox) -> anyhow::Result<()> {
    let path = sandbox.kubeconfig();
    printer.result(&path.display().to_string())?;
    for line in hints::lines(sandbox.world(), path, args.speed) {
        printer.note(&line)?;
    }
    io::stdout().flush()?;
    Ok(())
}

/// Tells how it goes, on stderr: stdout is for the path.
fn tell(global: &GlobalArgs, line: &str) {
    if !global.quiet {
        // Whoever does not listen any more misses nothing that matters.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}

/// A path as a shell takes it.
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
