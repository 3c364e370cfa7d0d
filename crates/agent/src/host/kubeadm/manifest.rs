//! The static pod of etcd, as its manifest describes it (`docs/facts/kubeadm.md#etcds-manifest`).
//!
//! Directories, address and certificates differ between clusters: CAPZ keeps etcd's data on a disk of
//! its own, an IPv6 cluster has no `127.0.0.1`, and `certificatesDir` is a setting of kubeadm.

use std::{
    fs,
    io::ErrorKind,
    net::IpAddr,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{MANIFESTS, backups};
use crate::host::{Site, work::WorkError};

/// What kubeadm writes without other settings. An absent flag is taken to have this value.
const DATA: &str = "/var/lib/etcd";
const CERTIFICATES: &str = "/etc/kubernetes/pki";
const PKI: &str = "/etc/kubernetes/pki/etcd";
const ENDPOINT: &str = "https://127.0.0.1:2379";

/// A path in a container, and the path of the same file on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    /// Path in the container.
    pub(crate) inside: PathBuf,
    /// Path on the host.
    pub(crate) host: PathBuf,
}

/// An etcd that runs as a static pod of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalEtcd {
    /// Directory of its data.
    pub(crate) data: Mounted,
    /// URL for clients on this host.
    endpoint: String,
    /// Its authority, and the certificate and the key of a client.
    ca: Mounted,
    certificate: Mounted,
    key: Mounted,
}

impl LocalEtcd {
    /// The etcd of this host; `None` if it runs elsewhere. A manifest that exists and cannot be parsed
    /// requires manual intervention: etcd would otherwise be upgraded without a snapshot.
    pub(crate) fn of(site: &Site) -> Result<Option<Self>, WorkError> {
        let path = format!("{MANIFESTS}/etcd.yaml");
        let text = match fs::read_to_string(site.path(&path)) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return is_elsewhere(site, &path).map(|()| None);
            }
            Err(error) => return Err(WorkError::file(Path::new(&path), &error)),
        };
        let etcd = Self::parse(&text, |file| site.path(file).exists());
        etcd.map(Some).map_err(|why| {
            WorkError::needs_person(format!(
                "cannot find out how etcd runs on this host: {path} is not a pod with an etcd \
                 container ({why}); restore it, for example from \
                 /etc/kubernetes/tmp/kubeadm-backup-manifests-*"
            ))
        })
    }

    fn parse(text: &str, exists: impl Fn(&Path) -> bool) -> Result<Self, String> {
        let pod: Pod = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        let containers = &pod.spec.containers;
        let named = containers.iter().find(|container| container.name == "etcd");
        let etcd = named.or(containers.first()).ok_or("it has no container")?;
        let mounted = |path: PathBuf| pod.spec.mounted(etcd, path);
        let file = |flag: &str| etcd.flag(flag).map(PathBuf::from);

        let ca = file("trusted-ca-file").unwrap_or_else(|| Path::new(PKI).join("ca.crt"));
        // kubeadm makes it for health checks. Where certificates are the administrator's own, it may not
        // exist; kubeadm's server certificate is valid for clients, too.
        let client = |end: &str| ca.with_file_name(format!("healthcheck-client.{end}"));
        let mut pair = (mounted(client("crt")), mounted(client("key")));
        if let (false, Some(certificate), Some(key)) =
            (exists(&pair.0.host), file("cert-file"), file("key-file"))
        {
            pair = (mounted(certificate), mounted(key));
        }
        Ok(Self {
            data: mounted(file("data-dir").unwrap_or_else(|| DATA.into())),
            endpoint: endpoint(etcd.flag("listen-client-urls").unwrap_or_default()),
            ca: mounted(ca),
            certificate: pair.0,
            key: pair.1,
        })
    }

    /// The flags with which etcdctl connects, on the host or in the container.
    pub(crate) fn connection(&self, inside: bool) -> Vec<String> {
        let flag = |name: &str, file: &Mounted| {
            let path = if inside { &file.inside } else { &file.host };
            format!("--{name}={}", path.display())
        };
        let mut flags = vec![format!("--endpoints={}", self.endpoint)];
        if self.endpoint.starts_with("https:") {
            let files = [("cacert", &self.ca), ("cert", &self.certificate), ("key", &self.key)];
            flags.extend(files.map(|(name, file)| flag(name, file)));
        }
        flags
    }
}

