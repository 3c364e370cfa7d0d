//! Calls the servers of Updaters as Cluster API calls an extension (`docs/facts/hooks.md`).
//!
//! A server that does not answer takes few of the process: so many calls at once, each with a deadline, and
//! a pause after several without an answer.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use refit_core::node::Called;
use refit_kinds::{
    hooks::{
        self, API_VERSION, DiscoveryResponse, MachineObjects, UpdateMachineRequest,
        UpdateMachineResponse, Verdict,
    },
    refit::UpdaterHook,
};
use refit_runtime::{
    Clock,
    client::{ClientStack, HttpsPoster},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::Semaphore;

/// How many calls of one server are in progress at once.
const CALLS_AT_ONCE: usize = 8;
/// When a machine is tried again whose server is busy, in seconds.
const BUSY_SECONDS: i32 = 5;
/// Deadline of Discovery, as Cluster API has it.
const DISCOVERY_DEADLINE: Duration = Duration::from_secs(10);
/// How long what Discovery returned is used.
const DISCOVERED_FOR: SignedDuration = SignedDuration::from_mins(10);
/// After so many calls in a row without an answer, the server is not called for some time.
const SILENT_CALLS: u32 = 5;
/// For how long.
const PAUSE: SignedDuration = SignedDuration::from_secs(30);
/// How much of an error response is shown, in characters.
const SHOWN_CHARACTERS: usize = 200;

/// The servers of Updaters, by the name of the Updater.
#[derive(Debug)]
pub(crate) struct UpdaterServers {
    stack: ClientStack,
    clock: Clock,
    known: Mutex<BTreeMap<String, Arc<Server>>>,
}

/// The server of one Updater.
#[derive(Debug)]
struct Server {
    hook: UpdaterHook,
    poster: HttpsPoster,
    turns: Semaphore,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    discovered: Option<(Handler, Timestamp)>,
    breaker: Breaker,
}

/// The handler of UpdateMachine.
#[derive(Clone, Debug)]
struct Handler {
    name: String,
    deadline: Duration,
}

/// Stops calls of a server that does not answer.
#[derive(Debug, Default)]
struct Breaker {
    silent_calls: u32,
    paused_until: Option<Timestamp>,
}

impl Breaker {
    fn check(&self, now: Timestamp) -> Result<(), String> {
        match self.paused_until {
            Some(until) if now < until => Err(format!(
                "its server did not answer {SILENT_CALLS} calls in a row, and is called again after {} s",
                PAUSE.as_secs()
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// After a pause, the first call without an answer begins the next one.
    fn silent(&mut self, now: Timestamp) {
        self.silent_calls = self.silent_calls.saturating_add(1);
        if self.silent_calls >= SILENT_CALLS {
            self.paused_until = now.saturating_add(PAUSE).ok();
        }
    }
}

impl UpdaterServers {
    pub(crate) fn new(stack: ClientStack, clock: Clock) -> Self {
        Self { stack, clock, known: Mutex::default() }
    }

    /// Calls UpdateMachine of an Updater's server.
    pub(crate) async fn update(
        &self,
        updater: &str,
        hook: &UpdaterHook,
        desired: MachineObjects,
    ) -> Called {
        let outcome = async {
            let server = self.server(updater, hook)?;
            server.update(desired, &self.clock).await
        };
        outcome.await.unwrap_or_else(|message| Called::Failed { message })
    }

    /// Asks whether UpdateMachine of an Updater's server can be called.
    pub(crate) async fn ask(&self, updater: &str, hook: &UpdaterHook) -> Result<(), String> {
        let server = self.server(updater, hook)?;
        lock(&server.state).breaker.check(self.clock.now())?;
        server.discover(&self.clock).await.map(|_| ())
    }

    fn server(&self, updater: &str, hook: &UpdaterHook) -> Result<Arc<Server>, String> {
        let mut known = lock(&self.known);
        if let Some(server) = known.get(updater).filter(|server| server.hook == *hook) {
            return Ok(server.clone());
        }
        let ca = STANDARD
            .decode(&hook.ca_bundle)
            .map_err(|error| format!("spec.hook.caBundle is not base64: {error}"))?;
        let poster = HttpsPoster::new(&self.stack, &ca)
            .map_err(|error| format!("spec.hook.caBundle: {error}"))?;
        let server = Arc::new(Server {
            hook: hook.clone(),
            poster,
            turns: Semaphore::new(CALLS_AT_ONCE),
            state: Mutex::default(),
        });
        known.insert(updater.to_owned(), server.clone());
        Ok(server)
    }
}

impl Server {
    async fn update(&self, desired: MachineObjects, clock: &Clock) -> Result<Called, String> {
        lock(&self.state).breaker.check(clock.now())?;
        // A reconcile that waited would take a turn of its cluster.
        let Ok(_turn) = self.turns.try_acquire() else {
            let message = format!("its server is busy with {CALLS_AT_ONCE} other machines");
            return Ok(Called::Again { message, seconds: BUSY_SECONDS });
        };
        let handler = self.handler(clock).await?;
        let request = UpdateMachineRequest {
            api_version: API_VERSION.to_owned(),
            kind: "UpdateMachineRequest".to_owned(),
            settings: BTreeMap::new(),
            desired,
        };
        let body = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
        let path = hooks::path("UpdateMachine", Some(&handler.name));
        let answer: UpdateMachineResponse = self.post(&path, body, handler.deadline, clock).await?;
        Ok(match (answer.status, answer.retry_after_seconds) {
            (Verdict::Failure, _) if answer.message.is_empty() => Called::Failed {
                message: "its server reports a failure without a message".to_owned(),
            },
            (Verdict::Failure, _) => Called::Failed { message: answer.message },
            (Verdict::Success, seconds) if seconds > 0 => {
                Called::Again { message: answer.message, seconds }
            }
            (Verdict::Success, _) => Called::Done,
        })
    }

    /// The handler that serves UpdateMachine, from the server's own Discovery.
    async fn handler(&self, clock: &Clock) -> Result<Handler, String> {
        let now = clock.now();
        let fresh = |at: Timestamp| now.duration_since(at).abs() < DISCOVERED_FOR;
        let known = lock(&self.state).discovered.clone();
        if let Some((handler, _)) = known.filter(|(_, at)| fresh(*at)) {
            return Ok(handler);
        }
        self.discover(clock).await
    }

    async fn discover(&self, clock: &Clock) -> Result<Handler, String> {
        let request = json!({ "apiVersion": API_VERSION, "kind": "DiscoveryRequest" });
        let body = request.to_string().into_bytes();
        let path = hooks::path("Discovery", None);
        let found: DiscoveryResponse = self.post(&path, body, DISCOVERY_DEADLINE, clock).await?;
        if found.status == Verdict::Failure {
            return Err(format!("discovery of its server fails: {}", found.message));
        }
        let serves = found.handlers.into_iter().find(|handler| {
            let hook = &handler.request_hook;
            hook.hook == "UpdateMachine" && hook.api_version == API_VERSION
        });
        let serves = serves.ok_or_else(|| {
            format!("its server does not serve the hook UpdateMachine of {API_VERSION}")
        })?;
        let seconds = u64::try_from(serves.timeout_seconds).unwrap_or(0);
        let seconds = if seconds == 0 { 10 } else { seconds.min(30) };
        let handler = Handler { name: serves.name, deadline: Duration::from_secs(seconds) };
        lock(&self.state).discovered = Some((handler.clone(), clock.now()));
        Ok(handler)
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Vec<u8>,
        deadline: Duration,
        clock: &Clock,
    ) -> Result<T, String> {
        let base = self.hook.url.trim_end_matches('/');
        let url = format!("{base}{path}?timeout={}s", deadline.as_secs());
        let answered = self.poster.post(&url, body, deadline).await;
        let mut state = lock(&self.state);
        let (status, body) = match answered {
            Ok(answer) => answer,
            Err(error) => {
                state.breaker.silent(clock.now());
                return Err(error.to_string());
            }
        };
        state.breaker = Breaker::default();
        if status != 200 {
            // The handler may have another name now.
            state.discovered = None;
            let text = String::from_utf8_lossy(&body);
            let text: String = text.trim().chars().take(SHOWN_CHARACTERS).collect();
            return Err(format!("{url} answered with status {status}: {text}"));
        }
        // The response may have something after its first value, as Cluster API allows.
        let mut values = serde_json::Deserializer::from_slice(&body).into_iter::<T>();
        match values.next() {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(format!("{url} sent an invalid response: {error}")),
            None => Err(format!("{url} answered nothing")),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_answer_is_called_rarely() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut breaker = Breaker::default();
        for second in 0..4 {
            breaker.silent(at(second));
            assert_eq!(breaker.check(at(second)), Ok(()));
        }
        breaker.silent(at(4));
        assert!(breaker.check(at(33)).unwrap_err().contains("5 calls in a row"));
        assert_eq!(breaker.check(at(34)), Ok(()));
        breaker.silent(at(40));
        assert!(breaker.check(at(69)).is_err());
        assert_eq!(breaker.check(at(70)), Ok(()));
    }
}
