//! The history of the objects of a rollout, reduced to what Cluster API's rules determine. Facts
//! that depend on timing are left out.
//!
//! | kept | how |
//! |---|---|
//! | order | when each Machine of a group is created, updated and deleted, group by group |
//! | steps | of each object, in order: versions, replicas, owner, annotations of Cluster API |
//! | conditions | of each object and type, in order: status and reason |
//!
//! Names consist of a group and a number: `md/machine-1` is the first Machine of `md` that changed.
//! Facts that may differ between two runs of the same flow are left out: the order of steps of
//! different objects, the order of conditions of different types, messages, what a probe saw of a
//! host (`Ready`, `NodeHealthy` and similar conditions), how far a deletion was when it was
//! observed (`Deleting`), and what a controller reports while its cache lags behind its own writes
//! (`ScalingUp` and `ScalingDown`: in real runs they appear or not during the moves of one
//! rollout).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use serde_json::Value;

use crate::objects::{name, number, text, uid};

/// Annotations of Cluster API whose changes count as steps.
const ANNOTATIONS: [&str; 9] = [
    "cluster.x-k8s.io/delete-machine",
    "cluster.x-k8s.io/disable-machine-create",
    "cluster.x-k8s.io/remediate-machine",
    "in-place-updates.internal.cluster.x-k8s.io/acknowledged-move",
    "in-place-updates.internal.cluster.x-k8s.io/move-machines-to-machineset",
    "in-place-updates.internal.cluster.x-k8s.io/pending-acknowledge-move",
    "in-place-updates.internal.cluster.x-k8s.io/receive-machines-from-machinesets",
    "in-place-updates.internal.cluster.x-k8s.io/update-in-progress",
    "runtime.cluster.x-k8s.io/pending-hooks",
];
/// The recorded condition types, by kind.
const CONDITIONS: [(&str, &[&str]); 3] = [
    ("KubeadmControlPlane", &["MachinesUpToDate", "RollingOut"]),
    ("MachineDeployment", &["MachinesUpToDate", "RollingOut"]),
    ("Machine", &["UpToDate", "Updating"]),
];
/// Where each kind has its version.
const VERSIONS: [(&str, &str); 4] = [
    ("KubeadmControlPlane", "/spec/version"),
    ("MachineDeployment", "/spec/template/spec/version"),
    ("MachineSet", "/spec/template/spec/version"),
    ("Machine", "/spec/version"),
];
const UPDATING: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";
const PENDING: &str = "runtime.cluster.x-k8s.io/pending-hooks";
const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";

/// The state of an object after a write.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// The resourceVersion of the write; within one store they are in the order of the writes.
    pub revision: u64,
    /// The object.
    pub object: Value,
    /// Whether the write removed it.
    pub gone: bool,
}

impl Sighting {
    /// A sighting of an existing object.
    pub fn of(object: Value) -> Self {
        Self {
            revision: text(&object, "/metadata/resourceVersion").parse().unwrap_or_default(),
            object,
            gone: false,
        }
    }
}

/// The compared properties of an object, by name.
type Facets = BTreeMap<String, String>;

/// Reduces the sightings after `since` to lines of text. Earlier sightings give the initial state.
pub fn reduce(mut seen: Vec<Sighting>, since: u64) -> String {
    seen.sort_by_key(|sighting| sighting.revision);
    let names = Names::of(&seen, since);
    let mut histories: BTreeMap<String, ObjectHistory> = BTreeMap::new();
    let mut order: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for sighting in &seen {
        let Some(label) = names.label(&sighting.object) else {
            continue;
        };
        let entry = histories.entry(label.clone()).or_default();
        let facets = (!sighting.gone).then(|| facets(&sighting.object, &names));
        let turns = entry.see(facets, sighting.revision > since);
        if text(&sighting.object, "/kind") == "Machine" {
            let group = group_of(&sighting.object).unwrap_or_default();
            let lines = turns.into_iter().map(|turn| format!("{label} {turn}"));
            order.entry(group).or_default().extend(lines);
        }
    }
    let mut out = String::new();
    for (group, lines) in order.iter().filter(|(_, lines)| !lines.is_empty()) {
        let _ = writeln!(out, "order of {group}");
        for line in lines {
            let _ = writeln!(out, "  {line}");
        }
    }
    for (label, history) in &histories {
        history.write(label, &mut out);
    }
    out
}

