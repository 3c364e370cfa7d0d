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
    /// Notes on the Machine that the certificates of its host expire later than Cluster API knows. Where nothing is known, Cluster
    /// API reads it itself.
    pub(super) fn note_expiry(&self) -> Option<Standing> {
        let ends = self.workers.host.certificates_end()?;
        known_end(self.s.own_machine()?).filter(|known| *known < ends)?;
        let changes = BTreeMap::from([(CERTIFICATES_EXPIRY.to_owned(), Some(ends.to_string()))]);
        let note = Write::Management(ManagementWrite::Guard(changes));
        let line = "noting on the Machine when its certificates expire";
        Some(Standing::new(Phase::Uncordoning, line).write(Some(note)))
    }
}

/// When the certificates of a Machine expire, as far as Cluster API knows.
fn known_end(machine: &Machine) -> Option<Timestamp> {
    let annotations = machine.metadata.annotations.as_ref();
    let own = annotations.and_then(|all| all.get(CERTIFICATES_EXPIRY));
    let shown = || machine.status.as_ref()?.certificates_expiry_date.as_ref();
    own.or_else(shown)?.parse().ok()
}
