//! A cluster whose machines are Ready, within seconds.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use refit_runtime::Clock;
use serde_json::Value;

use super::SandboxError;
use crate::{
    snapshot::Snapshot,
    world::{self, World, WorldOptions},
};

/// How long ago the start of a new world lies: more than any cluster of a sandbox takes to come up
/// on hurried hosts.
const AGE: SignedDuration = SignedDuration::from_mins(5);
/// How far the simulation goes before the machine's clock is looked at again.
const LOOK: Duration = Duration::from_secs(10);
/// A rest that is not worth simulating.
const NOW: Duration = Duration::from_millis(10);

/// A world that has come up.
#[derive(Debug)]
pub struct BringUp {
    /// It, as it is now.
    pub world: Snapshot,
    /// How many machines are asked for.
    pub machines: usize,
    /// How many of them are available.
    pub available: usize,
}

/// Makes a world of these manifests and lets it run, in simulated time, until now.
///
/// A world that does not get ready goes on from where it is: what keeps it shows in its objects.
pub fn bring_up(manifests: &[Value], hurry: u32) -> Result<BringUp, SandboxError> {
    let runtime = world::runtime()?;
    let outcome = runtime.block_on(async {
        let options = WorldOptions {
            epoch: whole_seconds(Clock::real().now() - AGE),
            hurry,
            ..WorldOptions::new(manifests.to_vec())
        };
        let world = World::new(options).await?;
        // No further than now: time in a world never goes back, and from here on it is real.
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
    // Nothing of the simulation goes on beside the live world.
    runtime.shutdown_background();
    outcome
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
