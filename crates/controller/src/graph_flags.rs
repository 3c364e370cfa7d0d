//! Where the version graph is, as flags name it.

use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use http::{Uri, uri::PathAndQuery};
use refit_controller::GraphSource;
use refit_runtime::client::ClientStack;

use crate::endpoint_flags::Endpoint;

/// Where the version graph is.
#[derive(Debug, Args)]
pub(crate) struct GraphFlags {
    /// Let ClusterUpgrades take only the versions and edges of this version graph, in Cincinnati's format:
    /// file:/PATH, configmap:NAMESPACE/NAME with the key graph.json, or a URL [default: all versions]
    #[arg(long, value_name = "SOURCE", env = "REFIT_VERSION_GRAPH")]
    version_graph: Option<String>,
    /// Trust the authorities in this PEM file for the URL of the version graph, read again when it changes
    /// [default: those of the system]
    #[arg(
        long,
        value_name = "FILE",
        env = "REFIT_VERSION_GRAPH_CA_FILE",
        requires = "version_graph"
    )]
    version_graph_ca_file: Option<PathBuf>,
}

impl GraphFlags {
    /// The source, after a check that a client of its server can be made.
    pub(crate) fn source(&self, stack: &ClientStack) -> anyhow::Result<Option<GraphSource>> {
        let Some(text) = self.version_graph.as_deref() else { return Ok(None) };
        let has_server = ["http:", "https:"].iter().any(|scheme| text.starts_with(scheme));
        ensure!(
            has_server || self.version_graph_ca_file.is_none(),
            "--version-graph-ca-file needs a --version-graph with https"
        );
        if let Some(path) = text.strip_prefix("file:") {
            ensure!(
                path.starts_with('/') && !path.starts_with("//"),
                "--version-graph {text} has no absolute path, such as file:/etc/refit/graph.json"
            );
            return Ok(Some(GraphSource::File(path.into())));
        }
        if let Some(object) = text.strip_prefix("configmap:") {
            let named = object.split_once('/').filter(|(namespace, name)| {
                !namespace.is_empty() && !name.is_empty() && !name.contains('/')
            });
            let (namespace, name) = named.with_context(|| {
                format!(
                    "--version-graph {text} does not name a ConfigMap as configmap:NAMESPACE/NAME"
                )
            })?;
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            return Ok(Some(GraphSource::ConfigMap { namespace, name }));
        }
        // A URL may have a secret in its query: it is not shown.
        ensure!(
            has_server,
            "--version-graph is neither file:/PATH, nor configmap:NAMESPACE/NAME, nor a URL with http or https"
        );
        self.server(text, stack).map(Some)
    }

    fn server(&self, text: &str, stack: &ClientStack) -> anyhow::Result<GraphSource> {
        let Ok(url) = text.parse::<Uri>() else { bail!("--version-graph is not a valid URL") };
        let (scheme, authority) = (url.scheme_str(), url.authority());
        let (Some(scheme), Some(authority)) = (scheme, authority) else {
            bail!("--version-graph is a URL without a host");
        };
        ensure!(
            !authority.as_str().contains('@'),
            "--version-graph must not contain credentials: publish the graph where it can be read without"
        );
        let server = Uri::builder().scheme(scheme).authority(authority.as_str());
        let endpoint = Endpoint {
            name: "version-graph",
            url_flag: "version-graph",
            url: server
                .path_and_query("/")
                .build()
                .context("--version-graph is not a valid URL")?,
            token_file: None,
            ca_file: self.version_graph_ca_file.clone(),
        };
        let config = Box::new(endpoint.config(stack)?);
        let path = url.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        Ok(GraphSource::Url { config, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str, ca: Option<&str>) -> Result<String, String> {
        let flags = GraphFlags {
            version_graph: Some(text.to_owned()),
            version_graph_ca_file: ca.map(PathBuf::from),
        };
        match flags.source(&ClientStack::production("test")) {
            Ok(source) => Ok(source.map(|source| source.to_string()).unwrap_or_default()),
            Err(error) => Err(format!("{error:#}")),
        }
    }

    #[tokio::test]
    async fn the_version_graph_is_in_a_file_a_config_map_or_on_a_server() {
        for (text, shown) in [
            ("file:/etc/graph.json", "file /etc/graph.json"),
            ("configmap:refit-system/graph", "ConfigMap refit-system/graph"),
            (
                "http://updates.svc:80/v1/graph?channel=a&token=secret",
                "http://updates.svc/v1/graph",
            ),
            ("https://updates.example.com", "https://updates.example.com/"),
        ] {
            let shown = shown.to_owned();
            assert_eq!(source(text, None).map(|url| url.replace(":80", "")), Ok(shown));
        }
        for (text, ca, why) in [
            ("graph.json", None, "is neither file:/PATH, nor configmap:NAMESPACE/NAME"),
            ("file:graph.json", None, "has no absolute path"),
            ("configmap:graph", None, "does not name a ConfigMap as configmap:NAMESPACE/NAME"),
            ("configmap:a/b/c", None, "does not name a ConfigMap as configmap:NAMESPACE/NAME"),
            (
                "https://a:secret@updates/graph",
                None,
                "--version-graph must not contain credentials",
            ),
            ("https:///graph?token=secret", None, "--version-graph is"),
            ("file:/graph.json", Some("/dev/null"), "--version-graph-ca-file needs a"),
            (
                "https://updates",
                Some("/nowhere"),
                "--version-graph-ca-file /nowhere does not exist",
            ),
        ] {
            let error = source(text, ca).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
    }
}
