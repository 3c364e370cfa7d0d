//! The objects of providers: kinds that Updaters name, and that are known at run time only.

mod order;
mod record;
mod watch;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube::{Api, Client, ResourceExt as _, api::ApiResource};
use refit_core::{
    node::{Providers, may_be_at_work, provider_object_name},
    report::Refusal,
};
use refit_kinds::{
    keys,
    refit::{MachineUid, NodeUpdate, Phase, UpdatePart, Updater, UpdaterTemplate},
};
use refit_runtime::{ObjectKey, Store, apply, store};
use tokio::sync::Notify;

use self::record::{BY_MACHINE_UID, ProviderRecord};
pub(crate) use self::{
    order::{Ordered, order, order_older, template_of},
    watch::{each_kind, run},
};
use crate::api_error::cause;

/// Names a kind: its API version, or group, and its name.
pub(crate) type Kind = (String, String);

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
            // An older one may be at work as well.
            let older = siblings.iter().map(AsRef::as_ref);
            let older = older.filter(|sibling| sibling.phase() != Phase::Succeeded);
            let updates = older.chain([update]);
            let names = updates.flat_map(|update| {
                let name = update.metadata.name.as_deref().unwrap_or_default();
                let parts = update.spec.provider_parts();
                parts.map(move |part| provider_object_name(name, &part.updater))
            });
            for name in names {
                let key = ObjectKey::new(namespace, name);
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
        let machine = ObjectKey::new(namespace, &update.spec.machine_ref.name);
        let mut seen = Vec::new();
        for template in by_template(update, siblings).into_keys() {
            let kind = (&template.api_version, template.made_kind());
            if !seen.contains(&kind) {
                seen.push(kind);
                self.of(template).read(client, &machine).await?;
            }
        }
        Ok(())
    }

    /// Whether a provider may be at work on a Machine, for whatever update, by a live read. The providers are
    /// those of these Updaters, and those that are watched already.
    pub(crate) async fn may_be_at_work(
        &self,
        client: &Client,
        updaters: &[Arc<Updater>],
        machine: &ObjectKey,
        machine_uid: &MachineUid,
    ) -> kube::Result<bool> {
        for template in updaters.iter().filter_map(|updater| updater.spec.template.as_ref()) {
            self.of(template);
        }
        let all: Vec<Watched> = lock(&self.kinds).values().cloned().collect();
        for watched in all {
            match lock(&watched.trouble).clone() {
                Some(Trouble::NotServed(_)) => continue,
                Some(Trouble::NotReadable(_)) => return Ok(true),
                None => {}
            }
            let unreadable = watched.store.unreadable();
            let may_be_own = unreadable.keys().any(|key| key.namespace == machine.namespace);
            if !watched.store.is_ready() || may_be_own {
                return Ok(true);
            }
            watched.read(client, machine).await?;
            let of_machine = ObjectKey::new(&machine.namespace, &**machine_uid);
            let found = watched.store.listed(&BY_MACHINE_UID, &of_machine);
            if found.iter().any(|object| may_be_at_work(&object.view)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Watched {
    /// Brings the cache up to the present with the objects for a Machine.
    async fn read(&self, client: &Client, machine: &ObjectKey) -> kube::Result<()> {
        let resource = lock(&self.resource).clone();
        let is_refused = lock(&self.trouble).is_some();
        let Some(resource) = resource.filter(|_| self.store.is_ready() && !is_refused) else {
            return Ok(());
        };
        let ObjectKey { namespace, name } = machine;
        let labels = format!("{}={name}", keys::MACHINE_NAME);
        let api = Api::namespaced_with(client.clone(), namespace, &resource);
        let covers = |object: &ProviderRecord| {
            object.metadata.namespace.as_ref() == Some(namespace)
                && object.labels().get(keys::MACHINE_NAME) == Some(name)
        };
        // What cannot be read is a refusal of its own.
        let read = store::read_now_of(api, &resource, &labels, None, &self.store, covers);
        // The watch finds out that a kind is not served any more.
        apply::optional(read.await).map(drop)
    }
}

/// The templates of the kinds of which an update, or an older one of its Machine, may have objects.
fn by_template<'a>(
    update: &'a NodeUpdate,
    siblings: &'a [Arc<NodeUpdate>],
) -> BTreeMap<&'a UpdaterTemplate, &'a UpdatePart> {
    let left = siblings.iter().map(AsRef::as_ref);
    let left = left.filter(|sibling| sibling.phase() != Phase::Succeeded);
    let parts = left.chain([update]).flat_map(|update| update.spec.provider_parts());
    parts.filter_map(|part| Some((&part.template.as_ref()?.template, part))).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
