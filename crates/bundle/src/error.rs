//! Errors of reading, verifying and staging bundles.

use std::{io, path::PathBuf};

use crate::{
    digest::Digest,
    keys::{KeyError, SignatureError},
    manifest::ManifestError,
};

/// Why a bundle cannot be read, verified or staged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not a valid bundle location.
    #[error(
        "invalid bundle location {location:?}: {problem}; expected an absolute path of a \
         directory, http(s)://HOST/DIRECTORY/ or oci://REGISTRY/REPOSITORY@sha256:DIGEST"
    )]
    Location {
        /// The location as given.
        location: String,
        /// What is wrong.
        problem: String,
    },
    /// The text is not a valid URL of a file.
    #[error("invalid URL {url:?}: {problem}")]
    Url {
        /// The URL, without a password.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// A server cannot be reached.
    #[error("cannot reach {url}: {reason}")]
    Unreachable {
        /// The requested URL.
        url: String,
        /// The reason.
        reason: String,
    },
    /// A server sent no data before the timeout.
    #[error("{url} sent nothing for {seconds} s")]
    Silent {
        /// The requested URL.
        url: String,
        /// The timeout that passed, in seconds.
        seconds: u64,
    },
    /// A server refused a request.
    #[error("{url} answered {status}{hint}")]
    Refused {
        /// The requested URL.
        url: String,
        /// HTTP status.
        status: u16,
        /// What the operator can do.
        hint: &'static str,
    },
    /// A server sent an invalid response.
    #[error("invalid response from {url}: {problem}")]
    Answer {
        /// The requested URL.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// A download was interrupted. The received bytes are kept; the next attempt resumes there.
    #[error("{file} ended after {found} of {expected} bytes: {reason}")]
    Torn {
        /// Name of the file.
        file: String,
        /// Bytes received.
        found: u64,
        /// Expected size in bytes.
        expected: u64,
        /// The reason.
        reason: String,
    },
    /// A file does not exist.
    #[error("{what} does not exist")]
    Missing {
        /// The missing file.
        what: String,
    },
    /// The size of a file differs from the manifest.
    #[error("{file} has {found} bytes, but {expected} in the manifest")]
    Size {
        /// Name of the file.
        file: String,
        /// Size in the manifest.
        expected: u64,
        /// Actual size.
        found: u64,
    },
    /// The digest of a file differs from the manifest.
    #[error("{file} does not match the signed manifest: expected sha256 {expected}, found {found}")]
    Content {
        /// Name of the file.
        file: String,
        /// Digest in the manifest.
        expected: Digest,
        /// Actual digest.
        found: Digest,
    },
    /// A part of a bundle exceeds its size limit.
    #[error("{file} exceeds its limit of {limit} bytes")]
    Large {
        /// Name of the file.
        file: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// The signature is not valid.
    #[error("invalid signature of {location}: {problem}")]
    Signature {
        /// Location of the bundle.
        location: String,
        /// Why the signature was refused.
        problem: SignatureError,
    },
    /// The manifest is not valid.
    #[error("invalid manifest of {location}: {problem}")]
    Manifest {
        /// Location of the bundle.
        location: String,
        /// Why the manifest was refused.
        problem: Box<ManifestError>,
    },
    /// The bundle is valid, but it is not the requested one.
    #[error("wrong bundle {location}: its {field} is {found}, expected {expected}")]
    Other {
        /// Location of the bundle.
        location: String,
        /// The field that differs.
        field: &'static str,
        /// The requested value.
        expected: String,
        /// The value of the bundle.
        found: String,
    },
    /// The bundle exceeds the size limit.
    #[error("{location} has {found} bytes, which exceeds the staging limit of {limit}")]
    Limit {
        /// Location of the bundle.
        location: String,
        /// The limit in bytes.
        limit: u64,
        /// Size of the bundle in bytes.
        found: u64,
    },
    /// The disk has not enough free space or inodes.
    #[error(
        "{} has {free} {unit} free, but the bundle needs {needed}; free some space and try again",
        directory.display()
    )]
    Space {
        /// The directory to write to.
        directory: PathBuf,
        /// What is needed.
        needed: u64,
        /// What is free.
        free: u64,
        /// Unit of both numbers.
        unit: &'static str,
    },
    /// Another user could change the staged files.
    #[error("cannot stage files in {}: {problem}", directory.display())]
    Directory {
        /// The staging directory.
        directory: PathBuf,
        /// Why it is not safe.
        problem: String,
    },
    /// Another process is staging into the same directory.
    #[error("another process is staging into {}; wait until it has finished", directory.display())]
    Busy {
        /// The staging directory.
        directory: PathBuf,
    },
    /// A file on this host cannot be used.
    #[error("{} cannot be {action}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The operation that failed: `read`, `written`.
        action: &'static str,
        /// The underlying error.
        source: io::Error,
    },
    /// A public key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl Error {
    /// Reports whether the same call may succeed later without manual intervention.
    pub fn is_retriable(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Silent { .. }
                | Self::Torn { .. }
                | Self::Busy { .. }
                | Self::Refused { status: 408 | 425 | 429 | 500.., .. }
        )
    }

    /// Returns a CamelCase reason for conditions and reports.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Location { .. } | Self::Url { .. } => "BundleLocationInvalid",
            Self::Unreachable { .. } | Self::Silent { .. } => "BundleUnreachable",
            Self::Refused { .. } => "BundleRefused",
            Self::Answer { .. } => "BundleServerAnswer",
            Self::Torn { .. } => "BundleDownloadTorn",
            Self::Missing { .. } => "BundleIncomplete",
            Self::Size { .. } | Self::Content { .. } | Self::Large { .. } => "BundleCorrupt",
            Self::Signature { .. } | Self::Key(_) => "BundleUntrusted",
            Self::Manifest { .. } => "BundleManifestInvalid",
            Self::Other { .. } => "BundleUnexpected",
            Self::Limit { .. } => "BundleTooLarge",
            Self::Space { .. } => "DiskSpace",
            Self::Directory { .. } => "StagingDirectoryUnsafe",
            Self::Busy { .. } => "StagingBusy",
            Self::File { .. } => "StagingFailed",
        }
    }

    pub(crate) fn read(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::file(path, "read", source)
    }

    pub(crate) fn written(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::file(path, "written", source)
    }

    fn file(path: impl Into<PathBuf>, action: &'static str, source: io::Error) -> Self {
        Self::File { path: path.into(), action, source }
    }
}
