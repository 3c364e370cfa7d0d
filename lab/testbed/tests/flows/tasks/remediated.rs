//! A MachineHealthCheck on the condition that a task sets: it replaces exactly the Machine whose update has failed.

use std::collections::BTreeSet;

use anyhow::ensure;
use lab_simhost::HostState;
use lab_testbed::{
    Bed, ClusterSpec,
    cluster::{FROM, TO, error_text},
    eventually,
    objects::{UPGRADE_TASK, condition_text, name},
};

use super::{DEPLOYMENT, WITHIN, complete, create, is_left_alone, look, of};

/// One fails, and ten wait next to it: one may be down at a time.
const WORKERS: u32 = 11;

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("a", WORKERS, 0, 1)],
        version: TO,
        workers_version: FROM,
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("remediated", &spec).await?;
    let before = look::identities(&cluster).await?;
    // Any of those that are prepared first can be the first to be updated.
    for machine in cluster.worker_machines("a").await? {
        bed.hosts().with(&cluster.namespace, name(&machine), |host| {
            host.break_step("kubelet-install", u32::MAX);
        })?;
    }
    let task = create(&cluster, "a", &of(DEPLOYMENT, &format!("{}-a", cluster.name), TO)).await?;
    let failed = eventually("one machine has failed, and ten wait", WITHIN, async || {
        let machines = cluster.worker_machines("a").await.map_err(error_text)?;
        let shown = |machine| condition_text(machine, "MachineUpToDate");
        let failed = machines.iter().filter(|machine| shown(machine).starts_with("False"));
        let failed: Vec<&str> = failed.map(name).collect();
        let waiting = machines.iter().filter(|machine| shown(machine).contains("Waiting")).count();
        match failed[..] {
            [one] if waiting == 10 => Ok(one.to_owned()),
            _ => {
                let task = cluster.objects.get(UPGRADE_TASK, &task).await.map_err(error_text)?;
                let ready = condition_text(&task, "Ready");
                Err(format!("{failed:?} failed, {waiting} wait; {ready}"))
            }
        }
    })
    .await?;
    for machine in cluster.worker_machines("a").await? {
        if name(&machine) != failed {
            bed.hosts().with(&cluster.namespace, name(&machine), HostState::mend)?;
        }
    }
    look::replace_failed(&cluster, "a").await?;
    complete(&cluster, &task).await?;
    is_left_alone(&cluster, &["a"], TO).await?;
    let after = look::identities(&cluster).await?;
    let names = |all: &std::collections::BTreeMap<String, Vec<String>>| {
        all.keys().cloned().collect::<BTreeSet<String>>()
    };
    let gone: Vec<String> = names(&before).difference(&names(&after)).cloned().collect();
    ensure!(gone == [failed], "{gone:?} were replaced");
    let kept = before.iter().filter(|(name, _)| after.contains_key(*name));
    for (name, identity) in kept {
        ensure!(after[name] == *identity, "{name} is another one: {identity:?}, {:?}", after[name]);
    }
    ensure!(after.len() == before.len(), "{} became {}", before.len(), after.len());
    Ok(())
}
