//! The output of `show`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use lab_simhost::k8sd::REFRESH;
use refit_kinds::{
    conditions,
    json::{flag, name, text, whole_condition},
};
use serde_json::Value;

use super::{
    command::{Reference, Show, Table, Wrong},
    field::Field,
    look::{self, newest_update},
    names::Names,
    objects,
    session::Session,
    table::table,
    words,
};
use crate::{
    receivers::Receivers,
    world::{World, lock, status::phase},
};

/// Identity of a machine: it distinguishes a machine that was kept from one that was replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    machine: String,
    provider: String,
    node: String,
}

/// The identities of all machines, by name.
pub(super) fn identities(world: &World) -> BTreeMap<String, Identity> {
    let machines = world.machines();
    machines.iter().map(|machine| (name(machine).to_owned(), identity(world, machine))).collect()
}

fn identity(world: &World, machine: &Value) -> Identity {
    let node = world.node_of(machine);
    Identity {
        machine: text(machine, "/metadata/uid").to_owned(),
        provider: text(machine, "/spec/providerID").to_owned(),
        node: node.map(|node| text(&node, "/metadata/uid").to_owned()).unwrap_or_default(),
    }
}

/// The output of `show`, with real names.
pub(super) fn show(session: &Session, what: &Show) -> Result<String, Wrong> {
    Ok(match what {
        Show::Table(Table::Machines) => machines(session),
        Show::Table(Table::Nodes) => nodes(session),
        Show::Table(Table::Hosts) => hosts(session),
        Show::Table(Table::Snaps) => snaps(session),
        Show::Table(Table::Pods) => pods(session),
        Show::Table(Table::Updates) => updates(session),
        Show::Table(Table::Groups) => groups(session),
        Show::Table(Table::Plans) => plans(session),
        Show::Table(Table::Received) => received(session),
        Show::Table(Table::Silences) => {
            let found = session.world.inner.alertmanager.silences(session.world.now());
            silences(&found, &session.names)
        }
        Show::Table(Table::Processes) => processes(session),
        Show::Steps(node) => steps(session, node),
        Show::Events(about) => events(session, about.as_ref())?,
        Show::Kind(cluster, kind, fields) => all_of(session, cluster.as_deref(), kind, fields)?,
        Show::Object(object, fields) => session.find(object)?.show(fields)?,
    })
}

fn strings<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// Sorts rows by script names; numbers in names are compared as numbers.
fn sorted(session: &Session, rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    sorted_by(&session.names, rows)
}

pub(super) fn sorted_by(names: &Names, mut rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    rows.sort_by_cached_key(|row| {
        let shown = names.shown(row.first().map_or("", String::as_str));
        natural(&shown)
    });
    // Replaced last, so that the column widths match the printed text.
    for row in &mut rows {
        for cell in row {
            *cell = names.shown(cell);
        }
    }
    rows
}

/// Sort key of a text in which 10 comes after 9.
fn natural(text: &str) -> Vec<(String, u64)> {
    text.split('-')
        .map(|part| match part.parse() {
            Ok(number) => (String::new(), number),
            Err(_) => (part.to_owned(), 0),
        })
        .collect()
}

fn node_state(node: &Value) -> String {
    let ready = whole_condition(node, conditions::READY).is_some_and(|c| c["status"] == "True");
    let cordoned = if flag(node, "/spec/unschedulable") { ",cordoned" } else { "" };
    format!("{}{cordoned}", if ready { "Ready" } else { "NotReady" })
}

