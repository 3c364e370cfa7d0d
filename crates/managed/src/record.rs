//! The UpgradeConfig of a look, and the entry of its version: what is stored, and when.

use anyhow::Context as _;
use kube::ResourceExt as _;
use refit_openshift::{
    Compat,
    history::{Trouble, first, show_trouble, with_entry},
    upgrade_config::{NAME, UpgradeConfig, UpgradeHistory},
};
use refit_runtime::apply::{is_conflict, is_not_found, status_diff, swap_status};

use crate::context::Context;

/// How often a change is stored again after another write of the status.
const AMEND_ATTEMPTS: usize = 5;

/// The UpgradeConfig that was read, and the entry of its version with what the look has noted in it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The object.
    pub(crate) upgrade: UpgradeConfig,
    /// The entry.
    pub(crate) entry: UpgradeHistory,
}

/// What has become of a write of the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// It is stored, or was before.
    Yes,
    /// The object changed since it was read, or is gone: a new look is due.
    Changed,
}

impl Record {
    /// The entry that an UpgradeConfig has.
    pub(crate) fn of(upgrade: Option<UpgradeConfig>) -> Option<Self> {
        let upgrade = upgrade?;
        let entry = upgrade.entry()?.clone();
        Some(Self { upgrade, entry })
    }

    /// Stores the entry, unless the object changed since it was read. Its resourceVersion stands for its uid as well: an object that
    /// was created again has another one.
    pub(crate) async fn store(&mut self, ctx: &Context) -> anyhow::Result<Stored> {
        let status = with_entry(self.upgrade.status.as_ref(), self.entry.clone(), ctx.compat);
        let Some(patch) = status_diff(self.upgrade.status.as_ref(), &status) else {
            return Ok(Stored::Yes);
        };
        let version = self.upgrade.resource_version().unwrap_or_default();
        match swap_status(&ctx.own(), NAME, &version, &patch).await {
            Ok(stored) => {
                self.upgrade = stored;
                Ok(Stored::Yes)
            }
            Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(Stored::Changed),
            Err(error) => Err(error).context("cannot store the status of the UpgradeConfig"),
        }
    }

    /// Changes the entry and stores it. A write of another controller in between does not keep it from being stored: what is noted
    /// was done.
    pub(crate) async fn amend(
        &mut self,
        ctx: &Context,
        change: impl Fn(&mut UpgradeHistory),
    ) -> anyhow::Result<Stored> {
        for _ in 0..AMEND_ATTEMPTS {
            change(&mut self.entry);
            if self.store(ctx).await? == Stored::Yes {
                return Ok(Stored::Yes);
            }
            if self.reload(ctx).await? == Stored::Changed {
                return Ok(Stored::Changed);
            }
        }
        Ok(Stored::Changed)
    }

    /// Reads the entry again, as others have stored it.
    pub(crate) async fn reload(&mut self, ctx: &Context) -> anyhow::Result<Stored> {
        let Some(upgrade) = ctx.upgrade().await? else { return Ok(Stored::Changed) };
        let is_same = upgrade.uid() == self.upgrade.uid() && upgrade.spec == self.upgrade.spec;
        let Some(entry) = upgrade.entry().filter(|_| is_same) else {
            return Ok(Stored::Changed);
        };
        self.entry = entry.clone();
        self.upgrade = upgrade;
        Ok(Stored::Yes)
    }
}

/// Shows a trouble of the upgrade, or that it is over. A failure to show it is only logged.
pub(crate) async fn show(ctx: &Context, trouble: Trouble, why: Option<&str>) {
    let shown = match ctx.compat {
        // The original has no such conditions.
        Compat::Strict => Ok(()),
        Compat::Repaired => try_show(ctx, trouble, why).await,
    };
    if let Err(error) = shown {
        let error = format!("{error:#}");
        tracing::warn!(condition = %trouble, error, "cannot store a condition of the UpgradeConfig");
    }
}

async fn try_show(ctx: &Context, trouble: Trouble, why: Option<&str>) -> anyhow::Result<()> {
    let Some(upgrade) = ctx.upgrade().await? else { return Ok(()) };
    let now = ctx.clock.now_seconds();
    let entry = match (upgrade.entry(), why) {
        (Some(entry), _) => entry.clone(),
        (None, Some(_)) => first(&upgrade, &ctx.cluster_version().await?, (now, ctx.compat))?,
        (None, None) => return Ok(()),
    };
    let mut record = Record { upgrade, entry };
    record.amend(ctx, |entry| show_trouble(entry, trouble, why, now)).await.map(drop)
}
