//! The scenario with three updaters: a version, memory and processors change at once.

use serde_json::{Value, json};

use super::SweepError;
use crate::{
    direct::{Call, Direct, USER},
    world::World,
};

const UPDATERS: &str = "/apis/refit.dev/v1alpha1/updaters";
const TEMPLATES: &str =
    "/apis/infrastructure.cluster.x-k8s.io/v1beta2/namespaces/default/sandboxmachinetemplates";

/// An Updater for one field, whose server is that of `examples/hook-updater`.
fn updater(name: &str, field: &str, order: i32, verify: &[&str]) -> Value {
    json!({
        "apiVersion": "refit.dev/v1alpha1",
        "kind": "Updater",
        "metadata": {"name": name},
        "spec": {
            "order": order,
            "claims": [{
                "group": "infrastructure.cluster.x-k8s.io",
                "kind": "SandboxMachine",
                "paths": [format!("/spec/{field}")],
            }],
            "action": "Update",
            "disruption": "Drain",
            "hook": {"url": "https://hook-updater.updaters.svc"},
            "verify": verify,
        },
    })
}

fn template(name: &str, cpus: i32, memory: i32) -> Value {
    json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
        "kind": "SandboxMachineTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"spec": {"cpus": cpus, "memoryMiB": memory}}},
    })
}

/// Creates the Updaters and the templates.
pub(super) async fn prepare(world: &World) -> Result<(), SweepError> {
    let api = Direct::new(world.management().clone(), USER);
    let has = "infrastructureMachine.metadata.annotations['memory.example/has'] == \
        string(infrastructureMachine.spec.memoryMiB)";
    let all = [updater("memory", "memoryMiB", 10, &[has]), updater("cpus", "cpus", 20, &[])];
    for mut updater in all {
        world.trust_hook_updater(&mut updater);
        api.send(Call::create(UPDATERS, updater)).await?;
    }
    for template in
        [template("bigger-control-plane", 8, 16_384), template("bigger-md-0", 16, 32_768)]
    {
        api.send(Call::create(TEMPLATES, template)).await?;
    }
    Ok(())
}

/// Requests the version and the templates.
pub(super) async fn start(world: &World, version: &str) -> Result<(), SweepError> {
    let api = Direct::new(world.management().clone(), USER);
    let plane = "/apis/controlplane.cluster.x-k8s.io/v1beta2/namespaces/default/kubeadmcontrolplanes/edge-1";
    let workers =
        "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machinedeployments/edge-1-md-0";
    let with = |template: &str| json!({"infrastructureRef": {"name": template}});
    let of_plane = json!({"spec": {
        "version": version, "machineTemplate": {"spec": with("bigger-control-plane")},
    }});
    let mut of_workers = with("bigger-md-0");
    of_workers["version"] = version.into();
    let of_workers = json!({"spec": {"template": {"spec": of_workers}}});
    api.send(Call::merge(plane, of_plane)).await?;
    api.send(Call::merge(workers, of_workers)).await?;
    Ok(())
}
