//! Why Cluster API does not call Refit's hooks for a group of machines, and what to do about it.

use refit_kinds::version::KubernetesVersion;
use strum::{IntoStaticStr, VariantNames};

use super::reach::GroupRef;

/// Why Cluster API does not call Refit's hooks for a group, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, IntoStaticStr, VariantNames)]
pub enum Unreached {
    /// The kind has no in-place hooks, or none that Refit serves.
    #[error(
        "{group} has a kind that Cluster API does not update in place through Refit; supported \
         are KubeadmControlPlane and MachineDeployment"
    )]
    Kind {
        /// The group.
        group: GroupRef,
    },
    /// The machines are not bootstrapped by kubeadm.
    #[error(
        "the machines of {group} are bootstrapped by {kind}; Refit updates machines of \
         KubeadmConfig only"
    )]
    Bootstrap {
        /// The group.
        group: GroupRef,
        /// Kind of the bootstrap config.
        kind: String,
    },
    /// A MachineSet without a MachineDeployment: Cluster API never changes its machines.
    #[error(
        "{group} belongs to no MachineDeployment: Cluster API applies the change only to machines \
         that it creates from now on; use a MachineDeployment"
    )]
    #[strum(serialize = "LoneMachineSet")]
    LoneSet {
        /// The group.
        group: GroupRef,
    },
    /// An annotation disables Refit.
    #[error(
        "annotation refit.dev/in-place: Disabled on {object} leaves {group} to Cluster API's own \
         rollout, which replaces machines; remove the annotation"
    )]
    Disabled {
        /// The group.
        group: GroupRef,
        /// The object with the annotation.
        object: String,
    },
    /// The Cluster or the group is paused.
    #[error(
        "{object} is paused: Cluster API does not reconcile {group}; unpause it (spec.paused of a \
         Cluster, annotation cluster.x-k8s.io/paused)"
    )]
    Paused {
        /// The group.
        group: GroupRef,
        /// The paused object.
        object: String,
    },
    /// The strategy is OnDelete: a machine is renewed when a user deletes it.
    #[error(
        "{group} has rollout strategy OnDelete: a machine is replaced when it is deleted, never \
         updated in place; set spec.rollout.strategy.type to RollingUpdate with maxSurge 0 and \
         maxUnavailable 1"
    )]
    OnDelete {
        /// The group.
        group: GroupRef,
    },
    /// The surge replaces every existing machine.
    #[error(
        "{group} has {replicas} replica(s) and maxSurge {max_surge}: Cluster API creates a new \
         machine and deletes the old one without calling Refit; {remedy}"
    )]
    OnlySurge {
        /// The group.
        group: GroupRef,
        /// Number of its machines.
        replicas: i64,
        /// Its maxSurge.
        max_surge: String,
        /// What to set.
        remedy: &'static str,
    },
    /// Refit's ExtensionConfig does not exist.
    #[error(
        "there is no ExtensionConfig refit, so Cluster API does not call Refit and replaces \
         machines; install Refit (refit install --image IMAGE --apply)"
    )]
    NotInstalled,
    /// Refit's ExtensionConfig is paused.
    #[error("ExtensionConfig refit is paused; remove its annotation cluster.x-k8s.io/paused")]
    ExtensionPaused,
    /// Cluster API has not processed the ExtensionConfig since its last change.
    #[error(
        "Cluster API has not discovered the current ExtensionConfig refit; if this does not \
         change within a minute, check that capi-controller-manager runs with \
         --feature-gates=RuntimeSDK=true"
    )]
    NotDiscoveredYet,
    /// Cluster API could not reach Refit.
    #[error(
        "Cluster API cannot discover ExtensionConfig refit: {message}; check refit-controller, \
         its Service and its certificate (refit doctor)"
    )]
    DiscoveryFailed {
        /// Message of Cluster API.
        message: String,
    },
    /// The discovery did not return one of Refit's hooks.
    #[error(
        "ExtensionConfig refit does not serve {hook}; the controller has another version, or its \
         Service leads elsewhere (refit doctor)"
    )]
    HookMissing {
        /// The hook.
        hook: &'static str,
    },
    /// The CA bundle is missing: the control plane's manager ignores the extension.
    #[error(
        "ExtensionConfig refit has no spec.clientConfig.caBundle; annotate it with \
         runtime.cluster.x-k8s.io/inject-ca-from-secret: refit-system/refit-webhook-tls"
    )]
    NoCaBundle,
    /// The namespace is not opted in.
    #[error(
        "namespace {namespace} does not match the namespaceSelector of ExtensionConfig refit \
         ({selector}); {remedy}"
    )]
    NotSelected {
        /// The namespace.
        namespace: String,
        /// The selector, in kubectl's format.
        selector: String,
        /// What to do.
        remedy: String,
    },
    /// The selector is invalid: Cluster API drops the extension from its registry.
    #[error(
        "spec.namespaceSelector of ExtensionConfig refit is invalid ({error}): Cluster API calls \
         none of its hooks until it is corrected"
    )]
    InvalidSelector {
        /// The error in the selector.
        error: String,
    },
    /// Two extensions serve one hook: Cluster API calls neither.
    #[error(
        "ExtensionConfigs refit and {other} both serve {hook} in namespace {namespace}: Cluster \
         API supports only one and stops every rollout there; narrow the namespaceSelector of one \
         of them"
    )]
    Shared {
        /// The other extension.
        other: String,
        /// The hook.
        hook: String,
        /// The namespace.
        namespace: String,
    },
    /// Cluster API is too old.
    #[error(
        "{deployment} is Cluster API {version}; in-place updates need v1.12 or newer: upgrade \
         Cluster API (clusterctl upgrade)"
    )]
    TooOld {
        /// The manager.
        deployment: String,
        /// Its version of Cluster API.
        version: KubernetesVersion,
    },
    /// A feature gate is off.
    #[error(
        "{deployment} runs without feature gate {gate}, so it replaces machines without calling \
         Refit; set {gate}=true in its --feature-gates"
    )]
    GateOff {
        /// The manager.
        deployment: String,
        /// The gate.
        gate: &'static str,
    },
    /// It is unknown whether Cluster API calls the hooks.
    #[error("it is unknown whether Cluster API calls Refit for {group}: {why}")]
    NotKnown {
        /// The group.
        group: GroupRef,
        /// What could not be read, and why.
        why: String,
    },
}

