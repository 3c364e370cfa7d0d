//! Reads container images from every supported archive format.

use std::{collections::BTreeMap, path::Path};

use tempfile::TempPath;

use super::{BuildError, ImageSpec, archive::Archive, content::Content, docker, oci};
use crate::{
    digest::Digest,
    layout,
    manifest::{Architecture, Blob, Image},
    names,
};

/// An image and the location of its blobs.
pub(crate) type ImageWithBlobs = (Image, BTreeMap<Digest, Content>);

/// An image that may not have a name yet.
pub(crate) struct Unnamed {
    /// Names of the image in the archive; may be empty.
    pub(crate) names: Vec<String>,
    /// Digest of the image manifest.
    pub(crate) manifest: Digest,
    /// Media type of the image manifest.
    pub(crate) media_type: String,
    /// Every blob of the image.
    pub(crate) contents: BTreeMap<Digest, Content>,
}

/// Reads the images of an archive or layout.
pub(crate) fn read(
    spec: &ImageSpec,
    architecture: Architecture,
    scratch: &Path,
) -> Result<(Vec<ImageWithBlobs>, Option<TempPath>), BuildError> {
    let archive = Archive::open(&spec.path, scratch)?;
    // Since Docker 25 `docker save` writes both formats; the OCI format holds more information.
    let unnamed = if archive.find(layout::OCI_INDEX)?.is_some() {
        oci::read(&archive, architecture)?
    } else if archive.find(docker::MANIFEST)?.is_some() {
        docker::read(&archive, architecture)?
    } else {
        let problem = "neither an OCI layout (index.json) nor a docker archive (manifest.json)";
        return Err(archive.invalid(problem));
    };
    let found = name_all(&archive, spec, unnamed)?;
    Ok((found, archive.into_unpacked()))
}

fn name_all(
    archive: &Archive,
    spec: &ImageSpec,
    mut unnamed: Vec<Unnamed>,
) -> Result<Vec<ImageWithBlobs>, BuildError> {
    if let Some(name) = &spec.name {
        let [image] = unnamed.as_mut_slice() else {
            let problem =
                format!("name is set, but the archive has {} images, expected one", unnamed.len());
            return Err(archive.invalid(problem));
        };
        image.names = vec![name.clone()];
    }
    if unnamed.is_empty() {
        return Err(archive.invalid("no image in the archive"));
    }
    let mut found = Vec::new();
    for image in unnamed {
        if image.names.is_empty() {
            let problem = format!("image {} has no name in the archive; set name", image.manifest);
            return Err(archive.invalid(problem));
        }
        let blobs = image
            .contents
            .iter()
            .map(|(sha256, content)| Blob { sha256: sha256.clone(), size: content.size() });
        let blobs: Vec<_> = blobs.collect();
        for name in &image.names {
            let named = Image {
                blobs: blobs.clone(),
                manifest: image.manifest.clone(),
                media_type: image.media_type.clone(),
                name: full_name(name),
            };
            found.push((named, image.contents.clone()));
        }
    }
    Ok(found)
}

/// Returns the full image name as containerd and the kubelet use it: Docker omits its own registry.
pub(crate) fn full_name(name: &str) -> String {
    let first = name.split('/').next().unwrap_or_default();
    let is_host = name.contains('/') && (first.contains(['.', ':']) || first == "localhost");
    match (is_host, name.contains('/')) {
        (true, _) => name.to_owned(),
        (false, true) => format!("docker.io/{name}"),
        (false, false) => format!("docker.io/library/{name}"),
    }
}

/// Reports whether a text can be a full image name rather than only a tag.
pub(crate) fn is_name(text: &str) -> bool {
    names::is_image_name(&full_name(text)) && text.contains(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_short_names_are_completed() {
        assert_eq!(full_name("busybox:1"), "docker.io/library/busybox:1");
        assert_eq!(full_name("calico/node:v3"), "docker.io/calico/node:v3");
        assert_eq!(full_name("registry.k8s.io/pause:3.10"), "registry.k8s.io/pause:3.10");
        assert_eq!(full_name("localhost/a:b"), "localhost/a:b");
        assert!(is_name("registry.k8s.io/pause:3.10") && !is_name("3.10") && !is_name("latest"));
    }
}
