//! Certificates that expire before a rollout is predicted to end.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use refit_kinds::refit::{HostFacts, HostPlan, NodeName};

use super::Warning;
use crate::preflight::many;

/// The preflight refuses machines whose certificates end earlier.
const REFUSED_WITHIN: SignedDuration = SignedDuration::from_hours(24);

/// Which certificates of a host expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    /// Those that kubeadm does not renew.
    Kept,
    /// Those that it renews with the update of the host.
    Renewed,
}

/// The warnings, if the end of the rollout is known. `nodes` are the nodes that are updated, with their Machines.
pub(super) fn warnings(
    plans: &BTreeMap<NodeName, Arc<HostPlan>>,
    nodes: &BTreeMap<&str, &str>,
    now: Timestamp,
    end: Option<Timestamp>,
) -> Vec<Warning> {
    let Some(end) = end else { return Vec::new() };
    let mut found: BTreeMap<Which, Vec<(Timestamp, String, &str, &str)>> = BTreeMap::new();
    for (node, machine) in nodes {
        let status = plans.get(&NodeName::from(*node)).and_then(|plan| plan.status.as_ref());
        let Some(facts) = status.map(|status| &status.facts) else { continue };
        for (which, until, certificate) in first_of(facts, now) {
            if until <= end {
                found.entry(which).or_default().push((until, certificate, *node, *machine));
            }
        }
    }
    found.into_iter().filter_map(|(which, all)| warning(which, all)).collect()
}

/// The first certificate of each sort to expire.
fn first_of(facts: &HostFacts, now: Timestamp) -> Vec<(Which, Timestamp, String)> {
    let refused = now.saturating_add(REFUSED_WITHIN).unwrap_or(Timestamp::MAX);
    let kept = facts.certificates.iter().map(|(path, until)| (until.0, path));
    let kept = kept.filter(|(until, _)| *until > refused).min();
    let kept = kept.map(|(until, path)| (Which::Kept, until, format!("certificate {path}")));
    let renewed = facts.certificates_end.as_ref();
    let renewed = renewed.map(|until| (Which::Renewed, until.0, "a certificate".to_owned()));
    kept.into_iter().chain(renewed).collect()
}

fn warning(which: Which, mut all: Vec<(Timestamp, String, &str, &str)>) -> Option<Warning> {
    all.sort();
    let (until, certificate, node, machine) = all.first()?;
    let machines: Vec<String> = all.iter().map(|(.., machine)| (*machine).to_owned()).collect();
    let (what, remedy) = match which {
        Which::Kept => (
            "before the predicted end of the rollout: machines whose turn comes within a day of that wait, and what \
             uses it fails",
            "renew it first",
        ),
        Which::Renewed => (
            "before the predicted end of the rollout: kubeadm renews it with the update of its machine, which may come \
             too late",
            "renew the certificates of the control plane first, with refit renew-certs",
        ),
    };
    Some(Warning {
        reason: "CertificateExpires",
        object: format!("Machine/{machine}"),
        message: format!(
            "{}{certificate} of Node {node} expires at {until}, {what}",
            many(&machines)
        ),
        remedy: remedy.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn certificates_that_end_before_the_rollout_are_warnings() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = at("2026-03-01T00:00:00Z");
        let plan = |kept: &str, renewed: &str| -> Arc<HostPlan> {
            Arc::new(
                serde_json::from_value(json!({
                    "apiVersion": "refit.dev/v1alpha1", "kind": "HostPlan",
                    "metadata": {"name": "n"}, "spec": {},
                    "status": {"facts": {
                        "certificates": {"/etc/a.crt": kept}, "certificatesEnd": renewed,
                    }},
                }))
                .unwrap(),
            )
        };
        let found = |kept: &str, renewed: &str, end: Option<&str>| {
            let plans = [("n".into(), plan(kept, renewed))].into();
            let found = warnings(&plans, &[("n", "m")].into(), now, end.map(at));
            found.into_iter().map(|one| one.message).collect::<Vec<_>>()
        };
        let (soon, later, far) =
            ("2026-03-01T12:00:00Z", "2026-03-02T12:00:00Z", "2027-01-01T00:00:00Z");
        let end = Some("2026-03-03T00:00:00Z");
        assert!(found(far, far, end).is_empty());
        assert!(found(later, later, None).is_empty());
        assert!(found(later, far, end)[0].starts_with("certificate /etc/a.crt of Node n expires"));
        // The preflight refuses the machine already.
        assert!(found(soon, far, end).is_empty());
        assert!(found(far, soon, end)[0].contains("kubeadm renews it"));
        assert_eq!(found(later, later, end).len(), 2);
    }
}
