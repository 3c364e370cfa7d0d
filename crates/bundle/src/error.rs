//! What can go wrong with a bundle.

use std::{io, path::PathBuf};

use crate::{
    digest::Digest,
    keys::{KeyError, SignatureError},
    manifest::ManifestError,
};

/// Why a bundle cannot be read, verified or staged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text names no place of a bundle.
    #[error(
        "{location:?} names no bundle: {problem}. Expected an absolute path of a directory, http(s)://HOST/DIRECTORY/ or oci://REGISTRY/REPOSITORY@sha256:DIGEST"
    )]
    Location {
        /// The text.
        location: String,
        /// What is wrong.
        problem: String,
    },
    /// A server cannot be reached.
    #[error("{url} cannot be reached: {reason}")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// Why.
        reason: String,
    },
    /// A server said nothing for too long.
    #[error("{url} said nothing for {seconds} s")]
    Silent {
        /// What was asked for.
        url: String,
        /// How long.
        seconds: u64,
    },
    /// A server refused.
    #[error("{url} answered {status}{hint}")]
    Refused {
        /// What was asked for.
        url: String,
        /// HTTP status.
        status: u16,
        /// What to do.
        hint: &'static str,
    },
    /// A server answered what makes no sense.
    #[error("{url} answered what cannot be used: {problem}")]
    Answer {
        /// What was asked for.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// A download broke off. What came is kept, and the next try goes on from there.
    #[error("{file} broke off after {found} of {expected} bytes: {reason}")]
    Torn {
        /// The file.
        file: String,
        /// Bytes that came.
        found: u64,
        /// Bytes that it has.
        expected: u64,
        /// Why.
        reason: String,
    },
    /// A file is not there.
    #[error("{what} is not there: a bundle has it beside its other parts")]
    Missing {
        /// Which.
        what: String,
    },
    /// A file has another size than the manifest says.
    #[error("{file} has {found} bytes, and the manifest says {expected}")]
    Size {
        /// The file.
        file: String,
        /// What the manifest says.
        expected: u64,
        /// What it has.
        found: u64,
    },
    /// A file's bytes are not those of the manifest.
    #[error("{file} is not what was signed: expected sha256 {expected}, found {found}")]
    Content {
        /// The file.
        file: String,
        /// What the manifest says.
        expected: Digest,
        /// What the bytes have.
        found: Digest,
    },
    /// A part of a bundle is larger than such a part can be.
    #[error("{file} is larger than {limit} bytes, the most that it can have")]
    Large {
        /// The file.
        file: String,
        /// The most.
        limit: u64,
    },
    /// The signature does not hold.
    #[error("the signature of {location} is refused: {problem}")]
    Signature {
        /// The bundle.
        location: String,
        /// Why.
        problem: SignatureError,
    },
    /// The manifest is not one.
    #[error("the manifest of {location} is refused: {problem}")]
    Manifest {
        /// The bundle.
        location: String,
        /// Why.
        problem: Box<ManifestError>,
    },
    /// It is a good bundle, but not the one that is wanted.
    #[error("{location} is not the bundle that is wanted: its {field} is {found}, not {expected}")]
    Other {
        /// The bundle.
        location: String,
        /// What differs.
        field: &'static str,
        /// What is wanted.
        expected: String,
        /// What it has.
        found: String,
    },
    /// It is larger than the limits allow.
    #[error("{location} has {found} bytes, and at most {limit} may be staged")]
    Limit {
        /// The bundle.
        location: String,
        /// The most.
        limit: u64,
        /// What it has.
        found: u64,
    },
    /// There is not enough room.
    #[error("{} has room for {free} more {unit}, and the bundle needs {needed}: make room and try again", directory.display())]
    Space {
        /// Where.
        directory: PathBuf,
        /// What is needed.
        needed: u64,
        /// What is free.
        free: u64,
        /// Of what.
        unit: &'static str,
    },
    /// Somebody else could change what is staged.
    #[error("{} cannot hold staged files: {problem}", directory.display())]
    Directory {
        /// Where.
        directory: PathBuf,
        /// Why.
        problem: String,
    },
    /// Another process stages into the same directory.
    #[error("another process is staging into {}", directory.display())]
    Busy {
        /// Where.
        directory: PathBuf,
    },
    /// A file on this host cannot be used.
    #[error("{} cannot be {action}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What was tried: `read`, `written`.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A public key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl Error {
    /// Whether the same call may succeed later without anybody doing anything.
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

    /// A CamelCase reason for conditions and reports.
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
