//! Safety invariants, checked after every write, with the writer that broke them.
//!
//! The rules are in `refit_core::invariants`. This module feeds them every committed write of every
//! API server of a world.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, Weak},
};

use jiff::Timestamp;
use lab_apiserver::{ApiServer, ChangeKind, Resource, StoreEvent};
use refit_cluster_api::kinds;
use refit_core::invariants;
use refit_kinds::refit;
use serde_json::Value;

use crate::{
    holds,
    world::{Inner, World, lock},
};

/// Maximum number of violations kept: one that repeats with every write adds no information.
const MOST: usize = 100;

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When the violation was found.
    pub at: Timestamp,
    /// User agent of the write that caused it; empty for a violation found at rest.
    pub user_agent: String,
    /// The broken invariant.
    pub what: invariants::Violation,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, user_agent, what } = self;
        if user_agent.is_empty() {
            write!(f, "{at} at rest: {what}")
        } else {
            write!(f, "{at} {user_agent}: {what}")
        }
    }
}

/// Objects of one API server, by resource, namespace and name.
pub(crate) type Objects = BTreeMap<(String, String, String), Value>;

#[derive(Default)]
struct State {
    world: invariants::World,
    found: Vec<Violation>,
}

/// Checks every write of a world.
#[derive(Clone, Default)]
pub(crate) struct Checker {
    state: Arc<Mutex<State>>,
}

impl Checker {
    pub(crate) fn violations(&self) -> Vec<Violation> {
        lock(&self.state).found.clone()
    }

    /// Notes that critical alerts fire from now on, or not any more.
    pub(crate) fn set_firing(&self, since: Option<Timestamp>) {
        lock(&self.state).world.set_firing(since);
    }

    /// Checks every write to the management cluster from now on.
    pub(crate) fn start(&self, inner: &Arc<Inner>) {
        self.follow(None, &inner.management, Arc::downgrade(inner));
    }

    /// Checks every write to a workload cluster from now on.
    pub(crate) fn follow_workload(&self, cluster: &str, server: &ApiServer) {
        self.follow(Some(cluster.to_owned()), server, Weak::new());
    }

    fn follow(&self, cluster: Option<String>, server: &ApiServer, world: Weak<Inner>) {
        let mut objects = Objects::new();
        for (resource, value) in server.dump() {
            if !matters(&resource) {
                continue;
            }
            let text = |pointer| {
                let text = value.pointer(pointer).and_then(Value::as_str);
                text.unwrap_or_default().to_owned()
            };
            let key =
                (resource.id.to_string(), text("/metadata/namespace"), text("/metadata/name"));
            // Existing objects were checked when they were written, or no component of Refit wrote
            // them.
            lock(&self.state).world.observe(
                &resource.group,
                &resource.kind,
                cluster.as_deref(),
                None,
                Some(&value),
                "",
            );
            objects.insert(key, value);
        }
        let state = self.state.clone();
        server.observe(Box::new(move |event| {
            if matters(event.resource) {
                judge(&state, cluster.as_deref(), &mut objects, event, &world);
            }
        }));
    }

    /// Checks a world in which nothing changes any more.
    fn at_rest(&self, now: Timestamp) {
        let mut state = lock(&self.state);
        let found = state.world.at_rest(now);
        state.found.extend(found.into_iter().map(|what| Violation {
            at: now,
            user_agent: String::new(),
            what,
        }));
    }
}

impl World {
    /// Lets an alert fire with these labels, or end.
    pub(crate) fn set_alert(&self, name: &str, labels: Option<BTreeMap<String, String>>) {
        let since = self.inner.prometheus.set_alert(name, labels, self.now());
        self.inner.checker.set_firing(since);
    }

    /// The violations found so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.inner.checker.violations()
    }

    /// The violations found so far, and those of a world in which nothing changes any more.
    pub fn violations_at_rest(&self) -> Vec<Violation> {
        self.inner.checker.at_rest(self.now());
        self.violations()
    }
}

fn judge(
    state: &Mutex<State>,
    cluster: Option<&str>,
    objects: &mut Objects,
    event: &StoreEvent<'_>,
    world: &Weak<Inner>,
) {
    let key = (event.resource.id.to_string(), event.namespace.to_owned(), event.name.to_owned());
    let old = objects.remove(&key);
    let new = (event.kind != ChangeKind::Deleted)
        .then(|| serde_json::from_slice::<Value>(event.new).unwrap_or_default());
    let actor = actor(event.user_agent);
    let is_of_machine = cluster.is_none() && &*event.resource.kind == "Machine";
    let replaced = (is_of_machine && actor == "capi")
        .then(|| {
            let is_led = || world.upgrade().is_some_and(|world| world.is_led(event.now));
            holds::replaces(objects, old.as_ref(), new.as_ref(), event.now, is_led)
        })
        .flatten();
    let mut state = lock(state);
    let mut broken = state.world.observe(
        &event.resource.group,
        &event.resource.kind,
        cluster,
        old.as_ref(),
        new.as_ref(),
        &actor,
    );
    broken.extend(replaced.map(|message| invariants::Violation {
        invariant: invariants::Invariant::NoReplacement,
        object: format!("Machine {}", event.name),
        message,
    }));
    for what in broken {
        if state.found.len() < MOST {
            state.found.push(Violation {
                at: event.now,
                user_agent: event.user_agent.to_owned(),
                what,
            });
        }
    }
    drop(state);
    if let Some(new) = new {
        objects.insert(key, new);
    }
}

/// Whether an invariant covers objects of this kind.
fn matters(resource: &Resource) -> bool {
    let kind: &str = &resource.kind;
    match &*resource.group {
        "" => matches!(kind, "Namespace" | "Node" | "Pod"),
        kinds::CORE_GROUP => {
            matches!(kind, "Cluster" | "Machine" | "MachineSet" | "MachineDeployment")
        }
        kinds::CONTROL_PLANE_GROUP | refit::GROUP => true,
        // The objects of providers: kinds that neither Kubernetes nor Cluster API has.
        group => group.contains('.') && !group.ends_with("k8s.io"),
    }
}

/// The process that uses a user agent.
fn actor(user_agent: &str) -> String {
    let (process, rest) = user_agent.split_once('/').unwrap_or((user_agent, ""));
    match process {
        "refit-controller" => "controller".to_owned(),
        "refit-capi" => "capi".to_owned(),
        "refit-agent" => {
            let node = rest.trim_end_matches(')').rsplit('/').next();
            format!("agent/{}", node.unwrap_or_default())
        }
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Actor;

    #[test]
    fn user_agents_lead_back_to_their_processes() {
        let node = Actor::Agent("default/edge-1/edge-1-md-0-x".into());
        for process in [Actor::Controller, Actor::Capi, node] {
            assert_eq!(actor(&process.user_agent(7)), process.to_string());
        }
        assert_eq!(actor("sandbox-env"), "sandbox-env");
    }
}
