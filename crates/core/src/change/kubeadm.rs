//! The built-in updater `kubeadm`: a Kubernetes version, and what a pure version bump drags along.

use serde_json::{Map, Value};

use super::{
    cover::{Case, Updater},
    diff::{Change, changes},
    objects::{Part, root},
    path::Path,
};
use refit_kinds::version::KubernetesVersion;

/// Goes to a newer version of Kubernetes with kubeadm and packages.
pub const UPDATER: Updater = Updater { name: "kubeadm", claims };

/// The feature gate that Cluster API sets by itself for some minors (`spec/capi.md 2.3`).
const LOCAL_MODE: &str = "ControlPlaneKubeletLocalMode";

fn claims(part: Part, change: &Change, case: &Case<'_>) -> bool {
    if !case.current.is_kubeadm() || !case.desired.is_kubeadm() {
        return false;
    }
    match part {
        Part::Owner => {
            change.path == root(case.level).key("version")
                && matches!((case.from_version, case.to_version), (Some(from), Some(to))
                    if from.hop_to(to).is_upgrade())
        }
        // The machine itself is somebody else's: a template that was only renamed has equal specs
        // and nothing to claim.
        Part::Infrastructure => false,
        Part::Bootstrap => !matters(change, case),
    }
}

/// Whether a change of the bootstrap config asks for something on a machine that runs already.
///
/// It does where a difference remains once both sides are stripped of what Cluster API itself
/// rewrites for a version bump or ignores when it compares.
fn matters(change: &Change, case: &Case<'_>) -> bool {
    let level = case.level;
    let (Some(from), Some(to)) =
        (case.current.bootstrap_spec(level), case.desired.bootstrap_spec(level))
    else {
        return true;
    };
    let mut from = from.clone();
    init_to_join(&mut from, to);
    let from = normalised(&from, case.from_version);
    let to = normalised(to, case.to_version);
    changes(&root(level), Some(&from), Some(&to)).iter().any(|real| real.path.touches(&change.path))
}

/// A KubeadmConfig spec without what Cluster API changes by itself (`spec/capi.md 2.3`): the
/// discovery with its token, the endpoint and DNS that follow the cluster, the health check
/// timeout, the feature gate that follows the version, and members that are empty.
pub fn normalised(spec: &Value, version: Option<&KubernetesVersion>) -> Value {
    let mut spec = spec.clone();
    let strip = |spec: &mut Value, keys: &[&str]| Path::of(keys).put(spec, None);
    strip(&mut spec, &["initConfiguration"]);
    strip(&mut spec, &["clusterConfiguration", "controlPlaneEndpoint"]);
    strip(&mut spec, &["clusterConfiguration", "dns"]);
    strip(&mut spec, &["joinConfiguration", "discovery"]);
    strip(&mut spec, &["joinConfiguration", "timeouts", "controlPlaneComponentHealthCheckSeconds"]);
    let gate = Path::of(&["clusterConfiguration", "featureGates", LOCAL_MODE]);
    if version.is_some_and(sets_local_mode) && gate.get(&spec) == Some(&Value::Bool(true)) {
        gate.put(&mut spec, None);
    }
    drop_empty(&mut spec);
    if spec.is_null() {
        spec = Value::Object(Map::new());
    }
    spec
}

/// Whether Cluster API turns [`LOCAL_MODE`] on for this version.
fn sets_local_mode(version: &KubernetesVersion) -> bool {
    let first = KubernetesVersion::new(1, 31, 0);
    let past = KubernetesVersion::new(1, 36, 0);
    !version.minor_below(&first) && version.minor_below(&past)
}

/// Writes an init configuration as the join configuration that Cluster API makes of it. What a
/// machine joined with instead of initialised is compared, as Cluster API does.
pub fn init_to_join(spec: &mut Value, desired: &Value) {
    let Some(init) = spec.get("initConfiguration").cloned() else {
        return;
    };
    if desired.get("initConfiguration").is_some() {
        return;
    }
    let join = |keys: &[&str]| {
        let mut path = vec!["joinConfiguration"];
        path.extend_from_slice(keys);
        Path::of(&path)
    };
    for key in ["timeouts", "patches", "skipPhases", "nodeRegistration"] {
        if let Some(value) = init.get(key) {
            join(&[key]).put(spec, Some(value.clone()));
        }
    }
    if let Some(endpoint) = init.get("localAPIEndpoint") {
        join(&["controlPlane", "localAPIEndpoint"]).put(spec, Some(endpoint.clone()));
    }
    let ca = join(&["caCertPath"]);
    if let Some(path) = ca.get(desired) {
        ca.put(spec, Some(path.clone()));
    }
}

/// Removes members that are null, `{}` or `[]`, as Cluster API does; empty taints mean something.
fn drop_empty(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for member in map.values_mut() {
                drop_empty(member);
            }
            map.retain(|key, member| match member {
                Value::Null => false,
                Value::Array(items) => !items.is_empty() || key == "taints",
                Value::Object(members) => !members.is_empty(),
                _ => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty),
        _ => {}
    }
}
