//! Kubernetes versions: parsing, order, skew rules and hops between minors.

use std::{borrow::Cow, cmp::Ordering, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use semver::{BuildMetadata, Prerelease, Version};
use serde::{Deserialize, Serialize};

mod stated;

pub use stated::StatedVersion;

/// How many minors a kubelet may be older than its API server.
///
/// Kubernetes' version skew policy since v1.28. A kubelet is never newer.
pub const KUBELET_MAX_MINORS_BEHIND: u64 = 3;

/// The longest accepted version, in characters; it becomes part of command lines and paths.
const MAX_LENGTH: usize = 64;

/// What the API accepts as a version, as a regular expression without its anchors.
const PATTERN: &str = concat!(
    r"v(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})",
    r"(-(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?",
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?",
);

/// The version that a demonstration upgrades to if it is at most one minor up.
const SHOWCASE: (u64, u64, u64) = (1, 35, 0);

/// A Kubernetes version as Cluster API writes it: `vX.Y.Z`, with or without pre-release and build.
///
/// Two versions are equal if their image tags are equal: the build counts, as `v1.34.2+vmware.1`
/// and `v1.34.2+vmware.2` are different programs. The order is semver's; builds of one version are
/// ordered like pre-releases.
///
/// ```
/// use refit_kinds::version::KubernetesVersion;
///
/// let version: KubernetesVersion = "v1.34.2".parse()?;
/// assert_eq!((version.major(), version.minor(), version.patch()), (1, 34, 2));
/// assert!(version < "v1.35.0-rc.1".parse()?);
/// assert!("1.34.2".parse::<KubernetesVersion>().is_err());
/// # Ok::<(), refit_kinds::version::VersionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Cow<'_, str>", into = "String")]
pub struct KubernetesVersion(Version);

/// Why a text is not a Kubernetes version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid Kubernetes version {text:?}: {reason}; expected vX.Y.Z")]
pub struct VersionError {
    /// The text that was given.
    pub text: String,
    /// Why it is invalid.
    pub reason: String,
}

/// The difference between two versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// They are the same.
    Same,
    /// A newer patch of the same minor.
    Patch,
    /// The next minor.
    Minor,
    /// More than one minor up: kubeadm does not skip minors.
    TooFar {
        /// Number of minors.
        minors: u64,
    },
    /// Down: kubeadm does not downgrade.
    Downgrade,
    /// Another major.
    OtherMajor,
}

impl Hop {
    /// Whether kubeadm can make this change in one step.
    pub fn is_upgrade(self) -> bool {
        matches!(self, Self::Same | Self::Patch | Self::Minor)
    }
}

/// Why a kubelet may not run with an API server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SkewError {
    /// The kubelet is newer.
    #[error("a kubelet of {kubelet} is newer than its API server of {server}")]
    KubeletNewer {
        /// Version of the kubelet.
        kubelet: KubernetesVersion,
        /// Version of the API server.
        server: KubernetesVersion,
    },
    /// The kubelet is too old.
    #[error(
        "a kubelet of {kubelet} is more than {KUBELET_MAX_MINORS_BEHIND} minors older than its \
         API server of {server}"
    )]
    KubeletTooOld {
        /// Version of the kubelet.
        kubelet: KubernetesVersion,
        /// Version of the API server.
        server: KubernetesVersion,
    },
}

impl KubernetesVersion {
    /// A release version without pre-release and build.
    pub fn new(major: u64, minor: u64, patch: u64) -> Self {
        Self(Version::new(major, minor, patch))
    }

    /// X of `vX.Y.Z`.
    pub fn major(&self) -> u64 {
        self.0.major
    }

    /// Y of `vX.Y.Z`.
    pub fn minor(&self) -> u64 {
        self.0.minor
    }

    /// Z of `vX.Y.Z`.
    pub fn patch(&self) -> u64 {
        self.0.patch
    }

    /// Whether this is an alpha, beta or release candidate.
    pub fn is_prerelease(&self) -> bool {
        self.0.pre != Prerelease::EMPTY
    }

