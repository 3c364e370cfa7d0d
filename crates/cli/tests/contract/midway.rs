//! What happens to a test midway: refused orders, failing requests, interrupts, and others at work on the machine.

use std::{fs, process::Command, time::Duration};

use lab_apiserver::{Down, FaultAction, FaultRule};
use refit_predict::contract::Clause;
use serde_json::{Value, json};

use super::{CRD, MACHINE, PROVIDER, Provider, refuse, stage, suite, with_verdict, write};
use crate::stage::{Ended, NODE_UPDATE, Running, Stage};

const UPDATE: &str = "memory.example/v1/MemoryUpdate";
const UPDATES: &str = "memoryupdates.memory.example";
/// Options for a provider that keeps the contract and is quick.
const QUICK: [&str; 6] = ["--timeout", "10s", "--settle", "100ms", "-o", "json"];

/// A cluster in which a provider runs, and the arguments of a test of it.
fn with_provider() -> (Stage, String) {
    let stage = stage(None);
    stage.spawn(Provider::new(stage.client(), None, stage.path("restarted")).run());
    let file = write(&stage, PROVIDER);
    (stage, file)
}

/// The next requests of the suite, and of nothing else, that end in this way.
fn fault(verb: &str, resource: &str, action: FaultAction) -> FaultRule {
    let suite = concat!("refit-cli/", env!("CARGO_PKG_VERSION"));
    FaultRule::next(action).verb(verb).resource(resource).user_agent(suite)
}

fn document(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", ended.stdout, ended.stderr))
}

/// Starts a test without JSON, to read its progress.
fn start(stage: &Stage, file: &str) -> Running {
    stage.start(&suite(file, &QUICK[..4]))
}

