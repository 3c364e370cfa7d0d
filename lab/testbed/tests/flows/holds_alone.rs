//! Holds while the controller does not run, and without a ReplacementHold.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::{TO, error_text},
    eventually,
    objects::{CONTROL_PLANE, MACHINE, NAMESPACE, Objects, REPLACEMENT_HOLD, name},
    recorder::Recorder,
};
use refit_kinds::{keys, refit};
use serde_json::{Value, json};

use super::{
    holds::{Refusals, is_paused},
    look, tasks,
};

const WITHIN: Duration = Duration::from_mins(6);
/// Name of the cluster, of its namespace and of its control plane.
const NAME: &str = "held-alone";
/// The name of the binding is the way out.
const WAY_OUT: &str = "remove-the-label-hold-replacements-of-the-namespace";

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _alone = bed.alone().await;
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: Vec::new(),
        holds: true,
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster(NAME, &spec).await?;
    let recorder = Recorder::start(&cluster).await?;
    let before = look::identities(&cluster).await?;
    holds_the_control_plane(&cluster).await?;
    bed.controller().part().kill().await;

    let refusals = Refusals::since_now(&cluster).await?;
    cluster.change_control_plane(&json!({"version": TO})).await?;
    let why = "KubeadmControlPlane held-alone/held-alone: a further one would replace another";
    refusals.wait("FailedScaleUp", why).await?;

    let no_finalizer = json!({"metadata": {"finalizers": null}});
    cluster.objects.merge(REPLACEMENT_HOLD, refit::REPLACEMENT_HOLD, &no_finalizer).await?;
    cluster.objects.delete(REPLACEMENT_HOLD, refit::REPLACEMENT_HOLD).await?;
    refused_to_everyone(&cluster).await?;
    let refusals = Refusals::since_now(&cluster).await?;
    // Cluster API waits longer after each refusal.
    cluster.objects.annotate(CONTROL_PLANE, NAME, &[("example.com/look", Some("again"))]).await?;
    refusals.wait("FailedScaleUp", WAY_OUT).await?;
    ensure!(look::identities(&cluster).await? == before, "the Machine is another one");
    ensure!(recorder.counts(NAME) == [1], "{:?}", recorder.counts(NAME));

    // Once the controller runs, it replaces the object, and pauses the control plane until the label is removed.
    tasks::grant(bed).await?;
    bed.controller().part().start_again();
    bed.controller().ready().await?;
    is_paused(&cluster).await?;
    holds_the_control_plane(&cluster).await?;
    let labels = json!({"metadata": {"labels": {keys::HOLD_REPLACEMENTS: null}}});
    Objects::of_cluster(bed.client().clone()).merge(NAMESPACE, NAME, &labels).await?;
    cluster.control_plane_is_at(TO, WITHIN).await?;
    ensure!(recorder.counts(NAME) == [1, 2, 1], "{:?}", recorder.counts(NAME));
    Ok(())
}

async fn holds_the_control_plane(cluster: &Cluster) -> anyhow::Result<()> {
    let wanted = json!([{
        "kind": "KubeadmControlPlane", "name": NAME, "create": "Refused", "delete": "Refused",
    }]);
    eventually("the control plane is held", WITHIN, async || {
        let hold = cluster.objects.find(REPLACEMENT_HOLD, refit::REPLACEMENT_HOLD).await;
        let hold = hold.map_err(error_text)?;
        let owners = hold.as_ref().and_then(|hold| hold.pointer("/spec/owners"));
        (owners == Some(&wanted)).then_some(()).ok_or_else(|| format!("{owners:?}"))
    })
    .await
}

/// An administrator may not delete a Machine either, and learns why.
async fn refused_to_everyone(cluster: &Cluster) -> anyhow::Result<()> {
    let machines: Vec<Value> = cluster.objects.list(MACHINE).await?;
    let machine = name(machines.first().context("there is no Machine")?);
    let error = cluster.objects.delete(MACHINE, machine).await.err();
    let text = error.map(error_text).unwrap_or_default();
    ensure!(text.contains(WAY_OUT), "the deletion of a Machine: {text:?}");
    Ok(())
}
