//! Reads the document of a version graph.

use std::{io::Read as _, path::Path};

use http::{Request, StatusCode, header::ACCEPT};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, client::Body};
use refit_core::managed::graph::{CONFIG_MAP_KEY, GraphRead, MAX_DOCUMENT};
use refit_runtime::client::{ClientStack, too_large};

use super::{DEADLINE, GraphSource};
use crate::api_error::cause;

/// A source, with the client of its server.
pub(super) struct Source {
    of: GraphSource,
    /// Of a URL; an error is a sentence.
    server: Result<Option<Client>, String>,
}

impl Source {
    pub(super) fn new(stack: &ClientStack, of: &GraphSource) -> Self {
        let server = match of {
            GraphSource::Url { config, .. } => stack
                .clone()
                .with_max_answer(MAX_DOCUMENT)
                .client(config)
                .map(Some)
                .map_err(|error| format!("the settings of its server are not valid: {error}")),
            GraphSource::File(_) | GraphSource::ConfigMap { .. } => Ok(None),
        };
        Self { of: of.clone(), server }
    }

    /// Reads the graph.
    pub(super) async fn read(&self, management: &Client) -> GraphRead {
        let late = |_| Err(format!("it cannot be read within {} s", DEADLINE.as_secs()));
        let read = tokio::time::timeout(DEADLINE, Box::pin(self.document(management))).await;
        match read.unwrap_or_else(late) {
            Ok(document) => GraphRead::of(&document),
            Err(why) => GraphRead::Unknown(format!("the version graph in {}: {why}", self.of)),
        }
    }

    /// The document. The error is why it cannot be read.
    async fn document(&self, management: &Client) -> Result<Vec<u8>, String> {
        match &self.of {
            GraphSource::File(path) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || from_file(&path)).await;
                read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
            }
            GraphSource::ConfigMap { namespace, name } => {
                let api: Api<ConfigMap> = Api::namespaced(management.clone(), namespace);
                let read = api.get(name).await.map_err(|error| cause(&error))?;
                let document = read.data.unwrap_or_default().remove(CONFIG_MAP_KEY);
                document.map(String::into_bytes).ok_or(format!("it has no key {CONFIG_MAP_KEY}"))
            }
            GraphSource::Url { path, .. } => {
                let server = self.server.clone()?;
                let server = server.ok_or("its server has no client")?;
                from_server(&server, path.as_str()).await
            }
        }
    }
}

/// Reads a file, up to one byte more than a document may have.
fn from_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut document = Vec::new();
    let max = u64::try_from(MAX_DOCUMENT).unwrap_or(u64::MAX);
    std::fs::File::open(path)?.take(max.saturating_add(1)).read_to_end(&mut document)?;
    Ok(document)
}

async fn from_server(server: &Client, path: &str) -> Result<Vec<u8>, String> {
    let request = Request::get(path).header(ACCEPT, "application/json").body(Body::empty());
    let request = request.map_err(|error| format!("it cannot be asked for: {error}"))?;
    let failed = |error: kube::Error| match too_large(&error) {
        Some(what) => format!("it is too large: {what}"),
        None => format!("its server does not answer: {}", cause(&error)),
    };
    let answer = server.send(request).await.map_err(failed)?;
    let status = answer.status();
    if status != StatusCode::OK {
        let rest = if status.is_redirection() { "; redirects are not followed" } else { "" };
        return Err(format!("its server answers with HTTP status {}{rest}", status.as_u16()));
    }
    let body = answer.into_body().collect().await.map_err(failed)?;
    Ok(body.to_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_the_size_of_a_document() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("graph.json");
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(from_file(&path).unwrap(), b"{}");
        std::fs::write(&path, vec![b' '; MAX_DOCUMENT + 10]).unwrap();
        assert_eq!(from_file(&path).unwrap().len(), MAX_DOCUMENT + 1);
        assert!(from_file(&directory.path().join("other")).is_err());
    }
}
