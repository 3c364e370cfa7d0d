//! Certificates and server configuration with reload.

#[cfg(feature = "port-forward")]
pub(crate) mod pin;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::{
    DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{ResolvesClientCert, danger::HandshakeSignatureValid},
    crypto::{WebPkiSupportedAlgorithms, ring},
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject as _},
    server::{
        ClientHello, ResolvesServerCert, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};

#[cfg(feature = "port-forward")]
pub use pin::{CertificateChanged, Fingerprint, InvalidFingerprint, Pin};

/// Why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The PEM text holds no certificate or key.
    #[error("invalid PEM in {what}: {reason}")]
    Pem {
        /// The kind of text that was read.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A certificate could not be created.
    #[error("cannot create the certificate for {name}: {source}")]
    Issue {
        /// The subject.
        name: String,
        /// The underlying error.
        source: rcgen::Error,
    },
    /// rustls rejects the certificate, key or configuration.
    #[error("rustls rejects the {what}: {reason}")]
    Rustls {
        /// What rustls rejects.
        what: &'static str,
        /// The reason.
        reason: String,
    },
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct KeyAndCert {
    /// PEM of the certificate.
    pub cert_pem: String,
    /// PEM of the key. A secret.
    pub key_pem: String,
}

impl std::fmt::Debug for KeyAndCert {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyAndCert").finish_non_exhaustive()
    }
}

/// The validity period of a certificate, to the second; times before 1970 count as 1970.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    /// Start (`notBefore`).
    pub from: Timestamp,
    /// End (`notAfter`).
    pub until: Timestamp,
}

impl Validity {
    fn set(self, params: &mut CertificateParams) {
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let at = |time: Timestamp| {
            let seconds = u64::try_from(time.as_second()).unwrap_or_default();
            epoch + Duration::from_secs(seconds)
        };
        params.not_before = at(self.from);
        params.not_after = at(self.until);
    }
}

/// A certificate authority that issues server and client certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    material: KeyAndCert,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Creates a new authority.
    pub fn new(name: &str, validity: Validity) -> Result<Self, TlsError> {
        let issue = |source| TlsError::Issue { name: name.to_owned(), source };
        let key = KeyPair::generate().map_err(issue)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        validity.set(&mut params);
        let cert = params.self_signed(&key).map_err(issue)?;
        let material = KeyAndCert { cert_pem: cert.pem(), key_pem: key.serialize_pem() };
        Ok(Self { issuer: Issuer::new(params, key), material })
    }

    /// Loads an existing authority.
    pub fn from_pem(material: KeyAndCert) -> Result<Self, TlsError> {
        let issue = |source| TlsError::Issue { name: "a stored authority".to_owned(), source };
        let key = KeyPair::from_pem(&material.key_pem).map_err(issue)?;
        let issuer = Issuer::from_ca_cert_pem(&material.cert_pem, key).map_err(issue)?;
        Ok(Self { issuer, material })
    }

    /// The authority's own certificate and key.
    pub fn material(&self) -> &KeyAndCert {
        &self.material
    }

    /// Issues a server certificate for these host names and addresses.
    pub fn server(&self, names: &[&str], validity: Validity) -> Result<KeyAndCert, TlsError> {
        let name = names.first().copied().unwrap_or("server");
        self.issue(name, names, ExtendedKeyUsagePurpose::ServerAuth, validity)
    }

    /// Issues a client certificate with this common name.
    pub fn client(&self, name: &str, validity: Validity) -> Result<KeyAndCert, TlsError> {
        self.client_in(name, &[], validity)
    }

    /// Issues a client certificate for these names: the first is its common name, and all are DNS
    /// names.
    pub fn named_client(&self, names: &[&str], validity: Validity) -> Result<KeyAndCert, TlsError> {
        let name = names.first().copied().unwrap_or("client");
        self.issue(name, names, ExtendedKeyUsagePurpose::ClientAuth, validity)
    }

    /// Issues a client certificate for a Kubernetes user and their groups: common name and
    /// organisations.
    pub fn client_in(
        &self,
        name: &str,
        groups: &[&str],
        validity: Validity,
    ) -> Result<KeyAndCert, TlsError> {
        let mut subject = common_name(name);
        for group in groups {
            subject.push(DnType::OrganizationName, *group);
        }
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        self.issue_to(subject, name, &[], usage, validity)
    }

    fn issue(
        &self,
        name: &str,
        hosts: &[&str],
        usage: ExtendedKeyUsagePurpose,
        validity: Validity,
    ) -> Result<KeyAndCert, TlsError> {
        self.issue_to(common_name(name), name, hosts, usage, validity)
    }

    fn issue_to(
        &self,
        subject: DistinguishedName,
        name: &str,
        hosts: &[&str],
        usage: ExtendedKeyUsagePurpose,
        validity: Validity,
    ) -> Result<KeyAndCert, TlsError> {
        let issue = |source| TlsError::Issue { name: name.to_owned(), source };
        let key = KeyPair::generate().map_err(issue)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject;
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![usage];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        for host in hosts {
            params.subject_alt_names.push(match host.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName((*host).try_into().map_err(issue)?),
            });
        }
        validity.set(&mut params);
        let cert = params.signed_by(&key, &self.issuer).map_err(issue)?;
        Ok(KeyAndCert { cert_pem: cert.pem(), key_pem: key.serialize_pem() })
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut dn = DistinguishedName::new();
    dn.push(DnType::CommonName, name);
    dn
}

