//! Processes of a world: their identities and the kill switch of each incarnation.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use lab_apiserver::ApiServer;
use lab_simhost::k8sd::CERTIFICATES_APPROVE;
use refit_runtime::gate::{Effect, Fate, Gate};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

/// How long a process that died takes to restart.
pub const RESTART_DELAY: Duration = Duration::from_secs(2);

/// A process of Refit or of the Cluster API stand-in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Actor {
    /// refit-controller.
    Controller,
    /// The second replica of refit-controller, if there are two.
    Standby,
    /// refit-capi.
    Capi,
    /// The server of `examples/hook-updater`.
    Updater,
    /// `examples/provider`.
    Provider,
    /// A provider that brings machines to versions, in place of the agents.
    VersionProvider,
    /// Canonical's controllers.
    CanonicalControllers,
    /// refit-agent on the host with this key.
    Agent(String),
}

impl Actor {
    /// User agent of one incarnation.
    pub(crate) fn user_agent(&self, incarnation: u32) -> String {
        match self {
            Self::Controller => format!("refit-controller/{incarnation}"),
            Self::Standby => format!("refit-controller/{incarnation} (standby)"),
            Self::Capi => format!("refit-capi/{incarnation}"),
            Self::Updater => format!("hook-updater/{incarnation}"),
            Self::Provider => format!("memory-provider/{incarnation}"),
            Self::VersionProvider => format!("version-provider/{incarnation}"),
            Self::CanonicalControllers => format!("canonical-controllers/{incarnation}"),
            Self::Agent(host) => format!("refit-agent/{incarnation} ({host})"),
        }
    }

    /// Whether it is a replica of refit-controller.
    pub(crate) fn is_controller(&self) -> bool {
        matches!(self, Self::Controller | Self::Standby)
    }

    /// Whether one process may do the work of the other: replicas share their work.
    fn stands_for(&self, other: &Self) -> bool {
        self == other || (self.is_controller() && other.is_controller())
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller => f.write_str("controller"),
            Self::Standby => f.write_str("standby"),
            Self::Capi => f.write_str("capi"),
            Self::Updater => f.write_str("updater"),
            Self::Provider => f.write_str("provider"),
            Self::VersionProvider => f.write_str("version-provider"),
            Self::CanonicalControllers => f.write_str("canonical-controllers"),
            Self::Agent(host) => write!(f, "agent/{}", host.rsplit('/').next().unwrap_or(host)),
        }
    }
}

/// How a process dies relative to an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Side {
    /// The process dies, and the effect does not happen.
    Before,
    /// The effect happens, but the process dies before it receives the response.
    After,
    /// The process is paused before the effect and performs it long after its Lease has expired.
    Paused,
    /// The other replica dies before the effect; the process continues.
    Other,
    /// Both replicas die before the effect.
    Both,
    /// As before, and the process stays down until the harness starts it.
    BeforeForGood,
    /// As after, and the process stays down until the harness starts it.
    AfterForGood,
}

impl Side {
    fn is_after(self) -> bool {
        matches!(self, Self::After | Self::AfterForGood)
    }

    /// Whether the process stays down.
    pub(crate) fn is_for_good(self) -> bool {
        matches!(self, Self::BeforeForGood | Self::AfterForGood)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "before",
            Self::After => "after",
            Self::Paused => "paused before",
            Self::Other => "with the other replica killed before",
            Self::Both => "with the other replica before",
            Self::BeforeForGood => "for good before",
            Self::AfterForGood => "for good after",
        })
    }
}

/// An effect at which a process will die.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The process.
    pub actor: Actor,
    /// The effect; the first of its kind triggers the kill.
    pub effect: Effect,
    /// The side of the effect.
    pub side: Side,
}

impl Kill {
    fn is_for(&self, actor: &Actor, effect: &Effect) -> bool {
        self.actor.stands_for(actor)
            && (self.effect == *effect || approves(&self.effect) && approves(effect))
    }
}

