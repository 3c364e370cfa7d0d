//! What the host gets of the KubeadmConfig of its machine.

use std::{borrow::Cow, collections::BTreeSet};

use refit_kinds::refit::{CONFIGURATION, Disruption, FileArgs, KubeletArgs, PlanSettings};
use serde_json::Value;

use super::{Host, applied::applied};
use crate::{
    change::{PlannedConfiguration, hash_of_configuration, planned},
    node::snapshot::{ConfigurationValues, Snapshot},
};

impl Host<'_> {
    /// What the steps of the host get of its KubeadmConfig; without values as long as it was not read, or does not have
    /// them any more.
    pub(super) fn configuration(&self, s: &Snapshot) -> Option<PlannedConfiguration> {
        let mut parts = self.update.spec.host_parts();
        let (part, disruption) =
            parts.find_map(|(part, host)| Some((host.configuration()?, part.disruption)))?;
        let read = match &s.configuration {
            ConfigurationValues::Read(Some(spec)) => planned(spec, part).ok(),
            ConfigurationValues::Read(None) | ConfigurationValues::Unread => None,
        };
        let values = read.unwrap_or_else(|| PlannedConfiguration::without_values(part));
        Some(PlannedConfiguration { reboots: disruption == Disruption::Reboot, ..values })
    }

    /// What the KubeadmConfig does not have any more of what the goal was made of; `None` if it was not read.
    pub(in crate::node) fn configuration_differs(&self, s: &Snapshot) -> Option<String> {
        let part = self.update.spec.configuration()?;
        let spec: &Value = match &s.configuration {
            ConfigurationValues::Unread => return None,
            ConfigurationValues::Read(None) => return Some("it does not exist".to_owned()),
            ConfigurationValues::Read(Some(spec)) => spec,
        };
        if let Err(why) = planned(spec, part) {
            return Some(why);
        }
        let mut goals = self.update.spec.goal.parts.iter();
        let goal = goals.find(|goal| goal.updater == CONFIGURATION);
        let is_goal = goal.is_some_and(|goal| goal.hash == hash_of_configuration(spec));
        (!is_goal).then(|| "it has other values".to_owned())
    }

    /// What the KubeadmConfig and the HostSettings of one update both set.
    pub(in crate::node) fn set_twice(&self, s: &Snapshot) -> Option<String> {
        let part = self.update.spec.configuration()?;
        let applied = applied(s)?;
        let settings: &PlanSettings = &applied;
        let files = settings.files.as_ref();
        let twice_file = files.and_then(|args| {
            let path = args.files.iter().find(|file| part.files.contains(&file.path))?;
            Some(format!("file {}", path.path))
        });
        let twice_user = || {
            let user = files?.users.iter().find(|user| part.users.contains(&user.name))?;
            Some(format!("user {}", user.name))
        };
        let twice_flag = || {
            let kubelet = settings.kubelet.as_ref()?;
            let set = kubelet.extra_args.iter().map(|arg| &arg.name).chain(&kubelet.remove_args);
            let mut set = set.filter(|name| part.kubelet_args.contains(name));
            set.next().map(|name| format!("the flag {name} of the kubelet"))
        };
        let has_ntp =
            settings.ntp.is_some() && PlannedConfiguration::without_values(part).ntp.is_some();
        twice_file
            .or_else(twice_user)
            .or_else(twice_flag)
            .or_else(|| has_ntp.then(|| "the time servers".to_owned()))
    }
}

/// The files and users of settings, if they are applied, and of a KubeadmConfig.
pub(super) fn files<'a>(
    settings: Option<&'a FileArgs>,
    configuration: Option<&'a PlannedConfiguration>,
) -> Option<Cow<'a, FileArgs>> {
    let of_config = configuration.and_then(|configuration| configuration.files.as_ref());
    match (settings, of_config) {
        (Some(one), Some(other)) => Some(Cow::Owned(FileArgs {
            files: [&*one.files, &*other.files].concat(),
            users: [&*one.users, &*other.users].concat(),
        })),
        (one, other) => one.or(other).map(Cow::Borrowed),
    }
}

/// The flags of settings, if they are applied, and of a KubeadmConfig.
pub(super) fn flags(
    settings: Option<&PlanSettings>,
    configuration: Option<&PlannedConfiguration>,
) -> KubeletArgs {
    let of_settings = settings.and_then(|settings| settings.kubelet.clone()).unwrap_or_default();
    let of_config = configuration.and_then(|configuration| configuration.kubelet.clone());
    let KubeletArgs { extra_args, remove_args } = of_config.unwrap_or_default();
    let removed: BTreeSet<String> =
        of_settings.remove_args.into_iter().chain(remove_args).collect();
    KubeletArgs {
        extra_args: of_settings.extra_args.into_iter().chain(extra_args).collect(),
        remove_args: removed.into_iter().collect(),
    }
}
