//! Whether a node came back in the expected state.

use jiff::Timestamp;
use refit_kinds::{
    refit::NodeName,
    version::{KubernetesVersion, StatedVersion},
};

use super::{
    seen::{ImageVersion, Seen},
    workers::Workers,
};
use crate::report::Refusal;

/// Components whose images carry the Kubernetes version. etcd has its own version.
const VERSIONED: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Checks that the node is Ready, runs exactly the goal version, shows what its host has done, and,
/// on a control plane, runs its static pods in the new version
/// (`docs/facts/kubernetes.md#verifying-a-node`).
pub(super) fn verify(
    seen: &Seen,
    node_name: &NodeName,
    goal: Option<&KubernetesVersion>,
    control_plane: bool,
    workers: Option<&Workers<'_>>,
    now: Timestamp,
) -> Result<(), Refusal> {
    let not_ready = || Refusal::NodeNotReady { node: node_name.clone() };
    let not_yet = |why: String| Refusal::NodeNotVerified { node: node_name.clone(), why };
    let node = seen.node().ok_or_else(not_ready)?;
    if !node.ready {
        return Err(not_ready());
    }
    if goal.is_some_and(|goal| !node.kubelet_version.is(goal)) {
        let reported = match &node.kubelet_version {
            StatedVersion::Absent => "no version".to_owned(),
            StatedVersion::Version(version) => version.to_string(),
            StatedVersion::Unreadable(text) => format!("{text:?}, which is not a version"),
        };
        return Err(not_yet(format!("its kubelet still reports {reported}")));
    }
    if let Some(workers) = workers {
        workers.verify(node, now).map_err(not_yet)?;
    }
    if let Some(goal) = goal.filter(|_| control_plane) {
        static_pods(seen, node_name, goal).map_err(not_yet)?;
    }
    Ok(())
}

/// How long mirror pods may show the state from before the kubelet restart, in seconds, after the
/// host has finished. With kubelet 1.35, which recreates the pods of 1.34, this took up to 6 s on
/// two busy processors.
const SETTLE_SECONDS: i64 = 10;

/// Remaining settle time before mirror pods are trusted, if the host was seen to have finished at
/// `since`. That timestamp may come from another replica's clock: if it is far from the local
/// clock, there is no wait.
pub(super) fn seconds_to_settle(since: Timestamp, now: Timestamp) -> Option<u64> {
    let gone = now.duration_since(since).as_secs().abs();
    u64::try_from(SETTLE_SECONDS - gone).ok().filter(|left| *left > 0)
}

/// Refusal for a control plane whose static pods look healthy but have not settled yet.
pub(super) fn static_pods_unsettled(node: NodeName) -> Refusal {
    Refusal::NodeNotVerified {
        node,
        why: format!("its static pods are checked {SETTLE_SECONDS} s after its kubelet's restart"),
    }
}

fn static_pods(seen: &Seen, node: &NodeName, goal: &KubernetesVersion) -> Result<(), String> {
    let shown = seen.static_pods.iter().any(|pod| pod.component == "kube-apiserver");
    let own_pods = || seen.static_pods.iter().filter(|pod| pod.node == *node);
    if shown && !own_pods().any(|pod| pod.component == "kube-apiserver") {
        return Err("its kube-apiserver pod does not exist".to_owned());
    }
    for pod in own_pods() {
        let old = VERSIONED.contains(&pod.component.as_str())
            && match &pod.version {
                ImageVersion::Version(version) => version != goal,
                ImageVersion::Other => true,
                ImageVersion::Untagged => false,
            };
        if old {
            return Err(format!("its {} does not run {goal} yet", pod.component));
        }
        if !pod.ready {
            return Err(format!("its {} is not Ready", pod.component));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_pods_settle_soon_even_if_clocks_differ() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let cases = [
            (100, Some(10)),
            (109, Some(1)),
            (110, None),
            (90_000, None),
            (97, Some(7)),
            (0, None),
        ];
        for (now, left) in cases {
            assert_eq!(seconds_to_settle(at(100), at(now)), left, "at {now}");
        }
    }
}
