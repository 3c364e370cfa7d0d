//! Why Cluster API does not ask us about a group of machines, and what to do about it.

use refit_kinds::version::KubernetesVersion;
use strum::{IntoStaticStr, VariantNames};

use super::reach::GroupRef;

/// Why Cluster API does not ask us about a group, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, IntoStaticStr, VariantNames)]
pub enum Unreached {
    /// A kind that has no in-place hooks, or none of ours.
    #[error(
        "{group} is of a kind that Cluster API does not update in place through Refit; served are KubeadmControlPlane and MachineDeployment"
    )]
    Kind {
        /// The group.
        group: GroupRef,
    },
    /// The machines are not bootstrapped by kubeadm.
    #[error(
        "the machines of {group} are bootstrapped by {kind}; Refit updates machines of KubeadmConfig only"
    )]
    Bootstrap {
        /// The group.
        group: GroupRef,
        /// Kind of the bootstrap config.
        kind: String,
    },
    /// A MachineSet without a MachineDeployment: Cluster API never changes its machines.
    #[error(
        "{group} belongs to no MachineDeployment: Cluster API changes only machines that it creates from now on; put it under a MachineDeployment"
    )]
    #[strum(serialize = "LoneMachineSet")]
    LoneSet {
        /// The group.
        group: GroupRef,
    },
    /// Somebody switched us off.
    #[error(
        "annotation refit.dev/in-place: Disabled on {object} leaves {group} to Cluster API's own rollout, which replaces machines; remove the annotation"
    )]
    Disabled {
        /// The group.
        group: GroupRef,
        /// What carries the annotation.
        object: String,
    },
    /// Somebody paused Cluster API.
    #[error(
        "{object} is paused: Cluster API does nothing with {group} until it is not; unpause it (spec.paused of a Cluster, annotation cluster.x-k8s.io/paused)"
    )]
    Paused {
        /// The group.
        group: GroupRef,
        /// What is paused.
        object: String,
    },
    /// The strategy renews machines as a user deletes them.
    #[error(
        "{group} has rollout strategy OnDelete: a machine gets the change when somebody deletes it, never in place; set spec.rollout.strategy.type to RollingUpdate with maxSurge 0 and maxUnavailable 1"
    )]
    OnDelete {
        /// The group.
        group: GroupRef,
    },
    /// Surge replaces every machine there is.
    #[error(
        "{group} has {replicas} replica(s) and maxSurge {max_surge}: Cluster API creates a new machine and deletes the old one without asking; {remedy}"
    )]
    OnlySurge {
        /// The group.
        group: GroupRef,
        /// How many machines it has.
        replicas: i64,
        /// Its maxSurge.
        max_surge: String,
        /// What to set.
        remedy: &'static str,
    },
    /// There is no ExtensionConfig of ours.
    #[error(
        "there is no ExtensionConfig refit, so that Cluster API asks nobody and replaces machines; install Refit here (refit install)"
    )]
    NotInstalled,
    /// Cluster API leaves our ExtensionConfig alone.
    #[error("ExtensionConfig refit is paused; remove its annotation cluster.x-k8s.io/paused")]
    ExtensionPaused,
    /// Cluster API has not looked at the ExtensionConfig since it was last changed.
    #[error(
        "Cluster API has not discovered ExtensionConfig refit (as it is now): wait a few seconds; if it stays so, look whether capi-controller-manager runs with --feature-gates=RuntimeSDK=true"
    )]
    NotDiscoveredYet,
    /// Cluster API could not reach us.
    #[error(
        "Cluster API cannot discover ExtensionConfig refit: {message}; look whether refit-controller runs and its Service and certificate are right (refit doctor)"
    )]
    DiscoveryFailed {
        /// What Cluster API says.
        message: String,
    },
    /// A hook of ours was not announced.
    #[error(
        "ExtensionConfig refit does not serve {hook}; the controller is of another version or something else answers on its Service (refit doctor)"
    )]
    HookMissing {
        /// The hook.
        hook: &'static str,
    },
    /// No CA bundle: the control plane's manager does not take the extension.
    #[error(
        "ExtensionConfig refit has no spec.clientConfig.caBundle; annotate it with runtime.cluster.x-k8s.io/inject-ca-from-secret: refit-system/refit-webhook-tls"
    )]
    NoCaBundle,
    /// The namespace is not opted in.
    #[error(
        "namespace {namespace} does not match the namespaceSelector of ExtensionConfig refit ({selector}); {remedy}"
    )]
    NotSelected {
        /// The namespace.
        namespace: String,
        /// The selector, as kubectl writes one.
        selector: String,
        /// What to do.
        remedy: String,
    },
    /// The selector is invalid: Cluster API drops the extension from its registry.
    #[error(
        "spec.namespaceSelector of ExtensionConfig refit is invalid ({error}): until it is corrected Cluster API calls no hook of it"
    )]
    InvalidSelector {
        /// What is wrong with it.
        error: String,
    },
    /// Two extensions for one hook: Cluster API calls none.
    #[error(
        "ExtensionConfigs refit and {other} both serve {hook} in namespace {namespace}: Cluster API takes one only and stops every rollout there; narrow the namespaceSelector of one of them"
    )]
    Shared {
        /// The other one.
        other: String,
        /// The hook.
        hook: String,
        /// The namespace.
        namespace: String,
    },
    /// Cluster API is too old.
    #[error(
        "{deployment} is Cluster API {version}; in-place updates begin with v1.12: upgrade Cluster API (clusterctl upgrade)"
    )]
    TooOld {
        /// The manager.
        deployment: String,
        /// Its version.
        version: KubernetesVersion,
    },
    /// A feature gate is off.
    #[error(
        "{deployment} runs without feature gate {gate}, so that it replaces machines without asking; set {gate}=true in its --feature-gates"
    )]
    GateOff {
        /// The manager.
        deployment: String,
        /// The gate.
        gate: &'static str,
    },
    /// It cannot be told.
    #[error("it cannot be told whether Cluster API asks Refit about {group}: {why}")]
    NotKnown {
        /// The group.
        group: GroupRef,
        /// What could not be read.
        why: String,
    },
}

impl Unreached {
    /// CamelCase reason, for programs.
    pub fn reason(&self) -> &'static str {
        self.into()
    }

    /// Whether Cluster API may then replace machines; otherwise nothing happens.
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
            // It does nothing, or knows that it should ask and cannot: it waits.
            Self::LoneSet { .. } | Self::Paused { .. } | Self::NoCaBundle | Self::Shared { .. } => {
                false
            }
        }
    }
}
