//! Journals of older and of newer agents.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use lab_simhost::DiskState;
use refit_agent::{
    journal::{Journal, JournalError, PATH, encode, recover},
    state::{JournalState, Record, StepOutcome},
};
use refit_kinds::refit::{FailureKind, HostStep, PlannedStep, StepUndo};
use serde_json::{Value, json};

use super::{accepted, at, disk, finished, history, started};

#[test]
fn a_journal_of_an_older_agent_is_still_read() {
    let old = r#"{"type":"StepFinished","plan":"p","step":"s","attempt":1,"outcome":"Done","at":"2026-01-01T00:00:00Z"}"#;
    let record: Record = serde_json::from_str(old).unwrap();
    assert!(matches!(record, Record::StepFinished { failure: None, unchanged: false, .. }));
    let old = r#"{"type":"PlanAccepted","plan":"p","nodeUpdate":"m-1","steps":[{"id":"s","gate":"Stage","action":{"type":"Preflight"},"disruptive":false}],"packages":{},"at":"2026-01-01T00:00:00Z"}"#;
    let state = JournalState::replay([&serde_json::from_str(old).unwrap()]);
    assert_eq!(state.plan.unwrap().point_of_no_return, "");
}

/// Every kind of record, with every optional field.
fn every_record() -> Vec<Record> {
    let mut step = PlannedStep::new(HostStep::Preflight { version: None });
    step.timeout_seconds = Some(60);
    step.max_attempts = Some(2);
    step.undo = Some(StepUndo::Files);
    let mut all = vec![Record::PlanAccepted {
        plan: "p".into(),
        node_update: "m-1".to_owned(),
        steps: vec![step],
        point_of_no_return: "reboot".to_owned(),
        packages: BTreeMap::from([("kubeadm".to_owned(), "1.34.2-1.1".to_owned())]),
        static_pods: BTreeMap::from([("etcd".to_owned(), "etcd:3.6".to_owned())]),
        at: at(0),
    }];
    all.extend(history().into_iter().skip(1));
    let mut failed = finished("p", "preflight", 3, StepOutcome::FailedForGood);
    if let Record::StepFinished { failure, unchanged, .. } = &mut failed {
        (*failure, *unchanged) = (Some(FailureKind::Final), true);
    }
    all.push(failed);
    let progress = JournalState::replay(&all).plan.unwrap();
    let progress = Box::new(progress);
    all.push(Record::Checkpoint { plan: "p".into(), progress });
    all
}

/// A journal of this one entry, as an agent writes it.
fn journal_of(entry: &Value) -> Vec<u8> {
    use sha2::{Digest as _, Sha256};
    let entry = entry.to_string();
    let digest = Sha256::digest(format!("1:{entry}"));
    let start = u64::from_be_bytes(digest[..8].try_into().unwrap());
    let sum = format!("{start:016x}");
    format!("{{\"seq\":1,\"sum\":\"{sum}\",\"entry\":{entry}}}\n").into_bytes()
}

