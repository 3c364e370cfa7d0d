//! Predictable names for scripts.
//!
//! Cluster API gives machines random names. A script names them by their owner and the order in
//! which they appeared. Output contains the same names, and times as offsets.

use std::{collections::BTreeMap, sync::LazyLock};

use jiff::Timestamp;
use refit_cluster_api::kinds;
use refit_kinds::{
    json::{name, text},
    keys,
};
use regex::Regex;
use serde_json::Value;

use super::words;
use crate::world::World;

static TIMES: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z").expect("a valid expression")
});
static UIDS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b").expect("a valid expression")
});

/// The names that a script uses.
#[derive(Debug)]
pub(crate) struct Names {
    start: Timestamp,
    /// Script names by real name.
    given: BTreeMap<String, String>,
    /// Real names by script name.
    real: BTreeMap<String, String>,
    counts: BTreeMap<String, u32>,
    /// The machine that the last wait found, by its script name.
    pub(super) found: Option<String>,
}

impl Names {
    pub(super) fn new(start: Timestamp) -> Self {
        Self {
            start,
            given: BTreeMap::new(),
            real: BTreeMap::new(),
            counts: BTreeMap::new(),
            found: None,
        }
    }

    /// Assigns names to new machines.
    pub(super) fn learn(&mut self, world: &World) {
        let machines = world.machines();
        self.learn_from(machines.iter().map(AsRef::as_ref), owner, "");
    }

    /// Assigns names to all new objects.
    pub(super) fn learn_all(&mut self, world: &World) {
        self.learn(world);
        let management = world.management();
        let sets = management.list_values(kinds::CORE_GROUP, "machinesets", None);
        self.learn_from(sets.iter(), owner, "set-");
        for cluster in world.clusters() {
            if let Some(server) = world.workload(&cluster) {
                let pods = server.list_values("", "pods", None);
                self.learn_from(pods.iter(), reference, "");
            }
        }
    }

    fn learn_from<'a>(
        &mut self,
        objects: impl Iterator<Item = &'a Value>,
        owner: fn(&Value) -> &str,
        infix: &str,
    ) {
        let mut new: Vec<&Value> =
            objects.filter(|object| !self.given.contains_key(name(object))).collect();
        new.sort_by_key(|object| (text(object, "/metadata/creationTimestamp"), name(object)));
        for object in new {
            let (real, owner) = (name(object), owner(object));
            let generated = real.strip_prefix(owner).is_some_and(|rest| rest.starts_with('-'));
            if owner.is_empty() || !generated {
                continue;
            }
            let prefix = format!("{owner}-{infix}");
            let count = self.counts.entry(prefix.clone()).or_default();
            *count += 1;
            let given = format!("{prefix}{count}");
            self.real.insert(given.clone(), real.to_owned());
            self.given.insert(real.to_owned(), given);
        }
    }

    /// The real name of `word`: a machine, `machine-N` for its N-th NodeUpdate, or `machine-N-UPDATER` for the
    /// object of that Updater's provider. Other words are returned unchanged.
    pub(crate) fn real(&self, word: &str) -> String {
        if let Some(real) = self.real.get(word) {
            return real.clone();
        }
        let of_machine = |(at, _): (usize, &str)| {
            let (machine, rest) = word.split_at(at);
            rest[1..].split('-').next()?.parse::<u32>().ok()?;
            Some(format!("{}{rest}", self.real.get(machine)?))
        };
        word.rmatch_indices('-').find_map(of_machine).unwrap_or_else(|| word.to_owned())
    }

    /// Replaces script names by real names in an object that a script wrote.
    pub(super) fn make_real(&self, value: &mut Value) {
        match value {
            Value::String(word) => *word = self.real(word),
            Value::Array(list) => list.iter_mut().for_each(|one| self.make_real(one)),
            Value::Object(map) => map.values_mut().for_each(|one| self.make_real(one)),
            _ => {}
        }
    }

    /// The script name of a machine.
    pub(super) fn given<'a>(&'a self, real: &'a str) -> &'a str {
        self.given.get(real).map_or(real, String::as_str)
    }

    /// A text with script names, times as offsets, and without uids.
    pub(crate) fn shown(&self, text: &str) -> String {
        let mut shown = text.to_owned();
        let mut known: Vec<(&String, &String)> = self.given.iter().collect();
        known.sort_by_key(|(real, _)| std::cmp::Reverse(real.len()));
        for (real, given) in known {
            if shown.contains(real.as_str()) {
                shown = replaced(&shown, real, given);
            }
        }
        let shown = UIDS.replace_all(&shown, "<uid>");
        let times = TIMES.replace_all(&shown, |found: &regex::Captures<'_>| {
            let time: Result<Timestamp, _> = found[0].parse();
            time.map_or_else(|_| found[0].to_owned(), |time| self.offset(time))
        });
        times.into_owned()
    }

    /// Formats a time as an offset from the start of the script.
    pub(super) fn offset(&self, time: Timestamp) -> String {
        let since = time.duration_since(self.start);
        if since.is_negative() {
            format!("-{}", words::shown(-since))
        } else {
            format!("+{}", words::shown(since))
        }
    }
}

/// Replaces whole names only, not parts of a longer word.
fn replaced(text: &str, real: &str, given: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(real) {
        let (before, after) = (&rest[..at], &rest[at + real.len()..]);
        let word = |c: char| c.is_ascii_alphanumeric();
        let whole = !before.ends_with(word) && !after.starts_with(word);
        out.push_str(before);
        out.push_str(if whole { given } else { real });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The owner whose name is the prefix of a Machine's or MachineSet's name.
fn owner(object: &Value) -> &str {
    let labels = &object["metadata"]["labels"];
    [keys::DEPLOYMENT_NAME, keys::CONTROL_PLANE_NAME]
        .iter()
        .find_map(|key| labels.get(*key)?.as_str())
        .unwrap_or_else(|| reference(object))
}

fn reference(object: &Value) -> &str {
    text(object, "/metadata/ownerReferences/0/name")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let mut names = Names::new("2026-03-02T08:00:00Z".parse().unwrap());
        for (real, given) in [
            ("edge-1-md-0-x7k2p-9xk2d", "edge-1-md-0-2"),
            ("edge-1-md-0-x7k2p", "edge-1-md-0-set-1"),
        ] {
            names.given.insert(real.to_owned(), given.to_owned());
            names.real.insert(given.to_owned(), real.to_owned());
        }
        names
    }

    #[test]
    fn output_contains_script_names_and_offsets() {
        let text = "etcd-edge-1-md-0-x7k2p-9xk2d of edge-1-md-0-x7k2p since 2026-03-02T08:02:05Z, \
                    update edge-1-md-0-x7k2p-9xk2d-1, xedge-1-md-0-x7k2p, \
                    01234567-89ab-4cde-8f01-23456789abcd";
        assert_eq!(
            names().shown(text),
            "etcd-edge-1-md-0-2 of edge-1-md-0-set-1 since +2m05s, update edge-1-md-0-2-1, \
             xedge-1-md-0-x7k2p, <uid>"
        );
    }

    #[test]
    fn script_names_resolve_to_machines_and_updates() {
        let names = names();
        assert_eq!(names.real("edge-1-md-0-2"), "edge-1-md-0-x7k2p-9xk2d");
        assert_eq!(names.real("edge-1-md-0-2-3"), "edge-1-md-0-x7k2p-9xk2d-3");
        assert_eq!(names.real("edge-1-md-0"), "edge-1-md-0");
    }
}
