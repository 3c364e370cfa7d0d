//! Violations of a single write.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::{
    json::{name, text},
    keys,
    refit::Gate,
    version::StatedVersion,
};
use serde_json::Value;

use super::{
    Invariant, Violation,
    objects::{self, Machine, Node, Owner, Plan, Policy, StaticPod, Update},
    provider::is_of_provider,
    state::{Key, World},
    windows,
};

pub(super) const CONTROLLER: &str = "controller";
const CAPI: &str = "capi";

fn is_user(actor: &str) -> bool {
    ![CONTROLLER, CAPI].contains(&actor)
}

impl World {
    /// Records one write and returns its violations.
    ///
    /// `cluster` is the workload cluster of the object, or `None` for the management cluster; `old`
    /// is the object before the write and `new` after it, `None` if the object does not exist.
    /// Kinds that no invariant uses are ignored.
    pub fn observe(
        &mut self,
        group: &str,
        kind: &str,
        cluster: Option<&str>,
        old: Option<&Value>,
        new: Option<&Value>,
        actor: &str,
    ) -> Vec<Violation> {
        let Some(object) = new.or(old) else {
            return Vec::new();
        };
        let name = name(object);
        let namespace = text(object, "/metadata/namespace");
        let key = (namespace.to_owned(), name.to_owned());
        let Some(cluster) = cluster else {
            return self.in_management(group, kind, &key, old, new, actor);
        };
        let cluster = cluster.rsplit('/').next().unwrap_or(cluster);
        let in_cluster = (cluster.to_owned(), name.to_owned());
        match (group, kind) {
            ("", "Node") => self.node(in_cluster, new, actor),
            ("", "Pod") => self.pod(cluster, &key, old, new, actor),
            ("refit.dev", "HostPlan") => self.plan(in_cluster, new, actor),
            _ => Vec::new(),
        }
    }

    fn in_management(
        &mut self,
        group: &str,
        kind: &str,
        key: &Key,
        old: Option<&Value>,
        new: Option<&Value>,
        actor: &str,
    ) -> Vec<Violation> {
        match (group, kind) {
            ("cluster.x-k8s.io", "Machine") => return self.machine(key, new, actor),
            ("refit.dev", "NodeUpdate") => return self.update(key, new, actor),
            ("refit.dev", "ClusterUpgrade") => return self.cluster_upgrade(key, new, actor),
            ("refit.dev", "ClusterUpgradePlan") => self.fleet_plan(&key.1, new),
            ("refit.dev", "UpdateGroup") => {
                let found = new.filter(|_| actor == CONTROLLER);
                let found = found.map(|new| self.begins_too_early(key, new)).unwrap_or_default();
                let slots = new.map(objects::slots).unwrap_or_default();
                self.slots.insert(key.clone(), slots);
                return found;
            }
            ("cluster.x-k8s.io", "Cluster") => {
                let deleting = new.is_none_or(|new| objects::deleted_at(new).is_some());
                self.clusters_deleting.insert(key.clone(), deleting);
                let policy = new.or(old).map(Policy::of).unwrap_or_default();
                self.clusters.insert(key.clone(), policy);
            }
            ("cluster.x-k8s.io", "MachineSet" | "MachineDeployment")
            | ("controlplane.cluster.x-k8s.io", _) => {
                let key = (key.0.clone(), kind.to_owned(), key.1.clone());
                self.owner_changed(key, new.map(|new| Owner::of(kind, new)), is_user(actor));
            }
            _ if is_of_provider(new.or(old)) => return self.provider(kind, key, new, actor),
            _ => {}
        }
        Vec::new()
    }

    /// Whether a group has a gate for critical alerts, and one of those fired for longer than a check may take.
    fn has_alert_closed(&self, group: &Value, at: Timestamp) -> bool {
        let gates = group.pointer("/spec/pacing/gates").and_then(Value::as_array);
        let is_closed = |gate: &Value| {
            gate.pointer("/alerts/labels") == Some(&serde_json::json!({"severity": "critical"}))
                && gate.pointer("/alerts/ignored").is_none()
        };
        let is_old = |since: &Timestamp| at.duration_since(*since) > SignedDuration::from_mins(1);
        gates.into_iter().flatten().any(is_closed) && self.firing_since.as_ref().is_some_and(is_old)
    }

