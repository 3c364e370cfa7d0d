//! Injects failures and ends them.

use jiff::Timestamp;
use lab_apiserver::Down;
use lab_simhost::HostState;

use super::{
    command::{How, Place, Process, Statement, Trouble, Wrong, wrong},
    objects,
    session::Session,
};
use crate::{
    pki,
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
        Trouble::Place(place) => Some(place.clone()),
        Trouble::Step { .. } => None,
    }
}

/// Injects a failure; returns the output line.
pub(super) fn make(session: &mut Session, trouble: &Trouble) -> Result<String, Wrong> {
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
        Trouble::Place(Place::Host(node)) => {
            Err(wrong("break host", node.as_str(), "step STEP after NODE"))
        }
        Trouble::Place(Place::Disk(node)) => {
            with_host(session, node, |host| host.troubles.disk_full = true)?;
            Ok(format!("the disk of {node} is full"))
        }
        Trouble::Place(Place::Node(node)) => {
            let agent = agent(session, node)?;
            session.world.inner.dismiss(&agent);
            let now = session.world.now();
            with_host(session, node, |host| host.power_off(now))?;
            Ok(format!("{node} is off"))
        }
        Trouble::Place(Place::Agent(node)) => {
            let agent = agent(session, node)?;
            if let Actor::Agent(key) = agent {
                session.mute.insert(key);
            }
            keep_mute(session);
            Ok(format!("the agent of {node} cannot reach its API"))
        }
        Trouble::Place(Place::Api(name)) => {
            api(session, name, Some(Down::Refuse))?;
            Ok(format!("the API server of {name} does not answer"))
        }
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
    Ok(match place {
        Place::Host(node) => {
            with_host(session, node, HostState::mend)?;
            (format!("{node} is mended"), None)
        }
        Place::Disk(node) => {
            with_host(session, node, |host| host.troubles.disk_full = false)?;
            (format!("the disk of {node} has free space"), None)
        }
        Place::Node(node) => {
            let agent = agent(session, node)?;
            let now = session.world.now();
            let boot = with_host(session, node, |host| host.power_on(now))?;
            let what = match boot {
                Some(_) => format!("{node} boots"),
                None => format!("{node} is already on"),
            };
            (what, boot.map(|at| (at, agent)))
        }
        Place::Agent(node) => {
            if let Actor::Agent(key) = agent(session, node)? {
                cut(session, &key, false);
                session.mute.remove(&key);
            }
            (format!("the agent of {node} can reach its API"), None)
        }
        Place::Api(name) => {
            api(session, name, None)?;
            (format!("the API server of {name} answers"), None)
        }
    })
}

fn api(session: &Session, name: &str, down: Option<Down>) -> Result<(), Wrong> {
    let cluster = (name != "management").then_some(name);
    let server = objects::server(&session.world, cluster)?;
    server.faults().set_down(down);
    // The environment has to write again.
    session.world.inner.woken.notify_one();
    Ok(())
}

/// Disconnects the agents that are muted, including agents started since.
pub(super) fn keep_mute(session: &Session) {
    for key in &session.mute {
        cut(session, key, true);
    }
}

fn cut(session: &Session, key: &str, mute: bool) {
    let actor = Actor::Agent(key.to_owned());
    let incarnation = {
        let processes = lock(&session.world.inner.processes);
        processes.get(&actor).map(|running| running.incarnation)
    };
    let cluster = key.rsplit_once('/').map_or("", |(cluster, _)| cluster);
    if let (Some(incarnation), Some(server)) = (incarnation, session.world.workload(cluster)) {
        server.faults().set_cut(&actor.user_agent(incarnation), mute);
    }
}

/// Kills a process. With `for_long` it stays down until the caller starts it. Returns the output
/// line.
pub(super) fn kill(
    session: &mut Session,
    process: &Process,
    for_long: bool,
) -> Result<(String, Actor), Wrong> {
    let (actor, name) = match process {
        Process::Controller => (Actor::Controller, "the controller".to_owned()),
        Process::Capi => (Actor::Capi, "Cluster API".to_owned()),
        Process::Agent(node) => (agent(session, node)?, format!("the agent of {node}")),
    };
    if for_long {
        session.world.inner.dismiss(&actor);
        if actor == Actor::Controller {
            session.world.inner.network.close(pki::HOOK_HOST, pki::HOOK_PORT);
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
