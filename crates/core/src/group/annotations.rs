//! What annotations of an owner and its Machines ask of their group.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use refit_cluster_api::kinds::Machine;
use refit_kinds::{
    keys,
    refit::{NodeUpdate, Pacing, ordinal_of},
};

/// The pacing in the annotations of an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerPacing {
    /// No further machine begins.
    pub paused: bool,
    /// The rollout that is approved.
    pub approve: Option<i64>,
    /// Only failures after this time count.
    pub failures_since: Option<Time>,
    /// Annotation and value that are invalid.
    pub not_understood: Option<(String, String)>,
}

impl OwnerPacing {
    /// Reads the annotations of an owner. An unreadable pause pauses, and an unreadable approval approves nothing.
    pub fn of(annotations: &BTreeMap<String, String>) -> Self {
        let mut pacing = Self::default();
        let mut record_invalid = |key: &str, value: &str| {
            pacing.not_understood.get_or_insert((key.to_owned(), value.to_owned()));
        };
        let paused = match annotations.get(keys::GROUP_PAUSED).map(String::as_str) {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => {
                record_invalid(keys::GROUP_PAUSED, other);
                true
            }
        };
        let approve = annotations.get(keys::APPROVE).and_then(|text| {
            let number = text.parse().ok().filter(|number: &i64| *number > 0);
            if number.is_none() {
                record_invalid(keys::APPROVE, text);
            }
            number
        });
        let failures_since = annotations.get(keys::FAILURES_SINCE).and_then(|text| {
            let time = text.parse().ok().map(Time);
            if time.is_none() {
                record_invalid(keys::FAILURES_SINCE, text);
            }
            time
        });
        Self { paused, approve, failures_since, ..pacing }
    }

    /// The pacing of a group with these annotations. Of two approvals or times, the later one counts.
    #[must_use]
    pub fn with(&self, pacing: &Pacing) -> Pacing {
        Pacing {
            paused: self.paused || pacing.paused,
            approve: self.approve.max(pacing.approve),
            failures_since: [&self.failures_since, &pacing.failures_since]
                .into_iter()
                .flatten()
                .max_by_key(|time| time.0)
                .cloned(),
            ..pacing.clone()
        }
    }
}

/// The first annotation of a Machine that asks for something and cannot be understood, and its value.
pub fn machine_complaint(
    machine: &Machine,
    speaker: Option<&NodeUpdate>,
) -> Option<(String, String)> {
    let annotations = machine.metadata.annotations.as_ref()?;
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let is_wrong = |(key, value): &(&String, &String)| match key.as_str() {
        keys::HOLD | keys::SKIP => value.trim().is_empty(),
        keys::SKIP_ROLLOUT => value.parse::<i64>().is_err(),
        keys::RETRY | keys::ADOPT | keys::ABORT => {
            let is_known =
                speaker.is_some_and(|update| update.metadata.name.as_ref() == Some(*value));
            !is_known && ordinal_of(value, name).is_none()
        }
        _ => false,
    };
    let (key, value) = annotations.iter().find(is_wrong)?;
    Some((format!("{key} of Machine {name}"), value.clone()))
}

#[cfg(test)]
mod tests {
    use refit_cluster_api::kinds::MachineSpec;

    use super::*;

    fn annotations(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn read(key: &str, value: &str) -> OwnerPacing {
        OwnerPacing::of(&annotations(&[(key, value)]))
    }

    #[test]
    fn an_unreadable_pause_pauses_and_an_unreadable_approval_approves_nothing() {
        for (value, paused, is_wrong) in
            [("true", true, false), ("false", false, false), ("", true, true), ("yes", true, true)]
        {
            let found = read(keys::GROUP_PAUSED, value);
            assert_eq!(
                (found.paused, found.not_understood.is_some()),
                (paused, is_wrong),
                "{value}"
            );
        }
        assert_eq!(read(keys::APPROVE, "2").approve, Some(2));
        for wrong in ["", "0", "-1", "all"] {
            let found = read(keys::APPROVE, wrong);
            assert_eq!(found.approve, None);
            assert_eq!(found.not_understood, Some((keys::APPROVE.into(), wrong.into())));
        }
        let since = read(keys::FAILURES_SINCE, "2026-03-02T08:00:00Z");
        assert!(since.failures_since.is_some() && since.not_understood.is_none());
        assert!(read(keys::FAILURES_SINCE, "now").not_understood.is_some());
        assert_eq!(OwnerPacing::of(&BTreeMap::new()), OwnerPacing::default());
    }

    #[test]
    fn annotations_add_to_the_pacing_of_the_group() {
        let early = Time("2026-03-02T08:00:00Z".parse().unwrap());
        let late = Time("2026-03-02T09:00:00Z".parse().unwrap());
        let since = |time: &Time| Pacing {
            paused: true,
            approve: Some(2),
            failures_since: Some(time.clone()),
            ..Pacing::default()
        };
        let owner = OwnerPacing {
            approve: Some(3),
            failures_since: Some(early.clone()),
            ..OwnerPacing::default()
        };
        let paced = owner.with(&since(&late));
        assert_eq!((paced.paused, paced.approve), (true, Some(3)));
        assert_eq!(paced.failures_since, Some(late.clone()));
        let owner = OwnerPacing {
            paused: true,
            approve: Some(1),
            failures_since: Some(late.clone()),
            ..owner
        };
        let paced = owner.with(&Pacing { paused: false, ..since(&early) });
        assert_eq!((paced.paused, paced.approve), (true, Some(2)));
        assert_eq!(paced.failures_since, Some(late));
        assert_eq!(OwnerPacing::default().with(&since(&early)), since(&early));
    }

    #[test]
    fn an_annotation_of_a_machine_that_asks_for_nothing_known_is_named() {
        let table = [
            (keys::HOLD, "disk", true),
            (keys::HOLD, " ", false),
            (keys::SKIP, "", false),
            (keys::SKIP_ROLLOUT, "2", true),
            (keys::SKIP_ROLLOUT, "two", false),
            (keys::RETRY, "m-1", true),
            (keys::ADOPT, "n-1", false),
            (keys::ABORT, "true", false),
        ];
        for (key, value, is_understood) in table {
            let mut machine = Machine::new("m", MachineSpec::default());
            machine.metadata.annotations = Some(annotations(&[(key, value)]));
            let complaint = machine_complaint(&machine, None);
            let wanted =
                (!is_understood).then(|| (format!("{key} of Machine m"), value.to_owned()));
            assert_eq!(complaint, wanted, "{key} {value:?}");
        }
    }
}
