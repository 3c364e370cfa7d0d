//! Why a reconcile could not do what it should.

use refit_cluster_api::rollout::machine_set::SyncError;
use refit_runtime::workload::WorkloadError;

use crate::hooks::HookError;

/// Why a reconcile could not do what it should.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The API server did not do what it was asked.
    #[error("could not {attempt}: {source}")]
    Api {
        /// What was asked.
        attempt: String,
        /// Its answer.
        source: Box<kube::Error>,
    },
    /// A runtime extension did not answer as it should.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// The workload cluster cannot be reached.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A MachineSet may not give its machines away.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// An object that is needed does not exist.
    #[error("{kind} {name} does not exist")]
    Missing {
        /// Its kind.
        kind: String,
        /// Its namespace and name.
        name: String,
    },
    /// No CustomResourceDefinition serves a kind under the contract.
    #[error(
        "no CustomResourceDefinition of {kind}.{group} says by label cluster.x-k8s.io/v1beta2 \
         which version to use"
    )]
    NoContract {
        /// The kind.
        kind: String,
        /// Its group.
        group: String,
    },
    /// An object is not what it should be.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// The API error that stopped an attempt.
    pub(crate) fn api(attempt: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let attempt = attempt.into();
        move |source| Self::Api { attempt, source: Box::new(source) }
    }

    /// Whether somebody else wrote first, so that the next look will do.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source, .. } if refit_runtime::apply::is_conflict(source))
    }

    /// Whether what was asked for is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        match self {
            Self::Api { source, .. } => refit_runtime::apply::is_not_found(source),
            Self::Missing { .. } => true,
            _ => false,
        }
    }
}
