//! The journal: every completely written record is read back, whatever the disk does.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use futures::future::BoxFuture;
use jiff::Timestamp;
use lab_simhost::{DiskState, SimDisk};
use proptest::prelude::*;
use refit_agent::{
    Disk,
    journal::{CHECKPOINT_BYTES, Journal, JournalError, PATH, encode, recover},
    state::{AbortCause, JournalState, Record, StepOutcome},
};
use refit_kinds::refit::{FailureKind, Gate, HostStep, PlanState, PlannedStep, StepUndo};
use refit_runtime::gate::Open;
use serde_json::{Value, json};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn accepted(plan: &str) -> Record {
    Record::PlanAccepted {
        plan: plan.into(),
        node_update: "m-1".to_owned(),
        steps: vec![PlannedStep::new(HostStep::Preflight { version: None })],
        point_of_no_return: String::new(),
        packages: BTreeMap::from([("kubeadm".to_owned(), "1.34.2-1.1".to_owned())]),
        static_pods: BTreeMap::new(),
        at: at(0),
    }
}

fn started(plan: &str, step: &str, attempt: i32) -> Record {
    Record::StepStarted {
        plan: plan.into(),
        step: step.to_owned(),
        attempt,
        unit: format!("u-{step}-{attempt}"),
        boot_id: "b".to_owned(),
        at: at(i64::from(attempt)),
    }
}

fn finished(plan: &str, step: &str, attempt: i32, outcome: StepOutcome) -> Record {
    Record::StepFinished {
        plan: plan.into(),
        step: step.to_owned(),
        attempt,
        outcome,
        failure: None,
        unchanged: false,
        reason: "R".to_owned(),
        message: "line one\nline \"two\"".to_owned(),
        at: at(i64::from(attempt) + 1),
    }
}

fn history() -> Vec<Record> {
    vec![
        accepted("p"),
        Record::GateSeen { plan: "p".into(), gate: Gate::Stage },
        started("p", "preflight", 1),
        finished("p", "preflight", 1, StepOutcome::Failed),
        started("p", "preflight", 2),
        finished("p", "preflight", 2, StepOutcome::Done),
        Record::AbortSeen { plan: "p".into(), cause: AbortCause::Requested },
        Record::PlanEnded { plan: "p".into(), state: PlanState::Stopped, at: at(9) },
    ]
}

fn bytes_of(records: &[Record]) -> Vec<u8> {
    (1..).zip(records).map(|(seq, record)| encode(seq, record)).collect::<String>().into_bytes()
}

fn disk(state: &Arc<Mutex<DiskState>>) -> Arc<dyn Disk> {
    Arc::new(SimDisk::new(state.clone(), Arc::new(Open)))
}

fn records_strategy() -> impl Strategy<Value = Vec<Record>> {
    let step = prop_oneof![Just("a"), Just("b"), Just("undo-a")];
    let record =
        (0..6_u8, step, 1..4_i32, ".{0,20}").prop_map(|(kind, step, n, text)| match kind {
            0 => accepted("p"),
            1 => started("p", step, n),
            2 => finished("p", step, n, StepOutcome::Failed),
            3 => Record::GateSeen { plan: text.into(), gate: Gate::Upgrade },
            4 => Record::AbortSeen { plan: "p".into(), cause: AbortCause::Superseded },
            _ => Record::PlanEnded { plan: "p".into(), state: PlanState::Failed, at: at(0) },
        });
    prop::collection::vec(record, 0..12)
}

proptest! {
    #[test]
    fn any_prefix_of_the_bytes_recovers_to_a_prefix_of_the_records(
        records in records_strategy(),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = bytes_of(&records);
        let cut = cut.index(bytes.len() + 1);
        let recovered = recover(&bytes[..cut]).unwrap();
        prop_assert_eq!(&recovered.records[..], &records[..recovered.records.len()]);
        // No complete record is lost.
        let whole = bytes[..cut].split(|b| *b == b'\n').count() - 1;
        prop_assert_eq!(recovered.records.len(), whole);
    }

    #[test]
    fn a_flipped_bit_is_never_read_as_a_record(
        records in records_strategy(),
        position in any::<prop::sample::Index>(),
        bit in 0..8_u8,
    ) {
        let mut bytes = bytes_of(&records);
        prop_assume!(!bytes.is_empty());
        let position = position.index(bytes.len());
        bytes[position] ^= 1 << bit;
        if let Ok(recovered) = recover(&bytes) {
            prop_assert_eq!(&recovered.records[..], &records[..recovered.records.len()]);
            // Only the last record can look like a torn one.
            prop_assert!(recovered.records.len() + 1 >= records.len());
        }
    }

    #[test]
    fn replay_can_be_split_at_any_record(
        records in records_strategy(),
        cut in any::<prop::sample::Index>(),
    ) {
        let cut = cut.index(records.len() + 1);
        let mut state = JournalState::replay(&records[..cut]);
        for record in &records[cut..] {
            state.apply(record);
        }
        prop_assert_eq!(state, JournalState::replay(&records));
    }

    #[test]
    fn a_gate_never_moves_back(gates in prop::collection::vec(0..4_usize, 0..8)) {
        const ALL: [Gate; 4] = [Gate::Closed, Gate::Stage, Gate::Upgrade, Gate::Disrupt];
        let mut state = JournalState::replay([&accepted("p")]);
        for gate in &gates {
            let before = state.plan.as_ref().unwrap().gate;
            state.apply(&Record::GateSeen { plan: "p".into(), gate: ALL[*gate] });
            prop_assert!(state.plan.as_ref().unwrap().gate >= before);
        }
    }
}