    /// Whether this is `vX.Y.Z` and nothing else: no pre-release, no build.
    pub fn is_release(&self) -> bool {
        !self.is_prerelease() && self.0.build == BuildMetadata::EMPTY
    }

    /// Whether its pre-release is the suffix of a distribution, and none of Kubernetes' own: alpha, beta or release
    /// candidate.
    ///
    /// ```
    /// # use refit_kinds::version::KubernetesVersion;
    /// let is_of = |text: &str| text.parse::<KubernetesVersion>().map(|one| one.has_suffix());
    /// assert_eq!(is_of("v1.34.2-eks-1-34-5"), Ok(true));
    /// assert_eq!(is_of("v1.35.0-rc.1"), Ok(false));
    /// assert_eq!(is_of("v1.34.2+vmware.1"), Ok(false));
    /// ```
    pub fn has_suffix(&self) -> bool {
        let first = self.0.pre.split('.').next().unwrap_or_default();
        let is_kubernetes_own = ["alpha", "beta", "rc"].into_iter().any(|own| {
            let number = first.strip_prefix(own);
            number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        });
        self.is_prerelease() && !is_kubernetes_own
    }

    /// Whether both have the same `X.Y.Z`.
    pub fn is_same_release(&self, other: &Self) -> bool {
        let release = |one: &Self| (one.major(), one.minor(), one.patch());
        release(self) == release(other)
    }

    /// The same version without its build.
    pub fn without_build(&self) -> Self {
        let mut version = self.0.clone();
        version.build = BuildMetadata::EMPTY;
        Self(version)
    }

    /// `X.Y.Z`, as packages and tarballs write it.
    pub fn bare(&self) -> String {
        self.0.to_string()
    }

    /// The version of a package such as `1.35.0-1.1`, without the revision after its last dash.
    ///
    /// ```
    /// # use refit_kinds::version::KubernetesVersion;
    /// let version = KubernetesVersion::of_package("1.35.0-1.1")?;
    /// assert_eq!(version.to_string(), "v1.35.0");
    /// # Ok::<(), refit_kinds::version::VersionError>(())
    /// ```
    pub fn of_package(version: &str) -> Result<Self, VersionError> {
        let upstream = version.rsplit_once('-').map_or(version, |(upstream, _)| upstream);
        format!("v{upstream}").parse()
    }

    /// Whether a package of this version contains this Kubernetes version.
    pub fn is_of_package(&self, version: &str) -> bool {
        Self::of_package(version).is_ok_and(|found| found == *self)
    }

    /// The version in an image tag. A tag cannot contain `+`: `_` separates the build.
    ///
    /// ```
    /// # use refit_kinds::version::KubernetesVersion;
    /// let version = KubernetesVersion::of_image_tag("v1.34.2_vmware.1")?;
    /// assert_eq!(version, "v1.34.2+vmware.1".parse()?);
    /// assert_eq!(version.image_tag(), "v1.34.2_vmware.1");
    /// # Ok::<(), refit_kinds::version::VersionError>(())
    /// ```
    pub fn of_image_tag(tag: &str) -> Result<Self, VersionError> {
        tag.replacen('_', "+", 1).parse()
    }

    /// The version of an image from its tag; `None` if it has no tag or the tag is not a version.
    ///
    /// ```
    /// # use refit_kinds::version::KubernetesVersion;
    /// let image = "registry.k8s.io:5000/kube-apiserver:v1.35.0@sha256:9c41";
    /// assert_eq!(KubernetesVersion::of_image(image), Some(KubernetesVersion::new(1, 35, 0)));
    /// assert_eq!(KubernetesVersion::of_image("registry.k8s.io:5000/kube-apiserver"), None);
    /// ```
    pub fn of_image(image: &str) -> Option<Self> {
        Self::of_image_tag(tag_of_image(image)?).ok()
    }

    /// The tag of this version's images.
    pub fn image_tag(&self) -> String {
        self.to_string().replace('+', "_")
    }

