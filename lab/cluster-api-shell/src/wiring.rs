//! Which change triggers which controller.

use std::sync::{Arc, atomic::Ordering};

use k8s_openapi::api::core::v1::Secret;
use kube::{ResourceExt as _, discovery::ApiResource};
use refit_cluster_api::kinds::{
    Cluster, ExtensionConfig, KubeadmControlPlane, Machine, MachineDeployment, MachineHealthCheck,
    MachineSet,
};
use refit_kinds::keys;
use refit_runtime::{ObjectKey, store::everything};

use crate::{
    cache::{Cache, Change},
    context::{Context, Task, controller_of, lock, namespace_of},
    health_check,
    live::{Bare, Live, Typed},
};

/// The watches that run from the start, one per kind.
pub(crate) fn watches(context: &Arc<Context>) -> Vec<Task> {
    vec![
        whole(context, &context.clusters, cluster_changed),
        whole(context, &context.deployments, deployment_changed),
        whole(context, &context.sets, set_changed),
        whole(context, &context.machines, machine_changed),
        whole(context, &context.control_planes, control_plane_changed),
        whole(context, &context.extensions, extension_changed),
        whole(context, &context.health_checks, health_check_changed),
        whole(context, &context.namespaces, |_, _| {}),
    ]
}

/// Starts the watch of a provider's kind.
pub(crate) fn watch_provider(context: &Arc<Context>, cache: &Cache<Bare>) {
    context.spawn(whole(context, cache, provided_changed));
}

/// Watches the Secret with the CA bundle of an ExtensionConfig.
pub(crate) fn watch_ca_secret(context: &Arc<Context>, secret: &ObjectKey) {
    let mut watched = lock(&context.ca_secrets);
    if watched.contains_key(secret) {
        return;
    }
    let cache: Cache<Secret> = Cache::new(ApiResource::erase::<Secret>(&()));
    watched.insert(secret.clone(), cache.clone());
    let config = everything().fields(&format!("metadata.name={}", secret.name));
    let api = cache.api(&context.client, &secret.namespace);
    let context_of_watch = context.clone();
    context.spawn(async move {
        let context = context_of_watch;
        cache.follow(api, config, || true, |_| enqueue_extensions(&context)).await;
    });
}

fn whole<K: Typed>(
    context: &Arc<Context>,
    cache: &Cache<K>,
    changed: fn(&Context, &Change<K>),
) -> Task {
    let context = context.clone();
    let cache = cache.clone();
    Box::pin(async move {
        loop {
            let api = cache.api(&context.client, "");
            let changed = |change: &Change<K>| changed(&context, change);
            // Rejected credentials may become valid again, for example after a cluster-wide token
            // rotation.
            cache.follow(api, everything(), || true, changed).await;
            tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        }
    })
}

fn enqueue_extensions(context: &Context) {
    for extension in context.extensions.list() {
        let key = ObjectKey::of(extension.as_ref());
        context.queues.extensions.add(key);
    }
}

fn cluster_changed(context: &Context, change: &Change<Cluster>) {
    let cluster = change.object();
    let (namespace, name) = (namespace_of(cluster), cluster.name_any());
    for deployment in context.deployments.list_in(&namespace) {
        if deployment.spec.cluster_name == name {
            let key = ObjectKey::of(deployment.as_ref());
            context.queues.deployments.add(key);
        }
    }
    for set in context.sets.list_in(&namespace) {
        if set.spec.cluster_name == name {
            context.queues.sets.add(ObjectKey::of(set.as_ref()));
        }
    }
    for machine in context.machines.list_in(&namespace) {
        if machine.spec.cluster_name == name {
            let key = ObjectKey::of(machine.as_ref());
            context.queues.machines.add(key);
        }
    }
    enqueue_checks(context, &namespace, |check| check.spec.cluster_name == name);
    if let Some(reference) = &cluster.spec.control_plane_ref {
        let key = ObjectKey::new(namespace, &reference.name);
        context.queues.control_planes.add(key);
    }
}

fn health_check_changed(context: &Context, change: &Change<MachineHealthCheck>) {
    let key = ObjectKey::of(change.object());
    context.queues.health_checks.add(key);
}

/// Enqueues the MachineHealthChecks of a namespace for which `concerned` returns true.
pub(crate) fn enqueue_checks(
    context: &Context,
    namespace: &str,
    concerned: impl Fn(&Live<MachineHealthCheck>) -> bool,
) {
    for check in context.health_checks.list_in(namespace) {
        if concerned(&check) {
            let key = ObjectKey::of(check.as_ref());
            context.queues.health_checks.add(key);
        }
    }
}

