//! Requests what the annotations of a Machine ask for, and shows on it how far that is.

use std::{sync::Arc, time::Duration};

use kube::{Api, ResourceExt as _};
use refit_cluster_api::kinds::Machine;
use refit_core::{
    annotation::{self, Announced, MachineSeen, Request},
    ask::{Ask, ask_again},
    node::newest,
};
use refit_kinds::{
    canonical::{K8SD_CONFIG, Keys, REFIT, Wanted},
    keys,
    refit::{Disruption, Goal, MachineUid, NodeUpdate, UpdatePart},
};
use refit_runtime::{ObjectKey, apply, queue::Action};
use serde_json::json;

use super::{
    AFTER_CONFLICT,
    by_task::{Look, has_work_left},
    may_be_served_by_others, served,
};
use crate::{
    context::Context,
    groups::{ensure_group, group_of, node_updates_of_machine},
    node_update::about_machine,
    owner::is_awaited,
    policy::first_annotation,
    requests::{By, MachineRequests},
};

/// Requeue delay after a write; its watch event wakes the Machine as well.
const AFTER_WRITE: Duration = Duration::from_millis(100);
/// Requeue delay while another update of the Machine has not ended. Its end wakes the Machine as well.
pub(super) const AFTER_WAIT: Duration = Duration::from_secs(30);

/// Wakes a Machine that has annotations of a prefix that is served, or a NodeUpdate that these have requested.
pub(super) fn wake(ctx: &Context, machine: &Machine) {
    let annotations = machine.annotations();
    let key = ObjectKey::of(machine);
    let updates = node_updates_of_machine(&ctx.stores, &key);
    let concerns = |keys: Keys| {
        [keys.upgrade_to, keys.noted].iter().any(|key| annotations.contains_key(*key))
            || updates.iter().any(|update| is_requested_by(update.as_ref(), keys.upgrade_to))
            || has_work_left(ctx, machine, keys.of_tasks())
    };
    if served(ctx).any(concerns) {
        ctx.queues.annotations.add(key);
    }
}

pub(super) async fn reconcile(ctx: &Context, key: &ObjectKey) -> anyhow::Result<Action> {
    let Some(machine) = ctx.stores.machines.get(key) else {
        return Ok(Action::Done);
    };
    if !ctx.opted_in(&key.namespace) || machine.metadata.deletion_timestamp.is_some() {
        return Ok(Action::Done);
    }
    let mut next = Action::Done;
    for keys in served(ctx) {
        let found = of_prefix(ctx, &machine, keys).await?;
        // Each is due at its own time: the first one that is wakes the Machine for all.
        if next == Action::Done {
            next = found;
        }
    }
    Ok(next)
}

async fn of_prefix(ctx: &Context, machine: &Arc<Machine>, keys: Keys) -> anyhow::Result<Action> {
    let of_tasks = keys.of_tasks();
    // k8sd installs no version.
    let is_by_task = !has_k8sd(machine)
        && (asks_for_version(machine, keys) || has_work_left(ctx, machine, of_tasks));
    if is_by_task {
        // Its owner may be known later.
        let Some(look) = Look::of_machine(ctx, machine) else {
            return Ok(Action::RequeueAfter(AFTER_WAIT));
        };
        return look.of_prefix(ctx, of_tasks).await;
    }
    let updates = node_updates_of_machine(&ctx.stores, &ObjectKey::of(machine.as_ref()));
    let own = updates
        .iter()
        .map(AsRef::as_ref)
        .filter(|update| is_requested_by(*update, keys.upgrade_to));
    let decided = annotation::machine(&MachineSeen {
        keys,
        compat: ctx.settings.canonical_compat,
        annotations: machine.annotations(),
        update: newest(own, &MachineUid::of(&machine.metadata)),
        has_k8sd: has_k8sd(machine),
        // Who bootstraps such a machine also upgrades it.
        is_served_by_others: has_k8sd(machine) && may_be_served_by_others(ctx, keys),
        now: ctx.clock.now_seconds(),
    });
    let part = UpdatePart::k8sd(disruption(ctx, machine, keys));
    carry_out(ctx, machine, decided, Asked { key: keys.upgrade_to, text: None, part }).await
}

/// What asks for a NodeUpdate, and what is done in it.
pub(super) struct Asked<'a> {
    /// The annotation.
    pub(super) key: &'static str,
    /// Its value, if the NodeUpdate shows for which request it was made.
    pub(super) text: Option<&'a str>,
    /// The part of the NodeUpdate.
    pub(super) part: UpdatePart,
}

/// Writes what was decided, or requests it for an annotation.
pub(super) async fn carry_out(
    ctx: &Context,
    machine: &Machine,
    decided: Announced,
    by: Asked<'_>,
) -> anyhow::Result<Action> {
    if !decided.changes.is_empty() {
        return show(ctx, machine, &decided).await;
    }
    match decided.request {
        Request::None => Ok(Action::Done),
        Request::Stop(update) => {
            match MachineRequests::new(ctx, machine).abort(&update).await {
                Err(error) if apply::is_not_found(&error) => {}
                outcome => outcome?,
            }
            Ok(Action::Done)
        }
        Request::Ask(goal) => request(ctx, machine, goal, by).await,
    }
}

