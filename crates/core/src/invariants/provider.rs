//! The objects that Refit makes for providers (`docs/contract/`): how far each provider may go, and when.

use refit_kinds::{
    json::{annotation, controller, text},
    keys,
    refit::Gate,
};
use serde_json::Value;

use super::{
    Invariant, Violation,
    objects::{Machine, Node},
    observe::{CONTROLLER, violation},
    state::{GroupKey, Key, World},
};

/// An object of a provider, for one update of a machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Provider {
    machine_uid: String,
    /// uid of the NodeUpdate.
    update: String,
    gate: Gate,
    aborts: bool,
    /// The furthest gate that the provider has ever reported as passed, of those that were open.
    passed: Gate,
    /// Whether the provider has reported its end for this gate and stage.
    ended: bool,
}

impl Provider {
    fn of(value: &Value) -> Self {
        let gate = |pointer: &str| -> Gate {
            let gate = value.pointer(pointer).cloned();
            gate.and_then(|gate| serde_json::from_value(gate).ok()).unwrap_or_default()
        };
        let flag = |pointer: &str| value.pointer(pointer) == Some(&Value::Bool(true));
        let (open, aborts) = (gate("/spec/gate"), text(value, "/spec/stage") == "Abort");
        let is_observed = value["status"]["observedGeneration"] == value["metadata"]["generation"];
        let passed = gate("/status/passed").min(open);
        let has_failed = !text(value, "/status/failureReason").is_empty();
        let is_ready = flag("/status/ready") && (aborts || passed == Gate::Disrupt);
        Self {
            machine_uid: text(value, "/spec/machineRef/uid").to_owned(),
            update: owner_uid(value).to_owned(),
            gate: open,
            aborts,
            passed,
            ended: is_observed && (is_ready || has_failed && !flag("/status/retriable")),
        }
    }

    /// The same with what the provider has reported before.
    fn after(self, before: &Self) -> Self {
        let is_same_order = (self.gate, self.aborts) == (before.gate, before.aborts);
        Self {
            passed: self.passed.max(before.passed),
            ended: self.ended || before.ended && is_same_order,
            ..self
        }
    }
}

fn owner_uid(value: &Value) -> &str {
    let owners = value.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let mut owners = owners.into_iter().flatten();
    let owner = owners.find(|owner| owner["controller"] == true);
    owner.map(|owner| text(owner, "/uid")).unwrap_or_default()
}

/// Whether an object is one that Refit has made for a provider.
pub(super) fn is_of_provider(object: Option<&Value>) -> bool {
    object.is_some_and(|object| {
        annotation(object, keys::UPDATER).is_some()
            && controller(object).is_some_and(|(kind, _)| kind == "NodeUpdate")
    })
}

impl World {
    pub(super) fn provider(
        &mut self,
        kind: &str,
        (namespace, name): &Key,
        new: Option<&Value>,
        actor: &str,
    ) -> Vec<Violation> {
        let key = (namespace.clone(), kind.to_owned(), name.clone());
        let before = self.providers.get(&key).cloned().unwrap_or_default();
        let Some(after) = new.map(|new| Provider::of(new).after(&before)) else {
            self.providers.remove(&key);
            return Vec::new();
        };
        let found =
            if actor == CONTROLLER { self.wrong_order(&key, &before, &after) } else { Vec::new() };
        self.providers.insert(key, after);
        found
    }

    /// Violations of what the controller has just allowed a provider, judged by the state before the write.
    fn wrong_order(&self, key: &GroupKey, before: &Provider, after: &Provider) -> Vec<Violation> {
        let mut found = Vec::new();
        let gate = after.gate;
        let mut wrong = |invariant, message: String| {
            found.push(violation(invariant, &key.1, &key.2, message));
        };
        if before.aborts && !after.aborts {
            wrong(Invariant::AbortStops, "its abort is withdrawn".to_owned());
        }
        if gate < before.gate {
            let message = format!("its gate is lowered from {:?} to {gate:?}", before.gate);
            wrong(Invariant::OneUpdate, message);
        }
        if gate <= before.gate {
            return found;
        }
        let update = self.updates.values().find(|update| update.uid == after.update);
        let is_first = || self.opened(&after.update).all(|(_, gate, _)| gate < Gate::Upgrade);
        if before.aborts {
            wrong(Invariant::AbortStops, format!("its gate is raised to {gate:?} after its abort"));
        }
        if gate < Gate::Upgrade {
            return found;
        }
        if update.is_some_and(|update| update.aborted) && is_first() {
            wrong(Invariant::AbortStops, format!("its gate is raised to {gate:?} after an abort"));
        }
        if update.is_some_and(|update| update.phase.is_final()) {
            let message = format!("its gate is raised to {gate:?} after the end of its NodeUpdate");
            wrong(Invariant::OneUpdate, message);
        }
        let others = self.opened(&after.update).filter(|(name, ..)| *name != key.2);
        for (other, _, passed) in others.filter(|(_, open, _)| *open >= gate) {
            if passed < gate {
                let message =
                    format!("its gate is raised to {gate:?} before {other} has passed it");
                wrong(Invariant::OneUpdater, message);
            }
        }
        let machine = self.machines.values().find(|machine| machine.uid == after.machine_uid);
        if let Some(machine) = machine {
            let node = (machine.cluster.clone(), machine.node.clone());
            found.extend(self.disturbs(&node, &format!("gate {gate:?} of {} opens", key.2)));
        }
        found
    }

    /// The updaters of an update that work through gates: name, gate, and the gate that each has passed.
    fn opened<'a>(&'a self, update: &'a str) -> impl Iterator<Item = (&'a str, Gate, Gate)> {
        let plans = self.plans.iter().filter(move |(_, plan)| plan.plan_id == update);
        let plans = plans.map(|((_, name), plan)| (name.as_str(), plan.gate, plan.passed));
        let providers = self.providers.iter().filter(move |(_, other)| other.update == update);
        let providers =
            providers.map(|((.., name), other)| (name.as_str(), other.gate, other.passed));
        plans.chain(providers)
    }

    /// Whether a provider may still be at work on a machine, or has just ended its work.
    pub(super) fn has_provider_at_work(&self, machine: &Machine, node: &Node) -> bool {
        let own = self.providers.values().filter(|one| one.machine_uid == machine.uid);
        own.filter(|one| one.gate >= Gate::Upgrade).any(|one| {
            let update = self.updates.values().find(|update| update.uid == one.update);
            let is_final = update.is_none_or(|update| update.phase.is_final());
            !(is_final && one.ended && node.ready)
        })
    }
}
