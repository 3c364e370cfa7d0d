//! The `refit-managed` program.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    str::FromStr,
    time::Duration,
};

use anyhow::Context as _;
use clap::{ArgAction, Parser, ValueEnum};
use kube::config::Kubeconfig;
use refit_managed::{Compat, Process, Settings, run};
use refit_openshift::{upgrade_config::NAMESPACE, url::without_credentials};
use refit_runtime::{
    Clock,
    client::ClientStack,
    lease::LeaseSettings,
    net::Listener,
    process::{LogFormat, cluster, init_logs, until_stopped},
    replica, tls,
};
use tokio_util::sync::CancellationToken;

/// Name of the Lease, as in the original: the two never work at the same time.
const LEASE: &str = "managed-upgrade-operator-lock";

const EXAMPLES: &str = "\
Examples:
  In a cluster, as the Deployment of deploy/openshift runs it:
    refit-managed

  On a workstation, without leader election, with the Routes of Prometheus and Alertmanager:
    refit-managed --leader-elect=false --routes --namespace openshift-managed-upgrade-operator

Signals: SIGTERM or SIGINT shuts down gracefully: the process reports not ready, completes its last
write and releases the Lease. A second signal exits immediately.";

/// Upgrade the OpenShift cluster on which it runs, as OpenShift's managed-upgrade-operator does
#[derive(Debug, Parser)]
#[command(name = "refit-managed", version, after_help = EXAMPLES)]
struct Args {
    /// Use this kubeconfig of the cluster [default: KUBECONFIG, ~/.kube/config, the pod's service
    /// account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Use this context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Use the UpgradeConfig, the ConfigMap and the Lease in this namespace
    #[arg(long, value_name = "NAME", env = "OPERATOR_NAMESPACE", default_value = NAMESPACE)]
    namespace: String,
    /// Accept the namespace that the original watches, if it is the same one
    #[arg(long, value_name = "NAME", env = "WATCH_NAMESPACE", hide = true, default_value = "")]
    watch_namespace: String,
    /// Repair known faults of the original, or keep them
    #[arg(long, value_enum, value_name = "MODE", env = "REFIT_MUO_COMPAT", default_value_t = CompatMode::Repaired)]
    muo_compat: CompatMode,
    /// Upgrade only while holding the Lease managed-upgrade-operator-lock. Without it, no second
    /// operator may run
    #[arg(
        long, value_name = "BOOL", env = "REFIT_LEADER_ELECT", default_value_t = true, default_missing_value = "true",
        num_args = 0..=1, require_equals = true, action = ArgAction::Set
    )]
    leader_elect: bool,
    /// Serve the metrics of upgrades under /metrics over plain HTTP at this address
    #[arg(long, value_name = "ADDRESS", default_value = ":8383")]
    metrics_bind_address: Bind,
    /// Serve the metrics that are read from the UpgradeConfig under /metrics over plain HTTP at this
    /// address
    #[arg(long, value_name = "ADDRESS", default_value = ":8089")]
    custom_metrics_bind_address: Bind,
    /// Serve /healthz and /readyz over plain HTTP at this address
    #[arg(long, value_name = "ADDRESS", default_value = ":8081")]
    health_probe_bind_address: Bind,
    /// Reach Prometheus and Alertmanager by their Routes, from outside of the cluster
    #[arg(long, env = "ROUTES")]
    routes: bool,
    /// Write the log lines that match this filter, such as info or refit_managed=debug,info
    #[arg(long, value_name = "FILTER", env = "REFIT_LOG", default_value = "info")]
    log: String,
    /// Set the format of log lines
    #[arg(long, value_enum, value_name = "FORMAT", env = "REFIT_LOG_FORMAT", default_value_t = Format::Text)]
    log_format: Format,
    /// Set the name of this replica; a unique suffix is appended
    #[arg(long, value_name = "NAME", env = "POD_NAME", hide = true)]
    identity: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CompatMode {
    /// Without the faults that the documentation lists as repaired
    Repaired,
    /// As the original, fault for fault
    Strict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Human-readable text
    Text,
    /// One JSON object per line
    Json,
}

/// Where a port is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bind {
    /// At each address of the host, `:8383`.
    Everywhere(u16),
    /// At one address, `127.0.0.1:8383`.
    At(SocketAddr),
}

impl FromStr for Bind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = match text.strip_prefix(':') {
            Some(port) => port.parse().ok().map(Self::Everywhere),
            None => text.parse().ok().map(Self::At),
        };
        parsed.ok_or_else(|| "expected :PORT or IP:PORT".to_owned())
    }
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

