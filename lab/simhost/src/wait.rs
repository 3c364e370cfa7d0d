//! Waiting in tests.

use std::time::Duration;

use refit_runtime::Clock;
use tokio::time::{sleep, timeout};

const LOOK_PERIOD: Duration = Duration::from_millis(200);
/// A check without a result after this time counts as one that found nothing.
const LOOK_TIMEOUT: Duration = Duration::from_secs(20);

/// Repeats `look` until it succeeds; fails with its last error once `within` has passed. A check
/// that has started always runs to its end, so there is at least one, however short `within` is.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> anyhow::Result<T> {
    let clock = Clock::real();
    let since = clock.now();
    loop {
        let last = match timeout(LOOK_TIMEOUT, look()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(why)) => why,
            Err(_) => "the check did not finish".to_owned(),
        };
        anyhow::ensure!(
            clock.elapsed(since) < within,
            "timed out after {} s waiting until {what}: {last}",
            within.as_secs()
        );
        sleep(LOOK_PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_check_is_not_cut_off_by_the_deadline() {
        let found = eventually("it holds", Duration::ZERO, async || {
            sleep(Duration::from_millis(5)).await;
            Ok(7)
        });
        assert_eq!(found.await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_timeout_returns_the_last_error() {
        let found =
            eventually("it holds", Duration::ZERO, async || Err::<(), _>("no Node".to_owned()));
        assert_eq!(
            found.await.unwrap_err().to_string(),
            "timed out after 0 s waiting until it holds: no Node"
        );
    }
}
