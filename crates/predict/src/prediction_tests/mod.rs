mod drains;
mod live;
mod target;
mod timeline;

use refit_cluster_api::kubeadm_config;
use refit_core::change::{OnUncovered, Provider};
use refit_kinds::keys;
use serde_json::{Value, json};

use super::{preflight::WorkloadFacts, *};

const OLD: &str = "v1.34.2";
const NEW: &str = "v1.35.0";

fn now() -> jiff::Timestamp {
    "2026-03-02T08:00:00Z".parse().unwrap()
}

fn template(kind: &str, name: &str, image: &str) -> Value {
    json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"spec": {"template": image}}}})
}

fn cluster() -> Value {
    json!({"kind": "Cluster", "metadata": {"name": "edge-1", "namespace": "default"},
        "spec": {"controlPlaneRef": {"kind": "KubeadmControlPlane", "name": "edge-1"}}})
}

fn control_plane(replicas: i64, surge: i64) -> Value {
    json!({"kind": "KubeadmControlPlane", "metadata": {"name": "edge-1", "namespace": "default"},
        "spec": {"replicas": replicas, "version": OLD,
            "rollout": {"strategy": {"rollingUpdate": {"maxSurge": surge}}},
            "kubeadmConfigSpec": {"joinConfiguration": {}, "initConfiguration": {}},
            "machineTemplate": {"spec": {"infrastructureRef": {
                "apiGroup": "infrastructure.cluster.x-k8s.io",
                "kind": "VSphereMachineTemplate", "name": "cp"}}}}})
}

fn deployment(replicas: i64, surge: i64, unavailable: i64) -> Value {
    json!({"kind": "MachineDeployment", "metadata": {"name": "md", "namespace": "default"},
        "spec": {"clusterName": "edge-1", "replicas": replicas,
            "rollout": {"strategy": {"rollingUpdate":
                {"maxSurge": surge, "maxUnavailable": unavailable}}},
            "template": {"spec": {"clusterName": "edge-1", "version": OLD,
                "bootstrap": {"configRef": {"kind": "KubeadmConfigTemplate", "name": "w"}},
                "infrastructureRef": {"kind": "VSphereMachineTemplate", "name": "w"}}}}})
}

fn world(objects: &[Value]) -> Objects {
    let mut all: Objects = [
        cluster(),
        template("VSphereMachineTemplate", "cp", "A"),
        template("VSphereMachineTemplate", "w", "A"),
        template("KubeadmConfigTemplate", "w", "same"),
    ]
    .into_iter()
    .collect();
    all.extend(objects.iter().cloned());
    all
}

fn set(object: &Value, pointer: &str, to: Value) -> Value {
    let mut object = object.clone();
    *object.pointer_mut(pointer).unwrap() = to;
    object
}

/// An input in which all groups are upgraded to [`NEW`].
fn upgrade(objects: &[Value]) -> Input {
    let current = world(objects);
    let mut desired = current.clone();
    let mut targets = Vec::new();
    for object in objects {
        let target = GroupRef::of(object);
        if !matches!(refit_kinds::json::kind(object), "KubeadmControlPlane" | "MachineDeployment") {
            continue;
        }
        desired.insert(set(object, view::version_at(&target), json!(NEW)));
        targets.push(target);
    }
    Input::offline(now(), current, desired, targets)
}

fn counts(plan: &GroupPrediction) -> (i64, i64, i64, i64) {
    let Counts { now, in_place, new, deleted } = plan.machines;
    (now, in_place, new, deleted)
}

fn reasons(plan: &GroupPrediction) -> Vec<CauseReason> {
    plan.causes.iter().map(|cause| cause.reason).collect()
}

fn only(plan: Prediction) -> GroupPrediction {
    assert_eq!(plan.groups.len(), 1, "{plan:#?}");
    plan.groups.into_iter().next().unwrap()
}