    /// Violations of new slots in a group.
    fn begins_too_early(&self, key: &Key, group: &Value) -> Vec<Violation> {
        let known = self.slots.get(key);
        let holds = |uid: &str| known.is_some_and(|slots| slots.iter().any(|(_, one)| one == uid));
        let new = windows::slots(group).into_iter().filter(|(uid, _)| !holds(uid));
        let of_available = new.filter(|(uid, _)| {
            let machine = self.machines.values().find(|machine| machine.uid == *uid);
            machine.is_some_and(|machine| self.is_available(machine))
        });
        let wrong = of_available.filter_map(|(uid, since)| {
            let (invariant, why) = if !windows::may_begin(group, since) {
                (Invariant::InWindow, "no window is open")
            } else if self.has_alert_closed(group, since) {
                (Invariant::GateOpen, "an alert has closed a gate")
            } else {
                return None;
            };
            let message = format!("the machine with uid {uid} gets a slot at {since}, when {why}");
            Some(violation(invariant, "UpdateGroup", &key.1, message))
        });
        wrong.collect()
    }

    fn machine(&mut self, key: &Key, new: Option<&Value>, actor: &str) -> Vec<Violation> {
        let before = self.machines.get(key).cloned();
        let mut after = new.map(Machine::of);
        if let (Some(before), Some(after)) = (&before, &mut after) {
            after.has_joined |= before.has_joined;
        }
        let deleted = before.as_ref().is_some_and(|machine| machine.deleted_at.is_none())
            && after.as_ref().is_none_or(|machine| machine.deleted_at.is_some());
        let mut found = Vec::new();
        if let Some(before) = before.filter(|_| deleted) {
            let wrong = match actor {
                // Those of a MachineDeployment that it deletes.
                CONTROLLER if before.is_extra => None,
                CONTROLLER => Some("the controller deletes a Machine".to_owned()),
                CAPI => self.unasked_deletion(key, &before),
                _ => None,
            };
            let broken = Invariant::NoReplacement;
            found.extend(wrong.map(|message| violation(broken, "Machine", &key.1, message)));
        }
        self.note_cancelled(key, after.as_ref(), actor);
        match after {
            Some(machine) => self.machines.insert(key.clone(), machine),
            None => self.machines.remove(key),
        };
        self.forget_changes();
        found
    }

    fn note_cancelled(&mut self, key: &Key, after: Option<&Machine>, actor: &str) {
        let was_updating = self.machines.get(key).is_some_and(|before| before.updating);
        let is_updating = after.is_some_and(|machine| machine.updating);
        let member = after.is_some_and(|machine| machine.control_plane);
        if was_updating && !is_updating && member && is_user(actor) {
            self.cancelled.insert(key.clone());
        } else if is_updating || after.is_none() {
            self.cancelled.remove(key);
        }
    }

    /// Why this deletion is a violation; `None` if it was requested or permitted.
    fn unasked_deletion(&self, key: &Key, machine: &Machine) -> Option<String> {
        let cluster = (key.0.clone(), machine.cluster.clone());
        let policy = self.clusters.get(&cluster);
        let leaving = self.clusters_deleting.get(&cluster).copied().unwrap_or_default();
        if machine.to_be_remediated || leaving || policy.is_some_and(Policy::allows_replacement) {
            return None;
        }
        let group = self.group_of(&key.0, machine)?;
        let owner = self.owners.get(&group)?;
        let live = self.members(&group).filter(|(_, m)| m.deleted_at.is_none()).count();
        let too_many = owner
            .replicas
            .is_some_and(|replicas| i32::try_from(live).unwrap_or(i32::MAX) > replicas);
        let mut others = self.members(&group).filter(|(other, m)| *other != key && m.is_extra);
        let spared = others.find(|(_, other)| other.deleted_at.is_none());
        if let Some(((_, spared), _)) = spared.filter(|_| too_many && !machine.is_extra)
            && !owner.surges
        {
            return Some(format!("it is deleted, and extra Machine {spared} stays"));
        }
        let asked = owner.deleting
            || owner.surges
            || owner.on_delete
            || owner.policy.allows_replacement()
            || self.changed_midway.contains(&group)
            || machine.is_extra
            || self.cancelled.contains(key) && machine.version != owner.version
            || is_outdated_before_it_joined(machine, owner)
            || too_many;
        (!asked).then(|| {
            format!(
                "it is deleted although {} {} has no surge, wants {} machines and has {live}",
                group.1,
                group.2,
                owner.replicas.unwrap_or_default()
            )
        })
    }

