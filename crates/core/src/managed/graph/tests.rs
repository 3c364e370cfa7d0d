use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use refit_kinds::{refit::GroupOwner, version::Hop};
use serde_json::{Value, json};

use super::*;

fn version(text: &str) -> KubernetesVersion {
    text.parse().unwrap()
}

fn group(kind: &str, name: &str, at: &str) -> GroupVersion {
    let owner = GroupOwner { kind: kind.into(), name: name.into(), ..GroupOwner::default() };
    GroupVersion::of(owner, [version(at)]).unwrap()
}

fn read(document: &Value) -> VersionGraph {
    VersionGraph::read(document.to_string().as_bytes()).unwrap()
}

fn error(document: &Value) -> String {
    VersionGraph::read(document.to_string().as_bytes()).unwrap_err().to_string()
}

fn node(version: &str, channels: &str) -> Value {
    let channels = json!({"io.openshift.upgrades.graph.release.channels": channels});
    json!({"version": version, "payload": "", "metadata": channels})
}

/// As an update service serves it.
fn served() -> Value {
    json!({
        "version": 1,
        "nodes": [
            node("1.34.2", "fast,stable"), node("v1.34.9", "fast, stable"), node("1.35.3", "fast,stable"),
            node("1.35.4", "fast"), node("1.36.1", "fast,stable"), node("1.34.4", "fast"),
            node("1.36.5", "stable"), node("1.37.0", ""),
        ],
        "edges": [[0, 1], [0, 5], [1, 2], [1, 3], [2, 4], [3, 4], [5, 3], [4, 0], [2, 2], [0, 4]],
        "conditionalEdges": [{
            "edges": [{"from": "1.34.2", "to": "1.35.3"}, {"from": "1.36.1", "to": "v1.36.5"}],
            "risks": [{
                "url": "https://example.com/etcd", "name": "EtcdSlow", "message": "etcd is\nslow.",
                "matchingRules": [{"type": "PromQL", "promql": {"promql": "x"}}],
            }],
        }, {
            "edges": [{"from": "1.36.1", "to": "v1.36.5"}],
            "risks": [{
                "url": "https://example.com/b", "name": "Bug", "message": "a bug",
                "matchingRules": [{"type": "Always"}],
            }],
        }],
    })
}

