//! ExternalUpgrade: another client than Cluster API requests the upgrade of Machines in place
//! (`docs/external-upgrade.md`). The owner's unfinished task is stopped first; a request that Refit can do makes a new
//! one.

mod request;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Resource as _, ResourceExt as _, api::ObjectMeta};
use refit_core::{
    change::Verdict,
    task::specs::{Specs, differences},
};
use refit_kinds::{
    external_upgrade::{ExternalUpgradeRequest, ExternalUpgradeResponse, ResponseStatus},
    refit::{GroupOwner, Owner, RequestRef, Stage, UpgradeTask, UpgradeTaskSpec, Via, hash_json},
};
use refit_runtime::{ObjectKey, apply, store};
use serde_json::{Value, json};

use super::{advance::refused_by_api, has_ended, look::Look, objects, tasks};
use crate::{
    context::Context,
    groups::Group,
    hooks::{can_update, wire::BadRequest},
    indexes::TASKS_BY_GROUP,
    owner::LiveOwner,
};

/// Key of the specs in the Secret of a task.
const SPECS: &str = "specs";
/// Type of that Secret.
const SECRET_TYPE: &str = "refit.dev/external-upgrade";
/// How often a name is chosen again after a task of that name was found to have ended.
const ROUNDS: usize = 5;

/// Why a request was not judged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotJudged {
    #[error(transparent)]
    Malformed(#[from] BadRequest),
    #[error(
        "namespace {0} has not opted in: kubectl label namespace {0} refit.dev/in-place=enabled"
    )]
    NotOptedIn(String),
    #[error("{0} does not exist in namespace {1}")]
    NotFound(String, String),
    #[error("{0}")]
    NotReady(String),
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

