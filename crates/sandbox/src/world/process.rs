//! Processes of a world: who they are and the switch that each incarnation passes.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use refit_apiserver::ApiServer;
use refit_kube::gate::{Effect, Fate, Gate};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// How long it takes until a process that died runs again.
pub const RESTART_DELAY: Duration = Duration::from_secs(2);

/// A process of ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Actor {
    /// refit-controller.
    Controller,
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
            Self::Capi => format!("refit-capi/{incarnation}"),
            Self::Agent(host) => format!("refit-agent/{incarnation} ({host})"),
        }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller => f.write_str("controller"),
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
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "before",
            Self::After => "after",
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
        Self {
            management,
            woken,
            state: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls this before each effect of each process.
    pub(crate) fn record(&self, recorder: Option<Recorder>) {
        self.lock().recorder = recorder;
    }

    /// Kills a process at an effect that is to come.
    pub(crate) fn arm(&self, kill: Kill) {
        let mut state = self.lock();
        state.armed = Some(kill);
        state.begun = false;
    }

    /// The kill that happened.
    pub(crate) fn fired(&self) -> Option<Kill> {
        self.lock().fired.clone()
    }

    /// The kill that happened, and the revision of the management store before its effect: told
    /// once, to whoever starts that process again.
    pub(crate) fn take_lag(&self, actor: &Actor) -> Option<u64> {
        let mut state = self.lock();
        let theirs = state
            .fired
            .as_ref()
            .is_some_and(|kill| kill.actor == *actor);
        if !theirs || state.restarted {
            return None;
        }
        state.restarted = true;
        Some(state.revision)
    }

    fn before(&self, actor: &Actor, effect: &Effect) -> Fate {
        // The recorder looks at the whole world: nothing of ours may be locked meanwhile.
        let recorder = self.lock().recorder.take();
        if let Some(mut recorder) = recorder {
            recorder(actor, effect);
            self.lock().recorder = Some(recorder);
        }
        let matches = |kill: &Kill| kill.actor == *actor && kill.effect == *effect;
        if !self.lock().armed.as_ref().is_some_and(matches) {
            return Fate::Alive;
        }
        let revision = self.management.revision();
        let mut state = self.lock();
        state.revision = revision;
        state.begun = true;
        if state
            .armed
            .as_ref()
            .is_some_and(|kill| kill.side == Side::Before)
        {
            state.fired = state.armed.take();
            return Fate::Dead;
        }
        Fate::Alive
    }

    fn after(&self, actor: &Actor, effect: &Effect) -> Fate {
        if matches!(effect, Effect::Host { .. }) {
            self.woken.notify_one();
        }
        let mut state = self.lock();
        let begun = state.begun;
        let hit = state.armed.as_ref().is_some_and(|kill| {
            begun && kill.side == Side::After && kill.actor == *actor && kill.effect == *effect
        });
        if hit {
            state.fired = state.armed.take();
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
}

impl Switch {
    pub(crate) fn new(actor: Actor, hub: Hub) -> Arc<Self> {
        Arc::new(Self {
            actor,
            hub,
            dead: AtomicBool::new(false),
            killed: Notify::new(),
        })
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
        self.judge(self.hub.before(&self.actor, effect))
    }

    fn after(&self, effect: &Effect) -> Fate {
        if self.fate() == Fate::Dead {
            return Fate::Dead;
        }
        self.judge(self.hub.after(&self.actor, effect))
    }

    fn fate(&self) -> Fate {
        if self.dead.load(Ordering::SeqCst) {
            Fate::Dead
        } else {
            Fate::Alive
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct::server_options;
    use refit_kube::Clock;

    fn hub() -> Hub {
        let epoch = "2026-03-02T08:00:00Z".parse().unwrap();
        let options = server_options(Clock::simulated(epoch), 1);
        Hub::new(ApiServer::new(options), Arc::new(Notify::new()))
    }

    fn patch(path: &str) -> Effect {
        Effect::Api {
            method: "PATCH".to_owned(),
            path: path.to_owned(),
        }
    }

    fn kill(side: Side) -> Kill {
        Kill {
            actor: Actor::Controller,
            effect: patch("/b"),
            side,
        }
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
