//! Asks the provider which upgrade is wanted, and brings the UpgradeConfig there.

use anyhow::Context as _;
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, PostParams, Preconditions},
};
use refit_openshift::{
    cluster_version,
    config::{ProviderConfig, Source},
    history::Trouble,
    manager::{self, AfterDelete, Known, Refresh, after_delete},
    provider::{OcmUrl, local_spec, next_policy, wanted_spec},
    upgrade_config::{NAME, UpgradeConfig, UpgradeConfigSpec},
};
use refit_runtime::{apply::is_not_found, client::cause};

use crate::{context::Context, record::show};

/// Asks the provider between two looks at the upgrade, and carries out what follows. The upgrade shows an error.
pub(crate) async fn sync(ctx: &Context) -> anyhow::Result<Option<Refresh>> {
    loop {
        let asked = Asked::ask(ctx).await;
        // A look could commence what is cancelled here. The provider is asked before, as it may keep the answer waiting.
        let _turn = ctx.shared.turn.lock().await;
        let synced = match asked {
            Ok(Some(asked)) => match Box::pin(asked.carry_out(ctx)).await {
                // A look has replaced it meanwhile.
                Ok(None) => continue,
                synced => synced,
            },
            Ok(None) => {
                show(ctx, Trouble::UpgradeConfigHeld, None).await;
                Ok(None)
            }
            Err(error) => Err(error),
        };
        let why = synced.as_ref().err().map(|error| format!("{error:#}"));
        show(ctx, Trouble::SyncFailed, why.as_deref()).await;
        return synced;
    }
}

/// Asks the provider during a look, and carries out what follows for the object in the cluster. `None` if no source is configured.
pub(crate) async fn refresh(ctx: &Context) -> anyhow::Result<Option<Refresh>> {
    let Some(asked) = Asked::ask(ctx).await? else { return Ok(None) };
    let refreshed = Box::pin(asked.carry_out(ctx)).await?;
    let changed =
        "the UpgradeConfig was created or deleted while its provider was asked; it is asked again";
    refreshed.context(changed).map(Some)
}

/// What the provider has answered.
struct Asked {
    /// The object that was in the cluster before.
    uid: Option<String>,
    answer: Answer,
    hold: bool,
}

enum Answer {
    /// The object in the cluster decides.
    Local,
    /// OCM wants this.
    Ocm(Option<UpgradeConfigSpec>),
}

impl Asked {
    async fn ask(ctx: &Context) -> anyhow::Result<Option<Self>> {
        let (existing, config) = futures::try_join!(ctx.upgrade(), ctx.config())?;
        let Some(provider) = config.provider()? else { return Ok(None) };
        let answer = match &provider.source {
            Source::Local => Answer::Local,
            Source::Ocm(url) => Answer::Ocm(wanted(ctx, url, &provider).await?),
        };
        let uid = existing.and_then(|existing| existing.metadata.uid);
        Ok(Some(Self { uid, answer, hold: config.holds_while_upgrading()? }))
    }

    /// Carries the answer out; `None` if it is of another object.
    async fn carry_out(self, ctx: &Context) -> anyhow::Result<Option<Refresh>> {
        let existing = ctx.upgrade().await?;
        let existing = existing.as_ref();
        if existing.and_then(|existing| existing.metadata.uid.as_ref()) != self.uid.as_ref() {
            return Ok(None);
        }
        let wanted = match self.answer {
            Answer::Local => local_spec(existing, ctx.compat),
            Answer::Ocm(wanted) => wanted,
        };
        let commenced = has_commenced(ctx, existing).await?;
        let known = Known { existing, wanted: wanted.as_ref(), commenced, hold: self.hold };
        let refresh = manager::refresh(known);
        carry_out(ctx, existing, &refresh).await?;
        Ok(Some(refresh))
    }
}

async fn wanted(
    ctx: &Context,
    url: &OcmUrl,
    provider: &ProviderConfig,
) -> anyhow::Result<Option<UpgradeConfigSpec>> {
    let cluster_id = ctx.cluster_version().await?.spec.cluster_id;
    let ocm = ctx.remote.ocm(url, &cluster_id).await?;
    let cluster = ocm.cluster().await?;
    let policies = ocm.policies(&cluster).await?;
    let Some(policy) = next_policy(&policies) else { return Ok(None) };
    let state = ocm.state(&cluster, &policy.id).await?;
    Ok(wanted_spec(&cluster, policy, &state, provider.platform, ctx.compat)?)
}

async fn has_commenced(ctx: &Context, existing: Option<&UpgradeConfig>) -> anyhow::Result<bool> {
    let Some(existing) = existing else { return Ok(false) };
    let cluster = ctx.cluster_version().await?;
    // One that requests nothing is not under way.
    Ok(cluster_version::has_commenced(&cluster, &existing.spec.desired).unwrap_or_default())
}

async fn carry_out(
    ctx: &Context,
    existing: Option<&UpgradeConfig>,
    refresh: &Refresh,
) -> anyhow::Result<()> {
    match refresh {
        Refresh::Unchanged => show(ctx, Trouble::UpgradeConfigHeld, None).await,
        Refresh::Held { why } => {
            tracing::warn!(why, "the UpgradeConfig is held");
            show(ctx, Trouble::UpgradeConfigHeld, Some(why)).await;
        }
        Refresh::Create(spec) => create(ctx, spec).await?,
        Refresh::Delete => delete(ctx, existing).await?,
        Refresh::Replace(spec) => {
            delete(ctx, existing).await?;
            until_gone(ctx).await?;
            create(ctx, spec).await?;
        }
    }
    Ok(())
}

/// Deletes the object that was read, and no newer one.
async fn delete(ctx: &Context, existing: Option<&UpgradeConfig>) -> anyhow::Result<()> {
    let Some(UpgradeConfig { metadata, .. }) = existing else { return Ok(()) };
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
        }),
        ..DeleteParams::default()
    };
    let api: Api<UpgradeConfig> = ctx.own();
    match api.delete(NAME, &parameters).await {
        Ok(_) => tracing::info!("deleted the UpgradeConfig, as its provider does not want it"),
        Err(error) if is_not_found(&error) => {}
        Err(error) => anyhow::bail!("cannot delete the UpgradeConfig: {}", cause(&error)),
    }
    Ok(())
}

async fn until_gone(ctx: &Context) -> anyhow::Result<()> {
    let deleted = ctx.clock.now();
    loop {
        let exists = ctx.upgrade().await?.is_some();
        match after_delete(exists, ctx.clock.now().duration_since(deleted))? {
            AfterDelete::Create => return Ok(()),
            AfterDelete::Poll(wait) => tokio::time::sleep(wait.unsigned_abs()).await,
        }
    }
}

async fn create(ctx: &Context, spec: &UpgradeConfigSpec) -> anyhow::Result<()> {
    let upgrade = UpgradeConfig {
        metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
        spec: spec.clone(),
        status: None,
    };
    let created = ctx.own().create(&PostParams::default(), &upgrade).await;
    created
        .map_err(|error| anyhow::anyhow!("cannot create the UpgradeConfig: {}", cause(&error)))?;
    tracing::info!(
        version = spec.desired.version,
        upgrade_at = spec.upgrade_at,
        "created the UpgradeConfig"
    );
    Ok(())
}
