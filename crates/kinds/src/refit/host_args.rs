//! What single steps of a host need: packages, kubeadm, images, files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where packages come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageArgs {
    /// Which package manager.
    #[serde(default)]
    pub driver: PackageDriver,
    /// Repository of the Kubernetes packages, as it is for this minor version
    /// (`https://pkgs.k8s.io/core:/stable:/v1.35/deb/`); empty: as the host has it set up.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub repository: String,
    /// Folder on the host with package files, or a tarball with binaries; empty: from the plan's
    /// bundle where its steps have one, else from a repository.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub path: String,
    /// Where a tarball with binaries is fetched from, where `path` is empty: `http://`, `https://` or
    /// `file://`. Its `sha256` says which one it is, so plain HTTP will do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub url: String,
    /// sha256 of the tarball of `path` or `url`, in hex; without it none is unpacked. Of one in a
    /// bundle the bundle says it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub sha256: String,
    /// Packages to install at exactly these versions, beside those of the Kubernetes version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub install: Vec<PackageVersion>,
}

/// A package at one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageVersion {
    /// Name, such as `containerd.io`.
    #[schemars(length(max = 128), regex(pattern = r"^[a-z0-9][a-zA-Z0-9+._-]*$"))]
    pub name: String,
    /// Version as the package manager writes it, such as `2.1.4-1`; one that ends in `*` takes the
    /// newest that begins so.
    #[schemars(length(max = 128), regex(pattern = r"^[a-zA-Z0-9][a-zA-Z0-9+.:~_-]*\*?$"))]
    pub version: String,
}

/// A package manager.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum PackageDriver {
    /// Whichever the host has.
    #[default]
    Auto,
    /// apt and dpkg.
    Apt,
    /// dnf and rpm.
    Dnf,
    /// Binaries from a tarball, switched by a symbolic link.
    Tarball,
}

/// How kubeadm is run. What is not said is as kubeadm has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeadmArgs {
    /// Phases to leave out, such as `addon/coredns`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub skip_phases: Vec<String>,
    /// Preflight errors to go on with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub ignore_preflight_errors: Vec<String>,
    /// Folder on the host with kubeadm's patches: they must be given at every upgrade.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub patches: String,
    /// `false` leaves certificates as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_renewal: Option<bool>,
    /// `false` leaves a stacked etcd as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_upgrade: Option<bool>,
    /// How long kubeadm waits for each static pod, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 3600))]
    pub manifest_timeout_seconds: Option<i32>,
}

/// Arguments of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeletArgs {
    /// Flags that are set, without their dashes; they replace those of the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub extra_args: Vec<KubeletArg>,
    /// Flags that are taken away: those that the new version no longer knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub remove_args: Vec<String>,
}

/// A flag of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeletArg {
    /// Its name, without dashes.
    #[schemars(length(max = 128), regex(pattern = r"^[a-z][a-z0-9-]*$"))]
    pub name: String,
    /// Its value.
    #[schemars(length(max = 1024))]
    pub value: String,
}

/// Which certificates of kubeadm are renewed apart from an upgrade, which renews them by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateArgs {
    /// Once one of them ends within so many days, all that kubeadm can renew are renewed.
    #[schemars(range(min = 1, max = 3650))]
    pub renew_within_days: i32,
}

/// An OS image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OsImageArgs {
    /// What the host reports as its OS image once it runs: a host that reports it already is left
    /// with what it has.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Where it is, as an URL (`file:///...` too): a bare path is none (`spec/node.md 1.9`).
    /// `bundle:///os/NAME` is the image of that name in the step's bundle. It must still be there when
    /// the image is finalized.
    #[schemars(length(min = 1, max = 1024))]
    pub url: String,
    /// sha384 of the image's metadata, in hex.
    #[schemars(length(min = 1, max = 128))]
    pub sha384: String,
    /// It brings the kubelet of the plan's version: no package of it is installed.
    #[serde(default)]
    pub brings_kubelet: bool,
    /// What must hold in the new OS, else it goes back by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub health_checks: Vec<HealthCheck>,
}

