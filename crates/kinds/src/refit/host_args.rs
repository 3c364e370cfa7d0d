//! Arguments of a host's steps: packages, kubeadm, images, files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Source of packages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageArgs {
    /// Package manager to use.
    #[serde(default)]
    pub driver: PackageDriver,
    /// Repository of the Kubernetes packages for this minor version
    /// (`https://pkgs.k8s.io/core:/stable:/v1.35/deb/`); empty: the repository configured on the
    /// host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub repository: String,
    /// Directory on the host with package files, or a tarball with binaries; empty: the plan's
    /// bundle if its steps have one, else a repository.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub path: String,
    /// URL of a tarball with binaries, used if `path` is empty: `http://`, `https://` or `file://`.
    /// `sha256` verifies the content, so plain HTTP is acceptable.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub url: String,
    /// sha256 of the tarball of `path` or `url`, in hex; a tarball without it is not unpacked. For
    /// a tarball in a bundle, the bundle supplies it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub sha256: String,
    /// Packages to install at exactly these versions, in addition to those of the Kubernetes
    /// version.
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
    /// Version in the package manager's format, such as `2.1.4-1`; a version that ends in `*`
    /// selects the newest one with that prefix.
    #[schemars(length(max = 128), regex(pattern = r"^[a-zA-Z0-9][a-zA-Z0-9+.:~_-]*\*?$"))]
    pub version: String,
}

/// A package manager.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum PackageDriver {
    /// The package manager of the host.
    #[default]
    Auto,
    /// apt and dpkg.
    Apt,
    /// dnf and rpm.
    Dnf,
    /// Binaries from a tarball, activated by a symbolic link.
    Tarball,
}

/// How kubeadm is run. A field that is not set has kubeadm's own default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeadmArgs {
    /// Phases to skip, such as `addon/coredns`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub skip_phases: Vec<String>,
    /// Preflight errors to ignore.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub ignore_preflight_errors: Vec<String>,
    /// Directory on the host with kubeadm's patches. They must be given at every upgrade.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub patches: String,
    /// `false` disables the renewal of certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_renewal: Option<bool>,
    /// `false` disables the upgrade of a stacked etcd.
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
    /// Flags to set, without dashes; they replace flags of the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub extra_args: Vec<KubeletArg>,
    /// Flags to remove because the new version no longer supports them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub remove_args: Vec<String>,
}

/// A flag of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeletArg {
    /// Name of the flag, without dashes.
    #[schemars(length(max = 128), regex(pattern = r"^[a-z][a-z0-9-]*$"))]
    pub name: String,
    /// Value of the flag.
    #[schemars(length(max = 1024))]
    pub value: String,
}

/// So many days that every certificate expires within them: a hundred years.
pub const RENEW_ALWAYS_DAYS: i32 = 36_500;

/// Renewal of kubeadm's certificates apart from an upgrade. An upgrade always renews them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateArgs {
    /// Renews all certificates that kubeadm can renew once one of them expires within this many
    /// days.
    #[schemars(range(min = 1, max = RENEW_ALWAYS_DAYS))]
    pub renew_within_days: i32,
}

/// An OS image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OsImageArgs {
    /// OS image that the host reports once the image runs. A host that already reports it is not
    /// changed.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// URL of the image (`file:///...` too); a bare path is invalid
    /// (`docs/facts/trident.md#image-url`). `bundle:///os/NAME` is the image of that name in the
    /// step's bundle. The image must still be available when it is finalized.
    #[schemars(length(min = 1, max = 1024))]
    pub url: String,
    /// sha384 of the image's metadata, in hex.
    #[schemars(length(min = 1, max = 128))]
    pub sha384: String,
    /// The image contains the kubelet of the plan's version: no kubelet package is installed.
    #[serde(default)]
    pub brings_kubelet: bool,
    /// Checks that must pass in the new OS; otherwise the OS rolls back by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub health_checks: Vec<HealthCheck>,
}

/// Services that must run in a new OS image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// Name, unique among the checks.
    #[schemars(length(max = 63), regex(pattern = r"^[a-z0-9][a-z0-9-]*$"))]
    pub name: String,
    /// The systemd services that must run.
    #[schemars(length(min = 1, max = 32))]
    pub systemd_services: Vec<String>,
    /// How long the services may take to run, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: Option<i32>,
}

/// Container images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageArgs {
    /// Image names with tag or digest. Empty with `kubeadm`: only kubeadm's own images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub names: Vec<String>,
    /// Whether to add the images that kubeadm lists for the version.
    #[serde(default)]
    pub kubeadm: bool,
    /// Whether images that cannot be pulled now are left to kubeadm, which pulls them during the
    /// upgrade.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
    /// Repository of kubeadm's images; empty: kubeadm's default.
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

/// A file, as in a KubeadmConfig.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedFile {
    /// Absolute path.
    #[schemars(length(max = 1024), regex(pattern = r"^/"))]
    pub path: String,
    /// Owner as `user:group`; empty: `root:root`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    pub owner: String,
    /// Octal mode, such as `0640`; empty: `0644`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 5), regex(pattern = r"^[0-7]{0,5}$"))]
    pub permissions: String,
    /// Encoding of `content`.
    #[serde(default)]
    pub encoding: FileEncoding,
    /// Whether to append to the existing file; done once, however often the step runs.
    #[serde(default)]
    pub append: bool,
    /// The content. It must not be a secret: everyone who can read the plan can read it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 262_144))]
    pub content: String,
    /// The Secret that holds the content instead; the host fetches it with its own node's identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_from: Option<SecretKey>,
    /// sha256 of the decoded content in hex, if the content comes from a Secret. It identifies the
    /// content without revealing it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub sha256: String,
}

/// Encoding of a file's content.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum FileEncoding {
    /// Plain text.
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
    /// Key in the Secret.
    #[schemars(length(max = 253))]
    pub key: String,
}

/// A user of the host, as in a KubeadmConfig.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedUser {
    /// User name.
    #[schemars(length(max = 32), regex(pattern = r"^[a-z_][a-z0-9_-]*$"))]
    pub name: String,
    /// Full name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub gecos: String,
    /// Groups in addition to the user's own group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub groups: Vec<String>,
    /// Home directory.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub home_dir: String,
    /// Login shell.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub shell: String,
    /// Whether to disable login by password.
    #[serde(default)]
    pub lock_password: bool,
    /// sudo rights of the user, as one line of sudoers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub sudo: String,
    /// Public keys that may log in over SSH.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub ssh_authorized_keys: Vec<String>,
}

/// Time synchronisation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NtpArgs {
    /// Whether the clock is synchronised with servers.
    pub enabled: bool,
    /// The time servers; empty: the host's own choice.
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
    /// sha256 of the bundle's manifest in hex; empty if the signature alone is trusted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub manifest_sha256: String,
    /// Public key that must have signed the bundle, one of the keys that the host trusts by its own
    /// configuration (`/etc/refit/keys`). Naming a key here does not make it trusted. Empty: any
    /// trusted key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub public_key: String,
    /// Maximum download rate in bytes per second; 0: no limit.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub bytes_per_second: i64,
}
