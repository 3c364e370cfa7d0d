//! Archives written by `docker save` before it supported OCI.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    BuildError,
    archive::{Archive, MAX_JSON_BYTES},
    content::Content,
    image::Unnamed,
};
use crate::{
    digest::Digest,
    images::{Descriptor, ImageManifest, OCI_CONFIG, OCI_LAYER, OCI_LAYER_GZIP, OCI_MANIFEST},
    manifest::Architecture,
};

/// Name of the image list in such an archive.
pub(crate) const MANIFEST: &str = "manifest.json";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// The fields of an image configuration that Refit reads.
#[derive(Default, Deserialize)]
pub(crate) struct Config {
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    rootfs: RootFs,
}

#[derive(Default, Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

impl Config {
    /// Checks that the image is for the wanted architecture.
    pub(crate) fn check(&self, archive: &Archive, wanted: Architecture) -> Result<(), BuildError> {
        if self.os == "linux" && self.architecture == wanted.as_str() {
            return Ok(());
        }
        let (os, found) = (&self.os, &self.architecture);
        let wanted = wanted.as_str();
        Err(archive
            .invalid(format!("the image is for {os}/{found}, the bundle for linux/{wanted}")))
    }
}

/// Reads every image and generates an OCI manifest for it.
pub(crate) fn read(
    archive: &Archive,
    architecture: Architecture,
) -> Result<Vec<Unnamed>, BuildError> {
    let entries: Vec<Entry> = archive.json(MANIFEST)?;
    entries.into_iter().map(|entry| read_image(archive, architecture, entry)).collect()
}

fn read_image(
    archive: &Archive,
    architecture: Architecture,
    entry: Entry,
) -> Result<Unnamed, BuildError> {
    let config = archive.need(&entry.config)?;
    let text = config.read_small(MAX_JSON_BYTES)?;
    let parsed: Config = archive.parse(&entry.config, &text)?;
    parsed.check(archive, architecture)?;
    let diff_ids = &parsed.rootfs.diff_ids;
    if diff_ids.len() != entry.layers.len() {
        let (layers, ids) = (entry.layers.len(), diff_ids.len());
        return Err(archive
            .invalid(format!("the image has {layers} layers, but its configuration lists {ids}")));
    }
    let mut contents = BTreeMap::new();
    let config_descriptor = descriptor(OCI_CONFIG, &Digest::of(&text), &config);
    contents.insert(Digest::of(&text), config);
    let mut layers = Vec::new();
    for (name, diff_id) in entry.layers.iter().zip(diff_ids) {
        let layer = archive.need(name)?;
        let digest = layer.digest()?;
        let media_type = if digest.to_oci() == *diff_id {
            OCI_LAYER
        } else if is_gzip(&layer)? {
            OCI_LAYER_GZIP
        } else {
            let problem =
                format!("{name} is damaged: expected {diff_id}, found {}", digest.to_oci());
            return Err(archive.invalid(problem));
        };
        layers.push(descriptor(media_type, &digest, &layer));
        contents.insert(digest, layer);
    }
    let manifest = ImageManifest {
        schema_version: 2,
        media_type: Some(OCI_MANIFEST.to_owned()),
        artifact_type: None,
        config: config_descriptor,
        layers,
    };
    let manifest =
        serde_json::to_vec(&manifest).expect("the keys of all maps are strings and no type fails");
    let digest = Digest::of(&manifest);
    contents.insert(digest.clone(), Content::Bytes(manifest));
    Ok(Unnamed {
        names: entry.repo_tags.unwrap_or_default(),
        manifest: digest,
        media_type: OCI_MANIFEST.to_owned(),
        contents,
    })
}

fn descriptor(media_type: &str, digest: &Digest, content: &Content) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: digest.to_oci(),
        size: content.size(),
        ..Descriptor::default()
    }
}

fn is_gzip(content: &Content) -> Result<bool, BuildError> {
    let mut magic = [0; 2];
    let read = content.open()?.read(&mut magic).map_err(BuildError::read(content.path()))?;
    Ok(read == 2 && magic == [0x1f, 0x8b])
}
