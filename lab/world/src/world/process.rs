//! Processes of a world: who they are and the switch that each incarnation passes.

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
use refit_runtime::gate::{Effect, Fate, Gate};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

/// How long it takes until a process that died runs again.
pub const RESTART_DELAY: Duration = Duration::from_secs(2);

/// A process of ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Actor {
    /// refit-controller.
    Controller,
    /// The second replica of refit-controller, where there are two.
    Standby,
    /// refit-capi.
    Capi,
    /// refit-agent on the host with this key.
    Agent(String),
}

impl Actor {
    /// The user agent of one incarnation.
    pub(crate) fn user_agent(&self, incarnation: u32) -> String {
        match self {
            Self::Controller => format!("refit-controller/{incarnation}"),
            Self::Standby => format!("refit-controller/{incarnation} (standby)"),
            Self::Capi => format!("refit-capi/{incarnation}"),
            Self::Agent(host) => format!("refit-agent/{incarnation} ({host})"),
        }
    }

    /// Whether it is a replica of refit-controller.
    pub(crate) fn is_controller(&self) -> bool {
        matches!(self, Self::Controller | Self::Standby)
    }

    /// Whether one may do what the other did: replicas share their work.
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
            Self::Agent(host) => write!(f, "agent/{}", host.rsplit('/').next().unwrap_or(host)),
        }
    }
}

/// On which side of an effect a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Side {
    /// The effect does not happen.
    Before,
    /// The effect happens, and nobody hears of it.
    After,
    /// The process is stopped before the effect and goes on with it long after its Lease is gone.
    Paused,
    /// The other replica dies before the effect; the process goes on.
    Other,
    /// Both replicas die before the effect.
    Both,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "before",
            Self::After => "after",
            Self::Paused => "paused before",
            Self::Other => "only beside it, before",
            Self::Both => "with the other, before",
        })
    }
}

/// An effect at which a process is to die.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Who.
    pub actor: Actor,
    /// At which effect: the first that is the same.
    pub effect: Effect,
    /// On which side.
    pub side: Side,
}

type Recorder = Box<dyn FnMut(&Actor, &Effect) + Send>;

#[derive(Default)]
struct HubState {
    recorder: Option<Recorder>,
    armed: Option<Kill>,
    /// The armed effect has begun.
    begun: bool,
    fired: Option<Kill>,
    /// Revision of the management store before the effect that killed.
    revision: u64,
    /// The killed process has been started again.
    restarted: bool,
    /// The living incarnations of replicas.
    replicas: BTreeMap<Actor, Weak<Switch>>,
}

/// What an effect that is about to happen comes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judgement {
    Alive,
    Dead,
    Paused,
}

impl HubState {
    /// The armed kill happens, to this process.
    fn fire(&mut self, actor: &Actor) {
        self.fired = self.armed.take().map(|kill| Kill { actor: actor.clone(), ..kill });
    }
}

/// What all switches of a world share: the recorder of effects and the kill that is due.
#[derive(Clone)]
pub(crate) struct Hub {
    management: ApiServer,
    /// Told of each command on a host: the environment looks at hosts again.
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

    /// Calls this before each effect of each process.
    #[cfg(feature = "sabotage")]
    pub(crate) fn record(&self, recorder: Option<Recorder>) {
        self.lock().recorder = recorder;
    }

    /// Kills a process at an effect that is to come.
    #[cfg(feature = "sabotage")]
    pub(crate) fn arm(&self, kill: Kill) {
        let mut state = self.lock();
        state.armed = Some(kill);
        state.begun = false;
    }

    /// The kill that happened.
    #[cfg(feature = "sabotage")]
    pub(crate) fn fired(&self) -> Option<Kill> {
        self.lock().fired.clone()
    }

    /// The kill that happened, and the revision of the management store before its effect: told
    /// once, to whoever starts that process again.
    pub(crate) fn take_lag(&self, actor: &Actor) -> Option<u64> {
        let mut state = self.lock();
        let theirs = state.fired.as_ref().is_some_and(|kill| kill.actor == *actor);
        if !theirs || state.restarted {
            return None;
        }
        state.restarted = true;
        Some(state.revision)
    }

    fn before(&self, actor: &Actor, effect: &Effect) -> Judgement {
        // The recorder looks at the whole world: nothing of ours may be locked meanwhile.
        let recorder = self.lock().recorder.take();
        if let Some(mut recorder) = recorder {
            recorder(actor, effect);
            self.lock().recorder = Some(recorder);
        }
        let matches = |kill: &Kill| kill.actor.stands_for(actor) && kill.effect == *effect;
        if !self.lock().armed.as_ref().is_some_and(matches) {
            return Judgement::Alive;
        }
        let revision = self.management.revision();
        let mut state = self.lock();
        state.revision = revision;
        state.begun = true;
        let Some(side) = state.armed.as_ref().map(|kill| kill.side) else {
            return Judgement::Alive;
        };
        if side == Side::After {
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
            Side::Before | Side::Both => Judgement::Dead,
            Side::Paused => Judgement::Paused,
            Side::After | Side::Other => Judgement::Alive,
        }
    }

    fn after(&self, actor: &Actor, effect: &Effect) -> Fate {
        if matches!(effect, Effect::Host { .. }) {
            self.woken.notify_one();
        }
        let mut state = self.lock();
        let begun = state.begun;
        let hit = state.armed.as_ref().is_some_and(|kill| {
            begun
                && kill.side == Side::After
                && kill.actor.stands_for(actor)
                && kill.effect == *effect
        });
        if hit {
            state.fire(actor);
            return Fate::Dead;
        }
        Fate::Alive
    }
}

/// The switch of one incarnation of a process. Once it is off, nothing of the process takes effect
/// and nothing is answered.
pub(crate) struct Switch {
    actor: Actor,
    hub: Hub,
    dead: AtomicBool,
    killed: Notify,
    /// Whether the process is stopped.
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

    /// Waits until the incarnation is stopped.
    pub(crate) async fn paused(&self) {
        let mut paused = self.paused.subscribe();
        // The sender lives in this value, so the channel cannot be closed while we wait.
        let _ = paused.wait_for(|paused| *paused).await;
    }

    /// Lets the incarnation go on.
    pub(crate) fn go_on(&self) {
        self.paused.send_replace(false);
    }

    /// Ends the incarnation.
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
    async fn the_same_effect_of_another_process_is_left_alone() {
        let hub = hub();
        hub.arm(kill(Side::Before));
        let switch = Switch::new(Actor::Capi, hub.clone());
        assert_eq!(switch.before(&patch("/b")), Fate::Alive);
        assert_eq!(hub.fired(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_kill_happens_once_and_tells_the_next_incarnation_once() {
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
    async fn a_paused_process_goes_on_where_it_was() {
        let hub = hub();
        hub.arm(kill(Side::Paused));
        let switch = Switch::new(Actor::Controller, hub);
        assert!(switch.stall().is_none());
        assert_eq!(switch.before(&patch("/b")), Fate::Alive);
        switch.paused().await;
        let stall = switch.stall().unwrap();
        switch.go_on();
        stall.await;
        assert!(switch.stall().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_dead_stays_dead() {
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