/// The pointers to all objects in a value, itself included.
fn objects(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.push(at.to_owned());
            for (name, value) in fields {
                objects(value, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                objects(value, &format!("{at}/{index}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn a_record_with_fields_of_a_newer_agent_is_read_without_them() {
    // Maps by name have no fields. A step with a new argument is refused by name.
    let is_map = |at: &str| {
        at.contains("/action")
            || ["packages", "staticPods", "packagesBefore", "staticPodsBefore", "runs"]
                .iter()
                .any(|name| at.ends_with(name))
    };
    for record in every_record() {
        let entry = serde_json::to_value(&record).unwrap();
        let mut places = Vec::new();
        objects(&entry, "", &mut places);
        for place in places.into_iter().filter(|place| !is_map(place)) {
            let mut newer = entry.clone();
            newer.pointer_mut(&place).unwrap()["fromTheFuture"] = json!({"a": [1]});
            let read = recover(&journal_of(&newer)).unwrap().records;
            assert_eq!(read, std::slice::from_ref(&record), "{place} of {entry}");
        }
    }
}

#[test]
fn a_value_of_a_newer_agent_is_not_damage() {
    for (record, place) in [
        (0, "/type"),
        (0, "/steps/0/gate"),
        (0, "/steps/0/undo"),
        (1, "/gate"),
        (3, "/outcome"),
        (6, "/cause"),
        (7, "/state"),
        (8, "/failure"),
        (9, "/progress/gate"),
        (9, "/progress/abort"),
        (9, "/progress/ended"),
        (9, "/progress/runs/preflight/outcome"),
    ] {
        let mut entry = serde_json::to_value(&every_record()[record]).unwrap();
        *entry.pointer_mut(place).unwrap() = json!("FromTheFuture");
        let error = recover(&journal_of(&entry)).unwrap_err();
        let JournalError::Newer { what } = &error else { panic!("{place}: {error}") };
        assert!(what.starts_with("line 1: ") && what.contains("FromTheFuture"), "{what}");
    }
}

#[test]
fn a_record_without_the_fields_of_this_agent_is_read() {
    for (record, place, fields) in [
        (0, "", &["pointOfNoReturn", "staticPods"][..]),
        (0, "/steps/0", &["timeoutSeconds", "maxAttempts", "undo"]),
        (8, "", &["failure", "unchanged", "reason", "message"]),
        (
            9,
            "/progress",
            &[
                "nodeUpdate",
                "pointOfNoReturn",
                "packagesBefore",
                "staticPodsBefore",
                "gate",
                "abort",
                "runs",
                "ended",
                "endedAt",
            ],
        ),
        (
            9,
            "/progress/runs/preflight",
            &["finishedAt", "outcome", "failure", "unchanged", "reason", "message"],
        ),
    ] {
        for field in fields {
            let mut entry = serde_json::to_value(&every_record()[record]).unwrap();
            let object = entry.pointer_mut(place).unwrap().as_object_mut().unwrap();
            assert!(object.remove(*field).is_some(), "{field}");
            let read = recover(&journal_of(&entry)).unwrap().records;
            assert_eq!(read.len(), 1, "{field}");
        }
    }
}

#[tokio::test]
async fn a_plan_with_a_step_of_a_newer_agent_waits_once_it_has_started() {
    let state: Arc<Mutex<DiskState>> = Arc::default();
    let mut entry = serde_json::to_value(accepted("p")).unwrap();
    entry["steps"][0]["action"] = json!({"firmwareUpdate": {}});
    let accepted = String::from_utf8(journal_of(&entry)).unwrap();
    state.lock().unwrap().files.insert(PATH.to_owned(), accepted);
    // Nothing has started: the plan is refused in the usual way.
    let mut journal = Journal::open(disk(&state)).await.unwrap();
    journal.append(started("p", "preflight", 1)).await.unwrap();
    let before = state.lock().unwrap().files[PATH].clone();
    let error = Journal::open(disk(&state)).await.unwrap_err();
    assert!(matches!(error, JournalError::Newer { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("step preflight: unknown step \"firmwareUpdate\""), "{message}");
    assert_eq!(state.lock().unwrap().files[PATH], before, "the journal is left alone");
}

/// Recorded with an agent whose steps had a `type`: a worker's plan that changes the version, and a
/// control plane's plan with every step type.
#[test]
fn a_journal_from_before_the_union_is_still_read() {
    for (bytes, steps) in [
        (&include_bytes!("../../testdata/journal-before-the-union-worker.jsonl")[..], 7),
        (include_bytes!("../../testdata/journal-before-the-union-everything.jsonl"), 16),
    ] {
        let recovered = recover(bytes).unwrap();
        let state = JournalState::replay(&recovered.records);
        let plan = state.plan.as_ref().unwrap();
        assert_eq!(plan.steps.len(), steps);
        for step in &plan.steps {
            let type_ = step.step_type().unwrap_or_else(|| panic!("{:?}", step.action));
            assert_eq!((step.id.as_str(), step.gate), (type_.id(), type_.rules().gate));
            assert_eq!(step.disruptive, type_.rules().disruptive);
        }
        assert_eq!(plan.open().map(|(step, run)| (step, run.attempt)), Some(("preflight", 1)));
        // New records are written in the new form, with the same meaning.
        let again = encode(1, &recovered.records[0]);
        let again = recover(again.as_bytes()).unwrap();
        assert_eq!(again.records, recovered.records[..1]);
        assert!(!encode(1, &recovered.records[0]).contains("\"type\":\"Stage\""));
    }
}

#[test]
fn a_journal_from_before_the_union_keeps_every_argument() {
    let bytes = include_bytes!("../../testdata/journal-before-the-union-everything.jsonl");
    let state = JournalState::replay(&recover(bytes).unwrap().records);
    let plan = state.plan.unwrap();
    let step = |id: &str| {
        let step = plan.steps.iter().find(|step| step.id == id).unwrap();
        serde_json::to_value(step.step().unwrap()).unwrap()
    };
    assert_eq!(
        step("kubeadm-upgrade"),
        json!({"kubeadmUpgrade": {
            "version": "v1.35.0", "role": "ControlPlane",
            "kubeadm": {"skipPhases": ["addon/coredns"]},
        }})
    );
    assert_eq!(step("certificates-renew"), json!({"certificatesRenew": {"renewWithinDays": 60}}));
    assert_eq!(step("ntp"), json!({"ntp": {"enabled": true, "servers": ["ntp.example"]}}));
    assert_eq!(
        step("kubelet-flags"),
        json!({"kubeletFlags": {"extraArgs": [{"name": "v", "value": "4"}]}})
    );
    assert_eq!(step("files")["files"]["files"][0]["path"], "/etc/x");
    assert_eq!(step("stage")["stage"]["bundle"]["location"], "/mnt/b");
    assert_eq!(step("os-image-stage")["osImageStage"]["osImage"]["name"], "os-2");
    let stage = plan.steps.iter().find(|step| step.id == "stage").unwrap();
    assert_eq!(stage.timeout_seconds, Some(7200));
}
