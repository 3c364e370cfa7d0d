//! Requests a NodeUpdate for a Machine of a task, or writes what its update has reached.

use std::{collections::BTreeMap, sync::Arc};

use kube::{Api, ResourceExt as _, api::DynamicObject};
use refit_cluster_api::{desired::machine_set, kinds::Machine};
use refit_core::{
    ask::{Ask, Offer, adopting, ask, parts, without_bundle},
    change::{Updater, Verdict, can_update::Judgement, goal},
    node::newest,
    task::{Refused, specs::differences},
};
use refit_kinds::{
    json::{name, text},
    refit::{NodeUpdate, Owner},
};
use refit_runtime::apply::{self, Ensured};
use serde_json::{Value, json};

use super::{
    look::Look,
    objects::{self, Intent, Sides, Writes},
    prepare,
};
use crate::{
    api_error::{ReadError, cause},
    context::Context,
    hooks::can_update,
    node_update::live::read_object,
    requests::{By, MachineRequests},
};

/// How often a request tries again after it lost a race.
const ROUNDS: usize = 3;

/// Requests what a Machine lacks; returns why it cannot.
pub(super) async fn advance(
    ctx: &Context,
    look: &Look,
    machine: &str,
    (may_hand_over, may_request): (bool, bool),
) -> anyhow::Result<Option<Refused>> {
    let Some(known) = look.machine(machine) else { return Ok(None) };
    let key = refit_runtime::ObjectKey::of(known.as_ref());
    read_object(ctx, &ctx.stores.machines, &key).await?;
    let live = ctx.stores.machines.get(&key);
    let Some(live) =
        live.filter(|live| live.uid() == known.uid() && live.metadata.deletion_timestamp.is_none())
    else {
        return Ok(None);
    };
    let sides = match objects::sides(ctx, look, &live).await {
        Ok(sides) => sides,
        Err(error) => return unreadable(error).map(Some),
    };
    if look.current_set.is_none() && look.group.spec.owner.owner() == Owner::Deployment {
        // The next look has it.
        return Ok(None);
    }
    if let Some(accepted) = &look.accepted {
        let differing = differences(accepted, &sides.written(), &sides.stored());
        if !differing.is_empty() {
            let message = format!(
                "its owner requests other specs than the accepted request, at {}. Request an upgrade to them, or set \
                 the owner's spec back",
                differing.join(", ")
            );
            return Ok(Some(stays("OwnerEdited", message)));
        }
    }
    if sides.writes.hand_over_to.is_none() && look.current_set.is_some() {
        // It has been handed over already: its update has succeeded.
        write(ctx, &sides).await?;
        return Ok(None);
    }
    let only = look.task.spec.updater_ref.as_ref().map(|updater| &*updater.name);
    let compared = (&sides.current, &sides.wanted);
    let task = (only, look.task.spec.roll_back);
    let (updaters, judgement) = match can_update::of_task(ctx, sides.level, compared, task).await {
        Ok(judged) => judged,
        Err(why) => return Ok(Some(waits(why.reason(), why.to_string()))),
    };
    let work = Work { ctx, look, machine: &live, sides, updaters: covering(updaters, &judgement) };
    work.advance(&judgement, may_hand_over, may_request).await
}

