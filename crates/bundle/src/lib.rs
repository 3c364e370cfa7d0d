//! Air-gapped bundles: what a host needs for one Kubernetes version, in one signed directory.
//!
//! A bundle holds packages, container images and other files under the sha256 of their bytes, and a
//! manifest that describes them. Only the manifest is signed (minisign, ed25519); everything else
//! follows from the digests in it. The directory is an OCI image layout too, so the usual tools can
//! copy it to a registry mirror.
//!
//! ```text
//! refit-bundle.json            the manifest, canonical JSON
//! refit-bundle.json.minisig    its signature
//! blobs/sha256/...             every file, stored once per content
//! index.json, oci-layout       the same for OCI tools
//! ```
//!
//! The agent uses [`fetch::stage`]. The `build` feature adds the code that builds bundles.

#[cfg(feature = "build")]
pub mod build;
pub mod digest;
pub mod error;
pub mod fetch;
pub mod images;
pub mod keys;
pub mod layout;
pub mod manifest;
pub mod names;
pub mod target;

pub use digest::Digest;
pub use error::Error;
pub use keys::PublicKeys;
pub use manifest::Manifest;
