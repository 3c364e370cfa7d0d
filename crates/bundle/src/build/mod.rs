//! Builds bundles: reads packages and images, packs them and signs the manifest.
//!
//! Builds are reproducible: a bundle contains no timestamps and no users, does not depend on
//! directory order, and ed25519 needs no randomness.

mod archive;
mod content;
mod docker;
mod image;
pub mod key;
mod oci;
mod package;
mod spec;
mod write;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

pub use key::SecretKey;
pub use spec::{FileSpec, ImageSpec, PackageSpec, Spec};

use crate::{
    digest::Digest,
    layout,
    manifest::{API_VERSION, File, FileKind, Manifest, ManifestError, OsFamily},
};
use content::Content;

/// Why a bundle cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The bundle spec file cannot be read.
    #[error("{}: {problem}", path.display())]
    Spec {
        /// The spec file.
        path: PathBuf,
        /// What is wrong, and where.
        problem: String,
    },
    /// An input cannot be packed.
    #[error("{}: {problem}", path.display())]
    Input {
        /// Path of the input.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A file cannot be read or written.
    #[error("{} cannot be {action}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The operation that failed.
        action: &'static str,
        /// The underlying error.
        source: io::Error,
    },
    /// The resulting manifest would be invalid.
    #[error("the bundle would be rejected: {0}")]
    Manifest(#[from] ManifestError),
    /// The key cannot be used.
    #[error("invalid key {}: {problem}", path.display())]
    Key {
        /// Path of the key.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The output exists already.
    #[error("{} already exists; remove it, or choose another name", path.display())]
    Exists {
        /// Path of the output.
        path: PathBuf,
    },
}

impl BuildError {
    pub(crate) fn input(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self::Input { path: path.into(), problem: problem.into() }
    }

    pub(crate) fn read(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, action: "read", source }
    }

    pub(crate) fn written(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, action: "written", source }
    }
}

/// The result of a build.
#[derive(Clone, Debug)]
pub struct Built {
    /// The manifest of the bundle.
    pub manifest: Manifest,
    /// Digest of the manifest.
    pub manifest_sha256: Digest,
    /// Digest of the artifact in a registry: the part after `@` in an `oci://` location.
    pub artifact: Digest,
}

/// All inputs of a bundle, read and hashed.
pub(crate) struct Gathered {
    manifest: Manifest,
    contents: BTreeMap<Digest, Content>,
    /// Archives that were unpacked to temporary files; dropping them removes the files.
    unpacked: Vec<tempfile::TempPath>,
}

/// Builds the bundle that `spec` describes into the directory `output`.
///
/// Either the whole bundle appears under that name, or nothing.
pub fn build(spec: &Spec, key: &SecretKey, output: &Path) -> Result<Built, BuildError> {
    if fs::symlink_metadata(output).is_ok() {
        let path = output.to_owned();
        return Err(BuildError::Exists { path });
    }
    if output.extension().is_some_and(|ending| ending == "tar") {
        let problem =
            "a bundle is a directory; choose a name without .tar, and pack it for transport only";
        return Err(BuildError::input(output, problem));
    }
    let gathered = gather(spec, parent(output))?;
    let manifest = gathered.manifest.to_canonical();
    let signature = key.sign(&manifest, &comment(&gathered.manifest, &Digest::of(&manifest)));
    let parts = write::Parts::new(&gathered, manifest, signature);
    let artifact = parts.artifact.clone();
    write::directory(&parts, output)?;
    Ok(Built {
        manifest_sha256: Digest::of(&parts.manifest),
        manifest: gathered.manifest,
        artifact,
    })
}

/// Formats the trusted comment, which the signature protects together with the manifest: a summary
/// for readers.
fn comment(manifest: &Manifest, digest: &Digest) -> String {
    let (version, os) = (&manifest.kubernetes_version, manifest.os_family.as_str());
    let architecture = manifest.architecture.as_str();
    format!(
        "refit bundle: Kubernetes {version} for {os} on {architecture}, manifest sha256 {digest}"
    )
}

/// Returns the parent directory of a path.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn gather(spec: &Spec, scratch: &Path) -> Result<Gathered, BuildError> {
    let mut gathered = Gathered {
        manifest: Manifest {
            api_version: API_VERSION.to_owned(),
            architecture: spec.architecture,
            files: Vec::new(),
            images: Vec::new(),
            kubernetes_version: spec.kubernetes_version.clone(),
            os_family: spec.os_family.unwrap_or(OsFamily::Any),
        },
        contents: BTreeMap::new(),
        unpacked: Vec::new(),
    };
    for package in &spec.packages {
        for path in package_files(&package.path)? {
            let read = package::read(&path, package, spec)?;
            gathered.add_file(FileKind::Package, &path, None, Some(read))?;
        }
    }
    let kinds = [(FileKind::OsImage, &spec.os_images), (FileKind::File, &spec.files)];
    for (kind, files) in kinds {
        for file in files {
            gathered.add_file(kind, &file.path, file.name.as_deref(), None)?;
        }
    }
    for image in &spec.images {
        let (images, unpacked) = image::read(image, spec.architecture, scratch)?;
        for (image, contents) in images {
            gathered.contents.extend(contents);
            // The same image in two archives counts once.
            if !gathered.manifest.images.contains(&image) {
                gathered.manifest.images.push(image);
            }
        }
        gathered.unpacked.extend(unpacked);
    }
    gathered.manifest.sort();
    gathered.manifest.validate()?;
    Ok(gathered)
}

impl Gathered {
    fn add_file(
        &mut self,
        kind: FileKind,
        path: &Path,
        name: Option<&str>,
        package: Option<crate::manifest::Package>,
    ) -> Result<(), BuildError> {
        let own = path.file_name().and_then(|name| name.to_str());
        let name =
            name.or(own).ok_or_else(|| BuildError::input(path, "the file name is not UTF-8"))?;
        let (digest, content) = Content::of_file(path)?;
        self.manifest.files.push(File {
            kind,
            package,
            path: format!("{}/{name}", kind.directory()),
            sha256: digest.clone(),
            size: content.size(),
        });
        self.contents.insert(digest, content);
        Ok(())
    }

    /// Returns every content by digest.
    pub(crate) fn contents(&self) -> &BTreeMap<Digest, Content> {
        &self.contents
    }

    /// Returns the manifest.
    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

/// Lists the package files of a path: the file itself, or the packages in the directory, sorted.
fn package_files(path: &Path) -> Result<Vec<PathBuf>, BuildError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).map_err(BuildError::read(path))?;
    let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(BuildError::read(path))?;
    paths.retain(|path| package::format_of(path).is_some());
    paths.sort();
    if paths.is_empty() {
        let problem = "the directory contains no .deb, .rpm, .tar.gz, .tgz or .tar.xz";
        return Err(BuildError::input(path, problem));
    }
    Ok(paths)
}

/// Returns the path of a content inside a bundle.
pub(crate) fn content_path(digest: &Digest) -> String {
    layout::blob_path(digest)
}
