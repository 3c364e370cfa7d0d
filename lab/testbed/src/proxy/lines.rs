//! Reformats a stream of JSON values to one value per line.
//!
//! The in-memory server indents the events of a watch; Kubernetes sends each event on one line, and
//! clients may rely on that.

use bytes::Bytes;

/// The position in a stream of JSON.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lines {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Lines {
    /// Reformats the next bytes of the stream: no blanks between tokens, a newline after each
    /// value.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(bytes.len());
        for byte in bytes {
            if self.in_string {
                out.push(*byte);
                self.in_string = self.escaped || *byte != b'"';
                self.escaped = !self.escaped && *byte == b'\\';
                continue;
            }
            match byte {
                b' ' | b'\n' | b'\r' | b'\t' => continue,
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            out.push(*byte);
            if self.depth == 0 {
                out.push(b'\n');
            }
        }
        out.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_on_one_line_wherever_the_stream_is_cut() {
        let text = "{\n \"a\": \"x \\\" } y\",\n \"b\": [1, {}]\n}\n{\"c\": null}";
        for cut in 0..text.len() {
            let (head, tail) = text.as_bytes().split_at(cut);
            let mut lines = Lines::default();
            let out = [lines.push(head), lines.push(tail)].concat();
            let out = String::from_utf8(out).unwrap();
            assert_eq!(out, "{\"a\":\"x \\\" } y\",\"b\":[1,{}]}\n{\"c\":null}\n");
        }
    }
}
