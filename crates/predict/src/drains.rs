//! Whether the drain of a node can succeed, and what it costs: known before anything is cordoned.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use refit_cluster_api::kinds::MachineDrainRule;
use refit_core::node::{
    BudgetView, Check, DrainPolicy, DrainRefusal, DrainView, NodeView, PodView, Sorted, Weight,
    drain_policy, rules_of, sort,
};
use refit_kinds::{
    json::{annotations, labels, name, namespace, text},
    keys,
    refit::{Disruption, NodeName},
};
use serde::Serialize;
use serde_json::Value;

use super::{
    input::Hosts,
    placement::{Judge, Misfit},
    preflight::{Refused, many, parsed},
    reach::Read,
    view::View,
};

/// How many concerns are kept of one drain.
const MOST_CONCERNS: usize = 20;
/// How many pods are named in one sentence.
const MOST_PODS: usize = 3;

/// Reasons of concerns that do not make a drain wait. The others are those of the drain itself
/// ([`refit_core::node::DrainReason`]) and `PodDisruptionBudget`.
pub const CONCERN_REASONS: [&str; 5] =
    ["BudgetUsedUp", "LocalDataLost", "LocalDataStays", "PodFitsNowhere", "PodLost"];

/// How the drain of a node goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum DrainOutcome {
    /// The pods stay: the node is not drained.
    NotDrained,
    /// All pods leave, and those that are recreated fit on other nodes.
    Succeeds,
    /// All pods leave, and some stay Pending until their node is back.
    LeavesPending,
    /// All pods leave, and some are not recreated.
    LosesPods,
    /// It waits for pods.
    Waits,
}

impl DrainOutcome {
    /// All outcomes.
    pub const ALL: [Self; 5] =
        [Self::NotDrained, Self::Succeeds, Self::LeavesPending, Self::LosesPods, Self::Waits];
}

/// Something that an operator should know of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Concern {
    /// CamelCase reason.
    pub reason: &'static str,
    /// `Pod/namespace/name` or `PodDisruptionBudget/namespace/name`.
    pub object: String,
    /// What happens, as a sentence without a full stop.
    pub message: String,
    /// What to do about it; empty if the message names it.
    pub remedy: String,
    /// How the drain waits for it; `None` if it does not.
    #[serde(skip)]
    pub weight: Option<Weight>,
}

/// The forecast for the drain of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainForecast {
    /// Name of the Machine.
    pub machine: String,
    /// Name of its Node.
    pub node: String,
    /// How many pods are evicted.
    pub pods: usize,
    /// How it goes.
    pub outcome: DrainOutcome,
    /// The first concerns, those that make it wait before the others.
    pub concerns: Vec<Concern>,
    /// How many concerns are left out.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_concerns: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// What the drains of one group have in common.
struct Drains<'a> {
    hosts: &'a Hosts,
    nodes: BTreeMap<&'a NodeName, &'a NodeView>,
    judge: Judge<'a>,
    budgets: BTreeMap<&'a str, Vec<&'a BudgetView>>,
    rules: Vec<MachineDrainRule>,
    of_cluster: BTreeMap<String, String>,
    /// The budgets that hold machines before their cordon.
    exhausted: BTreeMap<&'a str, Vec<&'a Refused>>,
    now: Timestamp,
    unmodelled: BTreeSet<&'static str>,
}

/// A node that is drained.
struct Node<'a> {
    name: &'a str,
    policy: DrainPolicy,
    gives_up: bool,
}

