//! Arguments of the steps that change the configuration of a host in place: units, etcd's image, commands and keys.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Types of units that a plan may reload or restart.
const UNIT_TYPES: [&str; 5] = ["service", "socket", "timer", "path", "mount"];
/// The full name of a unit of such a type.
pub(super) const UNIT_PATTERN: &str =
    r"^[a-zA-Z0-9:_.\\@][a-zA-Z0-9:_.\\@-]*\.(service|socket|timer|path|mount)$";
/// Units that apply a configuration and end: a restart of theirs interrupts nothing.
const APPLIERS: [&str; 2] = ["systemd-sysctl.service", "systemd-modules-load.service"];
/// Maximum length of the name of a unit: systemd's own.
const UNIT_CHARS: usize = 255;
/// Start of the names of the agent's unit, and of the transient units of its steps.
const OF_AGENT: &str = "refit-";
const KUBELET: &str = "kubelet.service";

/// Units of systemd that read changed files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnitArgs {
    /// The units, in order. systemd itself always reads its unit files again before the first one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub units: Vec<UnitAction>,
}

/// How one unit reads changed files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnitAction {
    /// Name with its type, such as `containerd.service`; neither the kubelet's unit nor one of the agent.
    #[schemars(
        length(max = UNIT_CHARS),
        regex(pattern = UNIT_PATTERN)
    )]
    pub unit: String,
    /// What is done to it.
    pub verb: UnitVerb,
}

/// What is done to a unit. A unit that is stopped and not enabled stays stopped.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum UnitVerb {
    /// It reads its configuration again, without an interruption.
    #[default]
    Reload,
    /// It is restarted; one that is enabled is started if it does not run.
    Restart,
}

impl UnitAction {
    /// Whether it interrupts what the unit does.
    pub fn interrupts(&self) -> bool {
        self.verb == UnitVerb::Restart && !APPLIERS.contains(&self.unit.as_str())
    }
}

impl UnitArgs {
    /// Whether it interrupts what a unit does.
    pub fn interrupts(&self) -> bool {
        self.units.iter().any(UnitAction::interrupts)
    }

    /// Why the units cannot be reloaded or restarted, and the remedy.
    pub fn fault(&self) -> Option<String> {
        self.units.iter().find_map(|UnitAction { unit, .. }| {
            if !is_unit(unit) {
                let types = UNIT_TYPES.join(", ");
                return Some(format!(
                    "invalid unit {unit:?}, expected the name of a unit with one of the types {types}"
                ));
            }
            if unit == KUBELET {
                return Some(format!("units contains {unit}; use the step kubeletRestart instead"));
            }
            unit.starts_with(OF_AGENT).then(|| {
                format!("units contains {unit}, which belongs to the agent that runs the step; remove it")
            })
        })
    }
}

/// Whether a text is the full name of a unit of a supported type, and no option of systemctl.
fn is_unit(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":_.\\@-".contains(&byte);
    text.len() <= UNIT_CHARS
        && !text.starts_with('-')
        && text.bytes().all(is_plain)
        && text
            .rsplit_once('.')
            .is_some_and(|(name, type_)| !name.is_empty() && UNIT_TYPES.contains(&type_))
}

/// Another image of an etcd that runs as a static pod of kubeadm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdArgs {
    /// Repository that contains the image `etcd`, as `etcd.local.imageRepository` of kubeadm, such as `registry.k8s.io`;
    /// empty: the repository and name of the image in the manifest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(
        length(max = 256),
        regex(pattern = r"^([a-zA-Z0-9][a-zA-Z0-9./:_-]*[a-zA-Z0-9])?$")
    )]
    pub image_repository: String,
    /// Tag of the image, such as `3.6.5-0`.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[a-zA-Z0-9_][a-zA-Z0-9_.-]*$"))]
    pub image_tag: String,
}

impl EtcdArgs {
    /// Why there is no such image.
    pub(super) fn fault(&self) -> Option<String> {
        let is_word = |text: &str, more: &[u8]| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
        };
        let tag = &self.image_tag;
        if tag.is_empty() || tag.starts_with(['.', '-']) || !is_word(tag, b"_.-") {
            return Some(format!("invalid imageTag {tag:?}, expected a tag such as 3.6.5-0"));
        }
        let repository = &self.image_repository;
        let is_edge = |end: Option<char>| end.is_none_or(|end| end.is_ascii_alphanumeric());
        let edges = [repository.chars().next(), repository.chars().next_back()];
        (!edges.into_iter().all(is_edge) || !is_word(repository, b"./:_-")).then(|| {
            format!("invalid imageRepository {repository:?}, expected one such as registry.k8s.io")
        })
    }
}

/// Shell commands that an operator has declared safe to run again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandArgs {
    /// The commands, in order. Each runs as root with a `/bin/sh -c` of its own, and the first one that fails is the
    /// last one. They must not contain secrets: everyone who can read the plan can read them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub commands: Vec<String>,
}

/// Public keys that may no longer log in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyArgs {
    /// Users with their keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub users: Vec<RevokedKeys>,
}

/// Public keys with which a user may no longer log in over SSH.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevokedKeys {
    /// User name.
    #[schemars(length(max = 32), regex(pattern = r"^[a-z_][a-z0-9_-]*$"))]
    pub user: String,
    /// The keys in the form of `authorized_keys`. Options and comments are not compared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 16_384)))]
    pub keys: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(unit: &str) -> UnitArgs {
        let action = UnitAction { unit: unit.to_owned(), verb: UnitVerb::Reload };
        UnitArgs { units: vec![action] }
    }

    #[test]
    fn only_full_names_of_other_units_are_accepted() {
        for unit in ["containerd.service", "a@b-1.timer", "mnt-\\x2dx.mount", "x.y.socket"] {
            assert_eq!(units(unit).fault(), None, "{unit}");
        }
        for (unit, why) in [
            ("", "invalid unit"),
            ("containerd", "invalid unit"),
            (".service", "invalid unit"),
            ("--now.service", "invalid unit"),
            ("a b.service", "invalid unit"),
            ("a;b.service", "invalid unit"),
            ("x.target", "invalid unit"),
            ("kubelet.service", "use the step kubeletRestart"),
            ("refit-agent.service", "belongs to the agent"),
            ("refit-p-files-1.service", "belongs to the agent"),
        ] {
            let fault = units(unit).fault().unwrap_or_default();
            assert!(fault.contains(why) && fault.contains(unit), "{unit}: {fault}");
        }
        let long = format!("{}.service", "a".repeat(UNIT_CHARS));
        assert!(units(&long).fault().is_some());
    }

    #[test]
    fn only_names_of_images_are_accepted() {
        let etcd = |repository: &str, tag: &str| EtcdArgs {
            image_repository: repository.to_owned(),
            image_tag: tag.to_owned(),
        };
        for (repository, tag) in [("", "3.6.5-0"), ("r.example:5000/k8s", "v3.6_x")] {
            assert_eq!(etcd(repository, tag).fault(), None, "{repository} {tag}");
        }
        for (repository, tag, field) in [
            ("", "", "imageTag"),
            ("", "-x", "imageTag"),
            ("", "3 #", "imageTag"),
            ("-r", "3.6.5-0", "imageRepository"),
            ("r.example/", "3.6.5-0", "imageRepository"),
            ("r example", "3.6.5-0", "imageRepository"),
        ] {
            let fault = etcd(repository, tag).fault().unwrap_or_default();
            assert!(fault.contains(field), "{repository} {tag}: {fault}");
        }
    }
}
