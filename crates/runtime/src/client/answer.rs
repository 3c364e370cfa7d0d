//! The body of a response: its stalls and its size are limited.

use std::{
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::Sleep;
use tower::BoxError;

use super::discipline::late;
use crate::gate::{Fate, Gate};

/// An API server sends more than this process accepts from it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TooLarge(String);

impl TooLarge {
    /// `what` is the rest of a sentence whose subject is the cluster.
    pub(crate) fn new(what: String) -> Self {
        Self(what)
    }
}

/// Whether a request failed because its response is too large.
pub fn too_large(error: &(dyn Error + 'static)) -> Option<TooLarge> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<TooLarge>() {
            return Some(found.clone());
        }
        // An I/O error is not the source of the error in it, but the error itself.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        cause = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// The cause of an error in an API server's own words, without the fields of its Status.
pub fn cause(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error { status.message.clone() } else { error.to_string() }
}

/// Maximum size of an event of a watch; etcd limits an object to 1.5 MiB
/// (`docs/facts/kubernetes.md#large-clusters`).
const MAX_EVENT: usize = 4 << 20;

/// How much more of a response is accepted.
#[derive(Debug)]
pub(super) struct Room {
    max: usize,
    used: usize,
    /// A watch has no end: its limit is for one event, which is a line.
    per_line: bool,
}

impl Room {
    pub(super) fn new(max: usize, per_line: bool) -> Self {
        let max = if per_line { max.min(MAX_EVENT) } else { max };
        Self { max, used: 0, per_line }
    }

    fn take(&mut self, chunk: &[u8]) -> Result<(), TooLarge> {
        let last_line = chunk.iter().rposition(|byte| *byte == b'\n').filter(|_| self.per_line);
        self.used = match last_line {
            Some(at) => chunk.len() - at - 1,
            None => self.used.saturating_add(chunk.len()),
        };
        let what = if self.per_line { "an event" } else { "a response" };
        let mebibytes = self.max / (1 << 20);
        (self.used <= self.max)
            .then_some(())
            .ok_or_else(|| TooLarge::new(format!("it sends {what} of more than {mebibytes} MiB")))
    }
}

/// A response body: a dead process reads no more of it, and it may not stall or grow without limit.
pub(super) struct Answer<B> {
    inner: B,
    gate: Arc<dyn Gate>,
    /// How long the next chunk may take; `None` for a watch, which may be silent.
    stall: Option<Duration>,
    /// Set only while waiting for a chunk.
    timer: Option<Pin<Box<Sleep>>>,
    room: Option<Room>,
}

impl<B> Answer<B> {
    pub(super) fn new(
        inner: B,
        gate: Arc<dyn Gate>,
        stall: Option<Duration>,
        room: Option<Room>,
    ) -> Self {
        Self { inner, gate, stall, timer: None, room }
    }
}

impl<B> http_body::Body for Answer<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.inner).poll_frame(cx);
        // Checked after the poll, because the error of a stream cut by the kill is a response too.
        if this.gate.fate() == Fate::Dead {
            return Poll::Pending;
        }
        if let Poll::Ready(frame) = frame {
            this.timer = None;
            if let (Some(room), Some(Ok(frame))) = (&mut this.room, &frame)
                && let Some(chunk) = frame.data_ref()
                && let Err(error) = room.take(chunk)
            {
                return Poll::Ready(Some(Err(error.into())));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let Some(stall) = this.stall else {
            return Poll::Pending;
        };
        let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        timer
            .as_mut()
            .poll(cx)
            .map(|()| Some(Err(late("the API server's answer stalled for", stall))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(max: usize, per_line: bool, chunks: &[&str]) -> bool {
        let mut room = Room::new(max, per_line);
        chunks.iter().all(|chunk| room.take(chunk.as_bytes()).is_ok())
    }

    #[test]
    fn a_response_is_limited_as_a_whole_and_a_watch_by_its_lines() {
        for (per_line, chunks, wanted) in [
            (false, &["ab", "cd"][..], true),
            (false, &["ab", "c\n", "e"], false),
            (true, &["ab\n", "cd\n", "ef\n"], true),
            (true, &["ab", "cde"], false),
            (true, &["a\nbc", "de"], true),
            (true, &["a\nbc", "def"], false),
        ] {
            assert_eq!(accepted(4, per_line, chunks), wanted, "{per_line} {chunks:?}");
        }
    }

    #[test]
    fn the_cause_is_found_in_an_io_error() {
        let cause = TooLarge::new("it is".to_owned());
        let wrapped = std::io::Error::other(std::io::Error::other(cause.clone()));
        assert_eq!(too_large(&kube::Error::Service(wrapped.into())), Some(cause));
        assert_eq!(too_large(&std::io::Error::other("no")), None);
    }
}
