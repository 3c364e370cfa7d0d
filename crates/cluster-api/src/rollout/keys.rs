//! Annotation keys of the rollout protocol, and their list values.

pub use refit_kinds::keys::{
    ACKNOWLEDGED_MOVE, DELETE_MACHINE, DESIRED_REPLICAS, DISABLE_MACHINE_CREATE, MAX_REPLICAS,
    MOVE_MACHINES, PENDING_ACKNOWLEDGE_MOVE, PENDING_HOOKS, RECEIVE_MACHINES, REMEDIATE_MACHINE,
    REVISION, UPDATE_IN_PROGRESS, UPDATE_MACHINE_HOOK,
};

/// Splits a comma-separated annotation value; an empty value has no members.
pub fn split_list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').filter(|name| !name.is_empty())
}

/// Joins names to an annotation value, sorted as strings, so that the value is stable.
pub fn join_sorted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let sorted: std::collections::BTreeSet<&str> = names.into_iter().collect();
    sorted.into_iter().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_has_no_members() {
        assert_eq!(split_list("").count(), 0);
        assert_eq!(split_list("a,b").collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn lists_are_sorted_as_strings_not_as_numbers() {
        assert_eq!(join_sorted(["m4", "m10", "m9"]), "m10,m4,m9");
        assert_eq!(join_sorted([]), "");
    }
}
