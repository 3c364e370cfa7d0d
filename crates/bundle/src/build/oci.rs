//! OCI layouts, as directories or archives.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    BuildError,
    archive::{Archive, MAX_JSON_BYTES},
    content::Content,
    docker::Config,
    image::{Unnamed, is_name},
};
use crate::{
    digest::Digest,
    images::{
        CONTAINERD_NAME, Descriptor, ImageManifest, Index, REF_NAME, is_image_manifest, is_index,
    },
    layout,
    manifest::Architecture,
};

/// Maximum nesting depth of indexes.
const DEEPEST: usize = 4;

/// Reads every image of a layout that matches the wanted architecture.
pub(crate) fn read(
    archive: &Archive,
    architecture: Architecture,
) -> Result<Vec<Unnamed>, BuildError> {
    let index: Index = archive.json(layout::OCI_INDEX)?;
    let mut by_manifest: BTreeMap<Digest, (Descriptor, BTreeSet<String>)> = BTreeMap::new();
    for entry in index.manifests {
        let name = name_of(&entry);
        // A multi-platform index at the top level is one image, like a nested one.
        let Some(image) = resolve(archive, architecture, &entry, DEEPEST)? else {
            continue;
        };
        let digest = digest_of(archive, &image)?;
        let (_, names) = by_manifest.entry(digest).or_insert_with(|| (image, BTreeSet::new()));
        names.extend(name);
    }
    let images = by_manifest.into_values();
    images.map(|(image, names)| read_image(archive, architecture, &image, names)).collect()
}

fn name_of(entry: &Descriptor) -> Option<String> {
    let annotation = |key: &str| entry.annotations.get(key).filter(|name| is_name(name));
    annotation(CONTAINERD_NAME).or_else(|| annotation(REF_NAME)).cloned()
}

/// Resolves an entry to the manifest for these hosts; returns `None` if it has none.
fn resolve(
    archive: &Archive,
    architecture: Architecture,
    entry: &Descriptor,
    depth: usize,
) -> Result<Option<Descriptor>, BuildError> {
    let is_other = entry.platform.as_ref().is_some_and(|platform| {
        platform.os != "linux" || platform.architecture != architecture.as_str()
    });
    if is_other || entry.artifact_type.is_some() || depth == 0 {
        return Ok(None);
    }
    if is_image_manifest(&entry.media_type) {
        return Ok(Some(entry.clone()));
    }
    if !is_index(&entry.media_type) {
        return Ok(None);
    }
    let (bytes, _) = blob(archive, entry)?;
    let index: Index = archive.parse(&entry.digest, &bytes)?;
    for nested in &index.manifests {
        if let Some(found) = resolve(archive, architecture, nested, depth - 1)? {
            return Ok(Some(found));
        }
    }
    let wanted = architecture.as_str();
    Err(archive.invalid(format!("{} has no image for linux/{wanted}", entry.digest)))
}

fn read_image(
    archive: &Archive,
    architecture: Architecture,
    image: &Descriptor,
    names: BTreeSet<String>,
) -> Result<Unnamed, BuildError> {
    let (bytes, content) = blob(archive, image)?;
    let manifest: ImageManifest = archive.parse(&image.digest, &bytes)?;
    let digest = digest_of(archive, image)?;
    let mut contents = BTreeMap::from([(digest.clone(), content)]);
    let (config, content) = blob(archive, &manifest.config)?;
    archive.parse::<Config>(&manifest.config.digest, &config)?.check(archive, architecture)?;
    contents.insert(digest_of(archive, &manifest.config)?, content);
    for layer in &manifest.layers {
        let content = find(archive, layer)?;
        let expected = digest_of(archive, layer)?;
        check(archive, &expected, &content.digest()?)?;
        contents.insert(expected, content);
    }
    Ok(Unnamed {
        names: names.into_iter().collect(),
        manifest: digest,
        media_type: image.media_type.clone(),
        contents,
    })
}

/// Reads and verifies a small blob.
fn blob(archive: &Archive, descriptor: &Descriptor) -> Result<(Vec<u8>, Content), BuildError> {
    let content = find(archive, descriptor)?;
    let bytes = content.read_small(MAX_JSON_BYTES)?;
    check(archive, &digest_of(archive, descriptor)?, &Digest::of(&bytes))?;
    Ok((bytes, content))
}

fn find(archive: &Archive, descriptor: &Descriptor) -> Result<Content, BuildError> {
    let digest = digest_of(archive, descriptor)?;
    let content = archive.find(&layout::blob_path(&digest))?;
    content.ok_or_else(|| {
        archive.invalid(format!(
            "blob {digest} is missing: the image was saved without all of its layers"
        ))
    })
}

fn digest_of(archive: &Archive, descriptor: &Descriptor) -> Result<Digest, BuildError> {
    Digest::from_oci(&descriptor.digest).map_err(|error| archive.invalid(error.to_string()))
}

fn check(archive: &Archive, expected: &Digest, found: &Digest) -> Result<(), BuildError> {
    if expected == found {
        return Ok(());
    }
    Err(archive.invalid(format!("damaged blob: expected sha256 {expected}, found {found}")))
}
