//! The error of a reconcile.

use refit_cluster_api::rollout::machine_set::SyncError;
use refit_runtime::workload::WorkloadError;

use crate::hooks::HookError;

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A call to the API server failed.
    #[error("could not {attempt}: {source}")]
    Api {
        /// What was attempted.
        attempt: String,
        /// The error.
        source: Box<kube::Error>,
    },
    /// A call of a runtime extension failed.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// The workload cluster cannot be reached.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A MachineSet may not hand its Machines over.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// A required object does not exist.
    #[error("{kind} {name} does not exist")]
    Missing {
        /// Its kind.
        kind: String,
        /// Its namespace and name.
        name: String,
    },
    /// No CustomResourceDefinition serves a kind under the contract.
    #[error(
        "no CustomResourceDefinition of {kind}.{group} has the label cluster.x-k8s.io/v1beta2 \
         with a version"
    )]
    NoContract {
        /// The kind.
        kind: String,
        /// Its group.
        group: String,
    },
    /// An object is not valid.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// Builds the error of a failed API call.
    pub(crate) fn api(attempt: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let attempt = attempt.into();
        move |source| Self::Api { attempt, source: Box::new(source) }
    }

    /// Whether another client wrote first, so that a retry is enough.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source, .. } if refit_runtime::apply::is_conflict(source))
    }

    /// Whether the requested object does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        match self {
            Self::Api { source, .. } => refit_runtime::apply::is_not_found(source),
            Self::Missing { .. } => true,
            _ => false,
        }
    }
}
