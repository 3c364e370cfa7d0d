//! Waiting for what objects say.

use std::time::Duration;

use refit_runtime::Clock;

/// How often is looked.
const LOOK: Duration = Duration::from_millis(500);

/// Looks again and again until `look` finds what it wants, and fails with what it said last when
/// `within` is over.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> anyhow::Result<T> {
    let clock = Clock::real();
    let since = clock.now();
    loop {
        // A look that gets no answer is one that found nothing.
        let found = tokio::time::timeout(Duration::from_secs(20), look()).await;
        let why = match found {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(why)) => why,
            Err(_) => "nobody answers".to_owned(),
        };
        anyhow::ensure!(
            clock.elapsed(since) < within,
            "{what}: not within {} s: {why}",
            within.as_secs()
        );
        tokio::time::sleep(LOOK).await;
    }
}

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
