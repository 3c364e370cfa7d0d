//! An API that cannot be reached while another machine dies: no gate opens and no drain begins on a
//! view from before the outage, however long it lasts.

use std::path::Path;

use lab_world::script::{self, ScriptOutcome};

/// Lengths of the outage, in seconds. Each test takes every third, from another first one.
const LENGTHS: [u32; 12] = [10, 20, 30, 45, 60, 75, 100, 130, 150, 170, 300, 600];

fn every_third(first: usize) -> impl Iterator<Item = u32> {
    LENGTHS.into_iter().skip(first).step_by(3)
}

/// Runs a script, whose every write is judged by the invariants.
fn play(script: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/outage");
    let mut out = Vec::new();
    let outcome = script::run(script, &file, &mut out);
    let out = String::from_utf8(out).unwrap();
    assert!(matches!(outcome, Ok(ScriptOutcome::Passed)), "{script}\n{out}\n{outcome:?}");
}

#[test]
fn a_worker_waits_for_another_that_died_during_an_outage() {
    for length in every_third(0) {
        let before = length * 2 / 3;
        play(&format!(
            "load manifests/workers.yaml
            wait cluster/edge-1 ready 10m
            change md/edge-1-md-0 spec.template.spec.version v1.34.3
            wait md/edge-1-md-0 phase=Staging 10m
            change cluster/edge-1 spec.paused true
            wait 2m
            break api edge-1 for {length}s
            wait 1s
            break node edge-1-md-0-3 for 30m
            wait {before}s
            change cluster/edge-1 spec.paused -
            wait md/edge-1-md-0 updated 2h
            wait quiet 30m"
        ));
    }
}

#[test]
fn a_control_plane_member_waits_for_another_that_died_during_an_outage() {
    for length in every_third(1) {
        let before = length * 2 / 3;
        play(&format!(
            "load manifests/control-plane.yaml
            wait cluster/edge-1 ready 10m
            change kcp/edge-1 spec.version v1.35.0
            wait kcp/edge-1 phase=Staging 10m
            change cluster/edge-1 spec.paused true
            wait 2m
            break api edge-1 for {length}s
            wait 1s
            break node edge-1-3 for 30m
            wait {before}s
            change cluster/edge-1 spec.paused -
            wait kcp/edge-1 updated 3h
            wait quiet 30m"
        ));
    }
}

#[test]
fn a_drain_stops_when_another_member_dies_during_an_outage() {
    for length in every_third(2) {
        let before = length / 2;
        play(&format!(
            "load manifests/control-plane.yaml
            wait cluster/edge-1 ready 10m
            apply to edge-1 <<END
apiVersion: v1
kind: Pod
metadata: {{name: once, namespace: default}}
spec: {{nodeName: edge-1-2, containers: [{{name: c, image: x}}]}}
END
            change kcp/edge-1 spec.version v1.35.0
            wait 20m
            break api edge-1 for {length}s
            wait 1s
            break node edge-1-3 for 30m
            wait {before}s
            change machine/edge-1-2 metadata.annotations.\"refit.dev/drain-unreplicated\" Leave
            wait kcp/edge-1 updated 3h
            wait quiet 30m"
        ));
    }
}
