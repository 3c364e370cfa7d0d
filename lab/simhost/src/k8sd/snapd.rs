//! Changes of the snap as snapd performs them, in the order that a test scripts.

use std::{collections::VecDeque, time::Duration};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::Reach;

/// How a change ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeEnd {
    /// `Done`: the snap is refreshed.
    Done,
    /// `Error`, with snapd's message.
    Error(String),
    /// `Undone`: the change was rolled back.
    Undone,
    /// `Hold`: the change was aborted before it did anything.
    Hold,
}

impl ChangeEnd {
    fn status(&self) -> &'static str {
        match self {
            Self::Done => "Done",
            Self::Error(_) => "Error",
            Self::Undone => "Undone",
            Self::Hold => "Hold",
        }
    }
}

/// How a request for a refresh is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefreshReply {
    /// The change begins, and its id is returned.
    Accepted,
    /// The change begins, but the connection closes instead of an answer.
    Lost,
    /// There is nothing to do: no change begins, and the id in the answer is empty.
    NothingToDo,
    /// The command fails with this text: no change begins.
    Fails(String),
}

/// A restart of k8sd during a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// How long after the begin of the change.
    pub after: Duration,
    /// How long it takes.
    pub lasts: Duration,
    /// What clients that connect meanwhile get.
    pub reach: Reach,
    /// Whether k8sd has another certificate afterwards.
    pub replaces_certificate: bool,
}

impl Restart {
    /// From when to when k8sd does not run, in a change that has begun at this time.
    pub(super) fn span(&self, begin: Timestamp) -> (Timestamp, Timestamp) {
        let down = later(begin, self.after);
        (down, later(down, self.lasts))
    }
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The behaviour of one refresh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshScript {
    /// How the request is answered.
    pub reply: RefreshReply,
    /// How long the change takes.
    pub duration: Duration,
    /// How the change ends.
    pub end: ChangeEnd,
    /// A restart meanwhile.
    pub restart: Option<Restart>,
}

impl Default for RefreshScript {
    /// A refresh that is accepted and succeeds after a minute.
    fn default() -> Self {
        Self {
            reply: RefreshReply::Accepted,
            duration: Duration::from_mins(1),
            end: ChangeEnd::Done,
            restart: None,
        }
    }
}

/// The status of a change, as k8sd returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangeStatus {
    pub(super) status: &'static str,
    pub(super) completed: bool,
    pub(super) error: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Change {
    id: String,
    option: String,
    begun: Timestamp,
    ends: Timestamp,
    end: ChangeEnd,
    restart: Option<Restart>,
}

impl Change {
    pub(super) fn ends(&self) -> Timestamp {
        self.ends
    }
}

/// The changes of one node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Snapd {
    pub(super) scripts: VecDeque<RefreshScript>,
    /// The behaviour of a refresh without a script.
    pub(super) usual: RefreshScript,
    /// What is installed before the first change.
    pub(super) baseline: Option<String>,
    /// Whether the ids of all changes that have ended are unknown.
    pub(super) pruned: bool,
    changes: Vec<Change>,
}

/// What a refresh command returns.
pub(super) enum Begun {
    /// The change's id, or the empty output of a command with nothing to do.
    Id(String),
    /// The command failed.
    Failed(String),
}

impl Snapd {
    pub(super) fn begun(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn running(&self, now: Timestamp) -> Option<&Change> {
        self.changes.last().filter(|change| now < change.ends)
    }

    pub(super) fn spans(&self) -> Vec<(Timestamp, Timestamp)> {
        self.changes.iter().map(|change| (change.begun, change.ends)).collect()
    }

    /// The option of the last change that has succeeded, and when it ended.
    pub(super) fn succeeded(&self, now: Timestamp) -> Option<(String, Timestamp)> {
        let succeeded = |change: &&Change| change.ends <= now && change.end == ChangeEnd::Done;
        let last = self.changes.iter().rev().find(succeeded)?;
        Some((last.option.clone(), last.ends))
    }

    pub(super) fn installed(&self, now: Timestamp) -> Option<String> {
        self.succeeded(now).map(|(option, _)| option).or_else(|| self.baseline.clone())
    }

    /// The restart of the last change, with the begin of the change, unless it is over.
    pub(super) fn unfinished_restart(&self, now: Timestamp) -> Option<(Restart, Timestamp)> {
        let change = self.changes.last()?;
        let restart = change.restart.filter(|restart| now < restart.span(change.begun).1)?;
        Some((restart, change.begun))
    }

    /// Runs a refresh command with `--no-wait`: returns its outcome and the script that it follows,
    /// which is used up unless a running change rejects the command.
    pub(super) fn refresh(&mut self, option: &str, now: Timestamp) -> (Begun, RefreshScript) {
        if self.running(now).is_some() {
            let text = "error: snap \"k8s\" has \"refresh-snap\" change in progress";
            return (Begun::Failed(text.to_owned()), RefreshScript::default());
        }
        // A snap from a file is installed again even if nothing differs.
        let is_same = !option.starts_with("localPath=")
            && self.installed(now).is_some_and(|installed| installed == option);
        let script = self.scripts.pop_front().unwrap_or_else(|| RefreshScript {
            reply: if is_same { RefreshReply::NothingToDo } else { RefreshReply::Accepted },
            ..self.usual.clone()
        });
        let begun = match &script.reply {
            RefreshReply::Fails(text) => Begun::Failed(text.clone()),
            RefreshReply::NothingToDo => Begun::Id(String::new()),
            RefreshReply::Accepted | RefreshReply::Lost => {
                self.pruned = false;
                Begun::Id(self.begin(option, now, &script))
            }
        };
        (begun, script)
    }

    fn begin(&mut self, option: &str, now: Timestamp, script: &RefreshScript) -> String {
        let id = (self.changes.len() + 1).to_string();
        self.changes.push(Change {
            id: id.clone(),
            option: option.to_owned(),
            begun: now,
            ends: later(now, script.duration),
            end: script.end.clone(),
            restart: script.restart,
        });
        id
    }

    /// The status of a change; that of an unknown id is empty and not completed.
    pub(super) fn status(&self, id: &str, now: Timestamp) -> ChangeStatus {
        let known = self.changes.iter().find(|change| change.id == id);
        let Some(change) = known.filter(|change| now < change.ends || !self.pruned) else {
            return ChangeStatus::default();
        };
        if now < change.ends {
            return ChangeStatus { status: "Doing", ..ChangeStatus::default() };
        }
        let error = match &change.end {
            ChangeEnd::Error(text) => text.clone(),
            ChangeEnd::Done | ChangeEnd::Undone | ChangeEnd::Hold => String::new(),
        };
        ChangeStatus { status: change.end.status(), completed: true, error }
    }
}
