//! The registry of the release images: a manifest and a config for each, with the version in its label. It demands no token.

use std::{collections::BTreeMap, sync::Arc};

use http::{Method, StatusCode};
use refit_openshift::validation::RELEASE_LABEL;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::wire::{Answers, Asked, Troubles};

/// Its host name, on port 443.
pub const HOST: &str = "quay.io";
const REPOSITORY: &str = "openshift-release-dev/ocp-release";

/// The images of some releases.
#[derive(Clone, Debug)]
pub struct Registry {
    /// By their paths.
    documents: Arc<BTreeMap<String, Value>>,
    troubles: Troubles,
}

impl Registry {
    /// Has the images of these versions.
    pub fn new<'a>(versions: impl IntoIterator<Item = &'a str>) -> Self {
        let documents = versions.into_iter().flat_map(|version| {
            [("manifests", manifest(version)), ("blobs", config(version))].map(
                |(kind, document)| {
                    (format!("/v2/{REPOSITORY}/{kind}/{}", digest(&document)), document)
                },
            )
        });
        Self { documents: Arc::new(documents.collect()), troubles: Troubles::default() }
    }

    /// Its troubles.
    pub fn troubles(&self) -> &Troubles {
        &self.troubles
    }
}

/// The release image of a version.
pub(crate) fn image(version: &str) -> String {
    format!("{HOST}/{REPOSITORY}@{}", digest(&manifest(version)))
}

fn manifest(version: &str) -> Value {
    json!({"config": {"digest": digest(&config(version))}, "schemaVersion": 2})
}

fn config(version: &str) -> Value {
    json!({"config": {"Labels": {RELEASE_LABEL: version}}})
}

/// The digest of a document as it is served.
fn digest(document: &Value) -> String {
    format!("sha256:{:x}", Sha256::digest(document.to_string()))
}

impl Answers for Registry {
    fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    fn answer(&self, asked: &Asked) -> (StatusCode, Value) {
        match self.documents.get(&asked.path).filter(|_| asked.method == Method::GET) {
            Some(document) => (StatusCode::OK, document.clone()),
            None => (StatusCode::NOT_FOUND, json!({"errors": [{"code": "MANIFEST_UNKNOWN"}]})),
        }
    }

    fn failed(&self, _: StatusCode) -> Value {
        json!({"errors": [{"code": "UNAVAILABLE"}]})
    }
}