/// Checks that a host without a manifest of etcd did not lose it: its API server would connect to etcd on this host, and
/// kubeadm would have a backup.
fn is_elsewhere(site: &Site, path: &str) -> Result<(), WorkError> {
    match backups::of_manifest(site, "etcd").first() {
        Some(backup) if connects_to_this_host(site) => Err(WorkError::needs_person(format!(
            "{path} is missing, although kube-apiserver connects to an etcd on this host: restore it from {}, or remove \
             that file if etcd is not a static pod",
            backup.display()
        ))),
        Some(_) | None => Ok(()),
    }
}

/// Whether the API server of this host connects to an etcd at a loopback address.
pub(super) fn connects_to_this_host(site: &Site) -> bool {
    api_server(site).is_some_and(|pod| {
        let server = pod.spec.containers.first();
        let urls = server.and_then(|server| server.flag("etcd-servers")).unwrap_or_default();
        urls.split(',').any(|url| local(url.trim()).0)
    })
}

/// The static pod of the API server, if its manifest is one.
fn api_server(site: &Site) -> Option<Pod> {
    serde_saphyr::from_str(&site.read(&format!("{MANIFESTS}/kube-apiserver.yaml"))).ok()
}

/// kubeadm's `certificatesDir`, on this host: the API server's manifest names it.
pub(super) fn certificates_directory(site: &Site) -> PathBuf {
    let found = api_server(site).and_then(|pod| {
        let server = pod.spec.containers.first()?;
        let ca = pod.spec.mounted(server, server.flag("client-ca-file")?.into());
        Some(ca.host.parent()?.to_owned())
    });
    found.unwrap_or_else(|| CERTIFICATES.into())
}

/// The URL for clients on this host: a loopback address if etcd listens on one.
fn endpoint(urls: &str) -> String {
    let mut urls: Vec<(bool, String)> =
        urls.split(',').map(str::trim).filter(|url| !url.is_empty()).map(local).collect();
    urls.sort_by_key(|(loopback, _)| !loopback);
    urls.into_iter().next().map_or_else(|| ENDPOINT.to_owned(), |(_, url)| url)
}

/// Whether a URL is on a loopback address, and the URL. A client cannot connect to a wildcard address,
/// but to the loopback address that it includes.
fn local(url: &str) -> (bool, String) {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let (host, port) = rest.trim_end_matches('/').rsplit_once(':').unwrap_or((rest, "2379"));
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    match address {
        Some(IpAddr::V4(address)) if address.is_unspecified() => {
            (true, format!("{scheme}://127.0.0.1:{port}"))
        }
        Some(IpAddr::V6(address)) if address.is_unspecified() => {
            (true, format!("{scheme}://[::1]:{port}"))
        }
        Some(address) => (address.is_loopback(), url.to_owned()),
        None => (host == "localhost", url.to_owned()),
    }
}

/// The parts of a pod that matter here. Other parts need not be valid.
#[derive(Debug, Deserialize)]
struct Pod {
    spec: Spec,
}

#[derive(Debug, Deserialize)]
struct Spec {
    containers: Vec<Container>,
    #[serde(default)]
    volumes: Vec<Volume>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    #[serde(default)]
    name: String,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    volume_mounts: Vec<VolumeMount>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeMount {
    name: String,
    mount_path: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    #[serde(default)]
    host_path: Option<HostPath>,
}

#[derive(Debug, Deserialize)]
struct HostPath {
    path: PathBuf,
}

impl Spec {
    /// A path of the container, and where it is on the host: the innermost mount counts. A path that
    /// is not on a directory of the host is taken to be the same on both sides.
    fn mounted(&self, container: &Container, inside: PathBuf) -> Mounted {
        let mounts = container.volume_mounts.iter();
        let mount = mounts
            .filter(|mount| inside.starts_with(&mount.mount_path))
            .max_by_key(|mount| mount.mount_path.components().count());
        let host = mount.and_then(|mount| {
            let volume = self.volumes.iter().find(|volume| volume.name == mount.name)?;
            let rest = inside.strip_prefix(&mount.mount_path).ok()?;
            Some(volume.host_path.as_ref()?.path.join(rest).components().collect())
        });
        Mounted { host: host.unwrap_or_else(|| inside.clone()), inside }
    }
}

impl Container {
    /// The value of a flag, in one word with it or in the next one. The last one counts.
    fn flag(&self, name: &str) -> Option<&str> {
        let words: Vec<&str> = self.command.iter().chain(&self.args).map(String::as_str).collect();
        let value = |at: usize| {
            let flag = words.get(at)?.strip_prefix('-')?;
            let rest = flag.strip_prefix('-').unwrap_or(flag).strip_prefix(name)?;
            rest.strip_prefix('=')
                .or_else(|| rest.is_empty().then(|| words.get(at + 1).copied())?)
        };
        (0..words.len()).rev().find_map(value)
    }
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
