//! Every documented trap has an existing test, or a reason why it has none.

use std::{collections::BTreeSet, fs, path::Path};

const TRAPS: &str = include_str!("../../../docs/agent-traps.md");
/// The facts whose subsections must each have a row: page, content, section.
const COMPLETE: [(&str, &str, &str); 2] = [
    ("trident.md", include_str!("../../../docs/facts/trident.md"), "## Traps"),
    ("kubeadm.md", include_str!("../../../docs/facts/kubeadm.md"), "## Known upgrade failures"),
];

/// The columns of each trap: facts, mitigation, tests.
fn traps() -> Vec<Vec<&'static str>> {
    let rows = TRAPS.lines().filter(|line| line.starts_with('|'));
    let rows = rows.filter(|line| !line.starts_with("|---") && !line.starts_with("| fact"));
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Collects the names of all functions in the sources of a crate and its tests.
fn functions(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
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
fn every_trap_has_a_test_or_a_reason() {
    let mut known = BTreeSet::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for directory in ["agent/src", "agent/tests", "core/src/node", "../lab/simhost/src"] {
        functions(&crates.join(directory), &mut known);
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

/// The links to the subsections of a section, as the first column writes them.
fn links(page: &str, text: &str, section: &str) -> Vec<String> {
    let lines = text.lines().skip_while(|line| *line != section).skip(1);
    let lines = lines.take_while(|line| !line.starts_with("## "));
    let headings = lines.filter_map(|line| line.strip_prefix("### "));
    let link = |heading: &str| {
        let kept = heading.to_lowercase().replace(' ', "-").replace(['.', '/'], "");
        format!("[{heading}](facts/{page}#{kept})")
    };
    headings.map(link).collect()
}

#[test]
fn every_known_trap_has_a_row() {
    let rows: Vec<&str> = traps().iter().map(|trap| trap[0]).collect();
    for (page, text, section) in COMPLETE {
        let wanted = links(page, text, section);
        assert!(wanted.len() >= 8, "{page}: {wanted:?}");
        for link in wanted {
            assert!(rows.contains(&link.as_str()), "docs/agent-traps.md has no row for {link}");
        }
    }
}