/// Whether the policy has Cluster API replace every Machine that it would replace now. Machines of one MachineSet have
/// the same change; members of a control plane are judged each.
pub(super) async fn all_are_to_be_replaced(ctx: &Context, look: &Look) -> anyhow::Result<bool> {
    if !look.follows_topology() {
        return Ok(false);
    }
    for machine in look.differing() {
        let sides = objects::sides(ctx, look, &machine).await?;
        let compared = (&sides.current, &sides.wanted);
        let task = (None, look.task.spec.roll_back);
        let judged = can_update::of_task(ctx, sides.level, compared, task).await;
        let is_to_be_replaced = |judgement: &Judgement| match judgement.verdict {
            Verdict::Replace { .. } => true,
            Verdict::Cover { .. }
            | Verdict::Preserve { .. }
            | Verdict::NotReady(_)
            | Verdict::Disabled => false,
        };
        if !judged.is_ok_and(|(_, judgement)| is_to_be_replaced(&judgement)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The Updaters that cover a part of the change.
fn covering(updaters: Vec<Updater>, judgement: &Judgement) -> Vec<Updater> {
    let covers = |updater: &Updater| {
        judgement.coverage.of_updaters().any(|claimed| claimed.updater == updater.name())
    };
    updaters.into_iter().filter(covers).collect()
}

/// What is known of one Machine.
struct Work<'a> {
    ctx: &'a Context,
    look: &'a Look,
    machine: &'a Arc<Machine>,
    sides: Sides,
    updaters: Vec<Updater>,
}

impl Work<'_> {
    async fn advance(
        &self,
        judgement: &Judgement,
        may_hand_over: bool,
        may_request: bool,
    ) -> anyhow::Result<Option<Refused>> {
        let goal = match goal(&self.sides.desired, &self.updaters) {
            Ok(goal) => goal,
            Err(error) => return Ok(Some(stays("BadGoal", error.to_string()))),
        };
        let mut requests = MachineRequests::new(self.ctx, self.machine);
        let retry = self.look.retry_of(self.machine, self.look.updates_of(self.machine));
        requests.facts.retry = retry.map(str::to_owned);
        let mut live: BTreeMap<String, Arc<NodeUpdate>> = BTreeMap::new();
        for _ in 0..ROUNDS {
            let known = requests.known(&live);
            let known: Vec<&NodeUpdate> = known.iter().map(AsRef::as_ref).collect();
            let seen = match ask(&requests.facts, &goal, &known, self.ctx.clock.now()) {
                Ask::Wait(_) => return Ok(None),
                Ask::Abort(_) | Ask::Create { .. } if !may_request => return Ok(None),
                Ask::Abort(update) => {
                    requests.abort(&update.name_any()).await?;
                    return Ok(None);
                }
                Ask::Done => match requests.newer_than(newest(known, &requests.facts.uid)).await? {
                    Some(newer) => newer,
                    None => return self.reached(may_hand_over).await,
                },
                Ask::Create { ordinal, until, adopts } => {
                    if let Some(refused) = refused(&judgement.verdict) {
                        return Ok(Some(refused));
                    }
                    let offer = Offer {
                        goal: &goal,
                        desired: &self.sides.desired,
                        updaters: &self.updaters,
                    };
                    let parts = match parts(&requests.facts, offer, &known) {
                        Ok(parts) if adopts => adopting(parts),
                        Ok(parts) => parts,
                        Err(why) => return Ok(Some(stays("BadHostPart", why.to_string()))),
                    };
                    let bundle = self.look.task.spec.bundle.clone();
                    if let Some(updater) = without_bundle(&parts).filter(|_| bundle.is_some()) {
                        let message = format!(
                            "Updater {updater} installs from no bundle: create an UpgradeTask without"
                        );
                        return Ok(Some(stays("BundleNotUsed", message)));
                    }
                    let newest = newest(known, &requests.facts.uid);
                    if let Some(newer) = requests.newest_live(newest).await? {
                        newer
                    } else {
                        if let Err(why) = prepare::prepare(self.ctx, self.look).await {
                            return Ok(Some(waits("KubeadmConfig", format!("{why:#}"))));
                        }
                        let task = self.look.task.name_any();
                        let made = requests
                            .create(By::Task(&task), (ordinal, until), &goal, (parts, bundle))
                            .await?;
                        match made {
                            (made, Ensured::Created) => {
                                self.ctx.stores.node_updates.insert(made);
                                return Ok(None);
                            }
                            (found, Ensured::Found) => found,
                        }
                    }
                }
            };
            live.insert(seen.name_any(), Arc::new(seen));
        }
        Ok(Some(waits(
            "Contended",
            "several requests for this Machine at the same time".to_owned(),
        )))
    }

    /// The update has reached its goal: the Machine and its objects get what their owner wants.
    async fn reached(&self, may_hand_over: bool) -> anyhow::Result<Option<Refused>> {
        if self.sides.writes.hand_over_to.is_some() && !may_hand_over {
            return Ok(None);
        }
        match write(self.ctx, &self.sides).await {
            Ok(()) => Ok(None),
            Err(error) => refused_by_api(error.into()).map(Some),
        }
    }
}

/// Hands the Machine over, which another write may prevent; then writes its objects, then the Machine: it shows that it
/// is up to date when all else is.
async fn write(ctx: &Context, sides: &Sides) -> kube::Result<()> {
    let Writes { manager, infrastructure, config, init_removal, machine, hand_over_to } =
        &sides.writes;
    if let Some(set) = hand_over_to {
        hand_over(ctx, &sides.machine, set).await?;
    }
    applied(ctx, manager, infrastructure).await?;
    if let Some(config) = config {
        applied(ctx, manager, config).await?;
        if let Some(body) = init_removal {
            let api = ctx.foreign.api(&ctx.client, &config.object).await?;
            let _: DynamicObject = apply::merge(&api, &config.object.name, body).await?;
        }
    }
    let written = applied(ctx, manager, machine).await?;
    if let Ok(written) = serde_json::from_value::<Machine>(written) {
        ctx.stores.machines.insert(written);
    }
    tracing::info!(machine = name(&sides.machine), "wrote the Machine of a task");
    Ok(())
}

async fn applied(ctx: &Context, manager: &str, intent: &Intent) -> kube::Result<Value> {
    ctx.foreign.apply(&ctx.client, &intent.object, manager, &intent.body).await
}

/// Hands a Machine over to another MachineSet: owner and label, in one patch of the Machine as it was read.
async fn hand_over(ctx: &Context, machine: &Value, set: &Value) -> kube::Result<()> {
    let mut metadata = machine_set::hand_over(set, machine);
    metadata["resourceVersion"] = machine["metadata"]["resourceVersion"].clone();
    let body = json!({ "metadata": metadata });
    let namespace = text(machine, "/metadata/namespace");
    let api: Api<Machine> = Api::namespaced(ctx.client.clone(), namespace);
    ctx.stores.machines.insert(apply::merge(&api, name(machine), &body).await?);
    Ok(())
}

/// Why the verdict lets no update begin.
fn refused(verdict: &Verdict) -> Option<Refused> {
    match verdict {
        Verdict::Cover { .. } => None,
        Verdict::NotReady(_) => Some(waits(verdict.reason(), verdict.message())),
        Verdict::Replace { .. } => {
            Some(Refused { is_to_be_replaced: true, ..stays(verdict.reason(), verdict.message()) })
        }
        Verdict::Preserve { .. } | Verdict::Disabled => {
            Some(stays(verdict.reason(), verdict.message()))
        }
    }
}

/// The API server refuses a read or a write: only a person changes that.
pub(crate) fn refused_by_api(error: anyhow::Error) -> anyhow::Result<Refused> {
    match error.chain().find_map(|source| source.downcast_ref::<kube::Error>()) {
        Some(refused @ kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
            // A failed read names what was to be read.
            let is_read = error.is::<ReadError>();
            Ok(stays("Refused", if is_read { error.to_string() } else { cause(refused) }))
        }
        Some(_) | None => Err(error),
    }
}

/// An object that the task rests on cannot be read.
pub(super) fn unreadable(error: anyhow::Error) -> anyhow::Result<Refused> {
    match error.downcast_ref::<kube::Error>() {
        Some(error) if apply::is_not_found(error) => Ok(waits("Missing", cause(error))),
        Some(_) | None => refused_by_api(error),
    }
}

fn waits(reason: &'static str, message: String) -> Refused {
    Refused { reason, message, is_final: false, is_to_be_replaced: false }
}

fn stays(reason: &'static str, message: String) -> Refused {
    Refused { is_final: true, ..waits(reason, message) }
}
