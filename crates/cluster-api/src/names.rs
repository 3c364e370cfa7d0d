//! Names like Cluster API's, `<owner>-<5 characters>`, but derived from what they are for: a process that creates
//! the object after a crash computes the same name, and finds the object.

use refit_kinds::refit::hash_json;
use serde_json::Value;

/// The alphabet of Kubernetes' generated names: no vowels, no look-alikes.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LEN: usize = 5;
/// Maximum length of a name that can be a label's value.
const MAX_NAME_LEN: usize = 63;

/// Returns five characters derived from a value.
pub fn suffix(seed: &Value) -> String {
    let hash = hash_json(seed);
    let mut number = u64::from_str_radix(&hash[..16], 16).expect("a sha256 in hex has 64 digits");
    let mut text = String::with_capacity(SUFFIX_LEN);
    for _ in 0..SUFFIX_LEN {
        let index = usize::try_from(number % 27).expect("a remainder below 27 fits");
        text.push(char::from(ALPHABET[index]));
        number /= 27;
    }
    text
}

/// Returns `<base>-<suffix>`, shortened to the maximum length of a label value.
pub fn with_suffix(base: &str, suffix: &str) -> String {
    let room = MAX_NAME_LEN - suffix.len() - 1;
    let end = base
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|end| *end <= room)
        .last()
        .unwrap_or(0);
    format!("{}-{suffix}", base[..end].trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_suffix_in_kubernetes_alphabet() {
        let text = suffix(&json!(["uid", 0]));
        assert_eq!(text, suffix(&json!(["uid", 0])));
        assert_ne!(text, suffix(&json!(["uid", 1])));
        assert_eq!(text.len(), 5);
        assert!(text.bytes().all(|byte| ALPHABET.contains(&byte)));
    }

    #[test]
    fn long_names_are_shortened_to_a_label_value() {
        let name = with_suffix(&"a".repeat(80), "bcdfg");
        assert_eq!(name.len(), 63);
        assert!(name.ends_with("-bcdfg"));
        assert_eq!(with_suffix("edge-1-md-0", "bcdfg"), "edge-1-md-0-bcdfg");
        let cut = with_suffix(&format!("{}-tail", "a".repeat(56)), "bcdfg");
        assert_eq!(cut, format!("{}-bcdfg", "a".repeat(56)));
    }
}
