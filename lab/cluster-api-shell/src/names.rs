//! Deterministic names: after a restart no object is created twice.
//!
//! The names look like Cluster API's (`<owner>-<5 characters>`), but are derived from stored state:
//! if a process crashes between creating a bootstrap config and its Machine, the next one computes
//! the same name and finds the config.

use std::collections::BTreeSet;

use refit_kinds::refit::hash_json;
use serde_json::{Value, json};

/// The alphabet of Kubernetes' generated names: no vowels, no look-alikes.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LEN: usize = 5;
/// Maximum length of a name that can be a label's value.
const MAX_NAME_LEN: usize = 63;
/// The search for the highest name ends after this many missing names in a row.
const GAP: usize = 512;

/// Five characters derived from a value.
pub(crate) fn suffix(seed: &Value) -> String {
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

/// `<base>-<suffix>`, shortened to the maximum length of a label value.
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

/// The name of the next object that an owner creates: the one after the highest name in use.
///
/// The names of one owner form a sequence derived from its uid. A name is not reused while a later
/// one of its sequence is in use.
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
    fn long_names_are_shortened_to_a_label_value() {
        let name = with_suffix(&"a".repeat(80), "bcdfg");
        assert_eq!(name.len(), 63);
        assert!(name.ends_with("-bcdfg"));
        assert_eq!(with_suffix("edge-1-md-0", "bcdfg"), "edge-1-md-0-bcdfg");
        let cut = with_suffix(&format!("{}-tail", "a".repeat(56)), "bcdfg");
        assert_eq!(cut, format!("{}-bcdfg", "a".repeat(56)));
    }
}
