//! Every known trap has a test that exists, or a reason why it has none.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{collections::BTreeSet, fs, path::Path};

const TRAPS: &str = include_str!("../../../docs/agent-traps.md");
/// Lettered facts about Trident.
const LETTERS: [char; 14] = ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l', 'm', 'n'];
/// How many failures of kubeadm are known (`spec/node.md 2.5`), some of them in several lines.
const KUBEADM: usize = 8;

/// Facts, what is done, and tests of each trap.
fn traps() -> Vec<Vec<&'static str>> {
    let rows = TRAPS.lines().filter(|line| line.starts_with('|'));
    let rows = rows.filter(|line| !line.starts_with("|---") && !line.starts_with("| fact"));
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Names of all functions in the sources of a crate and its tests.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text.lines().filter_map(|line| {
                let rest = line.trim_start().trim_start_matches("async ");
                let name = rest.strip_prefix("fn ")?;
                Some(name.split(['(', '<']).next()?.to_owned())
            });
            found.extend(names);
        }
    }
}

#[test]
fn every_trap_has_a_test_that_exists_or_says_why_it_has_none() {
    let mut known = BTreeSet::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for folder in ["agent/src", "agent/tests", "core/src/node", "../lab/simhost/src"] {
        functions(&crates.join(folder), &mut known);
    }
    for trap in traps() {
        let [_, what, done, test] = trap.as_slice() else {
            panic!("{trap:?} has not four columns");
        };
        assert!(!what.is_empty() && !done.is_empty(), "{trap:?}");
        if let Some(why) = test.strip_prefix("none: ") {
            assert!(why.len() > 10, "{trap:?}");
            continue;
        }
        let names: Vec<&str> = test.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{trap:?} names no test");
        for name in names {
            assert!(known.contains(name), "there is no test {name} for {what}");
        }
    }
}

#[test]
fn no_known_trap_is_left_out() {
    let facts: Vec<&str> = traps().iter().map(|trap| trap[0]).collect();
    for letter in LETTERS {
        let fact = format!("1.9 {letter}");
        assert!(facts.contains(&fact.as_str()), "{fact}");
    }
    let kubeadm = facts.iter().filter(|fact| **fact == "2.5").count();
    assert!(kubeadm >= KUBEADM, "{kubeadm}");
}
