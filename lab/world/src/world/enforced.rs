//! A world with a real Refit installation, restricted to the RBAC permissions of that installation.
//!
//! The management API authenticates every caller: controllers use a token of their ServiceAccount
//! and maintain their own certificate. In a workload API, controllers are user [`WORKLOAD_USER`],
//! and each agent is its node. The simulated rest of a cluster has full access.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::future::BoxFuture;
use http::Request;
use lab_apiserver::{
    ApiServer,
    auth::{AccessRecorder, Authentication, Identity, MASTERS, Required},
};
use refit_controller::{
    ControllerOptions, HOLD_CALLERS, HookServer,
    certificates::{CertificateSettings, Certificates},
};
use refit_kinds::keys;
use refit_runtime::tls::{ClientIdentity, KeyAndCert, ReloadableCert};
use serde_json::{Value, json};

use super::{Inner, WorldError, collection};
use crate::{
    direct::{Call, Direct, DirectError, ENVIRONMENT, USER},
    pki::{self, HookClient},
};

/// User name of the controller in a workload cluster.
pub const WORKLOAD_USER: &str = "refit-controller";
/// ServiceAccount of the controller.
const ACCOUNT: &str = "refit-controller";
/// Lifetime of a controller's token in seconds: longer than a simulation.
const TOKEN_SECONDS: u32 = 30 * 24 * 3600;

/// The enforced installation, and the recorders of access decisions.
#[derive(Clone)]
pub struct Enforced {
    /// Objects of the installation in the management cluster.
    pub installation: Vec<Value>,
    /// Objects of the installation in each workload cluster.
    pub workload: Vec<Value>,
    /// Records each access decision of the management API.
    pub management_recorder: AccessRecorder,
    /// Records each access decision of a workload API.
    pub workload_recorder: AccessRecorder,
}

impl std::fmt::Debug for Enforced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enforced").finish_non_exhaustive()
    }
}

impl Enforced {
    fn required(recorder: &AccessRecorder, key: &[u8]) -> Authentication {
        Authentication::Required(Required {
            recorder: Some(recorder.clone()),
            ..Required::new(key)
        })
    }

    /// How the management API authenticates callers.
    pub(crate) fn management(&self, key: &[u8]) -> Authentication {
        Self::required(&self.management_recorder, key)
    }

    /// How a workload API authenticates callers.
    pub(crate) fn workload(&self, key: &[u8]) -> Authentication {
        Self::required(&self.workload_recorder, key)
    }

    /// Applies the installation to the management API, as `refit install --apply` does.
    pub(crate) async fn install(&self, server: &ApiServer) -> anyhow::Result<()> {
        let server = server.clone();
        let service = tower::service_fn(move |mut request: Request<kube::client::Body>| {
            request.extensions_mut().insert(Identity::admin());
            tower::ServiceExt::oneshot(server.clone(), request)
        });
        let client = kube::Client::new(service, "default");
        refit_install::apply(&client, &self.installation, |_| {}).await?;
        Ok(())
    }

    /// Applies the installation's objects to a workload cluster.
    pub(crate) async fn fill(&self, server: &ApiServer) -> Result<(), DirectError> {
        let api = Direct::new(server.clone(), ENVIRONMENT);
        for object in &self.workload {
            let Some(path) = collection(server, object) else {
                continue;
            };
            match api.send(Call::create(path, object.clone())).await {
                Err(error) if error.code() == Some(409) => {}
                outcome => {
                    outcome?;
                }
            }
        }
        Ok(())
    }
}

/// Identity of a caller in this process, by its user agent; `None` for one that authenticates
/// itself.
pub(crate) fn caller(user_agent: &str, management: bool) -> Option<Identity> {
    if user_agent.starts_with("refit-controller/") {
        return (!management).then(|| Identity::new(WORKLOAD_USER, &[]));
    }
    let node = user_agent
        .strip_prefix("refit-agent/")
        .and_then(|rest| rest.rsplit_once('/'))
        .map(|(_, node)| node.trim_end_matches(')'));
    Some(match node {
        Some(node) => Identity::new(format!("system:node:{node}"), &["system:nodes"]),
        None => insider(user_agent),
    })
}

/// Identity of a component of this process with full access. Cluster API's managers are ServiceAccounts, as they are in a
/// real management cluster: policies distinguish them from other users.
pub(crate) fn insider(user_agent: &str) -> Identity {
    if user_agent.starts_with("refit-capi/") {
        return Identity::new(HOLD_CALLERS[0], &[MASTERS]);
    }
    Identity::admin()
}

/// Presents the client certificate that the controllers keep in their Secret, as a manager does
/// that mounts a copy of it.
pub(crate) fn hook_client(management: ApiServer) -> HookClient {
    let identity = ClientIdentity::new(move || {
        let secret = management.get_value("", "secrets", pki::HOOK_NAMESPACE, keys::HOOK_CLIENT)?;
        let part = |key: &str| {
            let bytes = STANDARD.decode(secret["data"][key].as_str()?).ok()?;
            String::from_utf8(bytes).ok()
        };
        Some(KeyAndCert { cert_pem: part("tls.crt")?, key_pem: part("tls.key")? })
    });
    HookClient { identity, trust: Arc::default() }
}

impl Inner {
    /// A token of the controller's ServiceAccount.
    async fn token(&self) -> Result<String, WorldError> {
        let path =
            format!("/api/v1/namespaces/{}/serviceaccounts/{ACCOUNT}/token", pki::HOOK_NAMESPACE);
        let body = json!({"spec": {"expirationSeconds": TOKEN_SECONDS}});
        let api = Direct::new(self.management.clone(), USER);
        let answer = api.send(Call::create(path, body)).await?;
        let token = answer["status"]["token"].as_str();
        Ok(token.unwrap_or_default().to_owned())
    }

    /// Runs a controller with its own token and its own certificate.
    pub(crate) fn installed_controller(
        self: &Arc<Self>,
        mut options: ControllerOptions,
    ) -> BoxFuture<'static, anyhow::Result<()>> {
        let inner = self.clone();
        Box::pin(async move {
            options.config.auth_info.token = Some(inner.token().await?.into());
            let client = options.stack.client(&options.config)?;
            let secret = |settings| Certificates::new(client.clone(), options.clock, settings);
            let certificates = secret(CertificateSettings::default());
            let clients = secret(CertificateSettings::of_clients(pki::HOOK_NAMESPACE));
            let cert: Arc<ReloadableCert> = certificates.ensure().await;
            let trust = clients.clients().await;
            options.hooks =
                HookServer { cert: cert.clone(), clients: Some(trust.clone()), ..options.hooks };
            tokio::select! {
                biased;
                outcome = refit_controller::run(options) => outcome,
                () = certificates.run(cert) => anyhow::bail!("the certificate task ended"),
                () = clients.follow_clients(trust) => anyhow::bail!("the trust task ended"),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_agent_identifies_its_caller() {
        let user = |agent: &str, management| caller(agent, management).map(|who| who.user);
        assert_eq!(user("refit-controller/3", true), None);
        assert_eq!(user("refit-controller/3 (standby)", false).as_deref(), Some(WORKLOAD_USER));
        assert_eq!(
            user("refit-agent/1 (default/edge-1/edge-1-cp-0)", false).as_deref(),
            Some("system:node:edge-1-cp-0")
        );
        assert_eq!(
            user("refit-capi/1", true).as_deref(),
            Some("system:serviceaccount:capi-system:capi-manager")
        );
        assert_eq!(user("sandbox-env", true).as_deref(), Some("system:admin"));
    }
}
