//! How kubeadm has set up a host: with its defaults, or as other clusters and platforms have it.

use crate::{host::Host, packages::VERSIONS};

/// The static pods of a control plane that have the version of Kubernetes.
pub const COMPONENTS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// Tag of etcd's image.
const ETCD: &str = "3.6.5-0";

/// Where a host has what kubeadm writes.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Version of Kubernetes on a control plane, as packages write it: `X.Y.Z`.
    pub version: &'static str,
    /// kubeadm's `certificatesDir`.
    pub certificates: &'static str,
    /// Directory of etcd's data.
    pub etcd_data: &'static str,
    /// The only URL on which etcd listens.
    pub etcd_url: &'static str,
    /// Environment of the static pods that have the version of Kubernetes, by name.
    pub proxies: &'static [(&'static str, &'static str)],
    /// Size of a file system of its own for `/var`, in MiB.
    pub separate_var: Option<u64>,
    /// Whether the host has a repository that can be switched off for it alone.
    pub own_repository: bool,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            version: VERSIONS[0].0,
            certificates: "/etc/kubernetes/pki",
            etcd_data: "/var/lib/etcd",
            etcd_url: "https://127.0.0.1:2379",
            proxies: &[],
            separate_var: None,
            own_repository: false,
        }
    }
}

impl Layout {
    /// Writes the certificates of etcd, its data and the manifests of a control plane.
    pub(crate) fn write(&self, host: &Host) -> anyhow::Result<()> {
        let pki = self.certificates.trim_start_matches('/');
        let names = ["ca.crt", "healthcheck-client.crt", "healthcheck-client.key", "server.crt"];
        for name in names.into_iter().chain(["server.key"]) {
            host.write(&format!("{pki}/etcd/{name}"), &format!("{name} of {}\n", host.name))?;
        }
        let data = self.etcd_data.trim_start_matches('/');
        host.write(&format!("{data}/member/snap/db"), &"etcd ".repeat(200_000))?;
        self.write_manifests(host, &format!("v{}", self.version))?;
        host.write("etc/kubernetes/manifests/etcd.yaml", &self.etcd_manifest())
    }

    /// Writes the manifests of a control plane of this version, such as `v1.35.0`; they are synced.
    pub fn write_manifests(&self, host: &Host, version: &str) -> anyhow::Result<()> {
        COMPONENTS.into_iter().try_for_each(|name| {
            let path = format!("etc/kubernetes/manifests/{name}.yaml");
            host.write(&path, &self.manifest(name, version))
        })
    }

    /// The manifest of a component of this version, such as `v1.35.0+vmware.1`.
    pub fn manifest(&self, name: &str, version: &str) -> String {
        let flags = if name == "kube-apiserver" {
            vec![format!("client-ca-file={}/ca.crt", self.certificates)]
        } else {
            Vec::new()
        };
        let start = if self.proxies.is_empty() { "" } else { "    env:\n" };
        let env = self.proxies.iter().fold(start.to_owned(), |text, (name, value)| {
            format!("{text}    - name: {name}\n      value: {value}\n")
        });
        pod(name, &flags, &env, &version.replace('+', "_"))
    }

    fn etcd_manifest(&self) -> String {
        let (pki, data) = (format!("{}/etcd", self.certificates), self.etcd_data);
        let flags = [
            format!("cert-file={pki}/server.crt"),
            format!("data-dir={data}"),
            format!("key-file={pki}/server.key"),
            format!("listen-client-urls={}", self.etcd_url),
            format!("trusted-ca-file={pki}/ca.crt"),
        ];
        let volumes = [(data, "etcd-data"), (pki.as_str(), "etcd-certs")];
        let mounts =
            volumes.map(|(path, name)| format!("    - mountPath: {path}\n      name: {name}\n"));
        let paths = volumes
            .map(|(path, name)| format!("  - hostPath:\n      path: {path}\n    name: {name}\n"));
        let pod = pod("etcd", &flags, "", ETCD);
        format!("{pod}    volumeMounts:\n{}  volumes:\n{}", mounts.concat(), paths.concat())
    }
}

fn pod(name: &str, flags: &[String], env: &str, tag: &str) -> String {
    let flags: Vec<String> = flags.iter().map(|flag| format!("    - --{flag}\n")).collect();
    let flags = flags.concat();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: kube-system\nspec:\n  \
         containers:\n  - command:\n    - {name}\n{flags}{env}    image: registry.k8s.io/{name}:{tag}\n    \
         name: {name}\n"
    )
}