/// Returns the number of Machines of a group that are not being deleted, at `since` and after each change.
pub fn counts(mut seen: Vec<Sighting>, since: u64, group: &str) -> Vec<usize> {
    seen.sort_by_key(|sighting| sighting.revision);
    let mut staying = BTreeSet::new();
    let mut counts = vec![0];
    for Sighting { revision, object, gone } in &seen {
        if text(object, "/kind") != "Machine" || group_of(object).as_deref() != Some(group) {
            continue;
        }
        if *gone || !text(object, "/metadata/deletionTimestamp").is_empty() {
            staying.remove(uid(object));
        } else {
            staying.insert(uid(object));
        }
        if *revision <= since {
            counts = vec![staying.len()];
        } else if counts.last() != Some(&staying.len()) {
            counts.push(staying.len());
        }
    }
    counts
}

/// The history of one object.
#[derive(Debug, Default)]
struct ObjectHistory {
    now: Facets,
    there: bool,
    steps: Vec<String>,
    conditions: BTreeMap<String, Vec<String>>,
}

impl ObjectHistory {
    /// Records the current state of the object. Returns its events for the order of its group.
    fn see(&mut self, facets: Option<Facets>, counts: bool) -> Vec<&'static str> {
        let mut turns = Vec::new();
        let (was_there, is_there) = (self.there, facets.is_some());
        let next = facets.unwrap_or_default();
        let before = std::mem::replace(&mut self.now, next);
        self.there = is_there;
        if !counts {
            self.conditions.clear();
            for (key, value) in self.now.iter().filter(|(key, _)| is_condition(key)) {
                self.conditions.insert(key.clone(), vec![value.clone()]);
            }
            return turns;
        }
        match (was_there, is_there) {
            (false, true) => self.steps.push("is created".to_owned()),
            (_, false) => {
                self.steps.push("is gone".to_owned());
                return vec!["is gone"];
            }
            (true, true) => {}
        }
        let keys: BTreeSet<&String> = before.keys().chain(self.now.keys()).collect();
        for key in keys {
            let (old, new) = (before.get(key), self.now.get(key));
            if old == new {
                continue;
            }
            if is_condition(key) {
                let chain = self.conditions.entry(key.clone()).or_default();
                chain.push(new.cloned().unwrap_or_else(|| "none".to_owned()));
                continue;
            }
            let to = new.map_or("none", String::as_str);
            self.steps.push(if was_there {
                format!("{key}: {} -> {to}", old.map_or("none", String::as_str))
            } else {
                format!("{key}: {to}")
            });
        }
        if !was_there {
            turns.push("is created");
        }
        let marked = |facets: &Facets| facets.contains_key(UPDATING);
        let busy = |facets: &Facets| marked(facets) || facets.contains_key(PENDING);
        if marked(&self.now) && !marked(&before) {
            turns.push("begins");
        }
        if busy(&before) && !busy(&self.now) {
            turns.push("ends");
        }
        turns
    }

    fn write(&self, label: &str, out: &mut String) {
        let changed = self.conditions.iter().filter(|(_, chain)| chain.len() > 1);
        let changed: Vec<_> = changed.collect();
        if self.steps.is_empty() && changed.is_empty() {
            return;
        }
        let _ = writeln!(out, "{label}");
        for step in &self.steps {
            let _ = writeln!(out, "  {step}");
        }
        for (key, chain) in changed {
            let _ = writeln!(out, "  {key} {}", chain.join(", "));
        }
    }
}

fn is_condition(key: &str) -> bool {
    key.starts_with("condition ")
}

