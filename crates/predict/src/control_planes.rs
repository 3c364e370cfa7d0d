//! Predicts the rollout of a control plane.

use std::collections::BTreeMap;

use refit_cluster_api::{
    desired::{control_plane::ControlPlane as Wanted, made_of},
    rollout::{
        control_plane::{
            Component, ControlPlane, ControlPlaneMachine, PreflightFailure, ScaleDownReason,
        },
        difference::Difference,
        remediation::{Need, Remediation, Situation, Step, decide},
        simulate::Answer,
    },
};
use refit_core::change::{Level, can_update::Known};
use refit_kinds::{
    json::{annotations, condition, name, text},
    keys,
};
use serde_json::{Value, json};

use super::{
    input::Input,
    only_machine,
    outcome::{Blocked, CauseReason, GroupPrediction},
    reach::{GroupRef, Shape},
    sides::{MachineSides, Sides, of_machine},
    view::{Asked, View, controlled, is_marked},
    {plane, plane::End},
};

/// A Machine, how it differs, and why it must be replaced.
pub(super) struct Member<'a> {
    pub(super) machine: &'a Value,
    pub(super) sides: MachineSides,
    real: bool,
}

/// Predicts a control plane; `None` if it does not exist.
pub(super) fn predict(input: &Input, group: &GroupRef) -> Option<GroupPrediction> {
    let mut view = View::of(input, group)?;
    let Shape::ControlPlane { max_surge, .. } = Shape::of(view.wanted) else {
        return None;
    };
    let owner = (group.namespace.as_str(), "KubeadmControlPlane", &*group.name);
    let found = controlled(&input.current, "Machine", owner);
    let imagined = imagined(view.now, &view.plan.cluster, found.is_empty(), input);
    let real = !found.is_empty();
    let machines: Vec<&Value> = if real { found } else { imagined.iter().collect() };
    let imagined_input = (!real).then(|| with_unread(input));
    let compared = imagined_input.as_ref().unwrap_or(input);
    let members: Vec<Member<'_>> = machines
        .iter()
        .map(|machine| Member {
            machine,
            sides: of_machine(compared, view.now, view.wanted, machine),
            real,
        })
        .collect();
    view.plan.machines.now = count(members.len());
    view.look_for_topology();
    let available = count(members.iter().filter(|member| is_up(member)).count());
    if only_machine::of_control_plane(&mut view, &members) {
        let mut pacer = view.pacer(&machines, 1);
        let events = only_machine::events(&view, &members, &mut pacer);
        view.add_timeline(pacer, events, available);
        return Some(in_place(view, &machines, &machines));
    }
    let in_place_updates = match view.asked() {
        Asked::Yes => true,
        Asked::No => false,
        Asked::Nothing => return Some(view.conclude(false)),
    };
    let (answers, refusals) = answers(&mut view, &members, in_place_updates);
    let remediated = remediated(&mut view, &members);
    let wanted = Wanted { object: view.wanted, cluster: &view.plan.cluster };
    let left = members.iter().filter(|member| remediated.as_deref() != Some(name(member.machine)));
    let cluster = view.cluster.unwrap_or(&Value::Null);
    let mut control_plane = ControlPlane::of(wanted, cluster, left.map(state).collect());
    control_plane.in_place_updates = in_place_updates;
    let mut pacer = view.pacer(&machines, 1);
    let mut outcome = plane::run(control_plane, &answers, &mut pacer, input.now);
    view.plan.machines.in_place = count(outcome.in_place.len());
    view.plan.machines.new = outcome.created;
    view.plan.machines.deleted = count(outcome.deleted.len() + usize::from(remediated.is_some()));
    if let End::Waits(machine) = &outcome.end {
        let refused = refusals.get(machine).cloned().unwrap_or_default();
        view.plan.blocked_by.extend(refused);
    }
    stuck(&mut view, &outcome.end);
    explain(&mut view, &members, &outcome, max_surge, in_place_updates);
    view.add_timeline(pacer, std::mem::take(&mut outcome.events), available);
    let is_updated = |machine: &&Value| outcome.in_place.contains(name(machine));
    let updated: Vec<&Value> = machines.iter().copied().filter(is_updated).collect();
    Some(in_place(view, &machines, &updated))
}

/// The prediction, with what machines wait for, and what becomes of those that are updated in place.
fn in_place(mut view: View<'_>, machines: &[&Value], updated: &[&Value]) -> GroupPrediction {
    if view.plan.machines.in_place > 0 {
        view.look_for_unfinished(machines);
        let refused = view.look_for_refusals(machines);
        view.look_at_drains(updated, &refused);
        view.look_for_old_kubelets();
        view.look_for_windows();
        view.look_for_pauses(machines);
    }
    view.look_at_target(updated, 0);
    view.conclude(false)
}

