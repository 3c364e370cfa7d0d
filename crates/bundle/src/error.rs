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
        "{location:?} names no bundle: {problem}. Expected an absolute path of a directory, http(s)://HOST/DIRECTORY/ or oci://REGISTRY/REPOSITORY@sha256:DIGEST"
    )]
    Location {
        /// The location as given.
        location: String,
        /// What is wrong.
        problem: String,
    },
    /// A server cannot be reached.
    #[error("{url} cannot be reached: {reason}")]
    Unreachable {
        /// The requested URL.
        url: String,
        /// The reason.
        reason: String,
    },
    /// A server sent no data before the timeout.
    #[error("{url} said nothing for {seconds} s")]
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
    #[error("{url} answered what cannot be used: {problem}")]
    Answer {
        /// The requested URL.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// A download was interrupted. The received bytes are kept; the next attempt resumes there.
    #[error("{file} broke off after {found} of {expected} bytes: {reason}")]
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
    #[error("{what} is not there: a bundle has it beside its other parts")]
    Missing {
        /// The missing file.
        what: String,
    },
    /// The size of a file differs from the manifest.
    #[error("{file} has {found} bytes, and the manifest says {expected}")]
    Size {
        /// Name of the file.
        file: String,
        /// Size in the manifest.
        expected: u64,
        /// Actual size.
        found: u64,
    },
    /// The digest of a file differs from the manifest.
    #[error("{file} is not what was signed: expected sha256 {expected}, found {found}")]
    Content {
        /// Name of the file.
        file: String,
        /// Digest in the manifest.
        expected: Digest,
        /// Actual digest.
        found: Digest,
    },
    /// A part of a bundle exceeds its size limit.
    #[error("{file} is larger than {limit} bytes, the most that it can have")]
    Large {
        /// Name of the file.
        file: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// The signature is not valid.
    #[error("the signature of {location} is refused: {problem}")]
    Signature {
        /// Location of the bundle.
        location: String,
        /// Why the signature was refused.
        problem: SignatureError,
    },
    /// The manifest is not valid.
    #[error("the manifest of {location} is refused: {problem}")]
    Manifest {
        /// Location of the bundle.
        location: String,
        /// Why the manifest was refused.
        problem: Box<ManifestError>,
    },
    /// The bundle is valid, but it is not the requested one.
    #[error("{location} is not the bundle that is wanted: its {field} is {found}, not {expected}")]
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
    #[error("{location} has {found} bytes, and at most {limit} may be staged")]
    Limit {
        /// Location of the bundle.
        location: String,
        /// The limit in bytes.
        limit: u64,
        /// Size of the bundle in bytes.
        found: u64,
    },
    /// The disk has not enough free space or inodes.
    #[error("{} has room for {free} more {unit}, and the bundle needs {needed}: make room and try again", directory.display())]
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
    #[error("{} cannot hold staged files: {problem}", directory.display())]
    Directory {
        /// The staging directory.
        directory: PathBuf,
        /// Why it is not safe.
        problem: String,
    },
    /// Another process is staging into the same directory.
    #[error("another process is staging into {}", directory.display())]
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
            Self::Location { .. } => "BundleLocationInvalid",
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
