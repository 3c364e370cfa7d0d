//! The host's own policy: what a plan may do on this host, decided on the host.
//!
//! A signature proves where a plan is from; it does not limit what the plan does. The policy is a file
//! that only root can write. Without the file at its usual place everything is allowed. With it, the
//! agent refuses a plan before its first step, and each step again before it starts.
//!
//! Two rules hold on every host: no plan writes what belongs to the agent (`own`), and with signed
//! plans no file has a content that the signature does not cover.

mod own;
mod view;

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

use refit_kinds::refit::{FileArgs, HostStep, PlannedStep, PlannedUser, StepType};
use rustix::process::geteuid;
use serde::Deserialize;
use strum::VariantArray as _;

pub use self::own::OwnPaths;
use self::view::HostView;
use crate::{
    engine::{self, Next},
    host::Site,
    state::JournalState,
};

/// Maximum size of the file.
const MOST_BYTES: u64 = 64 << 10;
/// Permission bits: others than the owner may write.
const OTHERS_WRITE: u32 = 0o022;

/// The usual place of a host's policy.
pub const DEFAULT_POLICY: &str = "/etc/refit-agent/policy.toml";

/// The location of the host's policy.
#[derive(Clone, Debug)]
pub struct PolicyFile {
    path: PathBuf,
    /// Whether a host without the file allows everything.
    may_be_absent: bool,
    /// What no plan may write.
    own: OwnPaths,
    /// Whether the host accepts signed plans only.
    signed_plans: bool,
    site: Site,
}

/// Why the host's policy refuses a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PolicyRefusal {
    /// The policy cannot be used, so nothing is allowed.
    #[error(
        "cannot use this host's policy {}: {why}; correct it on the host, which accepts no plan \
         until then", .file.display()
    )]
    Unusable {
        /// The policy.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The policy does not allow a part of a step.
    #[error(
        "{what} is not in `{key}` of this host's policy {}; change the plan, or the policy on the \
         host", .file.display()
    )]
    Forbidden {
        /// The policy.
        file: PathBuf,
        /// The key of the policy.
        key: &'static str,
        /// What is not allowed.
        what: String,
    },
    /// The step writes what belongs to the agent.
    #[error(
        "step {step}: {path} belongs to the agent of this host, and no plan may write it; remove it \
         from the plan, and write it with the host's own configuration management"
    )]
    AgentPath {
        /// Id of the step.
        step: String,
        /// The path.
        path: String,
    },
    /// The content of a file is not covered by the signature of the plan.
    #[error(
        "step {step}: the content of {path} comes from secret {secret} without a sha256, and this \
         host accepts signed plans only: a client that can write the secret could choose the content; \
         set the file's sha256 in the host settings"
    )]
    ContentNotSigned {
        /// Id of the step.
        step: String,
        /// Path of the file.
        path: String,
        /// Name of the Secret.
        secret: String,
    },
}

/// What is not allowed, and the key of the policy that would allow it.
type Forbidden = (&'static str, String);

/// What plans may do on a host. Without a key, everything of its kind is allowed, except for commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostPolicy {
    /// The types of steps that may run.
    steps: Option<BTreeSet<StepId>>,
    /// Where a step may write files, and the files of users.
    paths: Option<Vec<HostPath>>,
    /// Where packages, bundles and OS images may come from.
    repositories: Option<Vec<Source>>,
}

/// Id of a step type, such as `kubeadm-upgrade`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct StepId(StepType);

/// An absolute path without `..`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct HostPath(PathBuf);

/// Where packages, a bundle or an OS image come from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
enum Source {
    /// A path of the host, also as `file:///PATH`.
    Local(HostPath),
    /// A URL.
    Remote { scheme: String, host: String, path: Vec<String> },
}

