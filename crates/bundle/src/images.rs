//! The parts of the OCI image formats that bundles read and write.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{digest::Digest, manifest::Image};

/// Media type of an image manifest.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an index of several manifests.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Docker's media type of an image manifest.
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// Docker's media type of a manifest list.
pub const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Media type of an image's configuration.
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Media type of an uncompressed layer.
pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// Media type of a gzip-compressed layer.
pub const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// Media type of the empty configuration of an artifact.
pub const OCI_EMPTY: &str = "application/vnd.oci.empty.v1+json";
/// The empty configuration.
pub const EMPTY: &[u8] = b"{}";

/// Type of the artifact that holds a bundle in a registry.
pub const ARTIFACT: &str = "application/vnd.refit.bundle.v1";
/// Media type of a bundle's manifest in a registry.
pub const BUNDLE_MANIFEST: &str = "application/vnd.refit.bundle.manifest.v1+json";
/// Media type of a bundle's signature in a registry.
pub const BUNDLE_SIGNATURE: &str = "application/vnd.refit.bundle.signature.v1";
/// Media type of every other file of a bundle in a registry.
pub const BUNDLE_BLOB: &str = "application/octet-stream";

/// Annotation with a tag, by which tools find an entry of a layout.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// Annotation with a file's name.
pub const TITLE: &str = "org.opencontainers.image.title";
/// Annotation with the full image name, under which containerd imports the image.
pub const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// Content of the file `oci-layout`.
pub const LAYOUT_VERSION: &str = "{\"imageLayoutVersion\":\"1.0.0\"}";

/// Reports whether a media type is that of an image manifest.
pub fn is_image_manifest(media_type: &str) -> bool {
    matches!(media_type, OCI_MANIFEST | DOCKER_MANIFEST)
}

/// Reports whether a media type is that of an index or manifest list.
pub fn is_index(media_type: &str) -> bool {
    matches!(media_type, OCI_INDEX | DOCKER_INDEX)
}

/// A reference to content, by digest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Media type of the content.
    #[serde(default)]
    pub media_type: String,
    /// `sha256:...`.
    pub digest: String,
    /// Size in bytes.
    pub size: u64,
    /// Annotations of the content.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Platform of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Type of the artifact that it points to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
}

/// The platform of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Platform {
    /// Processor architecture.
    #[serde(default)]
    pub architecture: String,
    /// Operating system.
    #[serde(default)]
    pub os: String,
}

/// An index of manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// Always 2.
    pub schema_version: u32,
    /// Media type of the index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The manifests.
    #[serde(default)]
    pub manifests: Vec<Descriptor>,
}

/// The manifest of an image or artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageManifest {
    /// Always 2.
    pub schema_version: u32,
    /// Media type of the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Type of the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Descriptor of the configuration.
    pub config: Descriptor,
    /// Layers of an image, or files of an artifact.
    #[serde(default)]
    pub layers: Vec<Descriptor>,
}

/// Builds the descriptor of an image in an `index.json`, as containerd, skopeo and oras read it.
pub fn named_descriptor(image: &Image) -> Descriptor {
    let size_of = |digest: &Digest| {
        let blob = image.blobs.iter().find(|blob| blob.sha256 == *digest);
        blob.map_or(0, |blob| blob.size)
    };
    let names = [(CONTAINERD_NAME, &image.name), (REF_NAME, &image.name)];
    Descriptor {
        media_type: image.media_type.clone(),
        digest: image.manifest.to_oci(),
        size: size_of(&image.manifest),
        annotations: names.map(|(key, name)| (key.to_owned(), name.clone())).into(),
        ..Descriptor::default()
    }
}

/// Builds an `index.json` with these entries.
pub fn index_json(manifests: Vec<Descriptor>) -> Vec<u8> {
    let index = Index { schema_version: 2, media_type: Some(OCI_INDEX.to_owned()), manifests };
    serde_json::to_vec(&index).expect("the keys of all maps are strings and no type fails")
}
