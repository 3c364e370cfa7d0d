//! The bundle spec: the file that lists the contents of a bundle.

use std::{
    fs,
    path::{Path, PathBuf},
};

use refit_kinds::version::KubernetesVersion;
use serde::Deserialize;

use super::BuildError;
use crate::manifest::{API_VERSION, Architecture, OsFamily};

/// The contents of a bundle. Paths are relative to the spec file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// Version of the format; may be omitted.
    #[serde(default = "current")]
    pub api_version: String,
    /// Kubernetes version that the bundle installs.
    pub kubernetes_version: KubernetesVersion,
    /// Architecture of the hosts.
    pub architecture: Architecture,
    /// Operating system of the hosts. If omitted, the bundle fits any Linux and has no .deb or
    /// .rpm.
    #[serde(default)]
    pub os_family: Option<OsFamily>,
    /// Packages to include.
    #[serde(default)]
    pub packages: Vec<PackageSpec>,
    /// Container images to include.
    #[serde(default)]
    pub images: Vec<ImageSpec>,
    /// Operating system images to include.
    #[serde(default)]
    pub os_images: Vec<FileSpec>,
    /// Other files to include.
    #[serde(default)]
    pub files: Vec<FileSpec>,
}

/// A package, or a directory of packages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PackageSpec {
    /// A .deb, a .rpm, a tarball, or a directory that contains them.
    pub path: PathBuf,
    /// Name of the package in a tarball [default: the file name].
    #[serde(default)]
    pub name: Option<String>,
    /// Version of the package in a tarball [default: the Kubernetes version].
    #[serde(default)]
    pub version: Option<String>,
}

/// An archive or layout with container images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageSpec {
    /// A `docker save` or OCI archive, gzip allowed, or an OCI layout.
    pub path: PathBuf,
    /// Name of the image if the archive has exactly one [default: the name in the archive].
    #[serde(default)]
    pub name: Option<String>,
}

/// A file to include.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileSpec {
    /// Path of the file.
    pub path: PathBuf,
    /// Name of the file in the bundle [default: its own name].
    #[serde(default)]
    pub name: Option<String>,
}

fn current() -> String {
    API_VERSION.to_owned()
}

impl Spec {
    /// Creates an empty spec for these hosts.
    pub fn new(kubernetes_version: KubernetesVersion, architecture: Architecture) -> Self {
        Self {
            api_version: current(),
            kubernetes_version,
            architecture,
            os_family: None,
            packages: Vec::new(),
            images: Vec::new(),
            os_images: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Reads a spec file.
    pub fn load(path: &Path) -> Result<Self, BuildError> {
        let text = fs::read_to_string(path).map_err(BuildError::read(path))?;
        let refused = |problem: String| BuildError::Spec { path: path.to_owned(), problem };
        let mut spec: Self =
            serde_saphyr::from_str(&text).map_err(|error| refused(error.to_string()))?;
        if spec.api_version != API_VERSION {
            let found = &spec.api_version;
            return Err(refused(format!("unknown apiVersion {found:?}, expected {API_VERSION:?}")));
        }
        spec.relative_to(super::parent(path));
        Ok(spec)
    }

    fn relative_to(&mut self, directory: &Path) {
        let packages = self.packages.iter_mut().map(|package| &mut package.path);
        let images = self.images.iter_mut().map(|image| &mut image.path);
        let files = self.os_images.iter_mut().chain(&mut self.files);
        for path in packages.chain(images).chain(files.map(|file| &mut file.path)) {
            *path = directory.join(&*path);
        }
    }
}