/// Services that must run in a new OS image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// Unique among the checks.
    #[schemars(length(max = 63), regex(pattern = r"^[a-z0-9][a-z0-9-]*$"))]
    pub name: String,
    /// systemd services.
    #[schemars(length(min = 1, max = 32))]
    pub systemd_services: Vec<String>,
    /// How long they may take to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: Option<i32>,
}

/// Container images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageArgs {
    /// Names with tag or digest. Empty with `kubeadm`: only kubeadm's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub names: Vec<String>,
    /// Those that kubeadm lists for the version, too.
    #[serde(default)]
    pub kubeadm: bool,
    /// What cannot be fetched now is left to kubeadm, which fetches it while it upgrades.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
    /// Repository that kubeadm's images come from; empty: kubeadm's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub repository: String,
}

/// Files and users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileArgs {
    /// Files, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub files: Vec<PlannedFile>,
    /// Users, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub users: Vec<PlannedUser>,
}

/// A file, as a KubeadmConfig has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedFile {
    /// Absolute path.
    #[schemars(length(max = 1024), regex(pattern = r"^/"))]
    pub path: String,
    /// `user:group`; empty: `root:root`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub owner: String,
    /// Octal, such as `0640`; empty: `0644`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 5), regex(pattern = r"^[0-7]{0,5}$"))]
    pub permissions: String,
    /// How `content` is written.
    #[serde(default)]
    pub encoding: FileEncoding,
    /// Whether it is added to the end of what is there; done once, however often the step runs.
    #[serde(default)]
    pub append: bool,
    /// The content. Never a secret: everybody who may read the plan may read it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 262_144))]
    pub content: String,
    /// The secret that holds the content instead; the host fetches it as its own node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_from: Option<SecretKey>,
    /// sha256 of the decoded content in hex, where it comes from a secret: tells one content from
    /// the next without showing either.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub sha256: String,
}

/// How the content of a file is written down.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum FileEncoding {
    /// As it is.
    #[default]
    #[serde(rename = "")]
    Plain,
    /// base64.
    #[serde(rename = "base64")]
    Base64,
    /// gzip.
    #[serde(rename = "gzip")]
    Gzip,
    /// gzip, then base64.
    #[serde(rename = "gzip+base64")]
    GzipBase64,
}

/// A key of a Secret in the namespace of the HostPlan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKey {
    /// Name of the Secret.
    #[schemars(length(max = 253))]
    pub name: String,
    /// The key.
    #[schemars(length(max = 253))]
    pub key: String,
}

/// A user of the host, as a KubeadmConfig has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedUser {
    /// Name.
    #[schemars(length(max = 32), regex(pattern = r"^[a-z_][a-z0-9_-]*$"))]
    pub name: String,
    /// Full name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub gecos: String,
    /// Groups beside its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub groups: Vec<String>,
    /// Home folder.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub home_dir: String,
    /// Login shell.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub shell: String,
    /// No login by password.
    #[serde(default)]
    pub lock_password: bool,
    /// What sudo lets it do, as one line of sudoers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub sudo: String,
    /// Public keys that may log in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub ssh_authorized_keys: Vec<String>,
}

/// Time synchronisation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NtpArgs {
    /// Whether the clock follows servers.
    pub enabled: bool,
    /// The servers; empty: the host's own choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub servers: Vec<String>,
}

/// An air-gapped bundle: packages, images and a signed manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BundleRef {
    /// Absolute path on the host, or URL.
    #[schemars(length(min = 1, max = 1024))]
    pub location: String,
    /// sha256 of its manifest in hex; empty where the signature alone is trusted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub manifest_sha256: String,
    /// Public key that must have signed it, one of those that the host trusts by its own
    /// configuration (`/etc/refit/keys`): naming it here makes no key trusted. Empty: any of them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub public_key: String,
    /// Most bytes per second of a download; 0: no limit.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub bytes_per_second: i64,
}
