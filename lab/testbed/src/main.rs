//! `lab-testbed up`: a bed for a person.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use lab_testbed::{Bed, ClusterSpec, Line, folder};
use refit_runtime::{
    process::{LogFormat, init_logs, until_stopped},
    tls,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio_util::sync::CancellationToken;

/// How long a bed may take to end.
const END: Duration = Duration::from_mins(1);
/// How often is looked whether it has.
const LOOK: Duration = Duration::from_millis(200);

/// Real kube-apiserver, real Cluster API and Refit on loopback, without containers.
#[derive(Debug, Parser)]
#[command(name = "lab-testbed", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Starts a bed with one cluster, says how to use it, and runs until Ctrl-C
    Up {
        /// The line of Cluster API: v1.12 or v1.14
        #[arg(long, default_value = "v1.14")]
        capi: Line,
        /// How many workers the cluster has
        #[arg(long, default_value_t = 2)]
        workers: u32,
    },
    /// Ends the bed that `up` started
    Down,
}

fn main() -> ExitCode {
    match start(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the program's own last word")]
            {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn start(args: &Args) -> anyhow::Result<ExitCode> {
    init_logs("lab_testbed=info,warn", LogFormat::Text)?;
    tls::install_provider();
    let Command::Up { capi, workers } = args.command else {
        down()?;
        return Ok(ExitCode::SUCCESS);
    };
    let runtime = tokio::runtime::Runtime::new().context("no runtime can be made")?;
    let stop = CancellationToken::new();
    let outcome = runtime.block_on(until_stopped(up(capi, workers, &stop), &stop));
    runtime.shutdown_background();
    outcome
}

async fn up(line: Line, workers: u32, stop: &CancellationToken) -> anyhow::Result<()> {
    let file = pid_file()?;
    if let Some(pid) = running(&file) {
        anyhow::bail!(
            "a bed is up or coming up already (process {}): `cargo xtask testbed down` ends it",
            pid.as_raw_nonzero()
        );
    }
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::write(&file, std::process::id().to_string())
        .with_context(|| format!("{} cannot be written", file.display()))?;
    let serving = async {
        tell("starting kube-apiserver, Cluster API and Refit: about a minute");
        let bed = Bed::start(line).await?;
        tell("making cluster edge-1: about a minute");
        let spec = ClusterSpec { workers: vec![("md-0", workers, 0, 1)], ..ClusterSpec::default() };
        let _cluster = bed.cluster("edge-1", &spec).await?;
        tell(&usage(&bed));
        std::future::pending::<anyhow::Result<()>>().await
    };
    let outcome = tokio::select! {
        biased;
        () = stop.cancelled() => {
            tell("the bed is ended");
            Ok(())
        }
        outcome = serving => outcome,
    };
    // What is not there need not go.
    let _ = fs::remove_file(&file);
    outcome
}

#[expect(clippy::print_stdout, reason = "it is for the person who started it")]
fn tell(text: &str) {
    println!("{text}");
}

/// What to type next.
fn usage(bed: &Bed) -> String {
    let kubectl = bed.parts.kubectl.as_ref();
    let kubectl = kubectl.map_or_else(|| "kubectl".to_owned(), |path| path.display().to_string());
    let to = lab_testbed::cluster::TO;
    format!(
        "\nKubernetes {} with Cluster API {} and Refit is up; logs are in {}\n\n\
         In another terminal:\n  \
         export KUBECONFIG={}\n  \
         alias k='{kubectl} -n edge-1'\n  \
         k get machines,nodeupdates,hostplans\n\n\
         An upgrade in place, one machine after the other, planned and done:\n  \
         cargo run -p refit -- plan cluster/edge-1 -n edge-1 --to {to}\n  \
         k patch kubeadmcontrolplane edge-1 --type merge -p '{{\"spec\":{{\"version\":\"{to}\"}}}}'\n  \
         k get nodeupdates -w\n\
         and, when the control plane is there, the workers:\n  \
         k patch machinedeployment edge-1-md-0 --type merge -p '{{\"spec\":{{\"template\":{{\"spec\":{{\"version\":\"{to}\"}}}}}}}}'\n\n\
         Ctrl-C or `cargo xtask testbed down` ends it.",
        bed.parts.api_server.1,
        bed.parts.cluster_api_version,
        bed.folder.display(),
        bed.folder.join("admin.kubeconfig").display(),
    )
}

fn pid_file() -> anyhow::Result<PathBuf> {
    Ok(folder::cache()?.join("up.pid"))
}

/// The process that the file names, if that is a bed.
fn running(file: &Path) -> Option<Pid> {
    let pid = Pid::from_raw(fs::read_to_string(file).ok()?.trim().parse().ok()?)?;
    let said = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
    let said = String::from_utf8_lossy(&said);
    said.contains("lab-testbed").then_some(pid)
}

fn down() -> anyhow::Result<()> {
    let file = pid_file()?;
    let Some(pid) = running(&file) else {
        tell("no bed is up");
        return Ok(());
    };
    kill_process(pid, Signal::TERM).context("the bed cannot be ended")?;
    for _ in 0..END.as_millis() / LOOK.as_millis() {
        if running(&file) != Some(pid) {
            tell("the bed is ended");
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
    anyhow::bail!(
        "process {} does not end within {} s: `kill -9 {0}` ends it and all that it started",
        pid.as_raw_nonzero(),
        END.as_secs()
    )
}
