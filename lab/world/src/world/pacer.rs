//! Runs a world's time at a multiple of real time.

use std::time::Duration;

/// How long the pacer sleeps between two advances, in real time.
const BEAT: Duration = Duration::from_millis(10);
/// Longest advance in one step, so that timers fire in order and on time.
const STEP: Duration = Duration::from_millis(250);
/// Longest advance per beat: a world that cannot keep up gets slower, not jerky.
const MOST: Duration = Duration::from_secs(30);

/// Runs forever and advances the paused clock by `speed` seconds per second of real time.
///
/// A blocking task is always in progress, which prevents the paused clock from jumping ahead by
/// itself.
#[expect(clippy::disallowed_methods, reason = "the pacer is what ties simulated time to real time")]
pub async fn pace(speed: f64) {
    let mut last = std::time::Instant::now();
    loop {
        // The runtime ends only with the world; a failed join only shortens the beat.
        let _ = tokio::task::spawn_blocking(|| std::thread::sleep(BEAT)).await;
        let now = std::time::Instant::now();
        let elapsed = now.duration_since(last);
        last = now;
        let mut left = elapsed.mul_f64(speed.max(0.0)).min(MOST);
        while !left.is_zero() {
            let step = left.min(STEP);
            tokio::time::advance(step).await;
            left -= step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    #[expect(clippy::disallowed_methods, reason = "real time is what is measured")]
    async fn time_runs_at_a_multiple_and_does_not_jump() {
        let pacer = tokio::spawn(pace(100.0));
        let wall = std::time::Instant::now();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let wall = wall.elapsed();
        pacer.abort();
        // A clock that jumped would be there at once.
        assert!(wall >= Duration::from_millis(80), "{wall:?}");
    }
}
