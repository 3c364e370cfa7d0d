//! The Secret: its current and its next content. Its content is never logged.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{ResourceExt as _, api::ObjectMeta};
use refit_core::certificates::{BACKDATE, CertificateFacts, Decision, Found, Held};
use refit_runtime::tls::{Authority, KeyAndCert, ReloadableCert, TlsError, Validity};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::CertificateSettings;
use crate::client_trust::{ClientTrust, names_of_pem};

const CERT: &str = "tls.crt";
const KEY: &str = "tls.key";
const CA: &str = "ca.crt";
/// Key of the first authority in `ca.crt`; present only if Refit manages the Secret.
const CA_KEY: &str = "ca.key";
/// A Secret with such an annotation is managed by cert-manager.
const CERT_MANAGER: &str = "cert-manager.io/";
const PEM_END: &str = "-----END CERTIFICATE-----";

fn part<'a>(secret: &'a Secret, key: &str) -> &'a str {
    secret
        .data
        .as_ref()
        .and_then(|data| data.get(key))
        .and_then(|bytes| std::str::from_utf8(&bytes.0).ok())
        .unwrap_or_default()
}

/// The certificate and key that the hook server serves, if both exist.
pub(super) fn shown(secret: &Secret) -> Option<KeyAndCert> {
    let (cert, key) = (part(secret, CERT), part(secret, KEY));
    (!cert.is_empty() && !key.is_empty())
        .then(|| KeyAndCert { cert_pem: cert.to_owned(), key_pem: key.to_owned() })
}

/// Makes a server accept the clients of this Secret: those of its authorities with a name of its
/// certificate.
pub(super) fn trust(secret: &Secret, trust: &ClientTrust) -> Result<(), TlsError> {
    let names = names_of_pem(part(secret, CERT));
    if names.is_empty() {
        let reason = "it names no client".to_owned();
        return Err(TlsError::Pem { what: CERT, reason });
    }
    trust.accept(part(secret, CA).as_bytes(), names)
}

/// Expiry of the served certificate, if it can be read.
pub(super) fn ends_at(secret: &Secret) -> Option<Timestamp> {
    let shown = shown(secret)?;
    facts(&shown.cert_pem).ok().map(|facts| facts.until)
}

/// The content of the Secret.
pub(super) fn read(secret: Option<&Secret>) -> Found {
    let Some(secret) = secret else {
        return Found::Absent;
    };
    let annotations = secret.annotations();
    let kept_by_others = annotations.keys().any(|key| key.starts_with(CERT_MANAGER));
    let has_ca_key = !part(secret, CA_KEY).is_empty();
    if kept_by_others || (!has_ca_key && shown(secret).is_some()) {
        return Found::Foreign;
    }
    match held(secret) {
        Ok(held) => Found::Ours(Box::new(held)),
        Err(reason) => Found::Broken { reason },
    }
}

fn held(secret: &Secret) -> Result<Held, String> {
    let leaf = shown(secret)
        .filter(|shown| ReloadableCert::new(shown).is_ok())
        .and_then(|shown| facts(&shown.cert_pem).ok());
    let authorities = split(part(secret, CA));
    let first = authorities.first().ok_or("it contains no authority")?;
    let material = KeyAndCert { cert_pem: first.clone(), key_pem: part(secret, CA_KEY).to_owned() };
    // This check also verifies that the key belongs to the certificate.
    ReloadableCert::new(&material).map_err(|error| format!("ca.key: {error}"))?;
    let older = authorities.iter().skip(1).map(|pem| facts(pem));
    Ok(Held { authority: facts(first)?, older: older.collect::<Result<_, _>>()?, leaf })
}

/// The certificates of a PEM bundle.
fn split(bundle: &str) -> Vec<String> {
    bundle
        .split_inclusive(PEM_END)
        .map(str::trim)
        .filter(|part| part.ends_with(PEM_END))
        .map(|part| format!("{part}\n"))
        .collect()
}