impl View<'_> {
    /// Adds a forecast of the drain of each of these machines, if they are drained, and what makes drains wait.
    pub(super) fn look_at_drains(&mut self, machines: &[&Value], refused: &[Refused]) {
        let is_drained = self.plan.disruption.is_some_and(|one| one >= Disruption::Drain);
        let Some(Read::Known(hosts)) = self.hosts().filter(|_| is_drained) else { return };
        self.plan.notes.extend(hosts.notes.iter().cloned());
        let of_cluster = self.cluster.map(annotations).unwrap_or_default();
        let of_owner = annotations(self.now);
        let mut budgets: BTreeMap<&str, Vec<&BudgetView>> = BTreeMap::new();
        for budget in &hosts.preflight.budgets {
            budgets.entry(&budget.namespace).or_default().push(budget);
        }
        let mut exhausted: BTreeMap<&str, Vec<&Refused>> = BTreeMap::new();
        for one in refused.iter().filter(|one| one.check == Check::Budgets) {
            for machine in &one.machines {
                exhausted.entry(machine).or_default().push(one);
            }
        }
        let rules = self.input.current.of_kind("MachineDrainRule");
        let rules = rules.filter(|rule| namespace(rule) == self.group.namespace);
        let mut drains = Drains {
            nodes: hosts.preflight.nodes.iter().map(|node| (&node.name, node.as_ref())).collect(),
            judge: Judge::new(&hosts.placement),
            rules: rules.filter_map(parsed).collect(),
            of_cluster: self.cluster.map(labels).unwrap_or_default(),
            now: self.input.now,
            unmodelled: BTreeSet::new(),
            budgets,
            exhausted,
            hosts,
        };
        for machine in machines {
            let policy = drain_policy(
                &[&annotations(machine), &of_owner, &of_cluster],
                &DrainPolicy::default(),
            );
            self.plan.drains.extend(drains.forecast(machine, policy.policy));
        }
        let misfits = self.plan.drains.iter().flat_map(|drain| &drain.concerns);
        let any_misfit = misfits.into_iter().any(|one| one.reason == "PodFitsNowhere");
        self.plan.notes.extend(drains.note(any_misfit));
        self.block_for_drains();
    }

    /// Adds blockers for drains that would wait. Budgets without room are blockers already.
    fn block_for_drains(&mut self) {
        let mut found: BTreeMap<&str, (Vec<String>, &Concern)> = BTreeMap::new();
        for drain in &self.plan.drains {
            let waits = |one: &&Concern| {
                one.weight == Some(Weight::Waits) && one.reason != "PodDisruptionBudget"
            };
            for concern in drain.concerns.iter().filter(waits) {
                let entry = found.entry(concern.reason).or_insert_with(|| (Vec::new(), concern));
                if entry.0.last() != Some(&drain.machine) {
                    entry.0.push(drain.machine.clone());
                }
            }
        }
        let blockers: Vec<_> = found
            .into_iter()
            .map(|(reason, (machines, first))| {
                let object = format!("Machine/{}", machines.first().cloned().unwrap_or_default());
                (reason, object, format!("{}{}", many(&machines), first.message))
            })
            .collect();
        for (reason, object, message) in blockers {
            self.block(reason, object, message);
        }
    }
}