impl PolicyFile {
    /// The policy at this path. It is read whenever a step is about to start. An operator who sets
    /// another place than [`DEFAULT_POLICY`] has a policy, so there it must exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            may_be_absent: path == Path::new(DEFAULT_POLICY),
            own: OwnPaths::new([path.clone()]),
            path,
            signed_plans: false,
            site: Site::new("/"),
        }
    }

    /// Sets what belongs to the agent.
    #[must_use]
    pub fn protecting(self, own: OwnPaths) -> Self {
        Self { own, ..self }
    }

    /// Sets whether the host accepts signed plans only.
    #[must_use]
    pub fn with_signed_plans(self, signed_plans: bool) -> Self {
        Self { signed_plans, ..self }
    }

    /// Refuses the plan if the policy does not allow it to go on.
    pub(crate) fn enforce(&self, state: &JournalState, next: Next) -> Next {
        if !next.starts_a_step() {
            return next;
        }
        let policy = self.read();
        engine::restrict(state, next, |step| match &policy {
            Ok(policy) => self.never_allows(step).or_else(|| {
                policy.as_ref().and_then(|policy| policy.refuses(step, &self.site, &self.path))
            }),
            Err(refusal) => Some(refusal.clone()),
        })
    }

    /// What no policy allows.
    fn never_allows(&self, step: &PlannedStep) -> Option<PolicyRefusal> {
        let HostStep::Files(args) = step.step()? else {
            return None;
        };
        let id = || step.id.clone();
        if let Some(path) = self.own.written_by(args, &self.site) {
            return Some(PolicyRefusal::AgentPath { step: id(), path });
        }
        args.files.iter().filter(|file| self.signed_plans && file.sha256.is_empty()).find_map(
            |file| {
                let secret = file.content_from.as_ref()?.name.clone();
                let path = file.path.clone();
                Some(PolicyRefusal::ContentNotSigned { step: id(), path, secret })
            },
        )
    }

    /// Reads the policy; `None` if the file is absent.
    fn read(&self) -> Result<Option<HostPolicy>, PolicyRefusal> {
        let unusable = |why: String| PolicyRefusal::Unusable { file: self.path.clone(), why };
        let Some(text) = self.text().map_err(|error| unusable(error.to_string()))? else {
            return Ok(None);
        };
        let policy: HostPolicy = toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            unusable(format!("line {}: {}", before.matches('\n').count() + 1, error.message()))
        })?;
        // As of a file that is being written: it would allow everything.
        if policy == HostPolicy::default() {
            return Err(unusable("it has no key; delete the file to allow everything".to_owned()));
        }
        Ok(Some(policy))
    }

    fn text(&self) -> io::Result<Option<String>> {
        let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let mut file = match fs::File::open(&self.path) {
            Ok(file) => file,
            // A link to a missing file is an error, and not the absence of a policy.
            Err(error)
                if self.may_be_absent
                    && is_missing(&error)
                    && fs::symlink_metadata(&self.path).is_err_and(|error| is_missing(&error)) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        // Of the file that is read, not of what has the same path by now.
        let found = file.metadata()?;
        if !found.is_file() || found.len() > MOST_BYTES {
            return Err(io::Error::other("it is not a regular file of at most 64 KiB"));
        }
        if found.uid() != 0 && found.uid() != geteuid().as_raw() {
            return Err(io::Error::other("it does not belong to root"));
        }
        if found.mode() & OTHERS_WRITE != 0 {
            return Err(io::Error::other("others than root may write to it"));
        }
        let mut text = String::new();
        file.by_ref().take(MOST_BYTES).read_to_string(&mut text)?;
        Ok(Some(text))
    }
}

impl HostPolicy {
    fn refuses(
        &self,
        step: &PlannedStep,
        host: &dyn HostView,
        file: &Path,
    ) -> Option<PolicyRefusal> {
        // An unknown step never starts.
        let (key, what) = self.forbids(step.step()?, host)?;
        let what = format!("step {}: {what}", step.id);
        Some(PolicyRefusal::Forbidden { file: file.to_owned(), key, what })
    }

