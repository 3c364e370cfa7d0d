//! A host that does not return.

use refit_kinds::refit::Gate;

use super::{status::Standing, work::Work, work_order::WorkState};

/// Failure reason of an update whose host has not reported for too long.
pub const HOST_LOST: &str = "HostLost";

impl Work<'_> {
    /// The failure of an update whose host has not reported for [`super::Snapshot::host_lost_after`]
    /// and for the time that its current step may take: then remediation may do its work. Only time
    /// counts in which a report would have been seen.
    pub(super) fn host_lost(&self) -> Option<Standing> {
        // A refused read proves nothing.
        let limit = self.s.host_lost_after.filter(|_| self.s.refused.is_none())?;
        let has_done_its_part =
            self.workers.host.report().is_some_and(|report| report.state == WorkState::Succeeded);
        let others_work = has_done_its_part
            && (self.workers.has_busy_provider() || self.updaters(Gate::Disrupt).is_some());
        if !self.workers.has_agent() || others_work {
            return None;
        }
        let reported = self.workers.host.last_report_at();
        // An agent creates its HostPlan again. Before the host has begun, its agent may not be installed.
        if reported.is_none() && self.status.started_at.is_none() {
            return None;
        }
        // Of a report that arrived before the controller's clock was set back, it is not known when.
        let reported = reported.filter(|at| *at <= self.now + self.s.report_stale_after);
        let requested = self.s.update.metadata.creation_timestamp.as_ref().map(|time| time.0);
        // While an Updater works, the host may be off.
        let by_updaters = self.updaters_ended_at();
        let since = [reported, Some(self.seen.complete_since), requested, by_updaters];
        let silent = self.now.duration_since(since.into_iter().flatten().max()?);
        let of_step = self.workers.host.silence_of_step().unwrap_or_default();
        (silent >= limit.max(of_step)).then(|| {
            Standing::failed(
                HOST_LOST,
                format!(
                    "the agent on Node {} has sent no valid report for too long. If the host returns, \
                     its update continues; otherwise replace the Machine",
                    self.status.node_name
                ),
            )
        })
    }
}
