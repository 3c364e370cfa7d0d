//! The versions that a Cluster takes on its way.

use refit_kinds::{refit::UpgradeRecord, version::KubernetesVersion};

use super::{Known, was_commenced};
use crate::managed::graph::NotTaken;

impl Known {
    /// The versions on the way: those of the task, or of the record once that was commenced; before, those that the version
    /// graph leads over.
    pub(super) fn hops(&self) -> Result<Vec<KubernetesVersion>, NotTaken> {
        let of_spec = || self.upgrade.spec.hops.clone().unwrap_or_default();
        if let Some(task) = self.task() {
            return Ok(task.spec.hops.clone().unwrap_or_default());
        }
        if let Some(record) = self.recorded().filter(|record| was_commenced(record)) {
            return Ok(if record.hops.is_empty() { of_spec() } else { record.hops.clone() });
        }
        match &self.control_plane {
            Some(plane) if !self.has_version() => {
                self.graph.hops(&self.upgrade.spec, (plane, &self.workers), self.version())
            }
            Some(_) | None => Ok(of_spec()),
        }
    }

    /// Whether the version graph decides what is next.
    pub fn asks_for_graph(&self) -> bool {
        let is_commenced = || self.recorded().is_some_and(was_commenced);
        self.task().is_none() && !self.has_version() && !is_commenced()
    }

    /// Notes the versions on the way, unless they are those of the request.
    pub(super) fn note_hops(&self, record: &mut UpgradeRecord) {
        if !record.phase.has_ended() {
            let hops = self.hops().unwrap_or_default();
            let of_spec = self.upgrade.spec.hops.as_deref().unwrap_or_default();
            record.hops = if hops == of_spec { Vec::new() } else { hops };
        }
    }
}
