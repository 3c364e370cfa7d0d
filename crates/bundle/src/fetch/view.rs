//! Publishes a complete bundle: a directory of links to verified contents, created by one rename.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};

use super::{
    Head,
    staged::IMAGES,
    store::{self, Store},
};
use crate::{
    digest::Digest,
    error::Error,
    images::{self, index_json},
    layout,
    manifest::Manifest,
};

/// Prefix of a bundle's directory while it is being built.
pub(crate) const UNFINISHED: &str = ".new-";

/// Creates the directory of a bundle whose contents are all present.
pub(crate) async fn publish(store: &Store, head: &Head) -> Result<(), Error> {
    let (store, head) = (store.clone(), head.clone());
    store::blocking(move || publish_now(&store, &head)).await
}

fn publish_now(store: &Store, head: &Head) -> Result<(), Error> {
    let name = head.manifest_sha256.as_str();
    let (bundles, contents) = (store.bundles(), Contents::new(head));
    let place = bundles.join(name);
    if contents.holds(store, &place) {
        // The bundle that was staged last is the newest.
        return touch(&place);
    }
    let unfinished = bundles.join(format!("{UNFINISHED}{name}"));
    remove_directory(&unfinished)?;
    contents.make(store, &unfinished)?;
    remove_directory(&place)?;
    fs::rename(&unfinished, &place).map_err(|error| Error::written(&place, error))?;
    store::sync_parent(&place)
}

/// Makes a bundle's directory the newest of all.
pub(crate) async fn make_newest(directory: &Path) -> Result<(), Error> {
    let directory = directory.to_owned();
    store::blocking(move || touch(&directory)).await
}

fn touch(directory: &Path) -> Result<(), Error> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    let opened = fs::File::open(directory);
    let touched = opened.and_then(|opened| Ok(futimens(&opened, &times)?));
    touched.map_err(|error| Error::written(directory, error))
}

/// Expected entries of a bundle's directory.
struct Contents {
    texts: Vec<(PathBuf, Vec<u8>)>,
    links: Vec<(PathBuf, Digest)>,
}

impl Contents {
    fn new(head: &Head) -> Self {
        let Head { manifest, .. } = head;
        let mut texts = vec![
            (layout::MANIFEST.into(), head.manifest_bytes.clone()),
            (layout::SIGNATURE.into(), head.signature.clone().into_bytes()),
        ];
        let files = manifest.files.iter();
        let mut links: Vec<_> =
            files.map(|file| (file.path.clone().into(), file.sha256.clone())).collect();
        if !manifest.images.is_empty() {
            let images = Path::new(IMAGES);
            let layout_text = images::LAYOUT_VERSION.as_bytes().to_vec();
            texts.push((images.join(layout::OCI_LAYOUT), layout_text));
            texts.push((images.join(layout::OCI_INDEX), image_index(manifest)));
            for blob in image_blobs(manifest) {
                links.push((images.join(layout::blob_path(&blob)), blob));
            }
        }
        Self { texts, links }
    }

    /// Reports whether the directory is as expected: the same texts, the same files.
    fn holds(&self, store: &Store, place: &Path) -> bool {
        let same_text = |(path, text): &(PathBuf, Vec<u8>)| {
            fs::read(place.join(path)).is_ok_and(|found| found == *text)
        };
        let same_file = |(path, digest): &(PathBuf, Digest)| {
            let inode = |path: PathBuf| {
                let found = fs::symlink_metadata(path).ok()?;
                Some((found.dev(), found.ino()))
            };
            let found = inode(place.join(path));
            found.is_some() && found == inode(store.blob(digest))
        };
        self.texts.iter().all(same_text) && self.links.iter().all(same_file)
    }

    fn make(&self, store: &Store, place: &Path) -> Result<(), Error> {
        let mut directories = vec![place.to_owned()];
        for (path, digest) in &self.links {
            let path = place.join(path);
            make_parent(&path, &mut directories)?;
            fs::hard_link(store.blob(digest), &path)
                .map_err(|error| Error::written(&path, error))?;
        }
        for (path, text) in &self.texts {
            let path = place.join(path);
            make_parent(&path, &mut directories)?;
            write_new(&path, text).map_err(|error| Error::written(&path, error))?;
        }
        for directory in directories.iter().chain(&store.content_directories()) {
            let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
            synced.map_err(|error| Error::written(directory, error))?;
        }
        Ok(())
    }
}

/// Returns the digest of each blob of the images once.
pub(crate) fn image_blobs(manifest: &Manifest) -> Vec<Digest> {
    let blobs = manifest.images.iter().flat_map(|image| &image.blobs);
    let mut digests: Vec<_> = blobs.map(|blob| blob.sha256.clone()).collect();
    digests.sort();
    digests.dedup();
    digests
}

/// Builds the `index.json` of the bundle's images only.
pub(crate) fn image_index(manifest: &Manifest) -> Vec<u8> {
    index_json(manifest.images.iter().map(images::named_descriptor).collect())
}

fn make_parent(path: &Path, made: &mut Vec<PathBuf>) -> Result<(), Error> {
    let Some(directory) = path.parent() else {
        return Ok(());
    };
    if !made.iter().any(|known| known == directory) || !directory.exists() {
        let mut builder = fs::DirBuilder::new();
        let builder = builder.recursive(true).mode(0o755);
        builder.create(directory).map_err(|error| Error::written(directory, error))?;
        made.push(directory.to_owned());
    }
    Ok(())
}

/// Creates a new file and syncs it.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let options = store::no_follow(options.create_new(true).write(true), 0o644);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes a directory; a missing directory is not an error.
pub(crate) fn remove_directory(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::written(path, error)),
        _ => Ok(()),
    }
}