/// Whether an effect approves the certificates of a worker: any Ready member of the control plane does so.
fn approves(effect: &Effect) -> bool {
    match effect {
        Effect::Api { path, .. } => path.ends_with(CERTIFICATES_APPROVE),
        Effect::Journal { .. } | Effect::Host { .. } => false,
    }
}

type Recorder = Box<dyn FnMut(&Actor, &Effect) + Send>;

#[derive(Default)]
struct HubState {
    recorder: Option<Recorder>,
    armed: Option<Kill>,
    /// Whether the armed effect has begun.
    begun: bool,
    fired: Option<Kill>,
    /// Revision of the management store before the effect that triggered the kill.
    revision: u64,
    /// Whether the killed process has been restarted.
    restarted: bool,
    /// Whether the killed process has been kept down.
    kept_down: bool,
    /// The live incarnations of replicas.
    replicas: BTreeMap<Actor, Weak<Switch>>,
}

/// The decision about an effect that is about to happen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judgement {
    Alive,
    Dead,
    Paused,
}

impl HubState {
    /// Records that the armed kill hits this process.
    fn fire(&mut self, actor: &Actor) {
        self.fired = self.armed.take().map(|kill| Kill { actor: actor.clone(), ..kill });
    }
}

/// State shared by all switches of a world: the recorder of effects and the armed kill.
#[derive(Clone)]
pub(crate) struct Hub {
    management: ApiServer,
    /// Notified of each command on a host, so that the environment reads the hosts again.
    woken: Arc<Notify>,
    state: Arc<Mutex<HubState>>,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hub")
    }
}

