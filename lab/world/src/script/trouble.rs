//! Injects failures and ends them.

use jiff::{SignedDuration, Timestamp};
use lab_simhost::HostState;
use refit_agent::journal;
use refit_kinds::version::KubernetesVersion;

use super::{
    command::{How, Place, Process, Statement, Trouble, Wrong, wrong},
    k8sd,
    network::{self, Link},
    session::{Later, Session},
    words,
};
use crate::{
    provider::Misbehaviour,
    receivers::{Receivers, Refuses},
    world::{Actor, World, lock},
};

/// A scheduled event.
pub(super) enum Due {
    /// A command of the script.
    Statement(Box<Statement>),
    /// A failure with a limited duration ends.
    Mend(Place),
    /// A process starts again.
    Start(Actor),
}

/// The place of a failure, if it can have a limited duration.
pub(super) fn place(trouble: &Trouble) -> Option<Place> {
    match trouble {
        // A view catches up by itself.
        Trouble::Place(Place::View(..))
        | Trouble::Step { .. }
        | Trouble::Streams(_)
        | Trouble::Requests { .. }
        | Trouble::Answers { .. }
        | Trouble::Refresh { .. }
        | Trouble::Journal(_) => None,
        Trouble::Place(place) => Some(place.clone()),
    }
}

/// Schedules the end of a failure. A longer one that is there already keeps its own end.
pub(super) fn mend_later(session: &mut Session, place: Place, time: SignedDuration, line: usize) {
    let due = session.world.now() + time;
    let is_same = |later: &Later| matches!(&later.what, Due::Mend(other) if other.is_same(&place));
    if session.later.iter().any(|later| is_same(later) && later.due >= due) {
        return;
    }
    session.later.retain(|later| !is_same(later));
    session.later(due, line, Due::Mend(place), false);
}

/// Injects a failure, for `time` if it is limited; returns the output line.
pub(super) fn make(
    session: &mut Session,
    trouble: &Trouble,
    time: Option<SignedDuration>,
) -> Result<String, Wrong> {
    match trouble {
        Trouble::Step { node, step, how } => {
            with_host(session, node, |host| break_step(host, step, *how))?;
            let how = match how {
                How::Fails(u32::MAX) => "fails".to_owned(),
                How::Fails(times) => format!("fails {}", often(*times)),
                How::Hangs(u32::MAX) => "hangs".to_owned(),
                How::Hangs(times) => format!("hangs {}", often(*times)),
                How::Slow(times) => format!("takes {times} times as long"),
            };
            Ok(format!("step {step} of {node} {how}"))
        }
        Trouble::Streams(api) => network::silence(session, api),
        Trouble::Requests { api, code, resource, times } => {
            network::reject(session, api, *code, resource.as_deref(), *times)
        }
        Trouble::Answers { api, times } => network::lose_answers(session, api, *times),
        Trouble::Journal(node) => tear_journal(session, node),
        Trouble::Refresh { node, how, times } => k8sd::misbehave(session, node, *how, *times),
        Trouble::Place(place) => break_place(session, place, time),
    }
}

/// Brings a host to a version, without an agent.
pub(super) fn upgrade(session: &mut Session, node: &str, version: &str) -> Result<(), Wrong> {
    version.parse::<KubernetesVersion>().map_err(|_| wrong("VERSION", version, "vX.Y.Z"))?;
    let now = session.world.now();
    with_host(session, node, |host| host.upgrade(version, now))
}

