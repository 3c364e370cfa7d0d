//! The controller of HostSettings that change: it starts updates of the machines that they apply to, where the policy of
//! their owner wants them.
//!
//! It looks at a group when its HostSettings, its owner, its Cluster, a Machine or a NodeUpdate changes. All of its machines
//! that lack something get a NodeUpdate at once; the group's slots and pacing decide when each begins.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::ResourceExt as _;
use refit_cluster_api::kinds::{Cluster, Machine};
use refit_core::{
    ask::{Ask, ask_again},
    change::SettingsChanges,
    changed_settings::{SettingsSeen, start},
    node::newest,
    report::Refusal,
};
use refit_kinds::{
    keys,
    refit::{Goal, HostSettings, NodeUpdate, UpdatePart, hash_json},
};
use refit_runtime::{
    ObjectKey,
    events::{Announcement, EventType},
    queue::Action,
};

use crate::{
    context::Context,
    groups::{Group, ensure_group, group_of, machines_of, node_updates_of_machine, owner_object},
    host_plan::cluster_key,
    indexes::MACHINES_BY_CLUSTER,
    metrics::measured,
    owner::{LiveOwner, is_awaited},
    policy::{live_policy, settings_of_group},
    requests::{By, MachineRequests},
};

/// How many groups are looked at at once.
const WORKERS: usize = 4;
/// How long changes are collected before a group is looked at: its Machines and NodeUpdates change often.
const COLLECT: Duration = Duration::from_secs(1);
/// How many Machines an event names.
const NAMED: usize = 10;

/// Reconciles groups until the future is dropped.
pub(crate) async fn run(ctx: Arc<Context>) -> anyhow::Result<()> {
    ctx.stores.wait_synced().await;
    for machine in ctx.stores.machines.list() {
        wake(&ctx, &machine);
    }
    let reconcile = |key: ObjectKey| {
        let ctx = ctx.clone();
        async move { measured(&ctx, "changed-settings", Box::pin(reconcile(&ctx, &key))).await }
    };
    ctx.queues.changed_settings.work("changed-settings", WORKERS, reconcile).await;
    Ok(())
}

/// Wakes the group of a Machine, if an annotation of its owner or Cluster is about changed settings.
pub(crate) fn wake(ctx: &Context, machine: &Machine) {
    let stores = &ctx.stores;
    let Some(group) = group_of(stores, machine) else { return };
    let cluster = || stores.clusters.get(&cluster_key(machine));
    let is_annotated = LiveOwner::of(stores, &group)
        .is_some_and(|owner| owner.annotations().contains_key(keys::HOST_SETTINGS_CHANGES))
        || cluster().is_some_and(|one| one.annotations().contains_key(keys::HOST_SETTINGS_CHANGES));
    if is_annotated {
        ctx.queues.changed_settings.add_after(group.key, COLLECT);
    }
}

/// Wakes a group whose owner has changed.
pub(crate) fn wake_group(ctx: &Context, key: &ObjectKey) {
    if let Some(machine) = machines_of(&ctx.stores, key).first() {
        wake(ctx, machine);
    }
}

/// Wakes the groups of a Cluster whose annotation may apply to them.
pub(crate) fn wake_cluster(ctx: &Context, cluster: &Cluster) {
    if cluster.annotations().contains_key(keys::HOST_SETTINGS_CHANGES) {
        let key = ObjectKey::of(cluster);
        for machine in ctx.stores.machines.listed(&MACHINES_BY_CLUSTER, &key) {
            wake(ctx, &machine);
        }
    }
}

/// Wakes the groups of a namespace: which owners a HostSettings applied to before is unknown, and which one applies to an
/// owner depends on all of them.
pub(crate) fn wake_namespace(ctx: &Context, namespace: &str) {
    for machine in ctx.stores.machines.list_in(namespace) {
        wake(ctx, &machine);
    }
}

