//! The file that says what goes into a bundle.

use std::{
    fs,
    path::{Path, PathBuf},
};

use refit_kinds::version::KubernetesVersion;
use serde::Deserialize;

use super::BuildError;
use crate::manifest::{API_VERSION, Architecture, OsFamily};

/// What goes into a bundle. Paths are relative to the file that says so.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// Version of the format; may be left out.
    #[serde(default = "current")]
    pub api_version: String,
    /// Kubernetes version that the bundle brings.
    pub kubernetes_version: KubernetesVersion,
    /// Architecture of the hosts.
    pub architecture: Architecture,
    /// Operating system of the hosts; left out: any, without .deb and .rpm.
    #[serde(default)]
    pub os_family: Option<OsFamily>,
    /// Packages.
    #[serde(default)]
    pub packages: Vec<PackageSpec>,
    /// Container images.
    #[serde(default)]
    pub images: Vec<ImageSpec>,
    /// Images of the operating system.
    #[serde(default)]
    pub os_images: Vec<FileSpec>,
    /// Anything else.
    #[serde(default)]
    pub files: Vec<FileSpec>,
}

/// A package, or a directory of packages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PackageSpec {
    /// A .deb, a .rpm, a tarball, or a directory with such.
    pub path: PathBuf,
    /// Name of a tarball's package [default: that of the file].
    #[serde(default)]
    pub name: Option<String>,
    /// Version of a tarball's package [default: the Kubernetes version].
    #[serde(default)]
    pub version: Option<String>,
}

/// An archive or layout with container images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageSpec {
    /// A `docker save` or OCI archive, gzip allowed, or an OCI layout.
    pub path: PathBuf,
    /// What the one image in it is called [default: what the archive says].
    #[serde(default)]
    pub name: Option<String>,
}

/// Any file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileSpec {
    /// The file.
    pub path: PathBuf,
    /// What it is called in the bundle [default: its own name].
    #[serde(default)]
    pub name: Option<String>,
}

fn current() -> String {
    API_VERSION.to_owned()
}

impl Spec {
    /// Nothing yet, for these hosts.
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

    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, BuildError> {
        let text = fs::read_to_string(path).map_err(BuildError::read(path))?;
        let refused = |problem: String| BuildError::Spec { path: path.to_owned(), problem };
        let mut spec: Self =
            serde_saphyr::from_str(&text).map_err(|error| refused(error.to_string()))?;
        if spec.api_version != API_VERSION {
            let found = &spec.api_version;
            return Err(refused(format!("apiVersion is {found:?}, and it takes {API_VERSION:?}")));
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
