//! Each cause for which Cluster API creates or deletes machines, as predicted and as it then happens. Surge, OnDelete, Uncovered
//! and NotAsked are with the other plans.

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;

use super::*;

/// Merges a patch into the status of a Machine.
async fn write_status(world: &World, machine: &str, status: &Value) {
    let client = world.client("plan-test").unwrap();
    let api: Api<Machine> = Api::namespaced(client, "default");
    let patch = Patch::Merge(json!({"status": status}));
    api.patch_status(machine, &PatchParams::default(), &patch).await.unwrap();
}

async fn annotate(world: &World, kind: &str, name: &str, annotations: &Value) {
    let body = json!({"metadata": {"annotations": annotations}});
    let group = match kind {
        "SandboxMachine" => "infrastructure.cluster.x-k8s.io/v1beta2",
        _ => "cluster.x-k8s.io/v1beta2",
    };
    write(world, group, kind, name, &body).await;
}

/// A machine of a group, the first by name.
async fn first_of(world: &World, owner: &str) -> String {
    let all = facts(world).await.unwrap();
    let names = all.into_iter().filter(|fact| fact.owner == owner).map(|fact| fact.name);
    names.min().unwrap()
}

const PLANE: &str = "KubeadmControlPlane/edge-1";
const WORKERS: &str = "MachineDeployment/edge-1-md-0";

#[test]
fn a_date_that_has_passed_replaces_older_machines() {
    in_world(async {
        for (of_workers, owner) in [(true, WORKERS), (false, PLANE)] {
            let world = up();
            let spec = json!({"rollout": {"after": world.now()}});
            world.pass(Duration::from_mins(1)).await;
            let change = if of_workers { workers(&spec) } else { plane(&spec) };
            let group = only(comes_true(&world, &[change]).await);
            assert_eq!(group.machines.deleted, 3, "{owner}");
            assert_eq!(
                reasons(&group).into_iter().collect::<BTreeSet<_>>(),
                [CauseReason::RolloutAfter].into()
            );
        }
    });
}

#[test]
fn certificates_that_expire_replace_the_machines_of_a_control_plane() {
    in_world(async {
        let world = up();
        let soon = world.now() + jiff::SignedDuration::from_hours(240);
        for fact in facts(&world).await.unwrap().iter().filter(|fact| fact.owner == PLANE) {
            let expires = json!({refit_kinds::canonical::CERTIFICATES_EXPIRY: soon.to_string()});
            annotate(&world, "Machine", &fact.name, &expires).await;
        }
        world.pass(Duration::from_mins(3)).await;
        let before = json!({"rollout": {"before": {"certificatesExpiryDays": 30}}});
        let group = only(comes_true(&world, &[plane(&before)]).await);
        assert_eq!(group.machines.deleted, 3, "{group:#?}");
        assert!(reasons(&group).contains(&CauseReason::CertificatesExpire));
    });
}

#[test]
fn a_machine_that_is_marked_for_deletion_is_replaced() {
    in_world(async {
        for key in [keys::DELETE_MACHINE, keys::REMEDIATE_MACHINE] {
            let world = up();
            let machine = first_of(&world, PLANE).await;
            annotate(&world, "Machine", &machine, &json!({key: ""})).await;
            let group = only(comes_true(&world, &[plane(&json!({"version": PATCH}))]).await);
            assert_eq!(group.machines.deleted, 1, "{key}: {group:#?}");
            assert_eq!(reasons(&group), [CauseReason::Marked]);
        }
    });
}

#[test]
fn a_machine_that_records_no_template_is_replaced() {
    in_world(async {
        let world = up();
        let machine = first_of(&world, PLANE).await;
        let of = world.machines().into_iter().find(|one| one["metadata"]["name"] == *machine);
        let of = of.unwrap()["spec"]["infrastructureRef"]["name"].as_str().unwrap().to_owned();
        let nothing = json!({keys::CLONED_FROM_NAME: null, keys::CLONED_FROM_GROUPKIND: null});
        annotate(&world, "SandboxMachine", &of, &nothing).await;
        let group = only(comes_true(&world, &[plane(&json!({"version": PATCH}))]).await);
        assert_eq!((group.machines.in_place, group.machines.deleted), (2, 1), "{group:#?}");
        assert_eq!(reasons(&group), [CauseReason::NotCloned]);
    });
}

