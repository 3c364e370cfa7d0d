//! How a drain goes about pods that do not leave by themselves, and who says so.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use refit_kinds::keys;

/// What a drain does with pods whose end is not undone by anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPolicy {
    /// The drain waits until they are gone or have completed: nothing is lost.
    Wait,
    /// They are evicted like all others.
    Evict,
    /// They stay, and see the node restart.
    Leave,
}

impl PodPolicy {
    /// The policy of this name.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Wait" => Some(Self::Wait),
            "Evict" => Some(Self::Evict),
            "Leave" => Some(Self::Leave),
            _ => None,
        }
    }
}

/// How a drain goes about its work: where pods stay, and how it escalates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainPolicy {
    /// Pods that no controller would make anew.
    pub unreplicated: PodPolicy,
    /// Pods with an `emptyDir`: what is in it is lost with them.
    pub local_storage: PodPolicy,
    /// How long an evicted pod may take to end; `None`: as long as it asks for.
    pub grace: Option<SignedDuration>,
    /// How long it waits before it tells somebody; `None`: it never does.
    pub notify_after: Option<SignedDuration>,
    /// How long a pod may withstand eviction before it is deleted; `None`: for ever.
    pub delete_after: Option<SignedDuration>,
    /// How long a pod may stay before it is removed without grace; `None`: for ever.
    pub force_after: Option<SignedDuration>,
    /// How long load balancers get to forget the node first; zero leaves them alone.
    pub load_balancer_wait: SignedDuration,
}

impl Default for DrainPolicy {
    /// Nothing is lost that nobody would make anew, and no budget is overruled. `emptyDir` belongs to
    /// its pod by its very definition, and most pods of a real cluster have one.
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

/// A policy and what of it was not understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainChoice {
    /// The policy.
    pub policy: DrainPolicy,
    /// Annotations and values that were not understood; the safest counts in their place.
    pub not_understood: Vec<(String, String)>,
}

impl DrainChoice {
    /// What is not understood, as a sentence; empty if everything is.
    pub fn complaint(&self) -> String {
        let all: Vec<String> =
            self.not_understood.iter().map(|(key, value)| format!("{key}: {value:?}")).collect();
        if all.is_empty() {
            return String::new();
        }
        let are = if all.len() == 1 { "is" } else { "are" };
        format!("{} {are} not understood; the careful choice is taken", all.join(", "))
    }
}

/// A text that should have been a length of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no length of time such as 90s, 15m or 1h30m, of at most ten years")]
pub struct NotATime(String);

/// Reads a length of time such as `90s`, `15m` or `1h30m`; no sign, at most ten years.
pub fn parse_span(text: &str) -> Result<SignedDuration, NotATime> {
    let ten_years = SignedDuration::from_hours(24 * 3650);
    let span: Option<SignedDuration> = text.parse().ok();
    span.filter(|span| !span.is_negative() && *span <= ten_years)
        .ok_or_else(|| NotATime(text.to_owned()))
}

/// Reads a length of time, or `Never`.
pub fn parse_limit(text: &str) -> Result<Option<SignedDuration>, NotATime> {
    if text == "Never" {
        return Ok(None);
    }
    parse_span(text).map(Some)
}

/// Reads the policy from annotations, the first of `sources` that says something first: Machine,
/// owner, Cluster; else the default.
///
/// What is not understood counts as the safest: pods are waited for, nothing is deleted or forced,
/// pods have the grace that they ask for.
pub fn drain_policy(sources: &[&BTreeMap<String, String>], default: &DrainPolicy) -> DrainChoice {
    let mut choice = DrainChoice { policy: *default, not_understood: Vec::new() };
    let DrainChoice { policy, not_understood } = &mut choice;
    let mut said = |key: &str, understood: &mut dyn FnMut(&str) -> bool| {
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
    said(keys::DRAIN_UNREPLICATED, &mut |value| pods(&mut policy.unreplicated, value));
    said(keys::DRAIN_LOCAL_STORAGE, &mut |value| pods(&mut policy.local_storage, value));
    said(keys::DRAIN_GRACE_PERIOD, &mut |value| {
        policy.grace = parse_span(value).ok();
        policy.grace.is_some()
    });
    said(keys::DRAIN_NOTIFY_AFTER, &mut |value| {
        limit(&mut policy.notify_after, default.notify_after, value)
    });
    said(keys::DRAIN_DELETE_AFTER, &mut |value| limit(&mut policy.delete_after, None, value));
    said(keys::DRAIN_FORCE_AFTER, &mut |value| limit(&mut policy.force_after, None, value));
    said(keys::DRAIN_LOAD_BALANCER_WAIT, &mut |value| {
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

    fn says(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    fn of(pairs: &[(&str, &str)]) -> DrainChoice {
        let loose = DrainPolicy {
            unreplicated: PodPolicy::Evict,
            delete_after: Some(SignedDuration::from_mins(1)),
            force_after: Some(SignedDuration::from_mins(2)),
            grace: Some(SignedDuration::from_secs(3)),
            ..DrainPolicy::default()
        };
        drain_policy(&[&says(pairs)], &loose)
    }

    #[test]
    fn nobody_says_anything_and_nothing_is_overruled() {
        let choice = drain_policy(&[], &DrainPolicy::default());
        assert_eq!(choice, DrainChoice::default());
        let policy = choice.policy;
        assert_eq!(policy.unreplicated, PodPolicy::Wait);
        assert_eq!((policy.delete_after, policy.force_after), (None, None));
        assert!(choice.complaint().is_empty());
    }

    #[test]
    fn the_machine_goes_before_its_owner_and_that_before_the_cluster() {
        let key = keys::DRAIN_DELETE_AFTER;
        let (machine, owner, cluster) = (
            says(&[]),
            says(&[(key, "20m")]),
            says(&[(key, "1h"), (keys::DRAIN_FORCE_AFTER, "1h30m")]),
        );
        let policy = drain_policy(&[&machine, &owner, &cluster], &DrainPolicy::default()).policy;
        assert_eq!(policy.delete_after, Some(SignedDuration::from_mins(20)));
        assert_eq!(policy.force_after, Some(SignedDuration::from_mins(90)));
    }

    #[test]
    fn never_is_a_time_and_zero_is_at_once() {
        let policy =
            of(&[(keys::DRAIN_NOTIFY_AFTER, "Never"), (keys::DRAIN_DELETE_AFTER, "0s")]).policy;
        assert_eq!(policy.notify_after, None);
        assert_eq!(policy.delete_after, Some(SignedDuration::ZERO));
    }

    #[test]
    fn what_is_not_understood_is_the_safest_and_is_named() {
        for wrong in ["", "soon", "-5m", "5", "never", "99999h"] {
            let choice = of(&[
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
    fn times_are_read_as_people_write_them() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("1h30m", 5400), ("1h 30m", 5400)] {
            assert_eq!(parse_span(text), Ok(SignedDuration::from_secs(seconds)), "{text}");
        }
    }
}
