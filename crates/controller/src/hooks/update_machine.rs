//! UpdateMachine: finds or creates the NodeUpdate for a request, and reports its progress.

use std::{collections::BTreeMap, sync::Arc};

use kube::{Api, ResourceExt as _};
use refit_cluster_api::kinds::Machine;
use refit_core::{
    ask::{Ask, BundleExpected, Offer, adopting, ask, bundle_for, parts, without_bundle},
    change::{
        ConfigurationUpdater, Objects, Part, Updater,
        asked::{asked, objects_asked, parts_asked},
        goal as goal_of,
        goal::GoalError,
        not_ready::NotReady,
        update_machine::{Answer, RETRY_MAX_SECONDS, stopping, waiting},
    },
    node::newest,
};
use refit_kinds::{
    canonical::REFIT,
    refit::{CONFIGURATION, ChangePart, Goal, GroupBundle, NodeUpdate, UpdateGroup, UpdatePart},
};
use refit_runtime::{ObjectKey, apply::Ensured, foreign::ForeignObject};
use serde_json::Value;

use super::wire;
use crate::{
    api_error::{cause, is_silence},
    context::Context,
    groups::{Group, group_of},
    owner::LiveOwner,
    requests::{By, MachineRequests},
    updaters::updaters_of,
};

/// How often a request tries again after it lost a race.
const ROUNDS: usize = 5;
/// Delay until the next call while the caches are incomplete or writes fail, in seconds.
const SOON_SECONDS: i32 = 2;

/// Why a request cannot be served at all. All other problems are a Success with a message: a
/// Failure hides the message and backs off for long (`docs/facts/machine.md#in-place-update`).
#[derive(Debug, thiserror::Error)]
pub(super) enum Unservable {
    #[error("the request cannot be served: {0}")]
    BadRequest(#[from] wire::BadRequest),
    #[error("the request cannot be served: {0}")]
    Goal(#[from] GoalError),
    #[error("Refit does not know Machine {0}")]
    MachineUnknown(ObjectKey),
}

impl Unservable {
    /// The metric label for the error.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "BadRequest",
            Self::Goal(_) => "BadGoal",
            Self::MachineUnknown(_) => "ObjectUnknown",
        }
    }
}

/// An answer, and how it is counted.
pub(super) struct Served {
    pub(super) answer: Answer,
    /// The metric label of the answer.
    pub(super) verdict: &'static str,
}

impl From<Answer> for Served {
    fn from(answer: Answer) -> Self {
        Self { verdict: if answer.is_done() { "Done" } else { "Retry" }, answer }
    }
}

/// Serves UpdateMachine.
pub(super) async fn update_machine(ctx: &Context, body: &[u8]) -> Result<Served, Unservable> {
    let mut request = wire::parse(body)?;
    let desired = wire::side(&mut request, "desired", wire::MACHINE)?;
    if !ctx.stores.synced() {
        let text = "Refit is starting and has not read the cluster yet";
        return Ok(Answer::retry(text, SOON_SECONDS).into());
    }
    let key = wire::key_of(&desired.owner).unwrap_or_default();
    if !ctx.opted_in(&key.namespace) {
        let why = NotReady::NotOptedIn { namespace: key.namespace };
        let answer = Answer::retry(why.to_string(), RETRY_MAX_SECONDS);
        return Ok(Served { answer, verdict: why.reason() });
    }
    let machine =
        ctx.stores.machines.get(&key).ok_or_else(|| Unservable::MachineUnknown(key.clone()))?;
    let group = group_of(&ctx.stores, &machine);
    let has_updaters = !ctx.stores.updaters.list().is_empty();
    if group.is_none() && has_updaters {
        let text = format!("Refit does not know the owner of Machine {} (yet)", key.name);
        return Ok(Answer::retry(text, SOON_SECONDS).into());
    }
    let kind = &machine.spec.infrastructure_ref.kind;
    let updaters = group.as_ref().map(|group| updaters_of(ctx, group, kind)).unwrap_or_default();
    // What cannot be a goal is refused as it is.
    goal_of(&desired, &[]).or_else(|error| goal_of(&desired, &updaters).map_err(|_| error))?;
    let request = Request {
        ctx,
        requests: MachineRequests::new(ctx, &machine),
        group,
        key,
        desired,
        updaters,
    };
    Ok(request.answer().await.unwrap_or_else(|error| {
        tracing::warn!(machine = %request.key, %error, "UpdateMachine failed");
        let text = if is_silence(&error) {
            "the management cluster's API server did not answer".to_owned()
        } else {
            let cause = cause(&error);
            format!("the management cluster's API server refused the request: {cause}")
        };
        Answer::retry(text, SOON_SECONDS).into()
    }))
}