    fn update(&mut self, key: &Key, new: Option<&Value>, actor: &str) -> Vec<Violation> {
        let before = self.updates.get(key).cloned();
        let Some(after) = new.map(Update::of) else {
            self.updates.remove(key);
            return Vec::new();
        };
        let mut found = Vec::new();
        let mut wrong = |message: String| {
            found.push(violation(Invariant::OneUpdate, "NodeUpdate", &key.1, message));
        };
        match &before {
            None if actor == CONTROLLER && !after.phase.is_final() => {
                let other = self.updates.iter().find(|(_, update)| {
                    update.machine_uid == after.machine_uid && !update.phase.is_final()
                });
                if let Some((other, _)) = other {
                    wrong(format!("it is created while {} is unfinished", other.1));
                }
            }
            None => {}
            Some(before) => {
                if before.phase.is_final() && before.phase != after.phase {
                    wrong(format!(
                        "its phase changes from {:?} to {:?}",
                        before.phase, after.phase
                    ));
                }
                if !before.started_at.is_empty() && before.started_at != after.started_at {
                    wrong("it starts a second time".to_owned());
                }
            }
        }
        let refreshed_since = before.and_then(|before| before.refreshes_since);
        if actor == CONTROLLER
            && after.refreshes_since.is_some()
            && after.refreshes_since != refreshed_since
        {
            let mut of_update = self.machines.values().filter(|m| m.uid == after.machine_uid);
            let node = of_update.next().map(|m| (m.cluster.clone(), m.node.clone()));
            let how = "its snap is to be refreshed";
            found.extend(node.iter().flat_map(|node| self.disturbs(node, how)));
        }
        self.updates.insert(key.clone(), after);
        found
    }

    fn node(&mut self, key: Key, new: Option<&Value>, actor: &str) -> Vec<Violation> {
        let before = self.nodes.get(&key).cloned();
        let Some(after) = new.map(Node::of) else {
            self.nodes.remove(&key);
            return Vec::new();
        };
        let mut found = Vec::new();
        if let Some(before) = &before {
            found.extend(self.downgrade(&key, &before.version, &after.version));
            if actor == CONTROLLER {
                found.extend(overruled(&key.1, before, &after));
                if !before.cordoned_by_us() && after.cordoned_by_us() {
                    found.extend(self.disturbs(&key, "its node is cordoned"));
                    found.extend(self.drains(&key, "its node is cordoned"));
                }
            }
        }
        self.nodes.insert(key, after);
        found
    }

    fn downgrade(
        &self,
        key: &Key,
        before: &StatedVersion,
        after: &StatedVersion,
    ) -> Option<Violation> {
        let (old, new) = (before.version()?, after.version()?);
        let (machine_key, machine) = self.machine_of(&key.0, &key.1)?;
        let owner = self.owners.get(&self.group_of(&machine_key.0, machine)?)?;
        // A worker that fails with the new kubelet is rolled back to where its update began.
        let plan = self.plans.get(key).filter(|_| !machine.control_plane);
        let rolled_back = plan.is_some_and(|plan| self.began_at.get(&plan.plan_id) == Some(after));
        (new < old && !rolled_back && !owner.version.is(new)).then(|| {
            violation(
                Invariant::OneUpdate,
                "Node",
                &key.1,
                format!("its version decreases from {before} to {after}"),
            )
        })
    }

    fn pod(
        &mut self,
        cluster: &str,
        key: &Key,
        old: Option<&Value>,
        new: Option<&Value>,
        actor: &str,
    ) -> Vec<Violation> {
        let going = |pod: Option<&Value>| pod.is_none_or(|pod| objects::deleted_at(pod).is_some());
        let mut found = Vec::new();
        if let Some(old) = old.filter(|_| actor == CONTROLLER && going(new) && !going(old)) {
            let node = (cluster.to_owned(), text(old, "/spec/nodeName").to_owned());
            let how = format!("pod {} is evicted", key.1);
            found.extend(self.disturbs(&node, &how));
            found.extend(self.drains(&node, &how));
        }
        let name = (cluster.to_owned(), key.1.clone());
        match new.and_then(StaticPod::of) {
            Some(pod) => self.static_pods.insert(name, pod),
            None => self.static_pods.remove(&name),
        };
        found
    }

    fn plan(&mut self, key: Key, new: Option<&Value>, actor: &str) -> Vec<Violation> {
        let before = self.plans.get(&key).cloned().unwrap_or_default();
        let Some(after) = new.map(Plan::of) else {
            self.plans.remove(&key);
            return Vec::new();
        };
        let mut found = Vec::new();
        let same = before.plan_id == after.plan_id;
        let mut after = after;
        if same {
            after.passed = after.passed.max(before.passed);
        }
        if same && after.gate < before.gate {
            let message = format!("its gate is lowered from {:?} to {:?}", before.gate, after.gate);
            found.push(violation(Invariant::OneUpdate, "HostPlan", &key.1, message));
        }
        let raised = after.gate >= Gate::Upgrade && (!same || before.gate < after.gate);
        let first = !same || before.gate < Gate::Upgrade;
        let aborted =
            self.updates.values().any(|update| update.uid == after.plan_id && update.aborted);
        if raised && first {
            let version = self.nodes.get(&key).map(|node| node.version.clone());
            self.began_at.insert(after.plan_id.clone(), version.unwrap_or_default());
        }
        if raised && first && aborted && actor == CONTROLLER {
            let message = format!("its gate is raised to {:?} after an abort", after.gate);
            found.push(violation(Invariant::AbortStops, "HostPlan", &key.1, message));
        }
        if raised && actor == CONTROLLER {
            found.extend(self.disturbs_otherwise(&key, &after));
            if after.disruption.takes_slot() {
                let how = format!("its gate is raised to {:?}", after.gate);
                found.extend(self.disturbs(&key, &how));
            }
        }
        self.plans.insert(key, after);
        found
    }

