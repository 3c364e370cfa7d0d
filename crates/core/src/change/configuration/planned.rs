//! The values of what changes in a KubeadmConfig, as the steps of a host need them.

use refit_cluster_api::host_configuration::{ConfigFile, ConfigUser, EtcdImage, HostConfiguration};
use refit_kinds::refit::{
    CommandArgs, ConfigurationField, ConfigurationPart, EtcdArgs, FileArgs, KeyArgs, KubeletArg,
    KubeletArgs, NodeDisruptionPolicySpec, NtpArgs, PlannedFile, PlannedUser, SecretKey, SecretSum,
    UnitArgs, UnitVerb, hash_json,
};
use serde_json::{Value, json};

use super::{files::encoding_of, users::groups_of};
use crate::node::{Actions, actions_of_file, actions_of_user};

/// What the steps of a host get of a KubeadmConfig; each is `None` if it does not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlannedConfiguration {
    /// Files and users.
    pub files: Option<FileArgs>,
    /// Keys that users lose.
    pub keys: Option<KeyArgs>,
    /// Time servers.
    pub ntp: Option<NtpArgs>,
    /// Units that are reloaded or restarted.
    pub units: Option<UnitArgs>,
    /// Commands.
    pub commands: Option<CommandArgs>,
    /// Flags of the kubelet.
    pub kubelet: Option<KubeletArgs>,
    /// The image of etcd.
    pub etcd: Option<EtcdArgs>,
    /// Whether the kubelet is restarted for a file.
    pub restarts_kubelet: bool,
    /// Whether the host reboots for it.
    pub reboots: bool,
}

impl PlannedConfiguration {
    /// The same without values, which are not read yet: it has the same steps.
    pub fn without_values(part: &ConfigurationPart) -> Self {
        let commands = part.has(ConfigurationField::PreKubeadmCommands)
            || part.has(ConfigurationField::PostKubeadmCommands);
        let writes = !part.files.is_empty() || !part.users.is_empty();
        Self {
            files: writes.then(FileArgs::default),
            keys: keys_of(part),
            ntp: part.has(ConfigurationField::Ntp).then(NtpArgs::default),
            units: units_of(part),
            commands: commands.then(CommandArgs::default),
            kubelet: (!part.kubelet_args.is_empty()).then(|| KubeletArgs {
                remove_args: part.kubelet_args.clone(),
                ..KubeletArgs::default()
            }),
            etcd: part.has(ConfigurationField::Etcd).then(EtcdArgs::default),
            restarts_kubelet: part.restarts_kubelet,
            reboots: false,
        }
    }
}

fn keys_of(part: &ConfigurationPart) -> Option<KeyArgs> {
    let users = part.revoked_keys.clone();
    (!users.is_empty()).then_some(KeyArgs { users })
}

fn units_of(part: &ConfigurationPart) -> Option<UnitArgs> {
    let units = part.units.clone();
    (!units.is_empty()).then_some(UnitArgs { units })
}

/// sha256 of everything in the spec of a KubeadmConfig that a running host can get.
pub fn hash_of_configuration(spec: &Value) -> String {
    let at = |place: &[&str]| {
        let found = place.iter().try_fold(spec, |value, key| value.get(key));
        found.filter(|found| !found.is_null()).cloned()
    };
    let all = [
        HostConfiguration::FILES,
        HostConfiguration::USERS,
        HostConfiguration::NTP,
        HostConfiguration::PRE_KUBEADM_COMMANDS,
        HostConfiguration::POST_KUBEADM_COMMANDS,
        // A machine has one of two.
        HostConfiguration::KUBELET_ARGS,
    ];
    let values: Vec<_> =
        all.iter().map(|places| places.iter().find_map(|place| at(place))).collect();
    let etcd: Vec<_> = HostConfiguration::ETCD.iter().map(|place| at(place)).collect();
    hash_json(&json!([values, etcd]))
}

/// What of a part the spec of a KubeadmConfig has. If an owner is changed again during a rollout, the names of both changes are
/// recorded, and Cluster API lets a machine reach the first change before it asks for the second.
///
/// The units of what is left out are left out too: one that only a dropped file would define cannot be restarted.
pub(super) fn present_in(
    spec: &Value,
    mut part: ConfigurationPart,
    policy: Option<&NodeDisruptionPolicySpec>,
) -> ConfigurationPart {
    // What cannot be read is reported when its values are needed.
    let Ok(config) = HostConfiguration::of(spec) else { return part };
    let before = (part.files.len(), part.users.len());
    part.files.retain(|path| config.files.iter().any(|file| file.path == *path));
    part.users.retain(|name| config.users.iter().any(|user| user.name == *name));
    part.fields.retain(|field| match field {
        ConfigurationField::Ntp => config.ntp.is_some(),
        ConfigurationField::Etcd => *config.etcd() != EtcdImage::default(),
        ConfigurationField::PreKubeadmCommands => !config.pre_kubeadm_commands.is_empty(),
        ConfigurationField::PostKubeadmCommands => !config.post_kubeadm_commands.is_empty(),
    });
    if (part.files.len(), part.users.len()) == before {
        return part;
    }
    let of_files = part.files.iter().map(|path| actions_of_file(policy, path));
    let of_users = (!part.users.is_empty()).then(|| actions_of_user(policy));
    let needed = of_files.chain(of_users).fold(Actions::none(), Actions::merge);
    // A unit was recorded for what changes, so no other is added, even if the policy has changed since.
    part.units.retain(|action| match action.verb {
        UnitVerb::Reload | UnitVerb::Restart => {
            needed.restart.contains(&action.unit) || needed.reload.contains(&action.unit)
        }
    });
    part.restarts_kubelet &= needed.restart_kubelet;
    let is_used = |sum: &SecretSum| {
        config.files.iter().filter(|file| part.files.contains(&file.path)).any(|file| {
            let from = file.content_from.as_ref().map(|from| &from.secret);
            from.is_some_and(|from| (&from.name, &from.key) == (&sum.name, &sum.key))
        })
    };
    part.secrets.retain(is_used);
    part
}

