//! How the cost of a script grows with the number of its machines.

use std::{fs, path::Path};

use lab_world::script::{self, ScriptOutcome};

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios/manifests/ten.yaml");
const SCRIPT: &str = "load cluster.yaml\n\
    wait cluster/edge-1 ready 2h\n\
    change md/edge-1-md-0 spec.template.spec.version v1.34.3\n\
    wait md/edge-1-md-0 updated 48h\n";

/// Number of allocations of a script that creates and updates this many workers. Unlike processor time,
/// it is the same in each run.
fn allocations(directory: &Path, workers: u32) -> u64 {
    let manifests = fs::read_to_string(MANIFESTS).unwrap();
    let resized = manifests.replace("replicas: 10", &format!("replicas: {workers}"));
    fs::write(directory.join("cluster.yaml"), resized).unwrap();
    let mut outcome = None;
    let counted = allocation_counter::measure(|| {
        let file = directory.join("script.txt");
        outcome = script::run(SCRIPT, &file, &mut Vec::new()).ok();
    });
    assert!(matches!(outcome, Some(ScriptOutcome::Passed)), "{outcome:?}");
    counted.count_total
}

#[test]
fn a_machine_takes_no_more_work_in_a_larger_group() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [few, some, many] = [8, 16, 32].map(|workers| allocations(directory.path(), workers));
    // What does not depend on the number of machines is in neither.
    let (before, after) = ((some - few) / 8, (many - some) / 16);
    let percent = after * 100 / before;
    println!("{before} allocations for each of 8 more machines, {after} for each of 16 more");
    assert!(percent < 125, "{percent} % for a machine in a group that is twice as large");
}
