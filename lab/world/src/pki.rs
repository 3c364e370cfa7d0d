//! Certificates of a sandbox: one certificate authority per cluster, and one for the hook server.

use refit_controller::ClientTrust;
use refit_runtime::tls::{
    Authority, ClientIdentity, KeyAndCert, ReloadableCert, TlsError, Validity,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// Host name of the management API.
pub const MANAGEMENT_HOST: &str = "management.refit.sandbox";
/// Port of the management API.
pub const MANAGEMENT_PORT: u16 = 6443;
/// Namespace of the hook server's Service.
pub const HOOK_NAMESPACE: &str = "refit-system";
/// Name of the hook server's Service.
pub const HOOK_SERVICE: &str = "refit-webhook";
/// Host name of the hook server.
pub const HOOK_HOST: &str = "refit-webhook.refit-system.svc";
/// Port of the hook server.
pub const HOOK_PORT: u16 = 443;
/// Host name at which each controller serves its probes and metrics.
pub const PROBE_HOST: &str = "refit-probes.refit-system.svc";
/// Port of probes and metrics.
pub const PROBE_PORT: u16 = 8081;
/// Host name of the server of `examples/hook-updater`.
pub const UPDATER_HOST: &str = "hook-updater.updaters.svc";
/// Its port.
pub const UPDATER_PORT: u16 = 443;
/// Secret with the hook server's certificate.
pub const HOOK_SECRET: &str = "refit-webhook-tls";

/// PEM of a certificate and its key, as stored in a snapshot.
#[derive(Clone, Serialize, Deserialize)]
pub struct Pem {
    cert: String,
    key: String,
}

impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pem")
    }
}

impl From<&KeyAndCert> for Pem {
    fn from(material: &KeyAndCert) -> Self {
        Self { cert: material.cert_pem.clone(), key: material.key_pem.clone() }
    }
}

impl Pem {
    /// PEM of the certificate.
    pub fn cert(&self) -> &str {
        &self.cert
    }

    /// PEM of the key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// A secret for a purpose. It is derived from the key, so that it is the same for as long as the key is.
    pub(crate) fn derive(&self, purpose: &str) -> Vec<u8> {
        let mut hash = Sha256::new();
        hash.update(format!("{purpose} of a sandbox\0"));
        hash.update(&self.key);
        hash.finalize().to_vec()
    }

    pub(crate) fn reloadable(&self) -> Result<Arc<ReloadableCert>, TlsError> {
        ReloadableCert::new(&KeyAndCert { cert_pem: self.cert.clone(), key_pem: self.key.clone() })
    }
}

/// Validity period of sandbox certificates. TLS checks it against the machine's own clock,
/// regardless of the simulated time.
pub(crate) fn validity() -> Validity {
    Validity {
        from: "2020-01-01T00:00:00Z".parse().expect("a valid time"),
        until: "2120-01-01T00:00:00Z".parse().expect("a valid time"),
    }
}

/// A certificate authority and the one server certificate that it issued.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The certificate authority.
    pub ca: Pem,
    /// The server certificate.
    pub server: Pem,
}

impl Identity {
    /// Creates both; the server certificate is valid for these names and addresses.
    pub fn new(name: &str, hosts: &[&str]) -> Result<Self, TlsError> {
        let validity = validity();
        let authority = Authority::new(name, validity)?;
        let server = authority.server(hosts, validity)?;
        Ok(Self { ca: Pem::from(authority.material()), server: Pem::from(&server) })
    }
}

/// Name in the client certificate of the sandbox's Cluster API.
pub const CLUSTER_API: &str = "cluster-api";

/// How Cluster API calls the hooks: what it presents, and what the controllers accept.
#[derive(Clone, Debug)]
pub(crate) struct HookClient {
    pub(crate) identity: ClientIdentity,
    pub(crate) trust: Arc<ClientTrust>,
}

impl HookClient {
    /// A client certificate of the authority that issued the hook server's.
    pub(crate) fn of(hooks: &Identity) -> Result<Self, TlsError> {
        let Pem { cert, key } = hooks.ca.clone();
        let authority = Authority::from_pem(KeyAndCert { cert_pem: cert, key_pem: key })?;
        let trust = ClientTrust::of(hooks.ca.cert().as_bytes(), [CLUSTER_API])?;
        let identity = authority.client(CLUSTER_API, validity())?.into();
        Ok(Self { identity, trust })
    }
}

/// A kubeconfig for an API server of the sandbox, as YAML (JSON is YAML).
pub(crate) fn kubeconfig(cluster: &str, host: &str, port: u16, ca: &Pem) -> String {
    use base64::Engine as _;
    let ca = base64::engine::general_purpose::STANDARD.encode(ca.cert());
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": cluster,
            "cluster": {
                "server": format!("https://{host}:{port}"),
                "certificate-authority-data": ca,
            },
        }],
        "users": [{"name": "admin", "user": {}}],
        "contexts": [{
            "name": "admin",
            "context": {"cluster": cluster, "user": "admin"},
        }],
        "current-context": "admin",
    })
    .to_string()
}

/// Client configuration for an API server of the sandbox.
pub(crate) fn client_config(host: &str, port: u16, ca: &Pem) -> kube::Config {
    let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let url: http::Uri = format!("https://{bracketed}:{port}")
        .parse()
        .expect("hosts of a sandbox are valid names or addresses");
    let mut config = kube::Config::new(url);
    config.root_cert = der(ca.cert()).map(|der| vec![der]);
    config
}

/// The bytes of a PEM text's only block.
fn der(pem: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    base64::engine::general_purpose::STANDARD.decode(body.trim()).ok()
}
