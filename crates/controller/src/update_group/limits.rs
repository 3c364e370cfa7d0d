//! What the owner of a group says of it.

use refit_core::group::Limits;

use refit_kinds::version::KubernetesVersion;

use crate::{context::Stores, groups::Group};

/// How many machines of a group may be down, by its owner's spec. `present` stands in for the
/// replicas of an owner whose kind is not known here.
pub(crate) fn limits_of(stores: &Stores, group: &Group, present: usize) -> Limits {
    let present = i32::try_from(present).unwrap_or(i32::MAX);
    let key = group.owner_key();
    match group.spec.owner.kind.as_str() {
        "MachineDeployment" => {
            let owner = stores.machine_deployments.get(&key);
            let replicas = owner.as_ref().and_then(|owner| owner.spec.replicas).unwrap_or(present);
            let max_unavailable = owner.map_or(0, |owner| owner.max_unavailable(replicas.into()));
            let max_unavailable = i32::try_from(max_unavailable).unwrap_or(i32::MAX);
            Limits { replicas, max_unavailable }
        }
        "MachineSet" => {
            let replicas = stores.machine_sets.get(&key).and_then(|owner| owner.spec.replicas);
            Limits { replicas: replicas.unwrap_or(present), max_unavailable: 1 }
        }
        _ => {
            let replicas = stores.control_planes.get(&key).and_then(|owner| owner.spec.replicas);
            Limits::control_plane(replicas.unwrap_or(present))
        }
    }
}

/// Observed generation, generation, and replicas: wanted, there, up to date.
type OwnerSays = (Option<i64>, Option<i64>, [Option<i32>; 3]);

/// Whether the owner says that all of its machines are what it wants.
pub(crate) fn owner_is_up_to_date(stores: &Stores, group: &Group) -> bool {
    let key = group.owner_key();
    let seen: Option<OwnerSays> = match group.spec.owner.kind.as_str() {
        "MachineDeployment" => stores.machine_deployments.get(&key).map(|owner| {
            let status = owner.status.clone().unwrap_or_default();
            (
                status.observed_generation,
                owner.metadata.generation,
                [owner.spec.replicas, status.replicas, status.up_to_date_replicas],
            )
        }),
        "KubeadmControlPlane" => stores.control_planes.get(&key).map(|owner| {
            let status = owner.status.clone().unwrap_or_default();
            (
                status.observed_generation,
                owner.metadata.generation,
                [owner.spec.replicas, status.replicas, status.up_to_date_replicas],
            )
        }),
        _ => None,
    };
    seen.is_some_and(|(observed, generation, [wanted, there, up_to_date])| {
        observed == generation && there == up_to_date && wanted.unwrap_or(1) == there.unwrap_or(0)
    })
}

/// The version that the owner's spec asks for.
pub(crate) fn owner_version(stores: &Stores, group: &Group) -> Option<KubernetesVersion> {
    let key = group.owner_key();
    match group.spec.owner.kind.as_str() {
        "MachineDeployment" => {
            stores.machine_deployments.get(&key)?.spec.template.spec.version.clone()
        }
        "MachineSet" => stores.machine_sets.get(&key)?.spec.template.spec.version.clone(),
        _ => stores.control_planes.get(&key).map(|owner| owner.spec.version.clone()),
    }?
    .parse()
    .ok()
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::{GroupOwner, UpdateGroupSpec};
    use refit_runtime::ObjectKey;
    use serde_json::json;

    use super::*;

    fn group(kind: &str) -> Group {
        Group {
            key: ObjectKey::new("default", format!("{}-g", kind.to_lowercase())),
            spec: UpdateGroupSpec {
                cluster_name: "edge-1".into(),
                owner: GroupOwner { api_version: "v1".into(), kind: kind.into(), name: "g".into() },
                control_plane: kind == "KubeadmControlPlane",
            },
        }
    }

    fn deployment(replicas: i32, max: &serde_json::Value) -> Stores {
        let stores = Stores::default();
        let object = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "MachineDeployment",
            "metadata": {"namespace": "default", "name": "g"},
            "spec": {
                "clusterName": "edge-1",
                "replicas": replicas,
                "selector": {},
                "template": {"spec": {"clusterName": "edge-1", "version": "v1.35.0"}},
                "rollout": {"strategy": {"rollingUpdate": {"maxUnavailable": max}}},
            },
        });
        stores.machine_deployments.insert(serde_json::from_value(object).unwrap());
        stores
    }

    #[test]
    fn a_percentage_of_unavailable_machines_is_rounded_down() {
        let group = group("MachineDeployment");
        let slots = |replicas, max| limits_of(&deployment(replicas, &max), &group, 0).slots();
        assert_eq!(slots(10, json!("25%")), 2);
        assert_eq!(slots(3, json!("25%")), 1);
        assert_eq!(slots(5, json!(3)), 3);
        assert_eq!(slots(5, json!(0)), 1);
    }

    #[test]
    fn an_owner_is_up_to_date_by_its_own_word_on_its_present_spec() {
        let says = |observed: i64, there: i32, up_to_date: i32| {
            let stores = deployment(3, &json!(1));
            let key = ObjectKey::new("default", "g");
            let mut owner = stores.machine_deployments.get(&key).unwrap().as_ref().clone();
            owner.metadata.generation = Some(2);
            owner.status = Some(
                serde_json::from_value(json!({
                    "observedGeneration": observed, "replicas": there,
                    "upToDateReplicas": up_to_date,
                }))
                .unwrap(),
            );
            stores.machine_deployments.insert(owner);
            owner_is_up_to_date(&stores, &group("MachineDeployment"))
        };
        assert!(says(2, 3, 3));
        assert!(!says(1, 3, 3));
        assert!(!says(2, 3, 2));
        assert!(!says(2, 2, 2));
    }

    #[test]
    fn a_control_plane_has_one_slot_whatever_its_size() {
        let limits = limits_of(&Stores::default(), &group("KubeadmControlPlane"), 5);
        assert_eq!((limits.slots(), limits.others_needed()), (1, 4));
    }

    #[test]
    fn the_owners_version_is_that_of_its_template() {
        let stores = deployment(1, &json!(1));
        let version = owner_version(&stores, &group("MachineDeployment"));
        assert_eq!(version, "v1.35.0".parse().ok());
        assert_eq!(owner_version(&stores, &group("MachineSet")), None);
    }
}