/// Whether a Machine asks for a version, or for what its owner requests from a bundle.
fn asks_for_version(machine: &Machine, keys: Keys) -> bool {
    let text = machine.annotations().get(keys.upgrade_to);
    let wanted = text.and_then(|text| Wanted::parse(keys, text).ok());
    matches!(wanted, Some(Wanted::Version(_) | Wanted::Bundle { .. }))
}

fn namespace(machine: &Machine) -> String {
    machine.namespace().unwrap_or_default()
}

/// Whether an annotation with this key has requested an object.
pub(crate) fn is_requested_by(object: &impl kube::ResourceExt, key: &str) -> bool {
    object.annotations().get(keys::REQUESTED_BY).is_some_and(|by| by == key)
}

/// Whether k8sd runs on a machine: its bootstrap provider installs it.
pub(super) fn has_k8sd(machine: &Machine) -> bool {
    let config = machine.spec.bootstrap.config_ref.as_ref();
    config.is_some_and(|config| config.kind == K8SD_CONFIG)
}

/// Writes the annotations, after the events that announce it. A request that was made meanwhile is not overwritten.
async fn show(ctx: &Context, machine: &Machine, decided: &Announced) -> anyhow::Result<Action> {
    let shown = decided.changes.values().flatten().cloned().collect::<Vec<_>>().join(" ");
    for event in &decided.events {
        ctx.recorder.announce(&about_machine(machine, event, &shown)).await;
    }
    let body = json!({ "metadata": {
        "annotations": decided.changes,
        "resourceVersion": machine.resource_version(),
    }});
    let api: Api<Machine> = Api::namespaced(ctx.client.clone(), &namespace(machine));
    match apply::merge(&api, &machine.name_any(), &body).await {
        Ok(written) => {
            ctx.stores.machines.insert(written);
            Ok(Action::RequeueAfter(AFTER_WRITE))
        }
        Err(error) if apply::is_conflict(&error) => Ok(Action::RequeueAfter(AFTER_CONFLICT)),
        Err(error) if apply::is_not_found(&error) => Ok(Action::Done),
        Err(error) => Err(error.into()),
    }
}

/// Creates the NodeUpdate, or stops the one that is in its way.
async fn request(
    ctx: &Context,
    machine: &Machine,
    goal: Goal,
    Asked { key, text, part }: Asked<'_>,
) -> anyhow::Result<Action> {
    let Some(group) = group_of(&ctx.stores, machine) else {
        // Its owner is not known yet, or the Machine has none: the owner's event wakes its Machines.
        return Ok(Action::RequeueAfter(AFTER_WAIT));
    };
    if is_awaited(&ctx.stores, &group) {
        // Its annotations decide how the node is upgraded.
        return Ok(Action::RequeueAfter(AFTER_CONFLICT));
    }
    // Another orchestrator works on it, and would stop what is created here.
    let has = |key: &str| machine.annotations().contains_key(key);
    if has(keys::UPDATE_IN_PROGRESS) || has(keys::TASK) {
        return Ok(Action::RequeueAfter(AFTER_WAIT));
    }
    let requests = MachineRequests::new(ctx, machine);
    let known = requests.known(&std::collections::BTreeMap::new());
    // What others have requested is neither stopped nor counted as done.
    let of_others = known.iter().any(|update| {
        update.spec.machine_ref.uid == requests.facts.uid
            && !update.phase().is_final()
            && !is_requested_by(update.as_ref(), key)
    });
    if of_others {
        return Ok(Action::RequeueAfter(AFTER_WAIT));
    }
    let known: Vec<&NodeUpdate> = known.iter().map(AsRef::as_ref).collect();
    match ask_again(&requests.facts, &goal, &known, ctx.clock.now()) {
        Ask::Abort(update) => requests.abort(&update.name_any()).await?,
        Ask::Create { ordinal, until, .. } => {
            let newest = newest(known, &requests.facts.uid);
            if let Some(newer) = requests.newest_live(newest).await? {
                ctx.stores.node_updates.insert(newer);
                return Ok(Action::RequeueAfter(AFTER_WRITE));
            }
            ensure_group(ctx, &group).await?;
            let by = By::Annotation { key, text };
            let parts = (vec![part], None);
            let (made, _) = requests.create(by, (ordinal, until), &goal, parts).await?;
            ctx.stores.node_updates.insert(made);
        }
        Ask::Wait(_) | Ask::Done => {}
    }
    Ok(Action::Done)
}

/// Whether the node is drained first: as an annotation of the Machine, its owner or its Cluster requests. Canonical's
/// controllers never drain; under Refit's own prefix, a drain comes first.
fn disruption(ctx: &Context, machine: &Machine, keys: Keys) -> Disruption {
    let by_default = keys == REFIT;
    let drains = match first_annotation(ctx, machine, keys::DRAIN).as_deref() {
        Some("true") => true,
        Some("false") => false,
        Some(_) | None => by_default,
    };
    if drains { Disruption::Drain } else { Disruption::Restart }
}
