//! Watches the kinds of providers, each from the first update on that needs it.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Mutex, time::Duration};

use futures::stream::{FuturesUnordered, StreamExt as _};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt as _,
    api::ApiResource,
    core::GroupVersionKind,
    discovery::{self, Scope},
};
use refit_kinds::keys;
use refit_runtime::{ObjectKey, store};
use tokio::sync::Notify;

use super::{Kind, Trouble, Watched, WatchedKinds, lock, record::ProviderRecord};
use crate::{api_error::cause, context::Context, watches::wake_machine};

/// Longest delay between two attempts to watch a kind.
const RETRY: Duration = Duration::from_secs(30);
/// After so many failures of a first list, they are shown.
const SHOWN_FAILURES: u32 = 3;

/// Watches every kind that an update needs, until the future is dropped.
pub(crate) async fn run(ctx: &Context) {
    let WatchedKinds { kinds, added } = &*ctx.providers;
    each_kind(kinds, added, |kind, watched| watch(ctx, kind, watched)).await;
}

/// Watches each kind of a map, also those that are `added` later, until the future is dropped.
pub(crate) async fn each_kind<W: Clone, F: Future<Output = ()>>(
    kinds: &Mutex<BTreeMap<Kind, W>>,
    added: &Notify,
    watch: impl Fn(Kind, W) -> F,
) {
    let mut begun = Vec::new();
    let mut watches = FuturesUnordered::new();
    loop {
        let new: Vec<(Kind, W)> = {
            let kinds = lock(kinds);
            let new = kinds.iter().filter(|(kind, _)| !begun.contains(*kind));
            new.map(|(kind, watched)| (kind.clone(), watched.clone())).collect()
        };
        for (kind, watched) in new {
            begun.push(kind.clone());
            watches.push(watch(kind, watched));
        }
        tokio::select! {
            () = added.notified() => {}
            Some(()) = watches.next() => {}
        }
    }
}

/// Watches one kind. How the API server serves it is asked again after each failure.
async fn watch(ctx: &Context, kind: Kind, watched: Watched) {
    let note = |trouble: Trouble| {
        let (api_version, kind) = &kind;
        let shown = |why: String| format!("{kind} of {api_version} cannot be watched: {why}");
        *lock(&watched.trouble) = Some(match trouble {
            Trouble::NotServed(why) => Trouble::NotServed(shown(why)),
            Trouble::NotReadable(why) => Trouble::NotReadable(shown(why)),
        });
    };
    loop {
        match served(ctx, &kind).await {
            Ok(resource) => follow(ctx, &resource, &watched, note).await,
            Err(trouble) => note(trouble),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// How the API server serves a kind that follows the contract.
async fn served(ctx: &Context, (api_version, kind): &Kind) -> Result<ApiResource, Trouble> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = GroupVersionKind::gvk(group, version, kind);
    let found = discovery::pinned_kind(&ctx.client, &kind).await;
    let (resource, capabilities) = found.map_err(|error| Trouble::of(&error))?;
    if capabilities.scope != Scope::Namespaced {
        return Err(Trouble::NotReadable("its objects have no namespace".to_owned()));
    }
    follows_contract(ctx, &resource).await.map_err(Trouble::NotReadable)?;
    Ok(resource)
}

/// Keeps the cache of a kind, until the API server refuses.
async fn follow(ctx: &Context, resource: &ApiResource, watched: &Watched, note: impl Fn(Trouble)) {
    let changed = |change: &store::Change<ProviderRecord>| {
        let object = change.object();
        let namespace = object.namespace().unwrap_or_default();
        let of = |name: &str| ObjectKey::new(&namespace, name);
        ctx.queues.node_updates.add(of(&object.view.node_update));
        wake_machine(ctx, &of(&object.view.spec.machine_ref.name));
    };
    let mut failures = 0;
    let broken = |broken: store::Broken<'_>| {
        let store::Broken::Watch(error) = broken else {
            return ControlFlow::Continue(RETRY);
        };
        if let Some(trouble) = refusal_of(error) {
            note(trouble);
            return ControlFlow::Break(());
        }
        if !watched.store.is_ready() {
            failures += 1;
            if failures >= SHOWN_FAILURES {
                note(Trouble::NotReadable(error.to_string()));
            }
        }
        ControlFlow::Continue(RETRY)
    };
    *lock(&watched.resource) = Some(resource.clone());
    let api: Api<ProviderRecord> = Api::all_with(ctx.client.clone(), resource);
    // What the cache holds may be older than what went wrong.
    watched.store.expect_list();
    let (everything, cache) = (store::everything(), watched.store.clone());
    let followed = store::follow(api, resource, everything, None, cache, changed, broken);
    tokio::select! {
        () = followed => {}
        () = async {
            watched.store.ready().await;
            *lock(&watched.trouble) = None;
            std::future::pending::<()>().await;
        } => {}
    }
}

/// Whether the definition of a kind lists this version of it as one that follows the contract.
async fn follows_contract(ctx: &Context, kind: &ApiResource) -> Result<(), String> {
    let name = format!("{}.{}", kind.plural, kind.group);
    let definitions: Api<CustomResourceDefinition> = Api::all(ctx.client.clone());
    let found = definitions.get_metadata(&name).await.map_err(|error| cause(&error))?;
    let versions = found.labels().get(keys::CONTRACT).map(String::as_str).unwrap_or_default();
    if versions.split('_').any(|version| version == kind.version) {
        return Ok(());
    }
    Err(format!(
        "the label {} of CustomResourceDefinition {name} does not list {}",
        keys::CONTRACT,
        kind.version
    ))
}

/// What the API server refuses for good.
fn refusal_of(error: &kube::runtime::watcher::Error) -> Option<Trouble> {
    use kube::runtime::watcher::Error::{
        InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed,
    };
    match error {
        InitialListFailed(error @ kube::Error::Api(status))
        | WatchStartFailed(error @ kube::Error::Api(status))
            if status.is_forbidden() || status.is_not_found() =>
        {
            Some(Trouble::of(error))
        }
        WatchError(status) if status.is_forbidden() => {
            Some(Trouble::NotReadable(status.message.clone()))
        }
        InitialListFailed(_) | WatchStartFailed(_) | WatchError(_) | WatchFailed(_)
        | NoResourceVersion => None,
    }
}
