//! The annotation of a control plane Machine that has kubeadm renew its certificates: it asks for a NodeUpdate, once.
//!
//! | `renew-certificates` | NodeUpdate for it | what follows |
//! |---|---|---|
//! | absent | any | nothing |
//! | any | for this very request, or unfinished for the same goal | the annotation is removed |
//! | not a request, or k8sd runs on the machine | | the annotation is removed, with an event |
//! | a request | unfinished for another goal | it waits until that has ended |
//! | a request | none, or ended | a NodeUpdate is requested, once the Machine has a Node |
//!
//! What becomes of the NodeUpdate shows only there. It is not stopped with the annotation: `refit abort` does that.

use std::collections::BTreeMap;

use refit_kinds::{
    keys,
    refit::{NodeUpdate, RenewalRequest},
};

use super::machine::{Announced, Request};
use crate::node::{Announcement, Severity};

/// Reason of the event that a request cannot be carried out.
const REFUSED: &str = "CertificatesRenewalRefused";

/// What is known of a Machine and of its annotation.
#[derive(Clone, Copy, Debug)]
pub struct RenewalSeen<'a> {
    /// All annotations of the Machine.
    pub annotations: &'a BTreeMap<String, String>,
    /// The newest NodeUpdate that the annotation has requested for this Machine.
    pub update: Option<&'a NodeUpdate>,
    /// k8sd runs on the machine.
    pub has_k8sd: bool,
    /// The Machine has a Node.
    pub has_node: bool,
    /// The Machine is being deleted.
    pub is_deleting: bool,
}

/// Decides what follows from the annotation. A NodeUpdate that is requested respects a pause itself.
pub fn renewal(seen: &RenewalSeen<'_>) -> Announced {
    let Some(text) = seen.annotations.get(keys::RENEW_CERTIFICATES).filter(|_| !seen.is_deleting)
    else {
        return Announced::default();
    };
    let request: RenewalRequest = match text.parse() {
        Ok(request) => request,
        Err(why) => return refused(&format!("annotation {}: {why}", keys::RENEW_CERTIFICATES)),
    };
    if seen.has_k8sd {
        return refused(&format!(
            "k8sd issues the certificates of this machine; annotate it with {} instead",
            refit_kinds::canonical::REFIT.certificates.refresh
        ));
    }
    let goal = request.goal();
    if let Some(update) = seen.update {
        let is_answer = requested(update) == Some(text);
        let is_unfinished = !update.phase().is_final();
        if is_answer || is_unfinished && update.spec.goal.certificates == goal.certificates {
            return removed(Vec::new());
        }
        if is_unfinished {
            return Announced::default();
        }
    }
    if !seen.has_node {
        return Announced::default();
    }
    Announced { request: Request::Ask(goal), ..Announced::default() }
}

/// The request that a NodeUpdate was made for.
fn requested(update: &NodeUpdate) -> Option<&String> {
    update.metadata.annotations.as_ref()?.get(keys::REQUESTED)
}

fn removed(events: Vec<Announcement>) -> Announced {
    let changes = BTreeMap::from([(keys::RENEW_CERTIFICATES, None)]);
    Announced { changes, events, request: Request::None }
}

