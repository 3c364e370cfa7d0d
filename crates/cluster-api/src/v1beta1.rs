//! Objects of Cluster API's v1beta1 in the form of v1beta2, as far as Refit reads them
//! (`docs/facts/cluster-api-v1beta1.md`).
//!
//! Cluster API converts them in the same way where it serves both versions.

use serde_json::{Map, Value, json};

/// The status fields of v1beta1 that v1beta2 has under `initialization`.
type Milestones = &'static [(&'static str, &'static str)];

/// Converts a Cluster.
pub fn cluster(object: &mut Value) {
    for field in ["controlPlaneRef", "infrastructureRef"] {
        reference(object, &format!("/spec/{field}"));
    }
    // The contract of providers lets controlPlaneReady wait for more than the first machine.
    let initialized = is_true(object, "/status/conditions", "ControlPlaneInitialized")
        || is_true(object, "/status/v1beta2/conditions", "ControlPlaneInitialized");
    if initialized && let Some(status) = fields(object, "/status") {
        status.insert("controlPlaneReady".to_owned(), Value::Bool(true));
    }
    status(
        object,
        &[
            ("controlPlaneReady", "controlPlaneInitialized"),
            ("infrastructureReady", "infrastructureProvisioned"),
        ],
    );
}

/// Converts a Machine.
pub fn machine(object: &mut Value) {
    machine_spec(object, "/spec");
    status(
        object,
        &[
            ("bootstrapReady", "bootstrapDataSecretCreated"),
            ("infrastructureReady", "infrastructureProvisioned"),
        ],
    );
}

/// Converts a MachineSet.
pub fn machine_set(object: &mut Value) {
    template(object);
    relocate(object, "/spec", "deletePolicy", &["deletion", "order"]);
    status(object, &[]);
}

/// Converts a MachineDeployment.
pub fn machine_deployment(object: &mut Value) {
    template(object);
    let rolling = fields(object, "/spec/strategy/rollingUpdate");
    if let Some(policy) = rolling.and_then(|fields| fields.remove("deletePolicy")) {
        put(object, "/spec", &["deletion", "order"], policy);
    }
    relocate(object, "/spec", "rolloutAfter", &["rollout", "after"]);
    relocate(object, "/spec", "strategy", &["rollout", "strategy"]);
    status(object, &[]);
}

/// Converts a KubeadmControlPlane.
pub fn control_plane(object: &mut Value) {
    const TEMPLATE: &str = "/spec/machineTemplate";
    relocate(object, TEMPLATE, "infrastructureRef", &["spec", "infrastructureRef"]);
    reference(object, "/spec/machineTemplate/spec/infrastructureRef");
    timeouts(object, TEMPLATE, &["spec", "deletion"]);
    relocate(object, "/spec", "rolloutAfter", &["rollout", "after"]);
    relocate(object, "/spec", "rolloutBefore", &["rollout", "before"]);
    relocate(object, "/spec", "rolloutStrategy", &["rollout", "strategy"]);
    status(object, &[("initialized", "controlPlaneInitialized")]);
}

/// A MachineDrainRule is the same in both versions.
pub fn machine_drain_rule(_: &mut Value) {}

/// The template of a MachineSet or MachineDeployment, whose owner has `minReadySeconds` in v1beta1.
fn template(object: &mut Value) {
    machine_spec(object, "/spec/template/spec");
    relocate(object, "/spec", "minReadySeconds", &["template", "spec", "minReadySeconds"]);
}

fn machine_spec(object: &mut Value, spec: &str) {
    for field in ["bootstrap/configRef", "infrastructureRef"] {
        reference(object, &format!("{spec}/{field}"));
    }
    timeouts(object, spec, &["deletion"]);
}

/// A reference names a version in v1beta1, and only the group in v1beta2.
fn reference(object: &mut Value, at: &str) {
    let Some(reference) = fields(object, at) else { return };
    if let Some(Value::String(version)) = reference.remove("apiVersion") {
        let group = version.split_once('/').map_or("", |(group, _)| group);
        reference.entry("apiGroup").or_insert_with(|| group.into());
    }
}

/// Timeouts are the text of a duration in v1beta1, and seconds in v1beta2.
fn timeouts(object: &mut Value, from: &str, to: &[&str]) {
    for name in ["nodeDrainTimeout", "nodeVolumeDetachTimeout", "nodeDeletionTimeout"] {
        let Some(written) = fields(object, from).and_then(|fields| fields.remove(name)) else {
            continue;
        };
        if let Some(seconds) = written.as_str().and_then(whole_seconds) {
            let field = format!("{name}Seconds");
            let path: Vec<&str> = to.iter().copied().chain([&*field]).collect();
            put(object, from, &path, json!(seconds));
        }
    }
}

/// The whole seconds of a duration in Go's notation, such as `1h2m3.5s`; `None` if it is not one.
fn whole_seconds(text: &str) -> Option<i32> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let (number, tail) = rest.split_at(rest.find(|c| !is_number(c))?);
        let (unit, tail) = tail.split_at(tail.find(is_number).unwrap_or(tail.len()));
        let scale = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * scale;
        rest = tail;
    }
    // As text, because a cast of a number that is too large would change it.
    (!text.is_empty()).then(|| format!("{:.0}", (sign * seconds).trunc()).parse().ok()).flatten()
}

/// What v1beta1 has in `status.v1beta2` is the status of v1beta2: conditions and counters have another meaning there.
/// Where it is missing, the counters of v1beta1 are dropped, as Cluster API drops them.
fn status(object: &mut Value, milestones: Milestones) {
    let Some(status) = fields(object, "/status") else { return };
    for (old, new) in milestones {
        if let Some(reached) = status.remove(*old) {
            let initialization = status.entry("initialization").or_insert_with(|| json!({}));
            if let Value::Object(initialization) = initialization {
                initialization.insert((*new).to_owned(), reached);
            }
        }
    }
    let counters = ["readyReplicas", "availableReplicas", "upToDateReplicas"];
    for name in counters.into_iter().chain(["conditions"]) {
        status.remove(name);
    }
    if let Some(Value::Object(newer)) = status.remove("v1beta2") {
        status.extend(newer);
    }
}

fn is_true(object: &Value, list: &str, type_: &str) -> bool {
    let conditions = object.pointer(list).and_then(Value::as_array);
    let found = conditions.and_then(|all| all.iter().find(|one| one["type"] == type_));
    found.is_some_and(|found| found["status"] == "True")
}

fn fields<'a>(object: &'a mut Value, at: &str) -> Option<&'a mut Map<String, Value>> {
    object.pointer_mut(at)?.as_object_mut()
}

/// Moves a field of the object at `parent` to a path below the same object.
fn relocate(object: &mut Value, parent: &str, field: &str, to: &[&str]) {
    if let Some(value) = fields(object, parent).and_then(|fields| fields.remove(field)) {
        put(object, parent, to, value);
    }
}

/// Sets a field below the object at `parent`, with the objects on the way to it.
fn put(object: &mut Value, parent: &str, path: &[&str], value: Value) {
    let Some((last, way)) = path.split_last() else { return };
    let mut at = fields(object, parent);
    for step in way {
        let next = at.map(|fields| fields.entry(*step).or_insert_with(|| json!({})));
        at = next.and_then(Value::as_object_mut);
    }
    if let Some(fields) = at {
        fields.insert((*last).to_owned(), value);
    }
}

#[cfg(test)]
#[path = "v1beta1_tests.rs"]
mod tests;