fn break_place(
    session: &mut Session,
    place: &Place,
    time: Option<SignedDuration>,
) -> Result<String, Wrong> {
    Ok(match place {
        Place::Host(node) => {
            return Err(wrong("break host", node.as_str(), "step STEP after NODE"));
        }
        Place::Disk(node) => {
            with_host(session, node, |host| host.troubles.disk_full = true)?;
            format!("the disk of {node} is full")
        }
        Place::Node(node) => {
            let agent = agent(session, node)?;
            if with_host(session, node, |host| host.down_until.is_some())? {
                return Err(wrong("break node", node.as_str(), "a node that is on"));
            }
            session.world.inner.dismiss(&agent);
            let now = session.world.now();
            with_host(session, node, |host| host.power_off(now))?;
            format!("{node} is off")
        }
        Place::K8sd(node) => k8sd::stop(session, node)?,
        Place::Agent(node) => {
            let link = Link::of_agent(agent(session, node)?);
            network::cut(session, link);
            format!("the agent of {node} cannot reach its API")
        }
        Place::Api(name) => network::stop(session, name)?,
        Place::Latency(name, delay) => network::slow_down(session, name, *delay)?,
        Place::Link(process, name) => {
            let (actor, title) = actor_of(session, process)?;
            let link = Link { api: network::api_key(session, name)?, actor };
            network::cut(session, link);
            format!("{title} cannot reach the API server of {name}")
        }
        Place::Clock(process, by) => {
            let (actor, title) = actor_of(session, process)?;
            session.world.inner.step_clock(&actor, by.as_secs());
            let way = if by.is_negative() { "behind" } else { "ahead" };
            format!("the clock of {title} is {} {way}", words::shown(by.abs()))
        }
        Place::Provider(how) => {
            actor_of(session, &Process::Provider)?;
            behave(session, *how)
        }
        Place::Alert(name, labels) => {
            session.world.set_alert(name, Some(labels.clone()));
            format!("alert {name} fires")
        }
        Place::Query(text) => {
            session.world.inner.prometheus.set_zero(text, true);
            format!("queries with {text} have the value 0")
        }
        Place::Prometheus => {
            session.world.inner.prometheus.set_down(true);
            "Prometheus answers with an error".to_owned()
        }
        Place::Receiver(receiver, how) => {
            receivers(session)?.set_trouble(*receiver, Some(*how));
            match how {
                Refuses::Answer => format!("{receiver} takes messages and does not answer"),
                Refuses::With(status) => format!("{receiver} answers with {}", status.as_u16()),
            }
        }
        Place::Alertmanager => {
            session.world.inner.alertmanager.set_down(true);
            "Alertmanager answers with an error".to_owned()
        }
        Place::Silence(text) => {
            let ended = session.world.inner.alertmanager.expire(text, session.world.now());
            format!("{ended} silences were ended by an operator")
        }
        Place::UpdateServer => {
            session.world.inner.update_server.set_down(true);
            "the server of the version graph answers with an error".to_owned()
        }
        Place::View(cluster, kind) => {
            network::hold_back(session, cluster.as_deref(), kind, time.unwrap_or_default())?
        }
    })
}

fn receivers(session: &Session) -> Result<&Receivers, Wrong> {
    let want = "a world that is loaded with receivers: load FILE... with receivers";
    session.world.inner.receivers.as_ref().ok_or_else(|| wrong("receiver", "none", want))
}

/// Lets the provider of memory misbehave, or behave again: its process starts again.
fn behave(session: &Session, how: Option<Misbehaviour>) -> String {
    *lock(&session.world.inner.misbehaviour) = how;
    session.world.kill(&Actor::Provider);
    match how {
        Some(how) => format!("the provider {}", how.sentence()),
        None => "the provider keeps to the contract".to_owned(),
    }
}

/// Appends half a record to an agent's journal, as a power cut during a write does. The records
/// before it have been synced.
fn tear_journal(session: &mut Session, node: &str) -> Result<String, Wrong> {
    let agent = agent(session, node)?;
    let torn = || {
        let Actor::Agent(key) = &agent else {
            return None;
        };
        let disk = lock(&session.world.inner.hosts).get(key)?.disk.clone();
        let mut disk = lock(&disk);
        let records = disk.files.get_mut(journal::PATH).filter(|records| !records.is_empty())?;
        let last = records.trim_end().rfind('\n').map_or(0, |end| end + 1);
        let half = records.floor_char_boundary(last.midpoint(records.len()));
        let torn = records[last..half].to_owned();
        records.push_str(&torn);
        Some(())
    };
    torn().ok_or_else(|| wrong("journal", node, "a host whose agent has written its journal"))?;
    session.world.kill(&agent);
    Ok(format!("the last record in the journal of {node} is torn"))
}