/// Whether the spec changed, or the object was added or deleted.
fn spec_changed<K: Typed>(change: &Change<K>) -> bool {
    match (&change.before, &change.now) {
        (Some(before), Some(now)) => before.metadata().generation != now.metadata().generation,
        _ => true,
    }
}

fn deployment_changed(context: &Context, change: &Change<MachineDeployment>) {
    let deployment = change.object();
    let key = ObjectKey::of(deployment);
    if spec_changed(change) {
        // Whether a Machine is up to date depends on its MachineDeployment's template.
        for machine in context.machines.list_in(&key.namespace) {
            if machine.labels().get(keys::DEPLOYMENT_NAME) == Some(&key.name) {
                let key = ObjectKey::of(machine.as_ref());
                context.queues.machines.add(key);
            }
        }
    }
    let revision =
        |object: &Live<MachineDeployment>| object.annotations().get(keys::REVISION).cloned();
    let before = change.before.as_ref().and_then(|before| revision(before));
    if before != change.now.as_ref().and_then(|now| revision(now)) {
        // Only a MachineSet of its revision remediates.
        for set in context.sets.list_in(&key.namespace) {
            if controller_of(set.as_ref()) == Some(("MachineDeployment", &key.name)) {
                context.queues.sets.add(ObjectKey::of(set.as_ref()));
            }
        }
    }
    context.queues.deployments.add(key);
}

fn set_changed(context: &Context, change: &Change<MachineSet>) {
    let set = change.object();
    context.queues.sets.add(ObjectKey::of(set));
    if let Some(("MachineDeployment", name)) = controller_of(set) {
        let key = ObjectKey::new(namespace_of(set), name);
        context.queues.deployments.add(key);
    }
}

fn machine_changed(context: &Context, change: &Change<Machine>) {
    for machine in change.before.iter().chain(&change.now) {
        enqueue_owner(context, machine);
    }
    let machine = change.object();
    if let Some(deployment) = machine.labels().get(keys::DEPLOYMENT_NAME) {
        let key = ObjectKey::new(namespace_of(machine), deployment);
        context.queues.deployments.add(key);
    }
    for machine in change.before.iter().chain(&change.now) {
        enqueue_checks(context, &namespace_of(machine), |check| {
            health_check::concerns(check, machine)
        });
    }
    context.queues.machines.add(ObjectKey::of(machine));
}

fn enqueue_owner(context: &Context, machine: &Live<Machine>) {
    let namespace = namespace_of(machine);
    match controller_of(machine) {
        Some(("MachineSet", name)) => context.queues.sets.add(ObjectKey::new(namespace, name)),
        Some(("KubeadmControlPlane", name)) => {
            let key = ObjectKey::new(namespace, name);
            context.queues.control_planes.add(key);
        }
        Some(_) => {}
        // Any MachineSet may adopt it.
        None => {
            for set in context.sets.list_in(&namespace) {
                context.queues.sets.add(ObjectKey::of(set.as_ref()));
            }
        }
    }
}

fn control_plane_changed(context: &Context, change: &Change<KubeadmControlPlane>) {
    let control_plane = change.object();
    let key = ObjectKey::of(control_plane);
    let version = |object: &Live<KubeadmControlPlane>| object.at("/status/version").clone();
    let moved = match (&change.before, &change.now) {
        (Some(before), Some(now)) => version(before) != version(now),
        _ => true,
    };
    if moved || spec_changed(change) {
        // New workers wait for a control plane that is stable and new enough.
        for set in context.sets.list_in(&key.namespace) {
            context.queues.sets.add(ObjectKey::of(set.as_ref()));
        }
    }
    context.queues.control_planes.add(key);
}

fn extension_changed(context: &Context, change: &Change<ExtensionConfig>) {
    let extension = change.object();
    let key = ObjectKey::of(extension);
    context.queues.extensions.add(key);
    // Objects that wait for a discovery may continue.
    for deployment in context.deployments.list() {
        let key = ObjectKey::of(deployment.as_ref());
        context.queues.deployments.add(key);
    }
    for control_plane in context.control_planes.list() {
        let key = ObjectKey::of(control_plane.as_ref());
        context.queues.control_planes.add(key);
    }
}

fn provided_changed(context: &Context, change: &Change<Bare>) {
    context.provided_changes.fetch_add(1, Ordering::Relaxed);
    let object = change.object();
    if let Some(("Machine", name)) = controller_of(object) {
        let key = ObjectKey::new(namespace_of(object), name);
        if let Some(machine) = context.machines.get(&key) {
            enqueue_owner(context, &machine);
        }
        context.queues.machines.add(key);
    }
}
