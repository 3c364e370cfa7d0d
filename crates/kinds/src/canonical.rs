//! Annotations that upgrade machines in place, as the Cluster API providers of Canonical Kubernetes read and write
//! them, the same under Refit's own prefix, and the messages of k8sd (`docs/facts/canonical.md`).

mod certificates;

use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::{
    refit::{BUNDLE_LOCATION, BUNDLE_LOCATION_MAX, GoalOption},
    version::{KubernetesVersion, VersionError},
};

pub use self::certificates::*;

/// Name of the built-in updater that has k8sd refresh the snap of a node, or its certificates.
pub const K8SD: &str = "k8sd";
/// Kind of the bootstrap config of machines on which k8sd runs.
pub const K8SD_CONFIG: &str = "CK8sConfig";

/// Key of an option that is a version.
const VERSION: &str = "version=";
/// Key of an option that is a bundle.
pub const BUNDLE: &str = "bundle=";
/// What is between a version and its bundle.
const BUNDLE_OF_VERSION: &str = ",bundle=";
/// What is between a bundle and its version.
const VERSION_OF_BUNDLE: &str = ",version=";

static LOCATION_OF_BUNDLE: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(BUNDLE_LOCATION).ok());

/// The annotations of one prefix. A Machine has all of them, an owner of Machines all but the change id and the
/// failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// What to install, such as `channel=1.35-classic/stable`. Removing it cancels the upgrade.
    pub upgrade_to: &'static str,
    /// How far the upgrade is: an [`UpgradeStatus`].
    pub status: &'static str,
    /// What was installed last, in the words of `upgrade_to`.
    pub release: &'static str,
    /// The change that snapd works on; `None` for a prefix without it.
    pub change_id: Option<&'static str>,
    /// When an attempt failed last, as RFC 1123 with a numeric zone. It is removed by a success.
    pub last_failed_attempt_at: &'static str,
    /// The last NodeUpdate that has ended and is shown: Refit's own note.
    pub shown: &'static str,
    /// The last failure that was announced, and that waits for a person: Refit's own note.
    pub noted: &'static str,
    /// The annotations about certificates, which only a Machine has.
    pub certificates: CertificateKeys,
}

/// The prefix of Canonical's providers.
pub const CANONICAL: Keys = Keys {
    upgrade_to: "v1beta2.k8sd.io/in-place-upgrade-to",
    status: "v1beta2.k8sd.io/in-place-upgrade-status",
    release: "v1beta2.k8sd.io/in-place-upgrade-release",
    change_id: Some("v1beta2.k8sd.io/in-place-upgrade-change-id"),
    last_failed_attempt_at: "v1beta2.k8sd.io/in-place-upgrade-last-failed-attempt-at",
    shown: "refit.dev/canonical-upgrade-shown",
    noted: "refit.dev/canonical-upgrade-noted",
    certificates: CertificateKeys {
        refresh: "v1beta2.k8sd.io/refresh-certificates",
        status: "v1beta2.k8sd.io/refresh-certificates-status",
        shown: "refit.dev/canonical-certificates-shown",
        noted: "refit.dev/canonical-certificates-noted",
    },
};

/// Refit's own prefix.
pub const REFIT: Keys = Keys {
    upgrade_to: "refit.dev/in-place-upgrade-to",
    status: "refit.dev/in-place-upgrade-status",
    release: "refit.dev/in-place-upgrade-release",
    change_id: None,
    last_failed_attempt_at: "refit.dev/in-place-upgrade-last-failed-attempt-at",
    shown: "refit.dev/in-place-upgrade-shown",
    noted: "refit.dev/in-place-upgrade-noted",
    certificates: CertificateKeys {
        refresh: "refit.dev/refresh-certificates",
        status: "refit.dev/refresh-certificates-status",
        shown: "refit.dev/refresh-certificates-shown",
        noted: "refit.dev/refresh-certificates-noted",
    },
};

impl Keys {
    /// The annotations of a Machine that asks for a version: a task brings it there, and the end of that is noted apart.
    pub fn of_tasks(self) -> Self {
        Self { shown: "refit.dev/in-place-upgrade-task-shown", ..self }
    }
}

/// How far an upgrade by annotation is, or a refresh of certificates.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "kebab-case")]
pub enum UpgradeStatus {
    /// It has begun and has not ended.
    InProgress,
    /// It has ended with success.
    Done,
    /// Its last attempt failed; another one follows.
    Failed,
}

/// Why a text is not an upgrade option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOption {
    /// It is not a key and a value.
    #[error(
        "invalid upgrade option {0:?}: expected channel=, revision= or localPath= and one value without \"=\""
    )]
    Shape(String),
    /// The key is unknown.
    #[error(
        "unknown upgrade option {0:?}: expected channel, revision, localPath or, under refit.dev/, version or bundle"
    )]
    Key(String),
    /// The version is not one.
    #[error("invalid version in upgrade option: {0}")]
    Version(#[from] VersionError),
    /// The location of a bundle is not one.
    #[error(
        "invalid location of a bundle {0:?}: expected an absolute path on the hosts, or a URL with http, https, file, oci \
         or oci+http and without credentials"
    )]
    Bundle(String),
    /// There is no value.
    #[error("upgrade option {0} has no value: expected {0}=VALUE")]
    Empty(String),
}