/// The compared properties of an object.
fn facets(object: &Value, names: &Names) -> Facets {
    let mut found = Facets::new();
    let kind = text(object, "/kind");
    for key in ANNOTATIONS {
        if let Some(value) = crate::objects::annotation(object, key) {
            found.insert(key.to_owned(), format!("{:?}", names.replaced(value)));
        }
    }
    let owners = object["metadata"]["ownerReferences"].as_array();
    let owner = owners.into_iter().flatten().find(|o| o["controller"] == true);
    if let Some(owner) = owner {
        let name = names.replaced(text(owner, "/name"));
        found.insert("owner".to_owned(), format!("{} {name}", text(owner, "/kind")));
    }
    for (_, pointer) in VERSIONS.iter().filter(|(entry_kind, _)| *entry_kind == kind) {
        found.insert("version".to_owned(), text(object, pointer).to_owned());
    }
    if kind != "Machine" {
        let replicas = number(object, "/spec/replicas").to_string();
        found.insert("replicas".to_owned(), replicas);
    } else if !text(object, "/metadata/deletionTimestamp").is_empty() {
        found.insert("deleted".to_owned(), "yes".to_owned());
    }
    let kept = CONDITIONS.iter().find(|(entry_kind, _)| *entry_kind == kind);
    for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
        let condition_type = text(condition, "/type");
        if kept.is_some_and(|(_, types)| types.contains(&condition_type)) {
            let value = format!("{}/{}", text(condition, "/status"), text(condition, "/reason"));
            found.insert(format!("condition {condition_type}:"), value);
        }
    }
    found
}

/// Returns the group of a Machine or MachineSet.
fn group_of(object: &Value) -> Option<String> {
    let labels = &object["metadata"]["labels"];
    let deployment = labels.get(DEPLOYMENT_NAME).and_then(Value::as_str);
    match text(object, "/kind") {
        "KubeadmControlPlane" | "MachineDeployment" => Some(name(object).to_owned()),
        "MachineSet" => deployment.map(str::to_owned),
        "Machine" => {
            deployment.or_else(|| Some(text(object, "/spec/clusterName"))).map(str::to_owned)
        }
        _ => None,
    }
}

/// The labels of objects in a history.
struct Names {
    /// Labels by uid.
    labels: BTreeMap<String, String>,
    /// Labels by name.
    by_name: BTreeMap<String, String>,
}

impl Names {
    /// Numbers MachineSets in the order of their creation, and Machines in the order of their first
    /// change.
    fn of(seen: &[Sighting], since: u64) -> Self {
        let mut names = Self { labels: BTreeMap::new(), by_name: BTreeMap::new() };
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut calm: Vec<&Value> = Vec::new();
        for Sighting { revision, object, gone } in seen {
            let kind = text(object, "/kind");
            let marked = crate::objects::annotation(object, UPDATING).is_some();
            let going = *gone || !text(object, "/metadata/deletionTimestamp").is_empty();
            let made = *revision > since && !calm.iter().any(|known| uid(known) == uid(object));
            match kind {
                "Machine" if marked || going || made => names.count(&mut counts, object),
                "Machine" => calm.push(object),
                _ => names.count(&mut counts, object),
            }
        }
        for object in calm {
            names.count(&mut counts, object);
        }
        names
    }

    fn count(&mut self, counts: &mut BTreeMap<String, usize>, object: &Value) {
        let Some(group) = group_of(object) else {
            return;
        };
        if self.labels.contains_key(uid(object)) {
            return;
        }
        let label = match text(object, "/kind") {
            "KubeadmControlPlane" | "MachineDeployment" => group,
            kind => {
                let kind = if kind == "Machine" { "machine" } else { "set" };
                let group = format!("{group}/{kind}");
                let turn = counts.entry(group.clone()).or_default();
                *turn += 1;
                format!("{group}-{turn}")
            }
        };
        self.labels.insert(uid(object).to_owned(), label.clone());
        self.by_name.insert(name(object).to_owned(), label);
    }

    fn label(&self, object: &Value) -> Option<String> {
        self.labels.get(uid(object)).cloned()
    }

    /// Replaces the names in a comma-separated list by labels.
    fn replaced(&self, list: &str) -> String {
        let each = list.split(',').map(|name| self.by_name.get(name).map_or(name, String::as_str));
        each.collect::<Vec<_>>().join(",")
    }
}