fn facts(pem: &str) -> Result<CertificateFacts, String> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())?;
    let (_, certificate) =
        X509Certificate::from_der(&der).map_err(|error| format!("no certificate: {error}"))?;
    let time = |seconds: i64| Timestamp::from_second(seconds).map_err(|error| error.to_string());
    let validity = certificate.validity();
    let mut names = Vec::new();
    if let Ok(Some(alternatives)) = certificate.subject_alternative_name() {
        for name in &alternatives.value.general_names {
            if let GeneralName::DNSName(name) = name {
                names.push((*name).to_owned());
            }
        }
    }
    Ok(CertificateFacts {
        subject: certificate.subject().to_string(),
        issuer: certificate.issuer().to_string(),
        from: time(validity.not_before.timestamp())?,
        until: time(validity.not_after.timestamp())?,
        names,
    })
}

/// The data of the Secret after a change.
pub(super) type Data = BTreeMap<&'static str, String>;

fn validity(now: Timestamp, length: SignedDuration) -> Validity {
    Validity { from: now - BACKDATE, until: now + length }
}

/// The next content of the Secret, without unchanged keys.
pub(super) fn changed(
    decision: &Decision,
    secret: Option<&Secret>,
    settings: &CertificateSettings,
    now: Timestamp,
) -> Result<Data, TlsError> {
    let bundle = secret.map(|secret| part(secret, CA)).unwrap_or_default();
    let authorities = split(bundle);
    let first = authorities.first().cloned().unwrap_or_default();
    let lifetimes = settings.purpose.lifetimes();
    let new_authority = || {
        let name = format!("{}-ca-{}", settings.purpose.name(), now.as_second());
        Authority::new(&name, validity(now, lifetimes.authority))
    };
    let new_leaf = |authority: &Authority| {
        settings.purpose.issue(authority, &settings.names, validity(now, lifetimes.leaf))
    };
    let mut data = Data::new();
    match decision {
        Decision::Create { .. } => {
            let authority = new_authority()?;
            let leaf = new_leaf(&authority)?;
            data.insert(CA, authority.material().cert_pem.clone());
            data.insert(CA_KEY, authority.material().key_pem.clone());
            data.insert(CERT, leaf.cert_pem);
            data.insert(KEY, leaf.key_pem);
        }
        Decision::RenewLeaf { .. } => {
            let key = secret.map(|secret| part(secret, CA_KEY));
            let authority = Authority::from_pem(KeyAndCert {
                cert_pem: first,
                key_pem: key.unwrap_or_default().to_owned(),
            })?;
            let leaf = new_leaf(&authority)?;
            data.insert(CERT, leaf.cert_pem);
            data.insert(KEY, leaf.key_pem);
        }
        Decision::RotateAuthority => {
            let authority = new_authority()?;
            data.insert(CA, format!("{}{first}", authority.material().cert_pem));
            data.insert(CA_KEY, authority.material().key_pem.clone());
        }
        Decision::DropOlder => {
            data.insert(CA, first);
        }
        Decision::Keep { .. } | Decision::Leave => {}
    }
    Ok(data)
}

/// A patch that applies only to the version of the Secret that was read.
pub(super) fn patch(resource_version: &str, data: &Data) -> Value {
    json!({
        "metadata": {"resourceVersion": resource_version},
        "data": encoded(data),
    })
}

/// A new Secret.
pub(super) fn object(settings: &CertificateSettings, data: &Data) -> Secret {
    let label = |key: &str, value: &str| (format!("app.kubernetes.io/{key}"), value.to_owned());
    Secret {
        metadata: ObjectMeta {
            name: Some(settings.secret.clone()),
            namespace: Some(settings.namespace.clone()),
            labels: Some([label("name", "refit"), label("managed-by", "refit-controller")].into()),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(encoded(data)),
        ..Secret::default()
    }
}

fn encoded(data: &Data) -> BTreeMap<String, ByteString> {
    data.iter()
        .map(|(key, text)| ((*key).to_owned(), ByteString(text.clone().into_bytes())))
        .collect()
}
