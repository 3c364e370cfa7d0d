//! What happens to a change that no updater covers, and how annotations decide it.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use refit_kinds::{keys, refit::Disruption};

use crate::node::parse_limit;

/// What happens to a change that no updater covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUncovered {
    /// The rollout stops, and no machine is replaced.
    #[default]
    Preserve,
    /// Cluster API replaces the machines.
    Replace,
}

/// What follows from HostSettings of the owner's machines that change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SettingsChanges {
    /// They are applied by the next upgrade.
    #[default]
    Wait,
    /// Updates of the machines start by themselves.
    Start,
}

/// The combined policy of owner, Cluster and controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// What happens to a change that no updater covers.
    pub on_uncovered: OnUncovered,
    /// Refit leaves the machines to Cluster API's own rollout.
    pub disabled: bool,
    /// Machines under update are not guarded against remediation; a Machine's annotation may
    /// override this.
    pub unguarded: bool,
    /// The only Machine of a control plane is updated in place.
    pub single_replica_in_place: bool,
    /// Whether HostSettings that change start updates.
    pub settings_changes: SettingsChanges,
    /// How long an agent may be silent during an update before its host counts as lost; `None` for
    /// ever.
    pub host_lost_after: Option<SignedDuration>,
    /// How commands of a KubeadmConfig disturb a host on which they run again; `None` if they must not.
    pub rerun: Option<Disruption>,
    /// sha256 of values of Secrets, by name and key.
    pub secrets: BTreeMap<(String, String), String>,
    /// Annotation and value that are invalid; the policy is then Preserve.
    pub not_understood: Option<(String, String)>,
}

impl Policy {
    /// Describes the invalid annotation in a sentence; empty if all are valid.
    pub fn complaint(&self) -> String {
        self.not_understood
            .as_ref()
            .map(|(key, value)| {
                format!("invalid value {value:?} of {key}; the safest setting applies instead")
            })
            .unwrap_or_default()
    }
}

/// The controller's settings, which apply where no annotation does.
#[derive(Clone, Copy, Debug, Default)]
pub struct PolicyDefaults {
    /// Default of [`Policy::on_uncovered`].
    pub on_uncovered: OnUncovered,
    /// Default of [`Policy::host_lost_after`].
    pub host_lost_after: Option<SignedDuration>,
}

/// Reads the policy from the annotations of owner and Cluster, in this order, or else the default.
///
/// An invalid value falls back to the safe choice: `Preserve` for `on-uncovered`, in place for
/// `in-place` (the opposite replaces machines), a guard for `remediation-guard`, `Leave` for `single-replica`,
/// `Wait` for `host-settings-changes`, the default for `host-lost-after`, and none for `rerun-commands` and
/// `secret-sha256`.
pub fn policy(
    owner: &BTreeMap<String, String>,
    cluster: &BTreeMap<String, String>,
    default: PolicyDefaults,
) -> Policy {
    let setting = |key: &str| owner.get(key).or_else(|| cluster.get(key)).map(String::as_str);
    let mut policy = Policy::default();
    let mut record_invalid = |key: &str, value: &str| {
        policy.not_understood = Some((key.to_owned(), value.to_owned()));
    };
    let mut switched_off = |key: &str| match setting(key) {
        Some("Disabled") => true,
        // The label that opts a namespace in has the same key and a lower-case value.
        None | Some("" | "Enabled" | "enabled") => false,
        Some(other) => {
            record_invalid(key, other);
            false
        }
    };
    let unguarded = switched_off(keys::REMEDIATION_GUARD);
    let disabled = switched_off(keys::IN_PLACE);
    let on_uncovered = match setting(keys::ON_UNCOVERED) {
        None => default.on_uncovered,
        Some("Replace") => OnUncovered::Replace,
        Some("Preserve") => OnUncovered::Preserve,
        Some(other) => {
            record_invalid(keys::ON_UNCOVERED, other);
            OnUncovered::Preserve
        }
    };
    let single_replica_in_place = match setting(keys::SINGLE_REPLICA) {
        Some("InPlace") => true,
        None | Some("Leave") => false,
        Some(other) => {
            record_invalid(keys::SINGLE_REPLICA, other);
            false
        }
    };
    let settings_changes = match setting(keys::HOST_SETTINGS_CHANGES) {
        Some("Start") => SettingsChanges::Start,
        None | Some("Wait") => SettingsChanges::Wait,
        Some(other) => {
            record_invalid(keys::HOST_SETTINGS_CHANGES, other);
            SettingsChanges::Wait
        }
    };
    let host_lost_after = match setting(keys::HOST_LOST_AFTER).map(|text| (text, parse_limit(text)))
    {
        None => default.host_lost_after,
        Some((_, Ok(limit))) => limit,
        Some((text, Err(_))) => {
            record_invalid(keys::HOST_LOST_AFTER, text);
            default.host_lost_after
        }
    };
    let rerun = match setting(keys::RERUN_COMMANDS) {
        None => None,
        Some("None") => Some(Disruption::None),
        Some("Restart") => Some(Disruption::Restart),
        Some("Drain") => Some(Disruption::Drain),
        Some("Reboot") => Some(Disruption::Reboot),
        Some(other) => {
            record_invalid(keys::RERUN_COMMANDS, other);
            None
        }
    };
    let sums = setting(keys::SECRET_SHA256).unwrap_or_default();
    let secrets = secret_sums(sums).unwrap_or_else(|| {
        record_invalid(keys::SECRET_SHA256, sums);
        BTreeMap::new()
    });
    Policy {
        on_uncovered,
        disabled,
        unguarded,
        single_replica_in_place,
        settings_changes,
        host_lost_after,
        rerun,
        secrets,
        ..policy
    }
}