#[test]
fn a_record_is_one_readable_line_of_json() {
    let line = encode(7, &started("p", "kubeadm-upgrade", 1));
    assert_eq!(line.matches('\n').count(), 1);
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["seq"], 7);
    assert_eq!(value["entry"]["type"], "StepStarted");
    assert_eq!(value["entry"]["bootId"], "b");
}

#[test]
fn a_damaged_record_in_the_middle_is_reported_with_its_line() {
    let records = history();
    let mut bytes = bytes_of(&records);
    let second = bytes.iter().position(|b| *b == b'\n').unwrap() + 40;
    bytes[second] ^= 1;
    let error = recover(&bytes).unwrap_err();
    assert!(matches!(error, JournalError::Corrupt { line: 2, .. }), "{error}");
}

#[test]
fn a_missing_record_in_the_middle_is_reported() {
    let records = history();
    let text: String = [1, 2, 4, 5]
        .into_iter()
        .map(|seq| encode(seq, &records[usize::try_from(seq).unwrap() - 1]))
        .collect();
    let error = recover(text.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("record 4, expected 3"), "{error}");
}

#[test]
fn records_of_another_plan_are_ignored() {
    let mut state = JournalState::replay(&history());
    let before = state.clone();
    state.apply(&started("other", "preflight", 1));
    assert_eq!(state, before);
}

#[tokio::test]
async fn appended_records_survive_a_restart() {
    let state = Arc::default();
    let mut journal = Journal::open(disk(&state)).await.unwrap();
    for record in history() {
        journal.append(record).await.unwrap();
    }
    let again = Journal::open(disk(&state)).await.unwrap();
    assert_eq!(again.state(), journal.state());
    assert_eq!(again.state(), &JournalState::replay(&history()));
}

#[tokio::test]
async fn a_torn_last_record_is_cut_off_and_replaced() {
    let state: Arc<Mutex<DiskState>> = Arc::default();
    let records = history();
    let mut text = String::from_utf8(bytes_of(&records[..3])).unwrap();
    text.truncate(text.len() - 5);
    state.lock().unwrap().files.insert(PATH.to_owned(), text);
    let mut journal = Journal::open(disk(&state)).await.unwrap();
    assert_eq!(journal.state(), &JournalState::replay(&records[..2]));
    journal.append(records[2].clone()).await.unwrap();
    let text = state.lock().unwrap().files[PATH].clone();
    assert_eq!(recover(text.as_bytes()).unwrap().records, records[..3]);
}

#[tokio::test]
async fn an_unsynced_record_is_synced_before_use() {
    let state: Arc<Mutex<DiskState>> = Arc::default();
    let records = history();
    let cache = SimDisk::new(state.clone(), Arc::new(Open));
    cache.append(PATH, &bytes_of(&records[..3])).await.unwrap();
    let journal = Journal::open(Arc::new(cache)).await.unwrap();
    assert_eq!(journal.state(), &JournalState::replay(&records[..3]));
    let after_power_loss = Journal::open(disk(&state)).await.unwrap();
    assert_eq!(after_power_loss.state(), journal.state());
}

#[tokio::test]
async fn the_next_plan_replaces_the_file() {
    let state: Arc<Mutex<DiskState>> = Arc::default();
    let mut journal = Journal::open(disk(&state)).await.unwrap();
    for record in history() {
        journal.append(record).await.unwrap();
    }
    journal.append(accepted("q")).await.unwrap();
    journal.append(started("q", "preflight", 1)).await.unwrap();
    let text = state.lock().unwrap().files[PATH].clone();
    let recovered = recover(text.as_bytes()).unwrap();
    assert_eq!(recovered.records.len(), 2);
    assert_eq!(recovered.seq, 10, "sequence numbers go on");
}

/// A disk that fills up in the middle of one append.
struct FullDisk {
    inner: SimDisk,
    appends_left: AtomicU32,
}

impl Disk for FullDisk {
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, io::Result<Option<Vec<u8>>>> {
        self.inner.read(path)
    }
    fn append<'a>(&'a self, path: &'a str, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            if self.appends_left.fetch_sub(1, Ordering::Relaxed) == 0 {
                let half = &bytes[..bytes.len() / 2];
                self.inner.append(path, half).await?;
                self.inner.sync(path, "half").await?;
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.inner.append(path, bytes).await
        })
    }
    fn sync<'a>(&'a self, path: &'a str, what: &'a str) -> BoxFuture<'a, io::Result<()>> {
        self.inner.sync(path, what)
    }
    fn write_atomic<'a>(
        &'a self,
        path: &'a str,
        bytes: &'a [u8],
        what: &'a str,
    ) -> BoxFuture<'a, io::Result<()>> {
        self.inner.write_atomic(path, bytes, what)
    }
}

