//! The output of `show`.

use jiff::Timestamp;
use refit_kinds::json::text;
use refit_openshift::upgrade_config::NAMESPACE;
use serde_json::Value;

use super::{command::Show, run::Session};
use crate::script::{
    command::Wrong,
    objects::{Found, show_all},
    show::silences,
    table::table,
};

/// The output of `show`.
pub(super) fn show(session: &mut Session, what: &Show) -> Result<String, Wrong> {
    let world = &session.world;
    Ok(match what {
        Show::Upgrade => upgrade(session),
        Show::Policies => policies(session),
        Show::Logs => logs(session),
        Show::Silences => silences(&world.silences(), &session.names),
        Show::Metrics(prefix) => metrics(session, prefix),
        Show::History => session.history.show(&session.names),
        Show::Kind(kind, fields) => show_all(world.server(), &session.names, kind, fields)?,
        Show::Object(object, fields) => {
            Found::on(world.server().clone(), object, NAMESPACE)?.show(fields)?
        }
    })
}

/// A table in which times are offsets.
fn shown(session: &Session, header: &[&str], rows: &[Vec<&str>]) -> String {
    let names = &session.names;
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| names.shown(cell)).collect()).collect();
    table(header, &rows)
}

fn upgrade(session: &Session) -> String {
    let upgrade = session.world.upgrade().unwrap_or_default();
    let entries = upgrade["status"]["history"].as_array().map_or(&[][..], Vec::as_slice);
    let fields = [
        "version",
        "precedingVersion",
        "phase",
        "startTime",
        "completeTime",
        "workerStartTime",
        "workerCompleteTime",
    ];
    let cells = |value, fields: &[&str]| -> Vec<&str> {
        fields.iter().map(|field| text(value, &format!("/{field}"))).collect()
    };
    let rows: Vec<Vec<&str>> = entries.iter().map(|entry| cells(entry, &fields)).collect();
    let header = [
        "VERSION",
        "FROM",
        "PHASE",
        "STARTED",
        "COMPLETED",
        "WORKERS-STARTED",
        "WORKERS-COMPLETED",
    ];
    let mut out = shown(session, &header, &rows);
    for entry in entries {
        let conditions = entry["conditions"].as_array().into_iter().flatten();
        let fields = ["type", "status", "startTime", "completeTime", "message"];
        let rows: Vec<Vec<&str>> = conditions.map(|one| cells(one, &fields)).collect();
        let header = ["CONDITION", "STATUS", "STARTED", "COMPLETED", "MESSAGE"];
        out.push_str(&shown(session, &header, &rows));
    }
    out
}

fn policies(session: &Session) -> String {
    let policies = session.world.ocm().policies();
    let times: Vec<String> =
        policies.values().map(|one| session.names.offset(one.next_run)).collect();
    let rows = policies.iter().zip(&times).map(|((id, policy), time)| {
        vec![&**id, &policy.version, time, &policy.state, &policy.description]
    });
    let rows: Vec<Vec<&str>> = rows.collect();
    shown(session, &["POLICY", "VERSION", "NEXT-RUN", "STATE", "DESCRIPTION"], &rows)
}

fn logs(session: &Session) -> String {
    let logs = session.world.ocm().logs();
    let fields = ["/timestamp", "/severity", "/summary", "/description"];
    let rows: Vec<Vec<&str>> =
        logs.iter().map(|log| fields.map(|field| text(log, field)).to_vec()).collect();
    shown(session, &["TIME", "SEVERITY", "SUMMARY", "DESCRIPTION"], &rows)
}

/// The metrics that were scraped last. Those that are times are shown as such.
fn metrics(session: &Session, prefix: &str) -> String {
    let offset = |value: &str| {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a fraction of a second does not count"
        )]
        let seconds = value.parse::<f64>().ok()?.round() as i64;
        Some(session.names.offset(Timestamp::from_second(seconds).ok()?))
    };
    let mut rows: Vec<Vec<String>> = session
        .world
        .site
        .prometheus
        .series()
        .into_iter()
        .filter(|(series, _)| series.starts_with(prefix))
        .map(|(series, value)| {
            let is_time = series.split('{').next().is_some_and(|name| name.ends_with("_timestamp"));
            let time = is_time.then(|| offset(&value)).flatten();
            vec![session.names.shown(&series), time.unwrap_or(value)]
        })
        .collect();
    rows.sort();
    table(&["METRIC", "VALUE"], &rows)
}

/// What an upgrade waits for: its phase, and its conditions that are not true.
pub(super) fn obstacles(session: &Session) -> Vec<String> {
    let Some(upgrade) = session.world.upgrade() else {
        return vec!["there is no UpgradeConfig".to_owned()];
    };
    let entry = &upgrade["status"]["history"][0];
    let conditions = entry["conditions"].as_array().into_iter().flatten();
    let waiting = conditions.filter(|one: &&Value| text(one, "/status") != "True");
    let waiting = waiting.map(|one| format!("{}: {}", text(one, "/type"), text(one, "/message")));
    let phase = format!("phase {}", text(entry, "/phase"));
    std::iter::once(phase).chain(waiting).map(|line| session.names.shown(&line)).collect()
}
