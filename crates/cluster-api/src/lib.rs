//! A model of Cluster API: its kinds and its own decisions, as pure functions.
//!
//! No client, no socket, no clock. `refit plan`, the controller and the sandbox's stand-in for
//! Cluster API call the same functions.
//!
//! | module | holds |
//! |---|---|
//! | [`kinds`] | the part of Cluster API's kinds that Refit reads |
//! | [`host_configuration`] | what a KubeadmConfig asks of its host |
//! | [`desired`] | the desired Machines, MachineSets and bootstrap and infrastructure objects |
//! | [`cluster_configuration`] | the ConfigMap that kubeadm upgrades a control plane by |
//! | [`names`] | names of new objects |
//! | [`crds`] | stand-in CRDs for clusters without Cluster API |
//! | [`kubeadm_config`] | the desired KubeadmConfig of a control plane, and which differences count
//! |
//! | [`rollout`] | which machine of a group is next |
//! | [`v1beta1`] | objects of v1beta1 in the form of v1beta2 |

#![expect(
    clippy::duplicated_attributes,
    reason = "several printer columns of one kind share their type"
)]
#![expect(
    unreachable_pub,
    reason = "kube's KubeSchema derive repeats each struct in a private scope"
)]

pub mod cluster_configuration;
mod crds;
pub mod desired;
pub mod host_configuration;
mod int_or_percent;
pub mod kinds;
pub mod kubeadm_config;
pub mod names;
pub mod rollout;
pub mod v1beta1;

pub use crds::crds;
pub use int_or_percent::{IntOrPercent, ParseIntOrPercentError};
