//! The manifest of a bundle: its contents with their sha256, and the hosts it is for.
//!
//! The JSON is canonical: keys and lists sorted, no white space, one newline at the end. Any other
//! encoding is refused, so the same content always has the same digest and signature.

use std::collections::BTreeMap;

use refit_kinds::version::KubernetesVersion;
use serde::{Deserialize, Serialize};

pub use crate::target::{Architecture, OsFamily};
use crate::{
    digest::Digest,
    names::{self, PathProblem},
};

/// Version of the manifest format that this program writes and reads.
pub const API_VERSION: &str = "bundle.refit.dev/v1";
/// Size limit of a manifest in bytes: about 20,000 files.
pub const MAX_MANIFEST_BYTES: u64 = 8 << 20;
/// Size limit of a file in bytes, from the plain tar header.
pub const MAX_FILE_BYTES: u64 = (8 << 30) - 1;
/// Maximum number of files and image blobs together.
pub const MAX_FILES: usize = 20_000;

/// The manifest of a bundle.
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
    /// Kubernetes version that the bundle installs, `vX.Y.Z`.
    pub kubernetes_version: KubernetesVersion,
    /// Operating systems that the packages are for.
    pub os_family: OsFamily,
}

/// A file that is staged under its own name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct File {
    /// Kind of the file.
    pub kind: FileKind,
    /// Package metadata, if the file is a package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Package>,
    /// Path in the staging directory, such as `packages/kubelet_1.35.0-1.1_amd64.deb`.
    pub path: String,
    /// sha256 of the file.
    pub sha256: Digest,
    /// Size in bytes.
    pub size: u64,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FileKind {
    /// A .deb, a .rpm or a tarball of binaries, in `packages/`.
    Package,
    /// An image of the operating system, in `os/`.
    OsImage,
    /// Any other file, in `files/`.
    File,
}

impl FileKind {
    /// Returns the directory for files of this kind.
    pub fn directory(self) -> &'static str {
        match self {
            Self::Package => "packages",
            Self::OsImage => "os",
            Self::File => "files",
        }
    }
}

/// Metadata of a package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Package {
    /// Architecture in the package's own notation: `amd64`, `x86_64`, `all`, `noarch`.
    pub architecture: String,
    /// Format of the package.
    pub format: PackageFormat,
    /// Name of the package.
    pub name: String,
    /// Version of the package, as the package manager compares it.
    pub version: String,
}

/// The format of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PackageFormat {
    /// A .deb, for apt and dpkg.
    Deb,
    /// A .rpm, for dnf and rpm.
    Rpm,
    /// A tarball of plain binaries.
    Tarball,
}

/// One container image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    /// Every blob of the image, including its manifest, sorted by digest.
    pub blobs: Vec<Blob>,
    /// Digest of the image manifest, which is one of the blobs.
    pub manifest: Digest,
    /// Media type of the image manifest.
    pub media_type: String,
    /// Full name of the image: `registry.k8s.io/kube-apiserver:v1.35.0`.
    pub name: String,
}

/// A blob of an image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Blob {
    /// sha256 of the blob.
    pub sha256: Digest,
    /// Size in bytes.
    pub size: u64,
}

/// Why a manifest is refused.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The manifest exceeds the size limit.
    #[error("{found} bytes exceed the limit of {MAX_MANIFEST_BYTES}")]
    Large {
        /// Its size in bytes.
        found: u64,
    },
    /// The format version is not supported.
    #[error(
        "unknown apiVersion {found:?}, expected {API_VERSION:?}; build the bundle with the same \
         version of Refit, or upgrade Refit"
    )]
    Version {
        /// The version in the manifest.
        found: String,
    },
    /// The text is not JSON of the expected form.
    #[error("cannot parse it: {0}")]
    Json(#[from] serde_json::Error),
    /// The bytes are not the canonical encoding of the content.
    #[error("not in canonical form: it was changed after `refit bundle build`")]
    NotCanonical,
    /// A field has an invalid value.
    #[error("{field}: {problem}")]
    Field {
        /// The field and its entry.
        field: String,
        /// What is wrong.
        problem: String,
    },
    /// A path is not allowed in a bundle.
    #[error("files: invalid path {path:?}: {problem}")]
    Path {
        /// The invalid path.
        path: String,
        /// What is wrong with it.
        problem: PathProblem,
    },
}

/// The version field, which is parsed before the others.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versioned {
    #[serde(default)]
    api_version: String,
}

impl Manifest {
    /// Parses and validates a manifest.
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