/// The certificate that a server presents; it can be replaced while the server runs.
#[derive(Debug)]
pub struct ReloadableCert(ArcSwap<CertifiedKey>);

impl ReloadableCert {
    /// Starts with this certificate.
    pub fn new(material: &KeyAndCert) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Self(ArcSwap::from_pointee(certified(material)?))))
    }

    /// Presents this certificate from the next handshake on. An invalid one changes nothing.
    pub fn reload(&self, material: &KeyAndCert) -> Result<(), TlsError> {
        self.0.store(Arc::new(certified(material)?));
        Ok(())
    }
}

impl ResolvesServerCert for ReloadableCert {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

fn certified(material: &KeyAndCert) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(material.cert_pem.as_bytes(), "the certificate")?;
    let key = PrivateKeyDer::from_pem_slice(material.key_pem.as_bytes())
        .map_err(|e| TlsError::Pem { what: "the key", reason: e.to_string() })?;
    CertifiedKey::from_der(chain, key, &ring::default_provider())
        .map_err(|e| TlsError::Rustls { what: "certificate", reason: e.to_string() })
}

pub(crate) fn certificates(
    pem: &[u8],
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| TlsError::Pem { what, reason: e.to_string() })?;
    if chain.is_empty() {
        return Err(TlsError::Pem { what, reason: "no certificate found".to_owned() });
    }
    Ok(chain)
}

fn roots(pem: &[u8], what: &'static str) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for cert in certificates(pem, what)? {
        store.add(cert).map_err(|e| TlsError::Rustls { what, reason: e.to_string() })?;
    }
    Ok(store)
}

/// The production server configuration: TLS 1.2 or newer, HTTP/2 and 1.1, no client certificates.
pub fn server_config(cert: Arc<ReloadableCert>) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    configure(cert, WebPkiClientVerifier::no_client_auth())
}

/// The server configuration for an API server: a client may present a certificate of this CA, or
/// authenticate in another way. `serve::PeerCertificates` passes it to the service.
pub fn api_server_config(
    cert: Arc<ReloadableCert>,
    client_ca_pem: &[u8],
) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    configure(cert, client_verifier(client_ca_pem)?)
}

