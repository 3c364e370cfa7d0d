//! Makes hosts nodes of a cluster: writes what `kubeadm init` and `kubeadm join` leave on them.

use anyhow::Context as _;

use crate::{
    cluster::Cluster,
    host::Host,
    isolation::Isolation,
    overlay::Overlay,
    packages::{Repository, VERSIONS},
};

/// Directory of the host where the stand-ins look for scripts of a test.
pub const POINTS: &str = "var/lib/stub";
const KUBELET_CONFIG: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
clusterDNS: [10.96.0.10]
failCgroupV1: false
";

/// The programs that a test installs on its hosts.
#[derive(Clone, Copy, Debug)]
pub struct Programs<'a> {
    /// The stand-in.
    pub stub: &'a str,
    /// `refit-agent`.
    pub agent: &'a str,
}

impl Programs<'_> {
    /// Returns the agent that was built next to the test.
    pub fn agent_next_to(test: &std::path::Path) -> anyhow::Result<String> {
        if let Ok(path) = std::env::var("REFIT_AGENT_BIN") {
            return Ok(path);
        }
        let built = test.ancestors().nth(2).map(|directory| directory.join("refit-agent"));
        let built = built.filter(|path| path.is_file());
        let built = built.context("refit-agent is not built; run `cargo build -p refit-agent`")?;
        Ok(built.display().to_string())
    }
}

/// Builds the repository, and the layers of hosts with all packages of the first version installed.
pub async fn prepare(
    isolation: &Isolation,
    programs: Programs<'_>,
) -> anyhow::Result<Vec<std::path::PathBuf>> {
    let mut repository = Repository::new(&isolation.directory)?;
    repository.add_stubs(programs.stub.as_ref()).await?;
    repository.serve().await?;
    let overlay = Overlay::begin(isolation).await?;
    let debs = overlay.root().join("debs");
    std::fs::create_dir_all(&debs)?;
    let (kubernetes, runtime) = VERSIONS[0];
    let mut names = Vec::new();
    for (name, version) in [
        ("kubeadm", format!("{kubernetes}-1.1")),
        ("kubectl", format!("{kubernetes}-1.1")),
        ("kubelet", format!("{kubernetes}-1.1")),
        ("containerd", format!("{runtime}-1")),
    ] {
        let file = format!("{name}_{version}_amd64.deb");
        std::fs::copy(repository.directory().join(&file), debs.join(&file))?;
        names.push(format!("/debs/{file}"));
    }
    let [a, b, c, d] = names.as_slice() else {
        anyhow::bail!("expected exactly four packages");
    };
    overlay.chroot(["dpkg", "--install", a, b, c, d]).await?;
    overlay.chroot(["apt-mark", "hold", "kubeadm", "kubectl", "kubelet"]).await?;
    std::fs::remove_dir_all(&debs)?;
    overlay.script("usr/bin/etcdctl", &std::fs::read(repository.directory().join("etcdctl"))?)?;
    let unit = include_str!("../../../deploy/agent/refit-agent.service");
    overlay.agent(programs.agent.as_ref(), unit).await?;
    overlay.finish().await
}

/// Makes a host a node of the cluster, as kubeadm of the first version leaves it. The host must not
/// be running.
pub fn join(host: &Host, cluster: &Cluster, control_plane: bool) -> anyhow::Result<()> {
    let files = cluster.node_files(&host.name)?;
    host.write("etc/kubernetes/pki/ca.crt", &files.ca)?;
    host.write("etc/kubernetes/kubelet.conf", &files.kubelet_conf)?;
    host.write("var/lib/kubelet/pki/kubelet-client-current.pem", &files.credentials)?;
    host.write("var/lib/kubelet/config.yaml", KUBELET_CONFIG)?;
    host.write("var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\"\"\n")?;
    std::fs::create_dir_all(host.root().join("etc/kubernetes/manifests"))?;
    if control_plane {
        host.write("etc/kubernetes/admin.conf", &files.admin_conf)?;
        host.write("var/lib/etcd/member/snap/db", &"etcd ".repeat(200_000))?;
        let (version, _) = VERSIONS[0];
        write_manifests(host, &format!("v{version}"))?;
        manifest(host, "etcd", "3.6.5-0")?;
    }
    Ok(())
}

/// The static pods of a control plane that have the version of Kubernetes.
pub const COMPONENTS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Writes the manifests of a control plane of this version, such as `v1.35.0`; they are synced.
pub fn write_manifests(host: &Host, version: &str) -> anyhow::Result<()> {
    COMPONENTS.into_iter().try_for_each(|name| manifest(host, name, version))
}

fn manifest(host: &Host, name: &str, version: &str) -> anyhow::Result<()> {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: kube-system\nspec:\n  \
         containers:\n  - command:\n    - {name}\n    image: registry.k8s.io/{name}:{version}\n    \
         name: {name}\n"
    );
    host.write(&format!("etc/kubernetes/manifests/{name}.yaml"), &text)
}

/// Writes a shell script for a point of a stand-in, such as `kubeadm.start`; it runs once.
pub fn order(host: &Host, point: &str, script: &str) -> anyhow::Result<()> {
    host.write(&format!("{POINTS}/{point}"), script)
}

/// Removes all scripts that have not run.
pub fn forget_orders(host: &Host) -> anyhow::Result<()> {
    let directory = host.root().join(POINTS);
    if directory.exists() {
        std::fs::remove_dir_all(directory)?;
    }
    Ok(())
}
