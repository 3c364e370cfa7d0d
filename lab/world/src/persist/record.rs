//! One change, as a line: its checksum, then JSON.

use std::collections::BTreeMap;

use jiff::Timestamp;
use lab_apiserver::StoredWrite;
use lab_simhost::{DiskState, HostState};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    env::state::EnvState,
    snapshot::{Snapshot, WorkloadSnapshot},
    world::{Actor, HostSnapshot},
};

/// Format of the file. A file of another one is refused.
pub(super) const FORMAT: u32 = 1;
/// Length of a checksum, in hex digits.
const SUM: usize = 16;

/// Something that happened in a world.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Record {
    /// The whole world.
    World {
        /// [`FORMAT`].
        format: u32,
        /// It.
        world: Box<Snapshot>,
    },
    /// A write to an API.
    Write {
        /// The workload cluster; none for the management cluster.
        cluster: Option<String>,
        /// The write.
        write: StoredWrite,
    },
    /// A new workload cluster.
    Workload {
        /// Its key.
        cluster: String,
        /// Its API and keys.
        part: Box<WorkloadSnapshot>,
    },
    /// What a workload cluster tells as its version.
    Version {
        /// Its key.
        cluster: String,
        /// The version.
        version: String,
    },
    /// A host or its disk changed.
    Host {
        /// Its key.
        host: String,
        /// The host, where that changed.
        state: Option<Box<HostState>>,
        /// Files of its disk that changed.
        files: BTreeMap<String, FileChange>,
        /// Files that are gone.
        gone: Vec<String>,
    },
    /// What the environment remembers.
    Env(Box<EnvState>),
    /// A process was started.
    Incarnation {
        /// Which.
        actor: Actor,
        /// For the how manieth time.
        count: u32,
    },
}

/// How a file on a host's disk changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum FileChange {
    /// It got longer.
    Append(String),
    /// It is another one.
    Whole(String),
}

/// A record with its place in the file.
#[derive(Serialize, Deserialize)]
pub(super) struct Line<R> {
    pub(super) seq: u64,
    pub(super) at: Timestamp,
    pub(super) record: R,
}

/// The line of a record.
pub(super) fn encode(seq: u64, at: Timestamp, record: &Record) -> Vec<u8> {
    let line = Line { seq, at, record };
    let json = serde_json::to_vec(&line).expect("a record has string keys only");
    let mut bytes = sum(&json).into_bytes();
    bytes.push(b' ');
    bytes.extend_from_slice(&json);
    bytes.push(b'\n');
    bytes
}

/// The record of a line without its end.
pub(super) fn decode(line: &[u8]) -> Result<Line<Record>, String> {
    let shape = || "not the shape of a record".to_owned();
    let (found, rest) = line.split_at_checked(SUM).ok_or_else(shape)?;
    let json = rest.strip_prefix(b" ").ok_or_else(shape)?;
    if sum(json).as_bytes() != found {
        return Err("the checksum does not match".to_owned());
    }
    serde_json::from_slice(json).map_err(|error| error.to_string())
}

