//! Makes hosts nodes of a cluster: writes what `kubeadm init` and `kubeadm join` leave on them.

use anyhow::Context as _;

use crate::{
    cluster::Cluster,
    host::Host,
    isolation::Isolation,
    layout::Layout,
    overlay::Overlay,
    packages::{Mirror, Repository, SITE, VERSIONS},
};

/// Directory of the host where the stand-ins look for scripts of a test.
pub const POINTS: &str = "var/lib/stub";

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

/// What the hosts of a test share.
#[derive(Debug)]
pub struct Prepared {
    /// The directories of their root, the uppermost first.
    pub layers: Vec<std::path::PathBuf>,
    /// The server of their packages.
    pub mirror: Mirror,
}

/// Builds the repository, and the layers of hosts with all packages of the first version installed.
pub async fn prepare(isolation: &Isolation, programs: Programs<'_>) -> anyhow::Result<Prepared> {
    let mut repository = Repository::new(&isolation.directory)?;
    repository.add_stubs(programs.stub.as_ref()).await?;
    repository.add_site().await?;
    let mirror = repository.serve().await?;
    let overlay = Overlay::begin(isolation).await?;
    let debs = overlay.root().join("debs");
    std::fs::create_dir_all(&debs)?;
    let (kubernetes, runtime) = VERSIONS[0];
    let mut wanted = vec![
        ("kubeadm", format!("{kubernetes}-1.1")),
        ("kubectl", format!("{kubernetes}-1.1")),
        ("kubelet", format!("{kubernetes}-1.1")),
        ("containerd", format!("{runtime}-1")),
    ];
    wanted.extend(SITE.map(|(name, [first, ..], _)| (name, first.to_owned())));
    for (name, version) in wanted {
        let file = format!("{name}_{version}_amd64.deb");
        std::fs::copy(repository.directory().join(&file), debs.join(&file))?;
    }
    overlay.chroot(["dpkg", "--install", "--recursive", "/debs"]).await?;
    overlay.chroot(["apt-mark", "hold", "kubeadm", "kubectl", "kubelet"]).await?;
    std::fs::remove_dir_all(&debs)?;
    overlay.script("usr/bin/etcdctl", &std::fs::read(repository.directory().join("etcdctl"))?)?;
    let unit = include_str!("../../../deploy/agent/refit-agent.service");
    overlay.agent(programs.agent.as_ref(), unit).await?;
    Ok(Prepared { layers: overlay.finish().await?, mirror })
}

/// Makes a host a node of the cluster, as kubeadm of the first version leaves it. The host must not
/// be running.
pub fn join(
    host: &Host,
    cluster: &Cluster,
    control_plane: bool,
    layout: &Layout,
) -> anyhow::Result<()> {
    let files = cluster.node_files(&host.name)?;
    let ca = format!("{}/ca.crt", layout.certificates);
    host.write(ca.trim_start_matches('/'), &files.ca)?;
    host.write("etc/kubernetes/kubelet.conf", &files.kubelet_conf)?;
    host.write("var/lib/kubelet/pki/kubelet-client-current.pem", &files.credentials)?;
    let config = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nauthentication:\n  x509:\n    clientCAFile: {ca}\n\
         clusterDNS: [10.96.0.10]\nfailCgroupV1: false\nkind: KubeletConfiguration\n"
    );
    host.write("var/lib/kubelet/config.yaml", &config)?;
    host.write("var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\"\"\n")?;
    if layout.own_repository {
        host.write("etc/apt/sources.list.d/kubernetes.list", &Mirror::source(&host.name))?;
    }
    std::fs::create_dir_all(host.root().join("etc/kubernetes/manifests"))?;
    if control_plane {
        host.write("etc/kubernetes/admin.conf", &files.admin_conf)?;
        layout.write(host)?;
    }
    Ok(())
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
