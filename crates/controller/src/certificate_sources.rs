//! Where the hook server's certificate and the trust in its clients come from: files that another
//! program manages, or a Secret.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use refit_controller::{ClientTrust, certificates::Certificates};
use refit_runtime::tls::{KeyAndCert, ReloadableCert};

/// How often files are checked for changes.
const RECHECK: Duration = Duration::from_mins(1);

/// Source of the hook server's certificate.
pub(crate) enum ServerSource {
    /// `tls.crt` and `tls.key` in a directory.
    Files(PathBuf),
    Secret(Certificates),
}

impl ServerSource {
    /// The first certificate. Waits for a Secret, but not for files.
    pub(crate) async fn first(&self) -> anyhow::Result<Arc<ReloadableCert>> {
        match self {
            Self::Files(directory) => Ok(ReloadableCert::new(&files(directory)?)?),
            Self::Secret(certificates) => Ok(certificates.ensure().await),
        }
    }

    /// Serves new certificates as they appear; never returns.
    pub(crate) async fn keep(&self, cert: Arc<ReloadableCert>) {
        let directory = match self {
            Self::Secret(certificates) => return certificates.run(cert).await,
            Self::Files(directory) => directory,
        };
        let mut shown = None;
        loop {
            match files(directory) {
                Ok(found) if shown.as_ref() == Some(&found.cert_pem) => {}
                Ok(found) => match cert.reload(&found) {
                    Ok(()) => shown = Some(found.cert_pem),
                    Err(error) => {
                        tracing::warn!(%error, "cannot load the new certificate, keeping the \
                            current one");
                    }
                },
                Err(error) => tracing::warn!(
                    "cannot load the new certificate, keeping the current one: {error:#}"
                ),
            }
            tokio::time::sleep(RECHECK).await;
        }
    }
}

/// Source of the trust in clients.
pub(crate) enum ClientSource {
    /// Every client is served. The Secret exists, for the managers to get their certificate first.
    Off(Certificates),
    /// A PEM file of authorities.
    File {
        ca: PathBuf,
        /// Accepted names; all if empty.
        names: Vec<String>,
    },
    Secret(Certificates),
}

impl ClientSource {
    /// The first trust; `None` if every client is served. Waits for nothing.
    pub(crate) async fn first(&self) -> anyhow::Result<Option<Arc<ClientTrust>>> {
        Ok(match self {
            Self::Off(_) => None,
            Self::File { ca, names } => Some(ClientTrust::of(&read(ca)?, names)?),
            Self::Secret(certificates) => Some(certificates.clients().await),
        })
    }

    /// Accepts clients of new authorities as they appear; never returns.
    pub(crate) async fn keep(&self, trust: Option<Arc<ClientTrust>>) {
        let trust = trust.unwrap_or_default();
        match self {
            Self::Off(certificates) | Self::Secret(certificates) => {
                certificates.follow_clients(trust).await;
            }
            Self::File { ca, names } => loop {
                if let Err(error) = load(ca, names, &trust) {
                    tracing::warn!(
                        "cannot load the client authorities, keeping the current ones: \
                        {error:#}"
                    );
                }
                tokio::time::sleep(RECHECK).await;
            },
        }
    }
}

fn load(ca: &Path, names: &[String], trust: &ClientTrust) -> anyhow::Result<()> {
    Ok(trust.accept(&read(ca)?, names)?)
}

fn files(directory: &Path) -> anyhow::Result<KeyAndCert> {
    let text = |name: &str| {
        let path = directory.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    Ok(KeyAndCert { cert_pem: text("tls.crt")?, key_pem: text("tls.key")? })
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use refit_controller::ClientRefusal;
    use refit_runtime::{
        serve::PeerCertificates,
        tls::{Authority, Validity},
    };
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_new_authority_in_the_file_is_accepted_without_a_restart() {
        let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
        let validity =
            Validity { from: at("2026-01-01T00:00:00Z"), until: at("2027-01-01T00:00:00Z") };
        let authorities = ["a", "b"].map(|name| Authority::new(name, validity).unwrap());
        let [old, new] = authorities.each_ref().map(|authority| {
            let client = authority.client("capi", validity).unwrap();
            let der = CertificateDer::from_pem_slice(client.cert_pem.as_bytes()).unwrap();
            PeerCertificates([der].into())
        });
        let [first, second] = authorities.each_ref().map(Authority::material);
        let directory = tempfile::tempdir().unwrap();
        let ca = directory.path().join("ca.crt");
        let write = |text: &str| fs::write(&ca, text).unwrap();
        let source = ClientSource::File { ca: ca.clone(), names: vec!["capi".to_owned()] };
        write(&first.cert_pem);
        let trust = source.first().await.unwrap().unwrap();
        let check = |chain| trust.check(Some(chain), at("2026-06-01T00:00:00Z"));
        let steps = async {
            let minute = || tokio::time::sleep(RECHECK + Duration::from_secs(1));
            assert_eq!(check(&old), Ok(()));
            write("broken");
            minute().await;
            assert_eq!(check(&old), Ok(()), "a broken file changes nothing");
            write(&second.cert_pem);
            minute().await;
            assert!(matches!(check(&old), Err(ClientRefusal::NotTrusted(_))));
            assert_eq!(check(&new), Ok(()));
        };
        tokio::select! {
            biased;
            () = steps => {}
            () = source.keep(Some(trust.clone())) => panic!("it never ends"),
        }
    }
}