#[test]
fn a_version_without_surge_goes_in_place_and_names_its_updater() {
    let found = predict(&upgrade(&[control_plane(3, 0), deployment(5, 0, 1)]));
    assert_eq!(found.outcome, PredictedOutcome::InPlace, "{found:#?}");
    let [plane, workers] = &found.groups[..] else {
        panic!("two groups");
    };
    assert_eq!((plane.turn, workers.turn), (1, 2));
    assert_eq!(counts(plane), (3, 3, 0, 0));
    assert_eq!(counts(workers), (5, 5, 0, 0));
    assert_eq!(
        plane.paths[0].to_string(),
        "Machine/edge-1-0 spec.version: \"v1.34.2\" -> \"v1.35.0\" (kubeadm), and 2 more machines"
    );
    assert_eq!(
        workers.paths[0].line,
        "MachineSet/md spec.template.spec.version: \"v1.34.2\" -> \"v1.35.0\" (kubeadm)"
    );
    assert!(plane.causes.is_empty() && workers.blocked_by.is_empty());
}

#[test]
fn surge_is_predicted_with_the_field_to_set() {
    let table = [
        (control_plane(3, 1), (3, 2, 1, 1), "maxSurge to 0"),
        (control_plane(2, 1), (2, 1, 1, 1), "spec.replicas to 3"),
        (control_plane(1, 1), (1, 0, 1, 1), "refit.dev/single-replica=InPlace"),
        (deployment(3, 1, 0), (3, 2, 1, 1), "maxUnavailable 1"),
        (deployment(1, 1, 0), (1, 0, 1, 1), "maxUnavailable 1"),
    ];
    for (object, want, remedy) in table {
        let found = only(predict(&upgrade(std::slice::from_ref(&object))));
        assert_eq!(counts(&found), want, "{found:#?}");
        assert_eq!(found.outcome, PredictedOutcome::Replaced);
        assert_eq!(reasons(&found), [CauseReason::Surge]);
        assert!(found.causes[0].remedy.contains(remedy), "{found:#?}");
    }
}

/// An input whose namespaces have these labels.
fn labelled(mut input: Input, enabled: &[&str]) -> Input {
    let all = || enabled.iter().map(|key| ((*key).to_owned(), "enabled".to_owned())).collect();
    input.namespaces.values_mut().for_each(|labels| *labels = Read::Known(all()));
    input
}

/// An input whose namespaces hold replacements.
fn held(input: Input) -> Input {
    labelled(input, &[keys::IN_PLACE, keys::HOLD_REPLACEMENTS])
}

#[test]
fn the_only_machine_of_a_group_is_held_where_replacements_are() {
    let plane = control_plane(1, 1);
    for (object, remedy) in
        [(&plane, "refit.dev/single-replica=InPlace"), (&deployment(1, 1, 0), "maxSurge 0")]
    {
        let found = only(predict(&held(upgrade(std::slice::from_ref(object)))));
        assert_eq!(counts(&found), (1, 0, 0, 0), "{found:#?}");
        assert_eq!(found.outcome, PredictedOutcome::Blocked);
        let [blocked] = &found.blocked_by[..] else { panic!("{found:#?}") };
        assert_eq!(blocked.reason, "ReplacementHeld");
        assert!(blocked.message.contains(remedy), "{blocked:?}");
    }
    let mut replaced = plane;
    replaced["metadata"]["annotations"] = json!({keys::ON_UNCOVERED: "Replace"});
    let found = only(predict(&held(upgrade(&[replaced]))));
    assert_eq!(found.outcome, PredictedOutcome::Replaced, "{found:#?}");
}

#[test]
fn the_only_machine_of_a_control_plane_goes_in_place_on_request() {
    let mut plane = control_plane(1, 1);
    plane["metadata"]["annotations"] = json!({keys::SINGLE_REPLICA: "InPlace"});
    let input = upgrade(&[plane]);
    let found = only(predict(&held(input.clone())));
    assert_eq!(counts(&found), (1, 1, 0, 0), "{found:#?}");
    assert_eq!(found.outcome, PredictedOutcome::InPlace);
    assert!(found.notes.iter().any(|note| note.contains("an UpgradeTask updates")), "{found:#?}");
}