struct Request<'a> {
    ctx: &'a Context,
    key: ObjectKey,
    requests: MachineRequests<'a>,
    /// The Machine's group.
    group: Option<Group>,
    desired: Objects,
    /// The Updaters for the Machine.
    updaters: Vec<Updater>,
}

/// What the Machine must reach, the Updaters that cover a part of it, and the bundle that its group shows.
struct Wanted {
    goal: Goal,
    updaters: Vec<Updater>,
    bundle: Option<GroupBundle>,
}

/// Why it is not known yet what the Machine must reach.
struct NotKnown(String);

impl Request<'_> {
    /// Decides, writes, and decides again if another request was faster.
    async fn answer(&self) -> kube::Result<Served> {
        // NodeUpdates read live in this request, which are newer than the cache or missing from it.
        let mut live: BTreeMap<String, Arc<NodeUpdate>> = BTreeMap::new();
        let cached =
            self.group.as_ref().and_then(|group| self.ctx.stores.update_groups.get(&group.key));
        let mut wanted = match self.wanted(cached.as_deref()) {
            Ok(wanted) => wanted,
            Err(NotKnown(why)) => return Ok(Answer::retry(why, RETRY_MAX_SECONDS).into()),
        };
        let mut confirmed = false;
        for _ in 0..ROUNDS {
            let known = self.requests.known(&live);
            let known: Vec<&NodeUpdate> = known.iter().map(AsRef::as_ref).collect();
            let now = self.ctx.clock.now();
            let decided = ask(&self.requests.facts, &wanted.goal, &known, now);
            // Neither can be revoked, and the cache may lack what the last answer has recorded.
            if matches!(decided, Ask::Done | Ask::Create { .. }) && !confirmed {
                confirmed = true;
                let shown = self.live_group().await?;
                if let Some(group) = &self.group
                    && let Err(error) = LiveOwner::read(self.ctx, group).await
                {
                    return Ok(Answer::retry(error.to_string(), SOON_SECONDS).into());
                }
                wanted = match self.wanted(shown.as_ref()) {
                    Ok(wanted) => wanted,
                    Err(NotKnown(why)) => return Ok(Answer::retry(why, RETRY_MAX_SECONDS).into()),
                };
            }
            let seen = match ask(&self.requests.facts, &wanted.goal, &known, now) {
                Ask::Done => {
                    match self.requests.newer_than(newest(known, &self.requests.facts.uid)).await? {
                        None => return Ok(Answer::done().into()),
                        Some(newer) => newer,
                    }
                }
                Ask::Wait(wait) => {
                    return Ok(waiting(&wait, &self.requests.facts.name, &wanted.goal, now).into());
                }
                Ask::Abort(update) => {
                    if let Some(refused) = self.not_asked(&wanted).await? {
                        return Ok(refused);
                    }
                    self.requests.abort(&update.name_any()).await?;
                    return Ok(stopping(update).into());
                }
                Ask::Create { ordinal, until, adopts } => {
                    if let Some(refused) = self.not_asked(&wanted).await? {
                        return Ok(refused);
                    }
                    let Wanted { goal, updaters, bundle } = &wanted;
                    let offer = Offer { goal, desired: &self.desired, updaters };
                    let parts = match parts(&self.requests.facts, offer, &known) {
                        Ok(parts) if adopts => adopting(parts),
                        Ok(parts) => parts,
                        Err(why) => {
                            return Ok(Answer::retry(why.to_string(), RETRY_MAX_SECONDS).into());
                        }
                    };
                    let bundle = match self.bundle(goal, &parts, bundle.as_ref()) {
                        Ok(bundle) => bundle,
                        Err(why) => {
                            return Ok(Answer::retry(why.to_string(), RETRY_MAX_SECONDS).into());
                        }
                    };
                    if let Some(updater) = without_bundle(&parts).filter(|_| bundle.is_some()) {
                        let why = format!(
                            "the UpgradeTask of its owner names a bundle, and Updater {updater} installs from none: \
                             abort the task"
                        );
                        return Ok(Answer::retry(why, RETRY_MAX_SECONDS).into());
                    }
                    let known = newest(known, &self.requests.facts.uid);
                    match self.requests.newest_live(known).await? {
                        Some(newer) => newer,
                        None => match self
                            .requests
                            .create(By::Hook, (ordinal, until), goal, (parts, bundle))
                            .await?
                        {
                            (made, Ensured::Created) => {
                                self.ctx.stores.node_updates.insert(made);
                                return Ok(Answer::retry("pending", SOON_SECONDS).into());
                            }
                            (found, Ensured::Found) => found,
                        },
                    }
                }
            };
            live.insert(seen.name_any(), Arc::new(seen));
        }
        let text = "several requests for this Machine at the same time; Cluster API will retry";
        Ok(Answer::retry(text, SOON_SECONDS).into())
    }

    /// What the Machine must reach: its version, and what the Updaters claim that cover the change of its
    /// group. None of them may be missing: what it claims would count as done.
    fn wanted(&self, group: Option<&UpdateGroup>) -> Result<Wanted, NotKnown> {
        let status = group.and_then(|group| group.status.as_ref());
        let change = status.map_or(&[][..], |status| &status.change);
        let is_there = |part: &&ChangePart| {
            part.updater == CONFIGURATION
                || self.updaters.iter().any(|updater| updater.name() == part.updater)
        };
        if let Some(missing) = change.iter().find(|part| !is_there(part)) {
            return Err(NotKnown(format!(
                "Updater {}, which covers a part of the change, is not there, not accepted, or not for \
                 this Machine: kubectl get updaters",
                missing.updater
            )));
        }
        let covers = |updater: &&Updater| change.iter().any(|part| part.updater == updater.name());
        let mut updaters: Vec<Updater> = self.updaters.iter().filter(covers).cloned().collect();
        let configured = change.iter().find(|part| part.updater == CONFIGURATION);
        updaters.extend(configured.map(|part| {
            Updater::Configuration(ConfigurationUpdater {
                changed: part.configuration.clone(),
                ..ConfigurationUpdater::default()
            })
        }));
        let goal =
            goal_of(&self.desired, &updaters).map_err(|error| NotKnown(error.to_string()))?;
        let bundle = status.and_then(|status| status.bundle.as_deref().cloned());
        Ok(Wanted { goal, updaters, bundle })
    }

    /// The bundle that these parts install from.
    fn bundle(
        &self,
        goal: &Goal,
        parts: &[UpdatePart],
        noted: Option<&GroupBundle>,
    ) -> Result<Option<String>, BundleExpected> {
        let installs = parts.iter().any(UpdatePart::brings_version);
        let Some(version) = goal.kubernetes_version.as_ref().filter(|_| installs) else {
            return Ok(None);
        };
        let owner = self.group.as_ref().and_then(|group| LiveOwner::of(&self.ctx.stores, group));
        let annotations = owner.map(|owner| owner.annotations()).unwrap_or_default();
        let requested = annotations.get(REFIT.upgrade_to).map(String::as_str);
        bundle_for(version, noted, requested)
    }

    /// The Machine's UpdateGroup, read live.
    async fn live_group(&self) -> kube::Result<Option<UpdateGroup>> {
        let Some(Group { key, .. }) = &self.group else {
            return Ok(None);
        };
        let api: Api<UpdateGroup> = Api::namespaced(self.ctx.client.clone(), &key.namespace);
        api.get_opt(&key.name).await
    }

    /// The answer to a request that the live Machine and its objects do not confirm: it changes nothing.
    async fn not_asked(&self, wanted: &Wanted) -> kube::Result<Option<Served>> {
        let Wanted { goal, updaters, bundle: _ } = wanted;
        let api: Api<Machine> = Api::namespaced(self.ctx.client.clone(), &self.key.namespace);
        let machine = api.get_opt(&self.key.name).await?;
        let mut confirmed = asked(machine.as_ref(), &self.requests.facts.uid, goal);
        // Otherwise, nothing is taken from the objects of a request.
        if let (Ok(()), Some(machine), false) = (&confirmed, &machine, goal.parts.is_empty()) {
            confirmed = objects_asked(machine, &self.desired);
        }
        if confirmed.is_ok() && !goal.parts.is_empty() {
            let live = goal_of(&self.live_objects(updaters).await?, updaters).unwrap_or_default();
            confirmed = parts_asked(&live, goal);
        }
        let Err(why) = confirmed else {
            return Ok(None);
        };
        tracing::warn!(machine = %self.key, %why, "ignored an UpdateMachine request");
        let text = format!("Machine {} does not ask for this update: {why}", self.key.name);
        Ok(Some(Served { answer: Answer::retry(text, RETRY_MAX_SECONDS), verdict: "NotAsked" }))
    }

    /// The objects of the request that Updaters claim as they are now, in the versions that the request has.
    async fn live_objects(&self, updaters: &[Updater]) -> kube::Result<Objects> {
        let mut live = self.desired.clone();
        for part in [Part::Infrastructure, Part::Bootstrap] {
            let claimed =
                |object: &&mut Value| updaters.iter().any(|updater| updater.claims_some_of(object));
            if let Some(object) = live.part_mut(part).filter(claimed) {
                let stored = ForeignObject {
                    namespace: self.key.namespace.clone(),
                    ..ForeignObject::stored(object)
                };
                *object = self.ctx.foreign.read(&self.ctx.client, &stored).await?;
            }
        }
        Ok(live)
    }
}
