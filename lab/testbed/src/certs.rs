//! The certificates of a bed.

use std::{fs, path::Path};

use anyhow::Context as _;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::SignedDuration;
use kube::config::{KubeConfigOptions, Kubeconfig};
use refit_runtime::{
    Clock,
    tls::{Authority, KeyAndCert, Validity},
};

use crate::directory::write_secret;

/// Names of this machine in server certificates.
pub const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// Name in the client certificate that Cluster API's managers present to the hooks.
pub const HOOK_CLIENT: &str = "cluster-api";
/// Directory of that certificate.
pub const HOOK_CLIENT_DIRECTORY: &str = "hook-client";

/// The certificate authority of a bed.
#[derive(Debug)]
pub struct Certs {
    authority: Authority,
    validity: Validity,
}

impl Certs {
    /// Creates an authority.
    pub fn new(clock: Clock) -> anyhow::Result<Self> {
        let validity = validity(clock);
        let authority = Authority::new("refit-testbed", validity)?;
        Ok(Self { authority, validity })
    }

    /// Returns the authority's certificate.
    pub fn ca_pem(&self) -> &str {
        &self.authority.material().cert_pem
    }

    /// Returns the authority's certificate as a `caBundle`.
    pub fn ca_bundle(&self) -> String {
        BASE64_STANDARD.encode(self.ca_pem())
    }

    /// Creates a certificate for servers on this machine.
    pub fn server(&self) -> anyhow::Result<KeyAndCert> {
        Ok(self.authority.server(&NAMES, self.validity)?)
    }

    /// Writes `tls.crt`, `tls.key` and `ca.crt` of a server on this machine.
    pub fn write_server(&self, directory: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(directory)
            .with_context(|| format!("failed to create {}", directory.display()))?;
        write_secret(&directory.join("ca.crt"), self.ca_pem())?;
        let server = self.server()?;
        write_secret(&directory.join("tls.crt"), &server.cert_pem)?;
        write_secret(&directory.join("tls.key"), &server.key_pem)
    }

    /// Creates a certificate with which Cluster API calls hooks.
    pub fn hook_client(&self) -> anyhow::Result<KeyAndCert> {
        Ok(self.authority.client(HOOK_CLIENT, self.validity)?)
    }

    /// Writes `tls.crt` and `tls.key` of Cluster API's managers.
    pub fn write_hook_client(&self, directory: &Path) -> anyhow::Result<()> {
        let directory = directory.join(HOOK_CLIENT_DIRECTORY);
        fs::create_dir_all(&directory)
            .with_context(|| format!("failed to create {}", directory.display()))?;
        let client = self.hook_client()?;
        write_secret(&directory.join("tls.crt"), &client.cert_pem)?;
        write_secret(&directory.join("tls.key"), &client.key_pem)
    }

    /// Writes `signing.key`, for signing tokens, and `signing.crt` with its public half.
    pub fn write_signing_key(&self, directory: &Path) -> anyhow::Result<()> {
        let pair = self.authority.server(&["signing"], self.validity)?;
        write_secret(&directory.join("signing.crt"), &pair.cert_pem)?;
        write_secret(&directory.join("signing.key"), &pair.key_pem)
    }

    /// Writes the kubeconfig of a user, in these groups, of the API server at `url`.
    pub fn write_kubeconfig(
        &self,
        path: &Path,
        url: &str,
        user: &str,
        groups: &[&str],
    ) -> anyhow::Result<()> {
        write_secret(path, &self.kubeconfig(url, user, groups)?)
    }

    /// The kubeconfig of a user, as text.
    pub fn kubeconfig(&self, url: &str, user: &str, groups: &[&str]) -> anyhow::Result<String> {
        let KeyAndCert { cert_pem, key_pem } =
            self.authority.client_in(user, groups, self.validity)?;
        Ok(format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: testbed\n\
             clusters:\n- name: testbed\n  cluster:\n    server: {url}\n    \
             certificate-authority-data: {}\n\
             users:\n- name: testbed\n  user:\n    client-certificate-data: {}\n    \
             client-key-data: {}\n\
             contexts:\n- name: testbed\n  context: {{cluster: testbed, user: testbed}}\n",
            self.ca_bundle(),
            BASE64_STANDARD.encode(cert_pem),
            BASE64_STANDARD.encode(key_pem),
        ))
    }

    /// The kubeconfig of a user, as a client configuration.
    pub async fn config(
        &self,
        url: &str,
        user: &str,
        groups: &[&str],
    ) -> anyhow::Result<kube::Config> {
        let kubeconfig = Kubeconfig::from_yaml(&self.kubeconfig(url, user, groups)?)?;
        let options = KubeConfigOptions::default();
        Ok(kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?)
    }
}

/// Valid from an hour ago, because clocks differ, and for longer than any bed runs.
pub fn validity(clock: Clock) -> Validity {
    let now = clock.now();
    Validity {
        from: now - SignedDuration::from_hours(1),
        until: now + SignedDuration::from_hours(24 * 30),
    }
}