#[test]
fn the_only_machine_of_a_control_plane_is_replaced_where_nothing_holds_it() {
    let mut plane = control_plane(1, 1);
    plane["metadata"]["annotations"] = json!({keys::SINGLE_REPLICA: "InPlace"});
    let input = upgrade(std::slice::from_ref(&plane));
    let found = only(predict(&labelled(input.clone(), &[keys::IN_PLACE])));
    assert_eq!(found.outcome, PredictedOutcome::Replaced, "{found:#?}");
    assert_eq!((counts(&found), reasons(&found)), ((1, 0, 1, 1), vec![CauseReason::NotHeld]));
    assert!(found.causes[0].remedy.contains("refit.dev/hold-replacements=enabled"), "{found:#?}");

    let closed = only(predict(&labelled(input.clone(), &[])));
    assert_eq!(closed.outcome, PredictedOutcome::Replaced, "{closed:#?}");
    assert_eq!(reasons(&closed), [CauseReason::NotAsked]);
    assert!(closed.causes[0].message.contains("refit.dev/in-place=enabled"), "{closed:#?}");

    // A hold needs no opt-in.
    let refused = only(predict(&labelled(input, &[keys::HOLD_REPLACEMENTS])));
    assert_eq!(refused.outcome, PredictedOutcome::Blocked, "{refused:#?}");
    assert_eq!(refused.blocked_by[0].reason, "NotOptedIn");

    // A task takes over what Refit has paused, and Cluster API creates no machine before. Another client's pause stays.
    for (pause, task, outcome) in [
        (keys::HELD, None, PredictedOutcome::InPlace),
        (keys::TASK, Some("old"), PredictedOutcome::InPlace),
        ("", Some("old"), PredictedOutcome::Blocked),
        ("", None, PredictedOutcome::Blocked),
        ("maintenance", Some("old"), PredictedOutcome::Blocked),
    ] {
        plane["metadata"]["annotations"][keys::PAUSED] = json!(pause);
        plane["metadata"]["annotations"][keys::TASK] = json!(task);
        for input in
            [upgrade(std::slice::from_ref(&plane)), held(upgrade(std::slice::from_ref(&plane)))]
        {
            let paused = only(predict(&input));
            assert_eq!(paused.outcome, outcome, "{pause:?} {paused:#?}");
        }
    }
}

#[test]
fn a_pause_because_of_a_hold_ends_where_nothing_is_held() {
    let mut plane = control_plane(1, 1);
    plane["metadata"]["annotations"] =
        json!({keys::PAUSED: keys::HELD, keys::ON_UNCOVERED: "Replace"});
    let found = only(predict(&held(upgrade(std::slice::from_ref(&plane)))));
    assert_eq!(found.outcome, PredictedOutcome::Replaced, "{found:#?}");
    plane["metadata"]["annotations"] = json!({keys::PAUSED: keys::HELD});
    let found = only(predict(&held(upgrade(&[plane]))));
    assert_eq!(found.blocked_by[0].reason, "ReplacementHeld", "{found:#?}");
}

#[test]
fn a_plan_of_files_reads_the_labels_of_a_namespace_among_them() {
    let mut plane = control_plane(1, 1);
    plane["metadata"]["annotations"] = json!({keys::SINGLE_REPLICA: "InPlace"});
    let namespace = json!({"kind": "Namespace", "metadata": {"name": "default",
        "labels": {keys::IN_PLACE: "enabled", keys::HOLD_REPLACEMENTS: "enabled"}}});
    let found = only(predict(&upgrade(&[plane, namespace])));
    assert_eq!(found.outcome, PredictedOutcome::InPlace, "{found:#?}");
}

#[test]
fn on_delete_waits_for_a_user() {
    let object = set(&deployment(3, 0, 1), "/spec/rollout/strategy", json!({"type": "OnDelete"}));
    let found = only(predict(&upgrade(&[object])));
    assert_eq!(counts(&found), (3, 0, 0, 0));
    assert_eq!(found.outcome, PredictedOutcome::Replaced);
    assert_eq!(reasons(&found), [CauseReason::OnDelete]);
}

