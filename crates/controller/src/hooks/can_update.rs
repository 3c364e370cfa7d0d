//! CanUpdateMachine and CanUpdateMachineSet: reads the caches, decides in core, records and
//! responds.
//!
//! Data comes from the caches, except where they cannot be relied on: whether the owner requests the change,
//! if they say that it does not, and the policy before machines may be replaced. Annotations in the request
//! are not trusted: policy is read from the owner and the Cluster.

use std::{sync::Arc, time::Duration};

use kube::ResourceExt as _;
use refit_cluster_api::kinds::{ContractRef, Machine, update_in_progress};
use refit_core::{
    change::{
        Level, NotReady, Objects, Provider, Updater, Verdict, can_update,
        can_update::{
            ConfigurationKnown, ControlPlaneMachine, Host, Judgement, Known, Peer, unfinished,
        },
        machine_kind,
        not_ready::Unfinished,
    },
    group::{Exception, RolloutKey, exception_of, observed_version, rollout_number},
    node::{awaits_request, is_half_upgraded, newest_upgrade},
};
use refit_kinds::{
    keys,
    refit::{MachineUid, NodeUpdate, Origin},
    version::StatedVersion,
};
use refit_runtime::ObjectKey;

use super::{decision, provider, wire};
use crate::{
    api_error::ReadError,
    context::Context,
    groups::{Group, control_plane_of, group_of, group_of_set, machines_of, machines_of_set},
    host_plan::host_report,
    indexes::UPDATES_BY_MACHINE_UID,
    node_update::live::read_object,
    owner::{LiveOwner, limits_of, pace_of},
    policy::{configuration_known, live_policy, unknown},
    updaters::updaters_of,
    upgrade_task::has_ended,
    workload_watch::has_hosted_control_plane,
};

/// How long the live read of an owner may take.
const OWNER_DEADLINE: Duration = Duration::from_secs(2);

/// Serves CanUpdateMachine.
pub(crate) async fn machine(ctx: &Context, body: &[u8]) -> Verdict {
    let read = |current: &Objects| without_task(ctx, about_machine(ctx, current)?);
    answer(ctx, body, wire::MACHINE, read).await
}

/// Serves CanUpdateMachineSet.
pub(crate) async fn machine_set(ctx: &Context, body: &[u8]) -> Verdict {
    let read = |current: &Objects| without_task(ctx, about_machine_set(ctx, current)?);
    answer(ctx, body, wire::MACHINE_SET, read).await
}

/// The data for a decision, read from the caches.
pub(super) struct Question {
    pub(super) group: Group,
    pub(super) level: Level,
    known: Known,
    /// An infrastructure machine that would change; `None` without Machines.
    pub(super) infrastructure: Option<ContractRef>,
}

async fn answer(
    ctx: &Context,
    body: &[u8],
    members: wire::Members,
    read: impl Fn(&Objects) -> Result<Question, NotReady>,
) -> Verdict {
    let sides = both_sides(body, members);
    let judged = match &sides {
        Ok((current, desired)) => judged(ctx, (current, desired), read).await,
        Err(why) => Err(why.clone()),
    };
    match judged {
        Err(why) => Verdict::NotReady(why),
        Ok((Question { group, known, .. }, judgement)) => {
            let recorded = decision::record(ctx, &group, &known.policy, &judgement).await;
            let lets_updaters_work = matches!(judgement.verdict, Verdict::Cover { .. })
                && judgement.coverage.of_updaters().next().is_some();
            match recorded {
                Err(error) if lets_updaters_work => {
                    Verdict::NotReady(NotReady::NotRecorded { error })
                }
                Ok(()) | Err(_) => judgement.verdict,
            }
        }
    }
}

/// The verdict about a Machine of a task, recorded as that of a hook is: the change of its spec and the spec of its
/// objects, or the change of the MachineSet that it moves to.
pub(crate) async fn of_task(
    ctx: &Context,
    level: Level,
    sides: (&Objects, &Objects),
    (only_updater, rolls_back): (Option<&str>, bool),
) -> Result<(Vec<Updater>, Judgement), NotReady> {
    let read = |current: &Objects| {
        let mut question = match level {
            Level::Machine => about_machine(ctx, current)?,
            Level::MachineSet => about_machine_set(ctx, current)?,
        };
        if let Some(only) = only_updater {
            question.known.updaters.retain(|updater| updater.name() == only);
        }
        question.known.rolls_back = rolls_back;
        question.known.configuration = ConfigurationKnown::Nothing;
        Ok(question)
    };
    let (Question { group, known, .. }, judgement) = judged(ctx, sides, read).await?;
    decision::record(ctx, &group, &known.policy, &judgement)
        .await
        .map_err(|error| NotReady::NotRecorded { error })?;
    Ok((known.updaters, judgement))
}

