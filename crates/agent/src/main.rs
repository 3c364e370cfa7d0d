//! The `refit-agent` program.

use std::{
    fs,
    os::unix::fs::chroot,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use refit_agent::{
    AgentOptions, DEFAULT_POLICY, Extras, OwnPaths, PlanTrust, PolicyFile, RealDisk, RealHost,
    kubeconfig, run_with,
};
use refit_kinds::keys;
use refit_runtime::{
    Clock, ObjectKey,
    client::ClientStack,
    plan_signing::PlanKeys,
    process::{LogFormat, init_logs, until_stopped},
    tls,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::tasks::Task;

mod tasks;

/// How often the credentials are checked: a kubelet renews its certificate by itself.
const CREDENTIALS_RECHECK: Duration = Duration::from_mins(1);
/// Delay before an agent that stopped by itself is restarted.
const RESTART_DELAY: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  On a host, with the kubelet's own credentials:
    refit-agent --kubeconfig /etc/kubernetes/kubelet.conf

  In a privileged pod that sees the host's root at /host:
    refit-agent --host-root /host --node-name \"$NODE_NAME\"

The agent must run as root: it installs packages, runs kubeadm and restarts the kubelet. Its journal
in the state directory records what was started, so it can be stopped or killed at any point; a
step that runs on the host continues, and the agent finds it again.";

/// Run the steps of this host's HostPlan as far as its gate allows, and report the results
#[derive(Debug, Parser)]
#[command(name = "refit-agent", version, after_help = EXAMPLES)]
struct Args {
    /// Set the name of this host's Node [default: the host's name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,
    /// Read the kubeconfig of the cluster that holds the HostPlan from this path on the host
    #[arg(
        long,
        value_name = "FILE",
        env = "REFIT_AGENT_KUBECONFIG",
        default_value = "/etc/kubernetes/kubelet.conf"
    )]
    kubeconfig: PathBuf,
    /// Use this HostPlan, if the controller keeps HostPlans next to its Machines
    /// (--plan-location=Management) [default: refit-system/<node>]
    #[arg(long, value_name = "NAMESPACE/MACHINE", env = "REFIT_AGENT_HOST_PLAN", value_parser = plan_key)]
    host_plan: Option<ObjectKey>,
    /// Keep the journal, outputs and snapshots in this directory of the host; it must survive
    /// reboots
    #[arg(
        long,
        value_name = "DIRECTORY",
        env = "REFIT_AGENT_STATE_DIR",
        default_value = "/var/lib/refit-agent"
    )]
    state_dir: PathBuf,
    /// Use this directory as the host's root, in a container that mounts it; all paths are then
    /// relative to it
    #[arg(
        long,
        alias = "root",
        value_name = "DIRECTORY",
        env = "REFIT_AGENT_HOST_ROOT",
        global = true
    )]
    host_root: Option<PathBuf>,
    /// Accept only plans that are signed by one of the ed25519 public keys in this PEM file on the
    /// host [default: all plans]
    #[arg(long, value_name = "FILE", env = "REFIT_AGENT_PLAN_KEYS")]
    plan_keys: Option<PathBuf>,
    /// Refuse plans that the policy in this file on the host does not allow. Without the default file
    /// all plans are accepted; a file at another place must exist
    #[arg(
        long,
        value_name = "FILE",
        env = "REFIT_AGENT_POLICY",
        default_value = DEFAULT_POLICY
    )]
    policy: PathBuf,
    /// Select log lines by a filter such as info or refit_agent=debug,info
    #[arg(long, value_name = "FILTER", env = "REFIT_LOG", default_value = "info")]
    log: String,
    /// Set the format of log lines
    #[arg(long, value_enum, env = "REFIT_LOG_FORMAT", default_value_t = Format::Text)]
    log_format: Format,
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Human-readable text
    Text,
    /// One JSON object per line
    Json,
}

