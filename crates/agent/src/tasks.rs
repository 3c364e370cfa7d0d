//! What the program does beside being the agent: installing, removing and looking after itself.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use clap::Subcommand;
use refit_agent::{
    host::{JobFile, NodeSecrets, Site},
    install::{
        BASE, ExchangeOutcome, Installation, Layout, SystemdUnits, confirmed, end_trial, exchanged,
        guard, setting,
    },
};
use refit_bundle::PublicKeys;
use refit_runtime::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often an installer that stays looks whether the host is still as it should be.
const AGAIN: Duration = Duration::from_mins(5);
/// Wait before files that could not be used are tried again.
const RETRY: Duration = Duration::from_mins(1);

/// What the program can do beside being the agent.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Task {
    /// Put this program on the host and have systemd run it; run again, it changes nothing
    ///
    /// Where another version runs, that one exchanges itself for this one as soon as it has no step
    /// under way, and takes its place again if this one does not report within ten minutes.
    Install {
        /// A setting of the agent, such as REFIT_AGENT_HOST_PLAN=fleet/edge-1; may be repeated. Others
        /// that are set already stay; one without a value is taken away
        #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
        settings: Vec<(String, String)>,
        /// Public key (.pub) of whoever signs bundles for this host; may be repeated. It goes to
        /// /etc/refit/keys: a host trusts no bundle without one
        #[arg(long = "bundle-key", value_name = "FILE")]
        bundle_keys: Vec<PathBuf>,
        /// Stay, and look every five minutes whether the host is still as it should be
        #[arg(long)]
        stay: bool,
    },
    /// Say by the exit code whether the host runs this version, and it has reported
    Installed,
    /// Stop the service and remove it and the program from the host
    Uninstall {
        /// Remove journal, snapshots and settings too
        #[arg(long)]
        purge: bool,
        /// Stay when it is done, so that a DaemonSet can do it on every host
        #[arg(long)]
        stay: bool,
    },
    /// Do the job of a unit
    #[command(hide = true)]
    CarryOut {
        /// What to do
        #[arg(long)]
        job: PathBuf,
    },
    /// Have a new version's trial ended after its time
    #[command(hide = true)]
    Guard,
    /// Go back to the version of before if the new one has not reported
    #[command(hide = true)]
    EndTrial,
}

/// Does a task. The host's root is entered by `enter` once this program's own file was read.
pub(crate) async fn run(
    task: &Task,
    state: &Path,
    enter: impl FnOnce() -> anyhow::Result<()>,
    stop: &CancellationToken,
) -> anyhow::Result<ExitCode> {
    let program = match task {
        Task::Install { .. } | Task::Installed => {
            fs::read("/proc/self/exe").context("this program's own file cannot be read")?
        }
        Task::Uninstall { .. } | Task::CarryOut { .. } | Task::Guard | Task::EndTrial => Vec::new(),
    };
    let keys = match task {
        Task::Install { bundle_keys, .. } => read_keys(bundle_keys)?,
        Task::Installed
        | Task::Uninstall { .. }
        | Task::CarryOut { .. }
        | Task::Guard
        | Task::EndTrial => BTreeMap::new(),
    };
    enter()?;
    let units = SystemdUnits;
    let host = Installation { layout: Layout::new(BASE), root: "/".into(), units: &units };
    match task {
        Task::Install { settings, stay, .. } => {
            host.trust(&keys)?;
            install(&host, &program, settings, *stay, stop).await?;
        }
        Task::Installed => {
            if !host.is_settled(&program).await {
                return Ok(ExitCode::FAILURE);
            }
        }
        Task::Uninstall { purge, stay } => {
            host.uninstall(purge.then_some(state)).await?;
            tracing::info!("the agent is removed from this host");
            if *stay {
                stop.cancelled().await;
            }
        }
        Task::CarryOut { job } => return Ok(carry_out(job).await),
        Task::Guard => guard(&host.layout, &units).await?,
        Task::EndTrial => {
            if end_trial(&host.layout, &host.root, &units, Clock::real().now()).await? {
                tracing::warn!("the new version did not report: the one before runs again");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Keys by the names of their files; what is none is named before anything is installed.
fn read_keys(paths: &[PathBuf]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut keys = BTreeMap::new();
    for path in paths {
        let shown = path.display().to_string();
        let text = fs::read_to_string(path).with_context(|| format!("{shown} cannot be read"))?;
        PublicKeys::parse(&shown, &text)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        keys.insert(format!("{stem}.pub"), text);
    }
    Ok(keys)
}

/// Does the job of a unit; its exit code says what may end a failure.
async fn carry_out(job: &Path) -> ExitCode {
    let outcome = async {
        let job = JobFile::load(job)?;
        let site = Site::new(&job.state);
        let log = site.units().join(format!("{}.log", job.unit));
        let site = site.logging_to(log);
        let secrets = NodeSecrets::of_host(&job.kubeconfig, &job.namespace);
        refit_agent::host::carry_out(&site, &job, &secrets).await
    };
    match outcome.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The unit's output: its end is what the report shows.
            #[expect(clippy::print_stderr, reason = "the program's own last word")]
            {
                eprintln!("error: {error}");
            }
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
        }
    }
}

async fn install(
    host: &Installation<'_>,
    program: &[u8],
    settings: &[(String, String)],
    stay: bool,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut settings: BTreeMap<String, String> = settings.iter().cloned().collect();
    // What a DaemonSet knows of the Node that it is on.
    if let Ok(name) = std::env::var("NODE_NAME") {
        settings.entry("NODE_NAME".to_owned()).or_insert(name);
    }
    let mut known = None;
    loop {
        let outcome = host.install(program, &settings, Clock::real().now()).await?;
        if known.as_ref() != Some(&outcome) {
            match &outcome {
                ExchangeOutcome::Installed => tracing::info!("the agent runs on this host"),
                ExchangeOutcome::Reconfigured => {
                    tracing::info!("the agent was started anew with other settings");
                }
                ExchangeOutcome::Unchanged => tracing::info!("the host runs this version"),
                ExchangeOutcome::Replaced => {
                    tracing::info!("this version runs in place of another");
                }
                ExchangeOutcome::Wanted { running } => {
                    tracing::info!(running, "that version gives way when no step is under way");
                }
            }
            known = Some(outcome);
        }
        if !stay {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

/// The version that this process is, where it keeps its own versions.
pub(crate) fn own_version() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    refit_agent::install::own_version(&Layout::new(BASE), &program)
}

/// Ends the trial of this version once it has reported, then waits until another takes its place.
pub(crate) async fn give_way(
    own: &str,
    reported: &watch::Sender<bool>,
    between_steps: &watch::Sender<bool>,
) -> String {
    let layout = Layout::new(BASE);
    loop {
        let given = async {
            confirmed(&layout, own, reported.subscribe(), &SystemdUnits).await?;
            let (reported, between) = (reported.subscribe(), between_steps.subscribe());
            exchanged(&layout, own, reported, between).await
        };
        match given.await {
            Ok(wanted) => return wanted,
            Err(error) => tracing::warn!(%error, "another version cannot take over yet"),
        }
        tokio::time::sleep(RETRY).await;
    }
}
