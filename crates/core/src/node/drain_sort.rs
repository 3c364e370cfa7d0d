//! Which pods leave a node and in which order, which are waited for, and which stay.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use refit_cluster_api::kinds::{self, MachineDrainRule};
use refit_kinds::keys;

use super::{
    drain_policy::{DrainPolicy, PodPolicy},
    drain_report::DrainRefusal,
    snapshot::PodRef,
};

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A pod on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub struct PodView {
    /// The pod.
    pub pod: PodRef,
    /// Whether a DaemonSet manages it: it would be recreated immediately.
    pub daemon_set: bool,
    /// Whether it is a mirror pod: the kubelet runs it from a file.
    pub mirror: bool,
    /// Whether it has ended.
    pub finished: bool,
    /// Whether it has not started.
    pub pending: bool,
    /// Whether condition Ready is True.
    pub ready: bool,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Whether no controller would recreate it.
    pub unreplicated: bool,
    /// Whether it has an `emptyDir`.
    pub local_storage: bool,
    /// Its labels.
    pub labels: Labels,
    /// Names of its PersistentVolumeClaims.
    pub claims: Vec<String>,
    /// When it was created.
    pub created_at: Option<Timestamp>,
    /// When its grace period ends, if it is being deleted.
    pub deletion_at: Option<Timestamp>,
    /// Grace period of its deletion, in seconds.
    pub deletion_grace_seconds: Option<i64>,
}

/// Everything that a drain reads about a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrainView {
    /// Its pods, in order.
    pub pods: Vec<PodView>,
    /// The MachineDrainRules of its Machine, by name.
    pub rules: Vec<MachineDrainRule>,
    /// Labels of namespaces, if a rule requires them.
    pub namespaces: BTreeMap<String, Labels>,
    /// Volumes that are still attached to the node although their pods are gone; `None` if not
    /// listed. They are listed only once nothing else is left.
    pub attachments: Option<Vec<Attachment>>,
}

/// A volume attached to the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    /// Name of the VolumeAttachment.
    pub name: String,
    /// Name of its PersistentVolume; empty for an inline volume.
    pub volume: String,
}

/// What a drain does with each pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sorted<'a> {
    /// Pods to evict, with their order.
    pub leaving: Vec<(&'a PodView, i32)>,
    /// Pods that must be gone too, but are never evicted.
    pub waited: Vec<(&'a PodView, DrainRefusal)>,
    /// Pods that stay.
    pub staying: Vec<&'a PodView>,
}

impl Sorted<'_> {
    /// Whether no pod is left to wait for.
    pub fn is_empty(&self) -> bool {
        self.leaving.is_empty() && self.waited.is_empty()
    }

    /// The order of the pods whose turn it is; `None` if none is left. A waited pod has order 0:
    /// the pods after it stay until it is gone.
    pub fn turn(&self) -> Option<i32> {
        let leaving = self.leaving.iter().map(|(_, order)| *order);
        leaving.chain(self.waited.iter().map(|_| 0)).min()
    }
}

enum Fate {
    Stays,
    Leaves(i32),
    Waited(DrainRefusal),
}

/// The rules that apply to a Machine, by name.
pub fn rules_of(
    rules: impl IntoIterator<Item = MachineDrainRule>,
    machine: &Labels,
    cluster: &Labels,
) -> Vec<MachineDrainRule> {
    let mut matching: Vec<MachineDrainRule> = rules
        .into_iter()
        .filter(|rule| {
            let list = &rule.spec.machines;
            list.is_empty()
                || list.iter().any(|some| {
                    matches(some.selector.as_ref(), machine)
                        && matches(some.cluster_selector.as_ref(), cluster)
                })
        })
        .collect();
    matching.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    matching
}

/// Whether any rule requires the labels of namespaces.
pub fn asks_for_namespaces(rules: &[MachineDrainRule]) -> bool {
    rules.iter().flat_map(|rule| &rule.spec.pods).any(|pods| pods.namespace_selector.is_some())
}

/// A missing selector matches everything, unlike elsewhere.
fn matches(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    selector.is_none_or(|selector| {
        Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels))
    })
}

fn applies(rule: &MachineDrainRule, pod: &PodView, namespaces: &BTreeMap<String, Labels>) -> bool {
    let none = Labels::new();
    let namespace = namespaces.get(&pod.pod.namespace).unwrap_or(&none);
    let list = &rule.spec.pods;
    list.is_empty()
        || list.iter().any(|some| {
            matches(some.selector.as_ref(), &pod.labels)
                && matches(some.namespace_selector.as_ref(), namespace)
        })
}

