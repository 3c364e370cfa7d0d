//! What Canonical's controllers write, and when, where that differs from what Refit does by itself.
//!
//! They know a Machine by its annotations alone. Here its NodeUpdate decides what is requested of k8sd, and the annotations
//! follow; one refresh at a time, no slot given away early, a pause, and the check of versions hold in both modes.

use refit_kinds::{
    canonical::{Keys, UpgradeStatus},
    refit::{GoalOption, K8sdRefresh},
};

use super::{
    machine::{Announced, MachineSeen, Request, rfc1123z},
    notes::{DONE, IN_PROGRESS, failed_with, normal},
};
use crate::node::Announcement;

impl MachineSeen<'_> {
    /// What precedes a request: traces of the last one go first, and a change id is judged by its status.
    pub(super) fn strict_ask(&self, option: GoalOption) -> Announced {
        let status = self.get(self.keys.status);
        let has_change = self.keys.change_id.is_some_and(|key| self.get(key).is_some());
        let parsed = status.map(str::parse::<UpgradeStatus>);
        match parsed {
            None if has_change => self.strict_failure(&option, "missing in-place upgrade status"),
            Some(Err(_)) if has_change => {
                self.strict_failure(&option, "invalid in-place upgrade status")
            }
            None | Some(_) => {
                let Keys { status, release, change_id, .. } = self.keys;
                let changes =
                    self.change([(Some(status), None), (Some(release), None), (change_id, None)]);
                Announced { changes, request: Request::of_option(option), ..Announced::default() }
            }
        }
    }

    /// A state that only a person can have made.
    fn strict_failure(&self, option: &GoalOption, why: &str) -> Announced {
        let Keys { status, last_failed_attempt_at, .. } = self.keys;
        let changes = self.change([
            (Some(status), Some(UpgradeStatus::Failed.to_string())),
            (Some(last_failed_attempt_at), Some(rfc1123z(self.now))),
        ]);
        let events = vec![failed_with(&option.to_string(), why)];
        Announced { changes, events, request: Request::None }
    }

    /// A refresh runs, or an attempt has failed, which is shown in two steps.
    pub(super) fn strict_under_way(&self, option: &GoalOption, refresh: &K8sdRefresh) -> Announced {
        let Keys { status, release, change_id, last_failed_attempt_at, .. } = self.keys;
        let failed_at = refresh.last_failed_at.as_ref().map(|at| rfc1123z(at.0));
        let is_news =
            failed_at.is_some() && failed_at.as_deref() != self.get(last_failed_attempt_at);
        if is_news {
            let changes = self.change([
                (Some(status), Some(UpgradeStatus::Failed.to_string())),
                (Some(last_failed_attempt_at), failed_at),
            ]);
            let events = vec![failed_with(&option.to_string(), &refresh.last_failure)];
            return Announced { changes, events, request: Request::None };
        }
        let changes = match &refresh.change_id {
            Some(change) => self.change([
                (Some(status), Some(UpgradeStatus::InProgress.to_string())),
                (change_id, Some(change.clone())),
                (Some(release), None),
            ]),
            None => self.change([(Some(status), None), (change_id, None)]),
        };
        let is_begun = refresh.change_id.is_some() && !changes.is_empty();
        let message = format!("Performing in place upgrade with {option}");
        let events: Vec<Announcement> =
            is_begun.then(|| normal(IN_PROGRESS, message)).into_iter().collect();
        Announced { changes, events, request: Request::None }
    }

    /// The first step of a success; `None` if it was made.
    pub(super) fn strict_done(&self, option: &GoalOption) -> Option<Announced> {
        let done = UpgradeStatus::Done.to_string();
        if self.get(self.keys.status) == Some(&done) {
            return None;
        }
        let message = format!("Successfully performed in place upgrade with {option}");
        Some(Announced {
            changes: self.change([(Some(self.keys.status), Some(done))]),
            events: vec![normal(DONE, message)],
            request: Request::None,
        })
    }
}