    /// The first release of the next minor.
    ///
    /// ```
    /// # use refit_kinds::version::KubernetesVersion;
    /// let version: KubernetesVersion = "v1.34.2+k3s1".parse()?;
    /// assert_eq!(version.next_minor_zero().to_string(), "v1.35.0");
    /// # Ok::<(), refit_kinds::version::VersionError>(())
    /// ```
    pub fn next_minor_zero(&self) -> Self {
        Self::new(self.major(), self.minor().saturating_add(1), 0)
    }

    /// Whether the minor of this version is below that of `other`.
    pub fn minor_below(&self, other: &Self) -> bool {
        (self.major(), self.minor()) < (other.major(), other.minor())
    }

    /// The difference between this version and `target`.
    pub fn hop_to(&self, target: &Self) -> Hop {
        if self.major() != target.major() {
            return Hop::OtherMajor;
        }
        match (self.0.cmp_precedence(&target.0), target.minor().checked_sub(self.minor())) {
            (Ordering::Equal, _) => Hop::Same,
            (Ordering::Greater, _) | (_, None) => Hop::Downgrade,
            (Ordering::Less, Some(0)) => Hop::Patch,
            (Ordering::Less, Some(1)) => Hop::Minor,
            (Ordering::Less, Some(minors)) => Hop::TooFar { minors },
        }
    }

    /// Whether a kubelet of this version may run with an API server of version `server`. Patches do
    /// not count, as in Kubernetes' skew policy.
    pub fn check_kubelet_of(&self, server: &Self) -> Result<(), SkewError> {
        if server.minor_below(self) {
            return Err(SkewError::KubeletNewer { kubelet: self.clone(), server: server.clone() });
        }
        let same_major = self.major() == server.major();
        if !same_major || server.minor() - self.minor() > KUBELET_MAX_MINORS_BEHIND {
            return Err(SkewError::KubeletTooOld { kubelet: self.clone(), server: server.clone() });
        }
        Ok(())
    }

    /// Default target of a demonstration: v1.35.0 if that is an upgrade of at most one minor, else
    /// the first release of the next minor.
    pub fn default_target(&self) -> Self {
        let (major, minor, patch) = SHOWCASE;
        let showcase = Self::new(major, minor, patch);
        match self.hop_to(&showcase) {
            Hop::Patch | Hop::Minor => showcase,
            Hop::Same | Hop::TooFar { .. } | Hop::Downgrade | Hop::OtherMajor => {
                self.next_minor_zero()
            }
        }
    }
}

/// The tag of an image, if it has one; a registry's port or a digest is not a tag.
pub fn tag_of_image(image: &str) -> Option<&str> {
    let named = image.split_once('@').map_or(image, |(named, _)| named);
    named.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.contains('/'))
}

impl FromStr for KubernetesVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let wrong = |reason: String| VersionError { text: text.to_owned(), reason };
        if text.len() > MAX_LENGTH {
            return Err(wrong(format!("it is longer than {MAX_LENGTH} characters")));
        }
        let rest =
            text.strip_prefix('v').ok_or_else(|| wrong("it does not start with v".to_owned()))?;
        Version::parse(rest).map(Self).map_err(|e| wrong(e.to_string()))
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("v{}", self.0))
    }
}

impl TryFrom<Cow<'_, str>> for KubernetesVersion {
    type Error = VersionError;

    fn try_from(text: Cow<'_, str>) -> Result<Self, VersionError> {
        text.parse()
    }
}

impl From<KubernetesVersion> for String {
    fn from(version: KubernetesVersion) -> Self {
        version.to_string()
    }
}

impl JsonSchema for KubernetesVersion {
    fn schema_name() -> Cow<'static, str> {
        "KubernetesVersion".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string", "maxLength": MAX_LENGTH, "pattern": format!("^{PATTERN}$"),
        })
    }
}

/// A reported version, written as an empty string if it is absent. Text that is not a version reads
/// as absent: a status must stay readable whatever a host reports.
pub mod or_empty {
    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::{
        Cow, KubernetesVersion, MAX_LENGTH, PATTERN, Schema, SchemaGenerator, json_schema,
    };

    /// Serializes the version.
    pub fn serialize<S: Serializer>(
        version: &Option<KubernetesVersion>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match version {
            Some(version) => serializer.collect_str(version),
            None => serializer.serialize_str(""),
        }
    }

