//! Whether a node came back in the expected state.

use std::sync::Arc;

use jiff::Timestamp;
use refit_kinds::{
    refit::NodeName,
    version::{KubernetesVersion, StatedVersion},
};

use super::{
    health::member_problem,
    seen::{ImageVersion, NodeView, Seen, StaticPod},
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

/// Refusal for a control plane whose static pods look healthy but have not settled yet after what restarted them.
pub(super) fn static_pods_unsettled(node: NodeName, after: &str) -> Refusal {
    let why = format!("its static pods are checked {SETTLE_SECONDS} s after {after}");
    Refusal::NodeNotVerified { node, why }
}

/// Refusal while the static pods of a member of a control plane are not Ready, whatever their version.
pub(super) fn not_serving(seen: &Seen, node: &NodeName) -> Option<Refusal> {
    let why = member_problem(&seen.nodes, &seen.static_pods, node)?;
    Some(Refusal::NodeNotVerified { node: node.clone(), why })
}

/// The versions that a node runs, of its kubelet and its static pods, and that are not the goal: one sentence each.
/// `pods` are the static pods of all nodes; a worker has none to look at.
pub fn version_differences(
    node: &NodeName,
    kubelet: &StatedVersion,
    pods: Option<&[StaticPod]>,
    goal: &KubernetesVersion,
) -> Vec<String> {
    let of_kubelet = (!kubelet.is(goal)).then(|| match kubelet {
        StatedVersion::Absent => "its kubelet reports no version".to_owned(),
        StatedVersion::Version(version) => format!("its kubelet runs {version}"),
        StatedVersion::Unreadable(text) => {
            format!("its kubelet reports {text:?}, which is not a version")
        }
    });
    let own = |pod: &&StaticPod| pod.node == *node;
    let is_api_server = |pod: &StaticPod| pod.component == "kube-apiserver";
    let lacks_api_server = |pods: &[StaticPod]| !pods.iter().filter(own).any(is_api_server);
    let missing = pods.is_some_and(lacks_api_server);
    let missing = missing.then(|| "its kube-apiserver pod does not exist".to_owned());
    let of_pods = pods.into_iter().flatten().filter(own).filter_map(|pod| {
        let component = &pod.component;
        match &pod.version {
            _ if !VERSIONED.contains(&component.as_str()) => None,
            ImageVersion::Version(version) if version == goal => None,
            ImageVersion::Version(version) => Some(format!("its {component} runs {version}")),
            ImageVersion::Other => Some(format!("the image of its {component} has no version")),
            ImageVersion::Untagged => None,
        }
    });
    of_kubelet.into_iter().chain(missing).chain(of_pods).collect()
}

/// A component of a control plane node, and its version, that shows that no goal could be verified: both it and the kubelet
/// are of one release, and their distribution has given it different names (`docs/facts/kubernetes.md#verifying-a-node`).
///
/// | kubelet | image | verdict |
/// |---|---|---|
/// | `v1.34.2-eks-0a1b2c3` | `v1.34.2-eks-1-34-5` | named differently |
/// | `v1.34.2-eks-0a1b2c3` | the goal, or another release | an upgrade under way |
/// | `v1.34.2+vmware.1`, `v1.35.0-rc.1` | `v1.34.2_vmware.2`, `v1.35.0` | an upgrade under way: these follow each other |
/// | any | not a version, or without a tag | kubeadm writes the tag of the goal |
///
/// If one member of the control plane has one name for both, the distribution has.
pub(super) fn named_differently<'a>(
    nodes: &'a [Arc<NodeView>],
    static_pods: &'a [StaticPod],
    node: &NodeName,
    goal: &KubernetesVersion,
) -> Option<(&'a StaticPod, &'a KubernetesVersion)> {
    let kubelet =
        |name: &NodeName| nodes.iter().find(|node| node.name == *name)?.kubelet_version.version();
    let of_release = |pod: &'a StaticPod| match &pod.version {
        ImageVersion::Version(version) if VERSIONED.contains(&pod.component.as_str()) => {
            Some((pod, version))
        }
        ImageVersion::Version(_) | ImageVersion::Untagged | ImageVersion::Other => None,
    };
    let own = kubelet(node).filter(|own| own.has_suffix() && *own != goal)?;
    let mut images = static_pods.iter().filter_map(of_release);
    let is_one_name = |(pod, version): (&StaticPod, &KubernetesVersion)| {
        version.has_suffix() && kubelet(&pod.node) == Some(version)
    };
    if images.clone().any(is_one_name) {
        return None;
    }
    images.find(|(pod, version)| {
        pod.node == *node && version.is_same_release(own) && *version != own && *version != goal
    })
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

    fn pod(node: &str, component: &str, tag: &str) -> StaticPod {
        let (node, component) = (node.into(), component.to_owned());
        StaticPod { node, component, version: ImageVersion::of_tag(tag), ready: true }
    }

    #[test]
    fn every_version_that_is_not_the_goal_is_named() {
        let goal = "v1.35.0".parse().unwrap();
        let found = |kubelet: &str, pods: Option<&[StaticPod]>| {
            version_differences(&"n".into(), &kubelet.into(), pods, &goal).join("; ")
        };
        assert_eq!(found("v1.35.0", None), "");
        assert_eq!(found("v1.34.2", None), "its kubelet runs v1.34.2");
        assert_eq!(found("", None), "its kubelet reports no version");
        assert!(found("x", None).contains("not a version"));
        let mut pods = vec![
            pod("n", "kube-apiserver", "v1.35.0"),
            pod("n", "etcd", "3.6.1-0"),
            pod("n", "kube-scheduler", "v1.35.0"),
            pod("other", "kube-scheduler", "v1.34.2"),
        ];
        assert_eq!(found("v1.35.0", Some(&pods)), "");
        pods.push(pod("n", "kube-controller-manager", "v1.34.2"));
        let wanted = "its kubelet runs v1.34.2; its kube-controller-manager runs v1.34.2";
        assert_eq!(found("v1.34.2", Some(&pods)), wanted);
        pods[2].version = ImageVersion::Other;
        assert!(found("v1.35.0", Some(&pods)).contains("the image of its kube-scheduler"));
        let missing = "its kube-apiserver pod does not exist";
        assert_eq!(found("v1.35.0", Some(&pods[3..4])), missing);
    }

    #[test]
    fn versions_that_a_distribution_names_differently_are_found_before_an_update() {
        const GOAL: &str = "v1.34.3-eks-1-34-6";
        let found = |kubelets: [&str; 2], pods: &[StaticPod], goal: &str| {
            let node = |(number, version): (usize, &str)| NodeView {
                name: format!("n{number}").into(),
                kubelet_version: version.into(),
                ..NodeView::default()
            };
            let nodes = kubelets.into_iter().enumerate().map(|one| Arc::new(node(one)));
            let nodes: Vec<_> = nodes.collect();
            let found = named_differently(&nodes, pods, &"n0".into(), &goal.parse().unwrap());
            found.map(|(pod, version)| format!("{} {version}", pod.component))
        };
        let named = Some("kube-scheduler v1.34.2-eks-1-34-5".to_owned());
        for (kubelet, tag, goal, expected) in [
            ("v1.34.2-eks-0a1b2c3", "v1.34.2-eks-1-34-5", GOAL, &named),
            ("v1.34.2-eks-0a1b2c3", "v1.34.2-eks-1-34-5", "v1.35.0", &named),
            ("v1.34.2-eks-0a1b2c3", "v1.34.2-eks-1-34-5", "v1.34.2-eks-0a1b2c3", &None),
            // An upgrade of the control plane to this goal has begun, or one to another release.
            ("v1.34.2-eks-0a1b2c3", "v1.34.2-eks-1-34-5", "v1.34.2-eks-1-34-5", &None),
            ("v1.34.1-eks-0a1b2c3", "v1.34.2-eks-1-34-5", GOAL, &None),
            // Both follow the same rule.
            ("v1.34.2-eks-1-34-5", "v1.34.2-eks-1-34-5", GOAL, &None),
            ("v1.34.2+vmware.1", "v1.34.2_vmware.1", "v1.34.3+vmware.1", &None),
            ("v1.34.2+vmware.1", "v1.34.2_vmware.2", "v1.34.2+vmware.3", &None),
            ("v1.34.2", "v1.34.2", "v1.35.0", &None),
            ("v1.35.0-rc.1", "v1.35.0", "v1.35.1", &None),
            ("v1.35.0-rc1", "v1.35.0-rc2", "v1.35.1", &None),
            // kubeadm replaces the image of a component that has a tag of its own.
            ("v1.34.2", "v1.34.2-hotfix", "v1.35.0", &None),
            ("v1.34.2-eks-0a1b2c3", "latest", GOAL, &None),
            ("", "v1.34.2-eks-1-34-5", GOAL, &None),
        ] {
            let pods = [pod("n0", "etcd", "v1.34.2-eks-9"), pod("n0", "kube-scheduler", tag)];
            let alone = found([kubelet, ""], &pods, goal);
            assert_eq!(alone, *expected, "{kubelet} {tag} {goal}");
            // Another member shows that both have one name, at rest.
            let other = pod("n1", "kube-scheduler", "v1.34.2-eks-1-34-5");
            let with_other =
                found([kubelet, "v1.34.2-eks-1-34-5"], &[&pods[..], &[other]].concat(), goal);
            assert_eq!(with_other, None, "{kubelet} {tag} {goal}");
        }
    }

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
