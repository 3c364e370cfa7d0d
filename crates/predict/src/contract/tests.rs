use jiff::{SignedDuration, Timestamp};
use refit_kinds::refit::{Gate, Stage};
use serde_json::{Value, json};

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
}

fn object(generation: i64, gate: Gate, stage: Stage, status: Value) -> Value {
    let mut object = json!({
        "metadata": {"name": "o", "generation": generation, "labels": {"refit.dev/machine": "m"}},
        "spec": {"gate": gate, "stage": stage, "nodeName": "n"},
    });
    if !status.is_null() {
        object["status"] = status;
    }
    object
}

fn seen(seconds: i64, generation: i64, gate: Gate, status: Value) -> Event {
    Event::Seen(Seen::new(at(seconds), object(generation, gate, Stage::Ongoing, status)))
}

fn ordered(seconds: i64, generation: i64, gate: Gate) -> Event {
    Event::Ordered(Seen::new(at(seconds), object(generation, gate, Stage::Ongoing, Value::Null)))
}

fn aborted(seconds: i64, generation: i64, gate: Gate) -> Event {
    Event::Ordered(Seen::new(at(seconds), object(generation, gate, Stage::Abort, Value::Null)))
}

fn stopping(generation: i64, gate: Gate, status: Value) -> Event {
    Event::Seen(Seen::new(at(9), object(generation, gate, Stage::Abort, status)))
}

fn node() -> NodeLook {
    NodeLook {
        kubelet_version: "v1.34.2".into(),
        boot_id: "b-1".into(),
        unschedulable: false,
        ready: true,
    }
}

fn look(node: Result<NodeLook, String>) -> Look {
    Look { verified: None, node, infrastructure: json!({"annotations": {"a": "1"}}) }
}

fn run(purpose: Purpose, events: Vec<Event>) -> Run {
    Run {
        purpose,
        restarts: Ok(()),
        version: None,
        before: look(Ok(node())),
        staged: None,
        after: Some(look(Ok(node()))),
        events,
    }
}

/// An update that is made, gate by gate.
fn whole() -> Vec<Event> {
    vec![
        ordered(0, 1, Gate::Stage),
        seen(1, 1, Gate::Stage, json!({"observedGeneration": 1, "passed": "Stage"})),
        Event::Waited,
        ordered(2, 2, Gate::Upgrade),
        seen(3, 2, Gate::Upgrade, json!({"observedGeneration": 2, "passed": "Upgrade"})),
        ordered(4, 3, Gate::Disrupt),
        seen(
            5,
            3,
            Gate::Disrupt,
            json!({"observedGeneration": 3, "passed": "Upgrade", "pastNoReturn": true}),
        ),
        seen(
            6,
            3,
            Gate::Disrupt,
            json!({"observedGeneration": 3, "passed": "Disrupt", "pastNoReturn": true, "ready": true}),
        ),
        Event::Deleted,
        Event::Gone,
    ]
}

fn verdict_of(clause: Clause, runs: &[Run]) -> Verdict {
    let definition = Definition {
        made: Err("not here".into()),
        group: "g".into(),
        version: "v1".into(),
        scopes: Ok(()),
        template: Verdict::Kept,
        needed: ["a", "b"].map(|resource| Needed { resource: resource.into(), verbs: &[] }),
        roles: Err("not here".into()),
    };
    let found = judge(&definition, runs).into_iter().find(|finding| finding.clause == clause);
    found.unwrap().verdict
}

fn broken(clause: Clause, run: Run) -> String {
    match verdict_of(clause, &[run]) {
        Verdict::Broken(why) => why,
        other @ (Verdict::Kept | Verdict::NotTested(_)) => panic!("{clause}: {other:?}"),
    }
}

#[test]
fn an_update_that_goes_through_all_gates_breaks_nothing() {
    let runs = [run(Purpose::Update, whole())];
    for clause in Clause::iter() {
        let verdict = verdict_of(clause, &runs);
        assert!(!matches!(verdict, Verdict::Broken(_)), "{clause}: {verdict:?}");
    }
}

