//! Whose hook calls are served: TLS only proves that a client holds the key of its certificate, and
//! each request is checked here. So Discovery can answer every client, and a new authority applies
//! to open connections too.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use jiff::Timestamp;
use refit_runtime::{
    serve::PeerCertificates,
    tls::{self, TlsError},
};
use rustls::{
    pki_types::{CertificateDer, UnixTime, pem::PemObject as _},
    server::danger::ClientCertVerifier,
};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// The client certificates that the hook server accepts; replaced while it runs. By default it
/// accepts none.
#[derive(Debug, Default)]
pub struct ClientTrust(RwLock<Arc<Accepted>>);

#[derive(Debug, Default)]
struct Accepted {
    authorities: Option<Arc<dyn ClientCertVerifier>>,
    /// Without any, every certificate of the authorities is accepted.
    names: BTreeSet<String>,
}

/// Why a caller may not call a hook.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientRefusal {
    /// The client presents no certificate.
    #[error("the caller presents no client certificate")]
    NoCertificate,
    /// No authority accepts the certificate, or it has expired.
    #[error("the caller's client certificate is refused: {0}")]
    NotTrusted(String),
    /// The certificate is of an accepted authority, and has another name.
    #[error("the caller's client certificate is for {found}, not for {accepted}")]
    OtherName {
        /// Its names.
        found: String,
        /// The accepted names.
        accepted: String,
    },
}

impl ClientRefusal {
    /// The metric label for the refusal.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoCertificate => "NoClientCertificate",
            Self::NotTrusted(_) | Self::OtherName { .. } => "ClientNotTrusted",
        }
    }
}

impl ClientTrust {
    /// Accepts clients as [`ClientTrust::accept`] does.
    pub fn of<N: Into<String>>(
        ca_pem: &[u8],
        names: impl IntoIterator<Item = N>,
    ) -> Result<Arc<Self>, TlsError> {
        let trust = Self::default();
        trust.accept(ca_pem, names)?;
        Ok(Arc::new(trust))
    }

    /// From now on accepts certificates of the authorities in a PEM bundle: those for one of the
    /// names, or all without names. An invalid bundle changes nothing.
    pub fn accept<N: Into<String>>(
        &self,
        ca_pem: &[u8],
        names: impl IntoIterator<Item = N>,
    ) -> Result<(), TlsError> {
        let authorities = Some(tls::client_verifier(ca_pem)?);
        let names = names.into_iter().map(Into::into).collect();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) =
            Arc::new(Accepted { authorities, names });
        Ok(())
    }

    /// Whether a client that presents these certificates is accepted.
    pub fn check(
        &self,
        presented: Option<&PeerCertificates>,
        now: Timestamp,
    ) -> Result<(), ClientRefusal> {
        let accepted = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        let found = accepted.verified(presented, now)?;
        if accepted.names.is_empty() || !accepted.names.is_disjoint(&found) {
            return Ok(());
        }
        Err(ClientRefusal::OtherName { found: listed(&found), accepted: listed(&accepted.names) })
    }

    /// Whether a client that presents these certificates has one of these names.
    pub fn check_name(
        &self,
        presented: Option<&PeerCertificates>,
        names: &BTreeSet<String>,
        now: Timestamp,
    ) -> Result<(), ClientRefusal> {
        let accepted = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        let found = accepted.verified(presented, now)?;
        if names.is_disjoint(&found) {
            return Err(ClientRefusal::OtherName {
                found: listed(&found),
                accepted: listed(names),
            });
        }
        Ok(())
    }
}

fn listed(names: &BTreeSet<String>) -> String {
    names.iter().cloned().collect::<Vec<_>>().join(", ")
}

impl Accepted {
    /// The names of the client, if an authority accepts its certificate.
    fn verified(
        &self,
        presented: Option<&PeerCertificates>,
        now: Timestamp,
    ) -> Result<BTreeSet<String>, ClientRefusal> {
        let (own, others) = presented
            .and_then(|chain| chain.0.split_first())
            .ok_or(ClientRefusal::NoCertificate)?;
        let not_trusted = |why: String| ClientRefusal::NotTrusted(why);
        let authorities = self.authorities.as_ref();
        let authorities =
            authorities.ok_or_else(|| not_trusted("Refit has no client authority yet".into()))?;
        let seconds = u64::try_from(now.as_second()).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        authorities
            .verify_client_cert(own, others, now)
            .map_err(|error| not_trusted(error.to_string()))?;
        Ok(names_of(own))
    }
}

