//! The drain strategies: when each is due, and which pods it applies to.

use jiff::SignedDuration;
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};
use refit_core::node::PodRef;

use super::drain::{DrainSeen, DrainSettings};
use crate::Compat;

/// A way to remove pods that do not leave a node, in the order in which they are taken.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "SCREAMING-KEBAB-CASE")]
pub enum Strategy {
    /// Deletes pods without a PodDisruptionBudget.
    Delete,
    /// Clears their finalizers.
    DefaultFinalizer,
    /// Deletes those again that have no finalizers and are still there.
    PodStuckTerminating,
    /// Deletes pods with a PodDisruptionBudget.
    PdbDelete,
    /// Clears their finalizers.
    PdbFinalizer,
}

/// A pod that strategies may apply to.
pub(super) struct Candidate {
    pub(super) pod: PodRef,
    /// Whether a PodDisruptionBudget covers it.
    is_covered: bool,
    is_terminating: bool,
    has_finalizers: bool,
}

impl Candidate {
    /// The pods of a node, except those of DaemonSets and in ignored namespaces.
    pub(super) fn all(seen: &DrainSeen<'_>, settings: &DrainSettings<'_>) -> Vec<Self> {
        let node = seen.node.metadata.name.as_deref();
        let is_ignored = |pod: &Pod| {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            settings.config.ignored_namespaces.iter().any(|pattern| pattern.is_match(namespace))
        };
        let is_candidate = |pod: &&Pod| {
            let on = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let is_daemon = pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet");
            on.is_some() && on == node && !is_daemon && !is_ignored(pod)
        };
        let view = |pod: &Pod| Self {
            pod: PodRef {
                namespace: pod.namespace().unwrap_or_default(),
                name: pod.name_any(),
                uid: pod.uid().unwrap_or_default(),
            },
            is_covered: seen.budgets.iter().any(|budget| covers(budget, pod, settings.compat)),
            is_terminating: pod.metadata.deletion_timestamp.is_some(),
            has_finalizers: !pod.finalizers().is_empty(),
        };
        seen.pods.iter().filter(is_candidate).map(view).collect()
    }
}

impl Strategy {
    /// How long after the cordon it is due.
    pub(super) fn wait(self, settings: &DrainSettings<'_>) -> SignedDuration {
        match self {
            Self::Delete | Self::DefaultFinalizer | Self::PodStuckTerminating => {
                settings.config.timeout
            }
            Self::PdbDelete | Self::PdbFinalizer => {
                SignedDuration::from_mins(settings.pdb_force_drain_minutes.into())
                    + settings.config.expected_time
            }
        }
    }

    /// Whether a pod is left for it, now or when it is due.
    pub(super) fn concerns(self, pod: &Candidate) -> bool {
        match self {
            Self::Delete => !pod.is_covered,
            Self::DefaultFinalizer => !pod.is_covered && pod.has_finalizers,
            Self::PodStuckTerminating => {
                !pod.is_covered && pod.is_terminating && !pod.has_finalizers
            }
            Self::PdbDelete => pod.is_covered,
            Self::PdbFinalizer => pod.is_covered && pod.has_finalizers,
        }
    }

    /// Whether it is to change a pod now. A pod that is being deleted is not deleted again, except by
    /// [`Strategy::PodStuckTerminating`].
    pub(super) fn changes(self, pod: &Candidate) -> bool {
        let may = match self {
            Self::Delete | Self::PdbDelete => !pod.is_terminating,
            Self::DefaultFinalizer | Self::PodStuckTerminating | Self::PdbFinalizer => true,
        };
        may && self.concerns(pod)
    }
}

/// Whether a PodDisruptionBudget covers a pod. Without a selector it covers none.
///
/// In [`Compat::Strict`] one common label is enough, in any namespace, and `matchExpressions` are ignored.
fn covers(budget: &PodDisruptionBudget, pod: &Pod, compat: Compat) -> bool {
    let Some(selector) = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else {
        return false;
    };
    let labels = pod.labels();
    match compat {
        Compat::Repaired => {
            budget.metadata.namespace == pod.metadata.namespace
                && Selector::try_from(selector.clone()).is_ok_and(|all| all.matches(labels))
        }
        Compat::Strict => {
            let mut wanted = selector.match_labels.iter().flatten();
            wanted.any(|(key, value)| labels.get(key) == Some(value))
        }
    }
}
