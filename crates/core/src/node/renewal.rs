//! Updates that only issue certificates: who can.
//!
//! | part of | lifetime | days | machine | outcome |
//! |---|---|---|---|---|
//! | k8sd | given | none | any | k8sd issues them |
//! | k8sd | none | any | any | `LifetimeMissing` |
//! | k8sd | given | given | any | `CertificatesNotSupported` |
//! | kubeadm | none | any | control plane | kubeadm renews them |
//! | kubeadm | none | any | worker | `NoCertificates` |
//! | kubeadm | given | any | any | `LifetimeNotSupported` |
//! | both, another one too, or none of them | any | any | any | `CertificatesNotSupported` |

use refit_kinds::refit::UpdatePart;

use super::{status::Standing, work::Work};

impl Work<'_> {
    /// The failure of an update whose certificates none of its updaters can issue as the goal asks.
    pub(super) fn unissuable_certificates(&self) -> Option<Standing> {
        let spec = &self.s.update.spec;
        let certificates = spec.goal.certificates?;
        let failed = |reason: &str, why: &str| Some(Standing::failed(reason, why));
        let mut others = spec.updater_parts().filter(|part| !part.is_of_k8sd());
        if let Some(other) = others.next() {
            let why = format!(
                "Updater {} cannot issue certificates, and an update that does brings a machine to nothing else",
                other.updater
            );
            return failed("CertificatesNotSupported", &why);
        }
        match (spec.updater_parts().any(UpdatePart::is_of_k8sd), spec.works_on_host()) {
            (true, false) if certificates.lifetime_seconds.is_none() => failed(
                "LifetimeMissing",
                "k8sd issues certificates for a lifetime, and the goal has no lifetimeSeconds",
            ),
            (true, false) if certificates.within_days.is_some() => failed(
                "CertificatesNotSupported",
                "k8sd issues certificates whenever the old ones expire: it has no withinDays",
            ),
            (false, true) if certificates.lifetime_seconds.is_some() => failed(
                "LifetimeNotSupported",
                "kubeadm takes the lifetime of certificates from its own configuration: remove lifetimeSeconds from the \
                 goal",
            ),
            (false, true) if !self.control_plane() => failed(
                "NoCertificates",
                "kubeadm issues no certificates on a worker: its kubelet renews its own",
            ),
            (true, false) | (false, true) => None,
            (true, true) | (false, false) => failed(
                "CertificatesNotSupported",
                "none of the updaters of this update can issue certificates",
            ),
        }
    }
}
