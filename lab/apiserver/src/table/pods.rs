//! Tables of pods and nodes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age::since;
use super::cells::{age_of, condition, list, number, text_or_placeholder};
use super::{AGE, Col, Printer, plain};
use crate::object::{meta_text, text};

static POD: Printer = plain(
    &[
        Col("Ready", "string", 0),
        Col("Status", "string", 0),
        Col("Restarts", "string", 0),
        AGE,
        Col("IP", "string", 1),
        Col("Node", "string", 1),
        Col("Nominated Node", "string", 1),
        Col("Readiness Gates", "string", 1),
    ],
    pod,
);

static NODE: Printer = plain(
    &[
        Col("Status", "string", 0),
        Col("Roles", "string", 0),
        AGE,
        Col("Version", "string", 0),
        Col("Internal-IP", "string", 1),
        Col("External-IP", "string", 1),
        Col("OS-Image", "string", 1),
        Col("Kernel-Version", "string", 1),
        Col("Container-Runtime", "string", 1),
    ],
    node,
);

pub(super) fn printer(kind: &str) -> Option<&'static Printer> {
    match kind {
        "Pod" => Some(&POD),
        "Node" => Some(&NODE),
        _ => None,
    }
}

fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}

/// The summary of a pod's containers.
struct Containers {
    status: String,
    ready: usize,
    restarts: i64,
    last_restart: Option<Value>,
}

fn ended(state: &Value) -> Option<String> {
    let ended = state.get("terminated").filter(|ended| ended.is_object())?;
    let reason = text(ended, &["reason"]);
    if !reason.is_empty() {
        return Some(reason.to_owned());
    }
    Some(match number(ended, &["signal"]) {
        0 => format!("ExitCode:{}", number(ended, &["exitCode"])),
        signal => format!("Signal:{signal}"),
    })
}

/// The state of the first unfinished init container, unless initialisation is complete.
fn initialising(pod: &Value) -> Option<String> {
    let all = list(pod, &["spec", "initContainers"]).len();
    for (index, status) in list(pod, &["status", "initContainerStatuses"]).iter().enumerate() {
        let state = &status["state"];
        let done =
            state["terminated"].is_object() && number(state, &["terminated", "exitCode"]) == 0;
        if done || status["started"] == true {
            continue;
        }
        let waiting = text(state, &["waiting", "reason"]);
        return Some(match ended(state) {
            Some(reason) => format!("Init:{reason}"),
            None if !waiting.is_empty() && waiting != "PodInitializing" => {
                format!("Init:{waiting}")
            }
            None => format!("Init:{index}/{all}"),
        });
    }
    None
}

fn containers(pod: &Value) -> Containers {
    let mut sum = Containers {
        status: match text(pod, &["status", "reason"]) {
            "" => text(pod, &["status", "phase"]).to_owned(),
            reason => reason.to_owned(),
        },
        ready: 0,
        restarts: 0,
        last_restart: None,
    };
    let gated = condition(pod, "PodScheduled").is_some_and(|c| c["reason"] == "SchedulingGated");
    if gated {
        "SchedulingGated".clone_into(&mut sum.status);
    }
    if let Some(status) = initialising(pod).filter(|_| !is_true(pod, "Initialized")) {
        sum.status = status;
        return sum;
    }
    let mut running = false;
    let statuses = list(pod, &["status", "containerStatuses"]);
    for status in statuses.iter().rev() {
        let state = &status["state"];
        sum.restarts += number(status, &["restartCount"]);
        let last = &status["lastState"]["terminated"]["finishedAt"];
        if last.is_string() {
            sum.last_restart = Some(last.clone());
        }
        let waiting = text(state, &["waiting", "reason"]);
        if !waiting.is_empty() {
            waiting.clone_into(&mut sum.status);
        } else if let Some(reason) = ended(state) {
            sum.status = reason;
        } else if status["ready"] == true && state["running"].is_object() {
            running = true;
            sum.ready += 1;
        }
    }
    if sum.status == "Completed" && running {
        let ready = is_true(pod, "Ready");
        if ready { "Running" } else { "NotReady" }.clone_into(&mut sum.status);
    }
    sum
}

fn pod(pod: &Value, now: Timestamp) -> Vec<Value> {
    let mut sum = containers(pod);
    if !meta_text(pod, "deletionTimestamp").is_empty() {
        if text(pod, &["status", "reason"]) == "NodeLost" {
            "Unknown".clone_into(&mut sum.status);
        } else if !matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut sum.status);
        }
    }
    let restarts = match sum.last_restart.and_then(|time| since(&time, now)) {
        Some(ago) if sum.restarts > 0 => format!("{} ({ago} ago)", sum.restarts),
        _ => sum.restarts.to_string(),
    };
    let gates = list(pod, &["spec", "readinessGates"]);
    let open = gates.iter().filter(|gate| is_true(pod, text(gate, &["conditionType"]))).count();
    let gates =
        if gates.is_empty() { "<none>".to_owned() } else { format!("{open}/{}", gates.len()) };
    let total = list(pod, &["spec", "containers"]).len();
    vec![
        json!(format!("{}/{total}", sum.ready)),
        json!(sum.status),
        json!(restarts),
        age_of(pod, now),
        text_or_placeholder(pod, &["status", "podIP"]),
        text_or_placeholder(pod, &["spec", "nodeName"]),
        text_or_placeholder(pod, &["status", "nominatedNodeName"]),
        json!(gates),
    ]
}

fn node(node: &Value, now: Timestamp) -> Vec<Value> {
    let mut status = match condition(node, "Ready").map(|condition| &condition["status"]) {
        Some(state) if state == "True" => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if node["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    let labels = node["metadata"]["labels"].as_object();
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    let roles = if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") };
    let address = |kind: &str| {
        let addresses = list(node, &["status", "addresses"]);
        let found = addresses.iter().find(|address| address["type"] == kind);
        found.map_or("<none>", |address| text(address, &["address"]))
    };
    let info = |key: &str| match text(node, &["status", "nodeInfo", key]) {
        "" => "<unknown>",
        text => text,
    };
    vec![
        json!(status),
        json!(roles),
        age_of(node, now),
        json!(text(node, &["status", "nodeInfo", "kubeletVersion"])),
        json!(address("InternalIP")),
        json!(address("ExternalIP")),
        json!(info("osImage")),
        json!(info("kernelVersion")),
        json!(info("containerRuntimeVersion")),
    ]
}