#[test]
fn whatever_happens_to_the_node_at_the_gate_stage_is_named() {
    let table = [
        (
            NodeLook { kubelet_version: "v1.35.0".into(), ..node() },
            "the kubelet had v1.34.2 and has v1.35.0",
        ),
        (NodeLook { boot_id: "b-2".into(), ..node() }, "the node has booted"),
        (NodeLook { unschedulable: true, ..node() }, "the node is cordoned"),
        (NodeLook { ready: false, ..node() }, "the node is not ready any more"),
    ];
    for (staged, words) in table {
        let run = Run { staged: Some(look(Ok(staged))), ..run(Purpose::Update, whole()) };
        assert!(broken(Clause::Undisturbed, run).ends_with(words), "{words}");
    }
}

#[test]
fn an_operator_who_uncordons_the_node_does_not_disturb_it() {
    let cordoned = NodeLook { unschedulable: true, ready: false, ..node() };
    let run = Run {
        before: look(Ok(cordoned)),
        staged: Some(look(Ok(node()))),
        ..run(Purpose::Update, whole())
    };
    assert_eq!(verdict_of(Clause::Undisturbed, &[run]), Verdict::Kept);
}

#[test]
fn a_machine_that_cannot_be_observed_is_not_tested() {
    let unobservable = look(Err("the Machine has no Node".into()));
    let run = Run {
        before: unobservable.clone(),
        staged: Some(unobservable.clone()),
        after: Some(unobservable),
        version: Some("v1.35.0".into()),
        ..run(Purpose::Update, whole())
    };
    for clause in [Clause::Undisturbed, Clause::Verified] {
        let verdict = verdict_of(clause, std::slice::from_ref(&run));
        let Verdict::NotTested(why) = &verdict else { panic!("{clause}: {verdict:?}") };
        assert!(why.contains("the Machine has no Node"), "{why}");
    }
}

#[test]
fn a_machine_that_had_everything_before_proves_nothing() {
    let run = Run { version: Some("v1.34.2".into()), ..run(Purpose::Update, whole()) };
    let verdict = verdict_of(Clause::Verified, &[run]);
    assert!(matches!(&verdict, Verdict::NotTested(why) if why.contains("had everything before")));
}

#[test]
fn a_node_with_another_version_shows_a_false_ready() {
    let run = Run { version: Some("v1.35.0".into()), ..run(Purpose::Update, whole()) };
    let why = broken(Clause::Verified, run);
    assert_eq!(why, "ready is true, and the kubelet runs v1.34.2, not v1.35.0");
}

#[test]
fn an_order_that_is_noted_after_more_than_a_minute_is_late() {
    let mut events = whole();
    events[1] = seen(60, 1, Gate::Stage, json!({"observedGeneration": 1, "passed": "Stage"}));
    let in_time = run(Purpose::Update, events.clone());
    assert_eq!(verdict_of(Clause::ObservesGenerations, &[in_time]), Verdict::Kept);
    events[1] = seen(61, 1, Gate::Stage, json!({"observedGeneration": 1, "passed": "Stage"}));
    let why = broken(Clause::ObservesGenerations, run(Purpose::Update, events));
    assert!(why.starts_with("it was noted after 61 seconds (run update, gate Stage"), "{why}");
}

#[test]
fn a_silent_provider_breaks_only_the_clause_about_generations() {
    let silent = run(
        Purpose::Update,
        vec![
            ordered(0, 1, Gate::Stage),
            seen(0, 1, Gate::Stage, Value::Null),
            Event::Deleted,
            Event::Gone,
        ],
    );
    let runs = [silent];
    let why = verdict_of(Clause::ObservesGenerations, &runs);
    assert!(matches!(&why, Verdict::Broken(why) if why.contains("is the provider running")));
    assert!(matches!(verdict_of(Clause::PassesStage, &runs), Verdict::NotTested(_)));
    assert!(matches!(verdict_of(Clause::Quiet, &runs), Verdict::NotTested(_)));
    assert!(matches!(verdict_of(Clause::PassesUpgrade, &runs), Verdict::NotTested(_)));
}

