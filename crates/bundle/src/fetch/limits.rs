//! Limits of a download: size, bandwidth and timeouts.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::Proxies;

/// Interval at which bytes are granted.
const TICK: Duration = Duration::from_millis(20);

/// Limits of a host for staging a bundle.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum download rate; `None` means unlimited.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Timeout for establishing a connection.
    pub connect_timeout: Duration,
    /// Maximum time without data during a response.
    pub silence_timeout: Duration,
    /// Maximum size of a bundle in bytes.
    pub max_bytes: u64,
    /// Bytes that must stay free on the disk.
    pub keep_free: u64,
    /// PEM file of certificate authorities to trust for HTTPS instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Registry credentials in the format of Docker and the kubelet (`config.json`). A missing file
    /// means no credentials.
    pub credentials_file: Option<PathBuf>,
    /// Proxies of HTTP servers and registries.
    pub proxies: Proxies,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes_per_second: None,
            connect_timeout: Duration::from_secs(10),
            silence_timeout: Duration::from_secs(30),
            // Room for an OS image of 8 GiB plus packages and container images.
            max_bytes: 16 << 30,
            // Room for the temporary files of dpkg, kubeadm's backups and the journal.
            keep_free: 512 << 20,
            ca_file: None,
            credentials_file: None,
            proxies: Proxies::default(),
        }
    }
}

/// A token bucket: grants bytes at a fixed rate, with a burst of at most a tenth of a second.
pub(crate) struct Bucket {
    rate: u64,
    /// Bytes that may pass now; negative after a chunk larger than the balance.
    tokens: i128,
    ticks: Option<(Interval, Instant)>,
}

impl Bucket {
    /// Creates a bucket for this rate.
    pub(crate) fn new(bytes_per_second: Option<NonZeroU64>) -> Self {
        Self { rate: bytes_per_second.map_or(0, NonZeroU64::get), tokens: 0, ticks: None }
    }

    /// Returns the largest chunk to request, so that a slow rate gives a steady flow.
    pub(crate) fn chunk(&self, most: usize) -> usize {
        match self.rate {
            0 => most,
            rate => usize::try_from(rate / 10).unwrap_or(most).clamp(512, most),
        }
    }

    /// Waits until this number of bytes may pass.
    pub(crate) async fn take(&mut self, bytes: usize) {
        if self.rate == 0 {
            return;
        }
        self.tokens -= i128::try_from(bytes).unwrap_or(i128::MAX);
        while self.tokens < 0 {
            let (ticks, last) = if let Some(ticks) = &mut self.ticks {
                ticks
            } else {
                let mut ticks = tokio::time::interval(TICK);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
                // The first tick fires immediately; counting starts there.
                let start = ticks.tick().await;
                self.ticks.insert((ticks, start))
            };
            let now = ticks.tick().await;
            let elapsed = now.saturating_duration_since(*last).as_micros();
            *last = now;
            let granted = u128::from(self.rate).saturating_mul(elapsed) / 1_000_000;
            // A pause between two chunks saves up no more than this.
            let burst = u128::from(self.rate / 10).max(1);
            let granted = i128::try_from(granted.min(burst)).unwrap_or(i128::MAX);
            self.tokens = self.tokens.saturating_add(granted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the current time to the millisecond: the first tick after a pause is a missed one.
    async fn now(clock: &mut Interval) -> Instant {
        clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
        clock.tick().await;
        clock.tick().await
    }

    async fn seconds_for(rate: u64, chunks: &[usize]) -> f64 {
        let mut bucket = Bucket::new(NonZeroU64::new(rate));
        let mut clock = tokio::time::interval(Duration::from_millis(1));
        let start = now(&mut clock).await;
        for &chunk in chunks {
            bucket.take(chunk).await;
        }
        (now(&mut clock).await - start).as_secs_f64()
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_pass_at_the_rate_whatever_the_chunks() {
        for chunks in [vec![1000; 100], vec![100_000], vec![1; 1000], vec![65_536, 1, 34_463]] {
            let bytes: usize = chunks.iter().sum();
            let expected = f64::from(u32::try_from(bytes).unwrap()) / 10_000.0;
            let took = seconds_for(10_000, &chunks).await;
            assert!((took - expected).abs() <= 0.15, "{took} {expected}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_saves_up_no_more_than_a_tenth_of_a_second() {
        let mut bucket = Bucket::new(NonZeroU64::new(1000));
        bucket.take(100).await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        let mut clock = tokio::time::interval(Duration::from_millis(1));
        let start = now(&mut clock).await;
        bucket.take(1000).await;
        let took = now(&mut clock).await - start;
        assert!(took >= Duration::from_millis(850), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_limit_never_waits() {
        assert!(seconds_for(0, &[usize::MAX / 2, 1]).await < 0.01);
        assert_eq!(Bucket::new(None).chunk(65_536), 65_536);
        assert_eq!(Bucket::new(NonZeroU64::new(20_000)).chunk(65_536), 2000);
    }
}
