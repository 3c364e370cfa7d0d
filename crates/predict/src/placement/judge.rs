//! Places the pods of a node on the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use super::{Placement, Room, Shape, constraints::Excluded, requests::Amounts};

/// Why a node cannot take a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    /// Too little is left of a resource.
    Insufficient(String),
    /// The pod may not run there.
    Excluded(Excluded),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Insufficient(resource) if resource == super::requests::PODS => {
                f.write_str("too many pods")
            }
            Self::Insufficient(resource) => write!(f, "insufficient {resource}"),
            Self::Excluded(Excluded::Cordon) => f.write_str("cordoned"),
            Self::Excluded(Excluded::Taint(key)) => write!(f, "untolerated taint {key}"),
            Self::Excluded(Excluded::Affinity) => f.write_str("node selector or affinity"),
            Self::Excluded(Excluded::Volume) => f.write_str("volume bound to other nodes"),
        }
    }
}

/// A pod that fits on no other node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Why not, like the scheduler's message: `0 of 4 other nodes: 3 insufficient memory, 1 cordoned`.
    pub why: String,
    /// Whether one of its volumes is bound to nodes.
    pub is_bound: bool,
}

/// The nodes that can take a shape in the present state.
#[derive(Debug, Default)]
struct Candidates {
    /// The first ones, as many as are ever needed.
    fit: Vec<usize>,
    /// How many of the others cannot, by reason; complete if `is_complete`.
    cannot: BTreeMap<Why, usize>,
    is_complete: bool,
}

/// Judges the nodes of a cluster, one after the other.
#[derive(Debug)]
pub struct Judge<'a> {
    placement: &'a Placement,
    /// By shape: pods of many nodes share them.
    candidates: BTreeMap<usize, Candidates>,
    /// More candidates than this are never needed: those that the other pods of a node have filled, the node itself,
    /// and one
    /// more.
    enough: usize,
}

impl<'a> Judge<'a> {
    /// Judges the nodes of this cluster.
    pub fn new(placement: &'a Placement) -> Self {
        let most = placement.pods.values().map(Vec::len).max().unwrap_or_default();
        Self { placement, candidates: BTreeMap::new(), enough: most.saturating_add(2) }
    }

    /// The pods that fit nowhere, of those that leave a node: pairs of namespace and name.
    pub fn misfits(&mut self, node: &str, leaving: &BTreeSet<(&str, &str)>) -> Vec<Misfit> {
        let placement = self.placement;
        let Some((own, room)) =
            placement.by_node.get(node).and_then(|at| Some((*at, placement.rooms.get(*at)?)))
        else {
            return Vec::new();
        };
        let pods = placement.pods.get(&own).into_iter().flatten();
        let leaves = pods.filter(|one| leaving.contains(&(&*one.namespace, &*one.name)));
        let mut pods: Vec<_> = leaves
            .filter_map(|one| Some((one, placement.shapes.get(one.shape)?)))
            .map(|(one, shape)| (share(&shape.requests, room), one, shape))
            .collect();
        pods.sort_by(|(a, one, _), (b, other, _)| {
            (b, &one.namespace, &one.name).cmp(&(a, &other.namespace, &other.name))
        });
        let mut taken: BTreeMap<usize, Amounts> = BTreeMap::new();
        let mut misfits = Vec::new();
        for (_, needs, shape) in pods {
            let candidates = self.candidates(needs.shape, shape);
            let mut cannot = candidates.cannot.clone();
            let mut fits = None;
            for at in candidates.fit.iter().copied().filter(|at| *at != own) {
                let Some(other) = placement.rooms.get(at) else { continue };
                let lacking = lacking(shape, other, taken.get(&at));
                if lacking.is_empty() {
                    fits = Some(at);
                    break;
                }
                for why in lacking {
                    *cannot.entry(why).or_default() += 1;
                }
            }
            match fits {
                Some(at) => super::add(taken.entry(at).or_default(), &shape.requests),
                None if !candidates.is_complete => {}
                None => {
                    for why in check(shape, room) {
                        let count = cannot.entry(why).or_default();
                        *count = count.saturating_sub(1);
                    }
                    misfits.push(Misfit {
                        namespace: needs.namespace.clone(),
                        name: needs.name.clone(),
                        why: summary(placement.rooms.len().saturating_sub(1), &cannot),
                        is_bound: needs.is_bound,
                    });
                }
            }
        }
        misfits
    }

    /// The nodes that can take a shape, the node of the pod itself among them.
    fn candidates(&mut self, index: usize, shape: &Arc<Shape>) -> &Candidates {
        let (placement, enough) = (self.placement, self.enough);
        self.candidates.entry(index).or_insert_with(|| {
            let mut found = Candidates { is_complete: true, ..Candidates::default() };
            let named = shape.constraints.hosts();
            let rooms: Vec<usize> = match &named {
                None => (0..placement.rooms.len()).collect(),
                Some((hosts, why)) => {
                    let rooms = hosts.iter().filter_map(|host| placement.by_host.get(*host));
                    let rooms: BTreeSet<usize> = rooms.flatten().copied().collect();
                    let others = placement.rooms.len().saturating_sub(rooms.len());
                    found.cannot.insert(Why::Excluded(why.clone()), others);
                    rooms.into_iter().collect()
                }
            };
            for at in rooms {
                let Some(room) = placement.rooms.get(at) else { continue };
                let reasons = check(shape, room);
                if reasons.is_empty() {
                    found.fit.push(at);
                    if found.fit.len() >= enough {
                        found.is_complete = false;
                        break;
                    }
                }
                for why in reasons {
                    *found.cannot.entry(why).or_default() += 1;
                }
            }
            found
        })
    }
}

/// Why a node cannot take a shape in the present state; empty if it can.
fn check(shape: &Shape, room: &Room) -> Vec<Why> {
    let allowed = shape.constraints.check(&room.name, &room.labels, &room.taints, room.is_cordoned);
    match allowed {
        Err(why) => vec![Why::Excluded(why)],
        Ok(()) => lacking(shape, room, None),
    }
}

/// The resources of which too little is left.
fn lacking(shape: &Shape, room: &Room, taken: Option<&Amounts>) -> Vec<Why> {
    let is_lacking = |(resource, amount): &(&String, &i64)| {
        let taken = taken.and_then(|taken| taken.get(*resource)).copied().unwrap_or_default();
        **amount > room.free(resource).saturating_sub(taken)
    };
    let lacking = shape.requests.iter().filter(is_lacking);
    lacking.map(|(resource, _)| Why::Insufficient(resource.clone())).collect()
}

/// How large a pod is: its largest share of a resource of its node, in millionths.
fn share(requests: &Amounts, room: &Room) -> i64 {
    let of = |(resource, amount): (&String, &i64)| {
        let all = room.allocatable.get(resource).copied().unwrap_or_default();
        amount.saturating_mul(1_000_000).checked_div(all).unwrap_or(i64::MAX)
    };
    requests.iter().map(of).max().unwrap_or_default()
}

fn summary(others: usize, cannot: &BTreeMap<Why, usize>) -> String {
    let mut counts: Vec<(&Why, usize)> =
        cannot.iter().map(|(why, count)| (why, *count)).filter(|(_, count)| *count > 0).collect();
    counts.sort_by(|(why, count), (other, more)| (more, why).cmp(&(count, other)));
    let counts: Vec<String> = counts.iter().map(|(why, count)| format!("{count} {why}")).collect();
    format!("0 of {others} other nodes: {}", counts.join(", "))
}