#[test]
fn a_provider_that_writes_spec_is_found_by_the_generation() {
    let mut events = whole();
    let mut changed = object(9, Gate::Disrupt, Stage::Ongoing, json!({"observedGeneration": 9}));
    changed["spec"]["nodeName"] = json!("other");
    events.insert(7, Event::Seen(Seen::new(at(5), changed.clone())));
    let why = broken(Clause::OrdersKept, run(Purpose::Update, events));
    assert!(why.starts_with("spec was changed (run update, gate Disrupt: generation 9"), "{why}");
    // So is a provider that opens a gate for itself.
    let mut events = whole();
    let opened = object(4, Gate::Disrupt, Stage::Ongoing, json!({"observedGeneration": 1}));
    events.insert(2, Event::Seen(Seen::new(at(1), opened)));
    assert!(
        broken(Clause::OrdersKept, run(Purpose::Update, events)).starts_with("spec was changed")
    );
    // The generation of a deletion is not the provider's.
    let mut events = whole();
    events.insert(9, Event::Seen(Seen::new(at(7), changed)));
    assert_eq!(verdict_of(Clause::OrdersKept, &[run(Purpose::Update, events)]), Verdict::Kept);
}

#[test]
fn a_label_of_refit_that_is_removed_is_named() {
    let mut events = whole();
    let mut changed = object(1, Gate::Stage, Stage::Ongoing, json!({"observedGeneration": 1}));
    changed["metadata"]["labels"] = json!({"team": "a"});
    events.insert(1, Event::Seen(Seen::new(at(1), changed)));
    let why = broken(Clause::OrdersKept, run(Purpose::Update, events));
    assert!(why.starts_with("metadata.labels was "), "{why}");
}

#[test]
fn a_gate_that_was_passed_before_the_abort_was_noted_counts_as_passed_in_time() {
    let crossed = vec![
        ordered(0, 1, Gate::Stage),
        aborted(0, 2, Gate::Stage),
        stopping(2, Gate::Stage, json!({"observedGeneration": 1, "passed": "Stage"})),
        stopping(
            2,
            Gate::Stage,
            json!({"observedGeneration": 2, "passed": "Stage", "ready": true}),
        ),
        Event::Deleted,
        Event::Gone,
    ];
    let runs = [run(Purpose::AbortAtStage, crossed)];
    for clause in [Clause::AbortHolds, Clause::AbortAtStage, Clause::ObservesGenerations] {
        assert_eq!(verdict_of(clause, &runs), Verdict::Kept, "{clause}");
    }
}

#[test]
fn a_gate_that_the_answer_to_the_abort_shows_as_passed_was_passed_in_time() {
    let status = json!({"observedGeneration": 1, "passed": "Stage"});
    let answer = object(2, Gate::Stage, Stage::Abort, status);
    let late = vec![
        ordered(0, 1, Gate::Stage),
        Event::Ordered(Seen::new(at(0), answer)),
        stopping(
            2,
            Gate::Stage,
            json!({"observedGeneration": 2, "passed": "Stage", "ready": true}),
        ),
    ];
    let verdict = verdict_of(Clause::AbortHolds, &[run(Purpose::AbortAtStage, late)]);
    assert_eq!(verdict, Verdict::Kept);
}

#[test]
fn an_abort_after_the_point_of_no_return_proves_nothing() {
    let events = vec![
        ordered(0, 1, Gate::Upgrade),
        aborted(1, 2, Gate::Upgrade),
        stopping(2, Gate::Upgrade, json!({"observedGeneration": 2, "pastNoReturn": true})),
    ];
    let verdict = verdict_of(Clause::AbortAtUpgrade, &[run(Purpose::AbortAtUpgrade, events)]);
    assert!(
        matches!(&verdict, Verdict::NotTested(why) if why.contains("past the point of no return"))
    );
}

#[test]
fn an_annotation_that_a_deletion_leaves_is_named() {
    let mut after = look(Ok(node()));
    after.infrastructure = json!({"annotations": {"a": "1", "reserved": "100"}});
    let deleted = vec![
        ordered(0, 1, Gate::Upgrade),
        seen(1, 1, Gate::Upgrade, json!({})),
        Event::Deleted,
        Event::Gone,
    ];
    let why = broken(Clause::Undone, Run { after: Some(after), ..run(Purpose::Delete, deleted) });
    let left = "of the infrastructure machine, /annotations/reserved was null and is \"100\"";
    assert_eq!(why, format!("run delete: {left}, and leftBehind is empty"));
}

