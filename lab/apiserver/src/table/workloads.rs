//! Deployments, the sets, and jobs.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age::{human, since};
use super::cells::{NONE, age_of, containers, labels, number, selector, size, text_or_none};
use super::{AGE, Col, Printer, plain};
use crate::object::{meta_text, text};

const CONTAINERS: Col = Col("Containers", "string", 1);
const IMAGES: Col = Col("Images", "string", 1);
const SELECTOR: Col = Col("Selector", "string", 1);

static DEPLOYMENT: Printer = plain(
    &[
        Col("Ready", "string", 0),
        Col("Up-to-date", "integer", 0),
        Col("Available", "integer", 0),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    deployment,
);

static REPLICA_SET: Printer = plain(
    &[
        Col("Desired", "integer", 0),
        Col("Current", "integer", 0),
        Col("Ready", "integer", 0),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    replica_set,
);

static DAEMON_SET: Printer = plain(
    &[
        Col("Desired", "integer", 0),
        Col("Current", "integer", 0),
        Col("Ready", "integer", 0),
        Col("Up-to-date", "integer", 0),
        Col("Available", "integer", 0),
        Col("Node Selector", "string", 0),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    daemon_set,
);

static STATEFUL_SET: Printer =
    plain(&[Col("Ready", "string", 0), AGE, CONTAINERS, IMAGES], stateful_set);

static REVISION: Printer =
    plain(&[Col("Controller", "string", 0), Col("Revision", "string", 0), AGE], revision);

static JOB: Printer = plain(
    &[
        Col("Status", "string", 0),
        Col("Completions", "string", 0),
        Col("Duration", "string", 0),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    job,
);

static CRON_JOB: Printer = plain(
    &[
        Col("Schedule", "string", 0),
        Col("Timezone", "string", 0),
        Col("Suspend", "boolean", 0),
        Col("Active", "integer", 0),
        Col("Last Schedule", "string", 0),
        AGE,
        CONTAINERS,
        IMAGES,
    ],
    cron_job,
);

pub(super) fn printer(kind: &str) -> Option<&'static Printer> {
    Some(match kind {
        "Deployment" => &DEPLOYMENT,
        "ReplicaSet" => &REPLICA_SET,
        "DaemonSet" => &DAEMON_SET,
        "StatefulSet" => &STATEFUL_SET,
        "ControllerRevision" => &REVISION,
        "Job" => &JOB,
        "CronJob" => &CRON_JOB,
        _ => return None,
    })
}

fn deployment(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(&object["spec"]["template"]);
    let ready = number(object, &["status", "readyReplicas"]);
    vec![
        json!(format!("{ready}/{}", number(object, &["spec", "replicas"]))),
        json!(number(object, &["status", "updatedReplicas"])),
        json!(number(object, &["status", "availableReplicas"])),
        age_of(object, now),
        names,
        images,
        json!(selector(&object["spec"]["selector"])),
    ]
}

fn replica_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(&object["spec"]["template"]);
    vec![
        json!(number(object, &["spec", "replicas"])),
        json!(number(object, &["status", "replicas"])),
        json!(number(object, &["status", "readyReplicas"])),
        age_of(object, now),
        names,
        images,
        json!(selector(&object["spec"]["selector"])),
    ]
}

fn daemon_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(&object["spec"]["template"]);
    let status = |key: &str| json!(number(object, &["status", key]));
    vec![
        status("desiredNumberScheduled"),
        status("currentNumberScheduled"),
        status("numberReady"),
        status("updatedNumberScheduled"),
        status("numberAvailable"),
        json!(labels(&object["spec"]["template"]["spec"]["nodeSelector"])),
        age_of(object, now),
        names,
        images,
        json!(selector(&object["spec"]["selector"])),
    ]
}

fn stateful_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(&object["spec"]["template"]);
    let ready = number(object, &["status", "readyReplicas"]);
    vec![
        json!(format!("{ready}/{}", number(object, &["spec", "replicas"]))),
        age_of(object, now),
        names,
        images,
    ]
}

fn revision(object: &Value, now: Timestamp) -> Vec<Value> {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let owner = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    let owner = owner.map_or_else(
        || NONE.to_owned(),
        |owner| {
            let kind = text(owner, &["kind"]).to_ascii_lowercase();
            let version = text(owner, &["apiVersion"]);
            let group = version.split_once('/').map_or("", |(group, _)| group);
            let dot = if group.is_empty() { "" } else { "." };
            format!("{kind}{dot}{group}/{}", text(owner, &["name"]))
        },
    );
    vec![json!(owner), json!(number(object, &["revision"]).to_string()), age_of(object, now)]
}

fn job(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(&object["spec"]["template"]);
    let is = |kind| super::cells::condition(object, kind).is_some_and(|c| c["status"] == "True");
    let status = match [("Complete", "Complete"), ("Failed", "Failed"), ("Suspended", "Suspended")]
        .into_iter()
        .find(|(kind, _)| is(kind))
    {
        Some((_, status)) => status,
        None if !meta_text(object, "deletionTimestamp").is_empty() => "Terminating",
        None => "Running",
    };
    let done = number(object, &["status", "succeeded"]);
    let wanted = match object["spec"]["completions"].as_i64() {
        Some(wanted) => wanted.to_string(),
        None => match number(object, &["spec", "parallelism"]) {
            ..=1 => "1".to_owned(),
            parallel => format!("1 of {parallel}"),
        },
    };
    let time = |key: &str| text(object, &["status", key]).parse::<Timestamp>().ok();
    let duration = time("startTime").map_or_else(String::new, |start| {
        let end = time("completionTime").unwrap_or(now);
        human(end.duration_since(start).as_secs())
    });
    vec![
        json!(status),
        json!(format!("{done}/{wanted}")),
        json!(duration),
        age_of(object, now),
        names,
        images,
        json!(selector(&object["spec"]["selector"])),
    ]
}

fn cron_job(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(&object["spec"]["jobTemplate"]["spec"]["template"]);
    let last = since(&object["status"]["lastScheduleTime"], now);
    vec![
        text_or_none(object, &["spec", "schedule"]),
        text_or_none(object, &["spec", "timeZone"]),
        json!((object["spec"]["suspend"] == true).to_string()),
        json!(size(object, &["status", "active"])),
        json!(last.unwrap_or_else(|| NONE.to_owned())),
        age_of(object, now),
        names,
        images,
    ]
}
