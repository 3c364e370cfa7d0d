//! The manifest of a bundle: what is in it, for which hosts, and the sha256 of each byte.
//!
//! The JSON is canonical: keys and lists sorted, no white space, one newline at the end. A manifest
//! that is written otherwise is refused, so one content has one digest and one signature.

use std::collections::BTreeMap;

use refit_kinds::version::KubernetesVersion;
use serde::{Deserialize, Serialize};

pub use crate::target::{Architecture, OsFamily};
use crate::{
    digest::Digest,
    names::{self, PathProblem},
};

/// The version of the format that this program writes and reads.
pub const API_VERSION: &str = "bundle.refit.dev/v1";
/// Largest manifest that is read: some 20,000 files.
pub const MAX_MANIFEST_BYTES: u64 = 8 << 20;
/// Largest file: what a plain tar header can say.
pub const MAX_FILE_BYTES: u64 = (8 << 30) - 1;
/// Most files and image blobs together.
pub const MAX_FILES: usize = 20_000;

/// What is in a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format.
    pub api_version: String,
    /// Processor architecture of the hosts.
    pub architecture: Architecture,
    /// Packages and other files, sorted by path.
    pub files: Vec<File>,
    /// Container images, sorted by name.
    pub images: Vec<Image>,
    /// Kubernetes version that the bundle brings, `vX.Y.Z`.
    pub kubernetes_version: KubernetesVersion,
    /// Operating systems that the packages are for.
    pub os_family: OsFamily,
}

/// One file that keeps its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct File {
    /// What it is.
    pub kind: FileKind,
    /// What it installs, for a package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Package>,
    /// Where it stands in the staging directory, such as `packages/kubelet_1.35.0-1.1_amd64.deb`.
    pub path: String,
    /// sha256 of its bytes.
    pub sha256: Digest,
    /// How many bytes it has.
    pub size: u64,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FileKind {
    /// A .deb, a .rpm or a tarball of binaries, in `packages/`.
    Package,
    /// An image of the operating system, in `os/`.
    OsImage,
    /// Anything else, in `files/`.
    File,
}

impl FileKind {
    /// The directory that files of this kind stand in.
    pub fn directory(self) -> &'static str {
        match self {
            Self::Package => "packages",
            Self::OsImage => "os",
            Self::File => "files",
        }
    }
}

/// What a package installs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Package {
    /// Architecture as the package says it: `amd64`, `x86_64`, `all`, `noarch`.
    pub architecture: String,
    /// How it is packed.
    pub format: PackageFormat,
    /// Its name.
    pub name: String,
    /// Its version, as the package manager compares it.
    pub version: String,
}

/// How a package is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PackageFormat {
    /// For apt and dpkg.
    Deb,
    /// For dnf and rpm.
    Rpm,
    /// Plain binaries.
    Tarball,
}

/// One container image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    /// Everything that it consists of, its manifest too, sorted by digest.
    pub blobs: Vec<Blob>,
    /// Digest of its manifest, one of the blobs.
    pub manifest: Digest,
    /// Media type of its manifest.
    pub media_type: String,
    /// What it is called: `registry.k8s.io/kube-apiserver:v1.35.0`.
    pub name: String,
}

/// Some bytes under their digest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Blob {
    /// sha256 of the bytes.
    pub sha256: Digest,
    /// How many.
    pub size: u64,
}

/// Why a manifest is refused.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It is larger than any manifest.
    #[error("it has {found} bytes, and a manifest has at most {MAX_MANIFEST_BYTES}")]
    Large {
        /// Its size.
        found: u64,
    },
    /// It is of another version of the format.
    #[error(
        "its apiVersion is {found:?}, and this version of Refit reads {API_VERSION:?}: build it with the same version, or upgrade"
    )]
    Version {
        /// What it says.
        found: String,
    },
    /// It is no JSON of this form.
    #[error("it cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// Its bytes are not those that its content has.
    #[error("it is not written canonically, so it was changed after `refit bundle build`")]
    NotCanonical,
    /// A field has a value that it cannot have.
    #[error("{field}: {problem}")]
    Field {
        /// Which field, of which entry.
        field: String,
        /// What is wrong.
        problem: String,
    },
    /// A path is not one for a bundle.
    #[error("files: the path {path:?} is refused: {problem}")]
    Path {
        /// The path.
        path: String,
        /// What is wrong.
        problem: PathProblem,
    },
}