/// What an annotation asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// What k8sd installs, whatever the owner's spec requests.
    Option(GoalOption),
    /// A version, which the owner's spec requests as well, or will. Only Refit's own prefix has it.
    Version(KubernetesVersion),
    /// The bundle that hosts install from, and a version as above; without one, what the owner's spec requests.
    Bundle {
        /// Where the bundle is, for the hosts.
        location: String,
        /// The version.
        version: Option<KubernetesVersion>,
    },
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Option(option) => option.fmt(f),
            Self::Version(version) => write!(f, "{VERSION}{version}"),
            Self::Bundle { location, version: None } => write!(f, "{BUNDLE}{location}"),
            Self::Bundle { location, version: Some(version) } => {
                write!(f, "{VERSION}{version}{BUNDLE_OF_VERSION}{location}")
            }
        }
    }
}

impl Wanted {
    /// Parses the value of an annotation of a prefix.
    ///
    /// ```
    /// use refit_kinds::canonical::{CANONICAL, REFIT, Wanted};
    /// let wanted = Wanted::parse(REFIT, "version=1.35.0")?;
    /// assert_eq!(wanted.to_string(), "version=v1.35.0");
    /// assert!(Wanted::parse(CANONICAL, "version=1.35.0").is_err());
    /// let both = Wanted::parse(REFIT, "version=1.35.0,bundle=/mnt/v1.35.0")?;
    /// assert_eq!(Wanted::parse(REFIT, "bundle=/mnt/v1.35.0,version=1.35.0")?, both);
    /// assert!(Wanted::parse(REFIT, "bundle=v1.35.0").is_err());
    /// # Ok::<(), refit_kinds::canonical::BadOption>(())
    /// ```
    pub fn parse(keys: Keys, text: &str) -> Result<Self, BadOption> {
        if keys.upgrade_to != REFIT.upgrade_to {
            return text.parse().map(Self::Option);
        }
        if let Some(value) = text.strip_prefix(BUNDLE) {
            return match value.rsplit_once(VERSION_OF_BUNDLE) {
                Some((location, version)) => Self::bundle(location, Some(version)),
                None => Self::bundle(value, None),
            };
        }
        let Some(value) = text.strip_prefix(VERSION) else {
            return text.parse().map(Self::Option);
        };
        match value.split_once(BUNDLE_OF_VERSION) {
            Some((version, location)) => Self::bundle(location, Some(version)),
            None => Ok(Self::Version(version_of(value)?)),
        }
    }

    fn bundle(location: &str, version: Option<&str>) -> Result<Self, BadOption> {
        let version = version.map(version_of).transpose()?;
        let is_location =
            LOCATION_OF_BUNDLE.as_ref().is_some_and(|pattern| pattern.is_match(location));
        if is_location && location.len() <= BUNDLE_LOCATION_MAX {
            return Ok(Self::Bundle { location: location.to_owned(), version });
        }
        Err(BadOption::Bundle(without_credentials(location)))
    }
}

fn version_of(text: &str) -> Result<KubernetesVersion, VersionError> {
    format!("v{}", text.strip_prefix('v').unwrap_or(text)).parse()
}

