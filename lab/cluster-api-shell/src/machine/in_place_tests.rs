use kube::{core::gvk::GroupVersionKind, discovery::ApiResource};
use refit_cluster_api::kinds::ContractRef;

use super::*;
use crate::cache::Cache;

const MARK: &str = keys::UPDATE_IN_PROGRESS;

fn machine(annotations: Value) -> Live<Machine> {
    Live::read(json!({
        "metadata": {"name": "m", "namespace": "d", "annotations": annotations},
        "spec": {
            "clusterName": "c",
            "bootstrap": {"configRef": {"apiGroup": "b", "kind": "KubeadmConfig", "name": "m"}},
        },
        "status": {
            "initialization": {
                "infrastructureProvisioned": true, "bootstrapDataSecretCreated": true,
            },
            "nodeRef": {"name": "m"},
        },
    }))
    .unwrap()
}

fn part(annotations: Option<Value>) -> Part {
    let object = annotations.map(|annotations| {
        let json = json!({"metadata": {"name": "m", "annotations": annotations}});
        Arc::new(Live::read(json).unwrap())
    });
    Part {
        cache: Cache::new(ApiResource::from_gvk(&GroupVersionKind::gvk("i", "v1", "X"))),
        reference: ContractRef::default(),
        object,
    }
}

fn parts(infrastructure: Option<Value>, bootstrap: Option<Value>) -> Parts {
    Parts { infrastructure: part(infrastructure), bootstrap: Some(part(bootstrap)) }
}

fn marked() -> Option<Value> {
    Some(json!({MARK: ""}))
}

fn both() -> Value {
    json!({MARK: "", keys::PENDING_HOOKS: "UpdateMachine"})
}

#[test]
fn without_marks_there_is_no_update() {
    let stage = stage(&machine(json!({})), &parts(marked(), marked()));
    assert_eq!(stage, Stage::None);
}

#[test]
fn a_pending_hook_without_the_annotation_is_abandoned() {
    let machine = machine(json!({keys::PENDING_HOOKS: "UpdateMachine"}));
    assert_eq!(stage(&machine, &parts(marked(), marked())), Stage::Orphaned);
}

#[test]
fn the_owner_marks_the_hook_first() {
    let stage = stage(&machine(json!({MARK: ""})), &parts(marked(), marked()));
    assert!(matches!(stage, Stage::Waiting(reason) if reason.contains("owning controller")));
}

#[test]
fn a_machine_that_is_not_up_waits() {
    for missing in ["/status/initialization", "/status/nodeRef"] {
        let mut json = machine(both()).json().clone();
        *json.pointer_mut(missing).unwrap() = Value::Null;
        let machine = Live::read(json).unwrap();
        let stage = stage(&machine, &parts(marked(), marked()));
        assert_eq!(stage, Stage::Waiting("the Machine is not fully provisioned yet"));
    }
}

#[test]
fn both_parts_have_to_be_marked() {
    let machine = machine(both());
    assert_eq!(stage(&machine, &parts(None, marked())), Stage::NoInfrastructure);
    for parts in
        [parts(Some(json!({})), marked()), parts(marked(), Some(json!({}))), parts(marked(), None)]
    {
        let stage = stage(&machine, &parts);
        assert!(matches!(stage, Stage::Waiting(reason) if reason.contains("InfraMachine")));
    }
    assert_eq!(stage(&machine, &parts(marked(), marked())), Stage::Call);
}

#[test]
fn a_machine_without_bootstrap_config_needs_no_bootstrap() {
    let mut json = machine(both()).json().clone();
    json["spec"]["bootstrap"] = json!({"dataSecretName": "mine"});
    json["status"]["initialization"] = json!({"infrastructureProvisioned": true});
    let machine = Live::read(json).unwrap();
    let parts = Parts { infrastructure: part(marked()), bootstrap: None };
    assert_eq!(stage(&machine, &parts), Stage::Call);
}

#[test]
fn messages_are_those_of_cluster_api() {
    let running = Update::running("draining", Duration::from_secs(5));
    assert_eq!(
        running.condition,
        Some(("InPlaceUpdating", "In-place update in progress: draining".to_owned()))
    );
    let running = Update::running("", Duration::from_secs(5));
    assert_eq!(
        running.condition,
        Some(("InPlaceUpdating", "In-place update in progress".to_owned()))
    );
    let failed = Update::failed(FAILED, HookError::NoExtension(HOOK));
    assert_eq!(
        failed.condition,
        Some((
            "InPlaceUpdateFailed",
            "UpdateMachine hook failed: please check controller logs for errors".to_owned()
        ))
    );
    assert_eq!(
        failed.error.unwrap().to_string(),
        "no extensions registered for UpdateMachine hook"
    );
}

#[test]
fn only_numbers_that_go_can_decode_set_the_requeue() {
    let read = |value: Value| retry_after_seconds(&json!({"retryAfterSeconds": value}));
    assert_eq!(retry_after_seconds(&json!({})), Ok(0));
    assert_eq!(read(Value::Null), Ok(0));
    assert_eq!(read(json!(5)), Ok(5));
    assert_eq!(read(json!(-1)), Ok(-1));
    for bad in [json!("5"), json!(5.5), json!(1_i64 << 40), json!(true)] {
        assert!(read(bad.clone()).is_err(), "{bad} would end an update");
    }
}
