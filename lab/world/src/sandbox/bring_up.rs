//! Brings up a cluster whose machines are Ready, within seconds.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use refit_runtime::Clock;
use serde_json::Value;

use super::SandboxError;
use crate::{
    snapshot::Snapshot,
    world::{self, World, WorldOptions},
};

/// How far in the past a new world starts: more than the time that any sandbox cluster takes to
/// come up on accelerated hosts.
const AGE: SignedDuration = SignedDuration::from_mins(5);
/// How long the simulation runs between two checks of the machine's clock.
const LOOK: Duration = Duration::from_secs(10);
/// Remaining time that is too short to simulate.
const NOW: Duration = Duration::from_millis(10);

/// A world whose cluster has come up.
#[derive(Debug)]
pub struct BringUp {
    /// Snapshot of the world at the current time.
    pub world: Snapshot,
    /// Number of requested machines.
    pub machines: usize,
    /// Number of available machines.
    pub available: usize,
}

/// Creates a world of these manifests and runs it, in simulated time, until now.
///
/// A world that does not become ready continues from its current state: its objects show the cause.
pub fn bring_up(manifests: &[Value], hurry: u32) -> Result<BringUp, SandboxError> {
    let runtime = world::runtime()?;
    let outcome = runtime.block_on(async {
        let options = WorldOptions {
            epoch: whole_seconds(Clock::real().now() - AGE),
            hurry,
            ..WorldOptions::new(manifests.to_vec())
        };
        let world = World::new(options).await?;
        // Stop at the current time: time in a world never goes back, and from here on it is real.
        loop {
            let left = Clock::real().now().duration_since(world.now());
            let left = Duration::try_from(left).unwrap_or_default();
            if left < NOW {
                break;
            }
            world.pass(left.min(LOOK)).await;
        }
        let machines = world.machines();
        let available = machines.iter().filter(|machine| {
            refit_kinds::json::is_true(machine, refit_kinds::conditions::AVAILABLE)
        });
        Ok(BringUp {
            machines: world.wanted_machines(),
            available: available.count(),
            world: world.snapshot(),
        })
    });
    // No task of the simulation may continue next to the live world.
    runtime.shutdown_background();
    outcome
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
