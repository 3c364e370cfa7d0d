//! The `refit-controller` program.

mod certificate_sources;
mod drain_flags;
mod endpoint_flags;
mod graph_flags;
mod notify_flags;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use clap::{ArgAction, Parser, ValueEnum};
use refit_controller::{
    Canonical, ControllerOptions, HOLD_CALLERS, HookServer, PlanLocation, Process, Settings,
    certificates::{CertificateSettings, Certificates},
    run,
};
use refit_core::{annotation::Compat, change::OnUncovered};
use refit_runtime::{
    Clock,
    client::ClientStack,
    lease::LeaseSettings,
    net::Listener,
    plan_signing::PlanSigner,
    process::{LogFormat, cluster, init_logs, until_stopped},
    replica, tls,
};
use tokio_util::sync::CancellationToken;

use crate::certificate_sources::{ClientSource, ServerSource};

/// Default namespace of an installation.
const NAMESPACE: &str = "refit-system";

const EXAMPLES: &str = "\
Examples:
  In a cluster, as the Deployment of `refit install` runs it:
    refit-controller --webhook-bind 0.0.0.0:9443 --health-bind 0.0.0.0:8081

  On a workstation, without leader election, with your own certificate:
    refit-controller --leader-elect=false --cert-dir ./certs --webhook-bind 127.0.0.1:9443

Signals: SIGTERM or SIGINT shuts down gracefully: the process reports not ready, answers pending
hooks and releases the Lease. A second signal exits immediately.";

