//! Secrets that a host fetches for its files, with the identity of its node.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::Api;
use refit_kinds::refit::SecretKey;
use refit_runtime::client::ClientStack;

use crate::{host::work::WorkError, kubeconfig};

/// Bytes that are never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Wraps bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes, for writing them to their file.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// A source of secrets.
pub trait SecretSource: Send + Sync {
    /// Fetches the value of a key.
    fn fetch<'a>(&'a self, key: &'a SecretKey) -> BoxFuture<'a, Result<Secret, WorkError>>;
}

/// The source for steps without secrets: every request fails.
#[derive(Clone, Copy, Debug)]
pub struct NoSecrets;

impl SecretSource for NoSecrets {
    fn fetch<'a>(&'a self, key: &'a SecretKey) -> BoxFuture<'a, Result<Secret, WorkError>> {
        Box::pin(async move {
            Err(WorkError::permanent(format!(
                "secret {} requested where no secrets are available",
                key.name
            )))
        })
    }
}

/// Secrets in the namespace of the HostPlan, read with the host's own identity. The identity needs
/// the permission to get each secret by name, and no other. No request is sent before the first
/// secret is needed.
#[derive(Clone, Debug)]
pub struct NodeSecrets {
    kubeconfig: PathBuf,
    namespace: String,
}

impl NodeSecrets {
    /// Secrets of a namespace, read with the identity of a kubeconfig.
    pub fn of_host(kubeconfig: &Path, namespace: &str) -> Self {
        Self { kubeconfig: kubeconfig.to_owned(), namespace: namespace.to_owned() }
    }

    async fn read(&self, key: &SecretKey) -> Result<Secret, WorkError> {
        let name = format!("secret {}/{}", self.namespace, key.name);
        let unusable =
            |error: &dyn fmt::Display| WorkError::retriable(format!("cannot read {name}: {error}"));
        let config = kubeconfig::config(&self.kubeconfig).await;
        let config = config.map_err(|error| unusable(&error))?;
        let stack = ClientStack::production(concat!("refit-agent/", env!("CARGO_PKG_VERSION")));
        let client = stack.client(&config).map_err(|error| unusable(&error))?;
        let api: Api<SecretObject> = Api::namespaced(client, &self.namespace);
        let secret = api.get_opt(&key.name).await.map_err(|error| {
            if matches!(&error, kube::Error::Api(status) if status.code == 403) {
                WorkError::needs_person(format!(
                    "this host is not allowed to read {name}; grant its Node permission to get it \
                     by name: {error}"
                ))
            } else {
                unusable(&error)
            }
        })?;
        let data = secret.and_then(|secret| secret.data);
        let value = data.and_then(|mut data| data.remove(&key.key));
        value.map(|value| Secret::new(value.0)).ok_or_else(|| {
            WorkError::retriable(format!("{name} does not exist or has no key {}", key.key))
        })
    }
}

impl SecretSource for NodeSecrets {
    fn fetch<'a>(&'a self, key: &'a SecretKey) -> BoxFuture<'a, Result<Secret, WorkError>> {
        Box::pin(self.read(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_a_secret() {
        let shown = format!("{:?}", Secret::new("hunter2"));
        assert_eq!(shown, "<secret>");
    }
}