/// Reads `NAME/KEY=SHA256`, separated by commas; `None` if it is anything else.
fn secret_sums(text: &str) -> Option<BTreeMap<(String, String), String>> {
    let one = |entry: &str| {
        let (at, sum) = entry.split_once('=')?;
        let (name, key) = at.split_once('/')?;
        let is_sum = sum.len() == 64 && sum.chars().all(|c| c.is_ascii_hexdigit());
        let is_known = is_sum && !name.is_empty() && !key.is_empty();
        is_known.then(|| ((name.to_owned(), key.to_owned()), sum.to_ascii_lowercase()))
    };
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(key: &str, value: &str) -> BTreeMap<String, String> {
        [(key.to_owned(), value.to_owned())].into()
    }

    fn by_default(on_uncovered: OnUncovered) -> PolicyDefaults {
        PolicyDefaults { on_uncovered, ..PolicyDefaults::default() }
    }

    #[test]
    fn the_time_after_which_a_host_is_lost_is_a_policy() {
        let minutes = |minutes| Some(SignedDuration::from_mins(minutes));
        let default = PolicyDefaults { host_lost_after: minutes(15), ..PolicyDefaults::default() };
        let (none, hour) = (BTreeMap::new(), annotations(keys::HOST_LOST_AFTER, "1h"));
        let never = annotations(keys::HOST_LOST_AFTER, "Never");
        for (owner, cluster, wanted) in
            [(&none, &none, minutes(15)), (&none, &hour, minutes(60)), (&never, &hour, None)]
        {
            assert_eq!(policy(owner, cluster, default).host_lost_after, wanted);
        }
        let wrong = policy(&annotations(keys::HOST_LOST_AFTER, "soon"), &hour, default);
        assert_eq!(wrong.host_lost_after, minutes(15));
        assert_eq!(wrong.not_understood, Some((keys::HOST_LOST_AFTER.into(), "soon".into())));
    }

    #[test]
    fn preserve_is_the_default() {
        let policy = policy(&BTreeMap::new(), &BTreeMap::new(), PolicyDefaults::default());
        assert_eq!(policy, Policy::default());
        assert_eq!(policy.on_uncovered, OnUncovered::Preserve);
    }

    #[test]
    fn owner_wins_over_cluster_and_cluster_over_default() {
        let (preserve, replace) = (
            annotations(keys::ON_UNCOVERED, "Preserve"),
            annotations(keys::ON_UNCOVERED, "Replace"),
        );
        let on_uncovered =
            |owner, cluster, default| policy(owner, cluster, by_default(default)).on_uncovered;
        let none = BTreeMap::new();
        assert_eq!(on_uncovered(&preserve, &replace, OnUncovered::Replace), OnUncovered::Preserve);
        assert_eq!(on_uncovered(&none, &replace, OnUncovered::Preserve), OnUncovered::Replace);
        assert_eq!(on_uncovered(&none, &none, OnUncovered::Replace), OnUncovered::Replace);
    }

    #[test]
    fn an_invalid_value_preserves_and_is_named() {
        for wrong in ["replace", "Replace ", "", "yes"] {
            let policy = policy(
                &annotations(keys::ON_UNCOVERED, wrong),
                &BTreeMap::new(),
                by_default(OnUncovered::Replace),
            );
            assert_eq!(policy.on_uncovered, OnUncovered::Preserve, "{wrong:?}");
            assert_eq!(policy.not_understood, Some((keys::ON_UNCOVERED.into(), wrong.into())));
        }
    }

    #[test]
    fn only_the_exact_word_disables() {
        let policy_for = |value| {
            let annotations = annotations(keys::IN_PLACE, value);
            policy(&annotations, &BTreeMap::new(), PolicyDefaults::default())
        };
        assert!(policy_for("Disabled").disabled);
        assert!(!policy_for("disabled").disabled);
        assert!(policy_for("disabled").not_understood.is_some());
        assert!(!policy_for("Enabled").disabled && policy_for("Enabled").not_understood.is_none());
    }

    #[test]
    fn only_the_exact_word_disables_the_guard() {
        let policy_for = |value| {
            policy(
                &annotations(keys::REMEDIATION_GUARD, value),
                &annotations(keys::REMEDIATION_GUARD, "Disabled"),
                PolicyDefaults::default(),
            )
        };
        assert!(policy_for("Disabled").unguarded);
        assert!(!policy_for("Enabled").unguarded && policy_for("Enabled").not_understood.is_none());
        assert!(!policy_for("off").unguarded);
        assert_eq!(
            policy_for("off").not_understood,
            Some((keys::REMEDIATION_GUARD.into(), "off".into()))
        );
    }

    #[test]
    fn only_the_exact_words_decide_about_the_only_machine_of_a_control_plane() {
        let policy_for = |value| {
            policy(
                &annotations(keys::SINGLE_REPLICA, value),
                &annotations(keys::SINGLE_REPLICA, "InPlace"),
                PolicyDefaults::default(),
            )
        };
        assert!(policy_for("InPlace").single_replica_in_place);
        let leave = policy_for("Leave");
        assert!(!leave.single_replica_in_place && leave.not_understood.is_none());
        let wrong = policy_for("inplace");
        assert!(!wrong.single_replica_in_place);
        assert_eq!(wrong.not_understood, Some((keys::SINGLE_REPLICA.into(), "inplace".into())));
    }

    #[test]
    fn only_the_exact_word_lets_changed_settings_start_updates() {
        use SettingsChanges::{Start, Wait};
        let none = BTreeMap::new();
        let word = |value| annotations(keys::HOST_SETTINGS_CHANGES, value);
        for (owner, cluster, wanted, is_valid) in [
            (none.clone(), none.clone(), Wait, true),
            (word("Start"), none.clone(), Start, true),
            (none.clone(), word("Start"), Start, true),
            (word("Wait"), word("Start"), Wait, true),
            (word("start"), word("Start"), Wait, false),
            (word(""), word("Start"), Wait, false),
        ] {
            let policy = policy(&owner, &cluster, PolicyDefaults::default());
            assert_eq!(policy.settings_changes, wanted, "{owner:?} {cluster:?}");
            assert_eq!(policy.not_understood.is_none(), is_valid, "{owner:?} {cluster:?}");
        }
    }

    #[test]
    fn a_cluster_can_disable_for_all_its_owners() {
        let policy = policy(
            &BTreeMap::new(),
            &annotations(keys::IN_PLACE, "Disabled"),
            PolicyDefaults::default(),
        );
        assert!(policy.disabled);
    }
}