async fn reconcile(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Action> {
    let stores = &ctx.stores;
    let machines = machines_of(stores, key);
    let group = machines.first().and_then(|machine| group_of(stores, machine));
    let Some(group) = group.filter(|_| ctx.opted_in(&key.namespace)) else {
        return Ok(Action::Done);
    };
    if is_awaited(stores, &group) {
        return Ok(Action::RequeueAfter(COLLECT));
    }
    let owner = LiveOwner::of(stores, &group).filter(|owner| !owner.is_deleting());
    let (Some(owner), Ok(policy)) = (owner, live_policy(ctx, &group)) else {
        return Ok(Action::Done);
    };
    // Machines that are left to Cluster API's own rollout are not touched.
    if policy.disabled || policy.settings_changes == SettingsChanges::Wait {
        return Ok(Action::Done);
    }
    let settings = match settings_of_group(ctx, &group) {
        Ok(Some(settings)) => settings,
        Ok(None) => return Ok(Action::Done),
        Err(refusal) => {
            announce_refused(ctx, &group, &refusal).await;
            return Ok(Action::Done);
        }
    };
    let mut started = BTreeMap::new();
    let seen = (policy.settings_changes, owner.is_rolled_out());
    let outcome = start_all(ctx, (&group, &machines), &settings, seen, &mut started).await;
    // What has started before an error is announced, too.
    if !started.is_empty() {
        announce_started(ctx, &group, &settings, &started).await;
    }
    outcome
}

/// Starts the updates of all machines of a group that lack something, and collects their names by Machine.
async fn start_all(
    ctx: &Context,
    (group, machines): (&Group, &[Arc<Machine>]),
    settings: &HostSettings,
    (changes, is_rolled_out): (SettingsChanges, bool),
    started: &mut BTreeMap<String, String>,
) -> anyhow::Result<Action> {
    let mut next = Action::Done;
    for machine in machines {
        let updates = node_updates_of_machine(&ctx.stores, &ObjectKey::of(machine.as_ref()));
        let updates: Vec<&NodeUpdate> = updates.iter().map(AsRef::as_ref).collect();
        let decided = start(&SettingsSeen {
            changes,
            settings: &settings.spec.settings,
            machine,
            updates: &updates,
            is_rolled_out,
        });
        let goal = match decided {
            Ok(goal) => goal,
            Err(why) => {
                tracing::debug!(machine = machine.name_any(), ?why, "no update for its settings");
                continue;
            }
        };
        match request(ctx, machine, group, &goal, settings).await? {
            Some(update) => {
                started.insert(machine.name_any(), update);
            }
            // The caches are about to show what was found.
            None => next = Action::RequeueAfter(COLLECT),
        }
    }
    Ok(next)
}

/// Creates the NodeUpdate of a Machine; returns its name, or `None` if there is a newer one than was known.
async fn request(
    ctx: &Context,
    machine: &Machine,
    group: &Group,
    goal: &Goal,
    settings: &HostSettings,
) -> anyhow::Result<Option<String>> {
    let requests = MachineRequests::new(ctx, machine);
    let known = requests.known(&BTreeMap::new());
    let known: Vec<&NodeUpdate> = known.iter().map(AsRef::as_ref).collect();
    let Ask::Create { ordinal, until, .. } =
        ask_again(&requests.facts, goal, &known, ctx.clock.now())
    else {
        return Ok(None);
    };
    if let Some(newer) = requests.newest_live(newest(known, &requests.facts.uid)).await? {
        ctx.stores.node_updates.insert(newer);
        return Ok(None);
    }
    ensure_group(ctx, group).await?;
    let name = settings.name_any();
    let parts = (vec![UpdatePart::host_settings()], None);
    let by = By::HostSettings(&name);
    let (made, _) = requests.create(by, (ordinal, until), goal, parts).await?;
    let update = made.name_any();
    ctx.stores.node_updates.insert(made);
    Ok(Some(update))
}

/// Emits an event on the owner about the updates that have started, by Machine.
async fn announce_started(
    ctx: &Context,
    group: &Group,
    settings: &HostSettings,
    started: &BTreeMap<String, String>,
) {
    let mut names: Vec<&str> = started.keys().map(String::as_str).take(NAMED).collect();
    if started.len() > NAMED {
        names.push("...");
    }
    let machines = if started.len() == 1 { "machine gets" } else { "machines get" };
    let announcement = Announcement {
        about: owner_object(&ctx.stores, group),
        type_: EventType::Normal,
        reason: "HostSettingsChanged".to_owned(),
        message: format!(
            "{} {machines} what HostSettings {} asks for: {}.",
            started.len(),
            settings.name_any(),
            names.join(", ")
        ),
        occurrence: hash_json(&serde_json::json!(started)),
    };
    ctx.recorder.announce(&announcement).await;
}

/// Emits an event on the owner that no HostSettings can be chosen.
async fn announce_refused(ctx: &Context, group: &Group, refusal: &Refusal) {
    let announcement = Announcement {
        about: owner_object(&ctx.stores, group),
        type_: EventType::Warning,
        reason: "HostSettingsNotApplied".to_owned(),
        message: refusal.sentence(),
        occurrence: String::new(),
    };
    ctx.recorder.announce(&announcement).await;
}