fn main() -> ExitCode {
    match start(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the program prints its final error")]
            {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn start(args: &Args) -> anyhow::Result<ExitCode> {
    let format = match args.log_format {
        Format::Text => LogFormat::Text,
        Format::Json => LogFormat::Json,
    };
    init_logs(&args.log, format)?;
    tls::install_provider();
    let enter = || args.host_root.as_deref().map_or(Ok(()), enter);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let stop = CancellationToken::new();
    let outcome = runtime.block_on(async {
        let work = async {
            if let Some(task) = &args.task {
                return tasks::run(task, &args.state_dir, enter, &stop).await;
            }
            enter()?;
            serve(args, &stop).await.map(|()| ExitCode::SUCCESS)
        };
        let mut code = ExitCode::SUCCESS;
        let kept = async {
            code = work.await?;
            Ok(())
        };
        let ended = until_stopped(kept, &stop).await;
        ended.map(|ended| if ended == ExitCode::SUCCESS { code } else { ended })
    });
    runtime.shutdown_background();
    outcome
}

/// Makes the host's root the root of this process: programs, packages and `/proc` are then the
/// host's.
fn enter(root: &Path) -> anyhow::Result<()> {
    chroot(root).with_context(|| {
        format!(
            "cannot change the root directory to {}; the container must be privileged",
            root.display()
        )
    })?;
    std::env::set_current_dir("/").context("cannot enter the host's root directory")
}

async fn serve(args: &Args, stop: &CancellationToken) -> anyhow::Result<()> {
    let node_name = match &args.node_name {
        Some(name) => name.clone(),
        None => host_name()?,
    };
    anyhow::ensure!(
        is_plain(&args.state_dir),
        "invalid state directory {}: systemd units contain it, so it must be an absolute path of \
         letters, digits and `.`, `_`, `-`; choose another with --state-dir",
        args.state_dir.display()
    );
    let disk = RealDisk::open(&args.state_dir).with_context(|| {
        let directory = args.state_dir.display();
        format!("cannot use the state directory {directory}; choose another with --state-dir")
    })?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        node = node_name,
        state = %args.state_dir.display(),
        "starting refit-agent"
    );
    let stack = ClientStack::production(concat!("refit-agent/", env!("CARGO_PKG_VERSION")));
    let (reported, between_steps) = (watch::Sender::new(false), watch::Sender::new(false));
    let own_version = tasks::own_version();
    let own = own_paths(args);
    loop {
        let before = fingerprint(args);
        let agent = async {
            let config = kubeconfig::config(&args.kubeconfig).await?;
            let plan = args.host_plan.clone();
            let plan =
                plan.unwrap_or_else(|| ObjectKey::new(keys::HOST_PLAN_NAMESPACE, &node_name));
            let options = AgentOptions {
                stack: stack.clone(),
                config,
                clock: Clock::real(),
                node_name: node_name.clone(),
                host: Arc::new(
                    RealHost::new(&args.state_dir)
                        .with_identity(&args.kubeconfig, &plan.namespace)
                        .protecting(own.clone()),
                ),
                disk: Arc::new(disk.clone()),
            };
            let extras = Extras {
                trust: trust(args, &disk)?,
                policy: Some(
                    PolicyFile::new(&args.policy)
                        .protecting(own.clone())
                        .with_signed_plans(args.plan_keys.is_some()),
                ),
                reported: Some(reported.clone()),
                between_steps: Some(between_steps.clone()),
            };
            run_with(options, plan, extras).await
        };
        let handover = async {
            match &own_version {
                Some(own_version) => {
                    tasks::wait_for_handover(own_version, &reported, &between_steps).await
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            // Polled before the agent, so that no step starts between this check and the exit.
            wanted = handover => {
                tracing::info!(wanted, "handing over to another version");
                return Ok(());
            }
            () = changed(args, &before) => {
                tracing::info!("credentials or keys changed, restarting");
                continue;
            }
            outcome = agent => if let Err(error) = outcome {
                tracing::warn!("restarting after an error: {error:#}");
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(RESTART_DELAY) => {}
        }
    }
}

/// What belongs to the agent, also at the places that this host has chosen.
fn own_paths(args: &Args) -> OwnPaths {
    let chosen = [Some(&args.state_dir), Some(&args.policy), args.plan_keys.as_ref()];
    OwnPaths::new(chosen.into_iter().flatten().cloned().chain(std::env::current_exe()))
}

/// Reads `NAMESPACE/NAME`.
fn plan_key(text: &str) -> Result<ObjectKey, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(ObjectKey::new(namespace, name))
        }
        _ => Err("expected NAMESPACE/MACHINE, such as fleet/edge-1-x7k2p".to_owned()),
    }
}

/// Whether systemd takes a path without escaping: no blank, no quote, no `%` or `$`.
fn is_plain(path: &Path) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let bytes = path.as_os_str().as_encoded_bytes();
    path.is_absolute() && bytes.iter().copied().all(plain)
}

/// Trusts the keys of `--plan-keys`; without that flag the agent accepts all plans.
fn trust(args: &Args, disk: &RealDisk) -> anyhow::Result<Option<PlanTrust>> {
    let Some(file) = args.plan_keys.as_deref() else {
        return Ok(None);
    };
    let shown = file.display();
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read the plan keys {shown}"))?;
    let keys = PlanKeys::from_pem(&text).with_context(|| format!("invalid plan keys {shown}"))?;
    let ids: Vec<&str> = keys.ids().collect();
    tracing::info!(keys = ids.join(" "), "accepting signed plans only");
    Ok(Some(PlanTrust::new(keys, Arc::new(disk.clone()))))
}

/// Waits until the kubeconfig, the keys or a file that they name changes.
async fn changed(args: &Args, before: &[u8]) {
    while fingerprint(args) == before {
        tokio::time::sleep(CREDENTIALS_RECHECK).await;
    }
}

/// A hash that changes with the credentials. No credential can be derived from it.
fn fingerprint(args: &Args) -> Vec<u8> {
    let mut hash = Sha256::new();
    let mut add = |path: &Path| {
        hash.update(fs::read(path).unwrap_or_default());
        hash.update([0]);
    };
    add(&args.kubeconfig);
    if let Some(keys) = &args.plan_keys {
        add(keys);
    }
    // The code that uses the kubeconfig reports read errors.
    let mut known = kubeconfig::read(&args.kubeconfig).unwrap_or_default();
    kubeconfig::files(&mut known).for_each(|file| add(Path::new(file)));
    hash.finalize().to_vec()
}

/// Returns the host's name, which a kubelet uses as its Node name by default.
fn host_name() -> anyhow::Result<String> {
    let path = "/proc/sys/kernel/hostname";
    let name = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let name = name.trim().to_lowercase();
    anyhow::ensure!(!name.is_empty(), "this host has no name; set --node-name");
    Ok(name)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn flags_are_well_formed() {
        Args::command().debug_assert();
        let args = Args::parse_from(["refit-agent", "--root", "/host"]);
        assert_eq!(args.host_root.as_deref(), Some(Path::new("/host")));
        assert_eq!(args.kubeconfig, Path::new("/etc/kubernetes/kubelet.conf"));
    }

    #[test]
    fn daemon_set_and_unit_use_valid_flags() {
        let pod = include_str!("../../../deploy/agent/daemon_set.yaml");
        let args = pod.lines().filter_map(|line| {
            let line = line.trim();
            line.strip_prefix("args: [").or_else(|| line.strip_prefix("command: [/refit-agent, "))
        });
        let args: Vec<Vec<&str>> =
            args.map(|list| list.trim_end_matches(']').split(", ").collect()).collect();
        assert_eq!(args.len(), 2, "the container and its probe");
        for flags in args {
            let args = Args::try_parse_from(["refit-agent"].into_iter().chain(flags)).unwrap();
            assert!(args.task.is_some());
            assert_eq!(args.host_root.as_deref(), Some(Path::new("/host")));
        }
        let unit = refit_agent::install::unit();
        let starts = unit.lines().filter_map(|line| {
            let call = line.strip_prefix("ExecStart")?.trim_start_matches("Pre");
            call.trim_start_matches(['=', '-']).split_once("/refit-agent")
        });
        let calls: Vec<Option<Task>> = starts
            .map(|(_, flags)| {
                let words = ["refit-agent"].into_iter().chain(flags.split_whitespace());
                Args::try_parse_from(words).unwrap().task
            })
            .collect();
        assert!(matches!(calls[..], [Some(Task::Guard), None]), "{calls:?}");
    }

    #[test]
    fn the_daemon_set_has_no_pods_on_windows_nodes() {
        let pod = include_str!("../../../deploy/agent/daemon_set.yaml");
        assert!(pod.contains("      nodeSelector:\n        kubernetes.io/os: linux\n"), "{pod}");
    }

    #[test]
    fn a_state_directory_that_needs_escaping_is_refused() {
        assert!(is_plain(Path::new("/var/lib/refit-agent")));
        for other in ["state", "/var/lib/my state", "/var/%h", "/var/$HOME", ""] {
            assert!(!is_plain(Path::new(other)), "{other:?}");
        }
    }

    #[test]
    fn the_fingerprint_covers_files_that_a_kubeconfig_names() {
        let directory = tempfile::tempdir().unwrap();
        let (config, cert) = (directory.path().join("config"), directory.path().join("cert.pem"));
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, clusters: [], contexts: [], \
             users: [{{name: u, user: {{client-certificate: '{}'}}}}]}}",
            cert.display()
        );
        fs::write(&config, text).unwrap();
        fs::write(&cert, "old").unwrap();
        let keys = directory.path().join("keys.pem");
        let flags = ["refit-agent".as_ref(), "--kubeconfig".as_ref(), config.as_os_str()];
        let keyed = ["--plan-keys".as_ref(), keys.as_os_str()];
        let args = Args::parse_from(flags.into_iter().chain(keyed));
        let before = fingerprint(&args);
        assert_eq!(before, fingerprint(&args));
        fs::write(&cert, "new").unwrap();
        let renewed = fingerprint(&args);
        assert_ne!(before, renewed);
        fs::write(&keys, "another").unwrap();
        assert_ne!(renewed, fingerprint(&args));
    }
}