/// How long the effect of a failure without a time limit may last: a silent stream is noticed by
/// the idle timeout of a watch.
#[cfg(feature = "sabotage")]
pub(super) const LINGERS: SignedDuration = SignedDuration::from_mins(6);

/// Whether a failure impairs an API or a process of Refit; the other failures are of hosts.
#[cfg(feature = "sabotage")]
pub(super) fn impairs(trouble: &Trouble) -> bool {
    match trouble {
        Trouble::Step { .. } | Trouble::Journal(_) | Trouble::Refresh { .. } => false,
        Trouble::Streams(_) | Trouble::Requests { .. } | Trouble::Answers { .. } => true,
        Trouble::Place(place) => match place {
            // What a provider does is Refit's to handle.
            Place::Host(_)
            | Place::Disk(_)
            | Place::Node(_)
            | Place::Agent(_)
            | Place::K8sd(_)
            | Place::Provider(_)
            | Place::Alert(..)
            | Place::Query(_)
            | Place::Receiver(..)
            | Place::Prometheus
            | Place::Alertmanager
            | Place::Silence(_)
            | Place::UpdateServer => false,
            Place::Api(_)
            | Place::Latency(..)
            | Place::Link(..)
            | Place::Clock(..)
            | Place::View(..) => true,
        },
    }
}

fn often(times: u32) -> String {
    match times {
        1 => "once".to_owned(),
        times => format!("{times} times"),
    }
}

fn break_step(host: &mut HostState, step: &str, how: How) {
    match how {
        How::Fails(times) => host.break_step(step, times),
        How::Hangs(times) => {
            host.troubles.hang.insert(step.to_owned(), times);
        }
        How::Slow(times) => {
            host.troubles.slow.insert(step.to_owned(), times);
        }
    }
}

/// Ends a failure; returns the output line, and the process that starts as a result, with the time.
pub(super) fn mend(
    session: &mut Session,
    place: &Place,
) -> Result<(String, Option<(Timestamp, Actor)>), Wrong> {
    let what = match place {
        Place::Host(node) => {
            with_host(session, node, HostState::mend)?;
            format!("{node} is mended")
        }
        Place::Disk(node) => {
            with_host(session, node, |host| host.troubles.disk_full = false)?;
            format!("the disk of {node} has free space")
        }
        Place::Node(node) => {
            let agent = agent(session, node)?;
            let now = session.world.now();
            let boot = with_host(session, node, |host| host.power_on(now))?;
            let what = match boot {
                Some(_) => format!("{node} boots"),
                None => format!("{node} is already on"),
            };
            return Ok((what, boot.map(|at| (at, agent))));
        }
        Place::K8sd(node) => k8sd::mend(session, node)?,
        Place::Agent(node) => {
            network::connect(session, &Link::of_agent(agent(session, node)?));
            format!("the agent of {node} can reach its API")
        }
        Place::Api(name) => network::start(session, name)?,
        Place::Latency(name, _) => {
            network::slow_down(session, name, SignedDuration::ZERO)?;
            format!("the API server of {name} answers without delay")
        }
        Place::Link(process, name) => {
            let (actor, title) = actor_of(session, process)?;
            network::connect(session, &Link { api: network::api_key(session, name)?, actor });
            format!("{title} can reach the API server of {name}")
        }
        Place::Clock(process, _) => {
            let (actor, title) = actor_of(session, process)?;
            session.world.inner.step_clock(&actor, 0);
            format!("the clock of {title} is right")
        }
        Place::Provider(_) => {
            actor_of(session, &Process::Provider)?;
            behave(session, None)
        }
        Place::Alert(name, _) => {
            session.world.set_alert(name, None);
            format!("alert {name} has ended")
        }
        Place::Query(text) => {
            session.world.inner.prometheus.set_zero(text, false);
            format!("queries with {text} have the value 1")
        }
        Place::Prometheus => {
            session.world.inner.prometheus.set_down(false);
            "Prometheus answers".to_owned()
        }
        Place::Receiver(receiver, _) => {
            receivers(session)?.set_trouble(*receiver, None);
            format!("{receiver} takes messages")
        }
        Place::Alertmanager => {
            session.world.inner.alertmanager.set_down(false);
            "Alertmanager answers".to_owned()
        }
        Place::Silence(text) => {
            return Err(wrong("mend silence", text, "no mend: a silence that was ended stays so"));
        }
        Place::UpdateServer => {
            session.world.inner.update_server.set_down(false);
            "the server of the version graph answers".to_owned()
        }
        Place::View(_, kind) => {
            return Err(wrong("mend view", kind.as_str(), "no mend: a view catches up by itself"));
        }
    };
    Ok((what, None))
}

