//! Watches the objects of providers: kinds that Updaters name, and that are known at run time only.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::stream::{FuturesUnordered, StreamExt as _};
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject},
    core::{DynamicResourceScope, GroupVersionKind},
};
use refit_core::{
    node::{ProviderOrder, Providers, provider_object, provider_object_name},
    report::Refusal,
};
use refit_kinds::{
    keys,
    refit::{
        NodeUpdate, Phase, PlanId, ProviderObject, ProviderSpec, ProviderStatus, UpdatePart,
        UpdaterTemplate,
    },
};
use refit_runtime::{
    ObjectKey, Store, apply,
    foreign::ForeignObject,
    store::{self, Index},
};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::{
    api_error::cause,
    context::Context,
    groups::{controller_of, phase_of},
    watches::wake_machine,
};

/// Longest delay between two attempts to watch a kind.
const RETRY: Duration = Duration::from_secs(30);
/// After so many failures of a first list, they are shown.
const SHOWN_FAILURES: u32 = 3;

/// API version and kind of a provider's objects.
type Kind = (String, String);

/// The kinds of providers' objects that are watched, each from the first update on that needs it.
#[derive(Debug, Default)]
pub(crate) struct WatchedKinds {
    kinds: Mutex<BTreeMap<Kind, Watched>>,
    added: Notify,
}

#[derive(Clone, Debug)]
struct Watched {
    store: Store<ProviderRecord>,
    /// Why the kind cannot be watched.
    trouble: Arc<Mutex<Option<Trouble>>>,
    /// How the API server serves the kind.
    resource: Arc<Mutex<Option<ApiResource>>>,
}

#[derive(Clone, Debug)]
enum Trouble {
    /// The API server does not serve the kind: there are no objects.
    NotServed(String),
    /// Its objects cannot be read.
    NotReadable(String),
}

impl Trouble {
    fn of(error: &kube::Error) -> Self {
        let why = cause(error);
        if apply::is_not_found(error) || matches!(error, kube::Error::Discovery(_)) {
            Self::NotServed(why)
        } else {
            Self::NotReadable(why)
        }
    }
}

/// Providers' objects by the uid of their Machine.
const BY_MACHINE_UID: Index<ProviderRecord> = Index {
    name: "machine-uid",
    keys: |object| {
        let namespace = object.namespace().unwrap_or_default();
        vec![ObjectKey::new(namespace, &*object.view.spec.machine_ref.uid)]
    },
};

/// What is kept of a provider's object.
#[derive(Clone, Debug)]
pub(crate) struct ProviderRecord {
    metadata: ObjectMeta,
    view: Arc<ProviderObject>,
}

impl<'de> Deserialize<'de> for ProviderRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Whole {
            metadata: ObjectMeta,
            spec: ProviderSpec,
            #[serde(default)]
            status: ProviderStatus,
        }
        let Whole { metadata, spec, status } = Whole::deserialize(deserializer)?;
        let annotation = |key| metadata.annotations.as_ref().and_then(|all| all.get(key));
        let claim = annotation(keys::RETURNED_CLAIM).and_then(|text| text.parse::<i64>().ok());
        let owner = controller_of(metadata.owner_references.as_deref().unwrap_or_default());
        let view = ProviderObject {
            name: metadata.name.clone().unwrap_or_default(),
            updater: annotation(keys::UPDATER).cloned().unwrap_or_default(),
            node_update: owner.map(|owner| owner.name.clone()).unwrap_or_default(),
            plan_id: PlanId::of(&ObjectMeta {
                uid: owner.map(|owner| owner.uid.clone()),
                ..ObjectMeta::default()
            }),
            returned_claim: claim.unwrap_or_default().into(),
            generation: metadata.generation.unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            is_deleting: metadata.deletion_timestamp.is_some(),
            spec,
            status,
        };
        Ok(Self { metadata, view: Arc::new(view) })
    }
}

