//! Kinds, wire types, annotations and conditions of Refit, and the messages between it and Cluster API.
//!
//! No decision and no I/O lives here: the crate says what the objects look like, parses them and
//! names what they carry.
//!
//! | module | holds |
//! |---|---|
//! | [`hooks`] | the Runtime SDK's messages (`spec/capi.md 1`) |
//! | [`refit`] | our kinds: [`refit::NodeUpdate`], [`refit::UpdateGroup`], [`refit::HostPlan`] |
//! | [`json`] | reading untyped objects |
//! | [`keys`] | annotations, labels, finalizers and field managers |
//! | [`version`] | Kubernetes versions: parsing, order, skew and hops |
//! | [`conditions`] | condition types, reasons and how one is set |

#![expect(
    clippy::duplicated_attributes,
    reason = "several printer columns of one kind share their type"
)]
#![expect(
    unreachable_pub,
    reason = "kube's KubeSchema derive repeats each struct in a private scope"
)]

pub mod conditions;
pub mod crds;
pub mod hooks;
pub mod json;
pub mod keys;
pub mod refit;
pub mod version;
