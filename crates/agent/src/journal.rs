//! The append-only record of what was started and how it ended.
//!
//! One JSON object per line: `{"seq":7,"sum":"3f0b12cd9a417e55","entry":{...}}`. The sum is the
//! start of the SHA-256 of sequence number and entry. A record is synced before the agent acts on
//! it. The journal holds one plan: the record that accepts the next plan replaces the file, and a
//! file that has grown too long is replaced by a checkpoint of its state.
//!
//! A failed sync is never repeated on the same file: the system may have dropped the data that it
//! could not write, and the next sync would succeed. The content that was read is written to a new
//! file instead.

use std::{io, sync::Arc};

use sha2::{Digest as _, Sha256};

use crate::{
    disk::Disk,
    state::{JournalState, Record},
};

/// Name of the journal file on its disk.
pub const PATH: &str = "journal.jsonl";
/// Size at which a checkpoint replaces the file. A plan without retries needs a twentieth of it,
/// and a file of this size is still read quickly.
pub const CHECKPOINT_BYTES: usize = 256 << 10;

const SEQ: &str = "{\"seq\":";
const SUM: &str = ",\"sum\":\"";
const ENTRY: &str = "\",\"entry\":";
const END: &str = "}";

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Reading or writing the disk failed.
    #[error("the journal cannot be {attempt}: {source}")]
    Disk {
        /// The attempted operation.
        attempt: &'static str,
        /// The error of the disk.
        source: io::Error,
    },
    /// A record other than the last is damaged: what happened on this host is unknown.
    #[error(
        "the journal is damaged at line {line} ({reason}); check the state of the host, then move \
         the file away"
    )]
    Corrupt {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with the line.
        reason: String,
    },
    /// A newer agent wrote the journal, and this one does not know what a part of it means.
    #[error(
        "the journal is from a newer agent ({what}), and this one waits so that it undoes nothing of \
         that; install the newer version again, and if it was rejected on this host, remove its \
         `rejected` file"
    )]
    Newer {
        /// What this agent does not know.
        what: String,
    },
}

/// Why a line is not read.
enum Unreadable {
    /// It is not what an agent wrote.
    Damaged(String),
    /// Its checksum is right, but its record is unknown.
    Unknown(String),
}

impl Unreadable {
    fn at(self, line: usize) -> JournalError {
        match self {
            Self::Damaged(reason) => JournalError::Corrupt { line, reason },
            Self::Unknown(why) => JournalError::Newer { what: format!("line {line}: {why}") },
        }
    }
}

/// Content of a journal file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The records, oldest first.
    pub records: Vec<Record>,
    /// Sequence number of the last record; 0 in an empty journal.
    pub seq: u64,
    /// Size of the records in bytes. The rest of the file is a torn record.
    pub valid_bytes: usize,
}

/// Encodes one record as a line.
pub fn encode(seq: u64, record: &Record) -> String {
    let entry = serde_json::to_string(record).expect("the map keys of a record are strings");
    let sum = sum(seq, &entry);
    format!("{SEQ}{seq}{SUM}{sum}{ENTRY}{entry}{END}\n")
}

