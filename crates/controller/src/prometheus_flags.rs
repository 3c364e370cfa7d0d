//! How Prometheus is reached, for the health gates of groups.

use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use http::Uri;
use refit_runtime::client::ClientStack;

/// How Prometheus is reached.
#[derive(Debug, Args)]
pub(crate) struct PrometheusFlags {
    /// Ask the Prometheus at this URL for the health gates of groups, or a server with its API, such as Thanos or
    /// Mimir [default: gates that need it are closed]
    #[arg(long, value_name = "URL", env = "REFIT_PROMETHEUS_URL")]
    prometheus_url: Option<Uri>,
    /// Present the bearer token in this file to Prometheus, read again when it changes
    #[arg(
        long,
        value_name = "FILE",
        env = "REFIT_PROMETHEUS_TOKEN_FILE",
        requires = "prometheus_url"
    )]
    prometheus_token_file: Option<PathBuf>,
    /// Trust the authorities in this PEM file for Prometheus, read again when it changes [default: those of
    /// the system]
    #[arg(
        long,
        value_name = "FILE",
        env = "REFIT_PROMETHEUS_CA_FILE",
        requires = "prometheus_url"
    )]
    prometheus_ca_file: Option<PathBuf>,
}

impl PrometheusFlags {
    /// The client configuration, after a check that a client can be made of it.
    pub(crate) fn config(&self, stack: &ClientStack) -> anyhow::Result<Option<kube::Config>> {
        let Some(url) = &self.prometheus_url else { return Ok(None) };
        let is_https = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => bail!(
                "--prometheus-url {url} is not a URL with http or https, such as \
                 http://prometheus.monitoring.svc:9090"
            ),
        };
        ensure!(
            url.authority().is_some_and(|authority| !authority.as_str().contains('@')),
            "--prometheus-url must not contain credentials: use --prometheus-token-file"
        );
        ensure!(url.query().is_none(), "--prometheus-url {url} must not have a query");
        let mut config = kube::Config::new(url.clone());
        if let Some(file) = &self.prometheus_token_file {
            ensure!(
                is_https,
                "--prometheus-token-file needs a --prometheus-url with https: {url} would send the token in clear text"
            );
            let token = file.to_str().context("--prometheus-token-file is not UTF-8")?;
            ensure!(file.exists(), "--prometheus-token-file {token} does not exist");
            config.auth_info.token_file = Some(token.to_owned());
        }
        if let Some(file) = &self.prometheus_ca_file {
            ensure!(file.exists(), "--prometheus-ca-file {} does not exist", file.display());
            config.root_cert_file = Some(file.clone());
        }
        stack.client(&config).context("cannot create the client of Prometheus")?;
        Ok(Some(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(flags: &PrometheusFlags) -> anyhow::Result<Option<kube::Config>> {
        flags.config(&ClientStack::production("test"))
    }

    fn at(url: &'static str) -> PrometheusFlags {
        PrometheusFlags {
            prometheus_url: Some(Uri::from_static(url)),
            prometheus_token_file: None,
            prometheus_ca_file: None,
        }
    }

    #[tokio::test]
    async fn prometheus_gets_a_token_only_over_https_and_its_url_has_no_credentials() {
        assert!(config(&at("http://prometheus:9090/prefix")).unwrap().is_some());
        let token = Some(PathBuf::from("/dev/null"));
        for (flags, why) in [
            (at("prometheus:9090"), "is not a URL with http or https"),
            (at("ftp://prometheus"), "is not a URL with http or https"),
            (at("http://a:b@prometheus"), "must not contain credentials"),
            (at("http://prometheus/?a=b"), "must not have a query"),
            (
                PrometheusFlags { prometheus_token_file: token, ..at("http://prometheus") },
                "would send the token in clear text",
            ),
            (
                PrometheusFlags {
                    prometheus_ca_file: Some("/nowhere".into()),
                    ..at("https://prometheus")
                },
                "--prometheus-ca-file /nowhere does not exist",
            ),
        ] {
            let error = config(&flags).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
