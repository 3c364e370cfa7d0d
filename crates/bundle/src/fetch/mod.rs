//! Getting a bundle onto a host: from a path, an HTTP server or a registry.
//!
//! Signature and manifest are checked before anything else is fetched; each file while it streams;
//! and what a step may use appears by one rename when all of it is there. A download that broke
//! off goes on where it stopped. Retries are the caller's: [`Error::is_retriable`] says when.
//!
//! ```text
//! <directory>/blobs/<sha256>      verified contents, shared by all bundles on the host
//! <directory>/partial/<sha256>    what came of a download
//! <directory>/bundles/<sha256>/   a whole bundle: packages/, os/, files/, images/ (an OCI layout)
//! ```

mod auth;
mod http;
mod limits;
mod local;
mod location;
mod registry;
mod session;
mod single;
mod staged;
mod store;
mod view;

use std::path::Path;

pub use limits::Limits;
pub use location::{Location, Reference, Version};
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

/// What to stage, from where, and what to trust.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Where the bundle is.
    pub location: &'a Location,
    /// Who may have signed it.
    pub keys: &'a PublicKeys,
    /// Where it goes: a directory that nobody else may write, made where it is not there.
    pub directory: &'a Path,
    /// How much it may take.
    pub limits: &'a Limits,
    /// What it must be.
    pub wanted: &'a Wanted,
    /// Who is told how far it is.
    pub progress: Option<&'a (dyn Fn(&Progress<'_>) + Send + Sync)>,
}

/// What a bundle must be; `None` takes any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Digest of its manifest.
    pub manifest_sha256: Option<Digest>,
    /// Kubernetes version.
    pub kubernetes_version: Option<KubernetesVersion>,
    /// Processor architecture.
    pub architecture: Option<Architecture>,
    /// Operating system; a bundle for any fits too.
    pub os_family: Option<OsFamily>,
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// What is fetched or checked.
    pub file: &'a str,
    /// Bytes that are there and verified.
    pub done_bytes: u64,
    /// Bytes of the bundle.
    pub total_bytes: u64,
}

/// The head of a bundle: what all else is checked against.
#[derive(Clone, Debug)]
pub struct Head {
    /// What is in it.
    pub manifest: Manifest,
    /// Digest of the manifest: the name of the whole bundle.
    pub manifest_sha256: Digest,
    /// Whose signature holds.
    pub signed: Signed,
    pub(crate) manifest_bytes: Vec<u8>,
    pub(crate) signature: String,
}

/// Fetches a bundle and makes it ready for use, or says why not and leaves nothing half done.
///
/// Calling it again fetches only what is missing. Contents that are there are verified again.
pub async fn stage(request: &Request<'_>) -> Result<Staged, Error> {
    let store = Store::open(request.directory).await?;
    // What is there whole needs no server: hosts go on while theirs is down.
    if request.wanted.manifest_sha256.is_some()
        && let Ok(Some(staged)) = staged::look(&store, request.keys, request.wanted).await
    {
        // It is in use again: the older of the others goes before it.
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
        tell(request, &file, done, total);
    }
    view::publish(&store, &head).await?;
    Ok(Staged::new(&store, head))
}

fn tell(request: &Request<'_>, file: &str, done_bytes: u64, total_bytes: u64) {
    tracing::debug!(file, done_bytes, total_bytes, "a part of the bundle is verified");
    if let Some(progress) = request.progress {
        progress(&Progress { file, done_bytes, total_bytes });
    }
}

/// Reads a bundle from its first to its last byte and checks all of it, keeping nothing.
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

/// Reads the manifest alone, whoever signed it: to look, not to trust.
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

/// Trusts these bytes as a manifest, or says why not.
pub(crate) fn check_head(
    location: &Location,
    keys: &PublicKeys,
    wanted: &Wanted,
    manifest_bytes: Vec<u8>,
    signature: String,
) -> Result<Head, Error> {
    // The signature first: what nobody signed is not even parsed.
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
