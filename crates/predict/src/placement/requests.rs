//! What a pod requests of a node, as the scheduler adds it up
//! (`docs/facts/kubernetes.md#scheduling`).

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use super::quantity::thousandths;

/// Amounts by the name of their resource, in thousandths: `cpu`, `memory`, `pods`, extended resources.
pub(super) type Amounts = BTreeMap<String, i64>;

/// The resource of which each pod requests one.
pub(super) const PODS: &str = "pods";

/// The amounts in a list of resources; what cannot be read counts as zero.
pub(super) fn amounts(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let read =
        |(name, quantity): (&String, &Quantity)| Some((name.clone(), thousandths(&quantity.0)?));
    list.into_iter().flatten().filter_map(read).collect()
}

/// Adds amounts.
pub(super) fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let slot = sum.entry(name.clone()).or_default();
        *slot = slot.saturating_add(*amount);
    }
}

/// Raises amounts to those of another list.
fn raise(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let slot = to.entry(name.clone()).or_default();
        *slot = (*slot).max(*amount);
    }
}

fn requested(resources: Option<&ResourceRequirements>) -> Amounts {
    amounts(resources.and_then(|resources| resources.requests.as_ref()))
}

/// What a pod requests. Sidecars (init containers that restart always) run together with the containers, and with the
/// init
/// containers after them; the other init containers run one after the other.
pub(super) fn requests(spec: &PodSpec) -> Amounts {
    let of = |container: &Container| requested(container.resources.as_ref());
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut own = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &own);
            raise(&mut peak, &sidecars);
        } else {
            add(&mut own, &sidecars);
            raise(&mut peak, &own);
        }
    }
    let mut sum = sidecars;
    for container in &spec.containers {
        add(&mut sum, &of(container));
    }
    raise(&mut sum, &peak);
    // Requests of the pod as a whole replace those of its containers.
    sum.extend(requested(spec.resources.as_ref()));
    add(&mut sum, &amounts(spec.overhead.as_ref()));
    sum.insert(PODS.to_owned(), 1000);
    sum.retain(|_, amount| *amount > 0);
    sum
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sum(spec: Value) -> Vec<(String, i64)> {
        let all = requests(&serde_json::from_value(spec).unwrap());
        all.into_iter().filter(|(name, _)| name != PODS).collect()
    }

    fn container(cpu: &str, restart: Option<&str>) -> Value {
        json!({"name": "c", "restartPolicy": restart, "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn requests_are_the_larger_of_the_containers_and_of_each_init_container() {
        let always = Some("Always");
        for (init, containers, wanted) in [
            (vec![], vec![("1", None), ("500m", None)], 1500),
            (vec![("2", None)], vec![("1", None)], 2000),
            (vec![("1", None), ("1", None)], vec![("1500m", None)], 1500),
            // A sidecar runs next to the containers.
            (vec![("1", always)], vec![("1", None)], 2000),
            // And next to the init containers that start after it, not before.
            (vec![("1", always), ("3", None)], vec![("1", None)], 4000),
            (vec![("3", None), ("1", always)], vec![("1", None)], 3000),
        ] {
            let list = |all: &[(&str, Option<&str>)]| {
                all.iter().map(|(cpu, restart)| container(cpu, *restart)).collect::<Vec<_>>()
            };
            let spec = json!({"initContainers": list(&init), "containers": list(&containers)});
            assert_eq!(sum(spec.clone()), [("cpu".to_owned(), wanted)], "{spec}");
        }
    }

    #[test]
    fn overhead_and_requests_of_the_whole_pod_count() {
        let spec = json!({
            "containers": [container("1", None)],
            "overhead": {"cpu": "250m", "memory": "1"},
            "resources": {"requests": {"cpu": "3"}},
        });
        assert_eq!(sum(spec), [("cpu".to_owned(), 3250), ("memory".to_owned(), 1000)]);
    }

    #[test]
    fn each_pod_takes_the_place_of_one_pod() {
        let all = requests(&serde_json::from_value(json!({"containers": []})).unwrap());
        assert_eq!(all, [(PODS.to_owned(), 1000)].into());
    }
}