#[tokio::test]
async fn a_full_disk_changes_nothing_and_the_next_append_works() {
    let state: Arc<Mutex<DiskState>> = Arc::default();
    let full = FullDisk {
        inner: SimDisk::new(state.clone(), Arc::new(Open)),
        appends_left: AtomicU32::new(1),
    };
    let records = history();
    let mut journal = Journal::open(Arc::new(full)).await.unwrap();
    for record in &records[..2] {
        journal.append(record.clone()).await.unwrap();
    }
    let before = journal.state().clone();
    assert!(journal.append(records[2].clone()).await.is_err());
    assert_eq!(journal.state(), &before);
    journal.append(records[2].clone()).await.unwrap();
    let again = Journal::open(disk(&state)).await.unwrap();
    assert_eq!(again.state(), &JournalState::replay(&records[..3]));
}

/// A disk whose next sync fails because it could not write its cache. Appended bytes are visible
/// but not on the disk, and a second sync of the same file succeeds.
struct BrokenSync {
    inner: SimDisk,
    fails: AtomicU32,
    lied: Mutex<bool>,
}

impl BrokenSync {
    fn new(state: &Arc<Mutex<DiskState>>, syncs_left: u32) -> Self {
        Self {
            inner: SimDisk::new(state.clone(), Arc::new(Open)),
            fails: AtomicU32::new(syncs_left),
            lied: Mutex::default(),
        }
    }
}

impl Disk for BrokenSync {
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, io::Result<Option<Vec<u8>>>> {
        self.inner.read(path)
    }
    fn append<'a>(&'a self, path: &'a str, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        self.inner.append(path, bytes)
    }
    fn sync<'a>(&'a self, path: &'a str, what: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            match self.fails.load(Ordering::Relaxed) {
                0 => {
                    *self.lied.lock().unwrap() = true;
                    Ok(())
                }
                1 => {
                    self.fails.store(0, Ordering::Relaxed);
                    Err(io::Error::other("Input/output error"))
                }
                left => {
                    self.fails.store(left - 1, Ordering::Relaxed);
                    self.inner.sync(path, what).await
                }
            }
        })
    }
    fn write_atomic<'a>(
        &'a self,
        path: &'a str,
        bytes: &'a [u8],
        what: &'a str,
    ) -> BoxFuture<'a, io::Result<()>> {
        self.fails.store(u32::MAX, Ordering::Relaxed);
        self.inner.write_atomic(path, bytes, what)
    }
}

#[tokio::test]
async fn a_failed_sync_rewrites_the_file() {
    let state: Arc<Mutex<DiskState>> = Arc::default();
    let records = history();
    let mut first = Journal::open(disk(&state)).await.unwrap();
    first.append(records[0].clone()).await.unwrap();
    // The sync of the first append succeeds, that of the second fails.
    let broken = Arc::new(BrokenSync::new(&state, 3));
    let mut journal = Journal::open(broken.clone()).await.unwrap();
    journal.append(records[1].clone()).await.unwrap();
    let before = journal.state().clone();
    let error = journal.append(records[2].clone()).await.unwrap_err();
    assert!(error.to_string().contains("cannot be synced"), "{error}");
    assert_eq!(journal.state(), &before, "nothing is assumed");
    journal.append(records[3].clone()).await.unwrap();
    assert!(!*broken.lied.lock().unwrap(), "a sync that cannot be believed was asked");
    let after_power_loss = Journal::open(disk(&state)).await.unwrap();
    assert_eq!(after_power_loss.state(), &JournalState::replay(&records[..4]));
}

fn long(step: &str, attempt: i32) -> Record {
    let mut record = finished("p", step, attempt, StepOutcome::Failed);
    if let Record::StepFinished { message, .. } = &mut record {
        *message = "x".repeat(4096);
    }
    record
}

#[tokio::test]
async fn a_long_journal_becomes_an_equivalent_checkpoint() {
    let state: Arc<Mutex<DiskState>> = Arc::default();
    let mut journal = Journal::open(disk(&state)).await.unwrap();
    let mut records = vec![accepted("p")];
    for attempt in 1..=200 {
        records.push(started("p", "preflight", attempt));
        records.push(long("preflight", attempt));
    }
    for record in &records {
        journal.append(record.clone()).await.unwrap();
        let bytes = state.lock().unwrap().files[PATH].len();
        assert!(bytes < CHECKPOINT_BYTES + 8192, "{bytes}");
    }
    assert_eq!(journal.state(), &JournalState::replay(&records));
    let again = Journal::open(disk(&state)).await.unwrap();
    assert_eq!(again.state(), journal.state());
    let text = state.lock().unwrap().files[PATH].clone();
    assert!(text.lines().next().unwrap().contains("Checkpoint"));
}

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
        (&include_bytes!("../testdata/journal-before-the-union-worker.jsonl")[..], 7),
        (include_bytes!("../testdata/journal-before-the-union-everything.jsonl"), 16),
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
    let bytes = include_bytes!("../testdata/journal-before-the-union-everything.jsonl");
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
