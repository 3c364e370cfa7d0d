//! Common parts of every long-running program: logs, credentials, signals.

use std::{io, path::Path, process::ExitCode};

use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::{
    Layer as _,
    filter::{ParseError, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::workload::without_content;

/// Exit code after a second signal.
const INTERRUPTED: u8 = 130;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Why a program cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The log filter is not valid.
    #[error("invalid log filter {filter:?}: {reason}; examples: info, refit=debug,info")]
    Filter {
        /// The given filter.
        filter: String,
        /// What is wrong.
        reason: String,
    },
    /// The kubeconfig cannot be used.
    #[error("invalid kubeconfig {path}: {reason}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// No credentials were found.
    #[error("no cluster configured: {0}; set --kubeconfig FILE or KUBECONFIG, or run in a pod")]
    NoCluster(String),
    /// Signal handlers could not be installed.
    #[error("cannot listen for signals: {0}")]
    Signals(#[from] io::Error),
}

/// Sends logs to stderr. Filters have the syntax of `tracing`: `info`,
/// `refit_controller=debug,info`.
pub fn init_logs(filter: &str, format: LogFormat) -> Result<(), StartError> {
    let filter = log_filter(filter)?;
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    Ok(())
}

/// Parses a log filter by level and module: `info`, `refit_controller=debug,info`; an empty filter
/// keeps errors only. `tracing`'s other filter, which supports fields and spans, would add regular
/// expressions to the agent, which must stay small.
pub fn log_filter(filter: &str) -> Result<Targets, StartError> {
    let refused = |reason: String| StartError::Filter { filter: filter.to_owned(), reason };
    if filter.contains('[') {
        return Err(refused("fields and spans are not supported".to_owned()));
    }
    let parts = filter.split(',').map(str::trim);
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    parts.join(",").parse().map_err(|error: ParseError| refused(error.to_string()))
}

/// The cluster of a kubeconfig file, or, if none is given, of `KUBECONFIG`, `~/.kube/config` or the
/// pod's own ServiceAccount, in this order.
pub async fn cluster(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Config, StartError> {
    let options =
        KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let Some(path) = kubeconfig else {
        if context.is_some() {
            return Config::from_kubeconfig(&options)
                .await
                .map_err(|error| StartError::NoCluster(error.to_string()));
        }
        return Config::infer().await.map_err(|error| StartError::NoCluster(error.to_string()));
    };
    let wrong =
        |reason: String| StartError::Kubeconfig { path: path.display().to_string(), reason };
    let file = Kubeconfig::read_from(path).map_err(|error| wrong(without_content(&error)))?;
    Config::from_custom_kubeconfig(file, &options).await.map_err(|error| wrong(error.to_string()))
}

/// Runs a program until it returns, or until SIGTERM or SIGINT: the first signal cancels `stop`, on
/// which the program should shut down gracefully; a second signal exits immediately.
pub async fn until_stopped<E: From<StartError>>(
    program: impl Future<Output = Result<(), E>>,
    stop: &CancellationToken,
) -> Result<ExitCode, E> {
    let mut terminate = signal(SignalKind::terminate()).map_err(StartError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(StartError::Signals)?;
    let mut asked = async || {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    tokio::pin!(program);
    tokio::select! {
        biased;
        outcome = &mut program => return outcome.map(|()| ExitCode::SUCCESS),
        () = asked() => stop.cancel(),
    }
    tokio::select! {
        biased;
        outcome = &mut program => outcome.map(|()| ExitCode::SUCCESS),
        () = asked() => {
            tracing::warn!("received a second signal, exiting immediately");
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_filter_selects_by_level_and_module() {
        let cases = [
            ("refit_runtime=debug,info", "refit_runtime::store", Level::DEBUG, true),
            ("refit_runtime=debug,info", "hyper", Level::DEBUG, false),
            ("refit_runtime=debug,info", "hyper", Level::INFO, true),
            ("info,", "hyper", Level::INFO, true),
            (" hyper=debug , info", "hyper", Level::DEBUG, true),
            ("off", "refit_runtime", Level::ERROR, false),
            ("", "refit_runtime", Level::ERROR, true),
            ("", "refit_runtime", Level::WARN, false),
        ];
        for (filter, module, level, enabled) in cases {
            let parsed = log_filter(filter).unwrap();
            assert_eq!(
                parsed.would_enable(module, &level),
                enabled,
                "{filter:?} of {module} at {level}"
            );
        }
    }

    #[test]
    fn an_invalid_filter_is_rejected_with_a_valid_example() {
        for filter in ["refit=loud", "a=b=info", "refit[span]=debug", "[{name=m}]=info"] {
            let error = log_filter(filter).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("invalid log filter {filter:?}: "))
                    && error.ends_with("; examples: info, refit=debug,info"),
                "{error}"
            );
        }
    }
}
