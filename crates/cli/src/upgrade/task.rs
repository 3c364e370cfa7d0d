//! `refit upgrade --via`: an UpgradeTask does the upgrade, and needs no command that waits.

use kube::{
    Api, ResourceExt as _,
    api::{ListParams, PostParams},
};
use refit_kinds::{
    keys,
    refit::{ClusterRef, GroupOwner, Stage, UpgradeTask, UpgradeTaskSpec, Via},
    version::KubernetesVersion,
};

use super::RequestState;
use crate::{
    client::{Cluster, attempt, attempt_on},
    target::{Target, TargetKind},
};

/// Who works through the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ViaFlag {
    /// Cluster API, which calls Refit's hooks.
    Spec,
    /// Refit, where Cluster API does not update in place.
    Machines,
}

/// A task that does the upgrade.
pub(super) struct Requested {
    pub(super) name: String,
    pub(super) state: RequestState,
}

/// Creates the task, or finds the unfinished one for the same.
pub(super) async fn request(
    cluster: &Cluster,
    target: &Target,
    (to, hops): (&KubernetesVersion, &[KubernetesVersion]),
    via: ViaFlag,
    dry_run: bool,
) -> anyhow::Result<Requested> {
    let spec = spec(cluster, target, (to, hops), via).await?;
    let api: Api<UpgradeTask> = cluster.here();
    let all = api.list(&ListParams::default()).await;
    let all = all.map_err(|error| cluster.explain(error, &attempt::<UpgradeTask>("list")))?;
    let is_unfinished = |task: &&UpgradeTask| {
        task.spec == spec && task.status.as_ref().is_none_or(|status| !status.phase.has_ended())
    };
    if let Some(found) = all.items.iter().find(is_unfinished) {
        return Ok(Requested { name: found.name_any(), state: RequestState::Before });
    }
    let mut task = UpgradeTask::new("", spec);
    task.metadata.name = None;
    task.metadata.generate_name = Some(format!("{}-{to}-", target.name).replace('+', "-"));
    let params = PostParams { dry_run, field_manager: Some(keys::MANAGER.to_owned()) };
    let made = api.create(&params, &task).await;
    let attempt = attempt_on::<UpgradeTask>("create", "");
    let made = made.map_err(|error| cluster.explain(error, &attempt))?;
    let state = if dry_run { RequestState::Rehearsed } else { RequestState::Now };
    Ok(Requested { name: made.name_any(), state })
}

async fn spec(
    cluster: &Cluster,
    target: &Target,
    (to, hops): (&KubernetesVersion, &[KubernetesVersion]),
    via: ViaFlag,
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
        stage: Stage::Ongoing,
        cluster_ref: ClusterRef { name: of_cluster },
        owner_ref,
        version: Some(to.clone()),
        hops: Some(hops.to_vec()).filter(|hops| !hops.is_empty()),
        machines: None,
        updater_ref: None,
        request_ref: None,
        via: match via {
            ViaFlag::Spec => Via::Spec,
            ViaFlag::Machines => Via::Machines,
        },
    })
}
