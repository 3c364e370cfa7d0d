//! How a drain treats pods that do not leave by themselves, and which annotations configure it.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use refit_kinds::keys;

/// What a drain does with pods that no controller would recreate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPolicy {
    /// The drain waits until they are gone or completed: nothing is lost.
    Wait,
    /// They are evicted like all others.
    Evict,
    /// They stay on the node while it restarts.
    Leave,
}

impl PodPolicy {
    /// Parses a policy name.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Wait" => Some(Self::Wait),
            "Evict" => Some(Self::Evict),
            "Leave" => Some(Self::Leave),
            _ => None,
        }
    }
}

/// Configuration of a drain: which pods stay, and how it escalates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainPolicy {
    /// Pods that no controller would recreate.
    pub unreplicated: PodPolicy,
    /// Pods with an `emptyDir`, whose data is lost when they leave.
    pub local_storage: PodPolicy,
    /// Grace period of an evicted pod; `None` for the pod's own.
    pub grace: Option<SignedDuration>,
    /// How long the drain waits before it emits a warning; `None` for never.
    pub notify_after: Option<SignedDuration>,
    /// How long a pod may resist eviction before it is deleted; `None` for forever.
    pub delete_after: Option<SignedDuration>,
    /// How long a pod may stay before it is deleted without a grace period; `None` for forever.
    pub force_after: Option<SignedDuration>,
    /// How long load balancers get to remove the node first; zero leaves them unchanged.
    pub load_balancer_wait: SignedDuration,
}

impl Default for DrainPolicy {
    /// Loses nothing that no controller would recreate, and overrides no budget. Data in an
    /// `emptyDir` belongs to its pod by definition, and most pods of a real cluster have one.
    fn default() -> Self {
        Self {
            unreplicated: PodPolicy::Wait,
            local_storage: PodPolicy::Evict,
            grace: None,
            notify_after: Some(SignedDuration::from_mins(15)),
            delete_after: None,
            force_after: None,
            load_balancer_wait: SignedDuration::ZERO,
        }
    }
}

/// A policy and its invalid annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainChoice {
    /// The policy.
    pub policy: DrainPolicy,
    /// Invalid annotations with their values; the safest setting applies instead.
    pub not_understood: Vec<(String, String)>,
}

impl DrainChoice {
    /// Describes the invalid annotations in a sentence; empty if all are valid.
    pub fn complaint(&self) -> String {
        let all: Vec<String> =
            self.not_understood.iter().map(|(key, value)| format!("{key}: {value:?}")).collect();
        if all.is_empty() {
            return String::new();
        }
        format!("invalid values: {}; the safest settings apply instead", all.join(", "))
    }
}

/// An invalid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {0:?}, expected one such as 90s, 15m or 1h30m, at most ten years")]
pub struct NotATime(String);

/// Parses a duration such as `90s`, `15m` or `1h30m`; no sign, at most ten years.
pub fn parse_span(text: &str) -> Result<SignedDuration, NotATime> {
    let ten_years = SignedDuration::from_hours(24 * 3650);
    let span: Option<SignedDuration> = text.parse().ok();
    span.filter(|span| !span.is_negative() && *span <= ten_years)
        .ok_or_else(|| NotATime(text.to_owned()))
}

/// Parses a duration, or `Never`.
pub fn parse_limit(text: &str) -> Result<Option<SignedDuration>, NotATime> {
    if text == "Never" {
        return Ok(None);
    }
    parse_span(text).map(Some)
}

