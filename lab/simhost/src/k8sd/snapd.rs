//! Changes of the snap as snapd performs them, in the order that a test scripts.

use std::{collections::VecDeque, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::Reach;

/// How a change ends.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The behaviour of one refresh.
#[derive(Clone, Debug, PartialEq, Eq)]
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

#[derive(Clone, Debug)]
pub(super) struct Change {
    id: String,
    option: String,
    ends: Timestamp,
    end: ChangeEnd,
}

/// The changes of one node.
#[derive(Debug, Default)]
pub(super) struct Snapd {
    pub(super) scripts: VecDeque<RefreshScript>,
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

    pub(super) fn installed(&self, now: Timestamp) -> Option<String> {
        let succeeded = |change: &&Change| change.ends <= now && change.end == ChangeEnd::Done;
        let last = self.changes.iter().rev().find(succeeded);
        last.map(|change| change.option.clone()).or_else(|| self.baseline.clone())
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
            ..RefreshScript::default()
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
        let duration = SignedDuration::try_from(script.duration).unwrap_or(SignedDuration::MAX);
        self.changes.push(Change {
            id: id.clone(),
            option: option.to_owned(),
            ends: now.checked_add(duration).unwrap_or(Timestamp::MAX),
            end: script.end.clone(),
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
