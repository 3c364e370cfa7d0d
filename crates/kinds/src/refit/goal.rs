//! The goal of an update.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    host_args::{CertificateArgs, RENEW_ALWAYS_DAYS},
    host_step::one_member,
};
use crate::version::{KubernetesVersion, StatedVersion};

/// What an update must reach: the parts of a Machine's desired state that updaters cover. The rest is equal
/// before and after, or Cluster API would not have asked for an update in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Goal {
    /// Kubernetes version, `vX.Y.Z`; absent if the Machine has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<KubernetesVersion>,
    /// Where Kubernetes comes from, instead of its version: for an Updater that installs a snap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option: Option<GoalOption>,
    /// New certificates of Kubernetes on the node, instead of a version: from k8sd, or from kubeadm on a control plane
    /// machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<GoalCertificates>,
    /// The settings that the host is to have of its HostSettings, instead of a version: the sha256 of what the host gets of
    /// them, in hex. The update is superseded if they change before its plan is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 64, max = 64), regex(pattern = "^[0-9a-f]*$"))]
    pub host_settings: Option<String>,
    /// The parts that Updaters claim, in the order in which they claim.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["updater"]))]
    pub parts: Vec<GoalPart>,
}

/// The certificates that a node is to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalCertificates {
    /// How long they are valid, in seconds. k8sd requires it; kubeadm takes it from its own configuration, so a goal for
    /// kubeadm has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 600, max = 2_147_483_647))]
    pub lifetime_seconds: Option<i64>,
    /// kubeadm renews them only if one of them expires within this many days; absent: in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = RENEW_ALWAYS_DAYS))]
    pub within_days: Option<i32>,
}

impl GoalCertificates {
    /// New certificates that are valid for so many seconds.
    pub fn of_lifetime(seconds: i64) -> Self {
        Self { lifetime_seconds: Some(seconds), within_days: None }
    }

    /// What kubeadm is to renew on the host.
    pub fn renewal(self) -> CertificateArgs {
        CertificateArgs { renew_within_days: self.within_days.unwrap_or(RENEW_ALWAYS_DAYS) }
    }
}

/// A source of Kubernetes without a version: exactly one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = one_member)]
pub enum GoalOption {
    /// A channel, such as `1.35-classic/stable`.
    Channel(#[schemars(length(min = 1, max = 253))] String),
    /// A revision in the store.
    Revision(#[schemars(length(min = 1, max = 253))] String),
    /// A file on the host.
    LocalPath(#[schemars(length(min = 1, max = 4096))] String),
}

impl std::fmt::Display for GoalOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Channel(channel) => write!(f, "channel={channel}"),
            Self::Revision(revision) => write!(f, "revision={revision}"),
            Self::LocalPath(path) => write!(f, "localPath={path}"),
        }
    }
}

/// The desired state that an Updater claims of a Machine's objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GoalPart {
    /// Name of the Updater.
    #[schemars(length(min = 1, max = 253))]
    pub updater: String,
    /// sha256 of the values at the paths that it claims.
    #[schemars(length(max = 64))]
    pub hash: String,
}

impl Goal {
    /// A goal with only a Kubernetes version.
    pub fn of_version(kubernetes_version: KubernetesVersion) -> Self {
        Self { kubernetes_version: Some(kubernetes_version), ..Self::default() }
    }

    /// Whether a node in this version is as the goal wants it: always, if the goal has no version.
    pub fn accepts(&self, version: &StatedVersion) -> bool {
        self.kubernetes_version.as_ref().is_none_or(|wanted| version.is(wanted))
    }

    /// sha256 of the goal's canonical JSON, in hex.
    ///
    /// ```
    /// use refit_kinds::{refit::Goal, version::KubernetesVersion};
    /// let goal = Goal::of_version(KubernetesVersion::new(1, 35, 0));
    /// assert_eq!(goal.hash().len(), 64);
    /// assert_eq!(goal.hash(), goal.clone().hash());
    /// ```
    pub fn hash(&self) -> String {
        let mut value = serde_json::json!({
            "kubernetesVersion": self.kubernetes_version,
            // Goals keep the hashes that they had with these removed fields.
            "osImage": "",
            "bootstrapHash": "",
            "infrastructureHash": "",
        });
        // So do goals without an option, certificates, settings or parts.
        if let Some(option) = &self.option {
            value["option"] = serde_json::json!(option);
        }
        if let Some(certificates) = &self.certificates {
            value["certificates"] = serde_json::json!(certificates);
        }
        if let Some(settings) = &self.host_settings {
            value["hostSettings"] = serde_json::json!(settings);
        }
        if !self.parts.is_empty() {
            value["parts"] = serde_json::json!(self.parts);
        }
        hash_json(&value)
    }
}