/// The actor that a script names, and its name in the output.
fn actor_of(session: &Session, process: &Process) -> Result<(Actor, String), Wrong> {
    Ok(match process {
        Process::Controller => (Actor::Controller, "the controller".to_owned()),
        Process::Standby => {
            if !session.world.inner.two_controllers {
                let want = "a world that is loaded with standby: load FILE... with standby";
                return Err(wrong("process", "standby", want));
            }
            (Actor::Standby, "the standby".to_owned())
        }
        Process::Updater => {
            if !session.world.inner.others.contains(&Actor::Updater) {
                let want = "a world that is loaded with updater: load FILE... with updater";
                return Err(wrong("process", "updater", want));
            }
            (Actor::Updater, "the updater".to_owned())
        }
        Process::Provider => {
            if !session.world.inner.others.contains(&Actor::Provider) {
                let want = "a world that is loaded with provider: load FILE... with provider";
                return Err(wrong("process", "provider", want));
            }
            (Actor::Provider, "the provider".to_owned())
        }
        Process::VersionProvider => {
            if !session.world.inner.others.contains(&Actor::VersionProvider) {
                let want = "a world that is loaded with version-provider";
                return Err(wrong("process", "version-provider", want));
            }
            (Actor::VersionProvider, "the version provider".to_owned())
        }
        Process::CanonicalControllers => {
            if !session.world.inner.others.contains(&Actor::CanonicalControllers) {
                let want = "a world that is loaded with canonical-controllers";
                return Err(wrong("process", "canonical-controllers", want));
            }
            (Actor::CanonicalControllers, "Canonical's controllers".to_owned())
        }
        Process::Capi => (Actor::Capi, "Cluster API".to_owned()),
        Process::Agent(node) => (agent(session, node)?, format!("the agent of {node}")),
    })
}

/// Kills a process. With `for_long` it stays down until the caller starts it. Returns the output
/// line.
pub(super) fn kill(
    session: &mut Session,
    process: &Process,
    for_long: bool,
) -> Result<(String, Actor), Wrong> {
    let (actor, name) = actor_of(session, process)?;
    if for_long {
        session.world.inner.dismiss(&actor);
        if actor.is_controller() {
            session.world.inner.close_hooks(&actor);
        }
    } else {
        session.world.kill(&actor);
    }
    Ok((format!("{name} is killed"), actor))
}

/// Starts a process, if its host still exists.
pub(super) fn start(world: &World, actor: &Actor) {
    let there = match actor {
        Actor::Agent(key) => lock(&world.inner.hosts).contains_key(key),
        _ => true,
    };
    if there {
        world.inner.supervise(actor);
    }
}

fn agent(session: &Session, node: &str) -> Result<Actor, Wrong> {
    let real = session.names.real(node);
    session.world.agent(&real).ok_or_else(|| no_host(session, node))
}

fn with_host<T>(
    session: &Session,
    node: &str,
    act: impl FnOnce(&mut HostState) -> T,
) -> Result<T, Wrong> {
    let real = session.names.real(node);
    session.world.with_host(&real, act).ok_or_else(|| no_host(session, node))
}

fn no_host(session: &Session, node: &str) -> Wrong {
    let hosts = session.world.host_nodes().join(", ");
    wrong("host", node, format!("one that has booted: {hosts}"))
}
