//! KubeadmConfigs: the desired spec of a control plane, and which differences count.
//!
//! Cluster API compares them as typed Go structs with go-cmp
//! (`docs/facts/control-plane.md#kubeadmconfig-comparison`), after `PrepareKubeadmConfigsForDiff`
//! has removed from both sides the fields that it changes by itself. A JSON model of that
//! comparison therefore has to know what an absent field decodes to:
//!
//! | field | absent is the same as | why |
//! |---|---|---|
//! | texts | `""` | a Go `string`; there is no third state. Examples: `files[].owner`, `extraEnvs[].value` |
//! | `value` of `extraArgs` and `kubeletExtraArgs` | nothing else | a `*string`: `""` passes an empty argument |
//! | lists and maps | `[]`, `{}` | `dropOmittableFields` sets empty ones to nil |
//! | `nodeRegistration.taints` | nothing else | a pointer to a list: `[]` registers without taints, nil with kubeadm's own |
//! | objects | `{}` | a Go struct; `joinConfiguration.controlPlane`, a pointer, is set to nil if empty |
//! | booleans and numbers | nothing else | `*bool`, `*int32`; the few `int32` reject 0 |
//! | `format`, `imagePullPolicy` | `cloud-config`, `IfNotPresent` | older releases wrote these defaults down |
//!
//! The v1beta2 CRD rejects most of the empty forms; they come from objects that were written
//! through v1beta1. `testdata/kubeadm_config_verdicts.json` lists verdicts; this module's tests and
//! the test bed's flow against real Cluster API both check that table.

use refit_kinds::version::KubernetesVersion;
use serde_json::{Map, Value, json};

/// The feature gate that Cluster API sets by itself for the minors of [`LOCAL_MODE_MINORS`].
const LOCAL_MODE: &str = "ControlPlaneKubeletLocalMode";
/// Minor versions of Kubernetes 1 for which Cluster API sets [`LOCAL_MODE`]; the end is exclusive.
const LOCAL_MODE_MINORS: std::ops::Range<u64> = 31..36;
/// Lists of arguments, whose empty values are significant.
const ARGUMENT_LISTS: [&str; 2] = ["extraArgs", "kubeletExtraArgs"];

/// How a control plane machine joins its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// With `kubeadm init`: the first machine.
    Init,
    /// With `kubeadm join`: every other machine, and every machine after its first update in place.
    Join,
}

/// Returns the KubeadmConfig spec that a control plane wants for a machine.
///
/// A joining machine keeps the cluster configuration, because it defines whether etcd is external.
pub fn desired_spec(control_plane: &Value, entry: Entry) -> Value {
    let mut spec = control_plane["spec"]["kubeadmConfigSpec"].clone();
    if !spec.is_object() {
        spec = json!({});
    }
    if let Some(map) = spec.as_object_mut() {
        map.remove(match entry {
            Entry::Join => "initConfiguration",
            Entry::Init => "joinConfiguration",
        });
    }
    let version = control_plane["spec"]["version"].as_str().unwrap_or_default();
    if version.parse().is_ok_and(|version| sets_local_mode(&version)) {
        set_local_mode(&mut spec);
    }
    spec
}

/// Reports whether Cluster API enables [`LOCAL_MODE`] for this version.
fn sets_local_mode(version: &KubernetesVersion) -> bool {
    version.major() == 1 && LOCAL_MODE_MINORS.contains(&version.minor())
}

/// Enables [`LOCAL_MODE`] unless the control plane sets it. A pure version change can therefore
/// change the bootstrap config.
fn set_local_mode(spec: &mut Value) {
    let configuration = spec.as_object_mut().and_then(|spec| child(spec, "clusterConfiguration"));
    if let Some(gates) = configuration.and_then(|map| child(map, "featureGates"))
        && gates.get(LOCAL_MODE).is_none_or(Value::is_null)
    {
        gates.insert(LOCAL_MODE.to_owned(), json!(true));
    }
}

/// Returns the patch that a KubeadmConfig needs after it was applied, if its machine initialised the cluster: the
/// field has another manager, and an apply does not remove it.
pub fn init_removal(config: &Value) -> Option<Value> {
    let is_there = config["spec"]["initConfiguration"].is_object();
    is_there.then(|| json!({"spec": {"initConfiguration": null}}))
}

/// Reports whether a KubeadmConfig matches the control plane's spec. A machine that initialised the
/// cluster may match either form.
pub fn is_up_to_date(current: &Value, control_plane: &Value) -> bool {
    let equal = |entry: Entry| {
        let (mut desired, mut current) = (desired_spec(control_plane, entry), current.clone());
        prepare(&mut desired, &mut current, entry);
        desired == current
    };
    equal(Entry::Join) || (is_set(&current["initConfiguration"]) && equal(Entry::Init))
}

/// Prepares two KubeadmConfig specs for a comparison and for a hook request. If the desired config
/// joins, a current config that initialised the cluster is converted to the joining form.
pub fn prepare(desired: &mut Value, current: &mut Value, entry: Entry) {
    for spec in [&mut *desired, &mut *current] {
        if !spec.is_object() {
            *spec = json!({});
        }
    }
    if entry == Entry::Join {
        init_to_join(current, desired);
    }
    for field in ["controlPlaneEndpoint", "dns"] {
        take_over(desired, current, field);
    }
    for spec in [desired, current] {
        for configuration in ["initConfiguration", "joinConfiguration"] {
            remove(spec, &[configuration, "discovery"]);
            remove(spec, &[configuration, "timeouts", "controlPlaneComponentHealthCheckSeconds"]);
        }
        previous_defaults(spec);
        drop_omittable(spec, "");
    }
}

