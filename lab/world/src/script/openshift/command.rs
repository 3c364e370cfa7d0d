//! The commands of a script.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use refit_managed::Compat;
use refit_openshift::config::Platform;

use crate::script::{
    command::{Condition, Reference, Source},
    field::{Field, Setting},
};

#[derive(Clone, Debug)]
pub(crate) enum Command {
    Load(Platform, Compat),
    /// Lets time pass.
    Pass(SignedDuration),
    /// Waits until an object meets a condition, with a time limit.
    Wait(Reference, Condition, SignedDuration),
    /// Runs an action later; the text is its source.
    At(SignedDuration, String, Action),
    /// Runs an action that takes no time.
    Now(Action),
}

/// An action that takes no time.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Creates objects or merges them into existing ones.
    Apply(Source),
    Change(Reference, Vec<Setting>),
    Delete(Reference),
    /// Schedules an upgrade to a version in OCM, in place of the one that it has.
    Schedule(String, SignedDuration),
    /// Deletes the upgrade policy in OCM.
    Cancel,
    /// Requests an upgrade to a version with an UpgradeConfig.
    Request(String, SignedDuration),
    /// Sets a field of the program's configuration.
    Configure(Setting),
    /// Injects a failure, for some time or until it is mended.
    Break(Trouble, Option<SignedDuration>),
    Mend(Trouble),
    /// Kills the program; with a duration, it restarts only after that time.
    Kill(Option<SignedDuration>),
    Show(Show),
    Help,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// An alert fires, with these labels.
    Alert(String, BTreeMap<String, String>),
    /// An operator is degraded.
    Operator(String),
    /// The ClusterVersion is not upgradeable to another minor version.
    Upgradeable,
    /// OCM answers with an error.
    Ocm,
    /// OCM refuses states of policies.
    OcmStates,
    /// The server that upgrades may depend on answers with an error.
    Dependency,
    /// The cloud has no capacity for Machines.
    Capacity,
    /// The version graph answers with an error.
    Graph,
    /// The version graph does not offer a version.
    Version(String),
    /// The registry of release images answers with an error.
    Registry,
    /// The cluster-version operator accepts no release.
    Release,
    /// The update of the control plane fails.
    Update,
    /// The update of the control plane does not proceed.
    ControlPlane,
    /// The machine-config daemon of a node fails.
    Node(String),
    /// Prometheus answers with an error.
    Prometheus,
    /// Alertmanager answers with an error.
    Alertmanager,
    /// Alertmanager refuses to create and end silences.
    AlertmanagerSilences,
}

/// The subject of `show`.
#[derive(Clone, Debug)]
pub(crate) enum Show {
    /// The entries and conditions of the UpgradeConfig.
    Upgrade,
    /// The upgrade policies in OCM.
    Policies,
    /// The entries of OCM's service log.
    Logs,
    /// The silences in Alertmanager.
    Silences,
    /// The metrics of the program whose name begins with a text.
    Metrics(String),
    /// What has happened since the last time.
    History,
    /// Fields of all objects of a kind.
    Kind(String, Vec<Field>),
    /// Fields of an object.
    Object(Reference, Vec<Field>),
}
