//! What must hold before a run: nothing else works on the machine.

use anyhow::{Context as _, anyhow, bail};
use kube::{
    Api,
    api::{DynamicObject, ListParams},
};
use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_kinds::{json, refit::NodeUpdate};
use refit_predict::contract::Seen;

use crate::{
    client::Cluster,
    plan::reader::{Found, Reader},
};

/// The Machine, if nothing updates it.
pub(super) async fn idle_machine(reader: &Reader, name: &str) -> anyhow::Result<Machine> {
    let machine: Option<Machine> = reader.cluster.get(name).await?;
    let machine = machine.ok_or_else(|| {
        anyhow!(
            "Machine {name} does not exist in namespace {}; --namespace selects another",
            reader.cluster.namespace
        )
    })?;
    if machine.metadata.deletion_timestamp.is_some() {
        bail!("Machine {name} is being deleted; choose another one");
    }
    if update_in_progress(&machine) {
        bail!("Machine {name} is being updated in place; wait until that has ended");
    }
    check_no_update(reader, &machine).await?;
    Ok(machine)
}

/// Makes sure that the machine is still the same, and that nothing else works on it.
pub(super) async fn check(
    reader: &Reader,
    api: &Api<DynamicObject>,
    machine: &Machine,
) -> anyhow::Result<()> {
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let now = idle_machine(reader, name).await?;
    let [before, now] =
        [machine, &now].map(|found| found.metadata.uid.as_deref().unwrap_or_default());
    if before != now {
        bail!(
            "Machine {name} was replaced: its uid was {before} and is {now}; start the test again to \
             use the new one"
        );
    }
    check_no_other_object(&reader.cluster, api, now).await
}

/// Refuses a machine that Refit is updating.
async fn check_no_update(reader: &Reader, machine: &Machine) -> anyhow::Result<()> {
    let Found::Read(updates) = reader.list::<NodeUpdate>("").await? else {
        return Ok(());
    };
    let uid = machine.metadata.uid.as_deref().unwrap_or_default();
    let phases = ["Failed", "Stopped", "Succeeded"];
    let mut unfinished = updates.iter().filter(|update| {
        json::text(update, "/spec/machineRef/uid") == uid
            && !phases.contains(&json::text(update, "/status/phase"))
    });
    match unfinished.next() {
        Some(update) => bail!(
            "NodeUpdate {} of the Machine is not finished; wait for its end, or choose another Machine",
            json::name(update)
        ),
        None => Ok(()),
    }
}

/// Refuses a machine on which the provider still works.
async fn check_no_other_object(
    cluster: &Cluster,
    api: &Api<DynamicObject>,
    uid: &str,
) -> anyhow::Result<()> {
    let listed = api.list(&ListParams::default()).await;
    let listed =
        listed.with_context(|| format!("cannot list the provider's objects at {}", cluster.url))?;
    for object in listed {
        let seen = Seen::new(cluster.clock.now(), serde_json::to_value(object)?);
        if json::text(&seen.object, "/spec/machineRef/uid") == uid && !seen.has_ended() {
            bail!(
                "object {} of the same kind is for the same Machine, and the provider has not ended its \
                 work for it; wait for its end, or delete it",
                json::name(&seen.object)
            );
        }
    }
    Ok(())
}
