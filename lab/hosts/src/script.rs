//! The upgrade as an operator does it: the same commands, one host after the other, in a shell
//! script.

use std::time::Duration;

use anyhow::Context as _;

use crate::{
    host::Host,
    kubernetes::{Cluster, IGNORED, Node},
    kubernetes_build::package_version,
    print_line,
};

/// Timeout of one host.
const HOST_SECONDS: u64 = 1200;

/// Prefix of the line that a script prints at the end of each part.
const END_OF_PART: &str = "ended: ";

/// Part for a host before any change.
const STAGE: &str = "\
apt-get update -q
apt-get install -q -y --download-only --allow-change-held-packages kubeadm=$P kubelet=$P kubectl=$P
";
/// Part before [`STAGE`] on a control plane host.
const SAVE: &str = "\
images=$(kubeadm config images list --kubernetes-version $V)
for image in $images; do
  ctr -n k8s.io images pull --hosts-dir /etc/containerd/certs.d $image > /dev/null || echo $image: not pulled
done
mkdir -p /var/backups/kubernetes
ETCDCTL_API=3 etcdctl --endpoints https://127.0.0.1:2379 --cacert /etc/kubernetes/pki/etcd/ca.crt \
--cert /etc/kubernetes/pki/etcd/server.crt --key /etc/kubernetes/pki/etcd/server.key \
snapshot save /var/backups/kubernetes/etcd.db
cp -a /etc/kubernetes/manifests /var/lib/kubelet/config.yaml /var/backups/kubernetes/
";
const KUBEADM: &str = "\
apt-mark unhold kubeadm
apt-get install -q -y kubeadm=$P
apt-mark hold kubeadm
";
const DRAIN: &str = "\
kubectl --kubeconfig /root/admin.conf drain $N --ignore-daemonsets --delete-emptydir-data
";
const KUBELET: &str = "\
apt-mark unhold kubelet kubectl
apt-get install -q -y kubelet=$P kubectl=$P
apt-mark hold kubelet kubectl
systemctl daemon-reload
systemctl restart kubelet
until kubectl --kubeconfig /root/admin.conf get node $N \
-o jsonpath='{.status.nodeInfo.kubeletVersion} {.status.conditions[?(@.type==\"Ready\")].status}' \
| grep -q \"^$V True\"; do sleep 0.5; done
";
/// Part that waits until a control plane is healthy, before the next host is changed.
const WELL: &str = "\
kubectl --kubeconfig /root/admin.conf -n kube-system wait --for=condition=Ready pod \
-l tier=control-plane --field-selector spec.nodeName=$N --timeout=300s
";
const UNCORDON: &str = "\
kubectl --kubeconfig /root/admin.conf uncordon $N
";

/// Upgrades a cluster, control planes first.
pub async fn upgrade(cluster: &Cluster, version: &str) -> anyhow::Result<()> {
    let drained = cluster.nodes.len() > 1;
    for (at, (host, node)) in cluster.hosts.iter().zip(&cluster.nodes).enumerate() {
        host.write("root/admin.conf", &cluster.kubeconfig)?;
        let text = script(at, node, version, drained);
        run_script(host, &text).await?;
    }
    cluster.ready(version, 60).await
}

/// Runs the script of one host, and prints when each of its parts ended.
async fn run_script(host: &Host, text: &str) -> anyhow::Result<()> {
    let run = host.exec(["bash", "-c", text]);
    let outcome = tokio::time::timeout(Duration::from_secs(HOST_SECONDS), run).await;
    let output = outcome.with_context(|| format!("the script timed out on {}", host.name))??;
    let ends: Vec<&str> =
        output.lines().filter_map(|line| line.strip_prefix(END_OF_PART)).collect();
    print_line(&format!("{}: {}", host.name, ends.join(" ")));
    Ok(())
}

/// The script of one host.
fn script(at: usize, node: &Node, version: &str, drained: bool) -> String {
    let ignored = IGNORED.join(",");
    let upgrade = match at {
        0 => format!("kubeadm upgrade apply {version} -y"),
        _ => "kubeadm upgrade node".to_owned(),
    };
    let head = format!(
        "set -e\nexport DEBIAN_FRONTEND=noninteractive\nN={} V={version} P={}\n",
        node.name,
        package_version(version)
    );
    let upgrade = format!("{upgrade} --skip-phases=addon --ignore-preflight-errors={ignored}\n");
    let parts = [
        ("begin", head.as_str(), true),
        ("stage", STAGE, true),
        ("snapshot", SAVE, node.control_plane),
        ("kubeadm-install", KUBEADM, true),
        ("kubeadm-upgrade", &upgrade, true),
        ("drain", DRAIN, drained),
        ("kubelet", KUBELET, true),
        ("node-ready", WELL, node.control_plane),
        ("uncordon", UNCORDON, drained),
    ];
    let done = parts.into_iter().filter(|(.., wanted)| *wanted);
    let parts: Vec<String> = done
        .map(|(name, text, _)| format!("{text}echo \"{END_OF_PART}{name} $(date +%T.%1N)\"\n"))
        .collect();
    parts.concat()
}
