//! Failures of APIs, hosts and processes, as lines of a scenario script.

use super::{
    fault::Setting,
    shape::{CLUSTER, Shape},
};
use crate::{random::Random, script::parse};

/// The kinds that Refit watches.
const KINDS: [&str; 13] = [
    "machine",
    "nodeupdate",
    "updategroup",
    "cluster",
    "md",
    "kcp",
    "machineset",
    "namespace",
    "hostsettings",
    "machinedrainrule",
    "edge-1:node",
    "edge-1:pod",
    "edge-1:hostplan",
];

/// Two of three failures hit the API of the cluster.
fn api(random: &mut Random) -> &'static str {
    random.pick::<&str>(&[CLUSTER, CLUSTER, "management"])
}

pub(super) fn outage(random: &mut Random) -> Vec<String> {
    vec![format!("break api {} for {}s", api(random), random.between(5, 180))]
}

pub(super) fn half_open(random: &mut Random) -> Vec<String> {
    vec![format!("break streams {}", api(random))]
}

pub(super) fn stale_view(random: &mut Random) -> Vec<String> {
    let view = |_| {
        let kind = random.pick(&KINDS);
        format!("break view {kind} for {}s", random.between(10, 120))
    };
    (0..3).map(view).collect()
}

pub(super) fn latency(random: &mut Random) -> Vec<String> {
    let (api, delay) = (api(random), random.between(1, 8));
    vec![format!("break latency {api} {delay}s for {}s", random.between(30, 300))]
}

/// Requests of any kind, or those of a drain.
pub(super) fn rejection(random: &mut Random, shape: &Shape) -> Vec<String> {
    let (api, code) = (api(random), random.pick(&[403, 404, 409, 422, 429, 500, 503]));
    let times = random.between(1, 20);
    if random.chance(1, 2) {
        return vec![format!("break requests {api} {code} times {times}")];
    }
    let of = random.pick::<&str>(&["", " of pods/eviction"]);
    vec![
        format!("wait {} phase=Draining 10m", shape.owner(random)),
        format!("break requests {CLUSTER} {code}{of} times {times}"),
    ]
}

pub(super) fn lost_answer(random: &mut Random) -> Vec<String> {
    vec![format!("break answers {} times {}", api(random), random.between(1, 10))]
}

pub(super) fn split(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let (api, process) = (api(random), process(random, setting));
    // An agent talks to its own cluster alone.
    let api = if process.starts_with("agent") { CLUSTER } else { api };
    vec![format!("break link {process} {api} for {}s", random.between(10, 240))]
}

pub(super) fn incident(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let (pause, outage) = (random.between(30, 150), random.between(10, 170));
    let resumed = pause + 1 + outage * random.between(5, 9) / 10;
    vec![
        format!("change cluster/{CLUSTER} spec.paused true"),
        format!("at {resumed}s change cluster/{CLUSTER} spec.paused -"),
        format!("wait {pause}s"),
        format!("break api {CLUSTER} for {outage}s"),
        "wait 1s".to_owned(),
        format!("break node {} for {}m", setting.shape.expendable(random), random.between(5, 30)),
    ]
}

pub(super) fn host_off(random: &mut Random, machine: &str) -> Vec<String> {
    vec![format!("break node {machine} for {}m", random.between(1, 30))]
}

pub(super) fn host_lost(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    vec![format!("break node {}", setting.shape.expendable(random))]
}

pub(super) fn step_fails(random: &mut Random, machine: &str) -> Vec<String> {
    let step = random.pick(&parse::STEPS);
    vec![format!("break host {machine} step {step} times {}", random.between(1, 6))]
}

pub(super) fn step_hangs(random: &mut Random, machine: &str) -> Vec<String> {
    vec![format!("break host {machine} step {} hang times 1", random.pick(&parse::STEPS))]
}

pub(super) fn step_slow(random: &mut Random, machine: &str) -> Vec<String> {
    let step = random.pick(&parse::STEPS);
    vec![format!("break host {machine} step {step} slow {}", random.between(2, 5))]
}

pub(super) fn disk_full(random: &mut Random, machine: &str) -> Vec<String> {
    let time = random.between(1, 10);
    vec![format!("break disk {machine}"), format!("at {time}m mend disk {machine}")]
}

pub(super) fn torn_journal(machine: &str) -> Vec<String> {
    vec![format!("break journal {machine}")]
}

pub(super) fn clock_step(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let process = process(random, setting);
    // The stand-in for Cluster API has no clock of its own.
    let process = if process == "capi" { "controller".to_owned() } else { process };
    let seconds = random.between(30, 1200);
    let way = random.pick(&["ahead", "behind"]);
    vec![format!("break clock {process} {seconds}s {way} for {}s", random.between(30, 600))]
}

pub(super) fn kill(random: &mut Random, setting: &Setting<'_>) -> Vec<String> {
    let process = process(random, setting);
    if random.chance(1, 2) {
        return vec![format!("kill {process}")];
    }
    vec![format!("kill {process} for {}s", random.between(5, 120))]
}

fn process(random: &mut Random, setting: &Setting<'_>) -> String {
    let standby = if setting.shape.standby { "standby" } else { "controller" };
    // Machines with k8sd have no agent.
    let agent = match setting.shape.snaps {
        Some(_) => "controller".to_owned(),
        None => format!("agent {}", setting.machine),
    };
    (*random.pick(&["controller", standby, "capi", &agent])).to_owned()
}

/// A process of an Updater dies, and starts again after 2 s or some minutes.
pub(super) fn process_off(random: &mut Random, process: &str) -> Vec<String> {
    let down = random.between(1, 20);
    vec![if random.chance(1, 3) {
        format!("kill {process}")
    } else {
        format!("kill {process} for {down}m")
    }]
}

pub(super) fn provider_slow(random: &mut Random) -> Vec<String> {
    vec![format!("break provider slow for {}m", random.between(1, 30))]
}

pub(super) fn provider_lies(random: &mut Random) -> Vec<String> {
    let how = random.pick(&["ready", "passes", "flips"]);
    vec![format!("break provider {how} for {}m", random.between(1, 15))]
}
