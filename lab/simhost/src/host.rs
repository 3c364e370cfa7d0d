//! The host as one run of the agent process sees it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::BoxFuture;
use refit_agent::host::{Evidence, Host, HostError, Job, Since, UnitState};
use refit_kinds::refit::HostFacts;
use refit_runtime::{
    Clock,
    gate::{Effect, Fate, Gate, never},
};

use crate::state::HostState;

/// A host over a [`HostState`] owned by the simulation.
///
/// While the host reboots, its agent is frozen: every call waits for the boot.
pub struct SimHost {
    state: Arc<Mutex<HostState>>,
    clock: Clock,
    gate: Arc<dyn Gate>,
}

impl std::fmt::Debug for SimHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimHost")
    }
}

impl SimHost {
    /// Creates a host over `state`. Each start of a unit passes `gate` as [`Effect::Host`].
    pub fn new(state: Arc<Mutex<HostState>>, clock: Clock, gate: Arc<dyn Gate>) -> Self {
        Self { state, clock, gate }
    }

    /// Waits until the host is up, applies everything that is due and returns the state.
    async fn enter(&self) -> MutexGuard<'_, HostState> {
        loop {
            if self.gate.fate() == Fate::Dead {
                return never().await;
            }
            let until = {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.tick(self.clock.now());
                match state.down_until {
                    None => return state,
                    Some(until) => until,
                }
            };
            self.clock.sleep_until(until).await;
        }
    }
}

impl Host for SimHost {
    fn facts(&self) -> BoxFuture<'_, HostFacts> {
        Box::pin(async move {
            let state = self.enter().await;
            state.troubles.as_read(state.facts())
        })
    }

    fn versions<'a>(
        &'a self,
        names: &'a BTreeSet<String>,
    ) -> BoxFuture<'a, Result<BTreeMap<String, String>, HostError>> {
        Box::pin(async move {
            let state = self.enter().await;
            let found = names.iter().map(|name| (name, state.package(name)));
            let there = found.filter(|(_, version)| !version.is_empty());
            Ok(there.map(|(n, v)| (n.clone(), v.to_owned())).collect())
        })
    }

    fn start<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), HostError>> {
        Box::pin(async move {
            let effect = {
                let state = self.enter().await;
                if !state.would_start(job) {
                    return Ok(());
                }
                Effect::Host { command: format!("{} {}", state.node, job.step) }
            };
            // The gate may take a snapshot of the world, including this host, so no lock is held
            // here.
            let dead = if self.gate.before(&effect) == Fate::Dead {
                true
            } else {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.start(job, self.clock.now());
                drop(state);
                self.gate.after(&effect) == Fate::Dead
            };
            if dead { never().await } else { Ok(()) }
        })
    }

    fn poll<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, Result<UnitState, HostError>> {
        Box::pin(async move { Ok(self.enter().await.poll(unit)) })
    }

    fn look<'a>(
        &'a self,
        job: &'a Job,
        since: &'a Since,
    ) -> BoxFuture<'a, Result<Evidence, HostError>> {
        Box::pin(async move { Ok(self.enter().await.look(job, since)) })
    }

    fn wait<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let ends = {
                let state = self.enter().await;
                state.units.get(unit).map(|unit| unit.ends)
            };
            if let Some(ends) = ends {
                self.clock.sleep_until(ends).await;
            }
        })
    }

    fn release<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.enter().await.release(unit) })
    }

    fn remove_fetched(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.enter().await.remove_fetched() })
    }
}
