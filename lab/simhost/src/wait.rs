//! Waiting in tests.

use std::time::Duration;

use tokio::time::{sleep, timeout};

const LOOK_PERIOD: Duration = Duration::from_millis(200);
/// A look that gets no answer for so long is one that found nothing.
const LOOK_TIMEOUT: Duration = Duration::from_secs(20);

/// Looks again and again until `look` finds what it wants; fails with its last error when `within`
/// is over.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> anyhow::Result<T> {
    let mut last = "no look ended".to_owned();
    let looking = async {
        loop {
            match timeout(LOOK_TIMEOUT, look()).await {
                Ok(Ok(found)) => return found,
                Ok(Err(why)) => last = why,
                Err(_) => "a look got no answer".clone_into(&mut last),
            }
            sleep(LOOK_PERIOD).await;
        }
    };
    let found = timeout(within, looking).await;
    found.map_err(|_| anyhow::anyhow!("{what}: not within {} s: {last}", within.as_secs()))
}
