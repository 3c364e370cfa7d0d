//! Takes an upgrade back: the owner asks again for the version that its machines run.

use anyhow::bail;
use refit_kinds::version::{KubernetesVersion, StatedVersion};
use serde::Serialize;

use super::{
    ATTEMPTS,
    decide::{Next, Write, next},
    facts, set_version,
};
use crate::{client::Cluster, global::program, target::Target};

/// What happened to the version of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Action {
    /// It is the previous one again.
    Reverted,
    /// It stays, and `message` gives the reason.
    Kept,
}

/// The result for one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// `Kind/name`.
    pub(crate) object: String,
    /// What happened.
    pub(crate) action: Action,
    /// The version that was requested.
    pub(crate) from: StatedVersion,
    /// The version that is requested now.
    pub(crate) to: StatedVersion,
    /// A sentence about it.
    pub(crate) message: String,
}

/// Sets the version of an owner back; returns `None` if its machines run what it asks for.
pub(crate) async fn revert(
    cluster: &Cluster,
    owner: &Target,
    dry_run: bool,
) -> anyhow::Result<Option<Row>> {
    for _ in 0..ATTEMPTS {
        let facts = facts::read(cluster, owner).await?.facts;
        let control_plane = facts.control_plane.as_ref().filter(|_| facts.with_control_plane);
        let Some(group) = control_plane.or(facts.deployments.first()) else {
            return Ok(None);
        };
        let kept = |why: &str| Row {
            object: owner.to_string(),
            action: Action::Kept,
            from: group.version.clone(),
            to: group.version.clone(),
            message: why.replace("`refit ", &format!("`{} ", program())),
        };
        let to = match group.version_before() {
            Ok(Some(to)) => to,
            Ok(None) => return Ok(None),
            Err(refusal) => return Ok(Some(kept(&refusal.to_string()))),
        };
        match next(&facts, &to) {
            Err(refusal) => return Ok(Some(kept(&refusal.to_string()))),
            Ok(Next::Asked) => return Ok(None),
            Ok(Next::Task(why)) => return Ok(Some(kept(&why))),
            Ok(Next::Write(write)) => {
                if let Some(row) = write_back(cluster, &write, &to, dry_run).await? {
                    return Ok(Some(row));
                }
            }
        }
    }
    bail!("{owner} keeps changing; try again")
}

/// Writes the version of one owner; returns `None` if it changed since it was read.
async fn write_back(
    cluster: &Cluster,
    write: &Write,
    to: &KubernetesVersion,
    dry_run: bool,
) -> anyhow::Result<Option<Row>> {
    let written = set_version(cluster, write, to, dry_run).await?;
    Ok(written.then(|| Row {
        object: write.object.clone(),
        action: Action::Reverted,
        from: write.from.clone(),
        to: to.to_string().as_str().into(),
        message: write.line(to),
    }))
}
