//! Access to workload clusters through their kubeconfig Secrets.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, Config, ResourceExt as _,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use crate::{
    Clock, ObjectKey,
    apply::is_not_found,
    client::{ClientError, ClientStack},
};

/// How long a kubeconfig is trusted before its Secret is read again.
const RECHECK: SignedDuration = SignedDuration::from_mins(10);

/// Why a workload cluster cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The Secret cannot be read.
    #[error("cannot read the kubeconfig Secret {secret} of cluster {cluster}: {source}")]
    Secret {
        /// The Secret.
        secret: ObjectKey,
        /// The Cluster.
        cluster: String,
        /// The underlying error.
        source: Box<kube::Error>,
    },
    /// The Secret's content is not a kubeconfig.
    #[error("Secret {secret}: key `value` is not a kubeconfig: {reason}")]
    Content {
        /// The Secret.
        secret: ObjectKey,
        /// The reason.
        reason: String,
    },
    /// No client could be built from the kubeconfig.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Clients of workload clusters, one per kubeconfig Secret, rebuilt when the Secret changes.
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
    /// When the Secret was last read; `None` forces another read.
    checked: Option<Timestamp>,
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
        Self { management, stack, clock, clients: Arc::default() }
    }

    /// The client of a Cluster's workload API. The Secret is read again every ten minutes, or after
    /// [`Workloads::forget`].
    pub async fn client(&self, namespace: &str, cluster: &str) -> Result<Client, WorkloadError> {
        let key = ObjectKey::new(namespace, kubeconfig_secret_name(cluster));
        let now = self.clock.now();
        let known = self.lock().get(&key).cloned();
        if let Some(known) = &known
            && let Some(checked) = known.checked
            && now.duration_since(checked) < RECHECK
        {
            return Ok(known.client.clone());
        }
        let api: Api<Secret> = Api::namespaced(self.management.clone(), namespace);
        let secret = api.get(&key.name).await.map_err(|source| {
            if is_not_found(&source) {
                // The cluster is gone, or its access was revoked.
                self.lock().remove(&key);
            }
            WorkloadError::Secret {
                secret: key.clone(),
                cluster: cluster.to_owned(),
                source: Box::new(source),
            }
        })?;
        let secret_version = secret.resource_version().unwrap_or_default();
        let client = match known {
            Some(known) if known.secret_version == secret_version => known.client,
            _ => self.stack.client(&config_of(&key, &secret).await?)?,
        };
        let known = Known { secret_version, checked: Some(now), client: client.clone() };
        self.lock().insert(key, known);
        Ok(client)
    }

    /// Makes the next call read the Secret again: use it when the cluster does not respond or
    /// rejects the credentials. Only a changed Secret builds a new client, so this costs no
    /// connection.
    pub fn forget(&self, namespace: &str, cluster: &str) {
        let key = ObjectKey::new(namespace, kubeconfig_secret_name(cluster));
        if let Some(known) = self.lock().get_mut(&key) {
            known.checked = None;
        }
    }

    /// Drops the client of a Cluster that is no longer watched, and with it the credentials.
    pub fn remove(&self, namespace: &str, cluster: &str) {
        self.lock().remove(&ObjectKey::new(namespace, kubeconfig_secret_name(cluster)));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, Known>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Name of the Secret with a Cluster's kubeconfig.
pub fn kubeconfig_secret_name(cluster: &str) -> String {
    format!("{cluster}-kubeconfig")
}

/// Reads the client configuration of a workload cluster from its kubeconfig Secret. Programs and
/// local files are refused, and an error contains nothing of the Secret's content.
pub async fn config_of(key: &ObjectKey, secret: &Secret) -> Result<Config, WorkloadError> {
    let wrong = |reason: String| WorkloadError::Content { secret: key.clone(), reason };
    let data = secret
        .data
        .as_ref()
        .and_then(|data| data.get("value"))
        .ok_or_else(|| wrong("the key is missing".to_owned()))?;
    let text = std::str::from_utf8(&data.0).map_err(|e| wrong(e.to_string()))?;
    let kubeconfig = Kubeconfig::from_yaml(text).map_err(|e| wrong(without_content(&e)))?;
    if let Some(what) = reaches_out(&kubeconfig) {
        return Err(wrong(format!("it contains {what}, which is not supported")));
    }
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|e| wrong(e.to_string()))
}

/// What is wrong with a kubeconfig, without its content: a parser shows the lines around an error,
/// and they contain credentials.
pub(crate) fn without_content(error: &KubeconfigError) -> String {
    let KubeconfigError::Parse(error) = error else {
        return error.to_string();
    };
    let place =
        error.location().map_or_else(String::new, |at| format!(", from line {} on", at.line()));
    format!("not the YAML of a kubeconfig{place}")
}

/// What in a kubeconfig would make this process run a program or read a local file. Write access to
/// a Secret in some namespace must not give that power over this process.
fn reaches_out(kubeconfig: &Kubeconfig) -> Option<&'static str> {
    let clusters = kubeconfig.clusters.iter().filter_map(|c| c.cluster.as_ref());
    if clusters.into_iter().any(|c| c.certificate_authority.is_some()) {
        return Some("a file (certificate-authority)");
    }
    let users = kubeconfig.auth_infos.iter().filter_map(|u| u.auth_info.as_ref());
    users.into_iter().find_map(|user| {
        [
            (user.exec.is_some(), "a program (exec)"),
            (user.auth_provider.is_some(), "a program (auth-provider)"),
            (user.token_file.is_some(), "a file (tokenFile)"),
            (user.client_certificate.is_some(), "a file (client-certificate)"),
            (user.client_key.is_some(), "a file (client-key)"),
        ]
        .into_iter()
        .find_map(|(named, what)| named.then_some(what))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(cluster: &str, user: &str) -> Kubeconfig {
        Kubeconfig::from_yaml(&format!(
            "{{apiVersion: v1, kind: Config, current-context: c, \
             clusters: [{{name: c, cluster: {{server: 'https://h', {cluster}}}}}], \
             users: [{{name: u, user: {{{user}}}}}], \
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]}}"
        ))
        .unwrap()
    }

    #[test]
    fn a_kubeconfig_that_cannot_be_read_shows_nothing_of_it() {
        let cases = ["s3cret-token", "users:\n- name: u\n  user: s3cret\n", "{s3cret"];
        for text in cases {
            let error = Kubeconfig::from_yaml(text).unwrap_err();
            let shown = without_content(&error);
            assert!(shown.contains("not the YAML") && !shown.contains("s3cret"), "{shown}");
        }
    }

    #[test]
    fn a_kubeconfig_with_inline_credentials_is_accepted() {
        let inline = kubeconfig("certificate-authority-data: eA==", "token: t");
        assert_eq!(reaches_out(&inline), None);
    }

    #[test]
    fn a_kubeconfig_with_programs_or_files_is_rejected() {
        let program = "exec: {apiVersion: client.authentication.k8s.io/v1, command: id}";
        assert!(reaches_out(&kubeconfig("", program)).is_some());
        assert!(reaches_out(&kubeconfig("", "tokenFile: /t")).is_some());
        assert!(reaches_out(&kubeconfig("", "client-key: /k")).is_some());
        assert!(reaches_out(&kubeconfig("certificate-authority: /ca", "")).is_some());
    }
}
