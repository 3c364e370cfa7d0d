//! Packages of a host's operating system that are installed in place.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::clip;

/// Packages of Kubernetes and of container runtimes, by their names in the usual distributions. Updates of the operating
/// system never change them: an upgrade of Kubernetes and `containerRuntime` do, on a drained node.
pub const PROTECTED_PACKAGES: [&str; 18] = [
    "kubeadm",
    "kubelet",
    "kubectl",
    "cri-tools",
    "kubernetes-cni",
    "containerd",
    "containerd.io",
    "containerd2",
    "moby-containerd",
    "moby-engine",
    "moby-runc",
    "runc",
    "crun",
    "conmon",
    "cri-o",
    "docker-ce",
    "docker.io",
    "cri-dockerd",
];

/// Maximum number of packages of the operating system that a plan names.
pub const MAX_OS_PACKAGES: usize = 64;
/// Maximum length of a package's name or version.
const MAX_TEXT: usize = 128;

/// Packages of the operating system to install in place, and whether the host may boot for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct OsPackageArgs {
    /// Packages to install at these versions, from the package sources of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_OS_PACKAGES))]
    pub install: Vec<OsPackage>,
    /// Whether to install all security updates that the package sources of the host have when the host prepares. Packages
    /// of Kubernetes and of the container runtime, and packages that the host holds, keep their versions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub security: bool,
    /// Further packages that keep their versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 160), inner(length(max = 128)))]
    pub exclude: Vec<String>,
    /// Whether the host boots if that is required afterwards.
    #[serde(default)]
    pub reboot: RebootChoice,
}

/// A package of the operating system at one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OsPackage {
    /// Name, such as `openssl`.
    #[schemars(length(max = MAX_TEXT), regex(pattern = r"^[a-z0-9][a-zA-Z0-9+._-]*$"))]
    pub name: String,
    /// Version in the package manager's format, such as `3.0.17-1~deb12u3`. `3.0.*` is the newest version with that prefix
    /// that the package sources of the host have, and `*` the newest of all.
    #[schemars(length(max = MAX_TEXT), regex(pattern = r"^([a-zA-Z0-9][a-zA-Z0-9+.:~^_-]*\*?|\*)$"))]
    pub version: String,
}

/// Whether a host boots because of its packages.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum RebootChoice {
    /// It boots if the host itself shows that it must, after its node was drained.
    #[default]
    IfRequired,
    /// It does not boot; the report on the host shows whether it must.
    Never,
}

impl OsPackage {
    /// Why the API server refuses the name or the version: by their schemas.
    pub fn fault(&self) -> Option<String> {
        let consists_of = |text: &str, also: &str| {
            text.len() <= MAX_TEXT
                && text.starts_with(|first: char| first.is_ascii_alphanumeric())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
        };
        let Self { name, version } = self;
        if !consists_of(name, "+._-") || name.starts_with(|first: char| first.is_ascii_uppercase())
        {
            return Some(format!(
                "{:?} is not a name: a name has up to {MAX_TEXT} letters, digits and + . _ -, and begins with a lower-case letter or \
                 a digit",
                clip(name, MAX_TEXT)
            ));
        }
        let prefix = version.strip_suffix('*').unwrap_or(version);
        let is_version =
            version == "*" || version.len() <= MAX_TEXT && consists_of(prefix, "+.:~^_-");
        (!is_version).then(|| {
            format!(
                "{:?} is not a version of {name}: a version has up to {MAX_TEXT} letters, digits and + . : ~ ^ _ -, begins with a \
                 letter or a digit, and may end with *; * alone is the newest version",
                clip(version, MAX_TEXT)
            )
        })
    }
}

impl OsPackageArgs {
    /// Whether a package keeps its version, whatever is installed.
    pub fn keeps(&self, name: &str) -> bool {
        PROTECTED_PACKAGES.contains(&name) || self.exclude.iter().any(|kept| kept == name)
    }

