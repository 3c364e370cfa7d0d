//! Failures that a user requests by an annotation of an infrastructure machine: the only way to
//! reach a host in a sandbox that serves kubectl.

use std::sync::Arc;

use super::state::HostRecord;
use crate::world::{Inner, lock};

/// `STEP` or `STEP:TIMES`: the next runs of this step on the host fail.
pub(crate) const FAIL_STEP: &str = "sandbox.refit.dev/fail-step";

/// Makes hosts with a new annotation fail.
pub(crate) fn apply(inner: &Arc<Inner>) {
    let revision = inner.management_mirror.revision().around_machines;
    {
        let (mut env, hosts) = (lock(&inner.env), lock(&inner.hosts));
        let is_seen =
            |(known, keys): &(u64, Vec<String>)| *known == revision && keys.iter().eq(hosts.keys());
        if env.failures_seen.as_ref().is_some_and(is_seen) {
            return;
        }
        env.failures_seen = Some((revision, hosts.keys().cloned().collect()));
    }
    let ordered: Vec<(String, String)> = lock(&inner.env)
        .hosts
        .values()
        .map(|record| (record.key(), annotation(inner, record), record))
        .filter(|(_, now, record)| *now != record.fail_step)
        .map(|(key, now, _)| (key, now))
        .collect();
    for (key, order) in ordered {
        let Some(host) = lock(&inner.hosts).get(&key).cloned() else {
            continue;
        };
        if let Some((step, times)) = parse(&order) {
            lock(&host.state).break_step(step, times);
        }
        // Recorded last: if the request is applied twice, the result is the same.
        if let Some(record) = lock(&inner.env).hosts.get_mut(&key) {
            record.fail_step = order;
        }
    }
}

fn annotation(inner: &Inner, record: &HostRecord) -> String {
    let object = inner.management_mirror.get(
        &record.infrastructure_resource,
        &record.namespace,
        &record.node,
    );
    let annotations = object.as_deref().and_then(|object| object.pointer("/metadata/annotations"));
    let order = annotations.and_then(|all| all.get(FAIL_STEP)?.as_str());
    order.unwrap_or_default().to_owned()
}

/// Parses a request into step and count; `None` if it is absent or invalid.
fn parse(order: &str) -> Option<(&str, u32)> {
    let (step, times) = order.split_once(':').unwrap_or((order, "1"));
    let times = times.trim().parse().ok()?;
    (!step.trim().is_empty()).then(|| (step.trim(), times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_names_a_step_and_maybe_how_often() {
        assert_eq!(parse("kubelet-install"), Some(("kubelet-install", 1)));
        assert_eq!(parse("kubelet-install:3"), Some(("kubelet-install", 3)));
        for nothing in ["", ":2", "kubelet-install:often"] {
            assert_eq!(parse(nothing), None, "{nothing:?}");
        }
    }
}