/// The server configuration of the hook server: a client may present any certificate, and proves
/// that it holds its key. The service decides whether it accepts `serve::PeerCertificates`, so that
/// it can answer some requests without one (`docs/facts/hooks.md#manager-startup`).
pub fn hook_server_config(
    cert: Arc<ReloadableCert>,
) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    configure(cert, Arc::new(AnyClient(ring::default_provider().signature_verification_algorithms)))
}

/// Verifies client certificates of the authorities in a PEM bundle; they are optional.
pub fn client_verifier(ca_pem: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = Arc::new(roots(ca_pem, "the client CA")?);
    WebPkiClientVerifier::builder_with_provider(roots, Arc::new(ring::default_provider()))
        .allow_unauthenticated()
        .build()
        .map_err(|e| TlsError::Rustls { what: "client CA", reason: e.to_string() })
}

fn configure(
    cert: Arc<ReloadableCert>,
    clients: Arc<dyn ClientCertVerifier>,
) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| TlsError::Rustls { what: "server configuration", reason: e.to_string() })?;
    let mut config = builder.with_client_cert_verifier(clients).with_cert_resolver(cert);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Accepts every client certificate whose key the client holds, and no certificate.
#[derive(Debug)]
struct AnyClient(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    // Without hints, a client presents the certificate that it has, of any issuer.
    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// The certificate that a client presents, looked up for each handshake.
#[derive(Clone)]
pub struct ClientIdentity(Arc<dyn Fn() -> Option<KeyAndCert> + Send + Sync>);

impl std::fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientIdentity").finish_non_exhaustive()
    }
}

impl ClientIdentity {
    /// Presents what `look_up` returns; without a valid certificate, none.
    pub fn new(look_up: impl Fn() -> Option<KeyAndCert> + Send + Sync + 'static) -> Self {
        Self(Arc::new(look_up))
    }
}

impl From<KeyAndCert> for ClientIdentity {
    fn from(material: KeyAndCert) -> Self {
        Self::new(move || Some(material.clone()))
    }
}

impl ResolvesClientCert for ClientIdentity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        certified(&(self.0)()?).map(Arc::new).ok()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A client configuration that trusts only the given PEM bundle.
pub fn client_config(ca_pem: &[u8]) -> Result<rustls::ClientConfig, TlsError> {
    let roots = roots(ca_pem, "the CA bundle")?;
    rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| TlsError::Rustls { what: "client configuration", reason: e.to_string() })
        .map(|builder| builder.with_root_certificates(roots).with_no_client_auth())
}

/// Installs the process's crypto provider; a second call changes nothing.
pub fn install_provider() {
    // An error means that a provider is already installed, which is fine.
    let _ = ring::default_provider().install_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validity() -> Validity {
        Validity {
            from: "2020-01-01T00:00:00Z".parse().unwrap(),
            until: "2120-01-01T00:00:00Z".parse().unwrap(),
        }
    }

    #[test]
    fn a_reloaded_authority_issues_valid_certificates() {
        let made = Authority::new("test", validity()).unwrap();
        let again = Authority::from_pem(made.material().clone()).unwrap();
        let server = again.server(&["localhost", "127.0.0.1"], validity()).unwrap();
        assert!(ReloadableCert::new(&server).is_ok());
        assert!(client_config(made.material().cert_pem.as_bytes()).is_ok());
    }

    #[test]
    fn an_invalid_certificate_is_rejected_and_the_old_one_stays() {
        let authority = Authority::new("test", validity()).unwrap();
        let good = authority.server(&["localhost"], validity()).unwrap();
        let cert = ReloadableCert::new(&good).unwrap();
        let bad = KeyAndCert { cert_pem: "nothing".into(), key_pem: "nothing".into() };
        assert!(cert.reload(&bad).is_err());
        assert_eq!(cert.0.load().cert.len(), 1);
    }

    #[test]
    fn keys_do_not_show_in_debug_output() {
        let authority = Authority::new("test", validity()).unwrap();
        assert!(!format!("{:?}", authority.material()).contains("PRIVATE"));
    }
}
