//! Management and workload API on the bridge, for hosts that run stand-ins for Kubernetes.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use refit_core::node::Reboot;
use refit_runtime::{client::ClientStack, tls::Authority};
use serde_json::{Value, json};

use crate::{
    management::{
        Controller, Management, Objects, Shape, admin_config, admin_kubeconfig, send, serve_api,
        url, validity,
    },
    packages::VERSIONS,
};

const WORKLOAD_PORT: u16 = 6444;

/// Two API servers on the bridge with their controllers, until the runtime ends.
pub struct Cluster {
    /// The management cluster.
    pub management: Management,
    /// Client of the workload cluster with all permissions.
    pub workload: Client,
    workload_authority: Authority,
    /// Names of the control plane nodes, in order.
    pub control_planes: Vec<String>,
    /// Names of the workers, in order.
    pub workers: Vec<String>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cluster")
    }
}

/// Files of a node for access to its cluster.
#[derive(Debug)]
pub struct NodeFiles {
    /// PEM of the cluster's certificate authority.
    pub ca: String,
    /// The kubelet's kubeconfig.
    pub kubelet_conf: String,
    /// PEM of the kubelet's certificate and key.
    pub credentials: String,
    /// An administrator's kubeconfig.
    pub admin_conf: String,
}

impl Cluster {
    /// Returns the names of all nodes: control planes, then workers, in order.
    pub fn names(&self) -> Vec<String> {
        [&self.control_planes[..], &self.workers].concat()
    }

    /// Serves a cluster of three control plane machines and this many workers, whose machines are
    /// at the first version of the packages. No controller runs yet.
    pub async fn start(workers: u32) -> anyhow::Result<Self> {
        let version = format!("v{}", VERSIONS[0].0);
        let objects = Objects::of(Shape { control_planes: 3, workers, version: &version }).await?;
        let workload_authority = Authority::new("edge-1", validity())?;
        let management = Management::serve(objects.management).await?;
        serve_api(objects.workload, &workload_authority, WORKLOAD_PORT).await?;
        let workload_config = admin_config(&workload_authority, WORKLOAD_PORT).await?;
        let workload = ClientStack::production("refit-hosts").client(&workload_config)?;
        let (control_planes, workers) = nodes(&workload).await?;
        let cluster = Self { management, workload, workload_authority, control_planes, workers };
        cluster.give_nodes_their_rights().await?;
        Ok(cluster)
    }

    /// Returns the files that kubeadm leaves on a node of this name.
    pub fn node_files(&self, node: &str) -> anyhow::Result<NodeFiles> {
        let authority = &self.workload_authority;
        let user = format!("system:node:{node}");
        let own = authority.client_in(&user, &["system:nodes"], validity())?;
        let ca = authority.material().cert_pem.clone();
        let file = "/var/lib/kubelet/pki/kubelet-client-current.pem";
        let kubelet_conf = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: default\nclusters:\n- name: default\n  \
             cluster:\n    certificate-authority-data: {}\n    server: {}\ncontexts:\n- name: \
             default\n  context:\n    cluster: default\n    user: default\nusers:\n- name: \
             default\n  user:\n    client-certificate: {file}\n    client-key: {file}\n",
            STANDARD.encode(&ca),
            url(WORKLOAD_PORT)
        );
        Ok(NodeFiles {
            kubelet_conf,
            credentials: own.cert_pem + &own.key_pem,
            admin_conf: admin_kubeconfig(authority, WORKLOAD_PORT)?.to_string(),
            ca,
        })
    }

    /// Grants the permissions that the node authorizer would grant to kubelets.
    async fn give_nodes_their_rights(&self) -> anyhow::Result<()> {
        let rbac = "rbac.authorization.k8s.io";
        let role = json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole",
            "metadata": {"name": "test:nodes"},
            "rules": [
                {"apiGroups": [""], "resources": ["nodes", "nodes/status", "pods", "pods/status"], "verbs": ["*"]},
            ],
        });
        let binding = json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": "test:nodes"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "test:nodes"},
            "subjects": [{"apiGroup": rbac, "kind": "Group", "name": "system:nodes"}],
        });
        let path = format!("/apis/{rbac}/v1");
        send(&self.workload, "POST", &format!("{path}/clusterroles"), &role).await?;
        send(&self.workload, "POST", &format!("{path}/clusterrolebindings"), &binding).await?;
        Ok(())
    }

    /// Starts Cluster API's side and Refit's controller against the API servers on the bridge.
    pub async fn drive(&self) -> anyhow::Result<Controller> {
        self.management.drive(&self.kubeconfig()?).await
    }

    /// Starts a controller that reboots every host it updates; the previous controller must be
    /// stopped.
    pub async fn drive_by_reboots(&self) -> anyhow::Result<Controller> {
        self.management.control(&self.kubeconfig()?, Reboot::Always).await
    }

    fn kubeconfig(&self) -> anyhow::Result<String> {
        Ok(admin_kubeconfig(&self.workload_authority, WORKLOAD_PORT)?.to_string())
    }

    /// Lists the objects of a custom kind in the management cluster, such as
    /// `/apis/cluster.x-k8s.io/v1beta2/machines`.
    pub async fn list(&self, path: &str) -> anyhow::Result<Vec<Value>> {
        self.management.list(path).await
    }

    /// Lists the Nodes, by name.
    pub async fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let nodes = Api::<Node>::all(self.workload.clone());
        Ok(nodes.list(&ListParams::default()).await?.items)
    }
}

async fn nodes(client: &Client) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
    let (planes, workers): (Vec<_>, Vec<_>) = nodes
        .items
        .iter()
        .partition(|node| node.labels().contains_key("node-role.kubernetes.io/control-plane"));
    let names = |nodes: Vec<&Node>| nodes.into_iter().map(kube::ResourceExt::name_any).collect();
    Ok((names(planes), names(workers)))
}
