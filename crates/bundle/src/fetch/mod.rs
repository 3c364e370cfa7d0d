//! Stages a bundle on a host, from a path, an HTTP server or a registry.
//!
//! Signature and manifest are checked before anything else is fetched, and each file while it
//! streams. The finished bundle appears by one rename, after all of it was verified. An interrupted
//! download resumes where it stopped. The caller is responsible for retries; see
//! [`Error::is_retriable`].
//!
//! ```text
//! <directory>/blobs/<sha256>      verified contents, shared by all bundles on the host
//! <directory>/partial/<sha256>    a partial download
//! <directory>/bundles/<sha256>/   a whole bundle: packages/, os/, files/, images/ (an OCI layout)
//! ```

mod auth;
mod http;
mod limits;
mod local;
mod location;
mod proxy;
mod registry;
mod session;
mod single;
mod staged;
mod store;
mod view;

use std::path::Path;

pub use limits::Limits;
pub use location::{Location, Reference, Version};
pub use proxy::Proxies;
pub use single::file;
pub use staged::{Staged, find, prune};

use refit_kinds::version::KubernetesVersion;

use crate::{
    digest::{Digest, Hasher},
    error::Error,
    keys::{PublicKeys, Signed},
    manifest::{Architecture, Blob, Manifest, OsFamily},
};
use session::Session;
use store::Store;

/// A request to stage a bundle.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Where to fetch the bundle from.
    pub location: &'a Location,
    /// Keys whose signature is trusted.
    pub keys: &'a PublicKeys,
    /// The staging directory. Only its owner may write to it; it is created if missing.
    pub directory: &'a Path,
    /// Limits of the download.
    pub limits: &'a Limits,
    /// Properties that the bundle must have.
    pub wanted: &'a Wanted,
    /// Called after each verified file.
    pub progress: Option<&'a (dyn Fn(&Progress<'_>) + Send + Sync)>,
}

/// Required properties of a bundle; `None` accepts any value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Digest of its manifest.
    pub manifest_sha256: Option<Digest>,
    /// Kubernetes version.
    pub kubernetes_version: Option<KubernetesVersion>,
    /// Processor architecture.
    pub architecture: Option<Architecture>,
    /// Operating system; a bundle for any system is accepted too.
    pub os_family: Option<OsFamily>,
}

/// Progress of staging a bundle.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The file that is fetched or checked.
    pub file: &'a str,
    /// Bytes present and verified.
    pub done_bytes: u64,
    /// Size of the bundle in bytes.
    pub total_bytes: u64,
}

/// The verified head of a bundle: the rest of the bundle is checked against it.
#[derive(Clone, Debug)]
pub struct Head {
    /// The manifest.
    pub manifest: Manifest,
    /// Digest of the manifest: identifies the whole bundle.
    pub manifest_sha256: Digest,
    /// The valid signature.
    pub signed: Signed,
    pub(crate) manifest_bytes: Vec<u8>,
    pub(crate) signature: String,
}

/// Fetches and verifies a bundle and makes it ready for use. A failure never leaves a partial
/// bundle visible.
///
/// A second call fetches only what is missing and verifies existing contents again.
pub async fn stage(request: &Request<'_>) -> Result<Staged, Error> {
    let store = Store::open(request.directory).await?;
    // A complete bundle on the host needs no server: hosts continue while the server is down.
    if request.wanted.manifest_sha256.is_some()
        && let Ok(Some(staged)) = staged::look(&store, request.keys, request.wanted).await
    {
        // The bundle is in use again, so pruning removes the older ones first.
        view::make_newest(&staged.directory).await?;
        return Ok(staged);
    }
    let mut session = Session::open(request.location, request.limits)?;
    let head = trusted_head(&mut session, request.keys, request.wanted).await?;
    let manifest = &head.manifest;
    let total = manifest.total_size();
    if total > request.limits.max_bytes {
        return Err(Error::Limit {
            location: request.location.to_string(),
            limit: request.limits.max_bytes,
            found: total,
        });
    }
    store.make_room(manifest, request.limits.keep_free).await?;
    let mut done = 0;
    for blob in manifest.blobs() {
        let file = manifest.name_of(&blob.sha256);
        store.fetch(&mut session, &blob, &file).await?;
        done += blob.size;
        report_progress(request, &file, done, total);
    }
    view::publish(&store, &head).await?;
    Ok(Staged::new(&store, head))
}

