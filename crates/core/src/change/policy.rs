//! What happens to a change that nobody covers, and who says so.

use std::collections::BTreeMap;

use refit_kinds::keys;

/// What happens to a change that no updater covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUncovered {
    /// The rollout stops, and nothing is replaced.
    #[default]
    Preserve,
    /// Cluster API replaces the machines.
    Replace,
}

/// What owner, Cluster and controller say together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// What happens to a change that no updater covers.
    pub on_uncovered: OnUncovered,
    /// Refit is to leave the machines to Cluster API's own rollout.
    pub disabled: bool,
    /// Machines that are updated are not guarded against remediation; a Machine may say otherwise.
    pub unguarded: bool,
    /// Annotation and value that were not understood; the policy is Preserve then.
    pub not_understood: Option<(String, String)>,
}

impl Policy {
    /// What is not understood, as a sentence; empty if everything is.
    pub fn complaint(&self) -> String {
        self.not_understood
            .as_ref()
            .map(|(key, value)| {
                format!("{key}: {value:?} is not understood; the careful choice is taken")
            })
            .unwrap_or_default()
    }
}

/// Reads the policy from the annotations of owner and Cluster, in this order, else the default.
///
/// A value that is not understood counts as the careful one: `Preserve` for `on-uncovered`, in place
/// for `in-place`, because its opposite replaces machines, and a guard for `remediation-guard`.
pub fn policy(
    owner: &BTreeMap<String, String>,
    cluster: &BTreeMap<String, String>,
    default: OnUncovered,
) -> Policy {
    let said = |key: &str| owner.get(key).or_else(|| cluster.get(key)).map(String::as_str);
    let mut policy = Policy { on_uncovered: default, ..Policy::default() };
    let mut confused = |key: &str, value: &str| {
        policy.not_understood = Some((key.to_owned(), value.to_owned()));
    };
    let mut switched_off = |key: &str| match said(key) {
        Some("Disabled") => true,
        // The label that opts a namespace in has the same key and is written in small letters.
        None | Some("" | "Enabled" | "enabled") => false,
        Some(other) => {
            confused(key, other);
            false
        }
    };
    let unguarded = switched_off(keys::REMEDIATION_GUARD);
    let disabled = switched_off(keys::IN_PLACE);
    let on_uncovered = match said(keys::ON_UNCOVERED) {
        None => default,
        Some("Replace") => OnUncovered::Replace,
        Some("Preserve") => OnUncovered::Preserve,
        Some(other) => {
            confused(keys::ON_UNCOVERED, other);
            OnUncovered::Preserve
        }
    };
    Policy { on_uncovered, disabled, unguarded, ..policy }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(key: &str, value: &str) -> BTreeMap<String, String> {
        [(key.to_owned(), value.to_owned())].into()
    }

    #[test]
    fn preserve_is_what_nobody_has_to_ask_for() {
        let policy = policy(&BTreeMap::new(), &BTreeMap::new(), OnUncovered::default());
        assert_eq!(policy, Policy::default());
        assert_eq!(policy.on_uncovered, OnUncovered::Preserve);
    }

    #[test]
    fn the_owner_goes_before_the_cluster_and_that_before_the_default() {
        let (preserve, replace) =
            (says(keys::ON_UNCOVERED, "Preserve"), says(keys::ON_UNCOVERED, "Replace"));
        let of = |owner, cluster, default| policy(owner, cluster, default).on_uncovered;
        let none = BTreeMap::new();
        assert_eq!(of(&preserve, &replace, OnUncovered::Replace), OnUncovered::Preserve);
        assert_eq!(of(&none, &replace, OnUncovered::Preserve), OnUncovered::Replace);
        assert_eq!(of(&none, &none, OnUncovered::Replace), OnUncovered::Replace);
    }

    #[test]
    fn a_value_that_is_not_understood_preserves_and_is_named() {
        for wrong in ["replace", "Replace ", "", "yes"] {
            let policy =
                policy(&says(keys::ON_UNCOVERED, wrong), &BTreeMap::new(), OnUncovered::Replace);
            assert_eq!(policy.on_uncovered, OnUncovered::Preserve, "{wrong:?}");
            assert_eq!(policy.not_understood, Some((keys::ON_UNCOVERED.into(), wrong.into())));
        }
    }

    #[test]
    fn only_the_exact_word_disables() {
        let of =
            |value| policy(&says(keys::IN_PLACE, value), &BTreeMap::new(), OnUncovered::Preserve);
        assert!(of("Disabled").disabled);
        assert!(!of("disabled").disabled);
        assert!(of("disabled").not_understood.is_some());
        assert!(!of("Enabled").disabled && of("Enabled").not_understood.is_none());
    }

    #[test]
    fn a_guard_is_switched_off_by_the_exact_word() {
        let of = |value| {
            policy(
                &says(keys::REMEDIATION_GUARD, value),
                &says(keys::REMEDIATION_GUARD, "Disabled"),
                OnUncovered::Preserve,
            )
        };
        assert!(of("Disabled").unguarded);
        assert!(!of("Enabled").unguarded && of("Enabled").not_understood.is_none());
        assert!(!of("off").unguarded);
        assert_eq!(of("off").not_understood, Some((keys::REMEDIATION_GUARD.into(), "off".into())));
    }

    #[test]
    fn a_cluster_can_disable_for_all_its_owners() {
        let policy =
            policy(&BTreeMap::new(), &says(keys::IN_PLACE, "Disabled"), OnUncovered::Preserve);
        assert!(policy.disabled);
    }
}
