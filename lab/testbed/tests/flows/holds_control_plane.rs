//! Holds keep the Machines of a control plane that Cluster API would replace without asking.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{TO, error_text},
    eventually,
    objects::{
        CONTROL_PLANE, DEV_MACHINE_TEMPLATE, MACHINE, Objects, POD, UPDATE_GROUP, condition_text,
        name, text,
    },
    recorder::Recorder,
};
use serde_json::{Value, json};

use super::{holds::Refusals, look};

const WITHIN: Duration = Duration::from_mins(6);
/// Name of the cluster, of its namespace and of its control plane.
const NAME: &str = "held-three";

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec { holds: true, ..ClusterSpec::default() };
    let cluster = bed.cluster(NAME, &spec).await?;
    let recorder = Recorder::start(&cluster).await?;
    let before = look::identities(&cluster).await?;
    fails_preflight(&cluster).await?;
    infrastructure_refuses(&cluster).await?;
    restarts_while_nothing_is_requested(&cluster).await?;
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    ensure!(recorder.counts(NAME) == [3], "{:?}", recorder.counts(NAME));
    look::nothing_is_left(&cluster).await
}

/// A Machine is not healthy when the version changes. Once it is, all are updated in place.
async fn fails_preflight(cluster: &Cluster) -> anyhow::Result<()> {
    let broken = broken(cluster).await?;
    let refusals = Refusals::since_now(cluster).await?;
    cluster.change_control_plane(&json!({"version": TO})).await?;
    refused(&refusals, &broken).await?;
    pod_is_ready(cluster, &broken, true).await?;
    look_until(cluster, "the control plane is updated", async || {
        let shortly = Duration::from_millis(1);
        cluster.control_plane_is_at(TO, shortly).await.map_err(error_text)
    })
    .await
}

/// The infrastructure refuses to change its machines, so Cluster API does not ask Refit.
async fn infrastructure_refuses(cluster: &Cluster) -> anyhow::Result<()> {
    make_immutable(cluster, &cluster.namespace).await?;
    let refusals = Refusals::since_now(cluster).await?;
    let template = cluster.objects.get(DEV_MACHINE_TEMPLATE, "held-three-control-plane").await?;
    let mut spec = template["spec"].clone();
    spec["template"]["spec"]["backend"]["inMemory"]["vm"]["provisioning"]["startupDuration"] =
        json!("2s");
    let object = json!({
        "apiVersion": template["apiVersion"],
        "kind": "DevMachineTemplate",
        "metadata": {"name": "slower", "namespace": cluster.namespace},
        "spec": spec,
    });
    cluster.objects.apply(&object).await?;
    refer_to(cluster, "slower").await?;
    refused(&refusals, "").await?;
    make_immutable(cluster, "another").await
}

/// No updater covers the change. Refit keeps the Machines; but Cluster API does not ask for one that is
/// not healthy.
async fn restarts_while_nothing_is_requested(cluster: &Cluster) -> anyhow::Result<()> {
    look_until(cluster, "Refit keeps the Machines", async || {
        let groups = cluster.objects.list(UPDATE_GROUP).await.map_err(error_text)?;
        let group = groups.iter().find(|group| text(group, "/spec/owner/name") == NAME);
        let covered = condition_text(group.ok_or("there is no UpdateGroup")?, "Covered");
        covered.starts_with("False/UncoveredPreserve").then_some(()).ok_or(covered)
    })
    .await?;
    let refusals = Refusals::since_now(cluster).await?;
    let broken = broken(cluster).await?;
    refused(&refusals, &broken).await?;
    pod_is_ready(cluster, &broken, true).await?;
    refer_to(cluster, "held-three-control-plane").await?;
    look_until(cluster, "the control plane is as it was", async || {
        let shortly = Duration::from_millis(1);
        cluster.control_plane_is_at(TO, shortly).await.map_err(error_text)
    })
    .await
}

async fn refused(refusals: &Refusals<'_>, machine: &str) -> anyhow::Result<()> {
    let why = "KubeadmControlPlane held-three/held-three: another one would replace Machine ";
    refusals.wait("FailedScaleDown", &format!("{why}{machine}")).await
}

async fn refer_to(cluster: &Cluster, template: &str) -> anyhow::Result<()> {
    let name = json!({"machineTemplate": {"spec": {"infrastructureRef": {"name": template}}}});
    cluster.change_control_plane(&name).await
}

/// Lets the API server refuse changes of infrastructure machines in a namespace, as a provider's webhook
/// does.
async fn make_immutable(cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
    let object = |kind: &str, spec: Value| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": NAME}, "spec": spec,
        })
    };
    let policy = json!({
        "matchConstraints": {"resourceRules": [{
            "apiGroups": ["infrastructure.cluster.x-k8s.io"], "apiVersions": ["*"],
            "operations": ["UPDATE"], "resources": ["devmachines"],
        }]},
        "validations": [{"expression": "object.spec.backend == oldObject.spec.backend"}],
    });
    let of_namespace = json!({"kubernetes.io/metadata.name": namespace});
    let binding = json!({
        "policyName": NAME, "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": of_namespace}},
    });
    cluster.objects.apply(&object("ValidatingAdmissionPolicy", policy)).await?;
    cluster.objects.apply(&object("ValidatingAdmissionPolicyBinding", binding)).await?;
    Ok(())
}

/// Makes a Machine unhealthy, and returns its name.
async fn broken(cluster: &Cluster) -> anyhow::Result<String> {
    let machines = cluster.control_plane_machines().await?;
    let machine = name(machines.last().context("there is no Machine")?).to_owned();
    pod_is_ready(cluster, &machine, false).await?;
    look_until(cluster, "Cluster API sees the unhealthy Machine", async || {
        let found = cluster.objects.get(MACHINE, &machine).await.map_err(error_text)?;
        let healthy = condition_text(&found, "APIServerPodHealthy");
        healthy.starts_with("False").then_some(()).ok_or(healthy)
    })
    .await?;
    Ok(machine)
}

/// Sets the condition of the API server's pod of a Machine.
async fn pod_is_ready(cluster: &Cluster, machine: &str, ready: bool) -> anyhow::Result<()> {
    let machine = cluster.objects.get(MACHINE, machine).await?;
    let pod = format!("kube-apiserver-{}", text(&machine, "/status/nodeRef/name"));
    let pods = Objects::in_namespace(cluster.workload().await?, "kube-system");
    let status = if ready { "True" } else { "False" };
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    pods.merge(POD, &pod, &status).await?;
    Ok(())
}

/// Checks until something has come, and lets Cluster API look at the control plane each time: it waits
/// longer and longer after errors.
async fn look_until(
    cluster: &Cluster,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<(), String>,
) -> anyhow::Result<()> {
    let mut checks = 0_u32;
    eventually(what, WITHIN, async || {
        checks += 1;
        let note = [("refit-testbed/look", Some(checks.to_string()))];
        let note = note.each_ref().map(|(key, value)| (*key, value.as_deref()));
        cluster.objects.annotate(CONTROL_PLANE, NAME, &note).await.map_err(error_text)?;
        look().await
    })
    .await
}
