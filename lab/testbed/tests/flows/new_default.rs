//! A provider starts to default a field between two updates: the second one updates the same
//! Machines, and those that it has updated stay finished.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::error_text,
    eventually,
    objects::{self, DEFINITION, DEV_MACHINE, Objects, name, text},
};
use serde_json::{Value, json};

use super::look;

const WITHIN: Duration = Duration::from_mins(4);
/// Version of the control plane from the start: no kubelet may be newer.
const NEWEST: &str = "v1.35.4";
/// The new field of DevMachines.
const FIELD: &str = "powerOffMode";
/// The definitions that get it, and where in their schemas.
const SCHEMAS: [(&str, &str); 2] = [
    ("devmachines.infrastructure.cluster.x-k8s.io", "/properties/spec/properties"),
    (
        "devmachinetemplates.infrastructure.cluster.x-k8s.io",
        "/properties/spec/properties/template/properties/spec/properties",
    ),
];

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("md", 2, 0, 1)],
        version: NEWEST,
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("new-default", &spec).await?;
    let before = look::identities(&cluster).await?;
    update(&cluster, "v1.35.1").await?;
    for (definition, place) in SCHEMAS {
        add_default(bed, definition, place).await?;
    }
    eventually("every DevMachine has the new field", WITHIN, async || {
        let machines = cluster.objects.list(DEV_MACHINE).await.map_err(error_text)?;
        let without = machines.iter().find(|one| text(one, "/spec/powerOffMode") != "hard");
        without.map_or(Ok(()), |one| Err(format!("{} has not", name(one))))
    })
    .await?;
    update(&cluster, "v1.35.2").await?;
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    look::nothing_is_left(&cluster).await
}

async fn update(cluster: &Cluster, version: &str) -> anyhow::Result<()> {
    let change = json!({"template": {"spec": {"version": version}}});
    cluster.change_workers("md", &change).await?;
    cluster.workers_are_at("md", version, WITHIN).await
}

/// Adds the field with a default to every version of a definition.
async fn add_default(bed: &Bed, definition: &str, place: &str) -> anyhow::Result<()> {
    let definitions = Objects::of_cluster(bed.client().clone());
    let found = definitions.get(DEFINITION, definition).await?;
    let mut versions = found["spec"]["versions"].clone();
    for version in versions.as_array_mut().into_iter().flatten() {
        let fields = version.pointer_mut(&format!("/schema/openAPIV3Schema{place}"));
        let fields = fields.and_then(Value::as_object_mut);
        let fields = fields.with_context(|| format!("{definition} has no {place}"))?;
        fields.insert(FIELD.to_owned(), json!({"type": "string", "default": "hard"}));
    }
    let patch = json!({"spec": {"versions": versions}});
    let patched = definitions.merge(DEFINITION, definition, &patch).await?;
    ensure!(objects::name(&patched) == definition, "{patched}");
    Ok(())
}