/// Reads the policy from annotations. For each setting the first of `sources` that has it wins:
/// Machine, owner, Cluster; otherwise the default applies.
///
/// An invalid value falls back to the safest setting: the drain waits for pods, nothing is deleted
/// or forced, and pods get their own grace period.
pub fn drain_policy(sources: &[&BTreeMap<String, String>], default: &DrainPolicy) -> DrainChoice {
    let mut choice = DrainChoice { policy: *default, not_understood: Vec::new() };
    let DrainChoice { policy, not_understood } = &mut choice;
    let mut read_setting = |key: &str, understood: &mut dyn FnMut(&str) -> bool| {
        let value = sources.iter().find_map(|source| source.get(key));
        if let Some(value) = value
            && !understood(value)
        {
            not_understood.push((key.to_owned(), value.clone()));
        }
    };
    let pods = |slot: &mut PodPolicy, value: &str| {
        let parsed = PodPolicy::parse(value);
        *slot = parsed.unwrap_or(PodPolicy::Wait);
        parsed.is_some()
    };
    let limit = |slot: &mut Option<SignedDuration>, safest, value: &str| {
        let parsed = parse_limit(value);
        let understood = parsed.is_ok();
        *slot = parsed.unwrap_or(safest);
        understood
    };
    read_setting(keys::DRAIN_UNREPLICATED, &mut |value| pods(&mut policy.unreplicated, value));
    read_setting(keys::DRAIN_LOCAL_STORAGE, &mut |value| pods(&mut policy.local_storage, value));
    read_setting(keys::DRAIN_GRACE_PERIOD, &mut |value| {
        policy.grace = parse_span(value).ok();
        policy.grace.is_some()
    });
    read_setting(keys::DRAIN_NOTIFY_AFTER, &mut |value| {
        limit(&mut policy.notify_after, default.notify_after, value)
    });
    read_setting(keys::DRAIN_DELETE_AFTER, &mut |value| {
        limit(&mut policy.delete_after, None, value)
    });
    read_setting(keys::DRAIN_FORCE_AFTER, &mut |value| limit(&mut policy.force_after, None, value));
    read_setting(keys::DRAIN_LOAD_BALANCER_WAIT, &mut |value| {
        let parsed = parse_span(value);
        let understood = parsed.is_ok();
        policy.load_balancer_wait = parsed.unwrap_or(default.load_balancer_wait);
        understood
    });
    choice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    fn choose(pairs: &[(&str, &str)]) -> DrainChoice {
        let loose = DrainPolicy {
            unreplicated: PodPolicy::Evict,
            delete_after: Some(SignedDuration::from_mins(1)),
            force_after: Some(SignedDuration::from_mins(2)),
            grace: Some(SignedDuration::from_secs(3)),
            ..DrainPolicy::default()
        };
        drain_policy(&[&annotations(pairs)], &loose)
    }

    #[test]
    fn the_default_policy_overrides_nothing() {
        let choice = drain_policy(&[], &DrainPolicy::default());
        assert_eq!(choice, DrainChoice::default());
        let policy = choice.policy;
        assert_eq!(policy.unreplicated, PodPolicy::Wait);
        assert_eq!((policy.delete_after, policy.force_after), (None, None));
        assert!(choice.complaint().is_empty());
    }

    #[test]
    fn machine_annotations_win_over_owner_and_cluster() {
        let key = keys::DRAIN_DELETE_AFTER;
        let (machine, owner, cluster) = (
            annotations(&[]),
            annotations(&[(key, "20m")]),
            annotations(&[(key, "1h"), (keys::DRAIN_FORCE_AFTER, "1h30m")]),
        );
        let policy = drain_policy(&[&machine, &owner, &cluster], &DrainPolicy::default()).policy;
        assert_eq!(policy.delete_after, Some(SignedDuration::from_mins(20)));
        assert_eq!(policy.force_after, Some(SignedDuration::from_mins(90)));
    }

    #[test]
    fn never_disables_and_zero_is_immediate() {
        let policy =
            choose(&[(keys::DRAIN_NOTIFY_AFTER, "Never"), (keys::DRAIN_DELETE_AFTER, "0s")]).policy;
        assert_eq!(policy.notify_after, None);
        assert_eq!(policy.delete_after, Some(SignedDuration::ZERO));
    }

    #[test]
    fn an_invalid_value_is_named_and_the_safest_applies() {
        for wrong in ["", "soon", "-5m", "5", "never", "99999h"] {
            let choice = choose(&[
                (keys::DRAIN_DELETE_AFTER, wrong),
                (keys::DRAIN_FORCE_AFTER, wrong),
                (keys::DRAIN_GRACE_PERIOD, wrong),
                (keys::DRAIN_UNREPLICATED, "evict"),
                (keys::DRAIN_LOCAL_STORAGE, ""),
            ]);
            let policy = choice.policy;
            assert_eq!(
                (policy.delete_after, policy.force_after, policy.grace),
                (None, None, None),
                "{wrong:?}"
            );
            assert_eq!(policy.unreplicated, PodPolicy::Wait);
            assert_eq!(policy.local_storage, PodPolicy::Wait);
            assert_eq!(choice.not_understood.len(), 5, "{wrong:?}");
            assert!(choice.complaint().contains("drain-delete-after"));
        }
    }

    #[test]
    fn durations_are_parsed() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("1h30m", 5400), ("1h 30m", 5400)] {
            assert_eq!(parse_span(text), Ok(SignedDuration::from_secs(seconds)), "{text}");
        }
    }
}
