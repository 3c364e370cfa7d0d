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
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct PodView {
    /// The pod.
    pub pod: PodRef,
    /// A DaemonSet made it: it would come back at once.
    pub daemon_set: bool,
    /// A mirror pod: the kubelet runs it from a file.
    pub mirror: bool,
    /// It has ended.
    pub finished: bool,
    /// It is being deleted.
    pub terminating: bool,
    /// No controller would make it anew.
    pub unreplicated: bool,
    /// It has an `emptyDir`.
    pub local_storage: bool,
    /// Its labels.
    pub labels: Labels,
    /// Names of its PersistentVolumeClaims.
    pub claims: Vec<String>,
    /// When it was made.
    pub created_at: Option<Timestamp>,
    /// When its grace is over, if it is being deleted.
    pub deletion_at: Option<Timestamp>,
    /// The grace that it was given then, in seconds.
    pub deletion_grace_seconds: Option<i64>,
}

/// Everything on a node that a drain looks at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrainView {
    /// Its pods, in order.
    pub pods: Vec<PodView>,
    /// The MachineDrainRules of its Machine, by name.
    pub rules: Vec<MachineDrainRule>,
    /// Labels of namespaces, where a rule asks for them.
    pub namespaces: BTreeMap<String, Labels>,
    /// Volumes that hold on to the node although the pods that had them are gone; `None` if nobody
    /// looked, which is only worth it once nothing else is left.
    pub attachments: Option<Vec<Attachment>>,
}

/// A volume that is attached to the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    /// Name of the VolumeAttachment.
    pub name: String,
    /// Name of its PersistentVolume; empty for an inline volume.
    pub volume: String,
}

/// What is to become of the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sorted<'a> {
    /// These leave, with their order.
    pub leaving: Vec<(&'a PodView, i32)>,
    /// These must be gone, too, and are never evicted.
    pub waited: Vec<(&'a PodView, DrainRefusal)>,
    /// These stay.
    pub staying: Vec<&'a PodView>,
}

impl Sorted<'_> {
    /// Whether no pod is left to wait for.
    pub fn is_empty(&self) -> bool {
        self.leaving.is_empty() && self.waited.is_empty()
    }

    /// The order of the pods whose turn it is; `None` if none is left. A pod that is waited for has
    /// order 0: those after it stay until it is gone.
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
    let mut mine: Vec<MachineDrainRule> = rules
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
    mine.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    mine
}

/// Whether any rule asks for the labels of namespaces.
pub fn asks_for_namespaces(rules: &[MachineDrainRule]) -> bool {
    rules.iter().flat_map(|rule| &rule.spec.pods).any(|pods| pods.namespace_selector.is_some())
}

/// A selector that is not there matches, unlike elsewhere.
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

/// Sorts the pods of a node (`spec/node.md 2.7`; label and rules as Cluster API has them).
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
    // Nobody is there to end it, and its grace is over: no waiting would change that.
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
                says: format!("its label {}", keys::POD_DRAIN),
            });
        }
        Some(word) => {
            return Fate::Waited(DrainRefusal::DrainRuleNotUnderstood {
                pod: name(),
                says: format!("its label {}: {word:?}", keys::POD_DRAIN),
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
                    says: format!("MachineDrainRule {title}"),
                });
            }
            other => {
                return Fate::Waited(DrainRefusal::DrainRuleNotUnderstood {
                    pod: name(),
                    says: format!("MachineDrainRule {title} with behavior {other:?}"),
                });
            }
        }
    }
    // One that is going already loses nothing more by being waited for.
    if pod.terminating {
        return Fate::Leaves(order);
    }
    let kinds =
        [(pod.unreplicated, policy.unreplicated), (pod.local_storage, policy.local_storage)];
    let of = |wanted| kinds.map(|(is, says)| is && says == wanted);
    match (of(PodPolicy::Leave), of(PodPolicy::Wait)) {
        ([true, _] | [_, true], _) => Fate::Stays,
        (_, [true, _]) => Fate::Waited(DrainRefusal::PodUnreplicated { pod: name() }),
        (_, [_, true]) => Fate::Waited(DrainRefusal::PodLocalStorage { pod: name() }),
        _ => Fate::Leaves(order),
    }
}

/// Whether the pods are all gone: then it is worth to look at the volumes.
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

/// When a pod was asked to go, if it is being deleted.
pub(super) fn asked_at(pod: &PodView) -> Option<Timestamp> {
    let grace = SignedDuration::from_secs(pod.deletion_grace_seconds.unwrap_or_default());
    pod.deletion_at?.checked_sub(grace).ok()
}
