//! What a script sets: the releases that exist, and trouble. It is a ConfigMap of the cluster.

use std::collections::BTreeMap;

use refit_kinds::json::{name, pairs};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::registry;

/// Name of the ConfigMap.
pub(crate) const SETTINGS: &str = "lab-openshift";
/// Key of the releases, as JSON.
pub(crate) const RELEASES: &str = "releases";
/// Key of how many times faster than real ones the machines and operators are.
pub(crate) const PACE: &str = "pace";

/// A release of OpenShift.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// Its version.
    pub version: String,
    /// Its image, by digest.
    pub image: String,
    /// The version of its kubelet.
    pub kubelet: String,
    /// The channels that have it.
    pub channels: Vec<String>,
    /// The message of its known risk, if it has one: it is a conditional update then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk: Option<String>,
}

impl Release {
    /// A release in the channel `stable` of its minor version, with an image and a kubelet of its own.
    pub fn new(version: &str) -> Self {
        let mut parts = version.split('.').filter_map(|part| part.parse::<u64>().ok());
        let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let patch = parts.next().unwrap_or_default();
        Self {
            version: version.to_owned(),
            image: registry::image(version),
            kubelet: format!("v1.{}.{patch}", minor + 13),
            channels: vec![format!("stable-{major}.{minor}")],
            risk: None,
        }
    }

    /// Also in these channels.
    pub fn also_in(mut self, channels: &[&str]) -> Self {
        self.channels.extend(channels.iter().map(|channel| (*channel).to_owned()));
        self
    }

    /// With a known risk.
    pub fn with_risk(self, message: &str) -> Self {
        Self { risk: Some(message.to_owned()), ..self }
    }
}

/// Trouble that a script has set. The value of each is a message, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble<'a> {
    Degraded(&'a str),
    Unavailable(&'a str),
    NotUpgradeable,
    ControlPlaneStalled,
    UpdateFails,
    UpdatesRefused,
    GraphUnreachable,
    VersionWithdrawn(&'a str),
    MachinesFail,
    MachinesWait,
    NewNodesNotReady,
    NodeNotReady(&'a str),
    NodeDegraded(&'a str),
    NodePressure(&'a str),
    PodHangs { namespace: &'a str, name: &'a str },
}

impl Trouble<'_> {
    /// The key in the ConfigMap.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::Degraded(operator) => format!("degraded.{operator}"),
            Self::Unavailable(operator) => format!("unavailable.{operator}"),
            Self::NotUpgradeable => "not-upgradeable".to_owned(),
            Self::ControlPlaneStalled => "control-plane-stalled".to_owned(),
            Self::UpdateFails => "update-fails".to_owned(),
            Self::UpdatesRefused => "updates-refused".to_owned(),
            Self::GraphUnreachable => "graph-unreachable".to_owned(),
            Self::VersionWithdrawn(version) => format!("version-withdrawn.{version}"),
            Self::MachinesFail => "machines-fail".to_owned(),
            Self::MachinesWait => "machines-wait".to_owned(),
            Self::NewNodesNotReady => "new-nodes-not-ready".to_owned(),
            Self::NodeNotReady(node) => format!("node-not-ready.{node}"),
            Self::NodeDegraded(node) => format!("node-degraded.{node}"),
            Self::NodePressure(node) => format!("node-pressure.{node}"),
            Self::PodHangs { namespace, name } => format!("pod-hangs.{namespace}.{name}"),
        }
    }
}

/// The settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) releases: Vec<Release>,
    pub(crate) pace: i32,
    data: BTreeMap<String, String>,
}

impl Settings {
    pub(crate) fn read<'a>(mut config_maps: impl Iterator<Item = &'a Value>) -> Self {
        let found = config_maps.find(|one| name(one) == SETTINGS);
        let data = found.map(|found| pairs(found.get("data"))).unwrap_or_default();
        let releases = data.get(RELEASES).map(|text| serde_json::from_str(text));
        let releases = releases.transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "releases in ConfigMap {SETTINGS} are invalid");
            None
        });
        let pace = data.get(PACE).and_then(|text| text.parse().ok()).unwrap_or(1).max(1);
        Self { releases: releases.unwrap_or_default(), pace, data }
    }

    /// The message of a trouble, if it is set.
    pub(crate) fn message(&self, trouble: &Trouble<'_>) -> Option<&str> {
        self.data.get(&trouble.key()).map(String::as_str)
    }

    /// Whether a trouble is set.
    pub(crate) fn has(&self, trouble: &Trouble<'_>) -> bool {
        self.message(trouble).is_some()
    }
}