fn report_progress(request: &Request<'_>, file: &str, done_bytes: u64, total_bytes: u64) {
    tracing::debug!(file, done_bytes, total_bytes, "verified a part of the bundle");
    if let Some(progress) = request.progress {
        progress(&Progress { file, done_bytes, total_bytes });
    }
}

/// Reads a whole bundle and verifies all of it, without keeping anything.
pub async fn verify(
    location: &Location,
    keys: &PublicKeys,
    limits: &Limits,
    wanted: &Wanted,
) -> Result<Head, Error> {
    let mut session = Session::open(location, limits)?;
    let head = trusted_head(&mut session, keys, wanted).await?;
    for blob in head.manifest.blobs() {
        let file = head.manifest.name_of(&blob.sha256);
        verify_blob(&mut session, &blob, &file).await?;
    }
    Ok(head)
}

async fn verify_blob(session: &mut Session, blob: &Blob, file: &str) -> Result<(), Error> {
    let mut download = session.blob(blob, 0, file).await?;
    let mut hasher = Hasher::default();
    while let Some(chunk) = download.chunk(session.bucket()).await? {
        hasher.update(&chunk);
    }
    download.check_whole()?;
    let found = hasher.finish();
    if found == blob.sha256 {
        return Ok(());
    }
    Err(Error::Content { file: file.to_owned(), expected: blob.sha256.clone(), found })
}

/// Reads only the manifest, with any signature: for display, not to trust it.
pub async fn peek(location: &Location, limits: &Limits) -> Result<(Manifest, Digest), Error> {
    let mut session = Session::open(location, limits)?;
    let (bytes, _) = session.head().await?;
    let manifest = parse(location, &bytes)?;
    Ok((manifest, Digest::of(&bytes)))
}

async fn trusted_head(
    session: &mut Session,
    keys: &PublicKeys,
    wanted: &Wanted,
) -> Result<Head, Error> {
    let (bytes, signature) = session.head().await?;
    check_head(session.location(), keys, wanted, bytes, signature)
}

/// Checks the signature of a manifest and then parses it.
pub(crate) fn check_head(
    location: &Location,
    keys: &PublicKeys,
    wanted: &Wanted,
    manifest_bytes: Vec<u8>,
    signature: String,
) -> Result<Head, Error> {
    // Check the signature first: an unsigned manifest is not parsed.
    let signed = keys
        .verify(&manifest_bytes, &signature)
        .map_err(|problem| Error::Signature { location: location.to_string(), problem })?;
    let manifest = parse(location, &manifest_bytes)?;
    let head = Head {
        manifest_sha256: Digest::of(&manifest_bytes),
        manifest,
        signed,
        manifest_bytes,
        signature,
    };
    wanted.check(location, &head)?;
    Ok(head)
}

fn parse(location: &Location, bytes: &[u8]) -> Result<Manifest, Error> {
    Manifest::parse(bytes).map_err(|problem| Error::Manifest {
        location: location.to_string(),
        problem: Box::new(problem),
    })
}

impl Wanted {
    fn check(&self, location: &Location, head: &Head) -> Result<(), Error> {
        let manifest = &head.manifest;
        let other = |field, expected: &str, found: &str| {
            Err(Error::Other {
                location: location.to_string(),
                field,
                expected: expected.to_owned(),
                found: found.to_owned(),
            })
        };
        if let Some(wanted) = &self.manifest_sha256
            && *wanted != head.manifest_sha256
        {
            return other("manifest sha256", wanted.as_str(), head.manifest_sha256.as_str());
        }
        if let Some(wanted) = &self.kubernetes_version
            && *wanted != manifest.kubernetes_version
        {
            let found = manifest.kubernetes_version.to_string();
            return other("Kubernetes version", &wanted.to_string(), &found);
        }
        if let Some(wanted) = self.architecture
            && wanted != manifest.architecture
        {
            return other("architecture", wanted.as_str(), manifest.architecture.as_str());
        }
        if let Some(wanted) = self.os_family
            && ![wanted, OsFamily::Any].contains(&manifest.os_family)
        {
            return other("osFamily", wanted.as_str(), manifest.os_family.as_str());
        }
        Ok(())
    }
}
