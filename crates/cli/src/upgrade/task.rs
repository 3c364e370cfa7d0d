//! An UpgradeTask does the upgrade, and needs no command that waits.

use kube::{ResourceExt as _, api::PostParams};
use refit_core::task::status::READY;
use refit_kinds::{
    conditions, keys,
    refit::{GroupOwner, TaskPhase, UpgradeTask, UpgradeTaskSpec, Via},
    version::KubernetesVersion,
};

use super::{EXIT_REFUSED, RequestState};
use crate::{
    client::{Cluster, attempt_on},
    exit,
    left::is_stopping,
    target::{Target, TargetKind},
};

/// Who works through the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ViaFlag {
    /// Cluster API, which calls Refit's hooks.
    Spec,
    /// Refit, where Cluster API does not update in place.
    Machines,
}

impl From<ViaFlag> for Via {
    fn from(flag: ViaFlag) -> Self {
        match flag {
            ViaFlag::Spec => Self::Spec,
            ViaFlag::Machines => Self::Machines,
        }
    }
}

/// A task that does the upgrade.
pub(super) struct Requested {
    pub(super) name: String,
    pub(super) state: RequestState,
}

/// Finds the unfinished task for a target and its versions; by `via` only if it is given.
pub(super) async fn unfinished(
    cluster: &Cluster,
    target: &Target,
    versions: (&KubernetesVersion, &[KubernetesVersion]),
    via: Option<Via>,
) -> anyhow::Result<Option<Requested>> {
    let wanted = spec(cluster, target, versions, via.unwrap_or(Via::Machines)).await?;
    let found = tasks(cluster).await?.into_iter().find(|task| {
        let via = via.unwrap_or(task.spec.via);
        task.spec == UpgradeTaskSpec { via, ..wanted.clone() }
            && !has_ended(task)
            && !is_stopping(task)
    });
    let Some(task) = found else { return Ok(None) };
    if let Some(status) = task.status.as_ref().filter(|status| status.phase == TaskPhase::Failed) {
        let ready = conditions::get(&status.conditions, READY);
        let why = ready.map_or("", |ready| &ready.message);
        let name = task.name_any();
        return Err(exit::error(
            EXIT_REFUSED,
            format!(
                "nothing was written: UpgradeTask/{name} is for the same and has failed: {why}. It goes on when its cause is \
                 gone. To make another one, stop it first: kubectl patch upgradetask {name} --type merge -p \
                 '{{\"spec\":{{\"stage\":\"Abort\"}}}}'"
            ),
        ));
    }
    Ok(Some(Requested { name: task.name_any(), state: RequestState::Before }))
}

/// Creates the task.
pub(super) async fn request(
    cluster: &Cluster,
    target: &Target,
    versions: (&KubernetesVersion, &[KubernetesVersion]),
    via: Via,
    dry_run: bool,
) -> anyhow::Result<Requested> {
    let spec = spec(cluster, target, versions, via).await?;
    let name = create(cluster, &target.name, spec, dry_run).await?;
    let state = if dry_run { RequestState::Rehearsed } else { RequestState::Now };
    Ok(Requested { name, state })
}

/// Lists the UpgradeTasks of the namespace.
pub(crate) async fn tasks(cluster: &Cluster) -> anyhow::Result<Vec<UpgradeTask>> {
    cluster.list(&cluster.here(), "").await
}

/// Whether a task has ended for good.
pub(crate) fn has_ended(task: &UpgradeTask) -> bool {
    task.status.as_ref().is_some_and(|status| status.phase.has_ended())
}

/// Creates a task whose name begins with that of its target, and returns its name.
pub(crate) async fn create(
    cluster: &Cluster,
    target: &str,
    spec: UpgradeTaskSpec,
    dry_run: bool,
) -> anyhow::Result<String> {
    let version = spec.version.as_ref().map(|version| format!("{version}-"));
    let prefix = format!("{target}-{}", version.unwrap_or_default());
    let mut task = UpgradeTask::new("", spec);
    task.metadata.name = None;
    task.metadata.generate_name = Some(prefix.replace('+', "-"));
    let params = PostParams { dry_run, field_manager: Some(keys::MANAGER.to_owned()) };
    let made = cluster.here::<UpgradeTask>().create(&params, &task).await;
    let attempt = attempt_on::<UpgradeTask>("create", "");
    Ok(made.map_err(|error| cluster.explain(error, &attempt))?.name_any())
}

async fn spec(
    cluster: &Cluster,
    target: &Target,
    (to, hops): (&KubernetesVersion, &[KubernetesVersion]),
    via: Via,
) -> anyhow::Result<UpgradeTaskSpec> {
    let (of_cluster, owner_ref) = if target.kind == TargetKind::Cluster {
        target.check(cluster).await?;
        (target.name.clone(), None)
    } else {
        let found = target.reference(cluster).await?;
        let owner = GroupOwner {
            api_version: found.api_version,
            kind: target.kind.kind().to_owned(),
            name: target.name.clone(),
        };
        (found.cluster, Some(owner))
    };
    Ok(UpgradeTaskSpec {
        owner_ref,
        version: Some(to.clone()),
        hops: Some(hops.to_vec()).filter(|hops| !hops.is_empty()),
        ..UpgradeTaskSpec::of(&of_cluster, via)
    })
}
