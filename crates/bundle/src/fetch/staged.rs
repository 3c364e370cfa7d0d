//! A verified bundle on the host, ready for the steps to use.

use std::{
    collections::BTreeSet,
    fs, io,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
};

use super::{
    Head, Location, Wanted, check_head,
    local::CHUNK,
    store::{self, Store},
    view,
};
use crate::{
    digest::{Digest, Hasher},
    error::Error,
    images,
    keys::{PublicKeys, Signed},
    layout,
    manifest::{File, FileKind, MAX_MANIFEST_BYTES, Manifest, Package, PackageFormat},
};

/// Directory of the images inside a bundle's directory.
pub(crate) const IMAGES: &str = "images";

/// A verified bundle on the host.
#[derive(Clone, Debug)]
pub struct Staged {
    /// Directory of the bundle.
    pub directory: PathBuf,
    /// The manifest.
    pub manifest: Manifest,
    /// Digest of the manifest.
    pub manifest_sha256: Digest,
    /// The valid signature.
    pub signed: Signed,
}

impl Staged {
    pub(crate) fn new(store: &Store, head: Head) -> Self {
        Self {
            directory: store.bundles().join(head.manifest_sha256.as_str()),
            manifest: head.manifest,
            manifest_sha256: head.manifest_sha256,
            signed: head.signed,
        }
    }

    /// Returns the path of a file.
    pub fn path_of(&self, file: &File) -> PathBuf {
        self.directory.join(&file.path)
    }

    /// Returns the packages of a format, each with its path.
    pub fn packages(&self, format: PackageFormat) -> Vec<(Package, PathBuf)> {
        let packages = self.manifest.files.iter().filter_map(|file| {
            let package = file.package.clone().filter(|package| package.format == format)?;
            Some((package, self.path_of(file)))
        });
        packages.collect()
    }

    /// Returns the directory of the packages.
    pub fn package_directory(&self) -> PathBuf {
        self.directory.join(FileKind::Package.directory())
    }

    /// Returns the paths of the operating system images.
    pub fn os_images(&self) -> Vec<PathBuf> {
        let files = self.manifest.files.iter();
        let images = files.filter(|file| file.kind == FileKind::OsImage);
        images.map(|file| self.path_of(file)).collect()
    }

    /// Returns the names of the container images.
    pub fn image_names(&self) -> Vec<&str> {
        self.manifest.images.iter().map(|image| image.name.as_str()).collect()
    }

    /// Returns the OCI layout with the container images; `None` if the bundle has none.
    pub fn image_layout(&self) -> Option<PathBuf> {
        (!self.manifest.images.is_empty()).then(|| self.directory.join(IMAGES))
    }

    /// Writes the container images as one OCI archive, as `ctr --namespace k8s.io images import`
    /// accepts it, and returns its size in bytes. It replaces an existing file. It fails before
    /// writing if less than `keep_free` bytes would remain free.
    pub async fn write_image_archive(&self, path: &Path, keep_free: u64) -> Result<u64, Error> {
        let (staged, path) = (self.clone(), path.to_owned());
        store::blocking(move || staged.write_archive(&path, keep_free)).await
    }

    fn write_archive(&self, path: &Path, keep_free: u64) -> Result<u64, Error> {
        store::remove(path)?;
        let needed = self.manifest.image_size().saturating_add(keep_free);
        store::check_free(path.parent().unwrap_or(Path::new("/")), needed, 1)?;
        let written = |error| Error::written(path, error);
        let mut options = fs::OpenOptions::new();
        let options = store::no_follow(options.create_new(true).write(true), 0o600);
        let mut output = options.open(path).map_err(written)?;
        let mut size = 0;
        let index = view::image_index(&self.manifest);
        let texts = [
            (layout::OCI_LAYOUT, images::LAYOUT_VERSION.as_bytes()),
            (layout::OCI_INDEX, index.as_slice()),
        ];
        for (name, text) in texts {
            let length = text.len() as u64;
            size += append(&mut output, name, length, &mut &*text).map_err(written)?;
        }
        for blob in view::image_blobs(&self.manifest) {
            let name = layout::blob_path(&blob);
            let from = self.directory.join(IMAGES).join(&name);
            let read = |error| Error::read(&from, error);
            let mut input = fs::File::open(&from).map_err(read)?;
            let length = input.metadata().map_err(read)?.len();
            size += append(&mut output, &name, length, &mut input).map_err(written)?;
        }
        let end = vec![0; 2 * usize::try_from(layout::BLOCK).expect("a block is small")];
        output.write_all(&end).map_err(written)?;
        output.sync_all().map_err(written)?;
        Ok(size + end.len() as u64)
    }
}

/// Appends a file to a tar and returns the number of bytes written.
pub(crate) fn append(
    output: &mut impl io::Write,
    name: &str,
    size: u64,
    input: &mut impl io::Read,
) -> io::Result<u64> {
    let header = layout::tar_header(name, size)
        .ok_or_else(|| io::Error::other(format!("{name} does not fit into a tar archive")))?;
    output.write_all(&header)?;
    let mut buffer = vec![0; CHUNK];
    let mut left = size;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        let read = match buffer.get_mut(..most) {
            Some(part) => input.read(part)?,
            None => 0,
        };
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else {
            let error = format!("{name} was truncated while it was read");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, error));
        };
        output.write_all(bytes)?;
        left -= read as u64;
    }
    let padding = layout::padding(size);
    io::copy(&mut io::repeat(0).take(padding), output)?;
    Ok(layout::BLOCK + size + padding)
}

