//! Managed upgrades of OpenShift clusters (seed 5), as pure functions: no client, no socket, no clock.
//!
//! The wire formats are those of OpenShift's managed-upgrade-operator, so its objects, configuration, metrics and alerts
//! work unchanged (`docs/facts/openshift-upgrades.md`). Where the original has a fault, [`Compat`] chooses between a repaired
//! behaviour and the original one.
//!
//! | module | holds |
//! |---|---|
//! | [`upgrade_config`] | UpgradeConfig: the request and its history |
//! | [`kinds`] | the part of OpenShift's kinds that is read |
//! | [`decide`] | what is next for an UpgradeConfig |
//! | [`steps`] | the steps of an upgrade |
//! | [`history`] | the entry of an upgrade |
//! | [`dependencies`] | whether the services that an upgrade depends on answer |
//! | [`health`] | whether a cluster is fit for an upgrade |
//! | [`scaler`] | extra nodes for the Pods of drained ones |
//! | [`config`] | the operator's configuration |
//! | [`cluster_version`] | how an upgrade is requested of the cluster-version operator, and how far it is |
//! | [`validation`] | whether a request can be carried out |
//! | [`pool_glob`] | patterns of machine pools |
//! | [`provider`] | which upgrade is wanted: policies of OCM, or the object in the cluster |
//! | [`retry`] | whether a request to OCM is repeated |
//! | [`manager`] | when the provider is asked, and what becomes of the UpgradeConfig |
//! | [`maintenance`] | the silences during an upgrade |
//! | [`notify`] | the notifications of an upgrade |
//! | [`nodes`] | NodeKeeper: which pods of a node are removed by force, and when its drain takes too long |
//! | [`pools`] | the MachineConfigPools of the workers: how far they are, when they began and were done |
//! | [`url`] | URLs without their passwords |
//! | [`metrics`] | the metrics by name, when they are reset, and what is read from an UpgradeConfig at a scrape |

#![expect(
    clippy::duplicated_attributes,
    reason = "several printer columns of one kind share their type"
)]

pub mod cluster_version;
pub mod config;
pub mod decide;
pub mod dependencies;
pub mod health;
pub mod history;
pub mod kinds;
pub mod maintenance;
pub mod manager;
pub mod metrics;
pub mod nodes;
pub mod notify;
pub mod pool_glob;
pub mod pools;
pub mod provider;
pub mod retry;
pub mod scaler;
pub mod steps;
pub mod upgrade_config;
pub mod url;
pub mod validation;

/// Whether faults of the original are repaired.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    strum::Display,
    strum::EnumString,
    strum::VariantArray,
)]
#[strum(serialize_all = "lowercase")]
pub enum Compat {
    /// They are: each is a row in `docs/facts/openshift-upgrades.md#deviations`.
    #[default]
    Repaired,
    /// The original behaviour, fault for fault.
    Strict,
}