/// Sorts the pods of a node (`docs/facts/kubernetes.md#drain`). Labels and rules follow Cluster
/// API.
pub fn sort<'a>(
    view: &'a DrainView,
    policy: &DrainPolicy,
    node_ready: bool,
    now: Timestamp,
) -> Sorted<'a> {
    let mut sorted = Sorted::default();
    for pod in &view.pods {
        match fate(pod, view, policy, node_ready, now) {
            Fate::Stays => sorted.staying.push(pod),
            Fate::Leaves(order) => sorted.leaving.push((pod, order)),
            Fate::Waited(why) => sorted.waited.push((pod, why)),
        }
    }
    sorted
}

fn fate(
    pod: &PodView,
    view: &DrainView,
    policy: &DrainPolicy,
    node_ready: bool,
    now: Timestamp,
) -> Fate {
    if pod.daemon_set || pod.mirror || pod.finished {
        return Fate::Stays;
    }
    // The kubelet is not running and the grace period has passed: waiting would not end the pod.
    if !node_ready && pod.terminating && pod.deletion_at.is_some_and(|end| end < now) {
        return Fate::Stays;
    }
    let name = || pod.pod.to_string();
    match pod.labels.get(keys::POD_DRAIN).map(String::as_str) {
        Some(word) if word.eq_ignore_ascii_case("skip") => return Fate::Stays,
        Some(word)
            if word.eq_ignore_ascii_case("wait-completed")
                || word.eq_ignore_ascii_case(kinds::WAIT_COMPLETED) =>
        {
            return Fate::Waited(DrainRefusal::PodWaitCompleted {
                pod: name(),
                rule: format!("its label {}", keys::POD_DRAIN),
            });
        }
        Some(word) => {
            return Fate::Waited(DrainRefusal::DrainRuleNotUnderstood {
                pod: name(),
                rule: format!("its label {}: {word:?}", keys::POD_DRAIN),
            });
        }
        None => {}
    }
    let mut order = 0;
    let rule = view.rules.iter().find(|rule| applies(rule, pod, &view.namespaces));
    if let Some(rule) = rule {
        let title = rule.metadata.name.clone().unwrap_or_default();
        match rule.spec.drain.behavior.as_str() {
            kinds::DRAIN => order = rule.spec.drain.order.unwrap_or_default(),
            kinds::SKIP => return Fate::Stays,
            kinds::WAIT_COMPLETED => {
                return Fate::Waited(DrainRefusal::PodWaitCompleted {
                    pod: name(),
                    rule: format!("MachineDrainRule {title}"),
                });
            }
            other => {
                return Fate::Waited(DrainRefusal::DrainRuleNotUnderstood {
                    pod: name(),
                    rule: format!("MachineDrainRule {title} with behavior {other:?}"),
                });
            }
        }
    }
    // The pod is already terminating: waiting for it loses nothing more.
    if pod.terminating {
        return Fate::Leaves(order);
    }
    let kinds =
        [(pod.unreplicated, policy.unreplicated), (pod.local_storage, policy.local_storage)];
    let any_kind_is = |wanted| kinds.map(|(is, chosen)| is && chosen == wanted);
    match (any_kind_is(PodPolicy::Leave), any_kind_is(PodPolicy::Wait)) {
        ([true, _] | [_, true], _) => Fate::Stays,
        (_, [true, _]) => Fate::Waited(DrainRefusal::PodUnreplicated { pod: name() }),
        (_, [_, true]) => Fate::Waited(DrainRefusal::PodLocalStorage { pod: name() }),
        _ => Fate::Leaves(order),
    }
}

/// Whether all pods are gone, so that volumes should be listed.
pub fn is_emptied(
    view: &DrainView,
    policy: &DrainPolicy,
    node_ready: bool,
    now: Timestamp,
) -> bool {
    sort(view, policy, node_ready, now).is_empty()
}

/// Claims of the pods that stay, by namespace: their volumes stay attached.
pub fn claims_that_stay(
    view: &DrainView,
    policy: &DrainPolicy,
    node_ready: bool,
    now: Timestamp,
) -> Vec<(String, String)> {
    let sorted = sort(view, policy, node_ready, now);
    let mut claims: Vec<(String, String)> = sorted
        .staying
        .iter()
        .filter(|pod| !pod.finished)
        .flat_map(|pod| {
            let namespace = &pod.pod.namespace;
            let claims = pod.claims.iter();
            claims.map(move |claim| (namespace.clone(), claim.clone()))
        })
        .collect();
    claims.sort();
    claims.dedup();
    claims
}

/// When the deletion of a pod was requested, if it is being deleted.
pub(super) fn asked_at(pod: &PodView) -> Option<Timestamp> {
    let grace = SignedDuration::from_secs(pod.deletion_grace_seconds.unwrap_or_default());
    pod.deletion_at?.checked_sub(grace).ok()
}
