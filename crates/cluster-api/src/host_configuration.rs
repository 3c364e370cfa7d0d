//! What a KubeadmConfig asks of its host, apart from the bootstrap of Kubernetes itself.
//!
//! Cluster API only uses it when a machine is created (`docs/facts/kubeadm-config.md`).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The part of a KubeadmConfig's spec that a running host can get.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostConfiguration {
    /// Format of the user data: `cloud-config` if empty, or `ignition`.
    pub format: String,
    /// Files, in order.
    pub files: Vec<ConfigFile>,
    /// Users, in order.
    pub users: Vec<ConfigUser>,
    /// Time servers.
    pub ntp: Option<ConfigNtp>,
    /// Commands before kubeadm.
    pub pre_kubeadm_commands: Vec<String>,
    /// Commands after kubeadm.
    pub post_kubeadm_commands: Vec<String>,
    cluster_configuration: ClusterConfiguration,
    init_configuration: Option<NodeConfiguration>,
    join_configuration: Option<NodeConfiguration>,
}

/// A file of a KubeadmConfig.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigFile {
    /// Absolute path.
    pub path: String,
    /// Owner as `user:group`.
    pub owner: String,
    /// Octal mode.
    pub permissions: String,
    /// Encoding of the content.
    pub encoding: String,
    /// Whether the content is appended.
    pub append: Option<bool>,
    /// The content.
    pub content: String,
    /// The Secret with the content.
    pub content_from: Option<ContentFrom>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// Where the content of a file is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ContentFrom {
    /// The Secret.
    pub secret: SecretRef,
}

/// A key of a Secret in the namespace of the KubeadmConfig.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SecretRef {
    /// Name of the Secret.
    pub name: String,
    /// Key in the Secret.
    pub key: String,
}

/// A user of a KubeadmConfig.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigUser {
    /// User name.
    pub name: String,
    /// Full name.
    pub gecos: String,
    /// Groups, separated by commas.
    pub groups: String,
    /// Home directory.
    pub home_dir: String,
    /// Login shell.
    pub shell: String,
    /// Whether login by password is disabled.
    pub lock_password: Option<bool>,
    /// Rule for sudo.
    pub sudo: String,
    /// Public keys.
    pub ssh_authorized_keys: Vec<String>,
    /// Fields that no running host gets, such as `passwd`.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// Time servers of a KubeadmConfig.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigNtp {
    /// The servers.
    pub servers: Vec<String>,
    /// Whether the clock is synchronised; absent: yes, as cloud-init has it.
    pub enabled: Option<bool>,
}

/// An argument of a component.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct Argument {
    /// Name, without dashes.
    pub name: String,
    /// Value.
    pub value: String,
}

/// The image of a stacked etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdImage {
    /// Repository; empty: that of the cluster's images.
    pub image_repository: String,
    /// Tag; empty: the one that kubeadm chooses for the Kubernetes version.
    pub image_tag: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct ClusterConfiguration {
    etcd: Etcd,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Etcd {
    local: EtcdImage,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeConfiguration {
    node_registration: NodeRegistration,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeRegistration {
    kubelet_extra_args: Vec<Argument>,
}

/// Places of a field in the spec of a KubeadmConfig, as the members on the way.
pub type Places = &'static [&'static [&'static str]];

impl HostConfiguration {
    /// Where the files are.
    pub const FILES: Places = &[&["files"]];
    /// Where the users are.
    pub const USERS: Places = &[&["users"]];
    /// Where the time servers are.
    pub const NTP: Places = &[&["ntp"]];
    /// Where the commands before kubeadm are.
    pub const PRE_KUBEADM_COMMANDS: Places = &[&["preKubeadmCommands"]];
    /// Where the commands after kubeadm are.
    pub const POST_KUBEADM_COMMANDS: Places = &[&["postKubeadmCommands"]];
    /// Where the flags of the kubelet are.
    pub const KUBELET_ARGS: Places = &[
        &["joinConfiguration", "nodeRegistration", "kubeletExtraArgs"],
        &["initConfiguration", "nodeRegistration", "kubeletExtraArgs"],
    ];
    /// Where the image of etcd is.
    pub const ETCD: Places = &[
        &["clusterConfiguration", "etcd", "local", "imageTag"],
        &["clusterConfiguration", "etcd", "local", "imageRepository"],
    ];

    /// Reads it from the spec of a KubeadmConfig of v1beta2.
    ///
    /// # Errors
    /// What is not as in v1beta2, in one sentence without any value: values may be secrets.
    pub fn of(spec: &Value) -> Result<Self, String> {
        let spec = if spec.is_null() { &Value::Object(serde_json::Map::new()) } else { spec };
        serde_path_to_error::deserialize(spec)
            .map_err(|error| format!("{} is not as KubeadmConfig v1beta2 has it", error.path()))
    }

    /// The flags of the kubelet: those of the join, or else of the initialisation.
    pub fn kubelet_args(&self) -> &[Argument] {
        let node = self.join_configuration.as_ref().or(self.init_configuration.as_ref());
        node.map_or(&[], |node| &node.node_registration.kubelet_extra_args)
    }

    /// The image of a stacked etcd.
    pub fn etcd(&self) -> &EtcdImage {
        &self.cluster_configuration.etcd.local
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_host_configuration_has_the_flags_of_the_join_or_of_the_initialisation() {
        let with = |configuration: &str| {
            let args = json!([{"name": "v", "value": "4"}]);
            let spec = json!({configuration: {"nodeRegistration": {"kubeletExtraArgs": args, "name": "n"}}});
            HostConfiguration::of(&spec).unwrap().kubelet_args().to_vec()
        };
        let expected = [Argument { name: "v".into(), value: "4".into() }];
        assert_eq!(with("joinConfiguration"), expected);
        assert_eq!(with("initConfiguration"), expected);
        assert_eq!(HostConfiguration::of(&Value::Null).unwrap(), HostConfiguration::default());
    }

    #[test]
    fn an_invalid_configuration_is_named_without_its_values() {
        let spec = json!({"files": [{"path": "/a", "content": ["hunter2"]}]});
        let error = HostConfiguration::of(&spec).unwrap_err();
        assert_eq!(error, "files[0].content is not as KubeadmConfig v1beta2 has it");
    }

    #[test]
    fn fields_that_are_not_known_are_kept_by_name() {
        let spec = json!({"users": [{"name": "a", "passwd": "x"}], "files": [{"path": "/a", "contentFormat": "go-template"}]});
        let found = HostConfiguration::of(&spec).unwrap();
        assert_eq!(found.users[0].others.keys().collect::<Vec<_>>(), ["passwd"]);
        assert_eq!(found.files[0].others.keys().collect::<Vec<_>>(), ["contentFormat"]);
    }
}