#[test]
fn the_only_unhealthy_machine_of_a_control_plane_is_deleted() {
    in_world(async {
        let world = up();
        let machine = first_of(&world, PLANE).await;
        let node = facts(&world).await.unwrap().into_iter().find(|fact| fact.name == machine);
        let (node, now) = (node.unwrap().node_name, world.now());
        world.with_host(&node, |host| host.power_off(now)).unwrap();
        // Its kubelet does not report it again.
        let workload = world.workload_client("default/edge-1", "plan-test").unwrap();
        let pods: Api<Pod> = Api::namespaced(workload, "kube-system");
        let scheduler = format!("kube-scheduler-{node}");
        pods.delete(&scheduler, &DeleteParams::default().grace_period(0)).await.unwrap();
        world.pass(Duration::from_mins(3)).await;
        let group = only(comes_true(&world, &[plane(&json!({"version": PATCH}))]).await);
        assert_eq!(group.machines.deleted, 1, "{group:#?}");
        assert_eq!(reasons(&group), [CauseReason::FailsPreflight]);
    });
}

#[test]
fn another_number_of_replicas_creates_and_deletes_machines() {
    in_world(async {
        for (change, new, deleted) in [
            (workers(&json!({"replicas": 4})), 1, 0),
            (workers(&json!({"replicas": 2})), 0, 1),
            (plane(&json!({"replicas": 5})), 2, 0),
            (
                plane(
                    &json!({"replicas": 1, "rollout": {"strategy": {"rollingUpdate": {"maxSurge": 1}}}}),
                ),
                0,
                2,
            ),
        ] {
            let world = up();
            let group = only(comes_true(&world, &[change]).await);
            assert_eq!((group.machines.new, group.machines.deleted), (new, deleted), "{group:#?}");
            assert_eq!(reasons(&group), [CauseReason::Replicas]);
        }
    });
}

/// The conditions of a Machine whose health check has failed.
fn failed_check(world: &World, machine: &str) -> Value {
    let machines = world.machines();
    let found = machines.iter().find(|one| one["metadata"]["name"] == *machine).unwrap();
    let mut conditions: Vec<Value> = found["status"]["conditions"].as_array().unwrap().clone();
    for type_ in ["HealthCheckSucceeded", "OwnerRemediated"] {
        conditions.retain(|condition| condition["type"] != type_);
        conditions
            .push(json!({"type": type_, "status": "False", "reason": "Failed", "message": "",
            "lastTransitionTime": world.now()}));
    }
    json!(conditions)
}

#[test]
fn a_machine_whose_health_check_failed_is_replaced() {
    in_world(async {
        for (owner, change) in
            [(PLANE, plane(&json!({"version": PATCH}))), (WORKERS, version_of_workers(PATCH))]
        {
            let world = up();
            let machine = first_of(&world, owner).await;
            let status = json!({"conditions": failed_check(&world, &machine)});
            // Cluster API acts on it at once: the plan sees it before.
            let see = |input: &mut Input| {
                let mut seen = input.current.get("Machine", "default", &machine).unwrap().clone();
                seen["status"]["conditions"] = status["conditions"].clone();
                input.current.insert(seen);
            };
            let make = async || {
                write_status(&world, &machine, &status).await;
                apply(&world, &change).await;
            };
            let group = only(compared(&world, std::slice::from_ref(&change), see, make).await);
            assert_eq!(group.machines.deleted, 1, "{owner}: {group:#?}");
            assert_eq!(reasons(&group), [CauseReason::Remediation]);
        }
    });
}

#[test]
fn the_only_machine_of_a_control_plane_is_held_only_where_its_namespace_holds_replacements() {
    in_world(async {
        let single = |world: World| async move {
            let mut object = plane(&json!({"version": PATCH}));
            object["metadata"]["annotations"] = json!({keys::SINGLE_REPLICA: "InPlace"});
            only(comes_true(&world, &[object]).await)
        };
        let labelled = |hold: bool| {
            let mut all = objects(1, 1);
            let hold = hold.then_some(keys::OPTED_IN);
            all.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
                "name": "default", "labels": {keys::HOLD_REPLACEMENTS: hold}}}));
            all
        };
        let held = single(come_up(labelled(true)).await).await;
        assert_eq!((held.machines.in_place, held.machines.deleted), (1, 0), "{held:#?}");
        let replaced = single(come_up(labelled(false)).await).await;
        assert_eq!((replaced.machines.new, replaced.machines.deleted), (1, 1), "{replaced:#?}");
        assert_eq!(reasons(&replaced), [CauseReason::NotHeld]);
    });
}
