//! What is asked outside of the Kubernetes API (`docs/facts/openshift-upgrades.md`).
//!
//! | module | asks |
//! |---|---|
//! | [`ocm`] | OpenShift Cluster Manager, or its agent: which upgrade is wanted, and how far it is |
//! | `graph` | a version graph: which versions another channel offers |
//! | `registry` | the registry of a release image: its version |
//! | `dependencies` | URLs that must answer before an upgrade |
//! | [`monitoring`] | Prometheus and Alertmanager of the cluster |
//! | `dvo` | the deployment-validation-operator |
//!
//! Errors are sentences for a condition. They have no token, and of an answer only the reason that it gives for an error.

mod dependencies;
mod dvo;
mod graph;
mod http;
pub mod monitoring;
pub mod ocm;
mod registry;

use std::sync::{Arc, Mutex};

use refit_openshift::{
    Compat, config::DependencyConfig, dependencies::Unavailable, provider::OcmUrl,
    provider::ProviderError, validation::GraphRequest, validation::ImageRef,
};
use refit_runtime::{
    Clock,
    client::{ClientStack, ProxyError},
};

use self::http::Web;
pub use self::{monitoring::Monitoring, ocm::Ocm};

/// Everything outside of the Kubernetes API. It is built once per process.
pub struct Remote {
    stack: ClientStack,
    cluster: kube::Client,
    clock: Clock,
    compat: Compat,
    web: Web,
    /// Without a proxy: for the agent of OCM.
    direct: Web,
    uses_routes: bool,
    monitoring: Arc<Mutex<monitoring::Kept>>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

impl Remote {
    /// Asks with the stack, through the proxies of the environment. `cluster` is the client of the cluster's API.
    pub fn new(
        stack: ClientStack,
        cluster: kube::Client,
        clock: Clock,
        compat: Compat,
    ) -> Result<Self, ProxyError> {
        let direct = Web::new(&stack);
        let stack = stack.with_proxies_of_environment()?;
        let web = Web::new(&stack);
        let monitoring = Arc::default();
        Ok(Self { stack, cluster, clock, compat, web, direct, uses_routes: false, monitoring })
    }

    /// Reaches Prometheus and Alertmanager by their Routes instead of their Services: for a program that runs outside of the
    /// cluster.
    #[must_use]
    pub fn by_routes(self, uses_routes: bool) -> Self {
        Self { uses_routes, ..self }
    }

    /// Connects to OCM, for the `spec.clusterID` of the ClusterVersion. It reads the token now.
    pub async fn ocm(&self, url: &OcmUrl, cluster_id: &str) -> Result<Ocm, ProviderError> {
        Ocm::connect(self, url, cluster_id).await
    }

    /// The versions that a version graph offers, also those with known risks.
    pub async fn graph(&self, request: &GraphRequest) -> Result<Vec<String>, String> {
        graph::offered(&self.web, request).await
    }

    /// The label [`refit_openshift::validation::RELEASE_LABEL`] of a release image.
    pub async fn release(&self, image: &ImageRef) -> Result<String, String> {
        registry::release(&self.web, image).await
    }

    /// The URLs that are not available, in the order in which that was known.
    pub async fn unavailable(
        &self,
        urls: &[String],
        config: &DependencyConfig,
    ) -> Vec<Unavailable> {
        dependencies::unavailable(&self.web, urls, config.timeout, self.compat).await
    }

    /// Connects to Prometheus and Alertmanager; one look shares the connection. It reads the token and the authority now.
    pub async fn monitoring(&self) -> Result<Monitoring, String> {
        Monitoring::connect(self).await
    }

    /// The metrics of the deployment-validation-operator, `None` if it is not installed.
    pub async fn dvo_metrics(&self) -> Result<Option<String>, String> {
        dvo::metrics(self).await
    }
}