impl Resource for ProviderRecord {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        of.kind.as_str().into()
    }

    fn group(of: &ApiResource) -> Cow<'_, str> {
        of.group.as_str().into()
    }

    fn version(of: &ApiResource) -> Cow<'_, str> {
        of.version.as_str().into()
    }

    fn plural(of: &ApiResource) -> Cow<'_, str> {
        of.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl WatchedKinds {
    /// The cache of a kind. The first call begins its watch.
    fn of(&self, template: &UpdaterTemplate) -> Watched {
        let kind = (template.api_version.clone(), template.made_kind().to_owned());
        let mut kinds = lock(&self.kinds);
        if let Some(watched) = kinds.get(&kind) {
            return watched.clone();
        }
        let store = Store::indexed(&[BY_MACHINE_UID]);
        let watched = Watched { store, trouble: Arc::default(), resource: Arc::default() };
        kinds.insert(kind, watched.clone());
        self.added.notify_one();
        watched
    }

    /// The objects for the Machine of an update, of all kinds that it names, or another one that may have
    /// left work behind.
    pub(crate) fn of_machine(
        &self,
        update: &NodeUpdate,
        siblings: &[Arc<NodeUpdate>],
    ) -> Providers {
        let by_template = by_template(update, siblings);
        let is_own = |template: &UpdaterTemplate| {
            let mut own = update.spec.provider_parts().filter_map(|part| part.template.as_ref());
            own.any(|part| {
                let own = &part.template;
                (&own.api_version, own.made_kind()) == (&template.api_version, template.made_kind())
            })
        };
        let namespace = update.metadata.namespace.as_deref().unwrap_or_default();
        let machine = ObjectKey::new(namespace, &*update.spec.machine_ref.uid);
        let (mut objects, mut seen) = (Vec::new(), Vec::new());
        for (template, part) in by_template {
            let kind = (&template.api_version, template.made_kind());
            if seen.contains(&kind) {
                continue;
            }
            seen.push(kind);
            let watched = self.of(template);
            let refused = |why: String| {
                Providers::Unusable(Refusal::UpdaterUnusable { updater: part.updater.clone(), why })
            };
            match lock(&watched.trouble).clone() {
                // What the API server does not serve any more, no one works for.
                Some(Trouble::NotServed(_)) if !is_own(template) => continue,
                Some(Trouble::NotServed(why) | Trouble::NotReadable(why)) => return refused(why),
                None => {}
            }
            if !watched.store.is_ready() {
                return Providers::NotSynced;
            }
            let unreadable = watched.store.unreadable();
            let update_name = update.metadata.name.as_deref().unwrap_or_default();
            for own in update.spec.provider_parts() {
                let key =
                    ObjectKey::new(namespace, provider_object_name(update_name, &own.updater));
                if let Some(why) = unreadable.get(&key) {
                    return refused(format!(
                        "its object {key} does not follow the contract: {why}"
                    ));
                }
            }
            let found = watched.store.listed(&BY_MACHINE_UID, &machine);
            objects.extend(found.iter().map(|object| object.view.clone()));
        }
        Providers::Known(objects)
    }

    /// Brings the caches up to the present with the objects for the Machine of an update.
    pub(crate) async fn read(
        &self,
        client: &Client,
        update: &NodeUpdate,
        siblings: &[Arc<NodeUpdate>],
    ) -> kube::Result<()> {
        let namespace = update.metadata.namespace.as_deref().unwrap_or_default();
        let machine = &update.spec.machine_ref.name;
        let labels = format!("{}={machine}", keys::MACHINE_NAME);
        let mut seen = Vec::new();
        for template in by_template(update, siblings).into_keys() {
            let kind = (&template.api_version, template.made_kind());
            let watched = self.of(template);
            let resource = lock(&watched.resource).clone();
            let Some(resource) = resource.filter(|_| watched.store.is_ready()) else { continue };
            if seen.contains(&kind) {
                continue;
            }
            seen.push(kind);
            let api = Api::namespaced_with(client.clone(), namespace, &resource);
            let covers = |object: &ProviderRecord| {
                object.metadata.namespace.as_deref() == Some(namespace)
                    && object.labels().get(keys::MACHINE_NAME) == Some(machine)
            };
            // What cannot be read is a refusal of its own.
            store::read_now_of(api, &resource, &labels, None, &watched.store, covers).await?;
        }
        Ok(())
    }
}

/// The templates of the kinds of which an update, or an older one of its Machine, may have objects.
fn by_template<'a>(
    update: &'a NodeUpdate,
    siblings: &'a [Arc<NodeUpdate>],
) -> BTreeMap<&'a UpdaterTemplate, &'a UpdatePart> {
    let left = siblings.iter().map(AsRef::as_ref);
    let left = left.filter(|sibling| phase_of(sibling) != Phase::Succeeded);
    let parts = left.chain([update]).flat_map(|update| update.spec.provider_parts());
    parts.filter_map(|part| Some((&part.template.as_ref()?.template, part))).collect()
}