/// The facts, and the verdict that follows from them. A verdict that lets Cluster API replace
/// machines cannot be revoked, so the policy is then read live.
async fn judged(
    ctx: &Context,
    (current, desired): (&Objects, &Objects),
    read: impl Fn(&Objects) -> Result<Question, NotReady>,
) -> Result<(Question, Judgement), NotReady> {
    let judge = |provider: Provider| {
        let mut question = read(current)?;
        question.known.provider = provider;
        let judgement = can_update(question.level, current, desired, &question.known);
        Ok::<_, NotReady>((question, judgement))
    };
    let (question, judgement) = judge(Provider::NotAsked)?;
    requested(ctx, &question, desired).await?;
    let provider = provider::ask(ctx, &question, &judgement, current).await;
    let (question, judgement) = if provider == Provider::NotAsked {
        (question, judgement)
    } else {
        judge(provider.clone())?
    };
    if !judgement.verdict.replaces() {
        return Ok((question, judgement));
    }
    match read_policy(ctx, &question.group).await {
        Ok(()) => judge(provider),
        Err(error) => {
            let error = error.to_string();
            let verdict = Verdict::NotReady(NotReady::Unconfirmed { error });
            Ok((question, Judgement { verdict, ..judgement }))
        }
    }
}

/// Requires that the owner of a group requests the desired objects of a call. Cluster API keeps an
/// answer for hours, and the group shows it, so both are about what the owner requests now. If the
/// caches say otherwise, they may be older than the call.
async fn requested(ctx: &Context, question: &Question, desired: &Objects) -> Result<(), NotReady> {
    let Question { group, level, .. } = question;
    let requests = || {
        let owner = LiveOwner::of(&ctx.stores, group);
        owner.is_none_or(|owner| owner.requests(*level, desired))
    };
    if requests() {
        return Ok(());
    }
    let owner = format!("{} {}", group.spec.owner.kind, group.spec.owner.name);
    let read = tokio::time::timeout(OWNER_DEADLINE, LiveOwner::read(ctx, group)).await;
    match read {
        Ok(Ok(())) if requests() => Ok(()),
        Ok(Ok(())) => Err(NotReady::OwnerDiffers { owner }),
        Ok(Err(error)) => Err(NotReady::OwnerUnread { owner, error: error.to_string() }),
        Err(_) => {
            let seconds = OWNER_DEADLINE.as_secs();
            let error = format!("the API server did not respond within {seconds} s");
            Err(NotReady::OwnerUnread { owner, error })
        }
    }
}

/// Brings the objects with the policy of a group up to the present.
async fn read_policy(ctx: &Context, group: &Group) -> Result<(), ReadError> {
    let cluster = ObjectKey::new(&group.key.namespace, &group.spec.cluster_name);
    futures::try_join!(
        LiveOwner::read(ctx, group),
        read_object(ctx, &ctx.stores.clusters, &cluster),
    )?;
    Ok(())
}

fn both_sides(body: &[u8], members: wire::Members) -> Result<(Objects, Objects), NotReady> {
    let read = || {
        let mut request = wire::parse(body)?;
        let current = wire::side(&mut request, "current", members)?;
        let desired = wire::side(&mut request, "desired", members)?;
        Ok((current, desired))
    };
    read().map_err(|e: wire::BadRequest| NotReady::BadRequest { reason: e.to_string() })
}

fn about_machine(ctx: &Context, current: &Objects) -> Result<Question, NotReady> {
    let key = synced_key(ctx, current)?;
    let machine = ctx.stores.machines.get(&key).ok_or_else(|| unknown("Machine", &key))?;
    let group =
        group_of(&ctx.stores, &machine).ok_or(NotReady::OwnerUnknown { machine: key.name })?;
    let policy = live_policy(ctx, &group)?;
    let known = Known {
        hosts: vec![host(ctx, &machine)],
        peers: if group.spec.control_plane { peers(ctx, &group, &machine) } else { Vec::new() },
        updaters: updaters_of(ctx, &group, &machine.spec.infrastructure_ref.kind),
        configuration: configuration_known(ctx, &group, &policy),
        policy,
        ..Known::default()
    };
    let infrastructure = Some(machine.spec.infrastructure_ref.clone());
    Ok(Question { group, level: Level::Machine, known, infrastructure })
}

fn about_machine_set(ctx: &Context, current: &Objects) -> Result<Question, NotReady> {
    let key = synced_key(ctx, current)?;
    let set = ctx.stores.machine_sets.get(&key).ok_or_else(|| unknown("MachineSet", &key))?;
    let group = group_of_set(&set);
    let present = machines_of(&ctx.stores, &group.key).len();
    let machines = machines_of_set(&ctx.stores, &key);
    let template = &set.spec.template.spec.infrastructure_ref;
    let policy = live_policy(ctx, &group)?;
    let known = Known {
        hosts: machines.iter().map(|machine| host(ctx, machine)).collect(),
        tolerated: usize::try_from(limits_of(&ctx.stores, &group, || present).slots()).unwrap_or(0),
        peers: Vec::new(),
        control_plane: control_plane(ctx, &key.namespace, &group),
        api_server: api_server_of(ctx, &key.namespace, &group),
        updaters: updaters_of(ctx, &group, machine_kind(&template.kind)),
        configuration: configuration_known(ctx, &group, &policy),
        policy,
        ..Known::default()
    };
    let stays = |machine: &&Arc<Machine>| machine.metadata.deletion_timestamp.is_none();
    let machine = machines.iter().find(stays);
    let infrastructure = machine.map(|machine| machine.spec.infrastructure_ref.clone());
    Ok(Question { group, level: Level::MachineSet, known, infrastructure })
}

