//! Kinds, wire types, annotations and conditions that Refit and Cluster API share.
//!
//! No decision and no I/O lives here: the crate says what the objects look like, parses them and
//! names what they carry.
//!
//! | module | holds |
//! |---|---|
//! | [`capi`] | the part of Cluster API's kinds that we read, with CRDs of our own for the sandbox |
//! | [`hooks`] | the Runtime SDK's messages (`spec/capi.md 1`) |
//! | [`refit`] | our kinds: [`refit::NodeUpdate`], [`refit::UpdateGroup`], [`refit::HostPlan`] |
//! | [`keys`] | annotations, labels, finalizers and field managers |
//! | [`conditions`] | condition types, reasons and how one is set |

#![expect(
    clippy::duplicated_attributes,
    reason = "several printer columns of one kind share their type"
)]
#![expect(
    unreachable_pub,
    reason = "kube's KubeSchema derive repeats each struct in a private scope"
)]

pub mod capi;
pub mod conditions;
pub mod crds;
pub mod hooks;
pub mod keys;
pub mod refit;