fn machines(session: &Session) -> String {
    let world = &session.world;
    let first = session.first.as_ref();
    let mut gone: Vec<&str> = first.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    let rows = world
        .machines()
        .iter()
        .map(|machine| {
            gone.retain(|gone| *gone != name(machine));
            let node = world.node_of(machine);
            let node = node.as_deref();
            let before = first.and_then(|first| first.get(name(machine)));
            let same = match before {
                _ if first.is_none() => "-",
                Some(before) if *before == identity(world, machine) => "yes",
                Some(_) => "CHANGED",
                None => "new",
            };
            let boots = world.with_host(name(machine), |host| host.boots.to_string());
            let available = whole_condition(machine, conditions::AVAILABLE);
            let update =
                newest_update(world, machine).map(|update| format!("{:?}", phase(&update)));
            vec![
                name(machine).to_owned(),
                text(machine, "/spec/version").to_owned(),
                node.map_or("", |node| text(node, "/status/nodeInfo/kubeletVersion")).to_owned(),
                node.map(node_state).unwrap_or_default(),
                text(machine, "/status/phase").to_owned(),
                yes(available.is_some_and(|c| c["status"] == "True")).to_owned(),
                update.unwrap_or_default(),
                same.to_owned(),
                boots.unwrap_or_default(),
            ]
        })
        .collect();
    let header =
        ["MACHINE", "VERSION", "KUBELET", "NODE", "PHASE", "AVAILABLE", "UPDATE", "SAME", "BOOTS"];
    let mut out = table(&header, &sorted(session, rows));
    for name in gone {
        out.extend(["gone: ", name, "\n"]);
    }
    out
}

fn nodes(session: &Session) -> String {
    let rows = session
        .world
        .nodes()
        .iter()
        .map(|((_, name), node)| {
            let taints = node["spec"]["taints"].as_array();
            let taints: Vec<String> = taints
                .into_iter()
                .flatten()
                .map(|taint| format!("{}:{}", text(taint, "/key"), text(taint, "/effect")))
                .collect();
            let by = node["metadata"]["annotations"].get(refit_kinds::keys::CORDONED_BY);
            vec![
                name.clone(),
                node_state(node),
                text(node, "/status/nodeInfo/kubeletVersion").to_owned(),
                by.and_then(Value::as_str).unwrap_or_default().to_owned(),
                taints.join(","),
            ]
        })
        .collect();
    let header = ["NODE", "STATE", "KUBELET", "CORDONED-BY", "TAINTS"];
    table(&header, &sorted(session, rows))
}

fn hosts(session: &Session) -> String {
    let now = session.world.now();
    let rows = session
        .world
        .host_nodes()
        .iter()
        .filter_map(|node| {
            session.world.with_host(node, |host| {
                let package = |name: &str| {
                    host.installed(name).map(|version| version.to_string()).unwrap_or_default()
                };
                let runs: Vec<String> =
                    host.runs.iter().map(|(name, n)| format!("{name}={n}")).collect();
                vec![
                    node.clone(),
                    yes(host.is_up(now)).to_owned(),
                    host.boots.to_string(),
                    host.kubelet_version.clone(),
                    package("kubeadm"),
                    package("kubelet"),
                    runs.join(","),
                ]
            })
        })
        .collect();
    let header = ["HOST", "UP", "BOOTS", "RUNS-KUBELET", "KUBEADM", "KUBELET", "COMMANDS"];
    table(&header, &sorted(session, rows))
}

fn snaps(session: &Session) -> String {
    let hosts = lock(&session.world.inner.hosts);
    let rows = hosts.iter().filter_map(|(key, host)| {
        let k8sd = host.k8sd.as_ref()?;
        Some(vec![
            key.rsplit('/').next().unwrap_or(key).to_owned(),
            k8sd.installed().unwrap_or_default(),
            k8sd.changes().to_string(),
            k8sd.count(REFRESH).to_string(),
        ])
    });
    table(&["HOST", "INSTALLED", "REFRESHES", "REQUESTS"], &sorted(session, rows.collect()))
}

fn pods(session: &Session) -> String {
    let mut rows = Vec::new();
    for cluster in session.world.clusters() {
        let Some(server) = session.world.workload(&cluster) else {
            continue;
        };
        for pod in server.list_values("", "pods", None) {
            if text(&pod, "/metadata/namespace") == "kube-system" {
                continue;
            }
            let ready =
                whole_condition(&pod, conditions::READY).is_some_and(|c| c["status"] == "True");
            let ends = !text(&pod, "/metadata/deletionTimestamp").is_empty();
            let state = if ends { "ending" } else { yes(ready) };
            rows.push(strings([name(&pod), text(&pod, "/spec/nodeName"), state]));
        }
    }
    table(&["POD", "NODE", "READY"], &sorted(session, rows))
}

