//! The subcommands: installing, removing and checking the agent on its host.

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
    host::{JobFile, NodeSecrets},
    install::{
        BASE, ExchangeOutcome, Installation, Layout, SystemdUnits, confirmed, end_trial, exchanged,
        guard, setting,
    },
};
use refit_bundle::PublicKeys;
use refit_runtime::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often a staying installer checks the host.
const RECHECK_INTERVAL: Duration = Duration::from_mins(5);
/// Delay before files that could not be used are tried again.
const RETRY: Duration = Duration::from_mins(1);

/// Subcommands of the program.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Task {
    /// Install this program on the host as a systemd service; a repeated run changes nothing
    ///
    /// If another version runs, that version replaces itself with this one as soon as no step is in
    /// progress, and it is restored if this one does not report within ten minutes.
    Install {
        /// Set an environment variable of the agent, such as REFIT_AGENT_HOST_PLAN=fleet/edge-1;
        /// may be repeated. Variables that are not named keep their value; one without a value is
        /// removed
        #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
        settings: Vec<(String, String)>,
        /// Install a public key (.pub) that signs bundles for this host in /etc/refit/keys; may be
        /// repeated. Without a key the host trusts no bundle
        #[arg(long = "bundle-key", value_name = "FILE")]
        bundle_keys: Vec<PathBuf>,
        /// Keep running, and restore the installation every five minutes if it has changed
        #[arg(long)]
        stay: bool,
    },
    /// Exit with 0 if the host runs this version and it has reported
    Installed,
    /// Stop the service, and remove it and the program from the host
    Uninstall {
        /// Also remove journal, snapshots and settings
        #[arg(long)]
        purge: bool,
        /// Keep running afterwards, so that a DaemonSet can uninstall on every host
        #[arg(long)]
        stay: bool,
    },
    /// Run the job of a unit
    #[command(hide = true)]
    CarryOut {
        /// Read the job from this file
        #[arg(long)]
        job: PathBuf,
    },
    /// Schedule the end of a new version's trial
    #[command(hide = true)]
    Guard,
    /// Restore the previous version if the new one has not reported
    #[command(hide = true)]
    EndTrial,
}

/// Runs a task. `enter` enters the host's root after this program's own file has been read.
pub(crate) async fn run(
    task: &Task,
    state: &Path,
    enter: impl FnOnce() -> anyhow::Result<()>,
    stop: &CancellationToken,
) -> anyhow::Result<ExitCode> {
    let program = match task {
        Task::Install { .. } | Task::Installed => {
            fs::read("/proc/self/exe").context("cannot read the program's own file")?
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
            tracing::info!("agent removed from this host");
            if *stay {
                stop.cancelled().await;
            }
        }
        Task::CarryOut { job } => return Ok(carry_out(job).await),
        Task::Guard => guard(&host.layout, &units).await?,
        Task::EndTrial => {
            if end_trial(&host.layout, &host.root, &units, Clock::real().now()).await? {
                tracing::warn!(
                    "the new version did not report, rolled back to the previous version"
                );
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads keys, by file name. An invalid key is an error before anything is installed.
fn read_keys(paths: &[PathBuf]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut keys = BTreeMap::new();
    for path in paths {
        let shown = path.display().to_string();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        PublicKeys::parse(&shown, &text)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        keys.insert(format!("{stem}.pub"), text);
    }
    Ok(keys)
}

/// Runs the job of a unit. The exit code carries the kind of failure.
async fn carry_out(job: &Path) -> ExitCode {
    let outcome = async {
        let job = JobFile::load(job)?;
        let secrets = NodeSecrets::of_host(&job.kubeconfig, &job.namespace);
        refit_agent::host::carry_out(&job.site(), &job, &secrets).await
    };
    match outcome.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The error ends the output of the unit, and the report shows that end.
            #[expect(clippy::print_stderr, reason = "the program prints its final error")]
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
    // A DaemonSet passes the name of its Node.
    if let Ok(name) = std::env::var("NODE_NAME") {
        settings.entry("NODE_NAME".to_owned()).or_insert(name);
    }
    let mut known = None;
    loop {
        let outcome = host.install(program, &settings, Clock::real().now()).await?;
        if known.as_ref() != Some(&outcome) {
            match &outcome {
                ExchangeOutcome::Installed => tracing::info!("agent installed and running"),
                ExchangeOutcome::Reconfigured => {
                    tracing::info!("agent restarted with new settings");
                }
                ExchangeOutcome::Unchanged => tracing::info!("this version already runs"),
                ExchangeOutcome::Replaced => {
                    tracing::info!("agent replaced by this version");
                }
                ExchangeOutcome::Wanted { running } => {
                    tracing::info!(running, "the running version will hand over once it is idle");
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
            () = tokio::time::sleep(RECHECK_INTERVAL) => {}
        }
    }
}

/// Returns the version of this process, if its program is one of the installed versions.
pub(crate) fn own_version() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    refit_agent::install::own_version(&Layout::new(BASE), &program)
}

/// Ends the trial of this version once it has reported, then waits until another version replaces
/// it.
pub(crate) async fn wait_for_handover(
    own: &str,
    reported: &watch::Sender<bool>,
    between_steps: &watch::Sender<bool>,
) -> String {
    let layout = Layout::new(BASE);
    loop {
        let handover = async {
            confirmed(&layout, own, reported.subscribe(), &SystemdUnits).await?;
            let (reported, between) = (reported.subscribe(), between_steps.subscribe());
            exchanged(&layout, own, reported, between).await
        };
        match handover.await {
            Ok(wanted) => return wanted,
            Err(error) => tracing::warn!(%error, "cannot hand over to another version yet"),
        }
        tokio::time::sleep(RETRY).await;
    }
}
