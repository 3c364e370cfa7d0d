//! What changes in a KubeadmConfig, by name: values stay in the KubeadmConfig, and are read when a plan is made.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{RevokedKeys, UnitAction, UnitVerb};

/// Name of the built-in updater that applies changes of a KubeadmConfig to running hosts.
pub const CONFIGURATION: &str = "kubeadm-config";

/// What the agent on a host applies of a KubeadmConfig.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationPart {
    /// Paths of the files that change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 1024)))]
    pub files: Vec<String>,
    /// Secrets that hold the contents of such files, with the sha256 that the content must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub secrets: Vec<SecretSum>,
    /// Names of the users that change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 32)))]
    pub users: Vec<String>,
    /// Public keys with which users can no longer log in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub revoked_keys: Vec<RevokedKeys>,
    /// Names of the flags of the kubelet that are set or removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 128)))]
    pub kubelet_args: Vec<String>,
    /// Fields that are applied as a whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub fields: Vec<ConfigurationField>,
    /// Units that are reloaded or restarted for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub units: Vec<UnitAction>,
    /// Whether the kubelet is restarted for a file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarts_kubelet: bool,
}

/// A field of a KubeadmConfig that is applied as a whole.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum ConfigurationField {
    /// `ntp`: the time servers.
    Ntp,
    /// `clusterConfiguration.etcd.local`: the image of etcd.
    Etcd,
    /// `preKubeadmCommands`.
    PreKubeadmCommands,
    /// `postKubeadmCommands`.
    PostKubeadmCommands,
}

/// A key of a Secret, and the sha256 of its value in hex.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretSum {
    /// Name of the Secret.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Key in the Secret.
    #[schemars(length(max = 253))]
    pub key: String,
    /// sha256 of the value.
    #[schemars(length(min = 64, max = 64))]
    pub sha256: String,
}

impl ConfigurationPart {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a field is applied as a whole.
    pub fn has(&self, field: ConfigurationField) -> bool {
        self.fields.contains(&field)
    }

    /// Adds another part that was found later. Of two sums of one key of a Secret, the later one counts.
    pub fn merge(&mut self, other: Self) {
        let Self {
            files,
            secrets,
            users,
            revoked_keys,
            kubelet_args,
            fields,
            units,
            restarts_kubelet,
        } = other;
        add(&mut self.files, files);
        let of_same_key = |sum: &SecretSum| {
            secrets.iter().any(|new| (&new.name, &new.key) == (&sum.name, &sum.key))
        };
        self.secrets.retain(|sum| !of_same_key(sum));
        add(&mut self.secrets, secrets);
        add(&mut self.users, users);
        add(&mut self.kubelet_args, kubelet_args);
        add(&mut self.fields, fields);
        self.restarts_kubelet |= restarts_kubelet;
        let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for revoked in self.revoked_keys.drain(..).chain(revoked_keys) {
            add(keys.entry(revoked.user).or_default(), revoked.keys);
        }
        self.revoked_keys =
            keys.into_iter().map(|(user, keys)| RevokedKeys { user, keys }).collect();
        let mut verbs: BTreeMap<String, UnitVerb> = BTreeMap::new();
        for UnitAction { unit, verb } in self.units.drain(..).chain(units) {
            // A unit that is restarted need not be reloaded.
            let known = verbs.entry(unit).or_insert(verb);
            if verb == UnitVerb::Restart {
                *known = verb;
            }
        }
        self.units = verbs.into_iter().map(|(unit, verb)| UnitAction { unit, verb }).collect();
    }
}

/// Adds what is not there yet, and sorts.
fn add<T: Ord>(all: &mut Vec<T>, more: Vec<T>) {
    all.extend(more);
    all.sort();
    all.dedup();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_of_two_sums_of_a_key_counts() {
        let part = |key: &str, digit: &str| ConfigurationPart {
            secrets: vec![SecretSum {
                name: "s".into(),
                key: key.into(),
                sha256: digit.repeat(64),
            }],
            ..ConfigurationPart::default()
        };
        for (first, later) in [("a", "b"), ("b", "a")] {
            let mut merged = part("k", first);
            merged.merge(part("other", first));
            merged.merge(part("k", later));
            let mut both = part("k", later).secrets;
            both.extend(part("other", first).secrets);
            assert_eq!(merged.secrets, both);
        }
    }
}