/// Returns the events of the Machines of a group, in order.
pub fn order<'a>(history: &'a str, group: &str) -> Vec<&'a str> {
    let label = format!("order of {group}");
    by_object(history).remove(label.as_str()).unwrap_or_default()
}

/// Compares two histories line by line. Returns no lines if they are equal.
pub fn differences(wanted: &str, found: &str) -> Vec<String> {
    let (wanted, found) = (by_object(wanted), by_object(found));
    let labels: BTreeSet<&&str> = wanted.keys().chain(found.keys()).collect();
    let mut out = Vec::new();
    for label in labels {
        let none = Vec::new();
        let (old, new) = (wanted.get(*label).unwrap_or(&none), found.get(*label).unwrap_or(&none));
        if old != new {
            out.push(format!("{label}:"));
            out.extend(aligned(old, new));
        }
    }
    out
}

fn by_object(history: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut label = "";
    for line in history.lines() {
        if line.starts_with(' ') {
            found.entry(label).or_default().push(line.trim_start());
        } else {
            label = line;
            found.entry(label).or_default();
        }
    }
    found
}

/// Aligns the lines of both so that the longest common subsequence stays together.
fn aligned(old: &[&str], new: &[&str]) -> Vec<String> {
    let mut shared = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for (i, a) in old.iter().enumerate().rev() {
        for (j, b) in new.iter().enumerate().rev() {
            shared[i][j] = if a == b {
                shared[i + 1][j + 1] + 1
            } else {
                shared[i + 1][j].max(shared[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut out = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            out.push(format!("    {}", old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || i < old.len() && shared[i + 1][j] >= shared[i][j + 1] {
            out.push(format!("  - {}", old[i]));
            i += 1;
        } else {
            out.push(format!("  + {}", new[j]));
            j += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(revision: u64, name: &str, annotations: &Value, status: &str) -> Sighting {
        Sighting::of(json!({
            "kind": "Machine",
            "metadata": {
                "name": name, "uid": name, "resourceVersion": revision.to_string(),
                "annotations": annotations,
            },
            "spec": {"clusterName": "edge", "version": "v1.34.2"},
            "status": {"conditions": [
                {"type": "Updating", "status": status, "reason": "R"},
                {"type": "Ready", "status": status, "reason": revision.to_string()},
            ]},
        }))
    }

    #[test]
    fn machines_are_numbered_by_their_first_change() {
        let mark = json!({UPDATING: ""});
        let seen = vec![
            machine(1, "a", &json!({}), "False"),
            machine(2, "b", &json!({}), "False"),
            machine(5, "b", &mark, "False"),
            machine(6, "b", &mark, "True"),
            machine(7, "b", &json!({}), "False"),
        ];
        let history = reduce(seen, 4);
        assert_eq!(
            history,
            "order of edge\n  edge/machine-1 begins\n  edge/machine-1 ends\nedge/machine-1\n  \
             in-place-updates.internal.cluster.x-k8s.io/update-in-progress: none -> \"\"\n  \
             in-place-updates.internal.cluster.x-k8s.io/update-in-progress: \"\" -> none\n  \
             condition Updating: False/R, True/R, False/R\n"
        );
    }

    #[test]
    fn machines_that_are_not_being_deleted_are_counted() {
        let seen = |revision, name| machine(revision, name, &json!({}), "False");
        let mut deleted = seen(6, "a");
        deleted.object["metadata"]["deletionTimestamp"] = json!("2026-03-02T08:00:00Z");
        let mut gone = deleted.clone();
        (gone.revision, gone.gone) = (7, true);
        let all = vec![seen(1, "a"), seen(2, "b"), seen(5, "c"), deleted, gone];
        assert_eq!(counts(all.clone(), 4, "edge"), [2, 3, 2]);
        assert_eq!(counts(all, 4, "other"), [0]);
    }

    #[test]
    fn differences_are_grouped_by_object() {
        let found = differences("a\n  1\n  2\nb\n  1\n", "a\n  1\n  3\nb\n  1\n");
        assert_eq!(found, ["a:", "    1", "  - 2", "  + 3"]);
        assert!(differences("a\n  1\n", "a\n  1\n").is_empty());
    }
}
