//! Servers outside of Kubernetes, as flags name them: a URL, a bearer token and authorities.

use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use http::Uri;
use refit_kinds::refit::{AlertMatcher, MatchType};
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
        let endpoint = Endpoint {
            name: "prometheus",
            url_flag: "prometheus-url",
            url: url.clone(),
            token_file: self.prometheus_token_file.clone(),
            ca_file: self.prometheus_ca_file.clone(),
        };
        endpoint.config(stack).map(Some)
    }
}

/// How Alertmanager is reached.
#[derive(Debug, Args)]
pub(crate) struct AlertmanagerFlags {
    /// Create silences of ClusterUpgrades in the Alertmanager at this URL, or in a server with its API, such as
    /// Mimir [default: upgrades with silences do not begin]
    #[arg(long, value_name = "URL", env = "REFIT_ALERTMANAGER_URL")]
    alertmanager_url: Option<Uri>,
    /// Present the bearer token in this file to Alertmanager, read again when it changes
    #[arg(
        long,
        value_name = "FILE",
        env = "REFIT_ALERTMANAGER_TOKEN_FILE",
        requires = "alertmanager_url"
    )]
    alertmanager_token_file: Option<PathBuf>,
    /// Trust the authorities in this PEM file for Alertmanager, read again when it changes [default: those of
    /// the system]
    #[arg(
        long,
        value_name = "FILE",
        env = "REFIT_ALERTMANAGER_CA_FILE",
        requires = "alertmanager_url"
    )]
    alertmanager_ca_file: Option<PathBuf>,
    /// Add this matcher to each silence, such as cluster=$(cluster): no ClusterUpgrade can silence the alerts of
    /// another Cluster
    #[arg(
        long,
        value_name = "LABEL=VALUE",
        env = "REFIT_SILENCE_MATCHER",
        value_delimiter = ',',
        value_parser = matcher,
        requires = "alertmanager_url"
    )]
    silence_matcher: Vec<AlertMatcher>,
}

fn matcher(text: &str) -> Result<AlertMatcher, String> {
    let is_label = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_')
    };
    match text.split_once('=') {
        Some((name, value)) if is_label(name) && !value.is_empty() && !value.starts_with('~') => {
            Ok(AlertMatcher {
                name: name.to_owned(),
                value: value.to_owned(),
                match_type: MatchType::Equal,
            })
        }
        Some(_) | None => {
            Err("expected a label and its value, such as cluster=$(cluster)".to_owned())
        }
    }
}

impl AlertmanagerFlags {
    /// The client configuration, after a check that a client can be made of it.
    pub(crate) fn config(&self, stack: &ClientStack) -> anyhow::Result<Option<kube::Config>> {
        let Some(url) = &self.alertmanager_url else { return Ok(None) };
        let endpoint = Endpoint {
            name: "alertmanager",
            url_flag: "alertmanager-url",
            url: url.clone(),
            token_file: self.alertmanager_token_file.clone(),
            ca_file: self.alertmanager_ca_file.clone(),
        };
        endpoint.config(stack).map(Some)
    }

    /// What each silence has besides its own matchers.
    pub(crate) fn matchers(&self) -> Vec<AlertMatcher> {
        self.silence_matcher.clone()
    }
}

/// A server, by the flags for its URL, `--NAME-token-file` and `--NAME-ca-file`.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// The beginning of the names of its flags.
    pub(crate) name: &'static str,
    /// The name of the flag for its URL.
    pub(crate) url_flag: &'static str,
    /// Where it is.
    pub(crate) url: Uri,
    /// Holds its bearer token.
    pub(crate) token_file: Option<PathBuf>,
    /// Holds the authorities that are trusted for it.
    pub(crate) ca_file: Option<PathBuf>,
}

impl Endpoint {
    /// The client configuration, after a check that a client can be made of it. A token is sent only over HTTPS, and the
    /// URL, which logs may show, has no credentials.
    pub(crate) fn config(&self, stack: &ClientStack) -> anyhow::Result<kube::Config> {
        let Self { name, url_flag, url, token_file, ca_file } = self;
        let is_https = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => bail!(
                "--{url_flag} {url} is not a URL with http or https, such as http://{name}.monitoring.svc"
            ),
        };
        ensure!(
            url.authority().is_some_and(|authority| !authority.as_str().contains('@')),
            "--{url_flag} must not contain credentials: use --{name}-token-file"
        );
        ensure!(url.query().is_none(), "--{url_flag} {url} must not have a query");
        let mut config = kube::Config::new(url.clone());
        if let Some(file) = token_file {
            ensure!(
                is_https,
                "--{name}-token-file needs a --{url_flag} with https: {url} would send the token in clear text"
            );
            let token = file.to_str().context(format!("--{name}-token-file is not UTF-8"))?;
            ensure!(file.exists(), "--{name}-token-file {token} does not exist");
            config.auth_info.token_file = Some(token.to_owned());
        }
        if let Some(file) = ca_file {
            ensure!(file.exists(), "--{name}-ca-file {} does not exist", file.display());
            config.root_cert_file = Some(file.clone());
        }
        stack
            .client(&config)
            .with_context(|| format!("cannot create the client of --{url_flag}"))?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(url: &'static str) -> Endpoint {
        Endpoint {
            name: "prometheus",
            url_flag: "prometheus-url",
            url: Uri::from_static(url),
            token_file: None,
            ca_file: None,
        }
    }

    #[test]
    fn a_matcher_of_silences_is_a_label_and_a_value() {
        assert_eq!(matcher("cluster=$(cluster)").unwrap().value, "$(cluster)");
        for wrong in ["cluster", "cluster=", "=value", "a b=c", "cluster=~a"] {
            matcher(wrong).unwrap_err();
        }
    }

    #[tokio::test]
    async fn a_server_gets_a_token_only_over_https_and_its_url_has_no_credentials() {
        let stack = ClientStack::production("test");
        at("http://prometheus:9090/prefix").config(&stack).unwrap();
        let token = Some(PathBuf::from("/dev/null"));
        for (endpoint, why) in [
            (at("prometheus:9090"), "is not a URL with http or https"),
            (at("ftp://prometheus"), "is not a URL with http or https"),
            (at("http://a:b@prometheus"), "must not contain credentials"),
            (at("http://prometheus/?a=b"), "must not have a query"),
            (
                Endpoint { token_file: token, ..at("http://prometheus") },
                "would send the token in clear text",
            ),
            (
                Endpoint { ca_file: Some("/nowhere".into()), ..at("https://prometheus") },
                "--prometheus-ca-file /nowhere does not exist",
            ),
        ] {
            let error = endpoint.config(&stack).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