/// Upgrade Kubernetes machines in place: answer Cluster API's hooks and carry out NodeUpdates
#[derive(Debug, Parser)]
#[command(name = "refit-controller", version, after_help = EXAMPLES)]
struct Args {
    /// Use this kubeconfig of the management cluster [default: KUBECONFIG, ~/.kube/config, the
    /// pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Use this context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Serve the hooks over HTTPS at this address
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "REFIT_WEBHOOK_BIND",
        default_value = "0.0.0.0:9443"
    )]
    webhook_bind: SocketAddr,
    /// Serve /healthz, /readyz and /metrics over plain HTTP at this address
    #[arg(long, value_name = "ADDRESS", env = "REFIT_HEALTH_BIND", default_value = "0.0.0.0:8081")]
    health_bind: SocketAddr,
    /// Read tls.crt and tls.key from this directory, again when they change; without it, the
    /// certificate is stored in the Secret <SERVICE>-tls
    #[arg(long, value_name = "DIRECTORY", env = "REFIT_CERT_DIR")]
    cert_dir: Option<PathBuf>,
    /// Require a client certificate for hook calls, or not. Discovery and probes need none
    #[arg(long, value_enum, env = "REFIT_HOOK_CLIENT_AUTH", default_value_t = ClientAuth::Required)]
    hook_client_auth: ClientAuth,
    /// Accept client certificates of the authorities in this PEM file, read again when it changes;
    /// without it, those of the Secret refit-hook-client
    #[arg(long, value_name = "FILE", env = "REFIT_CLIENT_CA")]
    client_ca: Option<PathBuf>,
    /// Accept only client certificates with one of these names; without it, all of the authorities in
    /// --client-ca, or those with the name of the Secret's certificate
    #[arg(
        long,
        value_name = "NAME",
        env = "REFIT_CLIENT_NAME",
        value_delimiter = ',',
        requires = "client_ca"
    )]
    client_name: Vec<String>,
    /// Accept ExternalUpgrade requests of the clients whose certificates have one of these names; without it,
    /// of no client
    #[arg(
        long,
        value_name = "NAME",
        env = "REFIT_EXTERNAL_UPGRADE_CLIENTS",
        value_delimiter = ',',
        requires = "client_ca"
    )]
    external_upgrade_clients: Vec<String>,
    /// Expect Cluster API to call the hooks by this Service
    #[arg(long, value_name = "NAME", env = "REFIT_SERVICE", default_value = "refit-webhook")]
    service: String,
    /// Use the Lease, the Service and its Secret in this namespace
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", default_value = NAMESPACE)]
    namespace: String,
    /// Do the leader's work only while holding the Lease. Without it, no second controller may run
    #[arg(
        long, env = "REFIT_LEADER_ELECT", default_value_t = true, default_missing_value = "true",
        num_args = 0..=1, require_equals = true, action = ArgAction::Set
    )]
    leader_elect: bool,
    /// Use the Lease of this name
    #[arg(long, value_name = "NAME", env = "REFIT_LEASE_NAME", default_value = "refit-controller")]
    lease_name: String,
    /// Set how long the Lease is valid without a renewal
    #[arg(
        long,
        value_name = "SECONDS",
        env = "REFIT_LEASE_DURATION_SECONDS",
        default_value_t = 15
    )]
    lease_duration_seconds: u32,
    /// Set how long the leader continues without a successful renewal
    #[arg(
        long,
        value_name = "SECONDS",
        env = "REFIT_LEASE_RENEW_DEADLINE_SECONDS",
        default_value_t = 10
    )]
    lease_renew_deadline_seconds: u32,
    /// Set how often the leader renews the Lease and other replicas check it
    #[arg(
        long,
        value_name = "SECONDS",
        env = "REFIT_LEASE_RETRY_PERIOD_SECONDS",
        default_value_t = 2
    )]
    lease_retry_period_seconds: u32,
    /// Set the default for changes that no updater covers; an annotation of the owner or Cluster
    /// overrides it
    #[arg(long, value_enum, env = "REFIT_DEFAULT_ON_UNCOVERED", default_value_t = Uncovered::Preserve)]
    default_on_uncovered: Uncovered,
    /// Hold requests of these users in namespaces with the label refit.dev/hold-replacements: those of Cluster API's
    /// managers
    #[arg(
        long,
        value_name = "USER",
        env = "REFIT_HOLD_CALLERS",
        value_delimiter = ',',
        default_values = HOLD_CALLERS
    )]
    hold_callers: Vec<String>,
    #[command(flatten)]
    drain: drain_flags::DrainFlags,
    #[command(flatten)]
    prometheus: endpoint_flags::PrometheusFlags,
    #[command(flatten)]
    alertmanager: endpoint_flags::AlertmanagerFlags,
    #[command(flatten)]
    notify: notify_flags::NotifyFlags,
    #[command(flatten)]
    version_graph: graph_flags::GraphFlags,
    /// Set how many NodeUpdates of one cluster are reconciled at once
    #[arg(long, value_name = "NUMBER", env = "REFIT_WORKERS_PER_CLUSTER", default_value_t = 4)]
    workers_per_cluster: usize,
    /// Set the maximum age of an agent's report; the agent reports every 300 s
    #[arg(
        long,
        value_name = "SECONDS",
        env = "REFIT_REPORT_STALE_AFTER_SECONDS",
        default_value_t = 900
    )]
    report_stale_after_seconds: u32,
    /// End an update as failed (HostLost) when its agent is silent for this time, and for the time
    /// that its current step may take; or Never. Remediation of the Machine is allowed then
    #[arg(long, value_name = "TIME", env = "REFIT_HOST_LOST_AFTER", default_value = "15m")]
    host_lost_after: drain_flags::Limit,
    /// Set where HostPlans are: in each workload cluster, or next to the Machines
    #[arg(long, value_enum, env = "REFIT_PLAN_LOCATION", default_value_t = Location::Workload)]
    plan_location: Location,
    /// Sign HostPlans with the ed25519 key in this PEM file, from a Secret [default: they are not
    /// signed]
    #[arg(long, value_name = "FILE", env = "REFIT_PLAN_SIGNING_KEY")]
    plan_signing_key: Option<PathBuf>,
    /// Serve the annotations of Canonical's Cluster API providers, v1beta2.k8sd.io/in-place-upgrade-to and others, in
    /// place of the controllers of those providers
    #[arg(long, value_enum, value_name = "WHERE", env = "REFIT_CANONICAL", default_value_t = CanonicalMode::Off)]
    canonical: CanonicalMode,
    /// Set how closely these annotations follow Canonical's controllers
    #[arg(
        long,
        value_enum,
        ignore_case = true,
        value_name = "MODE",
        env = "REFIT_CANONICAL_COMPAT",
        default_value_t = CompatMode::Corrected
    )]
    canonical_compat: CompatMode,
    /// Set how long hooks are still accepted after the first signal, until callers stop using this
    /// replica
    #[arg(long, value_name = "SECONDS", env = "REFIT_SHUTDOWN_DELAY_SECONDS", default_value_t = 5)]
    shutdown_delay_seconds: u32,
    /// Write the log lines that match this filter, such as info or refit_controller=debug,info
    #[arg(long, value_name = "FILTER", env = "REFIT_LOG", default_value = "info")]
    log: String,
    /// Set the format of log lines
    #[arg(long, value_enum, env = "REFIT_LOG_FORMAT", default_value_t = Format::Text)]
    log_format: Format,
    /// Set the name of this replica; a unique suffix is appended
    #[arg(long, value_name = "NAME", env = "POD_NAME", hide = true)]
    identity: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum CompatMode {
    /// As documented for Refit, without known mistakes of those controllers
    Corrected,
    /// With their annotations, events and retries, as far as no machine is put at risk
    Strict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum CanonicalMode {
    /// Nowhere
    Off,
    /// Where Canonical's bootstrap provider is not installed: its controllers would upgrade the same Machines
    On,
    /// Everywhere: you assert that the controllers of Canonical's providers that upgrade in place do not run
    ControllersAbsent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Human-readable text
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum ClientAuth {
    /// Only Cluster API's managers may call hooks
    Required,
    /// Every client that reaches the hook server may call hooks: until the managers have their
    /// certificate
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum Uncovered {
    /// The rollout stops, and nothing is replaced
    Preserve,
    /// Cluster API replaces the machines
    Replace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum Location {
    /// In the workload cluster of each host, refit-system/NODE
    Workload,
    /// In the management cluster, NAMESPACE/MACHINE; its hosts must be able to reach the management
    /// cluster
    Management,
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
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let stop = CancellationToken::new();
    let outcome = runtime.block_on(until_stopped(serve(args, stop.clone()), &stop));
    runtime.shutdown_background();
    outcome
}

fn signer(file: &Path) -> anyhow::Result<Arc<PlanSigner>> {
    let shown = file.display();
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read the signing key {shown}"))?;
    let signer =
        PlanSigner::from_pem(&text).with_context(|| format!("invalid signing key {shown}"))?;
    tracing::info!(key = signer.key_id(), "signing HostPlans");
    Ok(Arc::new(signer))
}

async fn serve(args: &Args, stop: CancellationToken) -> anyhow::Result<()> {
    let clock = Clock::real();
    let config = cluster(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
    let stack = ClientStack::production(concat!("refit-controller/", env!("CARGO_PKG_VERSION")));
    let listener = listen(args.webhook_bind, "--webhook-bind").await?;
    let probes = listen(args.health_bind, "--health-bind").await?;
    let lease = args.leader_elect.then(|| lease(args, clock));
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        cluster = %config.cluster_url,
        hooks = %args.webhook_bind,
        probes = %args.health_bind,
        identity = lease.as_ref().map(|lease| lease.identity.as_str()),
        "starting refit-controller"
    );
    let client = stack.client(&config);
    let client = client.context("cannot create the client of the management cluster")?;
    let secret = |settings| Certificates::new(client.clone(), clock, settings);
    let certificates = certificate(args, secret);
    let clients = clients(args, secret)?;
    let (cert, trust) = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        first = async { anyhow::Ok((certificates.first().await?, clients.first().await?)) } => first?,
    };
    let settings = settings(args, &stack)?;
    let controller = run(ControllerOptions {
        stack,
        config,
        clock,
        hooks: HookServer { listener, cert: cert.clone(), clients: trust.clone() },
        settings,
        process: Process {
            lease,
            probes: Some(probes),
            stop,
            drain_delay: seconds(args.shutdown_delay_seconds),
        },
    });
    tokio::select! {
        biased;
        outcome = controller => outcome,
        () = certificates.keep(cert) => anyhow::bail!("the certificate renewal task exited"),
        () = clients.keep(trust) => anyhow::bail!("the client certificate renewal task exited"),
    }
}

fn settings(args: &Args, stack: &ClientStack) -> anyhow::Result<Settings> {
    let (cloud_events, slack) = args.notify.settings(stack)?;
    Ok(Settings {
        on_uncovered: match args.default_on_uncovered {
            Uncovered::Preserve => OnUncovered::Preserve,
            Uncovered::Replace => OnUncovered::Replace,
        },
        drain: args.drain.policy(),
        report_stale_after: seconds(args.report_stale_after_seconds),
        host_lost_after: args.host_lost_after.0,
        canonical_compat: match args.canonical_compat {
            CompatMode::Corrected => Compat::Corrected,
            CompatMode::Strict => Compat::Strict,
        },
        canonical: match args.canonical {
            CanonicalMode::Off => Canonical::Off,
            CanonicalMode::On => Canonical::On,
            CanonicalMode::ControllersAbsent => Canonical::ControllersAbsent,
        },
        plan_location: match args.plan_location {
            Location::Workload => PlanLocation::Workload,
            Location::Management => PlanLocation::Management,
        },
        prometheus: args.prometheus.config(stack)?,
        alertmanager: args.alertmanager.config(stack)?,
        silence_matchers: args.alertmanager.matchers(),
        cloud_events: cloud_events.map(Box::new),
        slack,
        version_graph: args.version_graph.source(stack)?,
        plan_signer: args.plan_signing_key.as_deref().map(signer).transpose()?,
        workers_per_cluster: args.workers_per_cluster.max(1),
        hold_callers: args.hold_callers.clone(),
        external_upgrade_clients: args.external_upgrade_clients.iter().cloned().collect(),
        ..Settings::default()
    })
}

fn certificate(args: &Args, secret: impl Fn(CertificateSettings) -> Certificates) -> ServerSource {
    if let Some(directory) = &args.cert_dir {
        return ServerSource::Files(directory.clone());
    }
    ServerSource::Secret(secret(CertificateSettings::of_service(&args.namespace, &args.service)))
}

fn clients(
    args: &Args,
    secret: impl Fn(CertificateSettings) -> Certificates,
) -> anyhow::Result<ClientSource> {
    let certificates = || secret(CertificateSettings::of_clients(&args.namespace));
    Ok(match (args.hook_client_auth, &args.client_ca) {
        (ClientAuth::Off, None) => {
            tracing::warn!(
                "serving hooks without client certificates: every client that reaches \
                the hook server may call them"
            );
            ClientSource::Off(certificates())
        }
        (ClientAuth::Off, Some(_)) => {
            anyhow::bail!("--hook-client-auth=Off ignores --client-ca; remove one of them")
        }
        (ClientAuth::Required, Some(file)) => {
            ClientSource::File { ca: file.clone(), names: args.client_name.clone() }
        }
        (ClientAuth::Required, None) => ClientSource::Secret(certificates()),
    })
}

async fn listen(address: SocketAddr, flag: &str) -> anyhow::Result<Listener> {
    let listener = Listener::tcp(address).await;
    listener
        .with_context(|| format!("cannot listen on {address}; choose another address with {flag}"))
}

fn lease(args: &Args, clock: Clock) -> LeaseSettings {
    let unique = replica::identity(args.identity.as_deref(), clock);
    LeaseSettings {
        duration: seconds(args.lease_duration_seconds),
        renew_deadline: seconds(args.lease_renew_deadline_seconds),
        retry_period: seconds(args.lease_retry_period_seconds),
        ..LeaseSettings::new(&args.namespace, &args.lease_name, unique)
    }
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn flags_are_valid_and_lease_times_match_kubernetes() {
        Args::command().debug_assert();
        let args = Args::parse_from(["refit-controller"]);
        assert!(args.leader_elect);
        let lease = lease(&args, Clock::real());
        assert_eq!(lease.problem(), None);
        assert_eq!((lease.namespace.as_str(), lease.duration.as_secs()), (NAMESPACE, 15));
        let alone = Args::parse_from(["refit-controller", "--leader-elect=false"]);
        assert!(!alone.leader_elect);
    }

    #[test]
    fn the_components_of_deploy_add_valid_flags() {
        let components = [
            include_str!("../../../deploy/management-plans/kustomization.yaml"),
            include_str!("../../../deploy/signed-plans/kustomization.yaml"),
            include_str!("../../../deploy/version-graph/kustomization.yaml"),
        ];
        let flags = components.iter().flat_map(|text| text.lines());
        let flags = flags.filter_map(|line| line.trim().strip_prefix("value: "));
        let program = std::iter::once("refit-controller");
        let flags = flags.filter(|flag| flag.starts_with("--"));
        let args = Args::try_parse_from(program.chain(flags)).unwrap();
        assert_eq!(args.plan_location, Location::Management);
        assert!(args.plan_signing_key.is_some());
        assert!(args.version_graph.source(&ClientStack::production("test")).unwrap().is_some());
    }

    #[test]
    fn the_deployment_uses_valid_flags() {
        let manifest = include_str!("../../../deploy/controller/deployment.yaml");
        let flags = manifest
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- --"))
            .map(|flag| format!("--{flag}"));
        let program = std::iter::once("refit-controller".to_owned());
        let args = Args::try_parse_from(program.chain(flags)).unwrap();
        for port in [args.webhook_bind.port(), args.health_bind.port()] {
            assert!(manifest.contains(&format!("containerPort: {port}\n")));
        }
    }

    #[test]
    fn uncovered_changes_are_preserved_by_default() {
        let args = Args::parse_from(["refit-controller"]);
        assert_eq!(args.default_on_uncovered, Uncovered::Preserve);
        let other = ["refit-controller", "--default-on-uncovered", "Replace"];
        assert_eq!(Args::parse_from(other).default_on_uncovered, Uncovered::Replace);
    }
}
