//! A real cluster: kubeadm makes nodes of hosts with Debian's containerd.
//!
//! There is neither CoreDNS nor kube-proxy, because the tests need no DNS names and no Services.

use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use refit_runtime::{client::ClientStack, tls::Authority};
use serde_json::Value;

use crate::{
    balancer::{self, Balancer},
    disk::FileSystem,
    eventually,
    host::{Host, with_reports},
    isolation::Isolation,
    kubernetes_build::{ETCD_TAG, KubernetesBuild},
    management::{Management, admin_config, admin_kubeconfig, validity},
    net,
};

/// Timeout of one kubeadm command, in seconds.
const KUBEADM_SECONDS: u64 = 600;
/// Preflight errors that always apply here: no CoreDNS to migrate, control groups of version 1.
pub const IGNORED: [&str; 3] =
    ["CoreDNSUnsupportedPlugins", "CoreDNSMigration", "SystemVerification"];

/// A node to create from a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name of the node and its host.
    pub name: String,
    /// Provider ID of its Machine.
    pub provider_id: String,
    /// Whether it is a control plane node.
    pub control_plane: bool,
}

/// Returns the nodes for the Machines of a management cluster, control planes first.
pub async fn nodes(management: &Management) -> anyhow::Result<Vec<Node>> {
    let machines = management.list("/apis/cluster.x-k8s.io/v1beta2/machines").await?;
    let mut nodes: Vec<Node> = machines
        .iter()
        .map(|machine| {
            let text = |pointer| {
                machine.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let labels = &machine["metadata"]["labels"];
            Node {
                name: text("/status/nodeRef/name"),
                provider_id: text("/spec/providerID"),
                control_plane: !labels["cluster.x-k8s.io/control-plane"].is_null(),
            }
        })
        .collect();
    nodes.sort_by(|a, b| (!a.control_plane, &a.name).cmp(&(!b.control_plane, &b.name)));
    Ok(nodes)
}

/// A cluster that kubeadm has created.
pub struct Cluster {
    /// Its hosts, control planes first.
    pub hosts: Vec<Host>,
    /// Its nodes, in the same order.
    pub nodes: Vec<Node>,
    /// The balancer in front of its API servers.
    pub balancer: Balancer,
    /// An administrator's kubeconfig, through the balancer.
    pub kubeconfig: String,
    /// A client with that kubeconfig.
    pub client: Client,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cluster")
    }
}

impl Cluster {
    /// Boots hosts, numbered from `first`, and creates a cluster of the lower version on them.
    pub async fn create(
        isolation: &Isolation,
        build: &KubernetesBuild,
        first: u8,
        nodes: Vec<Node>,
        file_system: FileSystem,
    ) -> anyhow::Result<Self> {
        let version = build.versions[0].version.as_str();
        let authority = Authority::new("edge-1", validity())?;
        let mut hosts = Vec::new();
        for (number, node) in (first..).zip(&nodes) {
            let host = Host::on(isolation, number, &node.name, &build.layers, file_system)
                .await?
                .with_own_disk("/var/lib/containerd");
            host.write("etc/cni/net.d/10-pods.conflist", &pod_network(number))?;
            host.start().await?;
            hosts.push(host);
        }
        for host in &hosts {
            host.wait_up().await?;
        }
        let planes = hosts.iter().zip(&nodes).filter(|(_, node)| node.control_plane);
        let addresses = planes.map(|(host, _)| host.address.clone()).collect();
        let balancer = Balancer::start(addresses, &authority).await?;
        let config = admin_config(&authority, balancer::PORT).await?;
        let cluster = Self {
            client: ClientStack::production("refit-hosts").client(&config)?,
            kubeconfig: admin_kubeconfig(&authority, balancer::PORT)?.to_string(),
            hosts,
            nodes,
            balancer,
        };
        let made = async {
            cluster.join_all(&authority, version).await?;
            cluster.ready(version, 120).await
        };
        with_reports(made.await, &cluster.hosts).await?;
        Ok(cluster)
    }

    /// Stops its hosts and releases their disks.
    pub async fn end(self) -> anyhow::Result<()> {
        for host in self.hosts {
            host.end().await?;
        }
        Ok(())
    }

