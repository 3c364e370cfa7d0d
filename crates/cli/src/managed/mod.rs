//! `refit schedule`, `upgrades`, `history` and `cancel`: upgrades of whole clusters at a time.

mod cancel;
mod history;
mod list;
mod schedule;

use std::str::FromStr;

use kube::ResourceExt as _;
use refit_core::task::status::READY;
use refit_kinds::{
    conditions,
    refit::{ClusterUpgrade, UpgradeRecord},
};

pub(crate) use self::{
    cancel::{CancelArgs, cancel},
    history::{HistoryArgs, history},
    list::{UpgradesArgs, upgrades},
    schedule::{ScheduleArgs, schedule},
};
use crate::{
    client::Cluster,
    exit,
    target::{Target, TargetKind},
};

/// Exit code if there is nothing to do or to show.
const EXIT_NOTHING: u8 = 3;
/// Exit code if the request was refused and nothing was written.
const EXIT_REFUSED: u8 = 4;

/// Name of a Cluster, with or without `cluster/`.
#[derive(Clone, Debug)]
pub(crate) struct ClusterName(String);

impl FromStr for ClusterName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains('/') {
            return Ok(Self(text.to_owned()));
        }
        let target: Target = text.parse()?;
        match target.kind {
            TargetKind::Cluster => Ok(Self(target.name)),
            TargetKind::ControlPlane
            | TargetKind::MachineDeployment
            | TargetKind::MachineSet
            | TargetKind::Machine => {
                Err("only a whole cluster has a schedule: cluster/NAME".to_owned())
            }
        }
    }
}

/// The ClusterUpgrade of a Cluster.
async fn of_cluster(cluster: &Cluster, name: &str) -> anyhow::Result<ClusterUpgrade> {
    let found = cluster.get::<ClusterUpgrade>(name).await?;
    found.ok_or_else(|| {
        let (namespace, program) = (&cluster.namespace, crate::global::program());
        let message = format!(
            "Cluster {name} has no ClusterUpgrade in namespace {namespace}: `{program} schedule {name} --to VERSION --at \
             TIME` makes one"
        );
        exit::error(EXIT_NOTHING, message)
    })
}

/// What the condition Ready of an upgrade shows.
fn why(upgrade: &ClusterUpgrade) -> &str {
    let shown = upgrade.status.as_ref().map_or(&[][..], |status| &status.conditions);
    conditions::get(shown, READY).map_or("", |ready| &ready.message)
}

/// The newest record.
fn newest(upgrade: &ClusterUpgrade) -> Option<&UpgradeRecord> {
    upgrade.status.as_ref()?.history.first()
}

/// Sorts by namespace and name.
fn sort(upgrades: &mut [ClusterUpgrade]) {
    upgrades.sort_by_key(|upgrade| (upgrade.namespace(), upgrade.name_any()));
}
