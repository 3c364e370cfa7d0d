//! When the certificates of a control plane machine expire, for Cluster API. It reads that once, and may replace a machine near
//! that time although its certificates were renewed (`docs/facts/control-plane.md#expiry-of-certificates`).

use std::collections::BTreeMap;

use jiff::Timestamp;
use refit_cluster_api::kinds::Machine;
use refit_kinds::{canonical::CERTIFICATES_EXPIRY, refit::Phase};

use super::{
    snapshot::{ManagementWrite, Write},
    status::Standing,
    work::Work,
};

impl Work<'_> {
    /// Notes on the Machine when the certificates of its host expire, if Cluster API knows an earlier end, or the Machine states
    /// another one. Where nothing is known, Cluster API reads it itself.
    pub(super) fn note_expiry(&self) -> Option<Standing> {
        let ends = self.workers.host.certificates_end()?;
        if !is_known_otherwise(self.s.own_machine()?, ends) {
            return None;
        }
        let changes = BTreeMap::from([(CERTIFICATES_EXPIRY.to_owned(), Some(ends.to_string()))]);
        let note = Write::Management(ManagementWrite::Guard(changes));
        let line = "noting on the Machine when its certificates expire";
        Some(Standing::new(Phase::Uncordoning, line).write(Some(note)))
    }
}

/// Whether Cluster API knows another end of a Machine's certificates: what the Machine states stays until it is changed, and what
/// Cluster API has read may only be too early.
fn is_known_otherwise(machine: &Machine, ends: Timestamp) -> bool {
    let annotations = machine.metadata.annotations.as_ref();
    if let Some(stated) = annotations.and_then(|all| all.get(CERTIFICATES_EXPIRY)) {
        return stated.parse().is_ok_and(|stated: Timestamp| stated != ends);
    }
    let shown = machine.status.as_ref().and_then(|status| status.certificates_expiry_date.as_ref());
    shown.and_then(|shown| shown.parse().ok()).is_some_and(|shown: Timestamp| shown < ends)
}
