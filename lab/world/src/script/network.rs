//! Failures of APIs and of the connections to them.

use std::time::Duration;

use jiff::SignedDuration;
use lab_apiserver::{ApiServer, Down, FaultAction, FaultRule, StaleView};

use super::{command::Wrong, objects, session::Session};
use crate::{
    pki,
    world::{Actor, lock},
};

/// The word for the management cluster's API.
const MANAGEMENT: &str = "management";

/// The connection of a process to an API.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    /// Key of the workload cluster; `None` for the management cluster.
    pub(super) api: Option<String>,
    pub(crate) actor: Actor,
}

impl Link {
    /// The only connection of an agent.
    pub(super) fn of_agent(actor: Actor) -> Self {
        let api = match &actor {
            Actor::Agent(key) => key.rsplit_once('/').map(|(cluster, _)| cluster.to_owned()),
            Actor::Controller
            | Actor::Standby
            | Actor::Capi
            | Actor::Updater
            | Actor::Provider
            | Actor::VersionProvider
            | Actor::CanonicalControllers => None,
        };
        Self { api, actor }
    }
}

/// Key of the workload cluster that a script names; `None` for the management cluster.
pub(super) fn api_key(session: &Session, name: &str) -> Result<Option<String>, Wrong> {
    if name == MANAGEMENT {
        return Ok(None);
    }
    objects::cluster_key(&session.world, name).map(Some)
}

fn server(session: &Session, name: &str) -> Result<ApiServer, Wrong> {
    objects::server(&session.world, (name != MANAGEMENT).then_some(name))
}

/// Stops an API server from answering.
pub(super) fn stop(session: &Session, name: &str) -> Result<String, Wrong> {
    server(session, name)?.faults().set_down(Some(Down::Refuse));
    Ok(format!("the API server of {name} does not answer"))
}

/// Makes an API server answer again.
pub(super) fn start(session: &Session, name: &str) -> Result<String, Wrong> {
    server(session, name)?.faults().set_down(None);
    // The environment has to write again.
    session.world.inner.woken.notify_one();
    Ok(format!("the API server of {name} answers"))
}

/// Makes the open streams to an API half-open.
pub(super) fn silence(session: &Session, name: &str) -> Result<String, Wrong> {
    let (host, port) = match api_key(session, name)? {
        None => (pki::MANAGEMENT_HOST.to_owned(), pki::MANAGEMENT_PORT),
        Some(key) => session.world.inner.endpoint(&key).ok_or_else(|| {
            let want = "a cluster whose API server has started";
            super::command::wrong("break streams", name, want)
        })?,
    };
    session.world.network().silence(&host, port);
    Ok(format!("open connections to the API server of {name} are silent"))
}

/// Makes an API server reject requests: those for `resource`, such as `pods/eviction`, or all.
pub(super) fn reject(
    session: &Session,
    name: &str,
    code: u16,
    resource: Option<&str>,
    times: u32,
) -> Result<String, Wrong> {
    let mut rule = FaultRule::next(FaultAction::Status(code)).times(times);
    if let Some(resource) = resource {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        rule = rule.resource(resource).subresource(subresource);
    }
    server(session, name)?.faults().add(rule);
    let of = resource.map(|resource| format!(" for {resource}")).unwrap_or_default();
    Ok(format!("the API server of {name} rejects {}{of} with {code}", requests(times)))
}

/// Makes an API server carry out requests without an answer.
pub(super) fn lose_answers(session: &Session, name: &str, times: u32) -> Result<String, Wrong> {
    let rule = FaultRule::next(FaultAction::RefuseAfterCommit).times(times);
    server(session, name)?.faults().add(rule);
    Ok(format!("the answers of the API server of {name} to {} are lost", requests(times)))
}

fn requests(times: u32) -> String {
    match times {
        1 => "one request".to_owned(),
        u32::MAX => "all requests".to_owned(),
        times => format!("{times} requests"),
    }
}

/// Delays every request to an API server.
pub(super) fn slow_down(
    session: &Session,
    name: &str,
    delay: SignedDuration,
) -> Result<String, Wrong> {
    let by = Duration::try_from(delay).unwrap_or_default();
    server(session, name)?.faults().set_latency(by);
    Ok(format!("the API server of {name} answers after {}", super::words::shown(delay)))
}

/// Disconnects a process from an API, until [`connect`].
pub(super) fn cut(session: &mut Session, link: Link) {
    session.cut.insert(link);
    keep_cut(session);
}

/// Connects a process to an API again.
pub(super) fn connect(session: &mut Session, link: &Link) {
    set_cut(session, link, false);
    session.cut.remove(link);
}

/// Disconnects the processes that are cut off, including those started since.
pub(super) fn keep_cut(session: &Session) {
    for link in &session.cut {
        set_cut(session, link, true);
    }
}

fn set_cut(session: &Session, link: &Link, cut: bool) {
    let server = match &link.api {
        None => Some(session.world.management().clone()),
        Some(cluster) => session.world.workload(cluster),
    };
    if let (Some(agent), Some(server)) = (user_agent(session, &link.actor), server) {
        server.faults().set_cut(&agent, cut);
    }
}

/// User agent of the running incarnation of a process.
fn user_agent(session: &Session, actor: &Actor) -> Option<String> {
    let processes = lock(&session.world.inner.processes);
    Some(actor.user_agent(processes.get(actor)?.incarnation))
}

/// Holds back what the running processes see of a kind, for `time` from now on.
pub(super) fn hold_back(
    session: &Session,
    cluster: Option<&str>,
    word: &str,
    time: SignedDuration,
) -> Result<String, Wrong> {
    let server = objects::server(&session.world, cluster)?;
    let resource = objects::kind(&server, word)?.resource();
    let until = session.world.now() + time;
    for (actor, incarnation) in session.world.processes() {
        server.faults().add_stale(StaleView {
            user_agent: actor.user_agent(incarnation),
            resource: resource.clone(),
            revision: server.revision(),
            until,
        });
    }
    Ok(format!("what is seen of {resource} stays as it is for {}", super::words::shown(time)))
}
