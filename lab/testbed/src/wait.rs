//! Waiting for what objects say.

use std::time::Duration;

pub use lab_simhost::wait::eventually;
use refit_runtime::Clock;

/// How often is looked.
const LOOK: Duration = Duration::from_millis(500);

/// Looks for a while and fails at once when `look` finds what must not be.
pub async fn never(
    what: &str,
    during: Duration,
    mut look: impl AsyncFnMut() -> Result<(), String>,
) -> anyhow::Result<()> {
    let clock = Clock::real();
    let since = clock.now();
    while clock.elapsed(since) < during {
        if let Err(found) = look().await {
            anyhow::bail!("{what}: {found}");
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
