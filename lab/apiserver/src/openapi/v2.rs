//! OpenAPI v2, the minimum for kubectl: it reads the document as protocol buffers before it sends
//! the items of a `List`, and does not check kinds without a definition. The definitions are in v3.

use bytes::Bytes;
use serde_json::json;

use crate::write::to_bytes;

/// The part of an `Accept` header that requests the binary form.
pub(crate) const V2_PROTOBUF_NAME: &str = "com.github.proto-openapi.spec.v2";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const JSON: &str = "application/json";

const TITLE: &str = "Kubernetes";

/// The content type and the document.
pub(crate) fn document(git_version: &str, protobuf: bool) -> (&'static str, Bytes) {
    if protobuf {
        let mut info = Vec::new();
        text(&mut info, 1, TITLE.as_bytes());
        text(&mut info, 2, git_version.as_bytes());
        let mut document = Vec::new();
        text(&mut document, 1, b"2.0");
        text(&mut document, 2, &info);
        return (PROTOBUF, Bytes::from(document));
    }
    let document = json!({
        "swagger": "2.0",
        "info": {"title": TITLE, "version": git_version},
        "paths": {},
        "definitions": {},
    });
    (JSON, to_bytes(&document))
}

/// Writes a length-delimited field. Field numbers are below 16 here, so each tag is one byte.
fn text(into: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    into.push(field << 3 | 2);
    let mut length = bytes.len();
    while length >= 0x80 {
        into.push(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
        length >>= 7;
    }
    into.push(u8::try_from(length).unwrap_or(0));
    into.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_form_is_a_message_of_two_fields() {
        let (kind, bytes) = document("v1.35.0", true);
        assert!(kind.contains(V2_PROTOBUF_NAME));
        assert_eq!(&bytes[..5], b"\x0a\x032.0");
        assert_eq!(&bytes[5..9], b"\x12\x15\x0a\x0a");
        assert!(bytes.ends_with(b"\x12\x07v1.35.0"));
        let mut long = Vec::new();
        text(&mut long, 1, &[b'x'; 300]);
        assert_eq!(&long[..3], b"\x0a\xac\x02");
    }
}
