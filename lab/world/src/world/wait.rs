//! Waits for conditions, in simulated time.

use std::time::Duration;

use super::World;

/// Interval between two checks of a condition.
const LOOK: Duration = Duration::from_secs(1);

/// A condition was not met in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timed out after {} simulated seconds waiting until {what}", .within.as_secs())]
pub struct TimedOut {
    /// Description of the condition.
    pub what: String,
    /// How long it was waited for.
    pub within: Duration,
}

impl World {
    /// Waits until a condition holds; `what` describes it in the error.
    pub async fn until(
        &self,
        what: &str,
        within: Duration,
        mut condition: impl FnMut(&Self) -> bool,
    ) -> Result<(), TimedOut> {
        let end = self.now() + jiff::SignedDuration::try_from(within).unwrap_or_default();
        loop {
            if condition(self) {
                return Ok(());
            }
            if self.now() >= end {
                return Err(TimedOut { what: what.to_owned(), within });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Lets simulated time pass.
    pub async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}
