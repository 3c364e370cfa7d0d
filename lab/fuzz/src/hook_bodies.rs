use std::time::Duration;

use refit_controller::wire::{self, BadRequest, MACHINE, MACHINE_SET, Members};
use refit_core::change::{
    Level, Patch, Verdict, can_update,
    can_update::{Host, HostReport, Known},
    goal,
    objects::{PARTS, part_changes},
};
use refit_kinds::version::StatedVersion;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

/// The longest input whose time is measured.
const MEASURED_BYTES: usize = 128 * 1024;
/// Processor time for one measured input without optimisation.
const BUDGET: Duration = Duration::from_secs(5);
/// The credential in the seeds.
const SECRET: &str = "hunter2";

/// Parses requests and reaches a verdict, as the hook server does.
pub fn hook_bodies(input: &[u8]) {
    let started = processor_time();
    can_update_hook(input, MACHINE, Level::Machine);
    can_update_hook(input, MACHINE_SET, Level::MachineSet);
    update_machine_hook(input);
    let _ = wire::timeout_of(std::str::from_utf8(input).ok());
    let took = processor_time().saturating_sub(started);
    assert!(took < BUDGET || input.len() > MEASURED_BYTES, "{took:?} for {} bytes", input.len());
}

fn can_update_hook(input: &[u8], members: Members, level: Level) {
    let sides = || {
        let mut request = wire::parse(input)?;
        let current = wire::side(&mut request, "current", members)?;
        Ok((current, wire::side(&mut request, "desired", members)?))
    };
    let (current, desired) = match sides() {
        Ok(sides) => sides,
        Err(error) => return hides_values(&error),
    };
    let host = Host {
        machine: "edge-1-0".to_owned(),
        deleting: false,
        report: HostReport::Fresh,
        kubelet: StatedVersion::Absent,
        unfinished: None,
        half_upgraded: false,
        exception: None,
    };
    let known = Known { hosts: vec![host], ..Known::default() };
    let verdict = can_update(level, &current, &desired, &known).verdict;
    let response = match level {
        Level::Machine => serde_json::to_vec(&wire::can_update_machine(&verdict)),
        Level::MachineSet => serde_json::to_vec(&wire::can_update_machine_set(&verdict)),
    };
    assert!(response.is_ok());
    let Verdict::Cover { patches, .. } = verdict else {
        return assert!(!verdict.message().is_empty());
    };
    let mut patched = current;
    apply(&mut patched.owner, patches.owner);
    apply(&mut patched.infrastructure, patches.infrastructure);
    if let Some(bootstrap) = &mut patched.bootstrap {
        apply(bootstrap, patches.bootstrap);
    }
    for part in PARTS {
        let left = part_changes(level, part, &patched, &desired);
        assert!(left.is_empty(), "Cluster API would replace the machine for {left:?}");
    }
}

/// Applies a patch as Cluster API does.
fn apply(object: &mut Value, patch: Option<Patch>) {
    match patch {
        None => {}
        Some(Patch::Merge(body)) => json_patch::merge(object, &body),
        Some(Patch::Json(body)) => {
            let patch: json_patch::Patch = serde_json::from_value(body).expect("a JSON patch");
            json_patch::patch(object, &patch).expect("the patch applies");
        }
    }
}

fn update_machine_hook(input: &[u8]) {
    let desired =
        wire::parse(input).and_then(|mut request| wire::side(&mut request, "desired", MACHINE));
    match desired {
        Ok(desired) => drop(goal(&desired, &[])),
        Err(error) => hides_values(&error),
    }
}

fn hides_values(error: &BadRequest) {
    let error = error.to_string();
    assert!(!error.is_empty() && !error.contains(SECRET), "{error}");
}

/// Processor time of this thread: another busy process does not change it.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