    /// Why these arguments cannot be carried out.
    pub(super) fn lacks(&self) -> Option<&'static str> {
        if self.install.is_empty() && !self.security {
            return Some(NOTHING);
        }
        let mut names = self.install.iter().map(|package| &*package.name);
        names.any(|name| PROTECTED_PACKAGES.contains(&name)).then_some(PROTECTED)
    }
}

const NOTHING: &str = "osPackages asks for nothing: name packages in install, or set security";
const PROTECTED: &str = "osPackages.install names a package of Kubernetes or of a container runtime: the goal's version and \
                         packages.install, or containerRuntime, change those";

/// The rules of [`OsPackageArgs::lacks`] for the API server.
fn rules() -> Value {
    let names = json!(PROTECTED_PACKAGES).to_string().replace('"', "'");
    json!([
        {
            "rule": "has(self.install) && size(self.install) > 0 || has(self.security) && self.security",
            "message": NOTHING,
        },
        {
            "rule": format!("!has(self.install) || self.install.all(one, !(one.name in {names}))"),
            "message": PROTECTED,
        },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(name: &str) -> OsPackageArgs {
        let package = OsPackage { name: name.to_owned(), version: "*".to_owned() };
        OsPackageArgs { install: vec![package], ..OsPackageArgs::default() }
    }

    #[test]
    fn arguments_without_work_or_with_a_protected_package_are_refused() {
        let security = OsPackageArgs { security: true, ..OsPackageArgs::default() };
        for (args, lacks) in [
            (OsPackageArgs::default(), Some(NOTHING)),
            (OsPackageArgs { exclude: vec!["vim".into()], ..Default::default() }, Some(NOTHING)),
            (security, None),
            (install("openssl"), None),
            (install("kubelet"), Some(PROTECTED)),
            (install("containerd.io"), Some(PROTECTED)),
        ] {
            assert_eq!(args.lacks(), lacks, "{args:?}");
        }
    }

    #[test]
    fn a_name_or_a_version_with_other_characters_is_refused() {
        let long = "a".repeat(MAX_TEXT + 1);
        for (name, version, fault) in [
            ("vim", "2:9.1.0-1~deb13u1", None),
            ("libstdc++6", "6.12.*", None),
            ("linux-image-amd64", "*", None),
            ("7zip", "1", None),
            ("", "*", Some("\"\" is not a name")),
            ("-y", "*", Some("\"-y\" is not a name")),
            ("Vim", "*", Some("is not a name")),
            ("vim;reboot", "*", Some("is not a name")),
            ("vim=1", "*", Some("is not a name")),
            (&long, "*", Some("is not a name")),
            ("vim", "", Some("\"\" is not a version of vim")),
            ("vim", "-1", Some("is not a version")),
            ("vim", "1 2", Some("is not a version")),
            ("vim", "1.*.2", Some("is not a version")),
            ("vim", "**", Some("is not a version")),
            ("vim", &long, Some("is not a version")),
            ("vim", "$(reboot)", Some("is not a version")),
        ] {
            let found = OsPackage { name: name.into(), version: version.into() }.fault();
            assert_eq!(found.is_some(), fault.is_some(), "{name} {version}: {found:?}");
            assert!(
                found.unwrap_or_default().contains(fault.unwrap_or_default()),
                "{name} {version}"
            );
        }
    }

    #[test]
    fn excluded_and_protected_packages_keep_their_versions() {
        let args = OsPackageArgs { exclude: vec!["openssl".into()], ..install("vim") };
        for (name, kept) in [("openssl", true), ("runc", true), ("vim", false)] {
            assert_eq!(args.keeps(name), kept, "{name}");
        }
    }

    #[test]
    fn the_default_reboot_is_written_and_everything_else_only_if_it_is_set() {
        let written = serde_json::to_value(install("vim")).unwrap();
        let wanted = json!({"install": [{"name": "vim", "version": "*"}], "reboot": "IfRequired"});
        assert_eq!(written, wanted);
        assert_eq!(serde_json::from_value::<OsPackageArgs>(written).unwrap(), install("vim"));
    }
}