/// Finds a bundle that is already on the host, and verifies all of it again. The newest match wins.
/// Needs no server.
pub async fn find(
    directory: &Path,
    keys: &PublicKeys,
    wanted: &Wanted,
) -> Result<Option<Staged>, Error> {
    let store = Store::open(directory).await?;
    look(&store, keys, wanted).await
}

pub(crate) async fn look(
    store: &Store,
    keys: &PublicKeys,
    wanted: &Wanted,
) -> Result<Option<Staged>, Error> {
    let (store, keys, wanted) = (store.clone(), keys.clone(), wanted.clone());
    store::blocking(move || look_now(&store, &keys, &wanted)).await
}

fn look_now(store: &Store, keys: &PublicKeys, wanted: &Wanted) -> Result<Option<Staged>, Error> {
    for place in newest_first(&store.bundles())? {
        // An unusable bundle does not affect the others.
        if let Ok(staged) = reopen(store, &place, keys, wanted) {
            return Ok(Some(staged));
        }
    }
    Ok(None)
}

fn newest_first(bundles: &Path) -> Result<Vec<PathBuf>, Error> {
    let read = |error| Error::read(bundles, error);
    let mut found = Vec::new();
    for entry in fs::read_dir(bundles).map_err(read)? {
        let entry = entry.map_err(read)?;
        let is_bundle =
            entry.file_name().to_str().is_some_and(|name| name.parse::<Digest>().is_ok());
        if is_bundle {
            let made = entry.metadata().and_then(|found| found.modified()).map_err(read)?;
            found.push((made, entry.path()));
        }
    }
    found.sort();
    Ok(found.into_iter().rev().map(|(_, path)| path).collect())
}

fn reopen(
    store: &Store,
    place: &Path,
    keys: &PublicKeys,
    wanted: &Wanted,
) -> Result<Staged, Error> {
    let manifest = read_small(&place.join(layout::MANIFEST), MAX_MANIFEST_BYTES)?;
    let signature = read_small(&place.join(layout::SIGNATURE), layout::MAX_SIGNATURE_BYTES)?;
    let signature = String::from_utf8_lossy(&signature).into_owned();
    let head = check_head(&Location::path(place), keys, wanted, manifest, signature)?;
    let staged = Staged::new(store, head);
    if staged.directory != place {
        return Err(Error::Missing { what: staged.directory.display().to_string() });
    }
    for file in &staged.manifest.files {
        verify_file(&staged.path_of(file), &file.path, &file.sha256)?;
    }
    for digest in view::image_blobs(&staged.manifest) {
        let path = place.join(IMAGES).join(layout::blob_path(&digest));
        verify_file(&path, &staged.manifest.name_of(&digest), &digest)?;
    }
    Ok(staged)
}

fn verify_file(path: &Path, name: &str, expected: &Digest) -> Result<(), Error> {
    let mut options = fs::OpenOptions::new();
    let read = |error| Error::read(path, error);
    let mut file = store::no_follow(options.read(true), 0).open(path).map_err(read)?;
    let mut hasher = Hasher::default();
    store::hash_into(&mut file, &mut hasher).map_err(read)?;
    let found = hasher.finish();
    if found == *expected {
        return Ok(());
    }
    Err(Error::Content { file: name.to_owned(), expected: expected.clone(), found })
}

fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let mut options = fs::OpenOptions::new();
    let read = |error| Error::read(path, error);
    let file = store::no_follow(options.read(true), 0).open(path).map_err(read)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > limit {
        let file = path.display().to_string();
        return Err(Error::Large { file, limit });
    }
    Ok(bytes)
}

/// Removes all but the newest bundles, contents that no remaining bundle uses, and partial
/// downloads. Returns the number of content bytes freed. The bundle `in_use` always stays, even if
/// the clock makes it look old.
///
/// Keep two: a failed update rolls back to the packages of the previous bundle.
pub async fn prune(directory: &Path, keep: usize, in_use: Option<&Digest>) -> Result<u64, Error> {
    let (store, in_use) = (Store::open(directory).await?, in_use.cloned());
    store::blocking(move || prune_now(&store, keep, in_use.as_ref())).await
}

fn prune_now(store: &Store, keep: usize, in_use: Option<&Digest>) -> Result<u64, Error> {
    use std::os::unix::fs::MetadataExt as _;
    let bundles = store.bundles();
    let mut found = newest_first(&bundles)?;
    // If the clock was set back, the bundle that was just staged looks like the oldest. The sort is
    // stable: the others keep their order.
    let place = in_use.map(|digest| bundles.join(digest.as_str()));
    found.sort_by_key(|path| place.as_ref() != Some(path));
    let kept: BTreeSet<PathBuf> = found.into_iter().take(keep).collect();
    for entry in fs::read_dir(&bundles).map_err(|error| Error::read(&bundles, error))? {
        let path = entry.map_err(|error| Error::read(&bundles, error))?.path();
        if !kept.contains(&path) {
            view::remove_directory(&path)?;
        }
    }
    let mut freed = 0;
    for contents in store.content_directories() {
        for entry in fs::read_dir(&contents).map_err(|error| Error::read(&contents, error))? {
            let entry = entry.map_err(|error| Error::read(&contents, error))?;
            let found = entry.metadata().map_err(|error| Error::read(entry.path(), error))?;
            // A bundle that is kept holds a second link.
            if found.nlink() == 1 {
                store::remove(&entry.path())?;
                freed += found.len();
            }
        }
    }
    Ok(freed)
}
