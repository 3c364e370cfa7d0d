//! The body of a response whose objects get another form.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::Frame;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A response body, with its objects in another form. A watch is converted line by line, any other response once it is
/// complete.
pub(super) struct Converted<B> {
    inner: B,
    conversion: Option<Conversion>,
}

struct Conversion {
    read: fn(&mut Value),
    per_line: bool,
    /// What has arrived and is not converted yet.
    pending: Vec<u8>,
    ended: bool,
}

/// An event of a watch. kube reads its type first: a kind's object is known only then.
#[derive(Deserialize, Serialize)]
struct Event {
    #[serde(rename = "type")]
    type_: String,
    object: Value,
}

impl<B> Converted<B> {
    /// A body that is passed on as it is.
    pub(super) fn as_it_is(inner: B) -> Self {
        Self { inner, conversion: None }
    }

    /// A body whose objects are changed by `read`; `watch` if it is a stream of events.
    pub(super) fn new(inner: B, read: fn(&mut Value), watch: bool) -> Self {
        let conversion = Conversion { read, per_line: watch, pending: Vec::new(), ended: false };
        Self { inner, conversion: Some(conversion) }
    }
}

impl Conversion {
    /// Takes a chunk; returns what can be passed on.
    fn take(&mut self, chunk: &[u8]) -> Option<Bytes> {
        let line_end = chunk.iter().rposition(|byte| *byte == b'\n').filter(|_| self.per_line);
        let Some(at) = line_end else {
            self.pending.extend_from_slice(chunk);
            return None;
        };
        let (lines, rest) = chunk.split_at(at + 1);
        let mut complete = std::mem::take(&mut self.pending);
        complete.extend_from_slice(lines);
        self.pending.extend_from_slice(rest);
        let lines = complete.split_inclusive(|byte| *byte == b'\n');
        Some(lines.flat_map(|line| self.converted(line)).collect())
    }

    /// What is left at the end.
    fn rest(&mut self) -> Option<Bytes> {
        let pending = std::mem::take(&mut self.pending);
        (!pending.is_empty()).then(|| self.converted(&pending).into())
    }

    /// An event, a list or an object in its new form. Text other than JSON is passed on for its reader to refuse.
    fn converted(&self, text: &[u8]) -> Vec<u8> {
        let converted = if self.per_line { self.event(text) } else { self.answer(text) };
        converted.unwrap_or_else(|_| text.to_vec())
    }

    fn event(&self, line: &[u8]) -> serde_json::Result<Vec<u8>> {
        let mut event: Event = serde_json::from_slice(line)?;
        (self.read)(&mut event.object);
        let mut line = serde_json::to_vec(&event)?;
        line.push(b'\n');
        Ok(line)
    }

    fn answer(&self, text: &[u8]) -> serde_json::Result<Vec<u8>> {
        let mut answer: Value = serde_json::from_slice(text)?;
        match answer.get_mut("items").and_then(Value::as_array_mut) {
            Some(items) => items.iter_mut().for_each(self.read),
            None => (self.read)(&mut answer),
        }
        serde_json::to_vec(&answer)
    }
}

impl<B> http_body::Body for Converted<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let Some(conversion) = &mut this.conversion else {
            return Pin::new(&mut this.inner).poll_frame(cx);
        };
        loop {
            if conversion.ended {
                return Poll::Ready(None);
            }
            let ready = match Pin::new(&mut this.inner).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                // Trailers have nothing to convert, and no reader here.
                Poll::Ready(Some(Ok(frame))) => {
                    frame.data_ref().and_then(|chunk| conversion.take(chunk))
                }
                Poll::Ready(None) => {
                    conversion.ended = true;
                    conversion.rest()
                }
            };
            if let Some(bytes) = ready {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.conversion {
            None => self.inner.is_end_stream(),
            Some(conversion) => conversion.ended,
        }
    }
}