/// The one field that is read before the others.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versioned {
    #[serde(default)]
    api_version: String,
}

impl Manifest {
    /// Reads a manifest and refuses everything that is not exactly one.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() as u64 > MAX_MANIFEST_BYTES {
            let found = bytes.len() as u64;
            return Err(ManifestError::Large { found });
        }
        let Versioned { api_version } = serde_json::from_slice(bytes)?;
        if api_version != API_VERSION {
            return Err(ManifestError::Version { found: api_version });
        }
        let manifest: Self = serde_json::from_slice(bytes)?;
        if manifest.to_canonical() != bytes {
            return Err(ManifestError::NotCanonical);
        }
        manifest.validate()?;
        Ok(manifest)
    }

    /// Sorts what has no order of its own, so that the same content is the same text.
    pub fn sort(&mut self) {
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        for image in &mut self.images {
            image.blobs.sort();
            image.blobs.dedup();
        }
        self.images.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// The bytes that are signed.
    pub fn to_canonical(&self) -> Vec<u8> {
        // Fields are declared in the order of their names.
        let mut bytes = serde_json::to_vec(self).expect("no map with other keys, no failing type");
        bytes.push(b'\n');
        bytes
    }

    /// Every content once, sorted by digest.
    pub fn blobs(&self) -> Vec<Blob> {
        let sizes: BTreeMap<&Digest, u64> = self.contents().collect();
        let blob = |(sha256, size): (&Digest, u64)| Blob { sha256: sha256.clone(), size };
        sizes.into_iter().map(blob).collect()
    }

    /// Bytes of every content, each once.
    pub fn total_size(&self) -> u64 {
        let sizes = self.blobs().into_iter().map(|blob| blob.size);
        sizes.fold(0, u64::saturating_add)
    }

    /// Bytes of everything that images consist of, each once.
    pub fn image_size(&self) -> u64 {
        let blobs = self.images.iter().flat_map(|image| &image.blobs);
        let sizes: BTreeMap<&Digest, u64> = blobs.map(|blob| (&blob.sha256, blob.size)).collect();
        sizes.into_values().fold(0, u64::saturating_add)
    }

    /// What a person would call the content with this digest.
    pub fn name_of(&self, digest: &Digest) -> String {
        if let Some(file) = self.files.iter().find(|file| file.sha256 == *digest) {
            return file.path.clone();
        }
        let has = |image: &&Image| image.blobs.iter().any(|blob| blob.sha256 == *digest);
        match self.images.iter().find(has) {
            Some(image) => format!("blob {digest} of image {}", image.name),
            None => format!("blob {digest}"),
        }
    }

    fn contents(&self) -> impl Iterator<Item = (&Digest, u64)> {
        let files = self.files.iter().map(|file| (&file.sha256, file.size));
        let blobs = self.images.iter().flat_map(|image| &image.blobs);
        files.chain(blobs.map(|blob| (&blob.sha256, blob.size)))
    }

    /// Whether every field holds what it may, and all fit together.
    pub fn validate(&self) -> Result<(), ManifestError> {
        let count = self.contents().count();
        if count == 0 {
            return Err(field("files", "the bundle is empty".to_owned()));
        }
        if count > MAX_FILES {
            return Err(field("files", format!("{count} files are more than {MAX_FILES}")));
        }
        self.validate_sizes()?;
        self.files.iter().try_for_each(|file| self.validate_file(file))?;
        let paths = self.files.iter().map(|file| file.path.as_str());
        names::check_together(paths)
            .map_err(|(path, problem)| ManifestError::Path { path, problem })?;
        if !self.files.is_sorted_by(|a, b| a.path < b.path) {
            return Err(field("files", "they are not sorted by path".to_owned()));
        }
        self.images.iter().try_for_each(validate_image)?;
        if !self.images.is_sorted_by(|a, b| a.name < b.name) {
            let problem = "they are not sorted by name, or a name stands twice".to_owned();
            return Err(field("images", problem));
        }
        Ok(())
    }

    fn validate_sizes(&self) -> Result<(), ManifestError> {
        let mut sizes = BTreeMap::new();
        for (digest, size) in self.contents() {
            let at = || format!("size of {}", self.name_of(digest));
            if size > MAX_FILE_BYTES {
                let problem = format!("{size} bytes are more than {MAX_FILE_BYTES}");
                return Err(field(at(), problem));
            }
            if sizes.insert(digest, size).is_some_and(|other| other != size) {
                return Err(field(at(), "the same digest stands with two sizes".to_owned()));
            }
        }
        Ok(())
    }

    fn validate_file(&self, file: &File) -> Result<(), ManifestError> {
        let path = &file.path;
        names::check_path(path)
            .map_err(|problem| ManifestError::Path { path: path.clone(), problem })?;
        let directory = file.kind.directory();
        let inside = path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
        if !inside {
            return Err(field(path, format!("a {:?} stands in {directory}/", file.kind)));
        }
        match (file.kind, &file.package) {
            (FileKind::Package, Some(package)) => self.validate_package(path, package),
            (FileKind::Package, None) => {
                Err(field(path, "it says not which package it is".to_owned()))
            }
            (_, Some(_)) => Err(field(path, "it is no package".to_owned())),
            (_, None) => Ok(()),
        }
    }

    fn validate_package(&self, path: &str, package: &Package) -> Result<(), ManifestError> {
        let words = [&package.architecture, &package.name, &package.version];
        if let Some(word) = words.iter().find(|word| !names::is_package_word(word)) {
            let problem = format!("{word:?} is no name, version or architecture of a package");
            return Err(field(path, problem));
        }
        if !self.os_family.takes(package.format) {
            let family = self.os_family.as_str();
            let problem = format!("hosts of osFamily {family} cannot install it");
            return Err(field(path, problem));
        }
        let own = match package.format {
            PackageFormat::Deb => [self.architecture.deb(), "all"],
            PackageFormat::Rpm => [self.architecture.rpm(), "noarch"],
            PackageFormat::Tarball => [self.architecture.as_str(), "all"],
        };
        if !own.contains(&package.architecture.as_str()) {
            let (found, wanted) = (&package.architecture, self.architecture.as_str());
            let problem = format!("it is for {found}, and the bundle for {wanted}");
            return Err(field(path, problem));
        }
        Ok(())
    }
}

fn validate_image(image: &Image) -> Result<(), ManifestError> {
    let name = &image.name;
    if !names::is_image_name(name) {
        let problem = format!("{name:?} is no image like registry.example/pause:3.10");
        return Err(field("images", problem));
    }
    if !crate::images::is_image_manifest(&image.media_type) {
        return Err(field(name, format!("{:?} is no media type of an image", image.media_type)));
    }
    if !image.blobs.is_sorted_by(|a, b| a.sha256 < b.sha256) {
        return Err(field(name, "its blobs are not sorted by digest".to_owned()));
    }
    if !image.blobs.iter().any(|blob| blob.sha256 == image.manifest) {
        return Err(field(name, "its manifest is not among its blobs".to_owned()));
    }
    Ok(())
}

fn field(field: impl Into<String>, problem: String) -> ManifestError {
    ManifestError::Field { field: field.into(), problem }
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