fn sum(json: &[u8]) -> String {
    use std::fmt::Write as _;
    let digest = Sha256::digest(json);
    digest[..SUM / 2].iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// How a host differs from what is known of it; `None` where it does not.
pub(super) fn host_change(
    host: &str,
    known: Option<&HostSnapshot>,
    now: &HostSnapshot,
) -> Option<Record> {
    let state = known.is_none_or(|known| known.state != now.state);
    let nothing = DiskState::default();
    let before = known.map_or(&nothing, |known| &known.disk);
    let files: BTreeMap<String, FileChange> = now
        .disk
        .files
        .iter()
        .filter_map(|(path, content)| {
            let change = match before.files.get(path) {
                Some(old) if old == content => return None,
                Some(old) if content.starts_with(old) => {
                    FileChange::Append(content[old.len()..].to_owned())
                }
                _ => FileChange::Whole(content.clone()),
            };
            Some((path.clone(), change))
        })
        .collect();
    let gone: Vec<String> =
        before.files.keys().filter(|path| !now.disk.files.contains_key(*path)).cloned().collect();
    (state || !files.is_empty() || !gone.is_empty()).then(|| Record::Host {
        host: host.to_owned(),
        state: state.then(|| Box::new(now.state.clone())),
        files,
        gone,
    })
}

impl Snapshot {
    /// Takes up what happened next.
    pub(super) fn follow(&mut self, at: Timestamp, record: Record) -> Result<(), String> {
        self.time = self.time.max(at);
        match record {
            Record::World { .. } => return Err("a second whole world".to_owned()),
            Record::Write { cluster, write } => {
                let store = match &cluster {
                    None => &mut self.management,
                    Some(key) => &mut self.workload_part(key)?.store,
                };
                store.replay(&write).map_err(|error| error.to_string())?;
            }
            Record::Workload { cluster, part } => {
                self.workloads.insert(cluster, *part);
            }
            Record::Version { cluster, version } => {
                let part = self.workload_part(&cluster)?;
                part.store.set_git_version(&version);
            }
            Record::Host { host, state, files, gone } => {
                self.follow_host(host, state, files, &gone)?
            }
            Record::Env(env) => self.env = *env,
            Record::Incarnation { actor, count } => {
                self.incarnations.retain(|(known, _)| *known != actor);
                self.incarnations.push((actor, count));
            }
        }
        Ok(())
    }

    fn workload_part(&mut self, key: &str) -> Result<&mut WorkloadSnapshot, String> {
        self.workloads
            .get_mut(key)
            .ok_or_else(|| format!("a change of cluster {key}, which is not there"))
    }

    fn follow_host(
        &mut self,
        host: String,
        state: Option<Box<HostState>>,
        files: BTreeMap<String, FileChange>,
        gone: &[String],
    ) -> Result<(), String> {
        let known = match (self.hosts.remove(&host), state) {
            (Some(known), None) => known,
            (Some(known), Some(state)) => HostSnapshot { state: *state, ..known },
            (None, Some(state)) => HostSnapshot { state: *state, disk: DiskState::default() },
            (None, None) => return Err(format!("a change of host {host}, which is not there")),
        };
        let mut disk = known.disk;
        for path in gone {
            disk.files.remove(path);
        }
        for (path, change) in files {
            match change {
                FileChange::Append(text) => disk.files.entry(path).or_default().push_str(&text),
                FileChange::Whole(text) => {
                    disk.files.insert(path, text);
                }
            }
        }
        let state = known.state;
        self.hosts.insert(host, HostSnapshot { state, disk });
        Ok(())
    }

    /// The same world without what only running watches need.
    pub(super) fn kept(mut self) -> Self {
        self.management = self.management.without_history();
        for part in self.workloads.values_mut() {
            part.store = part.store.clone().without_history();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-03-02T08:00:00Z".parse().unwrap()
    }

    fn host(journal: &str) -> HostSnapshot {
        let mut disk = DiskState::default();
        disk.files.insert("journal".to_owned(), journal.to_owned());
        HostSnapshot { state: HostState::new("n1", false, "v1.34.2", now()), disk }
    }

    #[test]
    fn a_line_that_lost_a_bit_is_refused() {
        let record =
            Record::Version { cluster: "default/edge-1".to_owned(), version: "v1.35.0".to_owned() };
        let line = encode(7, now(), &record);
        let read = decode(&line[..line.len() - 1]).unwrap();
        assert_eq!((read.seq, read.at), (7, now()));
        for place in 0..line.len() - 1 {
            let mut damaged = line.clone();
            damaged[place] ^= 1;
            assert!(decode(&damaged[..line.len() - 1]).is_err(), "byte {place}");
        }
    }

    #[test]
    fn a_journal_that_grew_is_kept_as_what_it_grew_by() {
        let change = host_change("h", Some(&host("a")), &host("ab")).unwrap();
        let Record::Host { state, files, .. } = change else {
            panic!("not of a host");
        };
        assert!(state.is_none());
        assert_eq!(files["journal"], FileChange::Append("b".to_owned()));
        assert!(host_change("h", Some(&host("a")), &host("a")).is_none());
    }

    #[test]
    fn a_journal_that_was_replaced_is_kept_whole() {
        let change = host_change("h", Some(&host("abc")), &host("x")).unwrap();
        let Record::Host { files, .. } = change else {
            panic!("not of a host");
        };
        assert_eq!(files["journal"], FileChange::Whole("x".to_owned()));
    }
}