impl Hub {
    pub(crate) fn new(management: ApiServer, woken: Arc<Notify>) -> Self {
        Self { management, woken, state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the recorder, which is called before each effect of each process.
    #[cfg(feature = "sabotage")]
    pub(crate) fn record(&self, recorder: Option<Recorder>) {
        self.lock().recorder = recorder;
    }

    /// Arms a kill at a future effect.
    #[cfg(feature = "sabotage")]
    pub(crate) fn arm(&self, kill: Kill) {
        let mut state = self.lock();
        state.armed = Some(kill);
        state.begun = false;
    }

    /// The kill that happened, if any.
    #[cfg(feature = "sabotage")]
    pub(crate) fn fired(&self) -> Option<Kill> {
        self.lock().fired.clone()
    }

    /// Revision of the management store before the effect that killed `actor`. Returned once, at
    /// the restart of that process.
    pub(crate) fn take_lag(&self, actor: &Actor) -> Option<u64> {
        let mut state = self.lock();
        let is_killed_actor = state.fired.as_ref().is_some_and(|kill| kill.actor == *actor);
        if !is_killed_actor || state.restarted {
            return None;
        }
        state.restarted = true;
        Some(state.revision)
    }

    /// Whether a process that has just died stays down. Returned once.
    pub(crate) fn keeps_down(&self, actor: &Actor) -> bool {
        let mut state = self.lock();
        let fired = state.fired.as_ref();
        let is_for_good = fired.is_some_and(|kill| kill.actor == *actor && kill.side.is_for_good());
        is_for_good && !std::mem::replace(&mut state.kept_down, true)
    }

    fn before(&self, actor: &Actor, effect: &Effect) -> Judgement {
        // The recorder reads the whole world, so no lock may be held here.
        let recorder = self.lock().recorder.take();
        if let Some(mut recorder) = recorder {
            recorder(actor, effect);
            self.lock().recorder = Some(recorder);
        }
        if !self.lock().armed.as_ref().is_some_and(|kill| kill.is_for(actor, effect)) {
            return Judgement::Alive;
        }
        let revision = self.management.revision();
        let mut state = self.lock();
        state.revision = revision;
        state.begun = true;
        let Some(side) = state.armed.as_ref().map(|kill| kill.side) else {
            return Judgement::Alive;
        };
        if side.is_after() {
            return Judgement::Alive;
        }
        state.fire(actor);
        if matches!(side, Side::Other | Side::Both) {
            let others = state.replicas.iter().filter(|(other, _)| *other != actor);
            let others: Vec<_> = others.filter_map(|(_, switch)| switch.upgrade()).collect();
            drop(state);
            for other in others {
                other.kill();
            }
        }
        match side {
            Side::Before | Side::BeforeForGood | Side::Both => Judgement::Dead,
            Side::Paused => Judgement::Paused,
            Side::After | Side::AfterForGood | Side::Other => Judgement::Alive,
        }
    }

    fn after(&self, actor: &Actor, effect: &Effect) -> Fate {
        if matches!(effect, Effect::Host { .. }) {
            self.woken.notify_one();
        }
        let mut state = self.lock();
        let begun = state.begun;
        let hit = state
            .armed
            .as_ref()
            .is_some_and(|kill| begun && kill.side.is_after() && kill.is_for(actor, effect));
        if hit {
            state.fire(actor);
            return Fate::Dead;
        }
        Fate::Alive
    }
}

/// The kill switch of one incarnation of a process. Once the process is dead, none of its actions
/// has an effect, and it receives no response.
pub(crate) struct Switch {
    actor: Actor,
    hub: Hub,
    dead: AtomicBool,
    killed: Notify,
    /// Whether the process is paused.
    paused: watch::Sender<bool>,
}

impl Switch {
    pub(crate) fn new(actor: Actor, hub: Hub) -> Arc<Self> {
        let switch = Arc::new(Self {
            actor,
            hub,
            dead: AtomicBool::new(false),
            killed: Notify::new(),
            paused: watch::channel(false).0,
        });
        if switch.actor.is_controller() {
            let known = (switch.actor.clone(), Arc::downgrade(&switch));
            switch.hub.lock().replicas.extend([known]);
        }
        switch
    }

    /// Waits until the incarnation is paused.
    pub(crate) async fn paused(&self) {
        let mut paused = self.paused.subscribe();
        // This value owns the sender, so the channel cannot be closed during the wait.
        let _ = paused.wait_for(|paused| *paused).await;
    }

    /// Resumes the incarnation.
    pub(crate) fn resume(&self) {
        self.paused.send_replace(false);
    }

    /// Kills the incarnation.
    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.killed.notify_one();
    }

    /// Waits until the incarnation is killed.
    pub(crate) async fn killed(&self) {
        self.killed.notified().await;
    }

    fn judge(&self, fate: Fate) -> Fate {
        if fate == Fate::Dead {
            self.kill();
        }
        fate
    }
}

impl Gate for Switch {
    fn before(&self, effect: &Effect) -> Fate {
        if self.fate() == Fate::Dead {
            return Fate::Dead;
        }
        match self.hub.before(&self.actor, effect) {
            Judgement::Alive => Fate::Alive,
            Judgement::Dead => self.judge(Fate::Dead),
            Judgement::Paused => {
                self.paused.send_replace(true);
                Fate::Alive
            }
        }
    }

    fn after(&self, effect: &Effect) -> Fate {
        if self.fate() == Fate::Dead {
            return Fate::Dead;
        }
        self.judge(self.hub.after(&self.actor, effect))
    }

    fn fate(&self) -> Fate {
        if self.dead.load(Ordering::SeqCst) { Fate::Dead } else { Fate::Alive }
    }

