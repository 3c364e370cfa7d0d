//! Which changes of a control plane's KubeadmConfig Cluster API counts as changes: the same table
//! as in the unit tests of `refit_cluster_api::kubeadm_config`.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::error_text,
    eventually,
    objects::{self, condition_text, number},
    wait,
};
use serde_json::{Value, json};

use super::look;

const VERDICTS: &str =
    include_str!("../../../../crates/cluster-api/testdata/kubeadm_config_verdicts.json");
const WITHIN: Duration = Duration::from_mins(2);
/// How long a verdict must remain: Cluster API writes the Machines' conditions in the reconcile
/// that observes the generation.
const QUIET: Duration = Duration::from_secs(5);
/// Cluster API's message for a Machine whose KubeadmConfig differs.
const DIFFERS: &str = "KubeadmConfig is not up-to-date";

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let table: Value = serde_json::from_str(VERDICTS)?;
    let base = &table["base"];
    let spec = ClusterSpec { kubeadm_config: Some(base.clone()), ..ClusterSpec::default() };
    let cluster = bed.cluster("verdicts", &spec).await?;
    // Without a verdict of Refit nothing is applied, so every change that counts stays one.
    for policy in ["one", "two"] {
        let object = json!({
            "apiVersion": "refit.dev/v1alpha1",
            "kind": "NodeDisruptionPolicy",
            "metadata": {"name": policy, "namespace": cluster.namespace},
            "spec": {"appliesTo": {"all": {}}, "users": {"actions": [{"none": {}}]}},
        });
        cluster.objects.apply(&object).await?;
    }
    let before = look::identities(&cluster).await?;
    for row in table["changes"].as_array().context("the table has no changes")? {
        judge(&cluster, base, row).await.with_context(|| row["what"].to_string())?;
    }
    let after = look::identities(&cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    Ok(())
}

/// Makes one change, compares the verdict, and undoes the change.
async fn judge(cluster: &Cluster, base: &Value, row: &Value) -> anyhow::Result<()> {
    let counts = row["counts"].as_bool().context("the row has no verdict")?;
    if let Err(error) = cluster.change_control_plane(&config(&row["change"])).await {
        ensure!(row["may_be_rejected"] == true && is_rejection(&error), "rejected: {error:#}");
        tracing::info!(change = %row["what"], "rejected by Cluster API: no verdict");
        return Ok(());
    }
    all_machines(cluster, counts).await?;
    if !counts {
        wait::never("the change counts", QUIET, async || verdict(cluster, false).await).await?;
    }
    cluster.change_control_plane(&config(&undo(base, &row["change"]))).await?;
    all_machines(cluster, false).await
}

/// Whether a schema or a webhook rejected the change. Any other error is not a verdict.
fn is_rejection(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if matches!(status.code, 403 | 422))
}

fn config(change: &Value) -> Value {
    json!({ "kubeadmConfigSpec": change })
}

async fn all_machines(cluster: &Cluster, outdated: bool) -> anyhow::Result<()> {
    eventually("Cluster API has decided", WITHIN, async || verdict(cluster, outdated).await).await
}

/// Checks that all Machines of the control plane are outdated, or that none is.
async fn verdict(cluster: &Cluster, outdated: bool) -> Result<(), String> {
    let plane = cluster.control_plane().await.map_err(error_text)?;
    let (generation, observed) =
        (number(&plane, "/metadata/generation"), number(&plane, "/status/observedGeneration"));
    // The generation of a change that counts is not observed: no updater covers the change, and
    // Cluster API retries.
    if generation != observed && !outdated {
        return Err(format!("observedGeneration is {observed}, generation is {generation}"));
    }
    for machine in cluster.control_plane_machines().await.map_err(error_text)? {
        let condition = condition_text(&machine, "UpToDate");
        if condition.contains(DIFFERS) != outdated {
            return Err(format!("{}: {condition}", objects::name(&machine)));
        }
    }
    Ok(())
}

/// The merge patch that undoes `change` on top of `base`.
fn undo(base: &Value, change: &Value) -> Value {
    match (base, change) {
        (Value::Object(base), Value::Object(change)) => change
            .iter()
            .map(|(key, change)| {
                let back = base.get(key).map_or(Value::Null, |base| undo(base, change));
                (key.clone(), back)
            })
            .collect(),
        _ => base.clone(),
    }
}