/// A location as an error names it, which many may read.
fn without_credentials(location: &str) -> String {
    let Some((scheme, rest)) = location.split_once("://") else { return location.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

impl std::str::FromStr for GoalOption {
    type Err = BadOption;

    /// Parses the value of an annotation such as `channel=1.35-classic/stable`. Keys are case-sensitive, and nothing
    /// is trimmed.
    ///
    /// ```
    /// use refit_kinds::refit::GoalOption;
    /// let option: GoalOption = "revision=3502".parse()?;
    /// assert_eq!(option, GoalOption::Revision("3502".to_owned()));
    /// assert_eq!(option.to_string(), "revision=3502");
    /// # Ok::<(), refit_kinds::canonical::BadOption>(())
    /// ```
    fn from_str(text: &str) -> Result<Self, BadOption> {
        let shape = || BadOption::Shape(text.to_owned());
        let (key, value) = text.split_once('=').ok_or_else(shape)?;
        if value.contains('=') {
            return Err(shape());
        }
        let option = match key {
            "channel" => Self::Channel(value.to_owned()),
            "revision" => Self::Revision(value.to_owned()),
            "localPath" => Self::LocalPath(value.to_owned()),
            _ => return Err(BadOption::Key(key.to_owned())),
        };
        if value.is_empty() {
            return Err(BadOption::Empty(key.to_owned()));
        }
        Ok(option)
    }
}

impl GoalOption {
    /// The first release of the minor version that a channel installs; `None` if its track is not a version, and for
    /// what shows no version.
    ///
    /// ```
    /// use refit_kinds::{refit::GoalOption, version::KubernetesVersion};
    /// let option: GoalOption = "channel=1.35-classic/stable".parse()?;
    /// assert_eq!(option.minor_version(), Some(KubernetesVersion::new(1, 35, 0)));
    /// # Ok::<(), refit_kinds::canonical::BadOption>(())
    /// ```
    pub fn minor_version(&self) -> Option<KubernetesVersion> {
        let channel = match self {
            Self::Channel(channel) => channel,
            Self::Revision(_) | Self::LocalPath(_) => return None,
        };
        let track = channel.split(['/', '-']).next()?;
        let (major, minor) = track.split_once('.')?;
        Some(KubernetesVersion::new(major.parse().ok()?, minor.parse().ok()?, 0))
    }
}

/// Asks k8sd to refresh its snap: exactly one member is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefreshRequest {
    /// A channel of the store.
    pub channel: String,
    /// A revision in the store.
    pub revision: String,
    /// A file on the node.
    pub local_path: String,
}

impl From<&GoalOption> for RefreshRequest {
    fn from(option: &GoalOption) -> Self {
        let mut request = Self::default();
        match option {
            GoalOption::Channel(channel) => request.channel.clone_from(channel),
            GoalOption::Revision(revision) => request.revision.clone_from(revision),
            GoalOption::LocalPath(path) => request.local_path.clone_from(path),
        }
        request
    }
}

/// Identifies the change that snapd works on for a refresh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Change {
    /// Its id; empty if there was nothing to refresh.
    pub change_id: String,
}

/// How far a refresh is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RefreshStatus {
    /// State of snapd's change: `Done`, `Error` and others. Empty for a change that snapd does not know.
    pub status: String,
    /// Whether the change has ended.
    pub completed: bool,
    /// Why it failed.
    pub error_message: String,
}

/// The envelope of k8sd's answers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Answer<T> {
    /// What is wrong; empty if nothing is.
    #[serde(default)]
    pub error: String,
    /// The answer itself.
    pub metadata: Option<T>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_has_one_known_key_and_one_value() {
        let parsed = |text: &str| text.parse::<GoalOption>();
        assert_eq!(
            parsed("channel=1.35-classic/stable"),
            Ok(GoalOption::Channel("1.35-classic/stable".into()))
        );
        assert_eq!(
            parsed("localPath=/a/k8s.snap"),
            Ok(GoalOption::LocalPath("/a/k8s.snap".into()))
        );
        for text in ["", "channel", "1.35", "localPath=/a=b", "a=b=c"] {
            assert_eq!(parsed(text), Err(BadOption::Shape(text.into())));
        }
        for key in ["Channel", "version", " channel", ""] {
            assert_eq!(parsed(&format!("{key}=1")), Err(BadOption::Key(key.into())));
        }
        assert_eq!(parsed("revision="), Err(BadOption::Empty("revision".into())));
    }

    #[test]
    fn the_location_of_a_bundle_is_a_path_or_a_url_without_credentials() {
        let parsed = |location: &str| Wanted::parse(REFIT, &format!("bundle={location}"));
        for location in [
            "/mnt/v1.35.0",
            "/mnt/v1.35.0/",
            "file:///mnt/v1.35.0",
            "https://mirror.example:8443/v1.35.0/",
            "http://[fd00::1]/b",
            "oci+http://registry/bundles@sha256:00",
        ] {
            let wanted = Wanted::Bundle { location: location.into(), version: None };
            assert_eq!(parsed(location), Ok(wanted));
        }
        for location in [
            "",
            "/",
            "file:///",
            "https://",
            "https:///b",
            "ftp://h/b",
            "https://h/b?token=x",
            "/a b",
        ] {
            assert_eq!(parsed(location), Err(BadOption::Bundle(location.into())));
        }
        assert_eq!(parsed(&"/b".repeat(513)).ok(), None);
        let secret = parsed("https://me:secret@mirror.example/b").unwrap_err().to_string();
        assert!(secret.contains("\"https://mirror.example/b\""), "{secret}");
    }

    #[test]
    fn a_request_has_all_members_as_text() {
        let request = RefreshRequest::from(&GoalOption::Revision("7".into()));
        let json = serde_json::to_string(&request).unwrap();
        assert_eq!(json, r#"{"channel":"","revision":"7","localPath":""}"#);
    }

    #[test]
    fn a_status_is_written_in_kebab_case() {
        let texts = [UpgradeStatus::InProgress, UpgradeStatus::Done, UpgradeStatus::Failed]
            .map(|status| status.to_string());
        assert_eq!(texts, ["in-progress", "done", "failed"]);
        assert_eq!("in-progress".parse(), Ok(UpgradeStatus::InProgress));
        assert!("In-Progress".parse::<UpgradeStatus>().is_err());
    }
}