/// Watches every kind that an update needs, until the future is dropped.
pub(crate) async fn run(ctx: &Context) {
    let mut begun = Vec::new();
    let mut watches = FuturesUnordered::new();
    loop {
        let new: Vec<(Kind, Watched)> = {
            let kinds = lock(&ctx.providers.kinds);
            let new = kinds.iter().filter(|(kind, _)| !begun.contains(*kind));
            new.map(|(kind, watched)| (kind.clone(), watched.clone())).collect()
        };
        for (kind, watched) in new {
            begun.push(kind.clone());
            watches.push(watch(ctx, kind, watched));
        }
        tokio::select! {
            () = ctx.providers.added.notified() => {}
            Some(()) = watches.next() => {}
        }
    }
}

/// Watches one kind. How the API server serves it is asked again after each failure.
async fn watch(ctx: &Context, (api_version, kind): Kind, watched: Watched) {
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let gvk = GroupVersionKind::gvk(group, version, &kind);
    loop {
        let note = |trouble: Trouble| {
            let shown = |why: String| format!("{kind} of {api_version} cannot be watched: {why}");
            *lock(&watched.trouble) = Some(match trouble {
                Trouble::NotServed(why) => Trouble::NotServed(shown(why)),
                Trouble::NotReadable(why) => Trouble::NotReadable(shown(why)),
            });
        };
        let served = kube::discovery::pinned_kind(&ctx.client, &gvk).await;
        let (resource, capabilities) = match served {
            Ok(found) => found,
            Err(error) => {
                note(Trouble::of(&error));
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let checked = if capabilities.scope == kube::discovery::Scope::Namespaced {
            follows_contract(ctx, &resource).await
        } else {
            Err("its objects have no namespace".to_owned())
        };
        if let Err(why) = checked {
            note(Trouble::NotReadable(why));
            tokio::time::sleep(RETRY).await;
            continue;
        }
        let changed = |change: &store::Change<ProviderRecord>| {
            let object = change.object();
            let namespace = object.namespace().unwrap_or_default();
            let of = |name: &str| ObjectKey::new(&namespace, name);
            ctx.queues.node_updates.add(of(&object.view.node_update));
            wake_machine(ctx, &of(&object.view.spec.machine_ref.name));
        };
        let mut failures = 0;
        let broken = |broken: store::Broken<'_>| {
            if let store::Broken::Watch(error) = broken
                && let Some(trouble) = refusal_of(error)
            {
                note(trouble);
                return ControlFlow::Break(());
            }
            if let store::Broken::Watch(error) = broken
                && !watched.store.is_ready()
            {
                failures += 1;
                if failures >= SHOWN_FAILURES {
                    note(Trouble::NotReadable(error.to_string()));
                }
            }
            ControlFlow::Continue(RETRY)
        };
        *lock(&watched.resource) = Some(resource.clone());
        let api: Api<ProviderRecord> = Api::all_with(ctx.client.clone(), &resource);
        // What the cache holds may be older than what went wrong.
        watched.store.expect_list();
        let (everything, cache) = (store::everything(), watched.store.clone());
        let followed = store::follow(api, &resource, everything, None, cache, changed, broken);
        tokio::select! {
            () = followed => {}
            () = async {
                watched.store.ready().await;
                *lock(&watched.trouble) = None;
                std::future::pending::<()>().await;
            } => {}
        }
        tokio::time::sleep(RETRY).await;
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

/// What became of an order.
pub(crate) enum Ordered {
    /// It is written.
    Written,
    /// It cannot be written, because of an object that an operator has to delete.
    InTheWay(Refusal),
}

/// Writes an order into the object of a provider; the first order makes the object.
pub(crate) async fn order(
    ctx: &Context,
    update: &NodeUpdate,
    known: &Providers,
    order: &ProviderOrder,
) -> kube::Result<Ordered> {
    let mut parts = update.spec.provider_parts();
    let part =
        parts.find(|part| part.updater == order.updater).and_then(|part| part.template.as_ref());
    let Some(template) = part.map(|part| &part.template) else {
        return Ok(Ordered::Written);
    };
    let plan_id = PlanId::of(&update.metadata);
    let own = match known {
        Providers::Known(objects) => objects
            .iter()
            .find(|object| object.updater == order.updater && object.plan_id == plan_id),
        Providers::NotSynced | Providers::Unusable(_) => return Ok(Ordered::Written),
    };
    if let Some(own) = own {
        let mut body = spec_patch(own, &order.spec);
        if order.returned_claim != own.returned_claim {
            let claim = json!(order.returned_claim).to_string();
            body["metadata"]["annotations"] = json!({ keys::RETURNED_CLAIM: claim });
        }
        return patch(ctx, update, template, &own.name, &body).await.map(|()| Ordered::Written);
    }
    let found = ctx.foreign.read(&ctx.client, &template_of(update, template)).await?;
    let made = provider_object(update, template, &found, order);
    let made: DynamicObject = serde_json::from_value(made).map_err(kube::Error::SerdeError)?;
    let api = ctx.foreign.api(&ctx.client, &foreign(update, template, "")).await?;
    let (found, _) = apply::create_or_get(&api, &made).await?;
    let owner = controller_of(found.owner_references()).map(|owner| owner.uid.clone());
    if owner != update.metadata.uid {
        let why = format!(
            "object {} has the name of the one that this update needs, and does not belong to it: delete it \
             unless its own NodeUpdate is under way",
            found.name_any()
        );
        let updater = order.updater.clone();
        return Ok(Ordered::InTheWay(Refusal::UpdaterUnusable { updater, why }));
    }
    remember(ctx, template, found);
    Ok(Ordered::Written)
}

/// Writes the spec of a provider's object of another NodeUpdate of the same Machine.
pub(crate) async fn order_older(
    ctx: &Context,
    look: (&NodeUpdate, &[Arc<NodeUpdate>]),
    known: &Providers,
    name: &str,
    spec: &ProviderSpec,
) -> kube::Result<Ordered> {
    let (update, siblings) = look;
    let Providers::Known(objects) = known else {
        return Ok(Ordered::Written);
    };
    let Some(object) = objects.iter().find(|object| object.name == name) else {
        return Ok(Ordered::Written);
    };
    let updates = [update].into_iter().chain(siblings.iter().map(AsRef::as_ref));
    let mut parts = updates.flat_map(|update| update.spec.provider_parts());
    let part = parts.find(|part| part.updater == object.updater);
    let Some(part) = part.and_then(|part| part.template.as_ref()) else {
        let why = format!(
            "object {name} is for the same Machine, has not ended, and belongs to no known NodeUpdate: delete it"
        );
        let updater = object.updater.clone();
        return Ok(Ordered::InTheWay(Refusal::UpdaterUnusable { updater, why }));
    };
    let body = spec_patch(object, spec);
    patch(ctx, update, &part.template, name, &body).await.map(|()| Ordered::Written)
}

/// The change of an object's spec, only if the object is still as it was read.
fn spec_patch(object: &ProviderObject, spec: &ProviderSpec) -> Value {
    json!({
        "metadata": { "resourceVersion": object.resource_version },
        "spec": { "stage": spec.stage, "gate": spec.gate },
    })
}

async fn patch(
    ctx: &Context,
    update: &NodeUpdate,
    template: &UpdaterTemplate,
    name: &str,
    body: &Value,
) -> kube::Result<()> {
    let api = ctx.foreign.api(&ctx.client, &foreign(update, template, name)).await?;
    let written = apply::merge(&api, name, body).await?;
    remember(ctx, template, written);
    Ok(())
}

/// Keeps what was written in the cache, before the watch delivers it.
fn remember(ctx: &Context, template: &UpdaterTemplate, written: DynamicObject) {
    let read = serde_json::to_value(written).and_then(serde_json::from_value::<ProviderRecord>);
    if let Ok(record) = read {
        ctx.providers.of(template).store.insert(record);
    }
}

fn foreign(update: &NodeUpdate, template: &UpdaterTemplate, name: &str) -> ForeignObject {
    let (group, version) =
        template.api_version.split_once('/').unwrap_or(("", &template.api_version));
    ForeignObject {
        group: group.to_owned(),
        version: Some(version.to_owned()),
        kind: template.made_kind().to_owned(),
        namespace: update.metadata.namespace.clone().unwrap_or_default(),
        name: name.to_owned(),
    }
}

/// The template of a provider, as an object.
pub(crate) fn template_of(update: &NodeUpdate, template: &UpdaterTemplate) -> ForeignObject {
    ForeignObject { kind: template.kind.clone(), ..foreign(update, template, &template.name) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
