//! Which plans an agent believes, where its host asks for signed ones.
//!
//! A plan that is not believed is as if it were not there: the agent goes on with what its journal
//! knows, and its report says why the plan waits.

use std::{io, sync::Arc};

use jiff::Timestamp;
use refit_kinds::refit::{HostPlan, HostPlanSpec, HostPlanStatus, PlanId};
use refit_runtime::plan_signing::{Distrust, PlanKeys};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{
    disk::Disk,
    report::{self, Trouble},
    state::JournalState,
};

/// File that holds which plan was believed last.
const MARK: &str = "believed-plan.json";

/// Why a plan is left alone.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// It is not believed.
    #[error("{0}; this host takes up signed plans only (--plan-keys)")]
    Distrust(#[from] Distrust),
    /// Which plan was believed last cannot be read or written.
    #[error("{MARK} in the state folder cannot be used: {0}")]
    Disk(#[from] io::Error),
}

/// The plan that was believed last: no older one takes its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    plan_id: PlanId,
    issued_at: Timestamp,
}

/// Believes plans that are signed by a known key and are no older than the last one.
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
    /// Believes these keys; what was believed last is remembered on the disk.
    pub fn new(keys: PlanKeys, disk: Arc<dyn Disk>) -> Self {
        Self { keys, disk }
    }

    /// Whether a plan may be taken up or carried on. One that is newer than all before is
    /// remembered, before anything is done for it.
    pub async fn believe(&self, plan: &HostPlan) -> Result<(), TrustError> {
        let claims = self.keys.verify(plan)?;
        let mark = Mark { plan_id: plan.spec.plan_id.clone(), issued_at: claims.issued_at };
        let known = match self.disk.read(MARK).await? {
            // A file of ours is replaced whole: what cannot be read was not written by us.
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
                let written = self.disk.write_atomic(MARK, &bytes, "a plan is believed");
                Ok(written.await?)
            }
        }
    }
}

/// A plan that waits because it is not believed.
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
            // The controller may sign it yet, or the right plan come back.
            needs_person: false,
        };
        Self { spec, trouble }
    }

    /// The report of an agent that waits for a plan that it believes.
    pub(crate) fn report(
        &self,
        state: &JournalState,
        facts: &refit_kinds::refit::HostFacts,
    ) -> HostPlanStatus {
        let known = state.plan.as_ref();
        if state.live().is_some() {
            // The step that waits or runs says that nothing new is heard of.
            return report::report(state, Some(&self.spec), facts, Some(&self.trouble));
        }
        if known.is_some_and(|plan| plan.id == self.spec.plan_id) {
            return report::report(state, None, facts, None);
        }
        let none = JournalState::default();
        report::report(&none, Some(&self.spec), facts, Some(&self.trouble))
    }
}

/// What an agent may be given beside what it needs.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// Which plans are believed; without it all are.
    pub trust: Option<PlanTrust>,
    /// Told whether no step is under way.
    pub between_steps: Option<watch::Sender<bool>>,
    /// Told `true` once the API has taken a report.
    pub reported: Option<watch::Sender<bool>>,
}

impl Extras {
    pub(crate) fn tell_between_steps(&self, state: &JournalState) {
        let between = state.live().is_none_or(|plan| plan.open().is_none());
        tell(self.between_steps.as_ref(), between);
    }

    pub(crate) fn tell_reported(&self) {
        tell(self.reported.as_ref(), true);
    }
}

fn tell(sender: Option<&watch::Sender<bool>>, value: bool) {
    if let Some(sender) = sender {
        sender.send_if_modified(|known| std::mem::replace(known, value) != value);
    }
}

#[cfg(test)]
#[path = "trust_tests.rs"]
mod tests;