    /// Sorts every list that has no order of its own, so that the same content gives the same text.
    pub fn sort(&mut self) {
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        for image in &mut self.images {
            image.blobs.sort();
            image.blobs.dedup();
        }
        self.images.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Encodes the manifest to the bytes that are signed.
    pub fn to_canonical(&self) -> Vec<u8> {
        // Fields are declared in alphabetical order.
        let mut bytes =
            serde_json::to_vec(self).expect("the keys of all maps are strings and no type fails");
        bytes.push(b'\n');
        bytes
    }

    /// Returns every content once, sorted by digest.
    pub fn blobs(&self) -> Vec<Blob> {
        let sizes: BTreeMap<&Digest, u64> = self.contents().collect();
        let blob = |(sha256, size): (&Digest, u64)| Blob { sha256: sha256.clone(), size };
        sizes.into_iter().map(blob).collect()
    }

    /// Returns the total size of all contents, counting each once.
    pub fn total_size(&self) -> u64 {
        let sizes = self.blobs().into_iter().map(|blob| blob.size);
        sizes.fold(0, u64::saturating_add)
    }

    /// Returns the total size of all image blobs, counting each once.
    pub fn image_size(&self) -> u64 {
        let blobs = self.images.iter().flat_map(|image| &image.blobs);
        let sizes: BTreeMap<&Digest, u64> = blobs.map(|blob| (&blob.sha256, blob.size)).collect();
        sizes.into_values().fold(0, u64::saturating_add)
    }

    /// Returns a readable name for the content with this digest.
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

    /// Checks that every field is valid and that all are consistent.
    pub fn validate(&self) -> Result<(), ManifestError> {
        let count = self.contents().count();
        if count == 0 {
            return Err(field("files", "the bundle is empty".to_owned()));
        }
        if count > MAX_FILES {
            return Err(field("files", format!("{count} files exceed the limit of {MAX_FILES}")));
        }
        self.validate_sizes()?;
        self.files.iter().try_for_each(|file| self.validate_file(file))?;
        let paths = self.files.iter().map(|file| file.path.as_str());
        names::check_together(paths)
            .map_err(|(path, problem)| ManifestError::Path { path, problem })?;
        if !self.files.is_sorted_by(|a, b| a.path < b.path) {
            return Err(field("files", "not sorted by path".to_owned()));
        }
        self.images.iter().try_for_each(validate_image)?;
        if !self.images.is_sorted_by(|a, b| a.name < b.name) {
            let problem = "not sorted by name, or a name occurs twice".to_owned();
            return Err(field("images", problem));
        }
        Ok(())
    }

    fn validate_sizes(&self) -> Result<(), ManifestError> {
        let mut sizes = BTreeMap::new();
        for (digest, size) in self.contents() {
            let at = || format!("size of {}", self.name_of(digest));
            if size > MAX_FILE_BYTES {
                let problem = format!("{size} bytes exceed the limit of {MAX_FILE_BYTES}");
                return Err(field(at(), problem));
            }
            if sizes.insert(digest, size).is_some_and(|other| other != size) {
                return Err(field(at(), "the same digest has two sizes".to_owned()));
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
            return Err(field(
                path,
                format!("expected a file of kind {:?} in {directory}/", file.kind),
            ));
        }
        match (file.kind, &file.package) {
            (FileKind::Package, Some(package)) => self.validate_package(path, package),
            (FileKind::Package, None) => {
                Err(field(path, "package, version and architecture are missing".to_owned()))
            }
            (_, Some(_)) => Err(field(path, "not a package, but it has package fields".to_owned())),
            (_, None) => Ok(()),
        }
    }

    fn validate_package(&self, path: &str, package: &Package) -> Result<(), ManifestError> {
        let words = [&package.architecture, &package.name, &package.version];
        if let Some(word) = words.iter().find(|word| !names::is_package_word(word)) {
            let problem = format!("invalid name, version or architecture {word:?} of a package");
            return Err(field(path, problem));
        }
        if !self.os_family.takes(package.format) {
            let family = self.os_family.as_str();
            let problem = format!("hosts with osFamily {family} cannot install it");
            return Err(field(path, problem));
        }
        let own = match package.format {
            PackageFormat::Deb => [self.architecture.deb(), "all"],
            PackageFormat::Rpm => [self.architecture.rpm(), "noarch"],
            PackageFormat::Tarball => [self.architecture.as_str(), "all"],
        };
        if !own.contains(&package.architecture.as_str()) {
            let (found, wanted) = (&package.architecture, self.architecture.as_str());
            let problem = format!("it is for {found}, the bundle is for {wanted}");
            return Err(field(path, problem));
        }
        Ok(())
    }
}

fn validate_image(image: &Image) -> Result<(), ManifestError> {
    let name = &image.name;
    if !names::is_image_name(name) {
        let problem =
            format!("invalid image name {name:?}, expected one like registry.example/pause:3.10");
        return Err(field("images", problem));
    }
    if !crate::images::is_image_manifest(&image.media_type) {
        return Err(field(name, format!("unknown image media type {:?}", image.media_type)));
    }
    if !image.blobs.is_sorted_by(|a, b| a.sha256 < b.sha256) {
        return Err(field(name, "the blobs are not sorted by digest".to_owned()));
    }
    if !image.blobs.iter().any(|blob| blob.sha256 == image.manifest) {
        return Err(field(name, "the manifest is not among the blobs".to_owned()));
    }
    Ok(())
}

fn field(field: impl Into<String>, problem: String) -> ManifestError {
    ManifestError::Field { field: field.into(), problem }
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