    /// What the policy does not allow in a step.
    fn forbids(&self, step: &HostStep, host: &dyn HostView) -> Option<Forbidden> {
        let type_ = StepType::from(step);
        // A command may do all that another key forbids, so no policy allows it without naming it.
        let by_default = type_ != StepType::Commands;
        if !self.steps.as_ref().map_or(by_default, |steps| steps.contains(&StepId(type_))) {
            return Some(("steps", format!("{:?}", type_.id())));
        }
        let written = if let HostStep::Files(args) = step {
            written(args, host)
        } else if let HostStep::KeysRevoke(args) = step {
            args.users.iter().map(|user| key_file(&user.user, "", host)).collect()
        } else {
            Vec::new()
        };
        let forbidden =
            |path: &String| self.paths.as_ref().is_some_and(|all| !is_allowed(path, all, host));
        if let Some(path) = written.into_iter().find(forbidden) {
            return Some(("paths", format!("{path:?}")));
        }
        let allowed = self.repositories.as_ref()?;
        let mut outside = sources(step).into_iter().filter(|source| {
            Source::of_plan(source)
                .is_none_or(|source| !allowed.iter().any(|one| one.covers(&source, host)))
        });
        outside.next().map(|source| ("repositories", format!("{source:?}")))
    }
}

/// The paths that a step writes. Creating or changing a user writes `/etc/passwd`.
fn written(args: &FileArgs, host: &dyn HostView) -> Vec<String> {
    let of_user = |user: &PlannedUser| {
        let name = &user.name;
        let keys = key_file(name, &user.home_dir, host);
        [
            Some("/etc/passwd".to_owned()),
            (!user.groups.is_empty()).then(|| "/etc/group".to_owned()),
            (!user.sudo.is_empty()).then(|| format!("/etc/sudoers.d/refit-{name}")),
            (!user.ssh_authorized_keys.is_empty()).then_some(keys),
        ]
    };
    let of_users = args.users.iter().flat_map(of_user).flatten();
    of_users.chain(args.files.iter().map(|file| file.path.clone())).collect()
}

/// The file with the public keys of a user who may not exist yet.
fn key_file(user: &str, planned_home: &str, host: &dyn HostView) -> String {
    let home = host.home(user).unwrap_or_else(|| planned_home.to_owned());
    let home = if home.is_empty() { format!("/home/{user}") } else { home };
    format!("{home}/.ssh/authorized_keys")
}

/// What a path is, and what it points to; `None` for a path that is not allowed anywhere.
fn places(path: &str, host: &dyn HostView) -> Option<[PathBuf; 2]> {
    let HostPath(path) = HostPath::try_from(path.to_owned()).ok()?;
    let (parent, name) = (path.parent()?, path.file_name()?);
    Some([host.resolved(parent).join(name), host.resolved(&path)])
}

/// Whether a write to a path stays below the allowed ones. A link counts as what it is and as what it
/// points to, because which of them a write changes depends on the owner of its directory.
fn is_allowed(path: &str, allowed: &[HostPath], host: &dyn HostView) -> bool {
    places(path, host).is_some_and(|places| {
        places
            .iter()
            .all(|place| allowed.iter().any(|one| place.starts_with(host.resolved(&one.0))))
    })
}

/// Where a step fetches packages, bundles and OS images from. An image of a bundle is part of it, and
/// the host's own package sources are not in the plan.
fn sources(step: &HostStep) -> Vec<&str> {
    let (bundle, image) = match step {
        HostStep::Stage { bundle, .. } | HostStep::ImagePreload { bundle, .. } => {
            (bundle.as_ref(), None)
        }
        HostStep::OsImageStage { os_image, bundle } => (bundle.as_ref(), Some(os_image)),
        HostStep::OsImageFinalize { os_image } | HostStep::OsImageCommit { os_image } => {
            (None, Some(os_image))
        }
        HostStep::Preflight { .. }
        | HostStep::OsPackagesStage(_)
        | HostStep::OsPackagesInstall(_)
        | HostStep::RebootIfRequired {}
        | HostStep::Snapshot {}
        | HostStep::KubeadmInstall { .. }
        | HostStep::KubeadmUpgrade { .. }
        | HostStep::EtcdUpgrade(_)
        | HostStep::CertificatesRenew(_)
        | HostStep::Files(_)
        | HostStep::KeysRevoke(_)
        | HostStep::Ntp(_)
        | HostStep::NtpReplace(_)
        | HostStep::UnitActions(_)
        | HostStep::ContainerRuntimeInstall { .. }
        | HostStep::Commands(_)
        | HostStep::KubeletFlags(_)
        | HostStep::KubeletInstall { .. }
        | HostStep::KubectlInstall { .. }
        | HostStep::KubeletRestart {}
        | HostStep::Reboot {}
        | HostStep::Verify { .. } => (None, None),
    };
    let packages = step.packages().into_iter();
    let packages = packages.flat_map(|args| [&args.repository, &args.path, &args.url]);
    let image = image.map(|image| &image.url).filter(|url| !url.starts_with("bundle:///"));
    let all = packages.chain(bundle.map(|bundle| &bundle.location)).chain(image);
    all.map(String::as_str).filter(|source| !source.is_empty()).collect()
}

