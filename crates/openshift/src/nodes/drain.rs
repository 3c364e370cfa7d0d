//! A look at the drain of a cordoned node.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use refit_core::node::PodRef;
use strum::VariantArray as _;
use thiserror::Error;

use super::{
    cordon,
    strategy::{Candidate, Strategy},
};
use crate::{Compat, config::DrainConfig};

/// How nodes are drained.
#[derive(Clone, Copy, Debug)]
pub struct DrainSettings<'a> {
    /// The operator's configuration.
    pub config: &'a DrainConfig,
    /// `spec.PDBForceDrainTimeout` of the UpgradeConfig: how long a PodDisruptionBudget may block a drain, in minutes.
    pub pdb_force_drain_minutes: i32,
    /// Whether faults of the original are repaired.
    pub compat: Compat,
}

/// What is known of a node. Pods and budgets are not read if the strategies are disabled.
#[derive(Clone, Copy, Debug)]
pub struct DrainSeen<'a> {
    /// The node.
    pub node: &'a Node,
    /// Pods: those of other nodes are passed over.
    pub pods: &'a [Pod],
    /// The PodDisruptionBudgets of all namespaces.
    pub budgets: &'a [PodDisruptionBudget],
    /// Whether [`Notice::NodeDrainDelayed`](crate::notify::Notice::NodeDrainDelayed) of the requested version was sent before ([`crate::notify::sent`]).
    pub is_delay_sent: bool,
    /// Whether the last look at the node found that its drain takes too long.
    pub had_failed: bool,
}

/// Something to be done for a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainAction {
    /// Delete pods with a grace period of 0 seconds. All are tried, also after a failure. A pod that is gone counts as done.
    Delete {
        /// Why.
        strategy: Strategy,
        /// Which, by uid.
        pods: Vec<PodRef>,
    },
    /// Clear the finalizers of pods, with a merge patch. All are tried, also after a failure. A pod that is gone counts as done.
    ClearFinalizers {
        /// Why.
        strategy: Strategy,
        /// Which, by uid.
        pods: Vec<PodRef>,
    },
    /// Send [`Notice::NodeDrainDelayed`](crate::notify::Notice::NodeDrainDelayed). In [`Compat::Repaired`] a failure does not end the look, so that a receiver that is
    /// out of reach does not stop the drain.
    NotifyDelayed,
}

/// What a look at a drain has decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainLook {
    /// What is to be done, in order. An action that fails ends the look: those after it and the metric wait for the next one.
    pub actions: Vec<DrainAction>,
    /// Whether the drain takes too long.
    pub has_failed: bool,
}

/// It is not known when the drain of a cordoned node began, so no strategy can be due.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "taint node.kubernetes.io/unschedulable of cordoned Node {node} has no timeAdded, so the start of its drain is unknown; \
     remove the taint, so that Kubernetes sets it again"
)]
pub struct UnknownDrainStart {
    /// Its name.
    pub node: String,
}

/// Looks at the drain of a node. A node that is not cordoned needs nothing.
///
/// # Errors
/// [`UnknownDrainStart`], unless the strategies are disabled: then the drain only counts as not failed.
pub fn look(
    seen: &DrainSeen<'_>,
    settings: &DrainSettings<'_>,
    now: Timestamp,
) -> Result<DrainLook, UnknownDrainStart> {
    let Some(taint) = cordon(seen.node) else {
        return Ok(DrainLook::default());
    };
    let elapsed = taint.time_added.as_ref().map(|since| now.duration_since(since.0));
    match (elapsed, settings.config.disabled) {
        (Some(elapsed), true) => {
            let has_failed = elapsed > settings.config.timeout;
            Ok(DrainLook { actions: Vec::new(), has_failed })
        }
        (Some(elapsed), false) => Ok(work(seen, settings, elapsed)),
        (None, true) => Ok(DrainLook::default()),
        (None, false) => {
            Err(UnknownDrainStart { node: seen.node.metadata.name.clone().unwrap_or_default() })
        }
    }
}

fn work(seen: &DrainSeen<'_>, settings: &DrainSettings<'_>, elapsed: SignedDuration) -> DrainLook {
    let pods = Candidate::all(seen, settings);
    let (due, pending): (Vec<Strategy>, Vec<Strategy>) =
        Strategy::VARIANTS.iter().partition(|strategy| elapsed > strategy.wait(settings));
    let mut actions = Vec::new();
    for strategy in &due {
        let changed = pods.iter().filter(|pod| strategy.changes(pod));
        let changed: Vec<PodRef> = changed.map(|pod| pod.pod.clone()).collect();
        if !changed.is_empty() {
            actions.extend(strategy.actions(changed, seen.is_delay_sent, settings.compat));
        }
    }
    let is_work_left = pending.iter().any(|strategy| pods.iter().any(|pod| strategy.concerns(pod)));
    let mut waits = due.iter().map(|strategy| strategy.wait(settings));
    let last = match settings.compat {
        Compat::Repaired => waits.max(),
        // The original sorts them wrongly, which leaves the last one in place.
        Compat::Strict => waits.next_back(),
    };
    let limit = last.map_or(settings.config.timeout, |last| {
        settings.config.timeout.max(last + settings.config.expected_time)
    });
    let has_failed = !is_work_left && elapsed > limit;
    let still_fails = match settings.compat {
        // A strategy that becomes due later only extends the time of drains that have not failed.
        Compat::Repaired => seen.had_failed && elapsed > settings.config.timeout,
        Compat::Strict => false,
    };
    DrainLook { actions, has_failed: has_failed || still_fails }
}

impl Strategy {
    /// What it does with pods.
    ///
    /// [`Compat::Strict`] notifies after the deletion: if the process ends in between, the next look finds no pod to delete, and
    /// the notice is lost. [`Compat::Repaired`] notifies first.
    fn actions(self, pods: Vec<PodRef>, is_delay_sent: bool, compat: Compat) -> Vec<DrainAction> {
        match self {
            Self::Delete | Self::PodStuckTerminating => {
                vec![DrainAction::Delete { strategy: self, pods }]
            }
            Self::DefaultFinalizer | Self::PdbFinalizer => {
                vec![DrainAction::ClearFinalizers { strategy: self, pods }]
            }
            Self::PdbDelete if is_delay_sent => vec![DrainAction::Delete { strategy: self, pods }],
            Self::PdbDelete => {
                let delete = DrainAction::Delete { strategy: self, pods };
                match compat {
                    Compat::Repaired => vec![DrainAction::NotifyDelayed, delete],
                    Compat::Strict => vec![delete, DrainAction::NotifyDelayed],
                }
            }
        }
    }
}
