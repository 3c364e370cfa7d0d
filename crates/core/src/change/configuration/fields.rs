//! Which fields of a host's configuration differ, and what becomes of each.

use std::collections::{BTreeMap, BTreeSet};

use refit_cluster_api::host_configuration::{Argument, HostConfiguration, Places};
use refit_kinds::{
    keys,
    refit::{ChangedConfiguration, ConfigurationField, ConfigurationPart, Disruption},
};

use super::{ConfigurationRules, Sides, files, users};
use crate::change::objects::Level;

/// A field that differs.
pub(super) struct FieldChange {
    /// Where it is.
    pub(super) places: Places,
    /// What the host gets, or why it cannot get it.
    pub(super) outcome: Result<ChangedConfiguration, String>,
}

/// Flags that a kubelet uses only when it registers its Node (`docs/facts/kubernetes.md#flags-of-a-registration`).
const REGISTRATION: [&str; 4] =
    ["hostname-override", "node-labels", "register-node", "register-with-taints"];

/// The fields that differ.
pub(super) fn compared(
    Sides { from, original, to }: &Sides,
    level: Level,
    rules: &ConfigurationRules,
) -> Vec<FieldChange> {
    let field = |places: Places, differs: bool, outcome: &dyn Fn() -> Outcome| {
        differs.then(|| FieldChange { places, outcome: outcome() })
    };
    let commands = |which: ConfigurationField, to: &[String]| commands(which, to, rules);
    let all = [
        field(HostConfiguration::FILES, from.files != to.files, &|| {
            files::changed(&from.files, &to.files, rules)
        }),
        field(HostConfiguration::USERS, from.users != to.users, &|| {
            users::changed(&from.users, &to.users, rules)
        }),
        field(HostConfiguration::NTP, from.ntp != to.ntp, &|| ntp(to)),
        field(
            HostConfiguration::PRE_KUBEADM_COMMANDS,
            from.pre_kubeadm_commands != to.pre_kubeadm_commands,
            &|| commands(ConfigurationField::PreKubeadmCommands, &to.pre_kubeadm_commands),
        ),
        field(
            HostConfiguration::POST_KUBEADM_COMMANDS,
            from.post_kubeadm_commands != to.post_kubeadm_commands,
            &|| commands(ConfigurationField::PostKubeadmCommands, &to.post_kubeadm_commands),
        ),
        field(
            HostConfiguration::KUBELET_ARGS,
            original.kubelet_args() != to.kubelet_args(),
            &|| kubelet_args(original.kubelet_args(), to.kubelet_args()),
        ),
        field(HostConfiguration::ETCD, from.etcd() != to.etcd(), &|| etcd(from, to, level)),
    ];
    all.into_iter().flatten().collect()
}

type Outcome = Result<ChangedConfiguration, String>;

fn whole(field: ConfigurationField, disruption: Disruption) -> ChangedConfiguration {
    let part = ConfigurationPart { fields: vec![field], ..ConfigurationPart::default() };
    ChangedConfiguration { part, disruption }
}

fn ntp(to: &HostConfiguration) -> Outcome {
    let is_known =
        to.ntp.as_ref().is_some_and(|ntp| ntp.enabled == Some(false) || !ntp.servers.is_empty());
    if is_known {
        Ok(whole(ConfigurationField::Ntp, Disruption::None))
    } else {
        Err("the time servers that the image of the host has are not known".to_owned())
    }
}

fn commands(which: ConfigurationField, to: &[String], rules: &ConfigurationRules) -> Outcome {
    let Some(disruption) = rules.rerun else {
        return Err(format!(
            "commands run when a machine is created; if all of them are safe to run again on a host in use, annotate the owner \
             with {}: None, Restart, Drain or Reboot, by how they disturb it",
            keys::RERUN_COMMANDS
        ));
    };
    if to.is_empty() {
        return Err("what removed commands have done cannot be undone".to_owned());
    }
    Ok(whole(which, disruption))
}

fn kubelet_args(from: &[Argument], to: &[Argument]) -> Outcome {
    let by_name = |all: &[Argument]| {
        let named = all.iter().map(|arg| (arg.name.clone(), arg.value.clone()));
        let named: BTreeMap<String, String> = named.collect();
        (named.len() == all.len()).then_some(named).ok_or("a flag of the kubelet is listed twice")
    };
    let (from, to) = (by_name(from)?, by_name(to)?);
    let all: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let names: Vec<String> =
        all.into_iter().filter(|name| from.get(*name) != to.get(*name)).cloned().collect();
    if let Some(name) = names.iter().find(|name| REGISTRATION.contains(&name.as_str())) {
        return Err(format!("a kubelet uses its flag {name} only when it registers a new Node"));
    }
    // The agent refuses other values, when the update has begun.
    let is_plain = |value: &String| {
        !value.chars().any(|c| c.is_whitespace() || c.is_control() || "\"'\\$%".contains(c))
    };
    let is_name = |name: &String| {
        let rest = name.strip_prefix(|c: char| c.is_ascii_lowercase());
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        rest.is_some_and(|rest| rest.chars().all(is_word))
    };
    let bad = names.iter().find(|name| !is_name(name) || !to.get(*name).is_none_or(is_plain));
    if let Some(name) = bad {
        return Err(format!(
            "the flag {name:?} of the kubelet, or its value, cannot be written to an environment file: it has blanks, quotes, \
             $, % or \\"
        ));
    }
    if names.is_empty() {
        // Only their order differs. The host gets the flags as they are.
        let kubelet_args = to.into_keys().collect();
        let part = ConfigurationPart { kubelet_args, ..ConfigurationPart::default() };
        return Ok(ChangedConfiguration { part, disruption: Disruption::Restart });
    }
    let part = ConfigurationPart { kubelet_args: names, ..ConfigurationPart::default() };
    Ok(ChangedConfiguration { part, disruption: Disruption::Restart })
}

fn etcd(from: &HostConfiguration, to: &HostConfiguration, level: Level) -> Outcome {
    match level {
        Level::MachineSet => return Err("workers have no etcd".to_owned()),
        Level::Machine => {}
    }
    let (from, to) = (from.etcd(), to.etcd());
    if to.image_tag.is_empty() {
        return Err(
            "without a tag kubeadm chooses the image of etcd, at its next upgrade".to_owned()
        );
    }
    if to.image_repository.is_empty() && !from.image_repository.is_empty() {
        return Err(
            "the repository of etcd's image is not known without imageRepository".to_owned()
        );
    }
    Ok(whole(ConfigurationField::Etcd, Disruption::Restart))
}