#[test]
fn a_boot_that_an_abort_leaves_must_be_listed() {
    let status = |left: Value| {
        vec![
            aborted(1, 2, Gate::Upgrade),
            stopping(
                2,
                Gate::Upgrade,
                json!({"observedGeneration": 2, "ready": true, "leftBehind": left}),
            ),
        ]
    };
    let booted = || Some(look(Ok(NodeLook { boot_id: "b-2".into(), ..node() })));
    let silent = Run { after: booted(), ..run(Purpose::AbortAtUpgrade, status(json!([]))) };
    let why = broken(Clause::Undone, silent);
    assert!(why.ends_with("the node has booted, and leftBehind is empty"), "{why}");
    let listed = json!(["The new firmware is on the machine."]);
    let honest = Run { after: booted(), ..run(Purpose::AbortAtUpgrade, status(listed)) };
    assert_eq!(verdict_of(Clause::Undone, &[honest]), Verdict::Kept);
}

/// What two observations show if the watch delivered all writes between them, and if it may not have.
#[test]
fn observations_before_and_after_a_gap_of_the_watch_are_not_one_write() {
    let at_disrupt = |status: Value| seen(5, 3, Gate::Disrupt, status);
    let done =
        json!({"observedGeneration": 3, "passed": "Disrupt", "pastNoReturn": true, "ready": true});
    let at_once = vec![
        at_disrupt(json!({"observedGeneration": 3, "passed": "Upgrade"})),
        at_disrupt(done.clone()),
    ];
    let late_pass = vec![
        aborted(0, 2, Gate::Upgrade),
        stopping(2, Gate::Upgrade, json!({"observedGeneration": 1, "passed": "Stage"})),
        stopping(2, Gate::Upgrade, json!({"observedGeneration": 2, "passed": "Upgrade"})),
    ];
    let withdrawn =
        vec![at_disrupt(done), at_disrupt(json!({"observedGeneration": 3, "passed": "Upgrade"}))];
    let is_broken = |verdict: &Verdict| matches!(verdict, Verdict::Broken(_));
    let is_not_tested = |verdict: &Verdict| matches!(verdict, Verdict::NotTested(why) if why.contains("may have missed writes"));
    let table = [
        (Clause::NoReturnFirst, at_once, false),
        (Clause::AbortHolds, late_pass, false),
        // What may never be withdrawn was withdrawn, in however many writes.
        (Clause::NoReturnFirst, withdrawn.clone(), true),
        (Clause::PassedStays, withdrawn.clone(), true),
        (Clause::ReadyStays, withdrawn, true),
    ];
    for (clause, events, is_proof) in table {
        let judged = |between: Option<Event>| {
            let mut events = events.clone();
            events.splice(events.len() - 1..events.len() - 1, between);
            verdict_of(clause, &[run(Purpose::Update, events)])
        };
        let verdict = judged(None);
        assert!(is_broken(&verdict), "{clause}: {verdict:?}");
        // A watch that goes on where it was interrupted delivers all.
        assert_eq!(judged(Some(Event::Interrupted)), verdict, "{clause}");
        let verdict = judged(Some(Event::Relisted));
        let is_as_wanted = if is_proof { is_broken(&verdict) } else { is_not_tested(&verdict) };
        assert!(is_as_wanted, "{clause}: {verdict:?}");
    }
}

#[test]
fn a_gap_of_the_watch_hides_no_fault_that_is_seen_elsewhere() {
    let at_once = |gap: Option<Event>| {
        let before = seen(4, 3, Gate::Disrupt, json!({"passed": "Upgrade"}));
        let after = json!({"passed": "Disrupt", "pastNoReturn": true, "ready": true});
        let mut events = vec![before, seen(5, 3, Gate::Disrupt, after)];
        events.splice(1..1, gap);
        run(Purpose::Update, events)
    };
    let runs = [at_once(Some(Event::Relisted)), at_once(None)];
    assert!(matches!(verdict_of(Clause::NoReturnFirst, &runs), Verdict::Broken(_)));
}

