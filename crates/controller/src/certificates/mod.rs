//! The hook server's certificate, and that of its clients, without cert-manager.
//!
//! One Secret for each (`kubernetes.io/tls` with `ca.crt`, and with `ca.key` if Refit manages it)
//! serves all replicas. [`Certificates::ensure`] returns once a certificate exists; [`Certificates::run`]
//! serves the certificate of the Secret, renews it in time and rotates the authority, with both
//! trusted for some time (`refit_core::certificates`). Every replica may write: a write applies
//! only to the version of the Secret that was read. A Secret of the same format that another
//! component manages, such as cert-manager, is used unchanged and never written.
//! [`Certificates::clients`] and [`Certificates::follow_clients`] do the same for the certificate
//! that Cluster API's managers present: its authorities and names decide whose calls are served.
//!
//! ```no_run
//! # async fn example(client: kube::Client, clock: refit_runtime::Clock) {
//! use refit_controller::certificates::{CertificateSettings, Certificates};
//!
//! let certificates = Certificates::new(client, clock, CertificateSettings::default());
//! let cert = certificates.ensure().await;
//! // `cert` goes into `HookServer::cert`. Run this next to the controller:
//! certificates.run(cert).await;
//! # }
//! ```

mod secret;

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use refit_core::certificates::{CLIENT, Decision, Lifetimes, SERVER, decide};
use refit_kinds::keys;
use refit_runtime::{
    Clock, ObjectKey, Store, apply, store,
    tls::{Authority, KeyAndCert, ReloadableCert, TlsError, Validity},
};
use tokio::sync::Notify;

use crate::client_trust::ClientTrust;

/// Delay before a failed call or an unusable Secret is checked again.
const RETRY: Duration = Duration::from_secs(5);
/// The Secret is checked this often even if nothing is due.
const LOOK: SignedDuration = SignedDuration::from_hours(12);

/// Who presents a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The hook server.
    Server,
    /// Cluster API's managers, when they call hooks.
    Client,
}

impl Purpose {
    fn lifetimes(self) -> &'static Lifetimes {
        match self {
            Self::Server => &SERVER,
            Self::Client => &CLIENT,
        }
    }

    /// The start of its authorities' names.
    fn name(self) -> &'static str {
        match self {
            Self::Server => "refit-webhook",
            Self::Client => keys::HOOK_CLIENT,
        }
    }

    fn issue(
        self,
        authority: &Authority,
        names: &[String],
        validity: Validity,
    ) -> Result<KeyAndCert, TlsError> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match self {
            Self::Server => authority.server(&names, validity),
            Self::Client => authority.named_client(&names, validity),
        }
    }
}

/// The Secret, and the names in its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSettings {
    /// Who presents the certificate.
    pub purpose: Purpose,
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub secret: String,
    /// Names of the certificate; the first is the subject.
    pub names: Vec<String>,
}

impl CertificateSettings {
    /// The Secret `<service>-tls` and the names of a Service.
    pub fn of_service(namespace: &str, service: &str) -> Self {
        Self {
            purpose: Purpose::Server,
            namespace: namespace.to_owned(),
            secret: format!("{service}-tls"),
            names: vec![
                format!("{service}.{namespace}.svc"),
                format!("{service}.{namespace}.svc.cluster.local"),
                format!("{service}.{namespace}"),
                service.to_owned(),
            ],
        }
    }

    /// The Secret with the certificate of Cluster API's managers.
    pub fn of_clients(namespace: &str) -> Self {
        Self {
            purpose: Purpose::Client,
            namespace: namespace.to_owned(),
            secret: keys::HOOK_CLIENT.to_owned(),
            names: vec![keys::HOOK_CLIENT.to_owned()],
        }
    }
}

impl Default for CertificateSettings {
    fn default() -> Self {
        Self::of_service("refit-system", "refit-webhook")
    }
}

/// Why the certificate could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The API server rejected or did not complete a request.
    #[error("cannot read or write Secret {secret}: {source}")]
    Api {
        /// The Secret.
        secret: ObjectKey,
        /// The cause.
        source: Box<kube::Error>,
    },
    /// A certificate cannot be created or loaded.
    #[error("Secret {secret}: {source}")]
    Tls {
        /// The Secret.
        secret: ObjectKey,
        /// The cause.
        source: TlsError,
    },
}

/// Manages the certificate in one Secret.
#[derive(Clone)]
pub struct Certificates {
    client: Client,
    clock: Clock,
    settings: CertificateSettings,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Certificates {
    /// Manages the certificate in a Secret of this cluster.
    pub fn new(client: Client, clock: Clock, settings: CertificateSettings) -> Self {
        Self { client, clock, settings }
    }

    fn api(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.settings.namespace)
    }

    fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.settings.namespace, &self.settings.secret)
    }

    /// Waits until a certificate exists, and creates one if no other component manages the Secret.
    pub async fn ensure(&self) -> Arc<ReloadableCert> {
        loop {
            match self.first().await {
                Ok(Some(cert)) => return cert,
                Ok(None) => {
                    tracing::warn!(secret = %self.key(), "waiting for the owner of the Secret to \
                        provide a certificate");
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot obtain a certificate for the hooks yet");
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// The Secret after the change that is due.
    async fn current(&self) -> Result<Option<Secret>, CertificateError> {
        let found = self.api().get_opt(&self.settings.secret).await;
        let found = found.map_err(|source| self.api_error(source))?;
        Ok(self.step(found).await?.0)
    }

    async fn first(&self) -> Result<Option<Arc<ReloadableCert>>, CertificateError> {
        let secret = self.current().await?;
        let Some(material) = secret.as_ref().and_then(secret::shown) else {
            return Ok(None);
        };
        ReloadableCert::new(&material).map(Some).map_err(|source| self.tls_error(source))
    }

    /// Accepts the clients of the Secret, and creates it if no other component manages it. If that
    /// fails, no client is accepted until [`Certificates::follow_clients`] succeeds: the hook server
    /// must not wait, because it also answers Discovery.
    pub async fn clients(&self) -> Arc<ClientTrust> {
        let trust: Arc<ClientTrust> = Arc::default();
        match self.current().await {
            Ok(Some(secret)) => self.log_failure(secret::trust(&secret, &trust)),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot obtain the client certificate of the hooks yet");
            }
        }
        trust
    }

    /// Accepts the clients of the Secret, and renews its certificate, until the future is dropped.
    pub async fn follow_clients(&self, trust: Arc<ClientTrust>) {
        self.follow(|secret| secret::trust(secret, &trust)).await;
    }

    /// Serves and renews the certificate of the Secret until the future is dropped.
    pub async fn run(&self, cert: Arc<ReloadableCert>) {
        let mut shown = String::new();
        self.follow(|secret| {
            if let Some(material) = secret::shown(secret)
                && material.cert_pem != shown
            {
                cert.reload(&material)?;
                shown = material.cert_pem;
            }
            Ok(())
        })
        .await;
    }

    fn log_failure(&self, outcome: Result<(), TlsError>) {
        if let Err(error) = outcome {
            tracing::warn!(secret = %self.key(), %error, "cannot load the new certificate, keeping \
                the current one");
        }
    }

    /// Does what is due to the Secret, and calls `load` with its content, until the future is
    /// dropped.
    async fn follow(&self, load: impl FnMut(&Secret) -> Result<(), TlsError>) {
        let store: Store<Secret> = Store::default();
        let changed = Notify::new();
        let field = format!("metadata.name={}", self.settings.secret);
        let watching =
            store::reflect(self.api(), store::everything().fields(&field), store.clone(), |_| {
                changed.notify_one();
            });
        futures::join!(watching, self.keep(&store, &changed, load));
    }

    async fn keep(
        &self,
        store: &Store<Secret>,
        changed: &Notify,
        mut load: impl FnMut(&Secret) -> Result<(), TlsError>,
    ) {
        store.ready().await;
        loop {
            let found = store.get(&self.key());
            if let Some(secret) = found.as_deref() {
                self.log_failure(load(secret));
            }
            let wait = match self.step(found.as_deref().cloned()).await {
                Ok((written, wait)) => {
                    if let Some(written) = written {
                        store.insert(written);
                    }
                    wait
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot check the certificate, retrying");
                    RETRY
                }
            };
            tokio::select! {
                biased;
                () = changed.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Performs the due change. Returns the resulting Secret and the time until the next check.
    async fn step(
        &self,
        found: Option<Secret>,
    ) -> Result<(Option<Secret>, Duration), CertificateError> {
        let now = self.clock.now_seconds();
        let facts = secret::read(found.as_ref());
        let lifetimes = self.settings.purpose.lifetimes();
        let decision = decide(&facts, &self.settings.names, lifetimes, now);
        let data = match &decision {
            Decision::Leave => {
                if let Some(until) = found.as_ref().and_then(secret::ends_at)
                    && until <= now
                {
                    tracing::warn!(
                        secret = %self.key(), %until,
                        "certificate expired and not renewed by the owner of the Secret"
                    );
                }
                return Ok((found, self.clock.until(now + LOOK)));
            }
            Decision::Keep { until } => {
                return Ok((found, self.clock.until((*until).min(now + LOOK))));
            }
            change @ (Decision::Create { .. }
            | Decision::RenewLeaf { .. }
            | Decision::RotateAuthority
            | Decision::DropOlder) => secret::changed(change, found.as_ref(), &self.settings, now)
                .map_err(|source| self.tls_error(source))?,
        };
        self.announce(&decision);
        let written = if let Some(old) = &found {
            let version = old.resource_version().unwrap_or_default();
            let body = secret::patch(&version, &data);
            let name = &self.settings.secret;
            let patch = Patch::Merge(&body);
            self.api().patch(name, &PatchParams::default(), &patch).await
        } else {
            let object = secret::object(&self.settings, &data);
            self.api().create(&PostParams::default(), &object).await
        };
        match written {
            Ok(secret) => Ok((Some(secret), Duration::ZERO)),
            // Another replica was faster: its certificate is as good.
            Err(error) if apply::is_conflict(&error) || is_taken(&error) => {
                let now = self.api().get_opt(&self.settings.secret).await;
                now.map(|secret| (secret, Duration::from_secs(1)))
                    .map_err(|source| self.api_error(source))
            }
            Err(source) => Err(self.api_error(source)),
        }
    }

    fn announce(&self, decision: &Decision) {
        let secret = self.key();
        match decision {
            Decision::Create { reason } => {
                tracing::info!(%secret, reason, "creating an authority and a certificate for the \
                    hooks");
            }
            Decision::RenewLeaf { reason } => {
                tracing::info!(%secret, reason, "renewing the certificate of the hooks");
            }
            Decision::RotateAuthority => tracing::info!(%secret, "adding a new authority"),
            Decision::DropOlder => tracing::info!(%secret, "removing the older authority"),
            Decision::Keep { .. } | Decision::Leave => {}
        }
    }

    fn api_error(&self, source: kube::Error) -> CertificateError {
        CertificateError::Api { secret: self.key(), source: Box::new(source) }
    }

    fn tls_error(&self, source: TlsError) -> CertificateError {
        CertificateError::Tls { secret: self.key(), source }
    }
}

fn is_taken(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}
