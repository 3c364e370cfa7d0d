//! The programs that `cargo xtask testbed build` built.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde::Deserialize;

use crate::directory;

/// A line of Cluster API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Line {
    /// The oldest line that Refit supports.
    V1_12,
    /// The newest line that Refit is tested with.
    V1_14,
}

impl Line {
    /// Both lines.
    pub const ALL: [Self; 2] = [Self::V1_12, Self::V1_14];

    /// Name of the line in `parts.json` and for `--capi`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V1_12 => "v1.12",
            Self::V1_14 => "v1.14",
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|line| line.name() == text);
        found.ok_or_else(|| format!("invalid version {text:?}, expected v1.12 or v1.14"))
    }
}

/// All programs and files for a bed of one line.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The kube-apiserver program and its version.
    pub api_server: (PathBuf, String),
    /// The etcd program.
    pub etcd: PathBuf,
    /// The kubectl program, if it was built.
    pub kubectl: Option<PathBuf>,
    /// The provider of `examples/provider-go`, if it was built.
    pub hosts_provider: Option<PathBuf>,
    /// The port-forwards of a kubelet, if they were built.
    pub kubelet: Option<PathBuf>,
    /// Directory with the managers, definitions and webhooks.
    pub cluster_api: PathBuf,
    /// Version of the managers.
    pub cluster_api_version: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    kube_apiserver: Program,
    etcd: Program,
    kubectl: Option<Program>,
    hosts_provider: Option<Program>,
    kubelet: Option<Program>,
    #[serde(default)]
    cluster_api: BTreeMap<String, Managers>,
}

#[derive(Debug, Deserialize)]
struct Program {
    #[serde(default)]
    version: String,
    path: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Managers {
    version: String,
    directory: PathBuf,
}

/// Reads the list of built programs, and checks that they exist.
pub fn find(line: Line) -> anyhow::Result<Parts> {
    let path = directory::cache()?.join("parts.json");
    let file: File = read(&path).with_context(|| {
        format!(
            "failed to read the parts of the test bed from {}: run `cargo xtask testbed build`",
            path.display()
        )
    })?;
    let managers = file.cluster_api.get(line.name()).with_context(|| {
        format!("Cluster API {line} is not built: run `cargo xtask testbed build --capi {line}`")
    })?;
    let parts = Parts {
        api_server: (file.kube_apiserver.path, file.kube_apiserver.version),
        etcd: file.etcd.path,
        kubectl: file.kubectl.map(|program| program.path),
        hosts_provider: file.hosts_provider.map(|program| program.path),
        kubelet: file.kubelet.map(|program| program.path),
        cluster_api: managers.directory.clone(),
        cluster_api_version: managers.version.clone(),
    };
    for path in [&parts.api_server.0, &parts.etcd, &parts.cluster_api] {
        anyhow::ensure!(
            path.exists(),
            "{} does not exist: run `cargo xtask testbed build`",
            path.display()
        );
    }
    Ok(parts)
}

fn read(path: &Path) -> anyhow::Result<File> {
    let text = fs::read_to_string(path)?;
    Ok(serde_json::from_str(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_file_is_parsed() {
        let text = r#"{"kubeApiserver":{"version":"v1.35.8","path":"/a/kube-apiserver"},
            "etcd":{"path":"/usr/bin/etcd"},"kubectl":{"path":"/b/kubectl"},
            "clusterApi":{"v1.14":{"version":"v1.14.2","infrastructureVersion":"v1.14.0","directory":"/c"}}}"#;
        let file: File = serde_json::from_str(text).unwrap();
        assert_eq!(file.kube_apiserver.version, "v1.35.8");
        assert_eq!(file.cluster_api[Line::V1_14.name()].directory, Path::new("/c"));
        assert!("v1.13".parse::<Line>().is_err());
    }
}
