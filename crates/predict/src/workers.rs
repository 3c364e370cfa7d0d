//! Predicts the rollout of a MachineDeployment, and of a MachineSet without one.

use std::collections::{BTreeMap, BTreeSet};

use refit_cluster_api::{
    IntOrPercent,
    desired::{
        machine_deployment::{Step, machine_set},
        machine_set::new_machine,
        made_of,
    },
    kinds::ContractRef,
    rollout::{
        self, MachineDeployment, MachineSet, Strategy, Template, find_new_and_old,
        machine_set::DeletionOrder,
        remediation::Need,
        simulate::{Answer, End, SimulatedRollout, Workers},
    },
};
use refit_core::change::{
    Level,
    can_update::{ControlPlaneMachine, Known, behind},
};
use refit_kinds::{
    json::{
        annotations, condition, controller, created_at, is_deleting, label, name, namespace, text,
        time,
    },
    keys,
    version::StatedVersion,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{
    input::Input,
    only_machine,
    outcome::{CauseReason, GroupPrediction, PredictedOutcome},
    reach::{GroupRef, Shape},
    sides::of_set,
    view::{Asked, View, controlled},
};

/// Predicts a group that Refit's hooks do not serve: a MachineSet without a MachineDeployment,
/// whose machines do not change, or a kind that replaces machines itself.
pub(super) fn unserved(input: &Input, group: &GroupRef) -> Option<GroupPrediction> {
    let mut view = View::of(input, group)?;
    let owner = (group.namespace.as_str(), &*group.kind, &*group.name);
    let machines = controlled(&input.current, "Machine", owner);
    view.plan.machines.now = count(machines.len());
    if view.now.get("spec") == view.wanted.get("spec") {
        return Some(view.conclude(false));
    }
    let replaces = matches!(view.asked(), Asked::No);
    if replaces {
        view.not_asked();
    }
    Some(view.conclude(replaces))
}

/// Predicts a MachineDeployment; `control_plane` is the prediction for its Cluster's control plane,
/// if that is predicted too.
pub(super) fn predict(
    input: &Input,
    group: &GroupRef,
    control_plane: Option<&GroupPrediction>,
) -> Option<GroupPrediction> {
    let mut view = View::of(input, group)?;
    let Shape::Deployment { replicas, strategy } = Shape::of(view.wanted) else {
        return None;
    };
    let replicas = view.imagined().unwrap_or(replicas);
    let (sets, machines) = members(&view);
    view.plan.machines.now = view.imagined().unwrap_or(count(machines.len()));
    view.look_for_topology();
    let in_place_updates = match view.asked() {
        Asked::Yes => true,
        Asked::No => false,
        Asked::Nothing => return Some(view.conclude(false)),
    };
    let deployment = MachineDeployment {
        name: group.name.clone(),
        replicas,
        strategy: strategy.clone(),
        template: template(view.wanted),
        rollout_after: time(view.wanted, "/spec/rollout/after"),
    };
    let (rollout_sets, rollout_machines) = states(&view, &sets, &machines);
    let found = find_new_and_old(&deployment, &rollout_sets, input.now);
    let old: BTreeSet<String> = found
        .old
        .iter()
        .filter(|old| old.machine_set.status_replicas > 0)
        .map(|old| old.machine_set.name.clone())
        .collect();
    let asked = in_place_updates && strategy != Strategy::OnDelete;
    let at_once = strategy.fenceposts(replicas).unavailable;
    let tolerated = usize::try_from(at_once.max(1)).unwrap_or(1);
    let answers = answers(&mut view, &sets, &machines, &old, control_plane, asked, tolerated);
    let known: Vec<&Value> = machines.iter().map(AsRef::as_ref).collect();
    let mut pacer = view.pacer(&known, at_once);
    let down = machines.iter().filter(|machine| !is_available(machine));
    let unavailable: BTreeSet<String> = down.map(|machine| name(machine).to_owned()).collect();
    let available = count(rollout_machines.len().saturating_sub(unavailable.len()));
    let mut outcome = Workers {
        deployment,
        sets: rollout_sets,
        machines: rollout_machines,
        unavailable,
        answers,
        in_place_updates,
        order: DeletionOrder::from_spec(text(view.wanted, "/spec/deletion/order")),
        now: input.now,
    }
    .run_timed(&mut pacer);
    if !outcome.asked {
        let title = view.title();
        view.plan.blocked_by.retain(|blocked| blocked.object != title);
    }
    view.plan.machines.in_place = count(outcome.in_place.len());
    view.plan.machines.new = outcome.created;
    view.plan.machines.deleted = count(outcome.deleted.len());
    let waits_for_a_user = strategy == Strategy::OnDelete && !old.is_empty();
    explain(&mut view, &machines, &outcome, &strategy, in_place_updates, waits_for_a_user);
    stuck(&mut view, &outcome, &machines, waits_for_a_user);
    if let [machine] = &machines[..]
        && replicas == 1
        && view.plan.causes.iter().any(|cause| cause.reason == CauseReason::Surge)
    {
        only_machine::of_workers(&mut view, name(machine));
    }
    let is_updated = |machine: &&Value| outcome.in_place.contains(name(machine));
    let updated: Vec<&Value> = known.iter().copied().filter(is_updated).collect();
    if view.plan.machines.in_place > 0 {
        view.look_for_unfinished(&known);
        let refused = view.look_for_refusals(&known);
        view.look_at_drains(&updated, &refused);
        view.look_for_windows();
        view.look_for_pauses(&known);
    }
    view.add_timeline(pacer, std::mem::take(&mut outcome.events), available);
    let before = control_plane.and_then(|plan| plan.seconds).unwrap_or_default();
    view.look_at_target(&updated, before);
    Some(view.conclude(waits_for_a_user))
}

/// MachineSets and Machines as the simulation begins with them.
fn states(
    view: &View<'_>,
    sets: &[std::borrow::Cow<'_, Value>],
    machines: &[std::borrow::Cow<'_, Value>],
) -> (Vec<MachineSet>, Vec<rollout::Machine>) {
    let mut states = (
        sets.iter().map(|set| set_state(set, machines)).collect::<Vec<_>>(),
        machines.iter().map(|machine| rollout::Machine::of(machine)).collect(),
    );
    if let Some(count) = view.imagined() {
        multiply(&mut states.0, &mut states.1, count);
    }
    states
}

/// MachineSets and Machines of a MachineDeployment; imagined ones if only manifests are given.
fn members<'a>(
    view: &View<'a>,
) -> (Vec<std::borrow::Cow<'a, Value>>, Vec<std::borrow::Cow<'a, Value>>) {
    use std::borrow::Cow;
    let current = &view.input.current;
    let group = view.group;
    let owner = (group.namespace.as_str(), "MachineDeployment", &*group.name);
    let sets = controlled(current, "MachineSet", owner);
    let is_unknown = sets.is_empty() && current.of_kind("Machine").next().is_none();
    if is_unknown || view.imagined().is_some() {
        let (set, machines) = imagined(view.now, view.imagined().map(|_| 1));
        return (vec![Cow::Owned(set)], machines.into_iter().map(Cow::Owned).collect());
    }
    let names: BTreeSet<&str> = sets.iter().map(|set| name(set)).collect();
    let machines = current
        .of_kind("Machine")
        .filter(|machine| namespace(machine) == group.namespace)
        .filter(|machine| {
            controller(machine).is_some_and(|(kind, of)| kind == "MachineSet" && names.contains(of))
        })
        .map(Cow::Borrowed)
        .collect();
    let sets = sets.into_iter().filter(|set| !is_deleting(set));
    (sets.map(Cow::Borrowed).collect(), machines)
}

/// The predicted response for each old MachineSet.
fn answers(
    view: &mut View<'_>,
    sets: &[std::borrow::Cow<'_, Value>],
    machines: &[std::borrow::Cow<'_, Value>],
    old: &BTreeSet<String>,
    control_plane: Option<&GroupPrediction>,
    asked: bool,
    tolerated: usize,
) -> BTreeMap<String, Answer> {
    let mut answers = BTreeMap::new();
    for set in sets.iter().filter(|set| old.contains(name(set))) {
        let set_machines: Vec<&Value> = machines
            .iter()
            .map(AsRef::as_ref)
            .filter(|machine| controller(machine).is_some_and(|(_, of)| of == name(set)))
            .collect();
        let sides = of_set(view.input, set, view.wanted);
        let servers = servers(view, control_plane);
        let known = if asked {
            let hosts = view.hosts_of(&set_machines);
            Known { hosts, tolerated, control_plane: servers, ..Known::default() }
        } else {
            Known::default()
        };
        let before = view.plan.blocked_by.len();
        let machine = set_machines.iter().copied().find(|machine| !is_deleting(machine));
        let answer = view.answer(Level::MachineSet, &sides, machine, known);
        if !asked {
            view.plan.blocked_by.truncate(before);
        }
        answers.insert(name(set).to_owned(), answer);
    }
    answers
}

/// The Machines of the control plane that workers wait for; empty if this prediction upgrades it.
fn servers(
    view: &mut View<'_>,
    control_plane: Option<&GroupPrediction>,
) -> Vec<ControlPlaneMachine> {
    let mut servers: Vec<ControlPlaneMachine> = view
        .input
        .current
        .of_kind("Machine")
        .filter(|machine| namespace(machine) == view.group.namespace)
        .filter(|machine| text(machine, "/spec/clusterName") == view.plan.cluster)
        .filter(|machine| label(machine, keys::CONTROL_PLANE).is_some())
        .map(|machine| {
            let stated = |path: &str| StatedVersion::from(text(machine, path));
            let runs = stated("/status/nodeInfo/kubeletVersion").or(stated("/spec/version"));
            ControlPlaneMachine { machine: name(machine).to_owned(), runs }
        })
        .collect();
    if let Some(plan) = control_plane.filter(|_| servers.is_empty()) {
        // Manifests contain no Machines.
        servers.push(ControlPlaneMachine { machine: plan.name.clone(), runs: plan.from.clone() });
    }
    let Some(target) = view.plan.to.version() else {
        return Vec::new();
    };
    let follows = control_plane.is_some_and(|plan| {
        matches!(plan.outcome, PredictedOutcome::InPlace | PredictedOutcome::Replaced)
            && plan.blocked_by.is_empty()
            && plan.to.version().is_some_and(|to| !to.minor_below(target))
    });
    if follows && behind(&servers, target).is_some() {
        let note = format!("follows the control plane: workers wait until it runs {target}");
        view.plan.notes.push(note);
        view.plan.after = control_plane.map(|plan| format!("{}/{}", plan.kind, plan.name));
        return Vec::new();
    }
    servers
}

fn explain(
    view: &mut View<'_>,
    machines: &[std::borrow::Cow<'_, Value>],
    outcome: &SimulatedRollout,
    strategy: &Strategy,
    asked: bool,
    waits_for_a_user: bool,
) {
    let title = view.title();
    let moved = outcome.created > 0 || !outcome.deleted.is_empty();
    if waits_for_a_user {
        view.cause(
            CauseReason::OnDelete,
            title,
            "strategy OnDelete: a machine is replaced when it is deleted, never updated in place",
            "set spec.rollout.strategy.type to RollingUpdate, with maxSurge 0 and maxUnavailable 1",
        );
        return;
    }
    if !moved {
        return;
    }
    if !asked {
        view.not_asked();
        return;
    }
    for machine in machines {
        let of = name(machine);
        if Need::of(machine) == Need::Owner && outcome.deleted.contains(of) {
            view.cause(
                CauseReason::Remediation,
                format!("Machine/{of}"),
                format!("a health check of Machine {of} failed: it is replaced instead of updated"),
                format!("repair Machine {of} before the change"),
            );
        }
    }
    let after = time(view.wanted, "/spec/rollout/after").filter(|after| *after <= view.input.now);
    if after.is_some_and(|after| machines.iter().any(|machine| created_at(machine) < after)) {
        view.cause(
            CauseReason::RolloutAfter,
            title,
            "spec.rollout.after has passed: every older MachineSet is replaced without calling \
             Refit",
            "remove spec.rollout.after",
        );
        return;
    }
    if outcome.asked && view.has_uncovered() {
        view.uncovered();
        return;
    }
    let Strategy::RollingUpdate { max_surge, .. } = strategy else {
        return;
    };
    let changes = outcome.asked
        || !outcome.in_place.is_empty()
        || template(view.now) != template(view.wanted);
    if *max_surge == IntOrPercent::Int(0) || !changes {
        if view.plan.causes.is_empty() {
            let message = "scaling to spec.replicas";
            view.cause(CauseReason::Replicas, title, message, "");
        }
        return;
    }
    view.cause(
        CauseReason::Surge,
        title,
        format!(
            "maxSurge {max_surge} with this maxUnavailable creates an additional machine, and an \
             old one is deleted at the end"
        ),
        "set spec.rollout.strategy.rollingUpdate to maxSurge 0 and maxUnavailable 1",
    );
}

/// Adds a blocker if the rollout would stop by itself.
fn stuck(
    view: &mut View<'_>,
    outcome: &SimulatedRollout,
    machines: &[std::borrow::Cow<'_, Value>],
    waits_for_a_user: bool,
) {
    if outcome.end != End::Stuck || waits_for_a_user {
        return;
    }
    let down: Vec<&str> = machines
        .iter()
        .filter(|machine| !is_available(machine))
        .map(|machine| name(machine))
        .collect();
    let why = if down.is_empty() {
        "machines of the old template remain".to_owned()
    } else {
        format!("not available: {}", down.join(", "))
    };
    let message = format!("Cluster API's rollout stops ({why}): repair or delete those machines");
    let title = view.title();
    view.block("GroupUnavailable", title, message);
}

/// The fields that determine whether a rollout is needed.
fn template(owner: &Value) -> Template {
    Template::of(&owner["spec"]["template"]["spec"])
}

fn set_state(set: &Value, machines: &[std::borrow::Cow<'_, Value>]) -> MachineSet {
    let owned = |machine: &&std::borrow::Cow<'_, Value>| {
        controller(machine).is_some_and(|(_, of)| of == name(set))
    };
    let marked = |machine: &&std::borrow::Cow<'_, Value>| super::view::is_marked(machine);
    let there = count(machines.iter().filter(owned).count());
    let up = machines.iter().filter(owned);
    let up = count(up.filter(|m| is_available(m) && !marked(m)).count());
    MachineSet {
        name: name(set).to_owned(),
        created_at: created_at(set),
        spec_replicas: set.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1),
        status_replicas: there,
        available_replicas: up,
        up_to_date_replicas: up,
        annotations: annotations(set),
        template: template(set),
    }
}

/// Whether a Machine is available; a machine under update will be.
fn is_available(machine: &Value) -> bool {
    super::view::is_marked(machine) || condition(machine, "Available") == Some("True")
}

/// A MachineSet and its machines for a MachineDeployment that has none.
pub(super) fn imagined(deployment: &Value, machines: Option<i64>) -> (Value, Vec<Value>) {
    let of = name(deployment);
    let stated = || deployment.pointer("/spec/replicas").and_then(Value::as_i64);
    let replicas = machines.or_else(stated).unwrap_or(1).clamp(0, 1000);
    let step = Step { replicas, ..Step::default() };
    let mut set = machine_set(deployment, None, of, step, "");
    set["kind"] = json!("MachineSet");
    let template = deployment.pointer("/spec/template/spec/infrastructureRef");
    let template = template.and_then(|reference| ContractRef::deserialize(reference).ok());
    let template = template.unwrap_or_default();
    let machines = (0..replicas).map(|index| {
        let name = format!("{of}-{index}");
        let mut machine = new_machine(&set, &name, &made_of(&template, &name), None);
        machine["kind"] = json!("Machine");
        machine["status"] = json!({
            "nodeRef": {"name": name},
            "conditions": [{"type": "Available", "status": "True"}],
        });
        machine
    });
    let machines = machines.collect();
    (set, machines)
}

/// So many copies of the only machine of the only MachineSet.
fn multiply(sets: &mut [MachineSet], machines: &mut Vec<rollout::Machine>, count: i64) {
    for set in sets {
        set.spec_replicas = count;
        set.status_replicas = count;
        set.available_replicas = count;
        set.up_to_date_replicas = count;
    }
    let Some(one) = machines.pop() else { return };
    machines.clear();
    let copy = |index| rollout::Machine { name: format!("machine-{index:05}"), ..one.clone() };
    machines.extend((1..=count).map(copy));
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