impl From<kube::Error> for NotJudged {
    fn from(error: kube::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// Judges a request, and makes the task that works on it.
pub(crate) async fn serve(
    ctx: &Context,
    body: &[u8],
) -> Result<ExternalUpgradeResponse, NotJudged> {
    let request = request::parse(body)?;
    let asked = Asked::of(ctx, request).await?;
    let known = tasks_of(ctx, &asked.group).await?;
    // One that is being deleted works on nothing.
    let unfinished =
        known.iter().filter(|task| !has_ended(task) && task.metadata.deletion_timestamp.is_none());
    let (same, others): (Vec<_>, Vec<_>) = unfinished
        .partition(|task| asked.ordinal_of(task).is_some() && task.spec.stage == Stage::Ongoing);
    for other in others.iter().filter(|task| task.spec.stage == Stage::Ongoing) {
        stop(ctx, other).await?;
    }
    if let Some(same) = same.first() {
        keep_specs(ctx, same, &asked.request).await?;
        return Ok(accepted(same.name_any()));
    }
    if let Some(reason) = declined(ctx, &asked).await? {
        tracing::info!(owner = %asked.group.key, reason, "declined an external upgrade");
        return Ok(answer(false, reason, String::new()));
    }
    let ordinals = known.iter().filter_map(|task| asked.ordinal_of(task));
    let task = create(ctx, &asked, ordinals.max().unwrap_or_default()).await?;
    keep_specs(ctx, &task, &asked.request).await?;
    tracing::info!(owner = %asked.group.key, task = task.name_any(), "accepted an external upgrade");
    Ok(accepted(task.name_any()))
}

/// The tasks of a group, read live: another replica may have made one that the cache lacks.
async fn tasks_of(ctx: &Context, group: &Group) -> kube::Result<Vec<Arc<UpgradeTask>>> {
    let namespace = &group.key.namespace;
    let api: Api<UpgradeTask> = Api::namespaced(ctx.client.clone(), namespace);
    let is_here = |task: &UpgradeTask| task.metadata.namespace.as_ref() == Some(namespace);
    let unreadable = store::read_now(api, "", None, &ctx.stores.upgrade_tasks, is_here).await?;
    for what in unreadable {
        tracing::warn!(what, "an UpgradeTask cannot be read");
    }
    Ok(ctx.stores.upgrade_tasks.listed(&TASKS_BY_GROUP, &group.key))
}

fn accepted(task: String) -> ExternalUpgradeResponse {
    answer(true, String::new(), task)
}

fn answer(accepted: bool, reason: String, task: String) -> ExternalUpgradeResponse {
    ExternalUpgradeResponse { status: ResponseStatus::Success, accepted, reason, task }
}

/// A request about objects that exist.
struct Asked {
    request: ExternalUpgradeRequest,
    group: Group,
    /// Begins the names of its tasks.
    name: String,
}

impl Asked {
    async fn of(ctx: &Context, request: ExternalUpgradeRequest) -> Result<Self, NotJudged> {
        let namespace = &request.cluster.namespace;
        if !ctx.opted_in(namespace) {
            return Err(NotJudged::NotOptedIn(namespace.clone()));
        }
        let not_found = |object: String| NotJudged::NotFound(object, namespace.clone());
        let cluster = ObjectKey::new(namespace, &request.cluster.name);
        if ctx.stores.clusters.get(&cluster).is_none() {
            return Err(not_found(format!("Cluster {}", cluster.name)));
        }
        let owner = GroupOwner {
            api_version: request.owner.api_version.clone(),
            kind: request.owner.kind.clone(),
            name: request.owner.name.clone(),
        };
        let is_plane = Owner::of_kind(&owner.kind) == Some(Owner::ControlPlane);
        let group = Group::of(namespace, &cluster.name, owner, is_plane);
        let read = LiveOwner::read(ctx, &group).await;
        read.map_err(|error| NotJudged::NotReady(error.to_string()))?;
        let live = LiveOwner::of(&ctx.stores, &group);
        if live.and_then(|owner| owner.uid()).as_ref() != Some(&request.owner.uid) {
            let object = format!(
                "{} {} with uid {}",
                request.owner.kind, request.owner.name, request.owner.uid
            );
            return Err(not_found(object));
        }
        let of_group = crate::groups::machines_of(&ctx.stores, &group.key);
        let is_there = |name: &&String| of_group.iter().any(|machine| machine.name_any() == **name);
        if let Some(missing) = request.machines.iter().find(|name| !is_there(name)) {
            return Err(not_found(format!(
                "Machine {missing} of {} {}",
                request.owner.kind, request.owner.name
            )));
        }
        let hash = hash_json(&json!(request));
        let name = format!("external-{}-", &hash[..16]);
        Ok(Self { request, group, name })
    }

    /// How many tasks of the same request came before, and this one; `None` for a task of another request.
    fn ordinal_of(&self, task: &UpgradeTask) -> Option<usize> {
        task.spec.request_ref.as_ref()?;
        task.name_any().strip_prefix(&self.name)?.parse().ok()
    }

    fn task(&self, ordinal: usize) -> UpgradeTask {
        let machines = Some(self.request.machines.clone()).filter(|names| !names.is_empty());
        let name = format!("{}{ordinal}", self.name);
        let spec = UpgradeTaskSpec {
            owner_ref: Some(self.group.spec.owner.clone()),
            machines,
            request_ref: Some(RequestRef { name: name.clone() }),
            ..UpgradeTaskSpec::of(&self.request.cluster.name, Via::Machines)
        };
        let mut task = UpgradeTask::new(&name, spec);
        task.metadata.namespace = Some(self.group.key.namespace.clone());
        task
    }
}

/// Why Refit cannot do what is requested; `None` if it can. One Machine stands for all: their specs are the same but
/// for what identifies each.
async fn declined(ctx: &Context, asked: &Asked) -> Result<Option<String>, NotJudged> {
    let look = Look::read(ctx, Arc::new(asked.task(0))).await.map_err(failed)?;
    if let Some(obstacle) = look.final_obstacle() {
        return Ok(Some(obstacle.message()));
    }
    let Some(machine) = look.to_judge(&asked.request.machines) else {
        return Ok(Some("all of its Machines are being deleted, or it has none".to_owned()));
    };
    let sides = match objects::sides(ctx, &look, &machine).await {
        Ok(sides) => sides,
        Err(error) => return refused_by_api(error).map(|why| Some(why.message)).map_err(failed),
    };
    let differing = differences(&specs_of(&asked.request), &sides.written(), &sides.stored());
    if !differing.is_empty() {
        return Ok(Some(format!(
            "the owner requests other specs than the request, at {}: request what it requests",
            differing.join(", ")
        )));
    }
    let compared = (&sides.current, &sides.wanted);
    let judged = can_update::of_task(ctx, sides.level, compared, (None, false)).await;
    let (_, judgement) = judged.map_err(|why| NotJudged::NotReady(why.to_string()))?;
    Ok(match &judgement.verdict {
        // What must end first keeps the task waiting.
        Verdict::Cover { .. } | Verdict::NotReady(_) => None,
        Verdict::Replace { .. } | Verdict::Preserve { .. } | Verdict::Disabled => {
            Some(judgement.verdict.message())
        }
    })
}

fn failed(error: anyhow::Error) -> NotJudged {
    NotJudged::Failed(error)
}

fn specs_of(request: &ExternalUpgradeRequest) -> Specs {
    Specs {
        machine: json!(request.machine),
        bootstrap_config: json!(request.bootstrap_config),
        infrastructure_machine: json!(request.infrastructure_machine),
    }
}

async fn stop(ctx: &Context, task: &UpgradeTask) -> kube::Result<()> {
    let body = json!({"spec": {"stage": Stage::Abort}});
    let written = apply::merge(&tasks(ctx, task), &task.name_any(), &body).await?;
    ctx.stores.upgrade_tasks.insert(written);
    Ok(())
}

/// Creates the task, or finds the one that the same request has just made.
async fn create(ctx: &Context, asked: &Asked, known: usize) -> Result<UpgradeTask, NotJudged> {
    for ordinal in known + 1..=known + ROUNDS {
        let task = asked.task(ordinal);
        let (found, _) = apply::create_or_get(&tasks(ctx, &task), &task).await?;
        ctx.stores.upgrade_tasks.insert(found.clone());
        let is_at_work = !has_ended(&found) && found.metadata.deletion_timestamp.is_none();
        if is_at_work && found.spec.stage == Stage::Ongoing {
            return Ok(found);
        }
    }
    Err(NotJudged::NotReady("tasks of the same request end at the same time".to_owned()))
}

fn secrets(ctx: &Context, task: &UpgradeTask) -> Api<Secret> {
    Api::namespaced(ctx.client.clone(), &task.namespace().unwrap_or_default())
}

/// Keeps the accepted specs in a Secret of the task: bootstrap configs may contain secrets.
async fn keep_specs(
    ctx: &Context,
    task: &UpgradeTask,
    request: &ExternalUpgradeRequest,
) -> kube::Result<()> {
    let specs = json!({
        "machine": request.machine,
        "bootstrapConfig": request.bootstrap_config,
        "infrastructureMachine": request.infrastructure_machine,
    });
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(task.name_any()),
            namespace: task.namespace(),
            owner_references: task.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        immutable: Some(true),
        data: Some(BTreeMap::from([(
            SPECS.to_owned(),
            ByteString(specs.to_string().into_bytes()),
        )])),
        ..Secret::default()
    };
    apply::create_or_get(&secrets(ctx, task), &secret).await.map(drop)
}

/// The specs that the request of a task was accepted for; `None` if another client made it.
pub(super) async fn accepted_specs(
    ctx: &Context,
    task: &UpgradeTask,
) -> anyhow::Result<Option<Specs>> {
    let Some(reference) = &task.spec.request_ref else { return Ok(None) };
    let secret = secrets(ctx, task).get(&reference.name).await?;
    let data = secret.data.as_ref().and_then(|data| data.get(SPECS));
    let specs: Value = serde_json::from_slice(data.map_or(&[], |data| &data.0))
        // The error of the parser repeats a part of the text.
        .map_err(|_| anyhow::anyhow!("key {SPECS} of Secret {} is not JSON", reference.name))?;
    Ok(Some(Specs {
        machine: specs["machine"].clone(),
        bootstrap_config: specs["bootstrapConfig"].clone(),
        infrastructure_machine: specs["infrastructureMachine"].clone(),
    }))
}
