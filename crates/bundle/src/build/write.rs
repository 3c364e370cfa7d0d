//! Writes a bundle: a directory that is an OCI layout.

use std::{collections::BTreeMap, fs, io, path::Path};

use super::{BuildError, Gathered, content::Content, content_path, parent};
use crate::{
    digest::Digest,
    images::{
        self, ARTIFACT, BUNDLE_BLOB, BUNDLE_MANIFEST, BUNDLE_SIGNATURE, Descriptor, EMPTY,
        ImageManifest, OCI_EMPTY, OCI_MANIFEST, REF_NAME, TITLE, index_json,
    },
    layout,
    manifest::Manifest,
};

/// All files of a bundle.
pub(crate) struct Parts {
    /// The canonical manifest.
    pub(crate) manifest: Vec<u8>,
    signature: Vec<u8>,
    /// Contents that the manifest lists.
    contents: BTreeMap<Digest, Content>,
    /// Contents that only OCI tools read.
    oci: BTreeMap<Digest, Content>,
    index: Vec<u8>,
    /// Digest of the artifact in a registry.
    pub(crate) artifact: Digest,
}

impl Parts {
    /// Assembles the files of a bundle.
    pub(crate) fn new(gathered: &Gathered, manifest: Vec<u8>, signature: String) -> Self {
        let signature = signature.into_bytes();
        let read = gathered.manifest();
        let artifact = artifact_of(read, &manifest, &signature);
        let artifact = serde_json::to_vec(&artifact)
            .expect("the keys of all maps are strings and no type fails");
        let digest = Digest::of(&artifact);
        let entry = Descriptor {
            artifact_type: Some(ARTIFACT.to_owned()),
            annotations: [(REF_NAME.to_owned(), tag(read))].into(),
            ..descriptor(OCI_MANIFEST, &artifact)
        };
        let index = std::iter::once(entry).chain(read.images.iter().map(images::named_descriptor));
        let index = index_json(index.collect());
        let small = [EMPTY.to_vec(), manifest.clone(), signature.clone(), artifact];
        let oci = small.map(|bytes| (Digest::of(&bytes), Content::Bytes(bytes)));
        Self {
            manifest,
            signature,
            contents: gathered.contents().clone(),
            oci: oci.into(),
            index,
            artifact: digest,
        }
    }

    /// Returns the blobs in writing order: first those that hosts read first.
    fn blobs(&self) -> impl Iterator<Item = (&Digest, &Content)> {
        let rest = self.oci.iter().filter(|(digest, _)| !self.contents.contains_key(digest));
        self.contents.iter().chain(rest)
    }
}

/// Returns the tag by which OCI tools find the artifact in the layout.
pub(crate) fn tag(manifest: &Manifest) -> String {
    let (architecture, os) = (manifest.architecture.as_str(), manifest.os_family.as_str());
    format!("{}-{os}-{architecture}", manifest.kubernetes_version.image_tag())
}

/// Builds the OCI artifact: each content is a layer, so pushing the artifact pushes everything.
fn artifact_of(read: &Manifest, manifest: &[u8], signature: &[u8]) -> ImageManifest {
    let titled = |media_type: &str, bytes: &[u8], title: &str| Descriptor {
        annotations: [(TITLE.to_owned(), title.to_owned())].into(),
        ..descriptor(media_type, bytes)
    };
    let mut layers = vec![
        titled(BUNDLE_MANIFEST, manifest, layout::MANIFEST),
        titled(BUNDLE_SIGNATURE, signature, layout::SIGNATURE),
    ];
    for blob in read.blobs() {
        let title = content_path(&blob.sha256);
        layers.push(Descriptor {
            media_type: BUNDLE_BLOB.to_owned(),
            digest: blob.sha256.to_oci(),
            size: blob.size,
            annotations: [(TITLE.to_owned(), title)].into(),
            ..Descriptor::default()
        });
    }
    ImageManifest {
        schema_version: 2,
        media_type: Some(OCI_MANIFEST.to_owned()),
        artifact_type: Some(ARTIFACT.to_owned()),
        config: descriptor(OCI_EMPTY, EMPTY),
        layers,
    }
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: Digest::of(bytes).to_oci(),
        size: bytes.len() as u64,
        ..Descriptor::default()
    }
}

/// Writes the bundle to the directory `output`.
pub(crate) fn directory(parts: &Parts, output: &Path) -> Result<(), BuildError> {
    let near = parent(output);
    let made = tempfile::Builder::new().prefix(".refit-bundle-").tempdir_in(near);
    let made = made.map_err(BuildError::written(near))?;
    let inside = |name: &str| made.path().join(name);
    fs::create_dir_all(inside(layout::BLOBS)).map_err(BuildError::written(output))?;
    for (digest, content) in parts.blobs() {
        let path = inside(&content_path(digest));
        let mut file = fs::File::create_new(&path).map_err(BuildError::written(&path))?;
        copy_checked(digest, content, &mut file, &path)?;
        file.sync_all().map_err(BuildError::written(&path))?;
    }
    let texts = [
        (layout::MANIFEST, parts.manifest.as_slice()),
        (layout::SIGNATURE, parts.signature.as_slice()),
        (layout::OCI_INDEX, parts.index.as_slice()),
        (layout::OCI_LAYOUT, images::LAYOUT_VERSION.as_bytes()),
    ];
    for (name, text) in texts {
        let path = inside(name);
        fs::write(&path, text).map_err(BuildError::written(&path))?;
    }
    // A temporary directory is private to its owner; everyone may read a bundle.
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(made.path(), readable).map_err(BuildError::written(output))?;
    let path = made.keep();
    fs::rename(&path, output).map_err(|error| {
        // Remove the partial bundle; the failed rename is the error to report.
        let _ = fs::remove_dir_all(&path);
        BuildError::written(output)(error)
    })
}

/// Copies a content, and fails if it changed since it was hashed.
fn copy_checked(
    digest: &Digest,
    content: &Content,
    output: &mut dyn io::Write,
    path: &Path,
) -> Result<(), BuildError> {
    if content.copy(output, path)? == *digest {
        return Ok(());
    }
    Err(BuildError::input(content.path(), "the file changed while the bundle was built"))
}