/// When a generation is noted, and what happened since its order.
#[test]
fn a_late_delivery_does_not_prove_that_the_provider_is_late() {
    let noted = || seen(70, 1, Gate::Stage, json!({"observedGeneration": 1}));
    let judged = |between: Vec<Event>| {
        let events = [vec![ordered(0, 1, Gate::Stage)], between, vec![noted()]].concat();
        verdict_of(Clause::ObservesGenerations, &[run(Purpose::Update, events)])
    };
    assert!(matches!(judged(vec![]), Verdict::Broken(_)));
    for interruption in [Event::Interrupted, Event::Relisted] {
        let verdict = judged(vec![interruption]);
        let Verdict::NotTested(why) = &verdict else { panic!("{verdict:?}") };
        assert!(why.contains("after 70 seconds, but the watch was interrupted"), "{why}");
    }
    // A provider that is restarted has its minute from then on.
    assert_eq!(judged(vec![Event::Restarted(at(20))]), Verdict::Kept);
    assert!(matches!(judged(vec![Event::Restarted(at(9))]), Verdict::Broken(_)));
}

fn refused(gate: Gate, stage: Stage) -> Event {
    Event::Refused(Refusal { gate, stage, message: "no more gates.".into() })
}

#[test]
fn a_refused_order_breaks_its_clause_and_leaves_what_needs_it_untested() {
    let table = [
        (
            Purpose::Update,
            vec![refused(Gate::Stage, Stage::Ongoing)],
            "run update: the API server refused the order spec.gate Stage, spec.stage Ongoing: no more gates",
            &[Clause::ObservesGenerations, Clause::PassesStage, Clause::PassesDisrupt][..],
        ),
        (
            Purpose::Update,
            [&whole()[..5], &[refused(Gate::Disrupt, Stage::Ongoing)], &whole()[8..]].concat(),
            "run update: the API server refused the order spec.gate Disrupt, spec.stage Ongoing: no more gates",
            &[Clause::PassesDisrupt, Clause::Verified, Clause::Restarted, Clause::Repeated],
        ),
        (
            Purpose::AbortAtStage,
            [&whole()[..2], &[refused(Gate::Stage, Stage::Abort)], &whole()[8..]].concat(),
            "run abort-at-stage: the API server refused the order spec.gate Stage, spec.stage Abort: no more gates",
            &[Clause::AbortAtStage, Clause::Undone],
        ),
        (
            Purpose::OtherMachine,
            [&whole()[..5], &[refused(Gate::Disrupt, Stage::Ongoing)], &whole()[8..]].concat(),
            "run other-machine: the API server refused the order spec.gate Disrupt, spec.stage Ongoing: no more gates",
            &[Clause::OtherMachine, Clause::FailureFinal],
        ),
    ];
    for (purpose, events, words, untested) in table {
        let runs = [run(purpose, events)];
        assert_eq!(verdict_of(Clause::OrdersAdmitted, &runs), Verdict::Broken(words.to_owned()));
        for clause in Clause::iter().filter(|clause| *clause != Clause::OrdersAdmitted) {
            let verdict = verdict_of(clause, &runs);
            assert!(!matches!(verdict, Verdict::Broken(_)), "{purpose} {clause}: {verdict:?}");
        }
        for clause in untested {
            let verdict = verdict_of(*clause, &runs);
            assert!(matches!(verdict, Verdict::NotTested(_)), "{purpose} {clause}: {verdict:?}");
        }
    }
}

#[test]
fn an_object_that_is_deleted_after_a_refused_abort_need_not_be_noted() {
    let unseen = run(
        Purpose::AbortAtStage,
        vec![
            ordered(0, 1, Gate::Stage),
            refused(Gate::Stage, Stage::Abort),
            Event::Deleted,
            Event::Gone,
        ],
    );
    assert_eq!(verdict_of(Clause::ObservesGenerations, &[unseen]), Verdict::Kept);
}