fn path(from: &str, to: &str, channel: Option<&str>, risks: &[&str]) -> Result<String, String> {
    let risks: Vec<String> = risks.iter().map(|risk| (*risk).to_owned()).collect();
    let allowed = Allowed { channel, risks: &risks };
    let found = read(&served()).path((&version(from), &version(to)), allowed);
    let shown = |hops: Vec<KubernetesVersion>| {
        hops.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    found.map(shown).map_err(|error| format!("{}: {error}", error.reason()))
}

#[test]
fn the_shortest_way_is_taken_and_of_several_the_one_over_the_highest_versions() {
    let table = [
        (("v1.34.2", "v1.34.9", None, &[][..]), ""),
        (("v1.34.2", "v1.35.4", None, &[]), "v1.34.9"),
        (("v1.34.2", "v1.36.1", None, &[]), "v1.34.9 v1.35.4"),
        (("v1.34.2", "v1.36.1", Some("stable"), &[]), "v1.34.9 v1.35.3"),
        (("v1.34.2", "v1.36.1", None, &["EtcdSlow"]), "v1.35.3"),
        (("v1.36.1", "v1.36.5", None, &["EtcdSlow", "Bug"]), ""),
        (("v1.34.2", "v1.34.2", None, &[]), ""),
    ];
    for ((from, to, channel, risks), hops) in table {
        assert_eq!(path(from, to, channel, risks).as_deref(), Ok(hops), "{from} {to} {channel:?}");
    }
}

#[test]
fn a_way_that_is_missing_is_explained() {
    let table = [
        (
            ("v1.34.2", "v1.36.2", None, &[][..]),
            "VersionNotInGraph: v1.36.2 is not in the version graph; the nearest in it: v1.36.1, v1.36.5",
        ),
        (
            ("v1.34.4", "v1.36.1", Some("stable"), &[]),
            "VersionNotInGraph: v1.34.4 is not in channel stable of the version graph; it is in fast",
        ),
        (
            ("v1.34.2", "v1.37.0", Some("fast"), &[]),
            "VersionNotInGraph: v1.37.0 is not in channel fast of the version graph; it is in no channel",
        ),
        (
            ("v1.34.2", "v1.37.0", Some("none"), &[]),
            "VersionNotInGraph: v1.34.2 is not in channel none of the version graph; it is in fast, stable",
        ),
        (
            ("v1.34.2", "v1.37.0", None, &[]),
            "NoPathInGraph: the version graph has no path from v1.34.2 to v1.37.0; the nearest versions that it \
             reaches: v1.36.1, v1.35.4, v1.35.3 and 2 more",
        ),
        (
            ("v1.36.5", "v1.37.0", None, &[]),
            "NoPathInGraph: the version graph has no path from v1.36.5 to v1.37.0; no edge leads from v1.36.5 towards it",
        ),
        (
            ("v1.36.1", "v1.36.5", None, &["Bug"]),
            "RiskNotAccepted: the way from v1.36.1 to v1.36.5 has risks that are not accepted: EtcdSlow of v1.36.1 -> \
             v1.36.5 (etcd is slow, see https://example.com/etcd). Add to acceptedRisks: EtcdSlow; or request another version",
        ),
    ];
    for ((from, to, channel, risks), why) in table {
        assert_eq!(path(from, to, channel, risks), Err(why.to_owned()), "{from} {to} {channel:?}");
    }
}

#[test]
fn an_edge_that_skips_a_minor_version_is_no_way() {
    let nodes = json!([node("1.34.2", ""), node("1.36.1", ""), node("1.34.3", "")]);
    let graph = read(&json!({"nodes": nodes, "edges": [[0, 1], [0, 2]]}));
    let ends = (&version("v1.34.2"), &version("v1.36.1"));
    assert_eq!(
        graph.path(ends, Allowed::default()).unwrap_err().to_string(),
        "the version graph has no path from v1.34.2 to v1.36.1; the nearest versions that it reaches: v1.34.3; its \
         edge v1.34.2 -> v1.36.1 skips a minor version, which Kubernetes does not"
    );
}

#[test]
fn a_way_of_more_versions_than_a_task_takes_is_refused() {
    let nodes: Vec<Value> = (0..19).map(|patch| node(&format!("1.34.{patch}"), "")).collect();
    let edges: Vec<(u32, u32)> = (0..18).map(|at| (at, at + 1)).collect();
    let graph = read(&json!({"nodes": nodes, "edges": edges}));
    let path = |to: &str| graph.path((&version("v1.34.0"), &version(to)), Allowed::default());
    assert_eq!(path("v1.34.17").unwrap().len(), 16);
    let error = path("v1.34.18").unwrap_err();
    assert_eq!(error.reason(), "NoPathInGraph");
    assert!(error.to_string().contains("takes 17 versions on the way, more than 16"), "{error}");
}

#[test]
fn an_edge_with_and_without_a_condition_has_the_condition() {
    let mut document = served();
    document["edges"] = json!([[4, 6]]);
    let ends = (&version("v1.36.1"), &version("v1.36.5"));
    let error = read(&document).path(ends, Allowed::default()).unwrap_err();
    assert_eq!(error.reason(), "RiskNotAccepted");
    assert!(error.to_string().contains("Add to acceptedRisks: Bug, EtcdSlow;"), "{error}");
}

#[test]
fn a_document_that_is_not_a_graph_is_refused_and_names_what_is_wrong() {
    let nodes = json!([node("1.34.2", ""), node("1.35.0", "")]);
    let conditional = |edges: Value, risks: Value| json!({"nodes": nodes, "edges": [], "conditionalEdges": [{"edges": edges, "risks": risks}]});
    let risks = json!([{"name": "R", "message": "m", "url": "u", "matchingRules": []}]);
    let table = [
        (json!([]), "it is not a graph in Cincinnati's format: "),
        (json!({"edges": []}), "missing field `nodes`"),
        (
            json!({"nodes": [node("1.34.2", ""), node("4.5", "")]}),
            "nodes[1]: invalid Kubernetes version \"4.5\": ",
        ),
        (
            json!({"nodes": [node("1.34.2", ""), node("v1.34.2", "")]}),
            "nodes[1]: v1.34.2 is a version of an earlier node, too",
        ),
        (
            json!({"nodes": nodes, "edges": [[0, 1], [1, 2]]}),
            "edges[1]: 2 is not the index of a node, of which there are 2",
        ),
        (json!({"nodes": nodes, "edges": [[0, -1]]}), "it is not a graph in Cincinnati's format: "),
        (json!({"nodes": nodes, "edges": [[0]]}), "it is not a graph in Cincinnati's format: "),
        (
            conditional(json!([{"from": "1.34.2", "to": "1.36.0"}]), risks),
            "conditionalEdges[0]: \"1.36.0\" is not the version of a node",
        ),
        (
            conditional(json!([{"from": "1.34.2", "to": "1.35.0"}]), json!([])),
            "conditionalEdges[0]: it has no risks",
        ),
    ];
    for (document, why) in table {
        let error = error(&document);
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_document_is_bounded() {
    let large = vec![b' '; MAX_DOCUMENT + 1];
    assert_eq!(VersionGraph::read(&large), Err(DocumentError::TooLarge));
    let nodes: Vec<Value> =
        (0..=MAX_NODES).map(|patch| json!({"version": format!("1.34.{patch}")})).collect();
    assert_eq!(error(&json!({"nodes": nodes})), "it has 10001 nodes, more than 10000");
    let edges = vec![(0, 1); MAX_EDGES + 1];
    let nodes = json!([node("1.34.2", ""), node("1.35.0", "")]);
    let error = error(&json!({"nodes": nodes, "edges": edges}));
    assert_eq!(error, "it has 100001 edges, more than 100000");
}

fn hops(
    graph: &GraphRead,
    change: impl FnOnce(&mut ClusterUpgradeSpec),
    worker: &str,
) -> Result<String, NotTaken> {
    let mut spec = ClusterUpgradeSpec::to(version("v1.36.1"));
    change(&mut spec);
    let plane = group("KubeadmControlPlane", "edge-1", "v1.34.2");
    let workers = [group("MachineDeployment", "md", worker)];
    let found = graph.hops(&spec, (&plane, &workers), &spec.version)?;
    Ok(found.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
}

#[test]
fn the_way_of_a_cluster_is_through_the_graph_or_as_it_is_requested() {
    let graph = GraphRead::of(served().to_string().as_bytes());
    let named = |hops: &[&str]| Some(hops.iter().map(|hop| version(hop)).collect::<Vec<_>>());
    let same = "v1.34.2";
    assert_eq!(hops(&graph, |_| {}, same).unwrap(), "v1.34.9 v1.35.4");
    let requested = |spec: &mut ClusterUpgradeSpec| spec.hops = named(&["v1.35.4", "v1.34.4"]);
    assert_eq!(hops(&graph, requested, same).unwrap(), "v1.34.4 v1.35.4");
    let passed = |spec: &mut ClusterUpgradeSpec| {
        spec.hops = named(&["v1.33.1", "v1.34.9", "v1.35.3"]);
    };
    assert_eq!(hops(&graph, passed, same).unwrap(), "v1.34.9 v1.35.3");
    let without = |spec: &mut ClusterUpgradeSpec| spec.hops = named(&["v1.35.2"]);
    assert_eq!(hops(&GraphRead::NotConfigured, without, same).unwrap(), "v1.35.2");
}

#[test]
fn a_way_that_a_cluster_cannot_take_has_a_reason() {
    let graph = GraphRead::of(served().to_string().as_bytes());
    let named = |hops: &[&str]| Some(hops.iter().map(|hop| version(hop)).collect::<Vec<_>>());
    let of = |requested: &[&str]| {
        hops(&graph, |spec| spec.hops = named(requested), "v1.34.2").unwrap_err()
    };
    assert_eq!(of(&["v1.35.0"]).0, "VersionNotInGraph");
    let (reason, why) = of(&["v1.34.4"]);
    assert_eq!(reason, "NoPathInGraph");
    assert!(why.contains("no path from v1.34.4 to v1.36.1, because Kubernetes skips no"), "{why}");
    let (reason, why) = of(&["v1.34.4", "v1.35.3"]);
    assert_eq!(reason, "NoPathInGraph");
    assert!(why.contains("from v1.34.4 to v1.35.3 in one step: correct hops"), "{why}");
    assert_eq!(of(&["v1.35.3"]).0, "RiskNotAccepted");
    let (reason, why) = hops(&graph, |_| {}, "v1.33.5").unwrap_err();
    assert_eq!(reason, "VersionNotInGraph");
    assert!(why.starts_with("MachineDeployment md: v1.33.5 is not in the version graph"), "{why}");
    let in_channel = |spec: &mut ClusterUpgradeSpec| spec.channel = Some("stable".into());
    let without = hops(&GraphRead::NotConfigured, in_channel, "v1.34.2").unwrap_err();
    assert_eq!(without.0, "ChannelWithoutGraph");
    let unknown = GraphRead::of(b"no graph");
    let (reason, why) = hops(&unknown, |_| {}, "v1.34.2").unwrap_err();
    assert_eq!(reason, "GraphUnknown");
    assert!(why.starts_with("the version graph is not valid: it is not a graph"), "{why}");
}

/// Versions of some minors, in an order of their own, and edges between any of them.
#[derive(Clone, Debug)]
struct Drawn {
    versions: Vec<KubernetesVersion>,
    channels: Vec<bool>,
    /// From, to, and the number of the risk; 3 for none.
    edges: Vec<(usize, usize, usize)>,
    accepted: BTreeSet<usize>,
    in_channel: bool,
}

fn risk(number: usize) -> String {
    format!("Risk{number}")
}

impl Drawn {
    fn graph(&self) -> VersionGraph {
        let nodes = self.versions.iter().zip(&self.channels);
        let nodes: Vec<Value> = nodes
            .map(|(version, is_in)| node(&version.to_string(), if *is_in { "c" } else { "" }))
            .collect();
        let of = |at: usize| &self.versions[at];
        let (free, bound): (Vec<_>, Vec<_>) = self.edges.iter().partition(|edge| edge.2 == 3);
        let free: Vec<_> = free.iter().map(|(from, to, _)| (from, to)).collect();
        let bound = bound.iter().map(|(from, to, number)| {
            json!({
                "edges": [{"from": of(*from), "to": of(*to)}],
                "risks": [{"name": risk(*number), "message": "", "url": ""}],
            })
        });
        let bound: Vec<Value> = bound.collect();
        read(&json!({"nodes": nodes, "edges": free, "conditionalEdges": bound}))
    }

    /// Whether a node may be taken.
    fn is_in(&self, at: usize) -> bool {
        !self.in_channel || self.channels[at]
    }

    fn is_usable(&self, from: usize, to: usize) -> bool {
        let hop = self.versions[from].hop_to(&self.versions[to]);
        let mut same = self.edges.iter().filter(|edge| (edge.0, edge.1) == (from, to)).peekable();
        same.peek().is_some()
            && same.all(|edge| edge.2 == 3 || self.accepted.contains(&edge.2))
            && matches!(hop, Hop::Patch | Hop::Minor)
            && self.is_in(from)
            && self.is_in(to)
    }

    /// How many edges each node is away from the first one, by a search in breadth.
    fn distances(&self, from: usize) -> BTreeMap<usize, usize> {
        let mut found = BTreeMap::from([(from, 0)]);
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            for then in 0..self.versions.len() {
                if self.is_usable(at, then) && !found.contains_key(&then) {
                    found.insert(then, found[&at] + 1);
                    queue.push_back(then);
                }
            }
        }
        found
    }
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let all: Vec<KubernetesVersion> =
        (0..12).map(|at| KubernetesVersion::new(1, 30 + at / 3, at % 3)).collect();
    let count = all.len();
    (
        Just(all).prop_shuffle(),
        prop::collection::vec(prop::bool::weighted(0.8), count),
        prop::collection::vec((0..count, 0..count, 0_usize..8), 0..60),
        prop::collection::btree_set(0_usize..3, 0..3),
        any::<bool>(),
    )
        .prop_map(|(versions, channels, mut edges, accepted, in_channel)| {
            for edge in &mut edges {
                edge.2 = edge.2.min(3);
            }
            Drawn { versions, channels, edges, accepted, in_channel }
        })
}

proptest! {
    #[test]
    fn a_path_is_found_wherever_there_is_one_and_none_is_shorter(drawn in drawn()) {
        let graph = drawn.graph();
        let risks: Vec<String> = drawn.accepted.iter().map(|number| risk(*number)).collect();
        let allowed = Allowed { channel: drawn.in_channel.then_some("c"), risks: &risks };
        let at = |version: &KubernetesVersion| {
            drawn.versions.iter().position(|one| one == version).expect("it is one of the graph")
        };
        for from in 0..drawn.versions.len() {
            let distances = drawn.distances(from);
            for to in 0..drawn.versions.len() {
                let ends = (&drawn.versions[from], &drawn.versions[to]);
                let found = graph.path(ends, allowed);
                let exists = drawn.is_in(from) && drawn.is_in(to) && distances.contains_key(&to);
                prop_assert_eq!(found.is_ok(), exists, "{:?}", found);
                let Ok(hops) = found else { continue };
                let way: Vec<usize> =
                    [from].into_iter().chain(hops.iter().map(at)).chain([to]).collect();
                let edges = if from == to { 0 } else { way.len() - 1 };
                prop_assert_eq!(edges, distances[&to]);
                for pair in way.windows(2).filter(|_| from != to) {
                    prop_assert!(drawn.is_usable(pair[0], pair[1]));
                    let rest = drawn.distances(pair[0])[&to] - 1;
                    let higher = (0..drawn.versions.len()).find(|other| {
                        drawn.versions[*other] > drawn.versions[pair[1]]
                            && drawn.is_usable(pair[0], *other)
                            && drawn.distances(*other).get(&to) == Some(&rest)
                    });
                    prop_assert_eq!(higher, None, "a higher version is as near");
                }
                let named: Vec<&KubernetesVersion> =
                    way.iter().map(|at| &drawn.versions[*at]).collect();
                prop_assert_eq!(if from == to { Ok(()) } else { graph.check(&named, allowed) }, Ok(()));
            }
        }
    }
}