    fn stall(&self) -> Option<BoxFuture<'static, ()>> {
        let mut paused = self.paused.subscribe();
        let is_paused = *paused.borrow();
        is_paused.then(|| -> BoxFuture<'static, ()> {
            Box::pin(async move {
                let _ = paused.wait_for(|paused| !*paused).await;
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use refit_runtime::Clock;

    use super::*;
    use crate::direct::server_options;

    fn hub() -> Hub {
        let epoch = "2026-03-02T08:00:00Z".parse().unwrap();
        let options = server_options(Clock::simulated(epoch), 1);
        Hub::new(ApiServer::new(options), Arc::new(Notify::new()))
    }

    fn patch(path: &str) -> Effect {
        Effect::Api { method: "PATCH".to_owned(), path: path.to_owned() }
    }

    fn kill(side: Side) -> Kill {
        Kill { actor: Actor::Controller, effect: patch("/b"), side }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kill_before_an_effect_keeps_it_from_happening() {
        let hub = hub();
        hub.arm(kill(Side::Before));
        let switch = Switch::new(Actor::Controller, hub.clone());
        assert_eq!(switch.before(&patch("/a")), Fate::Alive);
        assert_eq!(switch.before(&patch("/b")), Fate::Dead);
        assert_eq!(switch.fate(), Fate::Dead);
        assert_eq!(hub.fired(), Some(kill(Side::Before)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kill_after_an_effect_lets_it_happen() {
        let hub = hub();
        hub.arm(kill(Side::After));
        let switch = Switch::new(Actor::Controller, hub.clone());
        assert_eq!(switch.before(&patch("/b")), Fate::Alive);
        assert_eq!(hub.fired(), None);
        assert_eq!(switch.after(&patch("/b")), Fate::Dead);
        assert_eq!(hub.fired(), Some(kill(Side::After)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_effect_of_another_process_is_not_killed() {
        let hub = hub();
        hub.arm(kill(Side::Before));
        let switch = Switch::new(Actor::Capi, hub.clone());
        assert_eq!(switch.before(&patch("/b")), Fate::Alive);
        assert_eq!(hub.fired(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_kill_and_its_lag_happen_once() {
        let hub = hub();
        hub.arm(kill(Side::Before));
        let first = Switch::new(Actor::Controller, hub.clone());
        assert_eq!(first.before(&patch("/b")), Fate::Dead);
        assert!(hub.take_lag(&Actor::Capi).is_none());
        assert!(hub.take_lag(&Actor::Controller).is_some());
        assert!(hub.take_lag(&Actor::Controller).is_none());
        let second = Switch::new(Actor::Controller, hub);
        assert_eq!(second.before(&patch("/b")), Fate::Alive);
    }

    #[tokio::test(start_paused = true)]
    async fn either_replica_may_be_hit_and_the_other_may_die_with_it() {
        for (side, dies) in [(Side::Other, false), (Side::Both, true)] {
            let hub = hub();
            hub.arm(kill(side));
            let leader = Switch::new(Actor::Standby, hub.clone());
            let other = Switch::new(Actor::Controller, hub.clone());
            let fate = leader.before(&patch("/b"));
            assert_eq!(fate == Fate::Dead, dies);
            assert_eq!(other.fate(), Fate::Dead);
            assert_eq!(hub.fired().unwrap().actor, Actor::Standby);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_process_resumes_where_it_was() {
        let hub = hub();
        hub.arm(kill(Side::Paused));
        let switch = Switch::new(Actor::Controller, hub);
        assert!(switch.stall().is_none());
        assert_eq!(switch.before(&patch("/b")), Fate::Alive);
        switch.paused().await;
        let stall = switch.stall().unwrap();
        switch.resume();
        stall.await;
        assert!(switch.stall().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_process_stays_dead() {
        let switch = Switch::new(Actor::Controller, hub());
        switch.kill();
        switch.killed().await;
        assert_eq!(switch.before(&patch("/a")), Fate::Dead);
        assert_eq!(switch.after(&patch("/a")), Fate::Dead);
    }

    #[tokio::test(start_paused = true)]
    async fn the_recorder_sees_effects_before_they_happen() {
        let hub = hub();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let sink = seen.clone();
        hub.record(Some(Box::new(move |actor, effect| {
            sink.lock().unwrap().push(format!("{actor} {effect}"));
        })));
        let switch = Switch::new(Actor::Agent("default/edge/n1".into()), hub);
        switch.before(&patch("/a"));
        switch.after(&patch("/a"));
        assert_eq!(*seen.lock().unwrap(), ["agent/n1 api PATCH /a"]);
    }
}