    async fn join_all(&self, authority: &Authority, version: &str) -> anyhow::Result<()> {
        for (at, (host, node)) in self.hosts.iter().zip(&self.nodes).enumerate() {
            if at == 0 {
                let material = authority.material();
                host.write("etc/kubernetes/pki/ca.crt", &material.cert_pem)?;
                host.write("etc/kubernetes/pki/ca.key", &material.key_pem)?;
                let config = init(host, node, version);
                host.write("etc/kubeadm.yaml", &config)?;
                let init = "kubeadm init --config=/etc/kubeadm.yaml --upload-certs";
                kubeadm(host, init).await?;
            } else {
                host.write("etc/kubeadm.yaml", &join(host, node))?;
                kubeadm(host, "kubeadm join --config=/etc/kubeadm.yaml").await?;
            }
        }
        Ok(())
    }

    /// Waits until every node is Ready, schedulable and has a kubelet of this version.
    pub async fn ready(&self, version: &str, seconds: u64) -> anyhow::Result<()> {
        let nodes: kube::Api<k8s_openapi::api::core::v1::Node> =
            kube::Api::all(self.client.clone());
        let ask = async || {
            let list = nodes.list(&kube::api::ListParams::default()).await;
            let list = list.map_err(|error| format!("{error:#}"))?;
            let mut good = 0;
            let mut lines = Vec::new();
            for node in list {
                let name = node.metadata.name.unwrap_or_default();
                let status = node.status.unwrap_or_default();
                let conditions = status.conditions.unwrap_or_default();
                let ready = conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
                let closed = node.spec.is_some_and(|spec| spec.unschedulable == Some(true));
                let found = status.node_info.unwrap_or_default().kubelet_version;
                good += usize::from(ready && !closed && found == version);
                lines.push(format!("{name} {found} ready={ready} cordoned={closed}"));
            }
            (good == self.nodes.len()).then_some(()).ok_or_else(|| lines.join("; "))
        };
        eventually(&format!("all nodes are at {version}"), Duration::from_secs(seconds), ask).await
    }
}

async fn kubeadm(host: &Host, command: &str) -> anyhow::Result<()> {
    let run = host.exec(["sh", "-c", command]);
    let outcome = tokio::time::timeout(Duration::from_secs(KUBEADM_SECONDS), run).await;
    let outcome = outcome.with_context(|| format!("`{command}` timed out on {}", host.name))?;
    outcome.map(drop)
}

/// Returns the pod network of one host.
fn pod_network(number: u8) -> String {
    serde_json::json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": format!("10.244.{number}.0/24")}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
    .to_string()
}

const TOKEN: &str = "abcdef.0123456789abcdef";
const CERTIFICATE_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn registration(node: &Node) -> Value {
    serde_json::json!({
        "name": node.name,
        "criSocket": "unix:///run/containerd/containerd.sock",
        "kubeletExtraArgs": [{"name": "provider-id", "value": node.provider_id}],
        "ignorePreflightErrors": ["all"],
        // In small clusters pods run on all nodes, and pods of the only worker need another node
        // during its drain.
        "taints": [],
    })
}

/// Configuration of `kubeadm init`; JSON is YAML.
fn init(host: &Host, node: &Node, version: &str) -> String {
    let api = "kubeadm.k8s.io/v1beta4";
    let documents = [
        serde_json::json!({
            "apiVersion": api,
            "kind": "InitConfiguration",
            "bootstrapTokens": [{"token": TOKEN, "ttl": "0s"}],
            "certificateKey": CERTIFICATE_KEY,
            "localAPIEndpoint": {"advertiseAddress": host.address},
            "nodeRegistration": registration(node),
            "skipPhases": ["addon"],
        }),
        serde_json::json!({
            "apiVersion": api,
            "kind": "ClusterConfiguration",
            "clusterName": "edge-1",
            "kubernetesVersion": version,
            "controlPlaneEndpoint": format!("{}:{}", net::SWITCH, balancer::PORT),
            "etcd": {"local": {"imageTag": ETCD_TAG}},
        }),
        serde_json::json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": false,
        }),
    ];
    documents.map(|document| document.to_string()).join("\n---\n")
}

/// Configuration of `kubeadm join`.
fn join(host: &Host, node: &Node) -> String {
    let mut join = serde_json::json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {"bootstrapToken": {
            "token": TOKEN,
            "apiServerEndpoint": format!("{}:{}", net::SWITCH, balancer::PORT),
            "unsafeSkipCAVerification": true,
        }},
        "nodeRegistration": registration(node),
    });
    if node.control_plane {
        join["controlPlane"] = serde_json::json!({
            "localAPIEndpoint": {"advertiseAddress": host.address},
            "certificateKey": CERTIFICATE_KEY,
        });
    }
    join.to_string()
}