/// The duration between two times; empty if either is unknown.
fn took(from: &str, to: &str) -> String {
    match (from.parse::<Timestamp>(), to.parse::<Timestamp>()) {
        (Ok(from), Ok(to)) => words::shown(to.duration_since(from)),
        _ => String::new(),
    }
}

fn updates(session: &Session) -> String {
    let mut updates = session.world.node_updates();
    updates.sort_by_cached_key(|update| {
        let started = text(update, "/status/startedAt");
        let started = if started.is_empty() { "~" } else { started };
        (started.to_owned(), natural(&session.names.shown(name(update))))
    });
    let rows: Vec<Vec<String>> = updates
        .iter()
        .map(|update| {
            let status = |field: &str| text(update, &format!("/status/{field}"));
            let why: Vec<String> = look::blockers(update)
                .map(|blocker| text(blocker, "/message").to_owned())
                .collect();
            let why = if why.is_empty() {
                match status("failureReason") {
                    "" => String::new(),
                    reason => format!("{reason}: {}", status("failureMessage")),
                }
            } else {
                look::in_short(&why)
            };
            [
                name(update),
                text(update, "/spec/goal/kubernetesVersion"),
                status("role"),
                &format!("{:?}", phase(update)),
                status("startedAt"),
                &took(status("startedAt"), status("finishedAt")),
                &why,
            ]
            .iter()
            .map(|cell| session.names.shown(cell))
            .collect()
        })
        .collect();
    table(&["UPDATE", "GOAL", "ROLE", "PHASE", "STARTED", "TOOK", "WHY"], &rows)
}

fn groups(session: &Session) -> String {
    let mut lines = String::new();
    let mut rows = Vec::new();
    for group in session.world.update_groups() {
        let names = |list: &Value| {
            let list = list.as_array().into_iter().flatten();
            let names: Vec<&str> = list.map(|item| text(item, "/machine")).collect();
            names.join(",")
        };
        let status = |kind| whole_condition(&group, kind).map_or("", |c| text(c, "/status"));
        let blocked = whole_condition(&group, "Blocked").filter(|c| c["status"] == "True");
        rows.push(vec![
            name(&group).to_owned(),
            group["status"]["limit"].to_string(),
            names(&group["status"]["slots"]),
            names(&group["status"]["waiting"]),
            status("Progressing").to_owned(),
            blocked.map_or(status("Blocked"), |c| text(c, "/reason")).to_owned(),
        ]);
        let paths = group["status"]["uncovered"].as_array();
        for path in paths.into_iter().flatten().filter_map(Value::as_str) {
            lines.extend([name(&group), ": ", path, "\n"]);
        }
    }
    let header = ["GROUP", "LIMIT", "BUSY", "WAITING", "PROGRESSING", "BLOCKED"];
    format!("{}{lines}", table(&header, &sorted(session, rows)))
}

fn plans(session: &Session) -> String {
    let mut rows = Vec::new();
    for cluster in session.world.clusters() {
        let Some(server) = session.world.workload(&cluster) else {
            continue;
        };
        for plan in server.list_values(refit_kinds::refit::GROUP, "hostplans", None) {
            rows.push(vec![
                name(&plan).to_owned(),
                text(&plan, "/spec/nodeUpdate").to_owned(),
                text(&plan, "/spec/gate").to_owned(),
                yes(flag(&plan, "/spec/abort")).to_owned(),
                text(&plan, "/status/state").to_owned(),
                text(&plan, "/status/passed").to_owned(),
                text(&plan, "/status/facts/kubeletVersion").to_owned(),
                text(&plan, "/status/reportedAt").to_owned(),
            ]);
        }
    }
    let header = ["NODE", "UPDATE", "GATE", "ABORT", "STATE", "PASSED", "KUBELET", "REPORTED"];
    table(&header, &sorted(session, rows))
}

fn processes(session: &Session) -> String {
    let rows = session
        .world
        .processes()
        .iter()
        .map(|(actor, starts)| vec![actor.to_string(), starts.to_string()])
        .collect();
    table(&["PROCESS", "STARTS"], &sorted(session, rows))
}

