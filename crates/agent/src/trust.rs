//! Which plans an agent trusts on a host that requires signed plans.
//!
//! The agent ignores a plan that it does not trust: it continues with the plan in its journal, and
//! reports why the new plan waits.

use std::{io, sync::Arc};

use jiff::Timestamp;
use refit_kinds::refit::{HostPlan, HostPlanSpec, HostPlanStatus, PlanId};
use refit_runtime::plan_signing::{Distrust, PlanKeys};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{
    disk::Disk,
    policy::PolicyFile,
    report::{self, Trouble},
    state::JournalState,
};

/// File that records the last trusted plan.
const MARK: &str = "believed-plan.json";

/// Why a plan is ignored.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The plan is not trusted.
    #[error("{0}; this host accepts signed plans only (--plan-keys)")]
    Distrust(#[from] Distrust),
    /// The record of the last trusted plan cannot be read or written.
    #[error("cannot use {MARK} in the state directory: {0}")]
    Disk(#[from] io::Error),
}

/// The last trusted plan. No older plan may replace it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    plan_id: PlanId,
    issued_at: Timestamp,
}

/// Trusts plans that are signed by a known key and are no older than the last trusted plan.
#[derive(Clone)]
pub struct PlanTrust {
    keys: PlanKeys,
    disk: Arc<dyn Disk>,
}

impl std::fmt::Debug for PlanTrust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanTrust").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl PlanTrust {
    /// Trusts these keys, and records the last trusted plan on `disk`.
    pub fn new(keys: PlanKeys, disk: Arc<dyn Disk>) -> Self {
        Self { keys, disk }
    }

    /// Checks that a plan may be accepted or continued. A plan that is newer than the recorded one
    /// is recorded before anything is done for it.
    pub async fn believe(&self, plan: &HostPlan) -> Result<(), TrustError> {
        let claims = self.keys.verify(plan)?;
        let mark = Mark { plan_id: plan.spec.plan_id.clone(), issued_at: claims.issued_at };
        let known = match self.disk.read(MARK).await? {
            // Refit replaces this file atomically: a file that cannot be parsed was not written by
            // Refit.
            Some(bytes) => Some(serde_json::from_slice::<Mark>(&bytes).map_err(io::Error::from)?),
            None => None,
        };
        match known {
            Some(known) if known == mark => Ok(()),
            Some(known) if mark.issued_at < known.issued_at => {
                Err(Distrust::Older { issued_at: mark.issued_at, accepted: known.issued_at }.into())
            }
            _ => {
                let bytes = serde_json::to_vec(&mark).map_err(io::Error::from)?;
                let written = self.disk.write_atomic(MARK, &bytes, "trusted plan recorded");
                Ok(written.await?)
            }
        }
    }
}

/// A plan that is not begun: it is not trusted, or not this host's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refused {
    spec: HostPlanSpec,
    trouble: Trouble,
}

impl Refused {
    pub(crate) fn new(spec: HostPlanSpec, error: &TrustError) -> Self {
        let trouble = Trouble {
            reason: "PlanNotTrusted",
            message: error.to_string(),
            // The controller may still sign it, or the right plan may be restored.
            needs_person: false,
        };
        Self { spec, trouble }
    }

    /// The refusal of a plan that an earlier host of this name has started.
    pub(crate) fn of_earlier_host(spec: HostPlanSpec) -> Self {
        let trouble = Trouble {
            reason: "PlanOfEarlierHost",
            message: format!(
                "the plan of NodeUpdate {} was started on an earlier host of this name, or before \
                 this host's journal was removed; it is not carried out here: if the machine still \
                 has to be updated, request it again with refit retry",
                spec.node_update
            ),
            needs_person: true,
        };
        Self { spec, trouble }
    }

    /// Id of the plan.
    pub(crate) fn plan(&self) -> &PlanId {
        &self.spec.plan_id
    }

    /// Why it is not begun.
    pub(crate) fn message(&self) -> &str {
        &self.trouble.message
    }

    /// Builds the report of an agent that waits for another plan.
    pub(crate) fn report(
        &self,
        state: &JournalState,
        facts: &refit_kinds::refit::HostFacts,
    ) -> HostPlanStatus {
        let known = state.plan.as_ref();
        if state.live().is_some() {
            // The waiting or running step reports that no new plan is accepted.
            return report::report(state, Some(&self.spec), facts, Some(&self.trouble));
        }
        if known.is_some_and(|plan| plan.id == self.spec.plan_id) {
            return report::report(state, None, facts, None);
        }
        let empty = JournalState::default();
        report::report(&empty, Some(&self.spec), facts, Some(&self.trouble))
    }
}

/// Optional settings of an agent.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// Which plans are trusted; if `None`, all of them.
    pub trust: Option<PlanTrust>,
    /// The host's own policy; if `None`, all steps are allowed.
    pub policy: Option<PolicyFile>,
    /// Receives whether no step is in progress.
    pub between_steps: Option<watch::Sender<bool>>,
    /// Receives `true` once the API has accepted a report.
    pub reported: Option<watch::Sender<bool>>,
}

impl Extras {
    pub(crate) fn notify_between_steps(&self, state: &JournalState) {
        let between = state.live().is_none_or(|plan| plan.open().is_none());
        send_if_changed(self.between_steps.as_ref(), between);
    }

    /// Lets another version replace this one, which cannot continue what the journal records.
    pub(crate) fn notify_waits_for_newer(&self) {
        send_if_changed(self.between_steps.as_ref(), true);
    }

    pub(crate) fn notify_reported(&self) {
        send_if_changed(self.reported.as_ref(), true);
    }
}

fn send_if_changed(sender: Option<&watch::Sender<bool>>, value: bool) {
    if let Some(sender) = sender {
        sender.send_if_modified(|known| std::mem::replace(known, value) != value);
    }
}

#[cfg(test)]
#[path = "trust_tests.rs"]
mod tests;
