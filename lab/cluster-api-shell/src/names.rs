//! Names that a restart computes again: nothing is created twice.
//!
//! They look like Cluster API's (`<owner>-<5 characters>`), but follow from what is stored: a
//! process that died between creating a bootstrap config and its Machine finds the config under
//! the name that it would give it now.

use std::collections::BTreeSet;

use refit_kinds::refit::hash_json;
use serde_json::{Value, json};

/// The characters of generated names, as Kubernetes has them: no vowels, no look-alikes.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Length of a generated suffix.
const SUFFIX_LEN: usize = 5;
/// Longest name that can be a label's value.
const MAX_NAME_LEN: usize = 63;
/// How many names in a row may be missing before the search for the highest one ends.
const GAP: usize = 512;

/// Five characters that follow from a value.
pub(crate) fn suffix(seed: &Value) -> String {
    let hash = hash_json(seed);
    let mut number = u64::from_str_radix(&hash[..16], 16).expect("a sha256 in hex has 64 digits");
    let mut text = String::with_capacity(SUFFIX_LEN);
    for _ in 0..SUFFIX_LEN {
        let index = usize::try_from(number % 27).expect("a remainder of 27 fits");
        text.push(char::from(ALPHABET[index]));
        number /= 27;
    }
    text
}

/// `<base>-<suffix>`, shortened where it would be longer than a label allows.
pub(crate) fn with_suffix(base: &str, suffix: &str) -> String {
    let room = MAX_NAME_LEN - suffix.len() - 1;
    let end = base
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|end| *end <= room)
        .last()
        .unwrap_or(0);
    format!("{}-{suffix}", base[..end].trim_end_matches(['-', '.']))
}

/// The name of the next object that an owner creates: the one after the highest that is taken.
///
/// The names of one owner form a sequence that follows from its uid. A name is not given out again
/// while a later one of its sequence is taken.
pub(crate) fn next(base: &str, owner_uid: &str, taken: &BTreeSet<String>) -> String {
    let name = |index: usize| with_suffix(base, &suffix(&json!([owner_uid, index])));
    let mut next = 0;
    let mut index = 0;
    while index < next + GAP {
        if taken.contains(&name(index)) {
            next = index + 1;
        }
        index += 1;
    }
    name(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(names: &[&String]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).clone()).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_suffix_in_kubernetes_alphabet() {
        let text = suffix(&json!(["uid", 0]));
        assert_eq!(text, suffix(&json!(["uid", 0])));
        assert_ne!(text, suffix(&json!(["uid", 1])));
        assert_eq!(text.len(), 5);
        assert!(text.bytes().all(|byte| ALPHABET.contains(&byte)));
    }

    #[test]
    fn a_restart_finds_the_name_that_it_was_about_to_use() {
        let first = next("ms", "uid", &taken(&[]));
        assert_eq!(next("ms", "uid", &taken(&[])), first);
        let second = next("ms", "uid", &taken(&[&first]));
        assert_ne!(second, first);
    }

    #[test]
    fn a_name_is_not_used_again_while_a_later_one_is_taken() {
        let first = next("ms", "uid", &taken(&[]));
        let second = next("ms", "uid", &taken(&[&first]));
        let third = next("ms", "uid", &taken(&[&first, &second]));
        assert_eq!(next("ms", "uid", &taken(&[&second])), third);
    }

    #[test]
    fn another_owner_has_other_names() {
        assert_ne!(next("ms", "uid-1", &taken(&[])), next("ms", "uid-2", &taken(&[])));
    }

    #[test]
    fn long_names_are_shortened_to_what_a_label_takes() {
        let name = with_suffix(&"a".repeat(80), "bcdfg");
        assert_eq!(name.len(), 63);
        assert!(name.ends_with("-bcdfg"));
        assert_eq!(with_suffix("edge-1-md-0", "bcdfg"), "edge-1-md-0-bcdfg");
        let cut = with_suffix(&format!("{}-tail", "a".repeat(56)), "bcdfg");
        assert_eq!(cut, format!("{}-bcdfg", "a".repeat(56)));
    }
}