    /// Deserializes the version.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<KubernetesVersion>, D::Error> {
        Ok(Cow::<str>::deserialize(deserializer)?.parse().ok())
    }

    /// The JSON schema of the field.
    pub fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string", "maxLength": MAX_LENGTH, "pattern": format!("^({PATTERN})?$"),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn v(text: &str) -> KubernetesVersion {
        text.parse().unwrap()
    }

    #[test]
    fn only_full_versions_with_a_v_are_taken() {
        for good in ["v1.34.2", "v0.0.1", "v1.35.0-rc.1", "v1.34.2+k3s1", "v1.34.2-a.1+b.2"] {
            assert_eq!(v(good).to_string(), good);
        }
        let bad = [
            "",
            "v",
            "1.34.2",
            "V1.34.2",
            "v1.34",
            "v1",
            "v1.34.2.1",
            "v01.34.2",
            "v1.34.x",
            " v1.34.2",
            "v1.34.2 ",
            "v1.34.2-",
            "v1.34.2+",
            "v-1.3.4",
            "latest",
        ];
        for text in bad {
            let error = text.parse::<KubernetesVersion>().unwrap_err();
            assert!(error.to_string().contains("expected vX.Y.Z"), "{error}");
        }
    }

    #[test]
    fn versions_are_equal_where_their_image_tags_are() {
        assert_ne!(v("v1.34.2+a"), v("v1.34.2+b"));
        assert_ne!(v("v1.34.2+a"), v("v1.34.2"));
        assert_eq!(KubernetesVersion::of_image_tag("v1.34.2_a").unwrap(), v("v1.34.2+a"));
        assert_eq!(v("v1.34.2+a").without_build().to_string(), "v1.34.2");
        assert!(v("v1.35.0-rc.1") < v("v1.35.0"));
        assert!(v("v1.35.0-rc.2") > v("v1.35.0-rc.1"));
    }

    #[test]
    fn hops_are_named() {
        let table = [
            ("v1.34.2", "v1.34.2", Hop::Same),
            ("v1.34.2+a", "v1.34.2+b", Hop::Same),
            ("v1.34.2", "v1.34.3", Hop::Patch),
            ("v1.35.0-rc.1", "v1.35.0", Hop::Patch),
            ("v1.34.2", "v1.35.0", Hop::Minor),
            ("v1.34.9", "v1.35.1", Hop::Minor),
            ("v1.34.2", "v1.36.0", Hop::TooFar { minors: 2 }),
            ("v1.34.2", "v1.34.1", Hop::Downgrade),
            ("v1.34.2", "v1.33.9", Hop::Downgrade),
            ("v1.34.2", "v2.0.0", Hop::OtherMajor),
            ("v2.0.0", "v1.99.0", Hop::OtherMajor),
        ];
        for (from, to, hop) in table {
            assert_eq!(v(from).hop_to(&v(to)), hop, "{from} -> {to}");
        }
    }

    #[test]
    fn a_kubelet_is_never_newer_and_at_most_three_minors_older() {
        let server = v("v1.35.1");
        for good in ["v1.35.1", "v1.35.9", "v1.34.0", "v1.32.0"] {
            assert_eq!(v(good).check_kubelet_of(&server), Ok(()), "{good}");
        }
        assert!(matches!(
            v("v1.36.0").check_kubelet_of(&server),
            Err(SkewError::KubeletNewer { .. })
        ));
        assert!(matches!(
            v("v1.31.9").check_kubelet_of(&server),
            Err(SkewError::KubeletTooOld { .. })
        ));
        assert!(v("v0.35.0").check_kubelet_of(&server).is_err());
    }

    #[test]
    fn the_demo_goes_to_the_showcase_or_one_minor_up() {
        let table = [
            ("v1.34.2", "v1.35.0"),
            ("v1.35.0-rc.0", "v1.35.0"),
            ("v1.35.0", "v1.36.0"),
            ("v1.35.3", "v1.36.0"),
            ("v1.33.1", "v1.34.0"),
            ("v1.40.0", "v1.41.0"),
        ];
        for (from, to) in table {
            assert_eq!(v(from).default_target().to_string(), to, "{from}");
        }
    }

    #[test]
    fn a_package_revision_is_not_part_of_the_version() {
        let version = v("v1.35.0");
        assert!(version.is_of_package("1.35.0-1.1"));
        assert!(version.is_of_package("1.35.0"));
        assert!(!version.is_of_package("1.35.1-1.1"));
        assert!(!version.is_of_package("garbage"));
        assert_eq!(version.bare(), "1.35.0");
    }

    #[test]
    fn no_text_that_a_shell_would_read_is_a_version() {
        for bad in ["v1.35.0 ; reboot", "v1.35.0-$(x)", "v1.35.0\n", "v1.35.0-\u{e9}"] {
            assert!(bad.parse::<KubernetesVersion>().is_err(), "{bad:?}");
        }
        let long = format!("v1.35.0+{}", "a".repeat(MAX_LENGTH));
        assert!(long.parse::<KubernetesVersion>().unwrap_err().reason.contains("longer"));
    }

    #[test]
    fn a_version_is_a_text_in_the_api() {
        let version: KubernetesVersion = serde_json::from_str("\"v1.34.2+a\"").unwrap();
        assert_eq!(serde_json::to_string(&version).unwrap(), "\"v1.34.2+a\"");
        let error = serde_json::from_str::<KubernetesVersion>("\"1.34\"").unwrap_err();
        assert!(error.to_string().contains("invalid Kubernetes version \"1.34\""), "{error}");
    }

    fn any_version() -> impl Strategy<Value = KubernetesVersion> {
        (0_u64..3, 0_u64..50, 0_u64..30, "(-(alpha|beta|rc)\\.[1-9])?(\\+[a-z]{1,3})?").prop_map(
            |(major, minor, patch, rest)| {
                format!("v{major}.{minor}.{patch}{rest}").parse().expect("built as a version")
            },
        )
    }

    proptest! {
        #[test]
        fn a_displayed_version_parses_to_itself(version in any_version()) {
            let again: KubernetesVersion = version.to_string().parse().unwrap();
            prop_assert_eq!(again.to_string(), version.to_string());
        }

        #[test]
        fn text_that_the_api_accepts_is_a_version(text in PATTERN) {
            prop_assume!(text.len() <= MAX_LENGTH);
            prop_assert!(text.parse::<KubernetesVersion>().is_ok(), "{}", text);
        }

        #[test]
        fn an_image_tag_contains_the_whole_version(version in any_version()) {
            prop_assert_eq!(KubernetesVersion::of_image_tag(&version.image_tag()), Ok(version));
        }

        #[test]
        fn any_text_is_either_refused_or_shown_as_given(text in "[v0-9.+a-z-]{0,16}") {
            if let Ok(version) = text.parse::<KubernetesVersion>() {
                prop_assert_eq!(version.to_string(), text);
            }
        }

        #[test]
        fn the_next_minor_is_one_hop_and_fits_the_skew(version in any_version()) {
            let next = version.next_minor_zero();
            prop_assert_eq!(version.hop_to(&next), Hop::Minor);
            prop_assert_eq!(next.hop_to(&version), Hop::Downgrade);
            prop_assert!(version.check_kubelet_of(&next).is_ok());
            prop_assert!(next.check_kubelet_of(&version).is_err());
        }

        #[test]
        fn the_default_target_is_always_one_upgrade_away(version in any_version()) {
            let target = version.default_target();
            prop_assert!(target > version);
            prop_assert!(version.hop_to(&target).is_upgrade());
        }

        #[test]
        fn order_is_total_and_agrees_with_hops(a in any_version(), b in any_version()) {
            prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
            let (a, b) = (a.without_build(), b.without_build());
            if a.major() == b.major() {
                prop_assert_eq!(a.hop_to(&b) == Hop::Downgrade, a > b);
                prop_assert_eq!(a.hop_to(&b) == Hop::Same, a == b);
            }
        }
    }
}
