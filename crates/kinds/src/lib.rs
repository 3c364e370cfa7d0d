//! Refit's kinds, wire types, annotations and conditions, and its messages with Cluster API.
//!
//! The crate makes no decisions and does no I/O: it defines the objects, parses them and names
//! their parts.
//!
//! | module | holds |
//! |---|---|
//! | [`canonical`] | annotations that upgrade machines in place, and the messages of k8sd |
//! | [`external_upgrade`] | the messages of ExternalUpgrade |
//! | [`hooks`] | the Runtime SDK's messages (`docs/facts/hooks.md`) |
//! | [`refit`] | the kinds [`refit::NodeUpdate`], [`refit::UpdateGroup`], [`refit::HostPlan`] |
//! | [`json`] | reading untyped objects |
//! | [`keys`] | annotations, labels, finalizers and field managers |
//! | [`version`] | Kubernetes versions: parsing, order, skew and hops |
//! | [`conditions`] | condition types and reasons, and setting a condition |

#![expect(
    clippy::duplicated_attributes,
    reason = "several printer columns of one kind share their type"
)]
#![expect(
    unreachable_pub,
    reason = "kube's KubeSchema derive repeats each struct in a private scope"
)]

pub mod canonical;
mod clip;
pub mod conditions;
pub mod crds;
pub mod external_upgrade;
pub mod hooks;
pub mod json;
pub mod keys;
pub mod refit;
pub mod version;

pub use clip::clip;