/// sha256 in hex of a JSON value with its keys sorted.
///
/// Values that differ only in the order of their keys have the same hash.
pub fn hash_json(value: &Value) -> String {
    let mut hasher = Sha256::new();
    feed(value, &mut hasher);
    let digest = hasher.finalize();
    let mut text = String::with_capacity(64);
    for byte in digest {
        use std::fmt::Write as _;
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
    }
    text
}

fn feed(value: &Value, hasher: &mut Sha256) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<_> = map.keys().collect();
            keys.sort();
            hasher.update(b"{");
            for key in keys {
                hasher.update(Value::String(key.clone()).to_string());
                hasher.update(b":");
                feed(&map[key], hasher);
                hasher.update(b",");
            }
            hasher.update(b"}");
        }
        Value::Array(items) => {
            hasher.update(b"[");
            for item in items {
                feed(item, hasher);
                hasher.update(b",");
            }
            hasher.update(b"]");
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            hasher.update(value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_order_of_keys_does_not_change_the_hash() {
        let a: Value = serde_json::from_str(r#"{"a":1,"b":[{"c":2,"d":3}]}"#).unwrap();
        let b: Value = serde_json::from_str(r#"{"b":[{"d":3,"c":2}],"a":1}"#).unwrap();
        assert_eq!(hash_json(&a), hash_json(&b));
    }

    #[test]
    fn a_string_never_hashes_like_the_structure_it_spells() {
        assert_ne!(hash_json(&json!(["a,b"])), hash_json(&json!(["a", "b"])));
        assert_ne!(hash_json(&json!("1")), hash_json(&json!(1)));
    }

    #[test]
    fn a_goal_keeps_the_hash_that_it_had_in_earlier_versions() {
        let goal = Goal::of_version(KubernetesVersion::new(1, 35, 0));
        assert_eq!(goal.hash(), "c3dceda53c851ac0489e991467387bcf83903af755d697d03edeca7c90af8014");
    }

    #[test]
    fn goals_that_differ_have_different_hashes() {
        let a = Goal::of_version(KubernetesVersion::new(1, 34, 2));
        let b = Goal::of_version(KubernetesVersion::new(1, 35, 0));
        assert_ne!(a.hash(), b.hash());
        let part = GoalPart { updater: "memory".into(), hash: "1".into() };
        let c = Goal { parts: vec![part], ..a.clone() };
        assert_ne!(a.hash(), c.hash());
        let of = |option| Goal { option: Some(option), ..Goal::default() };
        let settings = |hash: &str| Goal { host_settings: Some(hash.into()), ..a.clone() };
        assert_ne!(settings("1").hash(), a.hash());
        assert_ne!(settings("1").hash(), settings("2").hash());
        let options = [of(GoalOption::Channel("7".into())), of(GoalOption::Revision("7".into()))];
        assert_ne!(options[0].hash(), options[1].hash());
        let within = |days| GoalCertificates { within_days: days, ..GoalCertificates::default() };
        let all = [
            None,
            Some(GoalCertificates::of_lifetime(600)),
            Some(GoalCertificates::of_lifetime(601)),
            Some(within(None)),
            Some(within(Some(60))),
        ];
        let hashes = all.map(|certificates| Goal { certificates, ..Goal::default() }.hash());
        let unique: std::collections::BTreeSet<_> = hashes.iter().collect();
        assert_eq!(unique.len(), all.len());
    }

    /// What earlier versions have written is read as it was, and hashed as it was.
    #[test]
    fn a_goal_of_certificates_for_k8sd_keeps_its_form() {
        let form = json!({"certificates": {"lifetimeSeconds": 600}});
        let goal: Goal = serde_json::from_value(form.clone()).unwrap();
        assert_eq!(goal.certificates, Some(GoalCertificates::of_lifetime(600)));
        assert_eq!(serde_json::to_value(&goal).unwrap(), form);
        let hashed = json!({
            "kubernetesVersion": null, "osImage": "", "bootstrapHash": "", "infrastructureHash": "",
            "certificates": {"lifetimeSeconds": 600},
        });
        assert_eq!(goal.hash(), hash_json(&hashed));
    }

    #[test]
    fn without_a_number_of_days_every_certificate_is_renewed() {
        let days = |within_days| {
            GoalCertificates { within_days, ..GoalCertificates::default() }
                .renewal()
                .renew_within_days
        };
        assert_eq!((days(Some(60)), days(None)), (60, 36_500));
    }
}