impl Unreached {
    /// CamelCase reason.
    pub fn reason(&self) -> &'static str {
        self.into()
    }

    /// Whether Refit upgrades the machines itself then, by a task. It does not where the operator has disabled it, where the objects are
    /// not those of kubeadm, and where the installation has to be repaired first.
    pub fn is_for_task(&self) -> bool {
        match self {
            Self::OnDelete { .. }
            | Self::OnlySurge { .. }
            | Self::NotInstalled
            | Self::ExtensionPaused
            | Self::GateOff { .. } => true,
            Self::Kind { .. }
            | Self::Bootstrap { .. }
            | Self::LoneSet { .. }
            | Self::Disabled { .. }
            | Self::Paused { .. }
            | Self::NotDiscoveredYet
            | Self::DiscoveryFailed { .. }
            | Self::HookMissing { .. }
            | Self::NoCaBundle
            | Self::NotSelected { .. }
            | Self::InvalidSelector { .. }
            | Self::Shared { .. }
            | Self::TooOld { .. }
            | Self::NotKnown { .. } => false,
        }
    }

    /// Whether Cluster API may then replace machines; otherwise it takes no action.
    pub fn replaces(&self) -> bool {
        match self {
            Self::Kind { .. }
            | Self::Bootstrap { .. }
            | Self::Disabled { .. }
            | Self::OnDelete { .. }
            | Self::OnlySurge { .. }
            | Self::NotInstalled
            | Self::NotSelected { .. }
            | Self::InvalidSelector { .. }
            | Self::TooOld { .. }
            | Self::GateOff { .. }
            | Self::NotKnown { .. }
            | Self::ExtensionPaused
            | Self::NotDiscoveredYet
            | Self::DiscoveryFailed { .. }
            | Self::HookMissing { .. } => true,
            // Cluster API takes no action, or it cannot make a required call and waits.
            Self::LoneSet { .. } | Self::Paused { .. } | Self::NoCaBundle | Self::Shared { .. } => {
                false
            }
        }
    }
}
