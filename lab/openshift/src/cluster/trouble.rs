//! Trouble that a script sets. It is kept in the cluster until it is removed.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{
    Cluster, Release,
    settings::{PACE, RELEASES, SETTINGS, Trouble},
    view::VERSION_NAMESPACE,
};

impl Cluster {
    /// Sets which releases exist, and in which channels.
    pub async fn set_releases(&self, releases: &[Release]) -> kube::Result<()> {
        let text = serde_json::to_string(releases).map_err(kube::Error::SerdeError)?;
        self.set(RELEASES, Some(&text)).await
    }

    /// Sets how many times faster than real ones the machines and operators are: a real API server has a real clock.
    pub async fn set_pace(&self, pace: u16) -> kube::Result<()> {
        self.set(PACE, Some(&pace.to_string())).await
    }

    /// An operator is degraded, with this message, or no longer. Its update does not end as long as it is.
    pub async fn set_degraded(&self, operator: &str, message: Option<&str>) -> kube::Result<()> {
        self.set(&Trouble::Degraded(operator).key(), message).await
    }

    /// An operator is not available, with this message, or is again.
    pub async fn set_unavailable(&self, operator: &str, message: Option<&str>) -> kube::Result<()> {
        self.set(&Trouble::Unavailable(operator).key(), message).await
    }

    /// Another minor version is not permitted, with this message, or is again.
    pub async fn forbid_minor_upgrades(&self, message: Option<&str>) -> kube::Result<()> {
        self.set(&Trouble::NotUpgradeable.key(), message).await
    }

    /// The update of the control plane does not proceed, or does again.
    pub async fn stall_control_plane(&self, stalls: bool) -> kube::Result<()> {
        self.set_flag(&Trouble::ControlPlaneStalled, stalls).await
    }

    /// The update of the control plane fails, with this message, or proceeds again.
    pub async fn fail_update(&self, message: Option<&str>) -> kube::Result<()> {
        self.set(&Trouble::UpdateFails.key(), message).await
    }

    /// The cluster-version operator accepts no update, with this message, or does again.
    pub async fn refuse_updates(&self, message: Option<&str>) -> kube::Result<()> {
        self.set(&Trouble::UpdatesRefused.key(), message).await
    }

    /// The cluster-version operator cannot read which updates there are, with this message, or can again.
    pub async fn cut_off_graph(&self, message: Option<&str>) -> kube::Result<()> {
        self.set(&Trouble::GraphUnreachable.key(), message).await
    }

    /// The cluster-version operator does not show a version as an update, or does again.
    pub async fn withdraw(&self, version: &str, is_withdrawn: bool) -> kube::Result<()> {
        self.set_flag(&Trouble::VersionWithdrawn(version), is_withdrawn).await
    }

    /// Machines that are not provisioned yet fail, with this message. Later ones succeed again; those that have failed stay.
    pub async fn fail_machines(&self, message: Option<&str>) -> kube::Result<()> {
        self.set(&Trouble::MachinesFail.key(), message).await
    }

    /// Machines that are not provisioned yet wait, such as for capacity of the cloud, or no longer.
    pub async fn hold_machines(&self, wait: bool) -> kube::Result<()> {
        self.set_flag(&Trouble::MachinesWait, wait).await
    }

    /// New nodes do not become Ready, or do again.
    pub async fn hold_new_nodes(&self, wait: bool) -> kube::Result<()> {
        self.set_flag(&Trouble::NewNodesNotReady, wait).await
    }

    /// A node is not Ready, also after a reboot, or is again.
    pub async fn set_node_down(&self, node: &str, is_down: bool) -> kube::Result<()> {
        self.set_flag(&Trouble::NodeNotReady(node), is_down).await
    }

    /// The daemon of the machine-config operator fails on a node, with this message, or proceeds again.
    pub async fn degrade_node(&self, node: &str, message: Option<&str>) -> kube::Result<()> {
        self.set(&Trouble::NodeDegraded(node).key(), message).await
    }

    /// A node is under a pressure: `MemoryPressure`, `DiskPressure`, `PIDPressure`, or none.
    pub async fn set_pressure(&self, node: &str, condition: Option<&str>) -> kube::Result<()> {
        self.set(&Trouble::NodePressure(node).key(), condition).await
    }

    /// A pod does not end after its grace period, or does again. One whose name is used again hangs too.
    pub async fn hang_pod(&self, namespace: &str, name: &str, hangs: bool) -> kube::Result<()> {
        self.set_flag(&Trouble::PodHangs { namespace, name }, hangs).await
    }

    async fn set_flag(&self, trouble: &Trouble<'_>, is_set: bool) -> kube::Result<()> {
        self.set(&trouble.key(), is_set.then_some("")).await
    }

    async fn set(&self, key: &str, value: Option<&str>) -> kube::Result<()> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), VERSION_NAMESPACE);
        let patch = json!({"data": {key: value}});
        api.patch(SETTINGS, &PatchParams::default(), &Patch::Merge(&patch)).await.map(|_| ())
    }
}
