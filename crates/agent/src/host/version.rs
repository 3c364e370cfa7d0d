//! A version of Kubernetes, fit for the arguments of programs that run as root.

use serde::{Deserialize, Serialize};

use super::InvalidStep;

/// A Kubernetes version, `vX.Y.Z`, checked: it goes into arguments of programs that run as root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KubernetesVersion(String);

impl KubernetesVersion {
    /// Checks `text`.
    pub fn parse(text: &str) -> Result<Self, InvalidStep> {
        let wrong = || InvalidStep::Version { got: text.to_owned() };
        let numbers = text.strip_prefix('v').ok_or_else(wrong)?;
        let (core, rest) = match numbers.find(['-', '+']) {
            Some(at) => numbers.split_at(at),
            None => (numbers, ""),
        };
        let number = |part: &str| {
            !part.is_empty() && part.len() <= 9 && part.bytes().all(|b| b.is_ascii_digit())
        };
        let parts: Vec<&str> = core.split('.').collect();
        let suffix = rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"-+.".contains(&b));
        if parts.len() == 3 && parts.into_iter().all(number) && suffix && rest.len() <= 64 {
            Ok(Self(text.to_owned()))
        } else {
            Err(wrong())
        }
    }

    /// The version of a package such as `1.35.0-1.1`: what comes before its revision.
    pub fn of_package(version: &str) -> Result<Self, InvalidStep> {
        let upstream = version.rsplit_once('-').map_or(version, |(upstream, _)| upstream);
        Self::parse(&format!("v{upstream}"))
    }

    /// `vX.Y.Z`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `X.Y.Z`, as packages have it.
    pub fn bare(&self) -> &str {
        self.0.strip_prefix('v').unwrap_or(&self.0)
    }

    /// The minor version: 35 of `v1.35.0`.
    pub fn minor(&self) -> u32 {
        let [_, minor, _] = self.numbers();
        minor
    }

    /// Its three numbers, to tell older from newer.
    pub fn numbers(&self) -> [u32; 3] {
        let core = self.bare().split(['-', '+']).next().unwrap_or_default();
        let mut numbers = core.split('.').map(|part| part.parse().unwrap_or_default());
        std::array::from_fn(|_| numbers.next().unwrap_or_default())
    }

    /// Whether a package of this version holds it.
    pub fn is_of_package(&self, version: &str) -> bool {
        Self::of_package(version).is_ok_and(|found| found == *self)
    }
}

impl TryFrom<String> for KubernetesVersion {
    type Error = InvalidStep;

    fn try_from(text: String) -> Result<Self, InvalidStep> {
        Self::parse(&text)
    }
}

impl From<KubernetesVersion> for String {
    fn from(version: KubernetesVersion) -> Self {
        version.0
    }
}

impl std::fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
