//! The journal: every completely written record is read back, whatever the disk does.

mod versions;

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
use refit_kinds::refit::{Gate, HostStep, PlanState, PlannedStep};
use refit_runtime::gate::Open;

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