/// Refuses while an UpgradeTask works through the Machines itself, with its owner paused: two orchestrators would
/// update them.
fn without_task(ctx: &Context, question: Question) -> Result<Question, NotReady> {
    let key = &question.group.key;
    let owner = LiveOwner::of(&ctx.stores, &question.group);
    let named = owner.and_then(|owner| owner.annotations().get(keys::TASK).cloned());
    let task =
        named.and_then(|task| ctx.stores.upgrade_tasks.get(&ObjectKey::new(&key.namespace, task)));
    match task.filter(|task| !has_ended(task)) {
        Some(task) => Err(NotReady::TaskAtWork { task: task.name_any() }),
        None => Ok(question),
    }
}

fn synced_key(ctx: &Context, current: &Objects) -> Result<ObjectKey, NotReady> {
    if !ctx.stores.synced() {
        return Err(NotReady::NotSynced);
    }
    let no_name = || NotReady::BadRequest { reason: "the current object has no name".to_owned() };
    let key = wire::key_of(&current.owner).ok_or_else(no_name)?;
    if !ctx.opted_in(&key.namespace) {
        return Err(NotReady::NotOptedIn { namespace: key.namespace });
    }
    Ok(key)
}

fn peers(ctx: &Context, group: &Group, this: &Machine) -> Vec<Peer> {
    machines_of(&ctx.stores, &group.key)
        .iter()
        .filter(|machine| machine.name_any() != this.name_any())
        .map(|machine| Peer {
            machine: machine.name_any(),
            unfinished: unfinished_on(ctx, machine),
        })
        .collect()
}

/// The unfinished NodeUpdate of a Machine, or Cluster API's own mark.
fn unfinished_on(ctx: &Context, machine: &Machine) -> Option<Unfinished> {
    let updates = updates_on(ctx, machine);
    let requests = updates
        .iter()
        .filter(|update| !update.phase().is_final())
        .filter(|update| !update.status.as_ref().is_some_and(awaits_request))
        .map(|update| (update.metadata.name.as_deref().unwrap_or_default(), update.phase()));
    unfinished(requests, update_in_progress(machine))
}

fn host(ctx: &Context, machine: &Machine) -> Host {
    let uid = MachineUid::of(&machine.metadata);
    Host {
        machine: machine.name_any(),
        deleting: machine.metadata.deletion_timestamp.is_some(),
        report: host_report(ctx, machine),
        kubelet: observed_version(machine),
        unfinished: unfinished_on(ctx, machine),
        half_upgraded: newest_upgrade(updates_on(ctx, machine).iter().map(AsRef::as_ref), &uid)
            .is_some_and(is_half_upgraded),
        exception: exception(ctx, machine),
    }
}

/// Whether an operator holds a Machine, or leaves it out of the present rollout of its owner.
fn exception(ctx: &Context, machine: &Machine) -> Option<Exception> {
    let group = group_of(&ctx.stores, machine)?;
    let object = ctx.stores.update_groups.get(&group.key);
    let pacing = object.as_ref().map(|object| object.spec.pacing.clone()).unwrap_or_default();
    let pace = pace_of(&ctx.stores, &group, &pacing);
    let status = object.and_then(|object| object.status.clone()).unwrap_or_default();
    let rollout = RolloutKey { origin: Origin::Hook, target: pace.request.clone() };
    exception_of(machine, &pace.pacing, rollout_number(&status, &rollout))
}

/// The NodeUpdates of a Machine.
fn updates_on(ctx: &Context, machine: &Machine) -> Vec<Arc<NodeUpdate>> {
    let uid = MachineUid::of(&machine.metadata);
    if uid.is_empty() {
        return Vec::new();
    }
    let key = ObjectKey::new(machine.namespace().unwrap_or_default(), &*uid);
    ctx.stores.node_updates.listed(&UPDATES_BY_MACHINE_UID, &key)
}

fn control_plane(ctx: &Context, namespace: &str, group: &Group) -> Vec<ControlPlaneMachine> {
    control_plane_of(&ctx.stores, &ObjectKey::new(namespace, &group.spec.cluster_name))
        .iter()
        .map(|machine| {
            let (observed, spec) = (observed_version(machine), machine.spec.version.clone());
            ControlPlaneMachine { machine: machine.name_any(), runs: observed.or(spec) }
        })
        .collect()
}

/// The version of an API server whose control plane has no Machines.
fn api_server_of(ctx: &Context, namespace: &str, group: &Group) -> Option<StatedVersion> {
    let cluster = ObjectKey::new(namespace, &group.spec.cluster_name);
    has_hosted_control_plane(&ctx.stores, &cluster).then(|| {
        let view = ctx.workload_index.view(&cluster);
        view.map(|view| view.api_version()).unwrap_or_default()
    })
}
