//! Servers that no authority vouches for: their certificate is recognised by its fingerprint.

use std::{
    fmt,
    str::FromStr,
    sync::{Arc, OnceLock},
};

use ::ring::digest::{SHA256, digest};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{WebPkiSupportedAlgorithms, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use super::TlsError;

/// The SHA-256 of a certificate in DER. Its text form is 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a certificate in DER.
    pub fn of(der: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, der).as_ref());
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// A text is not a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid fingerprint {0:?}, expected 64 hexadecimal digits")]
pub struct InvalidFingerprint(String);

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    fn from_str(text: &str) -> Result<Self, InvalidFingerprint> {
        let invalid = || InvalidFingerprint(text.to_owned());
        let digits: Vec<u8> = text
            .chars()
            .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect::<Option<_>>()
            .ok_or_else(invalid)?;
        let joined = |pair: &[u8]| pair.iter().fold(0, |high, low| high << 4 | low);
        let bytes: Vec<u8> = digits.chunks(2).map(joined).collect();
        let whole = digits.len() == 64;
        bytes.try_into().ok().filter(|_| whole).map(Self).ok_or_else(invalid)
    }
}

/// The certificate that a server must present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// Any certificate: the server was never reached before.
    FirstUse,
    /// The certificate with this fingerprint.
    Known(Fingerprint),
}

/// A server presents another certificate than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server's certificate has changed: expected sha256 {known}, got {seen}")]
pub struct CertificateChanged {
    /// The pinned fingerprint.
    pub known: Fingerprint,
    /// The fingerprint of the presented certificate.
    pub seen: Fingerprint,
}

impl CertificateChanged {
    /// The changed certificate that made a TLS handshake fail.
    pub(crate) fn cause_of(error: &std::io::Error) -> Option<Self> {
        let error: &rustls::Error = error.get_ref()?.downcast_ref()?;
        let rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) = error
        else {
            return None;
        };
        cause.downcast_ref().copied()
    }
}

/// Verifies that a server presents the pinned certificate and holds its key. Names and validity are
/// not checked.
#[derive(Debug)]
pub(crate) struct PinVerifier {
    pin: Pin,
    seen: OnceLock<Fingerprint>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinVerifier {
    /// The fingerprint that the server presented.
    pub(crate) fn seen(&self) -> Option<Fingerprint> {
        self.seen.get().copied()
    }
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let seen = *self.seen.get_or_init(|| Fingerprint::of(certificate));
        match self.pin {
            Pin::Known(known) if known != seen => {
                let changed = OtherError(Arc::new(CertificateChanged { known, seen }));
                Err(rustls::Error::InvalidCertificate(CertificateError::Other(changed)))
            }
            Pin::Known(_) | Pin::FirstUse => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// A configuration for one handshake with a pinned server, over HTTP/1.1, and its verifier.
pub(crate) fn pinned_config(pin: Pin) -> Result<(ClientConfig, Arc<PinVerifier>), TlsError> {
    let provider = ring::default_provider();
    let verifier = Arc::new(PinVerifier {
        pin,
        seen: OnceLock::new(),
        algorithms: provider.signature_verification_algorithms,
    });
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| TlsError::Rustls { what: "client configuration", reason: e.to_string() })?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_no_client_auth();
    // A resumed session would not present the certificate.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((config, verifier))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_reads_back_from_its_text() {
        let print = Fingerprint::of(b"abc");
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(print.to_string(), text);
        assert_eq!(text.parse(), Ok(print));
        assert_eq!(text.to_ascii_uppercase().parse(), Ok(print));
        for invalid in ["", "ba", &text[1..], &format!("{text}00"), &text.replace('b', "g")] {
            assert!(invalid.parse::<Fingerprint>().is_err(), "{invalid}");
        }
    }
}
