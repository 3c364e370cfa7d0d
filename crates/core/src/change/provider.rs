//! Whether the provider of an infrastructure machine accepts what Updaters claim of it.
//!
//! Cluster API writes the desired spec of a machine's infrastructure before it calls UpdateMachine. Where
//! the provider refuses such changes, as CAPV, CAPA and CAPZ do, a control plane machine is deleted without
//! another question, and workers never become up to date (`docs/facts/hooks.md#providers-that-refuse`).
//! A dry run on a machine of the request shows it beforehand.

use serde_json::Value;

use super::{
    cover::Coverage,
    diff::Change,
    not_ready::NotReady,
    objects::{Level, Objects, Part},
    patch::Patch,
};

/// Whether the provider of the infrastructure accepts a change of an infrastructure machine, as the API
/// server answers to a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// It was not asked.
    #[default]
    NotAsked,
    /// The API server accepts this change of the object in the request.
    Accepts {
        /// The change.
        patch: Patch,
    },
    /// The API server refuses the change.
    Refuses {
        /// Its words.
        why: String,
    },
    /// Refit lacks the permission to ask.
    Forbidden {
        /// The words of the API server.
        why: String,
    },
    /// It could not be asked.
    Unknown {
        /// What failed.
        why: String,
    },
}

impl Provider {
    /// What an error of the API server in response to the read or the dry run means.
    pub fn of_error(code: u16, message: &str) -> Self {
        let why = message.to_owned();
        // The words of RBAC; admission refuses with other ones.
        let lacks_permission = code == 403
            && ["get", "update"]
                .iter()
                .any(|verb| message.contains(&format!("cannot {verb} resource")));
        // A webhook with side effects cannot take part in a dry run.
        let cannot_tell = message.contains("does not support dry run");
        match code {
            _ if lacks_permission => Self::Forbidden { why },
            400 | 403 | 422 if !cannot_tell => Self::Refuses { why },
            _ => Self::Unknown { why },
        }
    }
}

/// A question to the provider: the claimed changes of an infrastructure machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// API group of the infrastructure machine.
    pub group: String,
    /// The version in which Cluster API compared the objects.
    pub version: String,
    /// The answer if the API server accepts.
    pub accepted: Provider,
    /// With paths of the machine's own object.
    changes: Vec<Change>,
}

impl Question {
    /// The question about a coverage; `None` if no infrastructure machine changes.
    pub fn of(level: Level, coverage: &Coverage, current: &Objects) -> Option<Self> {
        let patch = coverage.patches.infrastructure.clone()?;
        let own = |change: &Change| {
            let path = level.machine_path(&change.path)?.into();
            Some(Change { path, ..change.clone() })
        };
        let changes = coverage.of_infrastructure().filter_map(|claimed| own(&claimed.change));
        let api_version = current.part(Part::Infrastructure)?.get("apiVersion")?.as_str()?;
        let (group, version) = api_version.split_once('/')?;
        Some(Self {
            group: group.to_owned(),
            version: version.to_owned(),
            accepted: Provider::Accepts { patch },
            changes: changes.collect(),
        })
    }

    /// What Cluster API would make of a machine that is now as `live`; `None` if its lists are others than
    /// those that were compared.
    pub fn changed(&self, live: &Value) -> Option<Value> {
        let mut changed = live.clone();
        for change in &self.changes {
            change.apply(&mut changed);
        }
        let is_made = |change: &Change| change.path.get(&changed) == change.to.as_ref();
        self.changes.iter().all(is_made).then_some(changed)
    }
}

/// The refusal for a claimed change of an infrastructure machine that its provider may not accept.
pub(super) fn provider_unknown(provider: &Provider, coverage: &Coverage) -> Option<NotReady> {
    let claimed = coverage.of_infrastructure().next()?;
    let object = format!("{} {}", claimed.kind, claimed.name);
    let unknown =
        |why: &str| Some(NotReady::ProviderUnknown { object: object.clone(), why: why.to_owned() });
    match provider {
        Provider::NotAsked => unknown("it was not asked"),
        Provider::Unknown { why } => unknown(why),
        Provider::Forbidden { why } => {
            Some(NotReady::ProviderForbidden { object: object.clone(), why: why.clone() })
        }
        Provider::Accepts { patch } if coverage.patches.infrastructure.as_ref() == Some(patch) => {
            None
        }
        Provider::Accepts { .. } => unknown("it was asked about another change"),
        Provider::Refuses { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::change::{Claim, cover, testing::leaving};

    #[test]
    fn the_words_of_the_api_server_tell_a_refusal_from_a_missing_permission() {
        let rbac = "metal3machines.infrastructure.cluster.x-k8s.io \"a\" is forbidden: User \
            \"system:serviceaccount:refit-system:refit-controller\" cannot update resource \
            \"metal3machines\" in API group \"infrastructure.cluster.x-k8s.io\" in the namespace \"n\"";
        let webhook = "admission webhook \"validation.vspheremachine\" denied the request: spec: Forbidden: \
            cannot be modified";
        let side_effects = "admission webhook \"w\" does not support dry run";
        let table = [
            (403, rbac, "Forbidden"),
            (403, webhook, "Refuses"),
            (400, webhook, "Refuses"),
            (422, "spec: Invalid value: spec is immutable", "Refuses"),
            (400, side_effects, "Unknown"),
            (404, "not found", "Unknown"),
            (409, "conflict", "Unknown"),
            (500, "failed calling webhook", "Unknown"),
        ];
        for (code, message, wanted) in table {
            let got = format!("{:?}", Provider::of_error(code, message));
            assert!(got.starts_with(wanted), "{code} {message}: {got}");
        }
    }

    #[test]
    fn a_change_of_a_template_is_asked_about_on_a_machine() {
        let side = |url: &str| {
            let spec = json!({"image": {"url": url}});
            Objects {
                owner: json!({"kind": "MachineSet", "metadata": {"name": "s"}, "spec": {}}),
                infrastructure: json!({
                    "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3MachineTemplate",
                    "metadata": {"name": "t"}, "spec": {"template": {"spec": spec}},
                }),
                bootstrap: None,
            }
        };
        let leaves = leaving(
            "image",
            &[Claim {
                group: "infrastructure.cluster.x-k8s.io".into(),
                kind: "Metal3Machine".into(),
                paths: vec!["/spec/image/**".parse().unwrap()],
            }],
        );
        let (current, desired) = (side("a"), side("b"));
        let level = Level::MachineSet;
        let coverage = cover(level, &current, &desired, false, &[&leaves]);
        let question = Question::of(level, &coverage, &current).unwrap();
        let live =
            json!({"metadata": {"name": "m"}, "spec": {"image": {"url": "a"}, "providerID": "p"}});
        let changed =
            json!({"metadata": {"name": "m"}, "spec": {"image": {"url": "b"}, "providerID": "p"}});
        assert_eq!(question.changed(&live), Some(changed));
        assert_eq!(question.version, "v1beta1");
    }
}