/// The predicted response for each outdated machine, and its blockers: only those of machines that
/// the rollout reaches count in the end.
pub(super) fn answers(
    view: &mut View<'_>,
    members: &[Member<'_>],
    asked: bool,
) -> (BTreeMap<String, Answer>, BTreeMap<String, Vec<Blocked>>) {
    let (mut answers, mut refusals) = (BTreeMap::new(), BTreeMap::new());
    for member in members.iter().filter(|m| !m.sides.is_up_to_date()) {
        let hosts = if asked { view.hosts_of(&[member.machine]) } else { Vec::new() };
        let before = view.plan.blocked_by.len();
        let known = Known { hosts, ..Known::default() };
        let machine = Some(member.machine);
        let answer = view.answer(Level::Machine, &member.sides.sides, machine, known);
        let machine_name = name(member.machine).to_owned();
        refusals.insert(machine_name.clone(), view.plan.blocked_by.split_off(before));
        answers.insert(machine_name, answer);
    }
    (answers, refusals)
}

/// The machine that Cluster API replaces first because its health check failed
/// (`docs/facts/control-plane.md#remediation`). One at a time: the next one is replaced only when
/// this one has a successor.
fn remediated(view: &mut View<'_>, members: &[Member<'_>]) -> Option<String> {
    let plane = Wanted { object: view.now, cluster: &view.plan.cluster };
    let machines = members.iter().map(|member| member.machine);
    let mut situation = Situation::of(plane, machines, view.input.now);
    // A MachineHealthCheck withdraws its request if this annotation is set.
    for (member, found) in members.iter().zip(&mut situation.members) {
        if annotations(member.machine).contains_key(keys::SKIP_REMEDIATION) {
            found.need = Need::None;
        }
    }
    let Step::Delete(Remediation { machine, .. }) = decide(&situation) else {
        return None;
    };
    view.cause(
        CauseReason::Remediation,
        format!("Machine/{machine}"),
        format!(
            "a health check of Machine {machine} failed: the control plane replaces that \
            machine first"
        ),
        format!(
            "repair the machine, or annotate Machine {machine} with {}=",
            keys::SKIP_REMEDIATION
        ),
    );
    Some(machine)
}

fn stuck(view: &mut View<'_>, end: &End) {
    let End::Stuck(failures) = end else {
        return;
    };
    for failure in failures {
        let (reason, object) = match failure {
            PreflightFailure::TopologyVersionMismatch => ("TopologyVersionMismatch", view.title()),
            PreflightFailure::MachineDeleting(machine) => {
                ("MachineDeleting", format!("Machine/{machine}"))
            }
            PreflightFailure::NoNode(machine) => ("NoNode", format!("Machine/{machine}")),
            PreflightFailure::Unhealthy(machine, _) => {
                ("ControlPlaneUnhealthy", format!("Machine/{machine}"))
            }
        };
        let message = format!("Cluster API makes no changes now: {failure}");
        view.block(reason, object, message);
    }
}

