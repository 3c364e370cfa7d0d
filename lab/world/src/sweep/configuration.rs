//! The scenario in which KubeadmConfigs change: a file, a flag of the kubelet and time servers, without a version.

use serde_json::{Value, json};

use super::SweepError;
use crate::{
    direct::{Call, Direct, USER},
    world::{World, lock},
};

const TEMPLATES: &str =
    "/apis/bootstrap.cluster.x-k8s.io/v1beta2/namespaces/default/kubeadmconfigtemplates";
const CONTROL_PLANE: &str =
    "/apis/controlplane.cluster.x-k8s.io/v1beta2/namespaces/default/kubeadmcontrolplanes/edge-1";
const WORKERS: &str =
    "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machinedeployments/edge-1-md-0";
/// The template of the workers after the change.
const CONFIGURED: &str = "edge-1-md-0-configured";
/// The file, and its content afterwards.
const FILE: (&str, &str) = ("/etc/motd", "configured");

/// What hosts get, with the flags that machines have already.
fn configuration() -> Value {
    json!({
        "files": [{"path": FILE.0, "content": FILE.1}],
        "ntp": {"servers": ["time.example"]},
        "joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": [
            {"name": "node-labels", "value": "site=edge-1"}, {"name": "max-pods", "value": "50"},
        ]}},
    })
}

/// Creates the template.
pub(super) async fn prepare(world: &World) -> Result<(), SweepError> {
    let template = json!({
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmConfigTemplate",
        "metadata": {"name": CONFIGURED, "namespace": "default"},
        "spec": {"template": {"spec": configuration()}},
    });
    let api = Direct::new(world.management().clone(), USER);
    api.send(Call::create(TEMPLATES, template)).await?;
    Ok(())
}

/// Requests the change of all machines.
pub(super) async fn start(world: &World) -> Result<(), SweepError> {
    let api = Direct::new(world.management().clone(), USER);
    let of_plane = json!({"spec": {"kubeadmConfigSpec": configuration()}});
    let of_workers =
        json!({"spec": {"template": {"spec": {"bootstrap": {"configRef": {"name": CONFIGURED}}}}}});
    api.send(Call::merge(CONTROL_PLANE, of_plane)).await?;
    api.send(Call::merge(WORKERS, of_workers)).await?;
    Ok(())
}

/// Whether every host has the file, and every machine is up to date.
pub(super) fn is_applied(world: &World) -> bool {
    let hosts = lock(&world.inner.hosts);
    let has_file = hosts
        .values()
        .all(|host| lock(&host.state).root.get(FILE.0).is_some_and(|content| content == FILE.1));
    drop(hosts);
    has_file && world.is_ready() && world.is_quiet()
}
