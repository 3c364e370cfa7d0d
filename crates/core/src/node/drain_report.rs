//! Why a node is not drained yet, in addition to budgets.

use refit_kinds::refit::NodeName;
use strum::{EnumDiscriminants, EnumString, IntoStaticStr, VariantNames};

/// Why a pod or a volume is still there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, EnumDiscriminants)]
#[strum_discriminants(
    name(DrainReason),
    doc = "Why a pod or a volume remains on the node.",
    derive(EnumString, VariantNames)
)]
pub enum DrainRefusal {
    /// The API server does not support evictions.
    EvictionUnavailable {
        /// `namespace/name` of the pod to evict.
        pod: String,
    },
    /// No controller would recreate the pod, and the policy is to wait.
    PodUnreplicated {
        /// `namespace/name` of the pod.
        pod: String,
    },
    /// The pod has an `emptyDir`, and the policy is to wait.
    PodLocalStorage {
        /// `namespace/name` of the pod.
        pod: String,
    },
    /// The drain waits for the pod to complete by itself.
    PodWaitCompleted {
        /// `namespace/name` of the pod.
        pod: String,
        /// What requires the wait: a MachineDrainRule, or the pod's label.
        rule: String,
    },
    /// A MachineDrainRule or the pod's label requests an unknown behavior.
    DrainRuleNotUnderstood {
        /// `namespace/name` of the pod.
        pod: String,
        /// The rule or label with its value.
        rule: String,
    },
    /// The pod has been terminating for longer than usual.
    PodTerminating {
        /// `namespace/name` of the pod.
        pod: String,
    },
    /// The pod was created on the node after its drain had begun.
    PodCameBack {
        /// `namespace/name` of the pod.
        pod: String,
    },
    /// A volume is still attached to the node.
    VolumeAttached {
        /// Name of the VolumeAttachment.
        attachment: String,
        /// Name of the PersistentVolume; empty for an inline one.
        volume: String,
        /// The node.
        node: NodeName,
    },
}

impl DrainRefusal {
    /// CamelCase reason.
    pub fn reason(&self) -> &'static str {
        self.into()
    }

    /// The object that blocks.
    pub fn object(&self) -> &str {
        if let Self::VolumeAttached { attachment, .. } = self { attachment } else { self.pod() }
    }

    /// The pod that cannot leave; empty for a volume.
    pub fn pod(&self) -> &str {
        match self {
            Self::EvictionUnavailable { pod }
            | Self::PodUnreplicated { pod }
            | Self::PodLocalStorage { pod }
            | Self::PodWaitCompleted { pod, .. }
            | Self::DrainRuleNotUnderstood { pod, .. }
            | Self::PodTerminating { pod }
            | Self::PodCameBack { pod } => pod,
            Self::VolumeAttached { .. } => "",
        }
    }

    /// What blocks and what ends the wait.
    pub fn sentence(&self) -> String {
        match self {
            Self::EvictionUnavailable { pod } => format!(
                "waiting to evict pod {pod}: the API server has no eviction subresource; delete the \
                 pod, or let Refit delete pods with refit.dev/drain-delete-after"
            ),
            Self::PodUnreplicated { pod } => format!(
                "waiting until pod {pod} is gone: no controller would recreate it; delete it, or set \
                 refit.dev/drain-unreplicated to Evict or Leave"
            ),
            Self::PodLocalStorage { pod } => format!(
                "waiting until pod {pod} is gone: the data in its emptyDir would be lost; delete it, or \
                 set refit.dev/drain-local-storage to Evict or Leave"
            ),
            Self::PodWaitCompleted { pod, rule } => {
                format!("waiting until pod {pod} has completed, as {rule} requires")
            }
            Self::DrainRuleNotUnderstood { pod, rule } => format!(
                "waiting until pod {pod} is gone: {rule} is invalid, so the pod is not evicted"
            ),
            Self::PodTerminating { pod } => format!(
                "waiting until pod {pod} has terminated: its deletion takes longer than usual"
            ),
            Self::PodCameBack { pod } => format!(
                "pod {pod} was scheduled to the node during its drain and is evicted again; make \
                 its controller respect the cordon, or label the pod cluster.x-k8s.io/drain: skip"
            ),
            Self::VolumeAttached { attachment, volume, node } => {
                let what = if volume.is_empty() {
                    "a volume".to_owned()
                } else {
                    format!("volume {volume}")
                };
                format!(
                    "waiting until {what} is detached from node {node}: VolumeAttachment \
                     {attachment} still exists; check its attacher, or set \
                     nodeVolumeDetachTimeoutSeconds"
                )
            }
        }
    }
}