fn refused(why: &str) -> Announced {
    let message = format!("Certificates are not renewed: {why}");
    removed(vec![Announcement { severity: Severity::Warning, reason: REFUSED, message }])
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::{NodeUpdateStatus, Phase};
    use serde_json::json;

    use super::*;

    const FIRST: &str = "2026-03-02T08:00:00Z";
    const SECOND: &str = "2026-04-02T08:00:00Z";
    const WITHIN: &str = "2026-04-02T08:00:00Z within 60d";

    /// A NodeUpdate for a request.
    fn update(text: &str, phase: Phase) -> NodeUpdate {
        let goal = text.parse::<RenewalRequest>().unwrap().goal();
        let mut update: NodeUpdate = serde_json::from_value(json!({
            "metadata": {"name": "m-1", "annotations": {keys::REQUESTED: text}},
            "spec": {
                "machineRef": {"name": "m", "uid": "u"}, "origin": "Annotation", "goalHash": "",
                "goal": goal,
            },
        }))
        .unwrap();
        update.status = Some(NodeUpdateStatus { phase, ..NodeUpdateStatus::default() });
        update
    }

    fn decided(text: Option<&str>, update: Option<&NodeUpdate>) -> Announced {
        let key = keys::RENEW_CERTIFICATES.to_owned();
        let annotations = text.map(|text| (key, text.to_owned())).into_iter().collect();
        renewal(&seen(&annotations, update))
    }

    fn seen<'a>(
        annotations: &'a BTreeMap<String, String>,
        update: Option<&'a NodeUpdate>,
    ) -> RenewalSeen<'a> {
        RenewalSeen { annotations, update, has_k8sd: false, has_node: true, is_deleting: false }
    }

    /// What follows, in a word.
    fn word(decided: &Announced) -> &'static str {
        let is_removed = decided.changes == BTreeMap::from([(keys::RENEW_CERTIFICATES, None)]);
        match &decided.request {
            Request::Ask(_) if decided.changes.is_empty() && decided.events.is_empty() => "ask",
            Request::None if is_removed && decided.events.is_empty() => "removed",
            Request::None if is_removed => "refused",
            Request::None if *decided == Announced::default() => "nothing",
            _ => "something else",
        }
    }

    #[test]
    fn a_request_is_answered_with_one_node_update_and_removed() {
        for (text, before, expected) in [
            (None, None, "nothing"),
            (None, Some((FIRST, Phase::Failed)), "nothing"),
            (Some(FIRST), None, "ask"),
            (Some(FIRST), Some((FIRST, Phase::Pending)), "removed"),
            // A crash before the removal, and a manifest that sets it again, make no second one.
            (Some(FIRST), Some((FIRST, Phase::Succeeded)), "removed"),
            (Some(FIRST), Some((FIRST, Phase::Failed)), "removed"),
            (Some(SECOND), Some((FIRST, Phase::Waiting)), "removed"),
            (Some(SECOND), Some((FIRST, Phase::Succeeded)), "ask"),
            (Some(SECOND), Some((FIRST, Phase::Failed)), "ask"),
            (Some(WITHIN), Some((FIRST, Phase::Waiting)), "nothing"),
            (Some(WITHIN), Some((FIRST, Phase::Stopped)), "ask"),
            (Some("now"), None, "refused"),
            (Some("now"), Some((FIRST, Phase::Waiting)), "refused"),
        ] {
            let update = before.map(|(text, phase)| update(text, phase));
            let found = decided(text, update.as_ref());
            assert_eq!(word(&found), expected, "{text:?} after {before:?}: {found:?}");
        }
    }

    #[test]
    fn the_goal_has_the_days_of_the_request() {
        for (text, within_days) in [(FIRST, None), (WITHIN, Some(60))] {
            let Request::Ask(goal) = decided(Some(text), None).request else { panic!("{text}") };
            let certificates = goal.certificates.unwrap();
            assert_eq!(
                (certificates.within_days, certificates.lifetime_seconds),
                (within_days, None)
            );
        }
    }

    #[test]
    fn a_machine_without_a_node_waits_and_one_of_k8sd_is_refused() {
        let annotations = BTreeMap::from([(keys::RENEW_CERTIFICATES.to_owned(), FIRST.to_owned())]);
        let seen = seen(&annotations, None);
        for (seen, expected) in [
            (seen, "ask"),
            (RenewalSeen { has_node: false, ..seen }, "nothing"),
            (RenewalSeen { is_deleting: true, ..seen }, "nothing"),
            (RenewalSeen { has_k8sd: true, ..seen }, "refused"),
        ] {
            assert_eq!(word(&renewal(&seen)), expected, "{seen:?}");
        }
        let refused = renewal(&RenewalSeen { has_k8sd: true, ..seen });
        assert!(refused.events[0].message.ends_with("with refit.dev/refresh-certificates instead"));
    }
}