fn sum(seq: u64, entry: &str) -> String {
    let digest = Sha256::digest(format!("{seq}:{entry}"));
    digest[..8].iter().fold(String::new(), |mut text, byte| {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn decode(line: &[u8]) -> Result<(u64, Record), Unreadable> {
    let shape = || Unreadable::Damaged("not a journal record".to_owned());
    let line = std::str::from_utf8(line).map_err(|e| Unreadable::Damaged(e.to_string()))?;
    let rest = line.strip_prefix(SEQ).ok_or_else(shape)?;
    let (seq, rest) = rest.split_once(SUM).ok_or_else(shape)?;
    let (found, rest) = rest.split_once(ENTRY).ok_or_else(shape)?;
    let entry = rest.strip_suffix(END).ok_or_else(shape)?;
    let seq: u64 = seq.parse().map_err(|_| shape())?;
    if sum(seq, entry) != found {
        return Err(Unreadable::Damaged("the checksum does not match".to_owned()));
    }
    let record = serde_json::from_str(entry).map_err(|e| Unreadable::Unknown(e.to_string()))?;
    Ok((seq, record))
}

/// Reads a journal. A last record that was being written when the host crashed is dropped: it has
/// no line end, or one of its blocks was never written. Any other damage is an error, also in the
/// last record.
pub fn recover(bytes: &[u8]) -> Result<Recovered, JournalError> {
    let mut recovered = Recovered::default();
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').enumerate();
    let mut rest = bytes.len();
    for (index, line) in lines {
        rest -= line.len();
        let outcome = line
            .strip_suffix(b"\n")
            .ok_or_else(|| Unreadable::Damaged("the line has no end".to_owned()))
            .and_then(decode)
            .and_then(|(seq, record)| {
                let expected = recovered.seq + 1;
                if index > 0 && seq != expected {
                    Err(Unreadable::Damaged(format!("record {seq}, expected {expected}")))
                } else {
                    Ok((seq, record))
                }
            });
        match outcome {
            Ok((seq, record)) => {
                recovered.seq = seq;
                recovered.records.push(record);
                recovered.valid_bytes += line.len();
            }
            Err(_) if rest == 0 && (!line.ends_with(b"\n") || line.contains(&0)) => {}
            Err(why) => return Err(why.at(index + 1)),
        }
    }
    Ok(recovered)
}

/// The journal of one host.
pub struct Journal {
    disk: Arc<dyn Disk>,
    state: JournalState,
    seq: u64,
    /// Size of the file.
    bytes: usize,
    /// What the last append may have left in the file.
    doubt: Doubt,
}

/// What is uncertain about the file after a failed append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    None,
    /// The file may end in half a record.
    Torn,
    /// The visible content may never have reached the disk.
    Unsynced,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("seq", &self.seq)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal and cuts off a torn last record.
    pub async fn open(disk: Arc<dyn Disk>) -> Result<Self, JournalError> {
        let mut journal =
            Self { disk, state: JournalState::default(), seq: 0, bytes: 0, doubt: Doubt::None };
        journal.reload().await?;
        Ok(journal)
    }

    async fn reload(&mut self) -> Result<(), JournalError> {
        let failed = |attempt| move |source| JournalError::Disk { attempt, source };
        let bytes = self.disk.read(PATH).await.map_err(failed("read"))?;
        let bytes = bytes.unwrap_or_default();
        let recovered = recover(&bytes)?;
        let valid = &bytes[..recovered.valid_bytes];
        if valid.len() < bytes.len() {
            tracing::warn!(
                bytes = bytes.len() - valid.len(),
                "dropping an incomplete record at the end of the journal"
            );
            self.disk
                .write_atomic(PATH, valid, "incomplete record dropped")
                .await
                .map_err(failed("repaired"))?;
        } else if self.doubt == Doubt::Unsynced {
            self.disk.write_atomic(PATH, valid, "rewritten").await.map_err(failed("rewritten"))?;
        } else if !bytes.is_empty() {
            // The process that wrote the last record may have died before its sync; the agent now
            // acts on it.
            self.disk.settle(PATH, "records found").await.map_err(failed("synced"))?;
        }
        let state = JournalState::replay(&recovered.records);
        if let Some((step, error)) = state.unknown_in_progress() {
            return Err(JournalError::Newer { what: format!("step {step}: {error}") });
        }
        self.state = state;
        self.seq = recovered.seq;
        self.bytes = valid.len();
        self.doubt = Doubt::None;
        Ok(())
    }

    /// Returns the state of the journal.
    pub fn state(&self) -> &JournalState {
        &self.state
    }

    /// Writes a record and returns once it is durable. After an error the state is unchanged.
    pub async fn append(&mut self, record: Record) -> Result<(), JournalError> {
        if self.doubt != Doubt::None {
            self.reload().await?;
        }
        if self.bytes > CHECKPOINT_BYTES {
            self.checkpoint().await?;
        }
        let failed = |attempt| move |source| JournalError::Disk { attempt, source };
        let seq = self.seq + 1;
        let line = encode(seq, &record);
        let what = record.what();
        if matches!(record, Record::PlanAccepted { .. }) {
            // The previous plan has ended: one file per plan keeps the journal bounded.
            self.disk
                .write_atomic(PATH, line.as_bytes(), &what)
                .await
                .map_err(failed("replaced"))?;
            self.bytes = line.len();
        } else {
            self.doubt = Doubt::Torn;
            self.disk.append(PATH, line.as_bytes()).await.map_err(failed("written"))?;
            self.doubt = Doubt::Unsynced;
            self.disk.sync(PATH, &what).await.map_err(failed("synced"))?;
            self.doubt = Doubt::None;
            self.bytes += line.len();
        }
        self.seq = seq;
        self.state.apply(&record);
        Ok(())
    }

    /// Replaces the file by one checkpoint record of the same state.
    async fn checkpoint(&mut self) -> Result<(), JournalError> {
        let Some(progress) = self.state.plan.clone() else {
            return Ok(());
        };
        let record = Record::Checkpoint { plan: progress.id.clone(), progress: Box::new(progress) };
        let seq = self.seq + 1;
        let line = encode(seq, &record);
        self.disk
            .write_atomic(PATH, line.as_bytes(), &record.what())
            .await
            .map_err(|source| JournalError::Disk { attempt: "shortened", source })?;
        self.seq = seq;
        self.bytes = line.len();
        Ok(())
    }
}
