//! Upgrades by annotation: what the annotations of a Machine or of its owner ask for, and what they show. The same for
//! the certificates of a Machine (`docs/annotations.md`).

mod certificates;
mod machine;
mod notes;
mod owner;
mod renewal;
mod strict;

use refit_kinds::canonical::{CANONICAL, Keys};

pub use self::{
    certificates::{CertificatesSeen, Upgrade, certificates},
    machine::{Announced, MachineSeen, Request, machine},
    owner::{
        OwnedMachine, OwnerAnnounced, OwnerRequest, OwnerRole, OwnerSeen, machine_begins, owner,
    },
    renewal::{RenewalSeen, renewal},
};

/// How closely the annotations of Canonical's prefix follow its controllers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compat {
    /// Without their known mistakes.
    #[default]
    Corrected,
    /// As they write annotations and events, as far as no machine is put at risk.
    Strict,
}

impl Compat {
    /// Whether the annotations of a prefix are written as Canonical's controllers write them.
    pub fn is_strict(self, keys: Keys) -> bool {
        match self {
            Self::Strict => keys == CANONICAL,
            Self::Corrected => false,
        }
    }
}