impl Drains<'_> {
    /// `None` for a Machine without a Node, which is refused otherwise.
    fn forecast(&mut self, machine: &Value, policy: DrainPolicy) -> Option<DrainForecast> {
        let of = text(machine, "/status/nodeRef/name");
        let view = *self.nodes.get(&NodeName::from(of))?;
        let node = Node {
            name: of,
            policy,
            gives_up: machine
                .pointer("/spec/deletion/nodeDrainTimeoutSeconds")
                .and_then(Value::as_i64)
                .is_some_and(|seconds| seconds > 0),
        };
        let stays = self.hosts.alone.contains(of)
            || annotations(machine).contains_key(keys::EXCLUDE_NODE_DRAINING);
        let mut forecast = DrainForecast {
            machine: name(machine).to_owned(),
            node: of.to_owned(),
            pods: 0,
            outcome: DrainOutcome::NotDrained,
            concerns: Vec::new(),
            more_concerns: 0,
        };
        if stays {
            return Some(forecast);
        }
        let pods = self.hosts.preflight.pods.get(&view.name).cloned().unwrap_or_default();
        let drain = DrainView {
            pods,
            rules: rules_of(self.rules.iter().cloned(), &labels(machine), &self.of_cluster),
            namespaces: self.hosts.namespace_labels.clone(),
            attachments: None,
        };
        let sorted = sort(&drain, &node.policy, view.ready, self.now);
        forecast.pods = sorted.leaving.len();
        let mut concerns = self.waiting(&node, &sorted);
        let exhausted = self.exhausted.get(&*forecast.machine).into_iter().flatten();
        concerns.extend(exhausted.map(|one| exhausted_by(one)));
        concerns.extend(self.lost(&node, &sorted));
        concerns.extend(self.pending(&node, &sorted));
        forecast.outcome = outcome(&concerns);
        concerns.sort_by_key(|one| one.weight.is_none());
        forecast.more_concerns = concerns.len().saturating_sub(MOST_CONCERNS);
        concerns.truncate(MOST_CONCERNS);
        forecast.concerns = concerns;
        Some(forecast)
    }

    /// Pods that the drain waits for and never evicts.
    fn waiting(&self, node: &Node<'_>, sorted: &Sorted<'_>) -> Vec<Concern> {
        let concern = |(pod, refusal): &(&PodView, DrainRefusal)| {
            let placement = &self.hosts.placement;
            let ends = placement.ends(node.name, &pod.pod.namespace, &pod.pod.name)
                || matches!(refusal, DrainRefusal::PodWaitCompleted { .. });
            let weight = match (node.gives_up, ends) {
                (true, _) => Weight::Overridden,
                (_, true) => Weight::Passes,
                (false, false) => Weight::Waits,
            };
            let until = match weight {
                Weight::Waits => "",
                Weight::Passes => "; it may end by itself",
                Weight::Overridden => "; the drain gives up after nodeDrainTimeoutSeconds",
            };
            Concern {
                reason: refusal.reason(),
                object: format!("Pod/{}", pod.pod),
                message: format!("drain of Node {}: {}{until}", node.name, refusal.sentence()),
                remedy: String::new(),
                weight: Some(weight),
            }
        };
        sorted.waited.iter().map(concern).collect()
    }

    /// What is lost with the pods that leave.
    fn lost(&self, node: &Node<'_>, sorted: &Sorted<'_>) -> Vec<Concern> {
        let leaving = || sorted.leaving.iter().map(|(pod, _)| *pod).filter(|pod| !pod.terminating);
        let bare = leaving().filter(|pod| pod.unreplicated).map(|pod| Concern {
            reason: "PodLost",
            object: format!("Pod/{}", pod.pod),
            message: format!(
                "pod {} of Node {} is gone after its eviction: no controller recreates it",
                pod.pod, node.name
            ),
            remedy: format!(
                "let a controller manage it, or set {} to Wait or Leave",
                keys::DRAIN_UNREPLICATED
            ),
            weight: None,
        });
        let with_host_path = |pod: &&PodView| {
            let pod = &pod.pod;
            self.hosts.placement.has_host_path(node.name, &pod.namespace, &pod.name)
        };
        let empty_dirs = leaving().filter(|pod| pod.local_storage);
        let data = [
            data(
                "LocalDataLost",
                empty_dirs,
                &format!("of Node {}: the data in their emptyDirs is deleted with them", node.name),
                &format!("set {} to Wait or Leave to keep it", keys::DRAIN_LOCAL_STORAGE),
            ),
            data(
                "LocalDataStays",
                leaving().filter(with_host_path),
                &format!(
                    "of Node {}: their hostPath directories stay there, and are not on the node where the pods are \
                     recreated",
                    node.name
                ),
                "use a PersistentVolume for data that has to follow its pod",
            ),
        ];
        bare.chain(data.into_iter().flatten()).collect()
    }

    /// Pods that no other node can take, and budgets that are used up by that.
    fn pending(&mut self, node: &Node<'_>, sorted: &Sorted<'_>) -> Vec<Concern> {
        let recreated = sorted.leaving.iter().map(|(pod, _)| *pod);
        let recreated: Vec<&PodView> =
            recreated.filter(|pod| !pod.unreplicated && !pod.terminating).collect();
        let names: BTreeSet<(&str, &str)> =
            recreated.iter().map(|pod| (&*pod.pod.namespace, &*pod.pod.name)).collect();
        for (namespace, pod) in &names {
            self.unmodelled.extend(self.hosts.placement.unmodelled(node.name, namespace, pod));
        }
        let misfits = self.judge.misfits(node.name, &names);
        let mut concerns: Vec<Concern> =
            misfits.iter().map(|misfit| fits_nowhere(node, misfit)).collect();
        let is_misfit: BTreeSet<(&str, &str)> =
            misfits.iter().map(|one| (&*one.namespace, &*one.name)).collect();
        let namespaces: BTreeSet<&str> =
            is_misfit.iter().map(|(namespace, _)| *namespace).collect();
        let budgets = namespaces.iter().filter_map(|one| self.budgets.get(one)).flatten();
        for budget in budgets.filter(|budget| !budget.allows_none) {
            // A pod that has not started is evicted regardless of its budget.
            let counts = |pod: &&&PodView| !pod.pending && budget.protects(pod);
            let protected: Vec<_> = recreated.iter().filter(counts).collect();
            let lost = protected.iter();
            let lost =
                lost.filter(|pod| is_misfit.contains(&(&*pod.pod.namespace, &*pod.pod.name)));
            concerns.extend(used_up(node, budget, protected.len(), lost.count()));
        }
        concerns
    }

    /// What the answer does not depend on.
    fn note(&self, any_misfit: bool) -> Option<String> {
        let general = ["priorities, preemption and autoscalers"];
        let general = general.iter().filter(|_| any_misfit);
        let all: Vec<&str> = self.unmodelled.iter().chain(general).copied().collect();
        let last = all.last()?;
        Some(format!(
            "where evicted pods could go is judged by requests, node selectors, required node affinity, taints and \
             bound volumes, not by {}",
            match &all[..] {
                [_] => (*last).to_owned(),
                [first @ .., _] => format!("{}, or by {last}", first.join(", ")),
                [] => return None,
            }
        ))
    }
}