    /// Violations of a Refit write that disturbs the machine with this node, judged by the state
    /// before the write.
    pub(super) fn disturbs(&self, (cluster, node): &Key, how: &str) -> Vec<Violation> {
        let Some((key, machine)) = self.machine_of(cluster, node) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        if let Some(group) = self.group_of(&key.0, machine)
            && let Some(owner) = self.owners.get(&group)
            && self.is_available(machine)
        {
            let members: Vec<_> = self.members(&group).collect();
            let available =
                members.iter().filter(|(k, m)| *k != key && self.is_available(m)).count();
            let present = i32::try_from(members.len()).unwrap_or(i32::MAX);
            // Without a request of Cluster API, no surge machine stands in for another.
            let by_annotation = self
                .updates
                .values()
                .filter(|update| !update.phase.is_final() && update.machine_uid == machine.uid)
                .any(|update| update.origin == "Annotation");
            let least = i32::from(by_annotation);
            let may_be_down = owner.may_be_down.max(least);
            let needed = owner.replicas.unwrap_or(present) - may_be_down;
            if i32::try_from(available).unwrap_or(i32::MAX) < needed {
                let message =
                    format!("{how} while {available} others are available, expected {needed}");
                found.push(violation(Invariant::EnoughAvailable, "Machine", &key.1, message));
            }
        }
        if machine.control_plane {
            found.extend(self.control_plane(key, machine, how));
        }
        found
    }

    fn control_plane(&self, key: &Key, machine: &Machine, how: &str) -> Vec<Violation> {
        let peers = self.machines.iter().filter(|(peer, m)| {
            *peer != key && peer.0 == key.0 && m.cluster == machine.cluster && m.control_plane
        });
        let mut found = Vec::new();
        for (peer, member) in peers {
            let ready = self.node_of(member).is_some_and(|node| node.ready);
            let ill = self
                .static_pods
                .iter()
                .filter(|((cluster, _), pod)| {
                    *cluster == machine.cluster && pod.node == member.node
                })
                .find(|(_, pod)| !pod.ready);
            let why = if self.is_disturbed(member) {
                "is also being updated".to_owned()
            } else if !ready {
                "is not Ready".to_owned()
            } else if let Some((_, pod)) = ill {
                format!("has a {} that is not Ready", pod.component)
            } else {
                continue;
            };
            found.push(violation(
                Invariant::OneMember,
                "Machine",
                &key.1,
                format!("{how} while {} {why}", peer.1),
            ));
        }
        found
    }
}

/// An admin's settings that a write of the controller overrides.
fn overruled(name: &str, before: &Node, after: &Node) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut wrong =
        |what: &str| found.push(violation(Invariant::Cordons, "Node", name, what.to_owned()));
    if before.unschedulable && before.cordoned_by.is_none() {
        if !after.unschedulable {
            wrong("the controller lifts a cordon that is not ours");
        } else if after.cordoned_by.is_some() {
            wrong("the controller claims a cordon that is not its own");
        }
    }
    // Refit may set one label if it is missing, and remove it if Refit set it.
    let exclusion = |node: &Node| node.labels.get(keys::EXCLUDE_FROM_LOAD_BALANCERS).cloned();
    let others = |node: &Node| {
        let mut labels = node.labels.clone();
        labels.remove(keys::EXCLUDE_FROM_LOAD_BALANCERS);
        labels
    };
    let exclusion_allowed = match (exclusion(before), exclusion(after)) {
        (None, Some(_)) => after.excluded_by.is_some(),
        (Some(_), None) => before.excluded_by.is_some(),
        (before, after) => before == after,
    };
    if !exclusion_allowed || others(before) != others(after) {
        wrong("the controller changes labels");
    }
    if before.taints != after.taints {
        wrong("the controller changes taints");
    }
    found
}

pub(super) fn violation(
    invariant: Invariant,
    kind: &str,
    name: &str,
    message: String,
) -> Violation {
    Violation { invariant, object: format!("{kind} {name}"), message }
}

/// Whether the version was changed while the member was still joining: it fails the preflight checks, and
/// Cluster API creates another one (`docs/facts/control-plane.md#preflight`).
fn is_outdated_before_it_joined(machine: &Machine, owner: &Owner) -> bool {
    machine.control_plane && !machine.has_joined && machine.version != owner.version
}