/// Removes from a KubeadmConfig spec what Cluster API changes by itself, for a comparison across
/// versions: the fields that [`prepare`] ignores, and the feature gate that depends on the version.
pub fn normalised(spec: &Value, version: Option<&KubernetesVersion>) -> Value {
    let mut spec = if spec.is_object() { spec.clone() } else { json!({}) };
    remove(&mut spec, &["initConfiguration"]);
    remove(&mut spec, &["clusterConfiguration", "controlPlaneEndpoint"]);
    remove(&mut spec, &["clusterConfiguration", "dns"]);
    remove(&mut spec, &["joinConfiguration", "discovery"]);
    remove(
        &mut spec,
        &["joinConfiguration", "timeouts", "controlPlaneComponentHealthCheckSeconds"],
    );
    let gates = spec.pointer_mut("/clusterConfiguration/featureGates");
    if let Some(Value::Object(gates)) = gates
        && version.is_some_and(sets_local_mode)
        && gates.get(LOCAL_MODE) == Some(&Value::Bool(true))
    {
        gates.remove(LOCAL_MODE);
    }
    drop_omittable(&mut spec, "");
    spec
}

/// Converts an init configuration to the join configuration that Cluster API makes of it.
pub fn init_to_join(current: &mut Value, desired: &Value) {
    if !is_set(&current["initConfiguration"]) {
        return;
    }
    let init = current["initConfiguration"].take();
    remove(current, &["initConfiguration"]);
    let Some(join) = current.as_object_mut().and_then(|map| child(map, "joinConfiguration")) else {
        return;
    };
    let mut set = |field: &str, value: Option<&Value>| match value {
        Some(value) => join.insert(field.to_owned(), value.clone()),
        None => join.remove(field),
    };
    for field in ["timeouts", "patches", "skipPhases", "nodeRegistration"] {
        set(field, init.get(field));
    }
    if let Some(endpoint) = init.get("localAPIEndpoint").filter(|endpoint| is_set(endpoint)) {
        set("controlPlane", Some(&json!({"localAPIEndpoint": endpoint})));
    }
    // Only a join configuration has this field: it never counts as a difference of a machine that
    // initialised the cluster.
    set("caCertPath", desired.pointer("/joinConfiguration/caCertPath"));
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => true,
    }
}

fn remove(spec: &mut Value, path: &[&str]) {
    let Some((last, way)) = path.split_last() else {
        return;
    };
    let parent = way.iter().try_fold(spec, |at, key| at.get_mut(key));
    if let Some(Value::Object(parent)) = parent {
        parent.remove(*last);
    }
}

/// Copies a field of the desired cluster configuration to the current one, so that it is not
/// compared.
fn take_over(desired: &Value, current: &mut Value, field: &str) {
    let wanted = desired.pointer("/clusterConfiguration").and_then(|found| found.get(field));
    let configuration =
        current.as_object_mut().and_then(|current| child(current, "clusterConfiguration"));
    if let Some(configuration) = configuration {
        match wanted {
            Some(value) => configuration.insert(field.to_owned(), value.clone()),
            None => configuration.remove(field),
        };
    }
}

/// Sets the defaults that older releases of Cluster API wrote and newer ones omit.
fn previous_defaults(spec: &mut Value) {
    let Some(spec) = spec.as_object_mut() else {
        return;
    };
    default_text(spec, "format", "cloud-config");
    for configuration in ["initConfiguration", "joinConfiguration"] {
        let registration = child(spec, configuration);
        if let Some(registration) = registration.and_then(|map| child(map, "nodeRegistration")) {
            default_text(registration, "imagePullPolicy", "IfNotPresent");
        }
    }
}

fn default_text(map: &mut Map<String, Value>, key: &str, default: &str) {
    let value = map.entry(key).or_insert(Value::Null);
    if value.is_null() || value == "" {
        *value = json!(default);
    }
}

/// Returns the object at a key; creates it if the key is missing. Returns `None` for another type.
fn child<'a>(map: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    let member = map.entry(key).or_insert(Value::Null);
    if member.is_null() {
        *member = json!({});
    }
    member.as_object_mut()
}

/// Removes members that are equivalent to absent ones (see the table of this module). `list` is the
/// key of the list that `value` is in or is an element of.
fn drop_omittable(value: &mut Value, list: &str) {
    match value {
        Value::Object(map) => {
            for (key, member) in map.iter_mut() {
                drop_omittable(member, key);
            }
            map.retain(|key, member| match member {
                Value::Null => false,
                Value::String(text) => {
                    !text.is_empty() || (key == "value" && ARGUMENT_LISTS.contains(&list))
                }
                Value::Array(items) => !items.is_empty() || key == "taints",
                Value::Object(members) => !members.is_empty(),
                Value::Bool(_) | Value::Number(_) => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(|item| drop_omittable(item, list)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
#[path = "kubeadm_config_tests.rs"]
mod tests;
