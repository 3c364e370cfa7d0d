//! `refit contract test` against providers that keep the contract, and against one for each clause that
//! breaks it.

mod midway;
mod provider;

use std::{fs, process::Command};

use refit_predict::contract::Clause;
use serde_json::{Value, json};
use strum::IntoEnumIterator as _;

use self::provider::{BEFORE, HAS, Provider};
use crate::stage::{Ended, Stage};

const CRD: &str = "apiextensions.k8s.io/v1/CustomResourceDefinition";
const MACHINE: &str = "cluster.x-k8s.io/v1beta2/Machine";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io/v1beta2/VirtualMachine";
/// The definitions of the example of a provider.
const CRDS: &str = include_str!("../../../../examples/provider/crds.yaml");
const PROVIDER: &str = "\
apiVersion: memory.example/v1
kind: MemoryUpdateTemplate
metadata: {name: memory, namespace: default}
spec: {template: {spec: {mostMib: 65536}}}
---
apiVersion: refit.dev/v1alpha1
kind: Updater
metadata: {name: memory}
spec:
  claims:
  - {group: infrastructure.cluster.x-k8s.io, kind: VirtualMachine, paths: [/spec/memory]}
  action: Update
  disruption: Drain
  template: {apiVersion: memory.example/v1, kind: MemoryUpdateTemplate, name: memory}
  verify: [\"infrastructureMachine.metadata.annotations['memory.example/has'] == string(infrastructureMachine.spec.memory)\"]
";

/// A cluster with one machine, which should have more memory, and the kinds of a provider.
fn stage(breaks: Option<Clause>) -> Stage {
    let stage = Stage::new();
    stage.create(
        CRD,
        json!({
            "metadata": {"name": "virtualmachines.infrastructure.cluster.x-k8s.io"},
            "spec": {
                "group": "infrastructure.cluster.x-k8s.io", "scope": "Namespaced",
                "names": {"kind": "VirtualMachine", "plural": "virtualmachines"},
                "versions": [{"name": "v1beta2", "served": true, "storage": true, "schema":
                    {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
            },
        }),
    );
    stage.create(MACHINE, json!({
        "metadata": {"name": "m-1"},
        "spec": {
            "clusterName": "edge-1", "version": "v1.34.2",
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "VirtualMachine", "name": "m-1"},
        },
    }));
    stage.create(
        INFRASTRUCTURE,
        json!({
            "metadata": {"name": "m-1", "annotations": {HAS: BEFORE}}, "spec": {"memory": 2048},
        }),
    );
    for document in CRDS.split("---").filter(|text| !text.trim().is_empty()) {
        let mut crd: Value = serde_json::from_str(document).unwrap();
        if crd.pointer("/spec/names/kind") == Some(&json!("MemoryUpdate")) {
            break_definition(&mut crd, breaks);
        }
        stage.create(CRD, crd);
    }
    let verbs = match breaks {
        Some(Clause::Permissions) => json!(["get", "list", "watch", "create"]),
        _ => json!(["get", "list", "watch", "create", "patch"]),
    };
    stage.create("rbac.authorization.k8s.io/v1/ClusterRole", json!({
        "metadata": {"name": "memory-for-refit", "labels": {"refit.dev/aggregate-to-controller": "true"}},
        "rules": [
            {"apiGroups": ["memory.example"], "resources": ["memoryupdatetemplates"], "verbs": ["get"]},
            {"apiGroups": ["memory.example"], "resources": ["memoryupdates"], "verbs": verbs},
        ],
    }));
    stage
}

/// Adds a validation of `spec`, which refuses some orders.
fn refuse(crd: &mut Value, rule: &str) {
    let spec = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
    spec["x-kubernetes-validations"] = json!([{"rule": rule, "message": "no such order"}]);
}

/// Breaks a clause about the kinds.
fn break_definition(crd: &mut Value, breaks: Option<Clause>) {
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties";
    let mut remove = |pointer: &str, name: &str| {
        let members = crd.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
        members.remove(name).unwrap();
    };
    match breaks {
        Some(Clause::Label) => remove("/metadata", "labels"),
        Some(Clause::StatusSubresource) => remove("/spec/versions/0", "subresources"),
        Some(Clause::SpecFields) => {
            remove(&format!("{schema}/spec/properties/goal/properties"), "hash");
        }
        Some(Clause::StatusFields) => remove(&format!("{schema}/status/properties"), "leftBehind"),
        // Its own schema would keep the API server from storing what has the wrong form.
        Some(Clause::StatusForm) => {
            let status =
                crd.pointer_mut(&format!("{schema}/status/properties/leftBehind")).unwrap();
            *status = json!({"x-kubernetes-preserve-unknown-fields": true});
        }
        Some(Clause::OrdersAdmitted) => refuse(crd, "self.stage != 'Abort'"),
        Some(Clause::Namespaced) => crd["spec"]["scope"] = json!("Cluster"),
        _ => {}
    }
}

/// Tests a provider that breaks a clause.
fn tested(breaks: Option<Clause>) -> (Ended, Stage) {
    let stage = stage(breaks);
    let template = match breaks {
        Some(Clause::Template) => PROVIDER.replace("mostMib: 65536", "mostMib: much"),
        _ => PROVIDER.to_owned(),
    };
    let restarted = stage.path("restarted");
    let restart = format!("touch {}", restarted.display());
    stage.spawn(Provider::new(stage.client(), breaks, restarted).run());
    let file = write(&stage, &template);
    let more = ["--restart", &restart, "--timeout", "4s", "--settle", "300ms", "-o", "json"];
    let ended = stage.run(&suite(&file, &more));
    (ended, stage)
}

/// Writes the file for `--template`, and returns its path.
fn write(stage: &Stage, text: &str) -> String {
    let file = stage.path("provider.yaml");
    fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// The arguments of the suite, for the machine of the stage.
fn suite<'a>(file: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    suite_on("m-1", file, more)
}

fn suite_on<'a>(machine: &'a str, file: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["contract", "test", "--template", file, "--machine", machine], more].concat()
}

/// The clauses with a verdict, in order.
fn with_verdict(ended: &Ended, verdict: &str) -> Vec<String> {
    let report: Value = serde_json::from_str(&ended.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", ended.stdout, ended.stderr));
    let clauses = report["clauses"].as_array().unwrap();
    let clauses = clauses.iter().filter(|clause| clause["verdict"] == verdict);
    clauses.map(|clause| clause["clause"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_provider_that_follows_the_contract_keeps_every_clause() {
    let (ended, stage) = tested(None);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    // The machine has no Node here: the sandbox and the test bed show that one.
    assert_eq!(with_verdict(&ended, "notTested"), ["undisturbed"], "{}", ended.stdout);
    assert_eq!(with_verdict(&ended, "kept").len(), Clause::iter().count() - 1);
    let left = stage.list("memory.example/v1/MemoryUpdate");
    assert!(left.is_empty(), "{left:?}");
}

/// Clauses that cannot be broken alone: what breaks them breaks others, too.
fn also_broken(clause: Clause) -> &'static [Clause] {
    match clause {
        // What has no finalizer cannot undo it when its object is deleted.
        Clause::Undisturbed => &[Clause::Undone],
        // Refit would not believe it either.
        Clause::ObservesGenerations => &[Clause::AbortAtStage],
        // All that is known is that it did not get there, with restarts.
        Clause::PassesDisrupt => &[Clause::Restarted],
        Clause::Restarted => &[Clause::PassesDisrupt],
        _ => &[],
    }
}

/// One provider for each clause. Each breaks its clause alone, so that the report names the cause.
#[test]
fn a_provider_that_breaks_a_clause_is_found_by_that_clause() {
    let all: Vec<Clause> = Clause::iter().collect();
    let wrong = &std::sync::Mutex::new(Vec::new());
    // They mostly wait.
    std::thread::scope(|scope| {
        for some in all.chunks(all.len().div_ceil(8)) {
            scope.spawn(move || {
                for clause in some {
                    let (ended, _stage) = tested(Some(*clause));
                    let broken = with_verdict(&ended, "broken");
                    let mut expected = also_broken(*clause).to_vec();
                    expected.push(*clause);
                    expected.sort();
                    let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
                    if broken != expected || ended.code != Some(3) {
                        let found = format!(
                            "{clause}: {broken:?}, exit {:?}\n{}",
                            ended.code, ended.stdout
                        );
                        wrong.lock().unwrap().push(found);
                    }
                }
            });
        }
    });
    let wrong = wrong.lock().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_report_has_a_line_for_each_clause_and_a_sum() {
    let stage = stage(None);
    let file = write(&stage, PROVIDER);
    // No provider runs.
    let ended = stage.run(&suite(&file, &["--timeout", "100ms", "--settle", "100ms"]));
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    for clause in Clause::iter() {
        let line = format!("  {:<20}  {}", clause.to_string(), clause.requirement());
        assert!(ended.stdout.contains(&line), "{clause}: {}", ended.stdout);
    }
    assert!(ended.stdout.contains("is the provider running"), "{}", ended.stdout);
    // It does not wait for each of the other runs.
    assert!(!ended.stdout.contains("run abort-at-upgrade"), "{}", ended.stdout);
    let last = ended.stdout.lines().last().unwrap();
    assert!(last.starts_with("The provider breaks "), "{last}");
}

/// What an interrupted test has left does not disturb the next one.
#[test]
fn an_interrupted_test_is_repeated() {
    let stage = stage(None);
    let file = write(&stage, PROVIDER);
    let mut first = stage.start(&suite(&file, &[]));
    first.until("run abort-at-stage: abort");
    assert!(Command::new("kill").arg(first.id().to_string()).status().unwrap().success());
    let ended = first.end();
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
    let remedy = "object contract-test-m-1-abort-at-stage-memory is left: run the test again, or `kubectl \
                  delete memoryupdates.memory.example contract-test-m-1-abort-at-stage-memory --namespace \
                  default`";
    assert!(ended.stderr.contains(remedy), "{}", ended.stderr);
    assert!(ended.stdout.contains("kept        label"), "{}", ended.stdout);
    assert_eq!(stage.list("memory.example/v1/MemoryUpdate").len(), 1);
    stage.spawn(Provider::new(stage.client(), None, stage.path("restarted")).run());
    let second = stage.run(&suite(&file, &["--timeout", "10s", "--settle", "100ms"]));
    assert!(second.stdout.contains("deleting what an earlier test has left"), "{}", second.stdout);
    assert_eq!(second.code, Some(0), "{}{}", second.stdout, second.stderr);
    assert!(second.stdout.contains("--restart is not set"), "{}", second.stdout);
}

#[test]
fn a_file_or_machine_that_does_not_fit_is_refused_with_a_remedy() {
    let stage = stage(None);
    let refused = |text: &str, machine: &str, more: &[&str]| {
        let file = write(&stage, text);
        let ended = stage.run(&suite_on(machine, &file, more));
        assert_eq!(ended.code, Some(1), "{}", ended.stdout);
        ended.stderr
    };
    let (template, updater) = PROVIDER.split_once("---").unwrap();
    let table = [
        (updater.to_owned(), "m-1", &[][..], "0 objects whose kind ends in Template"),
        (
            template.replace("MemoryUpdateT", "OtherUpdateT"),
            "m-1",
            &[],
            "does not serve kind OtherUpdateTemplate",
        ),
        (template.to_owned(), "m-2", &[], "Machine m-2 does not exist in namespace default"),
        (
            PROVIDER.replace("name: memory}\n  verify", "name: other}\n  verify"),
            "m-1",
            &[],
            "does not name the template",
        ),
        (PROVIDER.replace("[/spec/memory]", "[spec]"), "m-1", &[], "spec.claims"),
        (PROVIDER.to_owned(), "m-1", &["--to", "v1.35.0"], "does not claim /spec/version"),
        (
            PROVIDER.to_owned(),
            "m-1",
            &["-n", "other"],
            "Machine m-1 does not exist in namespace other",
        ),
    ];
    for (text, machine, args, words) in table {
        let error = refused(&text, machine, args);
        assert!(error.contains(words), "{words}: {error}");
    }
    stage.patch(
        MACHINE,
        "m-1",
        json!({"metadata": {"annotations": {
        "runtime.cluster.x-k8s.io/pending-hooks": "UpdateMachine",
        "in-place-updates.internal.cluster.x-k8s.io/update-in-progress": ""}}}),
    );
    assert!(refused(PROVIDER, "m-1", &[]).contains("is being updated in place"));
}

#[test]
fn the_contract_lists_every_clause() {
    let contract = include_str!("../../../../docs/contract/README.md");
    for clause in Clause::iter() {
        let row = format!("| `{clause}` | {} |", clause.requirement());
        assert!(contract.contains(&row), "no row {row}");
    }
}
