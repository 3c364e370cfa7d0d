//! Deterministic names: after a restart no object is created twice.
//!
//! The names look like Cluster API's (`<owner>-<5 characters>`), but are derived from stored state:
//! if a process crashes between creating a bootstrap config and its Machine, the next one computes
//! the same name and finds the config.

use std::collections::BTreeSet;

use refit_cluster_api::names::{suffix, with_suffix};
use serde_json::json;

/// The search for the highest name ends after this many missing names in a row.
const GAP: usize = 512;

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
}