#[test]
fn a_gate_that_the_definition_refuses_is_found_by_the_orders_alone() {
    let (stage, file) = with_provider();
    let name = "memoryupdates.memory.example";
    let mut crd = stage.get(CRD, name);
    refuse(&mut crd, "self.gate != 'Disrupt'");
    stage.patch(CRD, name, json!({"spec": crd["spec"]}));
    let ended = stage.run(&suite(&file, &QUICK));
    assert_eq!(ended.code, Some(3), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(with_verdict(&ended, "broken"), ["orders-admitted"], "{}", ended.stdout);
    let clauses = document(&ended)["clauses"].clone();
    let admitted = clauses.as_array().unwrap().iter();
    let mut admitted = admitted.filter(|clause| clause["clause"] == "orders-admitted");
    let message = admitted.next().unwrap()["message"].as_str().unwrap();
    let words =
        "run update: the API server refused the order spec.gate Disrupt, spec.stage Ongoing: ";
    assert!(message.starts_with(words) && message.contains("no such order"), "{message}");
    let untested = with_verdict(&ended, "notTested");
    for clause in [Clause::PassesDisrupt, Clause::Verified, Clause::Repeated] {
        assert!(untested.contains(&clause.to_string()), "{clause}: {untested:?}");
    }
    assert!(stage.list(UPDATE).is_empty());
}

#[test]
fn a_refused_create_ends_the_test_without_an_object() {
    let (stage, file) = with_provider();
    let name = "memoryupdates.memory.example";
    let mut crd = stage.get(CRD, name);
    refuse(&mut crd, "self.gate == 'Closed'");
    stage.patch(CRD, name, json!({"spec": crd["spec"]}));
    let ended = stage.run(&suite(&file, &QUICK));
    assert_eq!(ended.code, Some(3), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(with_verdict(&ended, "broken"), ["orders-admitted"], "{}", ended.stdout);
    assert!(ended.stderr.contains("run abort-at-stage"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("run abort-at-upgrade"), "{}", ended.stderr);
}

#[test]
fn requests_that_fail_by_chance_are_sent_again() {
    let (stage, file) = with_provider();
    let faults = stage.server().faults();
    // The answer to the first create is lost: the object exists already when it is sent again.
    faults.add(fault("create", UPDATES, FaultAction::StatusAfterCommit(500)));
    faults.add(fault("patch", UPDATES, FaultAction::Status(429)));
    faults.add(fault("delete", UPDATES, FaultAction::StatusAfterCommit(503)));
    faults.add(fault("list", UPDATES, FaultAction::Status(503)));
    let machines = fault("get", "machines.cluster.x-k8s.io", FaultAction::Status(502));
    faults.add(machines.after(4).times(2));
    let ended = stage.run(&suite(&file, &QUICK));
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(!stage.server().faults().has_rules());
    for request in ["POST", "PATCH", "DELETE", "GET"] {
        let line = ended.stderr.lines().find(|line| line.starts_with(request));
        let line = line.unwrap_or_else(|| panic!("no {request}: {}", ended.stderr));
        assert!(line.ends_with("trying again for 10s at most"), "{line}");
    }
}

#[test]
fn a_test_survives_a_restart_of_the_api_server() {
    let (mut stage, file) = with_provider();
    let mut test = start(&stage, &file);
    test.until("run abort-at-upgrade: gate Upgrade");
    stage.restart();
    let ended = test.end();
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn a_user_without_permission_ends_the_test_with_an_error() {
    let (stage, file) = with_provider();
    // The patches before it: an abort, a gate and an abort, a gate.
    let forbidden = fault("patch", UPDATES, FaultAction::Status(403)).after(4);
    stage.server().faults().add(forbidden);
    let ended = stage.run(&suite(&file, &QUICK));
    assert_eq!(ended.code, Some(1), "{}{}", ended.stdout, ended.stderr);
    let document = document(&ended);
    let object = "contract-test-m-1-update-memory";
    for error in [document["error"].as_str().unwrap(), &ended.stderr] {
        assert!(error.contains(&format!("cannot patch object {object} at http://")), "{error}");
        assert!(error.contains("forbidden: the fault layer rejects this request"), "{error}");
        let delete = format!("`kubectl delete {UPDATES} {object} --namespace default`");
        assert!(error.contains(&delete), "{error}");
    }
    // The runs before are reported, and the one that did not finish is not.
    let kept = with_verdict(&ended, "kept");
    for clause in [Clause::AbortAtStage, Clause::AbortAtUpgrade, Clause::PassesUpgrade] {
        assert!(kept.contains(&clause.to_string()), "{clause}: {kept:?}");
    }
    let untested = with_verdict(&ended, "notTested");
    assert!(untested.contains(&Clause::PassesDisrupt.to_string()), "{untested:?}");
    assert_eq!(stage.list(UPDATE).len(), 1);
}

#[test]
fn an_interrupted_test_prints_one_document() {
    let (stage, file) = with_provider();
    let restart = format!("touch {}; exec sleep 60", stage.path("started").display());
    let more = [&QUICK[..], &["--restart", &restart]].concat();
    let test = stage.start(&suite(&file, &more));
    while !stage.path("started").exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(
        Command::new("kill").args(["-INT", &test.id().to_string()]).status().unwrap().success()
    );
    let ended = test.end();
    assert_eq!(ended.code, Some(130), "{}{}", ended.stdout, ended.stderr);
    let error = document(&ended)["error"].as_str().unwrap().to_owned();
    let words = "the test was interrupted; object contract-test-m-1-update-memory is left";
    assert!(error.starts_with(words), "{error}");
    assert!(ended.stderr.contains(&error), "{}", ended.stderr);
    assert!(with_verdict(&ended, "kept").contains(&"abort-at-upgrade".to_owned()));
}

/// The command of `--restart` goes on only once the suite has noticed what happens meanwhile.
#[test]
fn the_watch_is_followed_while_the_provider_is_restarted() {
    let (stage, file) = with_provider();
    let (started, go) = (stage.path("started"), stage.path("go"));
    let (started, go) = (started.display().to_string(), go.display().to_string());
    let restart = format!("touch {started}; while [ ! -e {go} ]; do sleep 0.05; done");
    let more = [&QUICK[..4], &["--restart", &restart]].concat();
    let mut test = stage.start(&suite(&file, &more));
    test.until("run update: restarting the provider");
    while !stage.path("started").exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    stage.server().faults().set_down(Some(Down::Unavailable));
    test.until("run update: the watch is interrupted");
    stage.server().faults().set_down(None);
    fs::write(&go, "").unwrap();
    let ended = test.end();
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
}

/// An object of the provider's kind for the machine, which is not the suite's.
fn other_object(stage: &Stage) -> Value {
    let uid = stage.get(MACHINE, "m-1")["metadata"]["uid"].clone();
    json!({
        "metadata": {"name": "u-1-memory"},
        "spec": {
            "mostMib": 65536, "machineRef": {"name": "m-1", "uid": uid}, "nodeName": "", "goal": {},
            "gate": "Stage", "stage": "Abort",
        },
    })
}

#[test]
fn a_provider_that_still_works_on_the_machine_is_not_tested() {
    let stage = stage(None);
    let file = write(&stage, PROVIDER);
    stage.create(UPDATE, other_object(&stage));
    let refused = stage.run(&suite(&file, &QUICK));
    assert_eq!(refused.code, Some(1), "{}{}", refused.stdout, refused.stderr);
    assert!(refused.stderr.contains("object u-1-memory of the same kind"), "{}", refused.stderr);
    assert!(document(&refused)["error"].is_string());
    // An object whose work has ended stays as a record.
    stage.spawn(Provider::new(stage.client(), None, stage.path("restarted")).run());
    while stage.get(UPDATE, "u-1-memory").pointer("/status/ready") != Some(&json!(true)) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = stage.run(&suite(&file, &QUICK));
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
}

/// Runs a test, changes the machine during its second run, and expects this error before the third.
fn ends_early(change: impl FnOnce(&Stage), words: &str) {
    let (stage, file) = with_provider();
    let mut test = start(&stage, &file);
    test.until("run abort-at-upgrade: abort");
    change(&stage);
    let ended = test.end();
    assert_eq!(ended.code, Some(1), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    assert!(!ended.stderr.contains("is left"), "{}", ended.stderr);
    assert!(ended.stdout.contains("kept        abort-at-stage"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("run delete: "), "{}", ended.stdout);
    assert!(stage.list(UPDATE).is_empty());
}

#[test]
fn an_update_of_the_machine_that_begins_meanwhile_ends_the_test() {
    let update = |stage: &Stage| {
        let uid = stage.get(MACHINE, "m-1")["metadata"]["uid"].clone();
        stage.create(
            NODE_UPDATE,
            json!({
                "metadata": {"name": "m-1-1"},
                "spec": {"machineRef": {"name": "m-1", "uid": uid}, "origin": "Hook", "stage": "Ongoing",
                    "goal": {"kubernetesVersion": "v1.35.0"}, "goalHash": "h"},
            }),
        );
    };
    ends_early(update, "NodeUpdate m-1-1 of the Machine is not finished");
}

#[test]
fn a_machine_that_is_replaced_meanwhile_ends_the_test() {
    let replace = |stage: &Stage| {
        let spec = stage.get(MACHINE, "m-1")["spec"].clone();
        stage.delete(MACHINE, "m-1");
        stage.create(MACHINE, json!({"metadata": {"name": "m-1"}, "spec": spec}));
    };
    ends_early(replace, "Machine m-1 was replaced: its uid was ");
}