impl Source {
    /// A source in a plan; `None` if it cannot be compared safely. The tag or digest of a reference to
    /// a registry is not part of its repository.
    fn of_plan(text: &str) -> Option<Self> {
        let mut source = Self::try_from(text.to_owned()).ok()?;
        if let Self::Remote { scheme, path, .. } = &mut source
            && scheme.starts_with("oci")
            && let Some(last) = path.last_mut()
        {
            let end = last.find(['@', ':']).unwrap_or(last.len());
            last.truncate(end);
        }
        Some(source)
    }

    /// Whether another source is this one, or below it.
    fn covers(&self, other: &Self, view: &dyn HostView) -> bool {
        match (self, other) {
            (Self::Local(prefix), Self::Local(path)) => {
                view.resolved(&path.0).starts_with(view.resolved(&prefix.0))
            }
            (
                Self::Remote { scheme, host, path },
                Self::Remote { scheme: other_scheme, host: other_host, path: other_path },
            ) => scheme == other_scheme && host == other_host && other_path.starts_with(path),
            (Self::Local(_), Self::Remote { .. }) | (Self::Remote { .. }, Self::Local(_)) => false,
        }
    }
}

impl TryFrom<String> for Source {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || {
            format!(
                "invalid source {text:?}, expected an absolute path, or SCHEME://HOST/PATH without \
                 user, `..` and escaped separators"
            )
        };
        if text.starts_with('/') {
            return HostPath::try_from(text.clone()).map(Self::Local).map_err(|_| wrong());
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "file" && rest.starts_with('/') {
            // The rest is a path, also after `?` and `#`.
            return HostPath::try_from(rest.to_owned()).map(Self::Local).map_err(|_| wrong());
        }
        let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let escaped = path.to_ascii_lowercase();
        let ambiguous = ["%2e", "%2f", "%5c"].iter().any(|code| escaped.contains(code));
        let plain = |c: char| c.is_ascii_graphic() && c != '\\';
        // An empty segment in front or in between is another path for many servers.
        let path = path.strip_prefix('/').unwrap_or(path).trim_end_matches('/');
        let segments = path.split('/').filter(|part| *part != "." && !path.is_empty());
        let path: Vec<String> = segments.map(str::to_owned).collect();
        let known = scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c));
        if scheme.is_empty()
            || !known
            || host.is_empty()
            || host.contains('@')
            || !text.chars().all(plain)
            || ambiguous
            || path.iter().any(|part| part == "..")
        {
            return Err(wrong());
        }
        Ok(Self::Remote { scheme, host: host.to_ascii_lowercase(), path })
    }
}

impl TryFrom<String> for HostPath {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let path = Path::new(&text);
        let plain = path.components().all(|part| match part {
            Component::RootDir | Component::CurDir | Component::Normal(_) => true,
            Component::ParentDir | Component::Prefix(_) => false,
        });
        if !path.is_absolute() || !plain || text.contains('\0') {
            return Err(format!("invalid path {text:?}, expected an absolute path without `..`"));
        }
        Ok(Self(path.components().collect()))
    }
}

impl TryFrom<String> for StepId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let known = StepType::VARIANTS.iter().find(|type_| type_.id() == text);
        known.copied().map(Self).ok_or_else(|| {
            let ids: Vec<&str> = StepType::VARIANTS.iter().map(|type_| type_.id()).collect();
            format!("unknown step {text:?}, expected one of {}", ids.join(", "))
        })
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