/// Why machines are created and deleted.
fn explain(
    view: &mut View<'_>,
    members: &[Member<'_>],
    outcome: &plane::ControlPlaneRollout,
    max_surge: i64,
    asked: bool,
) {
    if !asked && !outcome.deleted.is_empty() {
        view.not_asked();
        return;
    }
    for (machine, reason) in &outcome.deleted {
        let Some(member) = members.iter().find(|m| name(m.machine) == machine) else {
            continue;
        };
        explain_one(view, member, *reason, max_surge);
    }
    let replaced = count(outcome.deleted.len());
    let remediated = view.plan.machines.deleted - replaced;
    if outcome.created > remediated && replaced == 0 {
        if max_surge > 0 && members.iter().any(|member| !member.sides.is_up_to_date()) {
            surge(view, max_surge);
        } else {
            replicas(view);
        }
    }
}

fn explain_one(view: &mut View<'_>, member: &Member<'_>, reason: ScaleDownReason, max_surge: i64) {
    let of = name(member.machine);
    let object = format!("Machine/{of}");
    let notes = annotations(member.machine);
    let marked = [keys::DELETE_MACHINE, keys::REMEDIATE_MACHINE]
        .into_iter()
        .find(|key| notes.contains_key(*key));
    match (reason, outdated(&member.sides.differences), marked) {
        (ScaleDownReason::NotEligible, Some((why, field, message)), _) => {
            view.cause(
                why,
                object,
                format!("Machine {of} is replaced: {message}"),
                format!("remove {field} from {}", view.title()),
            );
        }
        (ScaleDownReason::NotEligible | ScaleDownReason::TooManyMachines, None, Some(key)) => {
            view.cause(
                CauseReason::Marked,
                object,
                format!("Machine {of} is annotated with {key} and is deleted"),
                format!("remove the annotation {key} from Machine {of}"),
            );
        }
        (ScaleDownReason::NotEligible, None, None) => surge(view, max_surge),
        (ScaleDownReason::TooManyMachines, ..)
            if max_surge > 0 && !member.sides.is_up_to_date() =>
        {
            surge(view, max_surge);
        }
        (ScaleDownReason::TooManyMachines, ..) => replicas(view),
        (ScaleDownReason::FailsPreflight, ..) => {
            let failing = Component::ALL
                .into_iter()
                .map(Component::condition)
                .find(|type_| condition(member.machine, type_) != Some("True"))
                .unwrap_or("its Node");
            view.cause(
                CauseReason::FailsPreflight,
                object,
                format!(
                    "Machine {of} alone is not healthy ({failing}): Cluster API deletes it instead \
                     of updating it"
                ),
                format!("repair Machine {of} before the change"),
            );
        }
        (ScaleDownReason::NotCovered, ..) if matches!(member.sides.sides, Sides::NotCloned) => {
            view.cause(
                CauseReason::NotCloned,
                object,
                format!(
                    "Machine {of} does not record the template that it was cloned from, so \
                     Cluster API replaces it without calling Refit"
                ),
                record_its_template(),
            );
        }
        (ScaleDownReason::NotCovered, ..) => view.uncovered(),
    }
}

/// How the infrastructure machine comes to record its template.
pub(super) fn record_its_template() -> String {
    format!(
        "annotate its infrastructure machine with {} and {}",
        keys::CLONED_FROM_NAME,
        keys::CLONED_FROM_GROUPKIND
    )
}

/// The date field that makes a machine outdated: reason, field and meaning.
pub(super) fn outdated(
    differences: &[Difference],
) -> Option<(CauseReason, &'static str, &'static str)> {
    differences.iter().find_map(|difference| match difference {
        Difference::RolloutAfter => Some((
            CauseReason::RolloutAfter,
            "spec.rollout.after",
            "it is older than spec.rollout.after, which has passed",
        )),
        Difference::Certificates => Some((
            CauseReason::CertificatesExpire,
            "spec.rollout.before",
            "its certificates expire within spec.rollout.before; Cluster API renews them by \
             replacing the machine",
        )),
        Difference::Version { .. }
        | Difference::KubeadmConfig
        | Difference::Infrastructure { .. } => None,
    })
}

fn surge(view: &mut View<'_>, max_surge: i64) {
    let (title, replicas) = (view.title(), view.wanted.pointer("/spec/replicas"));
    let replicas = replicas.and_then(Value::as_i64).unwrap_or(1);
    if replicas == 1 && only_machine::explain(view) {
        return;
    }
    let remedy = match replicas {
        ..=1 => only_machine::remedy(view),
        2 => "set spec.replicas to 3 first (Cluster API accepts maxSurge 0 only with at least three), then \
              spec.rollout.strategy.rollingUpdate.maxSurge to 0"
            .to_owned(),
        3.. => "set spec.rollout.strategy.rollingUpdate.maxSurge to 0".to_owned(),
    };
    view.cause(
        CauseReason::Surge,
        title,
        format!(
            "maxSurge {max_surge} creates a machine before any is updated, and an old machine is \
             deleted for it without calling Refit"
        ),
        remedy,
    );
}

fn replicas(view: &mut View<'_>) {
    let title = view.title();
    view.cause(CauseReason::Replicas, title, "scaling to spec.replicas", "");
}

/// Whether a machine is available now, or imagined.
fn is_up(member: &Member<'_>) -> bool {
    !member.real
        || is_marked(member.machine)
        || condition(member.machine, "Available") == Some("True")
}

/// A machine as input of the next step. An imagined machine is healthy.
fn state(member: &Member<'_>) -> ControlPlaneMachine {
    let mut machine = ControlPlaneMachine::of(member.machine, &member.sides.differences);
    if !member.real {
        machine.has_node = true;
        machine.unhealthy.clear();
    }
    machine
}

/// The machines of a control plane for which only manifests are given.
fn imagined(control_plane: &Value, cluster: &str, wanted: bool, input: &Input) -> Vec<Value> {
    if !wanted || input.current.of_kind("Machine").next().is_some() {
        return Vec::new();
    }
    let of = name(control_plane);
    let replicas = match Shape::of(control_plane) {
        Shape::ControlPlane { replicas, .. } => replicas,
        Shape::Deployment { .. } | Shape::LoneSet | Shape::Unknown => 0,
    };
    let plane = Wanted { object: control_plane, cluster };
    let template = plane.infrastructure_template();
    (0..replicas.clamp(0, 9))
        .map(|index| {
            let name = format!("{of}-{index}");
            let mut machine = plane.new_machine(&name, &made_of(&template, &name), None);
            machine["kind"] = json!("Machine");
            machine["metadata"]["creationTimestamp"] = json!(format!("1970-01-01T00:00:0{index}Z"));
            machine
        })
        .collect()
}

/// The input with every part of a machine derived from its template.
fn with_unread(input: &Input) -> Input {
    let mut input = input.clone();
    let templates: Vec<String> = input
        .current
        .iter()
        .chain(input.desired.iter())
        .filter_map(|object| text(object, "/kind").strip_suffix("Template"))
        .map(str::to_owned)
        .collect();
    input.unread_kinds.extend(templates);
    input.unread_kinds.insert("KubeadmConfig".to_owned());
    input
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