/// The values of a part in the spec of a KubeadmConfig.
///
/// # Errors
/// What the spec does not have any more: it asks for another change by now.
pub fn planned(spec: &Value, part: &ConfigurationPart) -> Result<PlannedConfiguration, String> {
    let config = HostConfiguration::of(spec)?;
    let files = part.files.iter().map(|path| {
        let mut found = config.files.iter().filter(|file| file.path == *path);
        let file = found.next().ok_or_else(|| format!("it has no file {path}"))?;
        planned_file(file, part)
    });
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let users = part.users.iter().map(|name| {
        let user = config.users.iter().find(|user| user.name == *name);
        user.map(planned_user).ok_or_else(|| format!("it has no user {name}"))
    });
    let users = users.collect::<Result<Vec<_>, _>>()?;
    let commands: Vec<String> = [
        (ConfigurationField::PreKubeadmCommands, &config.pre_kubeadm_commands),
        (ConfigurationField::PostKubeadmCommands, &config.post_kubeadm_commands),
    ]
    .into_iter()
    .filter(|(field, _)| part.has(*field))
    .flat_map(|(_, commands)| commands.clone())
    .collect();
    let shape = PlannedConfiguration::without_values(part);
    Ok(PlannedConfiguration {
        files: shape.files.map(|_| FileArgs { files, users }),
        ntp: match shape.ntp {
            Some(_) => Some(planned_ntp(&config)?),
            None => None,
        },
        commands: shape.commands.map(|_| CommandArgs { commands }),
        kubelet: shape.kubelet.map(|_| planned_flags(&config, part)),
        etcd: shape.etcd.map(|_| EtcdArgs {
            image_repository: config.etcd().image_repository.clone(),
            image_tag: config.etcd().image_tag.clone(),
        }),
        keys: shape.keys,
        units: shape.units,
        restarts_kubelet: shape.restarts_kubelet,
        reboots: shape.reboots,
    })
}

fn planned_file(file: &ConfigFile, part: &ConfigurationPart) -> Result<PlannedFile, String> {
    let ConfigFile { path, owner, permissions, encoding, content, content_from, .. } = file;
    let encoding =
        encoding_of(encoding).ok_or_else(|| format!("file {path} has an unknown encoding"))?;
    let (mut secret, mut sha256) = (None, String::new());
    if let Some(from) = content_from {
        let (name, key) = (from.secret.name.clone(), from.secret.key.clone());
        let sum = part.secrets.iter().find(|sum| sum.name == name && sum.key == key);
        let sum = sum.ok_or_else(|| format!("file {path} has the content of another Secret"))?;
        sha256.clone_from(&sum.sha256);
        secret = Some(SecretKey { name, key });
    }
    Ok(PlannedFile {
        path: path.clone(),
        owner: owner.clone(),
        permissions: permissions.clone(),
        encoding,
        append: false,
        content: content.clone(),
        content_from: secret,
        sha256,
    })
}

fn planned_user(user: &ConfigUser) -> PlannedUser {
    PlannedUser {
        name: user.name.clone(),
        gecos: user.gecos.clone(),
        groups: groups_of(user).map(str::to_owned).collect(),
        home_dir: user.home_dir.clone(),
        shell: user.shell.clone(),
        lock_password: user.lock_password == Some(true),
        sudo: user.sudo.clone(),
        ssh_authorized_keys: user.ssh_authorized_keys.clone(),
    }
}

fn planned_ntp(config: &HostConfiguration) -> Result<NtpArgs, String> {
    let ntp = config.ntp.as_ref().ok_or("it has no time servers")?;
    Ok(NtpArgs { enabled: ntp.enabled.unwrap_or(true), servers: ntp.servers.clone() })
}

fn planned_flags(config: &HostConfiguration, part: &ConfigurationPart) -> KubeletArgs {
    let set = config.kubelet_args().iter().filter(|arg| part.kubelet_args.contains(&arg.name));
    let extra_args: Vec<KubeletArg> =
        set.map(|arg| KubeletArg { name: arg.name.clone(), value: arg.value.clone() }).collect();
    let is_set = |name: &&String| extra_args.iter().any(|arg| arg.name == **name);
    let remove_args = part.kubelet_args.iter().filter(|name| !is_set(name)).cloned().collect();
    KubeletArgs { extra_args, remove_args }
}
