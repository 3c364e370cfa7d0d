//! Shared by tests of hosts with stand-ins: programs, hosts as nodes, and the final checks.

use anyhow::ensure;
use lab_hosts::{
    cluster::Cluster,
    cluster_nodes::{self, Prepared, Programs},
    host::Host,
    isolation::Isolation,
    layout::{COMPONENTS, Layout},
};

/// The layers of hosts, with the stand-ins and the agent that was built next to this test.
pub(crate) async fn prepared(isolation: &Isolation) -> anyhow::Result<Prepared> {
    let test = std::env::current_exe()?;
    let agent = Programs::agent_next_to(&test)?;
    let programs = Programs { stub: env!("CARGO_BIN_EXE_lab-hosts-stub"), agent: &agent };
    cluster_nodes::prepare(isolation, programs).await
}

/// Makes a host of each node of the cluster and boots them all at once. A host without a layout has that of
/// kubeadm.
pub(crate) async fn hosts(
    isolation: &Isolation,
    cluster: &Cluster,
    prepared: &Prepared,
    layouts: &[Layout],
) -> anyhow::Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for (at, name) in cluster.names().into_iter().enumerate() {
        let layout = layouts.get(at).copied().unwrap_or_default();
        let number = u8::try_from(at + 1)?;
        let mut host = Host::new(isolation, number, &name, &prepared.layers).await?;
        if let Some(mebibytes) = layout.separate_var {
            host = host.with_separate_var(mebibytes).await?;
        }
        cluster_nodes::join(&host, cluster, cluster.control_planes.contains(&name), &layout)?;
        host.start().await?;
        hosts.push(host);
    }
    for host in &hosts {
        host.wait_up().await?;
    }
    Ok(hosts)
}

/// Checks a host after an upgrade: packages are complete, of the version and held; all manifests
/// have the version; the kubelet of the version is running.
pub(crate) async fn is_at(host: &Host, version: &str, control_plane: bool) -> anyhow::Result<()> {
    let audit = host.exec(["dpkg", "--audit"]).await?;
    ensure!(audit.is_empty(), "{}: packages are not fully installed: {audit}", host.name);
    let format = "--showformat=${Package} ${Version} ${db:Status-Status}\\n";
    for name in ["kubeadm", "kubectl", "kubelet"] {
        let found = host.exec(["dpkg-query", "--show", format, name]).await?;
        let wanted = format!("{name} {}-1.1 installed", version.trim_start_matches('v'));
        ensure!(found.trim() == wanted, "{}: {found} instead of {wanted}", host.name);
    }
    let held = host.exec(["apt-mark", "showhold"]).await?;
    let held: Vec<&str> = held.split_whitespace().collect();
    ensure!(held == ["kubeadm", "kubectl", "kubelet"], "{}: {held:?} are held", host.name);
    let pid = ["systemctl", "show", "kubelet.service", "--property=MainPID", "--value"];
    let pid = host.exec(pid).await?;
    let program = format!("/proc/{}/exe", pid.trim());
    let running = host.exec([&program, "--version"]).await?;
    ensure!(running.trim() == format!("Kubernetes {version}"), "{}: {running} runs", host.name);
    if control_plane {
        let tag = version.replace('+', "_");
        for name in COMPONENTS {
            let manifest = host.read(&format!("etc/kubernetes/manifests/{name}.yaml"));
            let image = format!("image: registry.k8s.io/{name}:{tag}\n");
            ensure!(
                manifest.contains(&image),
                "{}: {name} does not have {image}: {manifest}",
                host.name
            );
        }
        let etcd = host.read("etc/kubernetes/manifests/etcd.yaml");
        ensure!(etcd.contains("image: registry.k8s.io/etcd:3.6.5-0\n"), "{}: {etcd}", host.name);
    }
    Ok(())
}
