//! Surge: the created, deleted and updated machines match the output of `refit plan`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::ensure;
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::TO,
    objects::{DEV_MACHINE_TEMPLATE, uid},
    recorder::Recorder,
};
use serde_json::{Value, json};

use super::{
    look,
    planned::{Counts, Planned},
};

/// Thirteen machines, partly one after another.
const WITHIN: Duration = Duration::from_mins(10);

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec {
        surge: 1,
        workers: vec![("a", 5, 0, 1), ("b", 5, 1, 0), ("c", 2, 0, 1)],
        holds: true,
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("surge", &spec).await?;
    let wanted = [("surge", (2, 1, 1)), ("surge-a", (5, 0, 0)), ("surge-b", (4, 1, 1))];
    let planned = Planned::version(bed, &cluster, "cluster/surge", TO).await?;
    for (group, counts) in wanted {
        let found = planned.counts(group)?;
        ensure!(found == counts, "the plan of {group} is {found:?} instead of {counts:?}");
    }
    let recorder = Recorder::start(&cluster).await?;
    let before = uids(&cluster).await?;
    cluster.change_control_plane(&json!({"version": TO})).await?;
    cluster.control_plane_is_at(TO, WITHIN).await?;
    for workers in ["a", "b"] {
        let version = json!({"template": {"spec": {"version": TO}}});
        cluster.change_workers(workers, &version).await?;
    }
    let rotated = rotated(&cluster).await?;
    cluster.change_workers("c", &rotated).await?;
    for workers in ["a", "b", "c"] {
        cluster.workers_are_at(workers, TO, WITHIN).await?;
    }
    let after = uids(&cluster).await?;
    for (group, counts) in wanted.into_iter().chain([("surge-c", (2, 0, 0))]) {
        let found = counted(&before[group], &after[group])?;
        ensure!(found == counts, "{group}: {found:?} instead of {counts:?}");
    }
    for (group, _) in wanted {
        planned.came_true(&cluster, group).await?;
    }
    look::nothing_is_left(&cluster).await?;
    recorder.compare(bed, "surge").await
}

/// Creates an identical template with another name, and returns a change to it and to another
/// version.
async fn rotated(cluster: &Cluster) -> anyhow::Result<Value> {
    let template = cluster.objects.get(DEV_MACHINE_TEMPLATE, "surge-c").await?;
    let object = json!({
        "apiVersion": template["apiVersion"],
        "kind": "DevMachineTemplate",
        "metadata": {"name": "surge-c-rotated", "namespace": cluster.namespace},
        "spec": template["spec"],
    });
    cluster.objects.apply(&object).await?;
    Ok(json!({"template": {"spec": {
        "version": TO,
        "infrastructureRef": {"name": "surge-c-rotated"},
    }}}))
}

/// uids of the Machines of each group.
async fn uids(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
    let uids_of = |machines: Vec<Value>| machines.iter().map(|m| uid(m).to_owned()).collect();
    let machines = cluster.control_plane_machines().await?;
    let mut found = BTreeMap::from([(cluster.name.clone(), uids_of(machines))]);
    for workers in ["a", "b", "c"] {
        let machines = cluster.worker_machines(workers).await?;
        found.insert(format!("{}-{workers}", cluster.name), uids_of(machines));
    }
    Ok(found)
}

fn counted(before: &BTreeSet<String>, after: &BTreeSet<String>) -> anyhow::Result<Counts> {
    Ok((
        i64::try_from(before.intersection(after).count())?,
        i64::try_from(after.difference(before).count())?,
        i64::try_from(before.difference(after).count())?,
    ))
}