/// The concern about a budget that holds a machine before its cordon.
fn exhausted_by(refused: &Refused) -> Concern {
    Concern {
        reason: refused.refusal.reason(),
        object: format!("PodDisruptionBudget/{}", refused.refusal.object()),
        message: refused.refusal.sentence(),
        remedy: String::new(),
        weight: Some(refused.weight),
    }
}

fn outcome(concerns: &[Concern]) -> DrainOutcome {
    let of = |one: &Concern| match (one.weight, one.reason) {
        (Some(Weight::Waits | Weight::Passes), _) => DrainOutcome::Waits,
        (_, "PodLost") => DrainOutcome::LosesPods,
        (_, "PodFitsNowhere") => DrainOutcome::LeavesPending,
        (_, _) => DrainOutcome::Succeeds,
    };
    concerns.iter().map(of).max().unwrap_or(DrainOutcome::Succeeds)
}

/// A concern about the data of several pods.
fn data<'a>(
    reason: &'static str,
    pods: impl Iterator<Item = &'a PodView>,
    what: &str,
    remedy: &str,
) -> Option<Concern> {
    let names: Vec<String> = pods.map(|pod| pod.pod.to_string()).collect();
    let first = names.first()?;
    let shown = names.iter().take(MOST_PODS).cloned().collect::<Vec<_>>().join(", ");
    let rest = match names.len().saturating_sub(MOST_PODS) {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    Some(Concern {
        reason,
        object: format!("Pod/{first}"),
        message: format!("pods {shown}{rest} {what}"),
        remedy: remedy.to_owned(),
        weight: None,
    })
}

fn fits_nowhere(node: &Node<'_>, misfit: &Misfit) -> Concern {
    let Misfit { namespace, name, why, is_bound } = misfit;
    let remedy = if *is_bound {
        "make room on the nodes that its volumes are bound to; if that is only this node, the pod cannot run meanwhile"
    } else {
        "make room on other nodes, or let the pod run on more of them"
    };
    Concern {
        reason: "PodFitsNowhere",
        object: format!("Pod/{namespace}/{name}"),
        message: format!(
            "pod {namespace}/{name} stays Pending until Node {} is back: {why}",
            node.name
        ),
        remedy: remedy.to_owned(),
        weight: None,
    }
}

/// A budget counts a Pending pod as unavailable: each one that fits nowhere uses up one of the disruptions that it
/// allows until the node is back.
fn used_up(node: &Node<'_>, budget: &BudgetView, leaving: usize, lost: usize) -> Option<Concern> {
    let allowed = usize::try_from(budget.allowed).unwrap_or_default();
    if lost == 0 || lost < allowed {
        return None;
    }
    let title = format!("{}/{}", budget.namespace, budget.name);
    let is_overridden =
        node.gives_up || node.policy.delete_after.or(node.policy.force_after).is_some();
    let (end, weight) = if lost > allowed {
        let weight = if is_overridden { Weight::Overridden } else { Weight::Waits };
        let end = "the drain waits for the others, which keep the node cordoned";
        (end, Some(weight))
    } else if leaving > lost {
        ("the drain may wait for the other pods that leave the node", None)
    } else {
        ("other evictions of its pods wait until then", None)
    };
    Some(Concern {
        reason: "BudgetUsedUp",
        object: format!("PodDisruptionBudget/{title}"),
        message: format!(
            "PodDisruptionBudget {title} allows {allowed} disruptions, and {lost} of its pods on Node {} stay Pending \
             until the node is back: {end}",
            node.name
        ),
        remedy: "make room for these pods on other nodes, or widen the budget".to_owned(),
        weight,
    })
}
