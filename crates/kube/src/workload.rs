//! Reaching workload clusters through their kubeconfig Secret, in one place.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, Config, ResourceExt as _,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{
    Clock, ObjectKey,
    client::{ClientError, ClientStack},
};

/// How long a kubeconfig is trusted before its Secret is looked at again.
const RECHECK: SignedDuration = SignedDuration::from_mins(10);

/// Why a workload cluster cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The Secret cannot be read.
    #[error("the kubeconfig Secret {secret} of cluster {cluster} cannot be read: {source}")]
    Secret {
        /// The Secret.
        secret: ObjectKey,
        /// The Cluster.
        cluster: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// The Secret's content is not a kubeconfig.
    #[error("Secret {secret}: key `value` is not a kubeconfig: {reason}")]
    Content {
        /// The Secret.
        secret: ObjectKey,
        /// Why.
        reason: String,
    },
    /// No client can be made of it.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Clients of workload clusters, one per kubeconfig Secret, remade when the Secret changes.
#[derive(Clone)]
pub struct Workloads {
    management: Client,
    stack: ClientStack,
    clock: Clock,
    clients: Arc<Mutex<BTreeMap<ObjectKey, Known>>>,
}

#[derive(Clone)]
struct Known {
    secret_version: String,
    checked: Timestamp,
    client: Client,
}

impl std::fmt::Debug for Workloads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Workloads")
    }
}

impl Workloads {
    /// Reads Secrets with `management` and builds clients with `stack`.
    pub fn new(management: Client, stack: ClientStack, clock: Clock) -> Self {
        Self {
            management,
            stack,
            clock,
            clients: Arc::default(),
        }
    }

    /// The client of a Cluster's workload API. Its Secret is read again every ten minutes, or after
    /// [`Workloads::forget`].
    pub async fn client(&self, namespace: &str, cluster: &str) -> Result<Client, WorkloadError> {
        let key = ObjectKey::new(namespace, kubeconfig_secret_name(cluster));
        let now = self.clock.now();
        let known = self.lock().get(&key).cloned();
        if let Some(known) = &known
            && now.duration_since(known.checked) < RECHECK
        {
            return Ok(known.client.clone());
        }
        let api: Api<Secret> = Api::namespaced(self.management.clone(), namespace);
        let secret = api
            .get(&key.name)
            .await
            .map_err(|source| WorkloadError::Secret {
                secret: key.clone(),
                cluster: cluster.to_owned(),
                source: Box::new(source),
            })?;
        let secret_version = secret.resource_version().unwrap_or_default();
        let client = match known {
            Some(known) if known.secret_version == secret_version => known.client,
            _ => self.stack.client(&config_of(&key, &secret).await?)?,
        };
        let known = Known {
            secret_version,
            checked: now,
            client: client.clone(),
        };
        self.lock().insert(key, known);
        Ok(client)
    }

    /// Reads the Secret again at the next call: for when the cluster refuses our credentials.
    pub fn forget(&self, namespace: &str, cluster: &str) {
        self.lock()
            .remove(&ObjectKey::new(namespace, kubeconfig_secret_name(cluster)));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, Known>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Name of the Secret with a Cluster's kubeconfig.
pub fn kubeconfig_secret_name(cluster: &str) -> String {
    format!("{cluster}-kubeconfig")
}

async fn config_of(key: &ObjectKey, secret: &Secret) -> Result<Config, WorkloadError> {
    let wrong = |reason: String| WorkloadError::Content {
        secret: key.clone(),
        reason,
    };
    let data = secret
        .data
        .as_ref()
        .and_then(|data| data.get("value"))
        .ok_or_else(|| wrong("there is no such key".to_owned()))?;
    let text = std::str::from_utf8(&data.0).map_err(|e| wrong(e.to_string()))?;
    let kubeconfig = Kubeconfig::from_yaml(text).map_err(|e| wrong(e.to_string()))?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|e| wrong(e.to_string()))
}