fn steps(session: &Session, node: &str) -> String {
    let real = session.names.real(node);
    let machines = session.world.machines();
    let update = machines
        .iter()
        .find(|machine| name(machine) == real)
        .and_then(|machine| newest_update(&session.world, machine));
    let steps = update.as_ref().and_then(|update| update["status"]["steps"].as_array());
    let rows: Vec<Vec<String>> = steps
        .into_iter()
        .flatten()
        .map(|step| {
            let tries = step["attempt"].as_i64().filter(|tries| *tries > 0);
            let (from, to) = (text(step, "/startedAt"), text(step, "/finishedAt"));
            vec![
                text(step, "/name").to_owned(),
                text(step, "/state").to_owned(),
                tries.map(|tries| tries.to_string()).unwrap_or_default(),
                session.names.shown(from),
                took(from, to),
                session.names.shown(text(step, "/message")),
            ]
        })
        .collect();
    table(&["STEP", "STATE", "TRIES", "STARTED", "TOOK", "MESSAGE"], &rows)
}

fn events(session: &Session, about: Option<&Reference>) -> Result<String, Wrong> {
    let about = about.map(|about| session.find(about)).transpose()?;
    let mut events = session.world.management().list_values("", "events", None);
    events.retain(|event| {
        about.as_ref().is_none_or(|about| {
            text(event, "/involvedObject/kind") == about.kind.kind
                && text(event, "/involvedObject/name") == about.name
        })
    });
    events.sort_by_cached_key(|event| {
        let at = text(event, "/firstTimestamp").to_owned();
        (
            at,
            session.names.shown(text(event, "/involvedObject/name")),
            text(event, "/reason").to_owned(),
        )
    });
    let rows: Vec<Vec<String>> = events
        .iter()
        .map(|event| {
            let object = format!(
                "{}/{}",
                text(event, "/involvedObject/kind"),
                text(event, "/involvedObject/name")
            );
            [
                text(event, "/firstTimestamp"),
                text(event, "/type"),
                text(event, "/reason"),
                &object,
                text(event, "/message"),
            ]
            .iter()
            .map(|cell| session.names.shown(cell))
            .collect()
        })
        .collect();
    Ok(table(&["TIME", "TYPE", "REASON", "OBJECT", "MESSAGE"], &rows))
}

pub(super) fn silences(found: &[Value], names: &Names) -> String {
    let rows = found.iter().map(|silence| {
        let matchers = silence["matchers"].as_array().into_iter().flatten().map(|matcher| {
            let sign = match (flag(matcher, "/isEqual"), flag(matcher, "/isRegex")) {
                (true, false) => "=",
                (false, false) => "!=",
                (true, true) => "=~",
                (false, true) => "!~",
            };
            format!("{}{sign}{}", text(matcher, "/name"), text(matcher, "/value"))
        });
        let matchers = matchers.collect::<Vec<_>>().join(",");
        let of = |pointer| names.shown(text(silence, pointer));
        vec![
            of("/id"),
            of("/status/state"),
            of("/startsAt"),
            of("/endsAt"),
            matchers,
            of("/comment"),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    table(&["ID", "STATE", "STARTS", "ENDS", "MATCHERS", "COMMENT"], &rows)
}

/// What the receivers of notifications took, in that order.
fn received(session: &Session) -> String {
    let receivers = session.world.inner.receivers.as_ref();
    let messages = receivers.map(Receivers::messages).unwrap_or_default();
    let rows: Vec<Vec<String>> = messages
        .iter()
        .map(|message| {
            let at = session.names.offset(message.at);
            let cells = [&message.receiver.to_string(), &message.event, &message.text];
            std::iter::once(at).chain(cells.map(|cell| session.names.shown(cell))).collect()
        })
        .collect();
    table(&["TIME", "RECEIVER", "EVENT", "MESSAGE"], &rows)
}

fn all_of(
    session: &Session,
    cluster: Option<&str>,
    kind: &str,
    fields: &[Field],
) -> Result<String, Wrong> {
    objects::show_all(&objects::server(&session.world, cluster)?, &session.names, kind, fields)
}
