//! Which Machines may be deleted: invariant 3.

use super::*;

fn delete(world: &mut World, name: &str, actor: &str) -> Vec<u8> {
    let set = machine(name, "MachineSet", "md-abc");
    let gone = with(set, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    numbers(&world.observe(CAPI, "Machine", None, None, Some(&gone), actor))
}

#[test]
fn an_unrequested_machine_deletion_is_found() {
    let mut world = world();
    assert_eq!(delete(&mut world.clone(), "w-0", "capi"), [3]);
    assert_eq!(delete(&mut world.clone(), "w-0", "controller"), [3]);
    assert_eq!(delete(&mut world, "w-0", "user"), OK);
}

#[test]
fn surge_scale_down_policy_and_remediation_may_delete() {
    let allow: [fn(&mut World); 4] = [
        |world| put(world, CAPI, "MachineDeployment", &deployment(1, 0)),
        |world| {
            let smaller = with(deployment(0, 1), json!({"spec": {"replicas": 4}}));
            put(world, CAPI, "MachineDeployment", &smaller);
        },
        |world| {
            let policy = json!({"metadata": {"annotations": {keys::ON_UNCOVERED: "Replace"}}});
            put(world, CAPI, "MachineDeployment", &with(deployment(0, 1), policy));
        },
        |world| {
            let mark = json!({"metadata": {"annotations": {keys::REMEDIATE_MACHINE: ""}}});
            put(world, CAPI, "Machine", &with(machine("w-0", "MachineSet", "md-abc"), mark));
        },
    ];
    for (n, allow) in allow.into_iter().enumerate() {
        let mut world = world();
        allow(&mut world);
        assert_eq!(delete(&mut world, "w-0", "capi"), OK, "{n}");
    }
}

/// All workers, in this version; `w-0` is between two MachineSets if it is `marked`.
fn workers(world: &mut World, version: &str, marked: bool) {
    for n in 0..5 {
        let mut worker = machine(&format!("w-{n}"), "MachineSet", "md-abc");
        worker["spec"]["version"] = version.into();
        if marked && n == 0 {
            worker["metadata"]["annotations"] = json!({keys::UPDATE_IN_PROGRESS: ""});
        }
        put(world, CAPI, "Machine", &worker);
    }
}

fn request(world: &mut World, version: &str) {
    let template = json!({"spec": {"template": {"spec": {"version": version}}}});
    put(world, CAPI, "MachineDeployment", &with(deployment(0, 1), template));
}

#[test]
fn cluster_api_may_delete_after_a_user_changed_a_deployment_in_the_middle_of_a_rollout() {
    let mut world = world();
    workers(&mut world, "v1.35.0", false);
    request(&mut world, "v1.35.1");
    workers(&mut world, "v1.35.0", true);
    assert_eq!(
        delete(&mut world.clone(), "w-1", "capi"),
        [3],
        "a rollout alone does not excuse it"
    );
    request(&mut world, "v1.35.0");
    assert_eq!(delete(&mut world.clone(), "w-1", "capi"), OK);
    assert_eq!(delete(&mut world.clone(), "w-1", "controller"), [3]);
    workers(&mut world, "v1.35.0", false);
    assert_eq!(delete(&mut world, "w-1", "capi"), [3], "the rollout has ended");
}

#[test]
fn a_change_that_is_set_back_before_it_had_an_effect_does_not_excuse_a_deletion() {
    let mut world = world();
    workers(&mut world, "v1.35.0", false);
    request(&mut world, "v1.35.1");
    request(&mut world, "v1.35.0");
    assert_eq!(delete(&mut world, "w-1", "capi"), [3]);
}

#[test]
fn cluster_api_may_delete_a_member_whose_update_a_user_cancelled() {
    let member = machine("c-0", "KubeadmControlPlane", "cp");
    let labels = json!({"metadata": {"labels": {keys::CONTROL_PLANE: ""}}});
    let member = with(with(member, labels), json!({"spec": {"version": "v1.34.2"}}));
    let mark = json!({"metadata": {"annotations": {keys::UPDATE_IN_PROGRESS: ""}}});
    let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for (by, violated) in [("user", vec![]), ("capi", vec![3])] {
        let mut world = world();
        put(&mut world, CAPI, "Machine", &with(member.clone(), mark.clone()));
        let mut write = |object: &Value, actor| {
            numbers(&world.observe(CAPI, "Machine", None, None, Some(object), actor))
        };
        assert_eq!(write(&member, by), OK);
        assert_eq!(write(&with(member.clone(), gone.clone()), "capi"), violated, "{by}");
    }
}

#[test]
fn cluster_api_may_delete_a_member_that_is_outdated_before_it_has_joined() {
    let labels = json!({"metadata": {"labels": {keys::CONTROL_PLANE: ""}}});
    let member = with(machine("c-0", "KubeadmControlPlane", "cp"), labels);
    let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for (has_joined, version, violated) in
        [(false, "v1.34.2", vec![]), (true, "v1.34.2", vec![3]), (false, "v1.35.0", vec![3])]
    {
        let mut world = world();
        world.observe(CAPI, "Machine", None, Some(&member), None, "user");
        let member = with(member.clone(), json!({"spec": {"version": version}}));
        let joining = with(member.clone(), json!({"status": {"conditions": []}}));
        if has_joined {
            put(&mut world, CAPI, "Machine", &member);
        }
        put(&mut world, CAPI, "Machine", &joining);
        let gone = with(joining, gone.clone());
        let found = world.observe(CAPI, "Machine", None, None, Some(&gone), "capi");
        assert_eq!(numbers(&found), violated, "{has_joined} {version}");
    }
}

#[test]
fn extra_machines_are_deleted_before_any_other() {
    let mut world = world();
    let extra = json!({"metadata": {"labels": {keys::EXTRA_CAPACITY: "true"}}});
    put(&mut world, CAPI, "Machine", &with(machine("w-0", "MachineSet", "md-abc"), extra));
    assert_eq!(delete(&mut world.clone(), "w-0", "controller"), OK);
    let smaller = with(deployment(0, 1), json!({"spec": {"replicas": 4}}));
    put(&mut world, CAPI, "MachineDeployment", &smaller);
    assert_eq!(delete(&mut world.clone(), "w-0", "capi"), OK);
    assert_eq!(delete(&mut world, "w-1", "capi"), [3], "w-0 stays");
}
