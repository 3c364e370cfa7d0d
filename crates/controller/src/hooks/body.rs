//! Reads request bodies within a budget, whatever the number of connections and requests. What the
//! transport has received and no reader has taken yet is not part of it.

use std::{
    pin::{Pin, pin},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body;
use prometheus_client::metrics::gauge::Gauge;
use refit_kinds::hooks::MAX_BODY_BYTES;
use tokio::sync::{Semaphore, SemaphorePermit};
use tower::BoxError;

/// Bodies up to this size share [`SMALL_BODIES_BYTES`]. Real requests have about 100 KiB.
const SMALL_BODY_BYTES: usize = 1024 * 1024;
/// How many bytes of small bodies are held at once. A body waits for its next bytes until the
/// deadline of its request, so slow clients hold only what they sent.
const SMALL_BODIES_BYTES: usize = MAX_BODY_BYTES;
/// How many larger bodies are held at once; further ones wait. All bodies together are as large as
/// eight of the largest.
const LARGE_BODIES: usize = 7;
/// How much of an oversized body is read and discarded before the connection is closed: a caller
/// that is still writing would never see why it was refused.
const DISCARD_BYTES: usize = 2 * MAX_BODY_BYTES;

/// How long a body may deliver nothing: a stalled one must not keep its share of the budget.
const STALL_DEADLINE: Duration = Duration::from_secs(5);

/// The budget of all request bodies.
pub(super) struct Bodies {
    small: Semaphore,
    large: Semaphore,
    /// The bytes that are held.
    held: Gauge,
}

/// A body, which holds its share of the budget.
pub(super) struct Held<'a> {
    pub(super) content: BytesMut,
    bodies: &'a Bodies,
    share: Option<SemaphorePermit<'a>>,
    /// Whether the share is one of the [`LARGE_BODIES`].
    large: bool,
}

/// Why a body is refused.
pub(super) enum BodyError {
    /// The connection or stream ended before the body.
    Ended,
    /// The body delivered nothing for [`STALL_DEADLINE`].
    Stalled,
    /// The body exceeds [`MAX_BODY_BYTES`].
    TooLarge,
}

impl Bodies {
    /// An unused budget, and the gauge that shows its use.
    pub(super) fn new(held: Gauge) -> Self {
        let (small, large) = (Semaphore::new(SMALL_BODIES_BYTES), Semaphore::new(LARGE_BODIES));
        Self { small, large, held }
    }

    /// Reads a body up to the limit.
    pub(super) async fn read<B>(&self, body: B) -> Result<Held<'_>, BodyError>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let mut body = pin!(body);
        let mut held = self.empty();
        while let Some(data) = next(body.as_mut()).await? {
            if held.content.len() + data.len() > MAX_BODY_BYTES {
                drop(held);
                return skip(body, DISCARD_BYTES).await.and(Err(BodyError::TooLarge));
            }
            held.extend(&data).await;
        }
        Ok(held)
    }

    /// Reads a body up to the limit, and holds nothing of it.
    pub(super) async fn discard<B>(&self, body: B) -> Result<Held<'_>, BodyError>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        skip(pin!(body), MAX_BODY_BYTES).await.map(|()| self.empty())
    }

    fn empty(&self) -> Held<'_> {
        Held { content: BytesMut::new(), bodies: self, share: None, large: false }
    }
}

impl Held<'_> {
    /// Appends bytes once the budget allows it. A body becomes a large one early if the small ones
    /// take all of their budget: they could otherwise all wait for each other.
    async fn extend(&mut self, data: &[u8]) {
        let Bodies { small, large, held } = self.bodies;
        let length = self.content.len() + data.len();
        let share_of_small = u32::try_from(data.len()).ok().filter(|_| length <= SMALL_BODY_BYTES);
        if !self.large {
            let more = async {
                match share_of_small {
                    Some(bytes) => small.acquire_many(bytes).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Ok(more) = more => match &mut self.share {
                    Some(share) => share.merge(more),
                    share => *share = Some(more),
                },
                Ok(turn) = large.acquire() => {
                    self.share = Some(turn);
                    self.large = true;
                    // Growing by doubling would allocate up to twice the length.
                    self.content.reserve(MAX_BODY_BYTES - self.content.len());
                }
                else => unreachable!("the semaphores are never closed"),
            }
        }
        self.content.extend_from_slice(data);
        held.inc_by(i64::try_from(data.len()).unwrap_or_default());
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.bodies.held.dec_by(i64::try_from(self.content.len()).unwrap_or_default());
    }
}

/// The next bytes of a body.
async fn next<B: Body<Data = Bytes>>(mut body: Pin<&mut B>) -> Result<Option<Bytes>, BodyError> {
    loop {
        let frame = tokio::time::timeout(STALL_DEADLINE, body.frame());
        let Some(frame) = frame.await.map_err(|_| BodyError::Stalled)? else {
            return Ok(None);
        };
        if let Ok(data) = frame.map_err(|_| BodyError::Ended)?.into_data() {
            return Ok(Some(data));
        }
    }
}

/// Reads the rest of a body, which must not exceed the limit.
async fn skip<B: Body<Data = Bytes>>(mut body: Pin<&mut B>, limit: usize) -> Result<(), BodyError> {
    let mut read = 0_usize;
    while let Some(data) = next(body.as_mut()).await? {
        read = read.saturating_add(data.len());
        if read > limit {
            return Err(BodyError::TooLarge);
        }
    }
    Ok(())
}