async fn serve(args: &Args, stop: CancellationToken) -> anyhow::Result<()> {
    let (namespace, watched) = (&args.namespace, &args.watch_namespace);
    if !watched.is_empty() && watched != namespace {
        anyhow::bail!(
            "invalid WATCH_NAMESPACE {watched:?}: UpgradeConfigs are in the namespace of the operator, \
             {namespace:?}; set it to that, or leave it empty"
        );
    }
    let clock = Clock::real();
    let mut config = cluster(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
    // The environment has a proxy for other servers, and each client would warn of it.
    if config.proxy_url.take().is_some() {
        report_ignored_proxy(args);
    }
    let stack = ClientStack::production(concat!("refit-managed/", env!("CARGO_PKG_VERSION")));
    let settings = Settings {
        namespace: namespace.clone(),
        compat: match args.muo_compat {
            CompatMode::Repaired => Compat::Repaired,
            CompatMode::Strict => Compat::Strict,
        },
        routes: args.routes,
        metrics: Some(listen(args.metrics_bind_address, "--metrics-bind-address").await?),
        custom_metrics: Some(
            listen(args.custom_metrics_bind_address, "--custom-metrics-bind-address").await?,
        ),
    };
    let lease = args.leader_elect.then(|| {
        LeaseSettings::new(namespace, LEASE, replica::identity(args.identity.as_deref(), clock))
    });
    let process = Process {
        probes: Some(listen(args.health_probe_bind_address, "--health-probe-bind-address").await?),
        lease,
        stop,
        drain_delay: Duration::ZERO,
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        cluster = %config.cluster_url,
        namespace,
        compat = %settings.compat,
        identity = process.lease.as_ref().map(|lease| lease.identity.as_str()),
        "starting refit-managed"
    );
    run(stack, config, clock, process, settings).await
}

fn report_ignored_proxy(args: &Args) {
    let kubeconfig = args.kubeconfig.as_ref().map_or_else(Kubeconfig::read, Kubeconfig::read_from);
    let named = kubeconfig
        .as_ref()
        .ok()
        .and_then(|kubeconfig| proxy_of_kubeconfig(kubeconfig, args.context.as_deref()));
    if let Some(proxy) = named {
        tracing::warn!(
            proxy = &*without_credentials(proxy),
            "ignoring proxy-url of the kubeconfig, the API server is called directly; run refit-managed where it \
             is reachable, and remove proxy-url"
        );
    } else {
        tracing::info!("calling the API server without the proxy of the environment");
    }
}

/// The proxy that a kubeconfig itself names for its cluster: `kube::Config` has that of the environment as well.
fn proxy_of_kubeconfig<'a>(kubeconfig: &'a Kubeconfig, context: Option<&str>) -> Option<&'a str> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|one| one.name == name)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|one| one.name == context.cluster)?;
    cluster.cluster.as_ref()?.proxy_url.as_deref().filter(|proxy| !proxy.is_empty())
}

async fn listen(bind: Bind, flag: &str) -> anyhow::Result<Listener> {
    let (address, listener) = match bind {
        Bind::At(address) => (address, Listener::tcp(address).await),
        Bind::Everywhere(port) => {
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            match Listener::tcp((Ipv6Addr::UNSPECIFIED, port).into()).await {
                Ok(listener) => return Ok(listener),
                // The host has no IPv6.
                Err(_) => (address, Listener::tcp(address).await),
            }
        }
    };
    listener
        .with_context(|| format!("cannot listen on {address}; choose another address with {flag}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_documentation_shows_the_options() {
        let mut command = Args::command().term_width(100).mut_args(|arg| arg.hide_env_values(true));
        let help = command.render_long_help().to_string();
        let help = help.lines().map(str::trim_end).collect::<Vec<&str>>().join("\n");
        let docs = include_str!("../../../docs/openshift.md");
        assert!(docs.contains(&help), "docs/openshift.md does not have this text:\n{help}");
    }

    #[test]
    fn the_deployment_has_the_default_ports() {
        Args::command().debug_assert();
        let manifest = include_str!("../../../deploy/openshift/operator.yaml");
        let args = Args::parse_from(["refit-managed"]);
        let ports = [
            args.metrics_bind_address,
            args.custom_metrics_bind_address,
            args.health_probe_bind_address,
        ];
        for port in ports {
            let Bind::Everywhere(port) = port else { panic!("{port:?}") };
            assert!(manifest.contains(&format!("containerPort: {port}\n")));
        }
        assert!(manifest.contains("command: [/refit-managed]\n") && !manifest.contains("args:"));
    }

    #[test]
    fn refit_managed_distinguishes_a_proxy_of_the_kubeconfig_from_one_of_the_environment() {
        let kubeconfig = Kubeconfig::from_yaml(
            "
            current-context: direct
            contexts:
            - {name: direct, context: {cluster: direct, user: a}}
            - {name: empty, context: {cluster: empty, user: a}}
            - {name: proxied, context: {cluster: proxied, user: a}}
            - {name: broken, context: {cluster: missing, user: a}}
            clusters:
            - {name: direct, cluster: {server: https://api.example}}
            - {name: empty, cluster: {server: https://api.example, proxy-url: ''}}
            - {name: proxied, cluster: {server: https://api.example, proxy-url: http://proxy.example:3128}}
            ",
        )
        .unwrap();
        for (context, proxy) in [
            (None, None),
            (Some("direct"), None),
            (Some("empty"), None),
            (Some("proxied"), Some("http://proxy.example:3128")),
            (Some("broken"), None),
            (Some("missing"), None),
        ] {
            assert_eq!(proxy_of_kubeconfig(&kubeconfig, context), proxy, "{context:?}");
        }
        let current = Kubeconfig { current_context: Some("proxied".to_owned()), ..kubeconfig };
        assert!(proxy_of_kubeconfig(&current, None).is_some());
    }

    #[test]
    fn an_address_may_have_only_a_port() {
        for (text, bind) in [
            (":8383", Some(Bind::Everywhere(8383))),
            ("127.0.0.1:1", Some(Bind::At(([127, 0, 0, 1], 1).into()))),
            ("8383", None),
            (":a", None),
            ("localhost:1", None),
        ] {
            assert_eq!(text.parse::<Bind>().ok(), bind, "{text}");
        }
    }
}
