//! The scenarios with several updaters: a version, memory and, with hooks, processors change at once.

use kube::CustomResourceExt as _;
use memory_provider::{MemoryUpdate, MemoryUpdateTemplate};
use serde_json::{Value, json};

use super::SweepError;
use crate::{
    direct::{Call, Direct, USER},
    world::World,
};

const UPDATERS: &str = "/apis/refit.dev/v1alpha1/updaters";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const MEMORY_TEMPLATES: &str = "/apis/memory.example/v1/namespaces/default/memoryupdatetemplates";
const TEMPLATES: &str =
    "/apis/infrastructure.cluster.x-k8s.io/v1beta2/namespaces/default/sandboxmachinetemplates";

/// Who changes the memory of machines.
#[derive(Clone, Copy, Debug)]
pub(super) enum MemoryUpdater {
    /// `examples/hook-updater`, and a second Updater of it changes processors.
    Hook,
    /// `examples/provider`.
    Provider,
}

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

/// Creates the definitions and the template of `examples/provider`.
async fn prepare_provider(api: &Direct) -> Result<(), SweepError> {
    for crd in [MemoryUpdateTemplate::crd(), MemoryUpdate::crd()] {
        api.send(Call::create(DEFINITIONS, json!(crd))).await?;
    }
    let template = json!({
        "apiVersion": "memory.example/v1",
        "kind": "MemoryUpdateTemplate",
        "metadata": {"name": "memory", "namespace": "default"},
        "spec": {"template": {"spec": {"mostMib": 65_536}}},
    });
    api.send(Call::create(MEMORY_TEMPLATES, template)).await?;
    Ok(())
}

/// The Updater of memory by a provider, in place of a hook.
fn by_provider(mut updater: Value) -> Value {
    let template = json!({
        "apiVersion": "memory.example/v1", "kind": "MemoryUpdateTemplate", "name": "memory",
    });
    if let Some(spec) = updater["spec"].as_object_mut() {
        spec.remove("hook");
        spec.insert("template".to_owned(), template);
    }
    updater
}

/// Creates the Updaters and the templates.
pub(super) async fn prepare(world: &World, by: MemoryUpdater) -> Result<(), SweepError> {
    let api = Direct::new(world.management().clone(), USER);
    let has = "infrastructureMachine.metadata.annotations['memory.example/has'] == \
        string(infrastructureMachine.spec.memoryMiB)";
    let memory = updater("memory", "memoryMiB", 10, &[has]);
    let all = match by {
        MemoryUpdater::Hook => vec![memory, updater("cpus", "cpus", 20, &[])],
        MemoryUpdater::Provider => {
            prepare_provider(&api).await?;
            vec![by_provider(memory)]
        }
    };
    for mut updater in all {
        world.trust_hook_updater(&mut updater);
        api.send(Call::create(UPDATERS, updater)).await?;
    }
    // Only what an Updater claims may change.
    let cpus = |cpus: i32| match by {
        MemoryUpdater::Hook => 2 * cpus,
        MemoryUpdater::Provider => cpus,
    };
    for template in [
        template("bigger-control-plane", cpus(4), 16_384),
        template("bigger-md-0", cpus(8), 32_768),
    ] {
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
