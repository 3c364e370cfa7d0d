//! Edits of a valid input, for runs without a fuzzing engine: random bytes alone are never valid
//! JSON.

/// The position and length of a range, and the text to put there. Positions are scaled to the
/// input.
pub type Edit = (u16, u8, u8);

/// Text that often changes the meaning of JSON or YAML.
const TOKENS: [&[u8]; 16] = [
    b"",
    b"null",
    b"{}",
    b"[]",
    b"\"\"",
    b"0",
    b"-1",
    b"1e999",
    b"true",
    b"\"",
    b",",
    b":",
    b"\n",
    b"\0",
    b"\xff",
    b"\"v1.35.0\"",
];

/// Applies edits to a seed.
pub fn edited(seed: &[u8], edits: &[Edit]) -> Vec<u8> {
    edits.iter().fold(seed.to_vec(), |mut bytes, (at, length, token)| {
        let start = usize::from(*at) * bytes.len() / usize::from(u16::MAX);
        // Mostly short ranges, so that the rest stays valid.
        let end = (start + usize::from(length % 16)).min(bytes.len());
        bytes.splice(start..end, TOKENS[usize::from(*token) % TOKENS.len()].iter().copied());
        bytes
    })
}