/// The names of the first certificate in a PEM text.
pub(crate) fn names_of_pem(pem: &str) -> BTreeSet<String> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map(|der| names_of(&der)).unwrap_or_default()
}

/// The common name and the alternative names of a certificate.
fn names_of(der: &CertificateDer<'_>) -> BTreeSet<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else {
        return BTreeSet::new();
    };
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let mut names: BTreeSet<String> = common.map(str::to_owned).collect();
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    for name in alternatives.iter().flat_map(|found| &found.value.general_names) {
        if let GeneralName::DNSName(name) | GeneralName::URI(name) = name {
            names.insert((*name).to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use refit_runtime::tls::{Authority, KeyAndCert, Validity};

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn validity() -> Validity {
        Validity { from: at("2026-01-01T00:00:00Z"), until: at("2027-01-01T00:00:00Z") }
    }

    fn chain(material: &KeyAndCert) -> PeerCertificates {
        let der = CertificateDer::from_pem_slice(material.cert_pem.as_bytes()).unwrap();
        PeerCertificates([der].into())
    }

    #[test]
    fn only_a_valid_client_of_the_authority_with_the_name_is_accepted() {
        let ours = Authority::new("ours", validity()).unwrap();
        let theirs = Authority::new("theirs", validity()).unwrap();
        let ca = ours.material().cert_pem.as_bytes();
        let named = ClientTrust::of(ca, ["capi"]).unwrap();
        let any = ClientTrust::of(ca, [""; 0]).unwrap();
        let none = Arc::<ClientTrust>::default();
        let capi = ours.client("capi", validity()).unwrap();
        let dns = ours.named_client(&["x", "capi"], validity()).unwrap();
        let other = ours.client("other", validity()).unwrap();
        let stranger = theirs.client("capi", validity()).unwrap();
        let server = ours.server(&["capi"], validity()).unwrap();
        let (during, after) = (at("2026-06-01T00:00:00Z"), at("2027-06-01T00:00:00Z"));
        let table = [
            (&named, Some(&capi), during, "accepted"),
            (&named, Some(&dns), during, "accepted"),
            (&named, Some(&other), during, "is for other, not for capi"),
            (&any, Some(&other), during, "accepted"),
            (&any, Some(&stranger), during, "UnknownIssuer"),
            (&any, Some(&server), during, "refused"),
            (&any, Some(&capi), after, "xpired"),
            (&any, None, during, "no client certificate"),
            (&none, Some(&capi), during, "no client authority"),
        ];
        for (trust, material, now, wanted) in table {
            let presented = material.map(chain);
            let found = trust.check(presented.as_ref(), now);
            let found = found.map_or_else(|why| why.to_string(), |()| "accepted".to_owned());
            assert!(found.contains(wanted), "{found}, expected {wanted}");
        }
    }

    #[test]
    fn a_new_authority_replaces_the_old_one_and_an_invalid_one_does_not() {
        let (old, new) = (Authority::new("a", validity()), Authority::new("b", validity()));
        let (old, new) = (old.unwrap(), new.unwrap());
        let now = at("2026-06-01T00:00:00Z");
        let trust = ClientTrust::of(old.material().cert_pem.as_bytes(), ["capi"]).unwrap();
        let client = chain(&new.client("capi", validity()).unwrap());
        assert!(trust.check(Some(&client), now).is_err());
        assert!(trust.accept(b"nothing", ["capi"]).is_err());
        let previous = chain(&old.client("capi", validity()).unwrap());
        assert_eq!(trust.check(Some(&previous), now), Ok(()));
        trust.accept(new.material().cert_pem.as_bytes(), ["capi"]).unwrap();
        assert_eq!(trust.check(Some(&client), now), Ok(()));
        assert!(trust.check(Some(&previous), now).is_err());
    }
}
