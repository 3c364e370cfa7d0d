//! Waiting for the state of objects.

use std::time::Duration;

pub use lab_simhost::wait::eventually;
use refit_runtime::Clock;

/// How often the state is checked.
const POLL: Duration = Duration::from_millis(500);

/// Checks for the duration `during`, and fails at once when `look` returns an error.
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
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