/// A group whose template changed.
fn rotated(object: &Value, pointer: &str, image: &str, policy: &str) -> Input {
    let mut input = upgrade(&[]);
    let current = world(std::slice::from_ref(object));
    let mut wanted = set(object, pointer, json!("next"));
    if !policy.is_empty() {
        wanted["metadata"]["annotations"] = json!({"refit.dev/on-uncovered": policy});
    }
    input.targets = vec![GroupRef::of(object)];
    input.namespaces =
        Input::offline(now(), Objects::new(), Objects::new(), input.targets.clone()).namespaces;
    input.desired = current.clone();
    input.desired.insert(wanted);
    input.desired.insert(template("VSphereMachineTemplate", "next", image));
    input.current = current;
    input
}

const PLANE_REF: &str = "/spec/machineTemplate/spec/infrastructureRef/name";
const WORKER_REF: &str = "/spec/template/spec/infrastructureRef/name";

#[test]
fn a_template_of_equal_spec_goes_in_place() {
    for (object, pointer) in [(control_plane(3, 0), PLANE_REF), (deployment(3, 0, 1), WORKER_REF)] {
        let found = only(predict(&rotated(&object, pointer, "A", "")));
        assert_eq!(found.outcome, PredictedOutcome::InPlace, "{found:#?}");
        assert_eq!(counts(&found), (3, 3, 0, 0));
    }
}

#[test]
fn an_uncovered_change_stops_or_replaces_by_policy() {
    for (object, pointer, kind) in [
        (control_plane(3, 0), PLANE_REF, "VSphereMachine/edge-1-0 spec.template"),
        (deployment(3, 0, 1), WORKER_REF, "VSphereMachineTemplate/w spec.template.spec.template"),
    ] {
        let found = only(predict(&rotated(&object, pointer, "B", "")));
        assert_eq!(found.outcome, PredictedOutcome::Blocked, "{found:#?}");
        assert_eq!(counts(&found), (3, 0, 0, 0));
        assert_eq!(found.blocked_by[0].reason, "UncoveredPreserve");
        assert_eq!(found.paths[0].line, format!("{kind}: \"A\" -> \"B\" (no updater)"));
        let found = only(predict(&rotated(&object, pointer, "B", "Replace")));
        assert_eq!(found.outcome, PredictedOutcome::Replaced, "{found:#?}");
        assert_eq!(counts(&found), (3, 0, 3, 3));
        assert_eq!(reasons(&found), [CauseReason::Uncovered]);
    }
}

/// An Updater that leaves the image of vSphere machines.
fn leaves_image() -> Value {
    json!({"apiVersion": "refit.dev/v1alpha1", "kind": "Updater", "metadata": {"name": "image"},
    "spec": {"action": "Leave", "order": 1, "claims": [{
        "group": "infrastructure.cluster.x-k8s.io", "kind": "VSphereMachine", "paths": ["/spec/template"],
    }]}})
}

#[test]
fn a_change_that_an_updater_leaves_is_made_in_place_where_the_provider_accepts_it() {
    for (object, pointer) in [(control_plane(3, 0), PLANE_REF), (deployment(3, 0, 1), WORKER_REF)] {
        let mut input = rotated(&object, pointer, "B", "");
        input.desired.insert(leaves_image());
        let offline = only(predict(&input));
        assert_eq!(offline.outcome, PredictedOutcome::InPlace, "{offline:#?}");
        assert_eq!(counts(&offline), (3, 3, 0, 0));
        assert!(offline.paths[0].line.ends_with("(left as it is by image)"), "{offline:#?}");
        assert!(offline.notes[0].contains("assumes that the provider"), "{offline:#?}");
        let question = offline.questions[0].clone();

        let answered = |answer: Provider| {
            let answers = offline.questions.iter().map(|q| (q.machine.clone(), answer.clone()));
            let providers = Providers::Asked(answers.collect());
            only(predict(&Input { providers, ..input.clone() }))
        };
        let accepted = answered(question.change.accepted);
        assert_eq!(accepted.outcome, PredictedOutcome::InPlace);
        let refused = answered(Provider::Refuses { why: "spec is immutable".into() });
        assert_eq!(refused.blocked_by[0].reason, "UncoveredPreserve");
        assert!(
            refused.paths[0].line.ends_with("(the API server refuses it: spec is immutable)"),
            "{refused:#?}"
        );
        let forbidden = answered(Provider::Forbidden { why: "cannot get".into() });
        assert_eq!(forbidden.blocked_by[0].reason, "ProviderForbidden");
    }
}

