//! Static pods that read kubeadm's certificates and kubeconfigs.
//!
//! These are kubeadm's own, and those of other tools on the same host: kube-vip reads `admin.conf` once, when it starts
//! (`docs/facts/kubeadm.md#certificates`).

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{COMPONENTS, MANIFESTS};
use crate::host::Site;

/// A static pod on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StaticPod {
    /// Its manifest.
    pub manifest: PathBuf,
    /// Name of its first container.
    pub container: String,
}

/// The static pods of kubeadm, in the order in which kubeadm upgrades them.
pub(super) fn of_kubeadm(site: &Site) -> impl Iterator<Item = StaticPod> {
    COMPONENTS.into_iter().map(move |name| StaticPod {
        manifest: site.path(format!("{MANIFESTS}/{name}.yaml")),
        container: name.to_owned(),
    })
}

/// The static pods of other tools with a `hostPath` volume that is or contains one of these paths.
pub(super) fn of_others(site: &Site, paths: &[PathBuf]) -> Vec<StaticPod> {
    let is_kubeadms = |name: &str| COMPONENTS.iter().any(|own| name == format!("{own}.yaml"));
    let files = fs::read_dir(site.path(MANIFESTS)).into_iter().flatten().flatten();
    let mut pods: Vec<StaticPod> = files
        .filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            // The kubelet ignores hidden files.
            if name.starts_with('.') || is_kubeadms(&name) {
                return None;
            }
            let manifest = file.path();
            let pod: Value = serde_saphyr::from_str(&fs::read_to_string(&manifest).ok()?).ok()?;
            let container = pod["spec"]["containers"][0]["name"].as_str()?.to_owned();
            reads(&pod, paths).then_some(StaticPod { manifest, container })
        })
        .collect();
    pods.sort_by(|a, b| a.manifest.cmp(&b.manifest));
    pods
}

/// Whether a pod has a `hostPath` volume that is or contains one of these paths.
fn reads(pod: &Value, paths: &[PathBuf]) -> bool {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let mut mounted = volumes.filter_map(|volume| volume["hostPath"]["path"].as_str());
    mounted.any(|volume| paths.iter().any(|path| path.starts_with(Path::new(volume))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_reads_what_its_volumes_contain() {
        let paths = ["/etc/kubernetes/admin.conf", "/etc/kubernetes/pki/etcd/server.crt"];
        let paths = paths.map(PathBuf::from);
        for (volume, expected) in [
            ("/etc/kubernetes/admin.conf", true),
            ("/etc/kubernetes/pki", true),
            ("/etc/kubernetes/pki/", true),
            ("/etc/kubernetes", true),
            ("/", true),
            ("/etc/kubernetes/admin", false),
            ("/etc/kubernetes/pki/etcd/server.crt.d", false),
            ("/etc/haproxy", false),
        ] {
            let text =
                format!("spec:\n  volumes:\n  - name: x\n  - hostPath:\n      path: {volume}\n");
            let pod: Value = serde_saphyr::from_str(&text).unwrap();
            assert_eq!(reads(&pod, &paths), expected, "{volume}");
        }
        assert!(!reads(&Value::Null, &paths));
    }
}
