//! HTTP responses: status, content type, warnings, and a body in one or more chunks.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};

use crate::error::ApiError;
use crate::portforward::Switch;
use crate::server::AnswerBody;
use crate::verbs::Reply;

/// Lists up to this size are sent in one chunk.
const ONE_PIECE_BYTES: usize = 1024 * 1024;

/// Maximum number of warnings in a response.
const MOST_WARNINGS: usize = 40;

/// The response for a rejected request.
pub(crate) fn refusal(error: &ApiError) -> Response<AnswerBody> {
    respond(Reply::from_error(error))
}

fn whole(bytes: Bytes) -> AnswerBody {
    Full::new(bytes).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// Converts a reply to an HTTP response.
pub(crate) fn respond(reply: Reply) -> Response<AnswerBody> {
    let mut all_warnings = Vec::new();
    let (code, kind, body) = match reply {
        Reply::Json(code, bytes) => (code, "application/json", whole(bytes)),
        Reply::Typed(kind, bytes) => (200, kind, whole(bytes)),
        Reply::Warned(code, bytes, warnings) => {
            all_warnings = warnings;
            (code, "application/json", whole(bytes))
        }
        Reply::Switch(switch) => return switching(&switch),
        Reply::Text(code, text) => (code, "text/plain; charset=utf-8", whole(Bytes::from(text))),
        Reply::Pieces(pieces) => (200, "application/json", pieces_body(pieces)),
        Reply::Watch(watch) => {
            let frames = futures::StreamExt::map(watch.into_stream(), |item| item.map(Frame::data));
            (200, "application/json", StreamBody::new(frames).boxed_unsync())
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    for warning in all_warnings.iter().take(MOST_WARNINGS) {
        let text = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = header::HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

/// The response that ends HTTP on a connection.
fn switching(switch: &Switch) -> Response<AnswerBody> {
    let builder = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, &switch.accept);
    let builder = match switch.protocol {
        Some(protocol) => builder.header(header::SEC_WEBSOCKET_PROTOCOL, protocol),
        None => builder,
    };
    builder.body(whole(Bytes::new())).expect("the accepted key is base64")
}

fn pieces_body(pieces: Vec<Bytes>) -> AnswerBody {
    let size: usize = pieces.iter().map(Bytes::len).sum();
    if size <= ONE_PIECE_BYTES {
        return whole(Bytes::from(pieces.concat()));
    }
    let frames = pieces.into_iter().map(|piece| Ok(Frame::data(piece)));
    StreamBody::new(futures::stream::iter(frames)).boxed_unsync()
}