#[test]
fn the_controllers_default_policy_applies_if_unset() {
    let mut input = rotated(&deployment(3, 0, 1), WORKER_REF, "B", "");
    input.on_uncovered = OnUncovered::Replace;
    assert_eq!(only(predict(&input)).outcome, PredictedOutcome::Replaced);
}

#[test]
fn a_missing_template_blocks_by_name() {
    let mut input = rotated(&deployment(3, 0, 1), WORKER_REF, "B", "");
    let wanted = input.desired.get("MachineDeployment", "default", "md").unwrap();
    let wanted = set(wanted, WORKER_REF, json!("nowhere"));
    input.desired.insert(wanted);
    let found = only(predict(&input));
    assert_eq!(found.outcome, PredictedOutcome::Blocked);
    assert_eq!(found.blocked_by[0].object, "VSphereMachineTemplate/nowhere");
}

#[test]
fn without_hook_calls_every_machine_is_replaced() {
    let mut input = upgrade(&[control_plane(3, 0), deployment(3, 0, 1)]);
    input.extensions = Read::Known(Vec::new());
    let found = predict(&input);
    for group in &found.groups {
        assert_eq!(counts(group), (3, 0, 3, 3), "{group:#?}");
        assert_eq!(reasons(group), [CauseReason::NotAsked]);
        assert!(group.causes[0].message.contains("refit install"));
        assert!(group.blocked_by.is_empty());
    }
}

#[test]
fn a_paused_cluster_blocks_everything() {
    let mut input = upgrade(&[control_plane(3, 1)]);
    let mut cluster = cluster();
    cluster["spec"]["paused"] = json!(true);
    input.desired.insert(cluster);
    let found = only(predict(&input));
    assert_eq!(found.outcome, PredictedOutcome::Blocked);
    assert_eq!(found.blocked_by[0].reason, "Paused");
    assert_eq!(counts(&found), (3, 0, 0, 0));
}

#[test]
fn a_group_in_the_desired_state_is_unchanged() {
    let mut input = upgrade(&[control_plane(3, 0), deployment(3, 1, 0)]);
    input.desired = input.current.clone();
    let found = predict(&input);
    assert_eq!(found.outcome, PredictedOutcome::Unchanged, "{found:#?}");
    assert!(found.groups.iter().all(|group| group.paths.is_empty()));
}

/// The prediction of an upgrade to another version than usual.
fn to_version(input: &mut Input, (kind, name, pointer): (&str, &str, &str)) -> GroupPrediction {
    let wanted = input.desired.get(kind, "default", name).unwrap();
    let wanted = set(wanted, pointer, json!("v1.36.0"));
    input.desired.insert(wanted);
    only(predict(input))
}

#[test]
fn a_control_plane_does_not_skip_minor_versions() {
    let mut input = upgrade(&[control_plane(3, 0)]);
    let found = to_version(&mut input, ("KubeadmControlPlane", "edge-1", "/spec/version"));
    assert_eq!(found.blocked_by[0].reason, "UncoveredPreserve");
    assert!(found.paths[0].line.ends_with("(no updater)"));
}

#[test]
fn workers_may_skip_minor_versions() {
    let mut input = upgrade(&[deployment(3, 0, 1)]);
    let owner = ("MachineDeployment", "md", "/spec/template/spec/version");
    let found = to_version(&mut input, owner);
    assert!(found.paths.iter().all(|path| !path.line.ends_with("(no updater)")), "{found:#?}");
    assert!(found.blocked_by.iter().all(|blocker| blocker.reason != "UncoveredPreserve"));
}
