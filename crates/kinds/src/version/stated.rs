//! Versions in objects that other programs write.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::KubernetesVersion;

/// A version in an object that Refit does not write: a Cluster API object or a Node. Invalid text
/// is kept, so that the object stays readable and an error can quote the text.
///
/// ```
/// use refit_kinds::version::{KubernetesVersion, StatedVersion};
///
/// assert_eq!(StatedVersion::from("v1.35.0").version(), Some(&KubernetesVersion::new(1, 35, 0)));
/// assert_eq!(StatedVersion::from("1.35"), StatedVersion::Unreadable("1.35".into()));
/// assert_eq!(StatedVersion::from("1.35").to_string(), "1.35");
/// assert_eq!(StatedVersion::from(""), StatedVersion::Absent);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "Option<Cow<'_, str>>", into = "String")]
pub enum StatedVersion {
    /// The field is absent or empty.
    #[default]
    Absent,
    /// A version.
    Version(KubernetesVersion),
    /// Text that is not a version.
    Unreadable(String),
}

impl StatedVersion {
    /// Whether no version is stated.
    pub fn is_absent(&self) -> bool {
        *self == Self::Absent
    }

    /// The version, if it is valid.
    pub fn version(&self) -> Option<&KubernetesVersion> {
        match self {
            Self::Version(version) => Some(version),
            Self::Absent | Self::Unreadable(_) => None,
        }
    }

    /// Whether exactly this version is stated.
    pub fn is(&self, version: &KubernetesVersion) -> bool {
        self.version() == Some(version)
    }

    /// This version, or the other one if this one is absent.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match self {
            Self::Absent => other,
            Self::Version(_) | Self::Unreadable(_) => self,
        }
    }
}

impl From<&str> for StatedVersion {
    fn from(text: &str) -> Self {
        match text.parse() {
            _ if text.is_empty() => Self::Absent,
            Ok(version) => Self::Version(version),
            Err(_) => Self::Unreadable(text.to_owned()),
        }
    }
}

impl From<Option<Cow<'_, str>>> for StatedVersion {
    fn from(text: Option<Cow<'_, str>>) -> Self {
        text.as_deref().map(Self::from).unwrap_or_default()
    }
}

impl From<Option<KubernetesVersion>> for StatedVersion {
    fn from(version: Option<KubernetesVersion>) -> Self {
        version.map_or(Self::Absent, Self::Version)
    }
}

impl From<KubernetesVersion> for StatedVersion {
    fn from(version: KubernetesVersion) -> Self {
        Self::Version(version)
    }
}

impl From<StatedVersion> for String {
    fn from(version: StatedVersion) -> Self {
        version.to_string()
    }
}

impl fmt::Display for StatedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.pad(""),
            Self::Version(version) => version.fmt(f),
            Self::Unreadable(text) => f.pad(text),
        }
    }
}

impl JsonSchema for StatedVersion {
    fn schema_name() -> Cow<'static, str> {
        "StatedVersion".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string"})
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_that_states_something_counts() {
        let (absent, unreadable) = (StatedVersion::Absent, StatedVersion::from("latest"));
        let version = StatedVersion::from("v1.35.0");
        assert_eq!(absent.clone().or(version.clone()), version);
        assert_eq!(unreadable.clone().or(version.clone()), unreadable);
        assert_eq!(version.clone().or(unreadable), version);
        assert!(absent.or(StatedVersion::Absent).is_absent());
        assert!(serde_json::from_str::<StatedVersion>("null").unwrap().is_absent());
    }

    proptest! {
        #[test]
        fn an_object_is_written_back_as_it_was_read(text in "(v[0-9]{1,2}\\.[0-9]{1,2}\\.[0-9](\\+[a-z0-9.]{1,5})?|.{0,80})") {
            let stated: StatedVersion = serde_json::from_value(text.clone().into()).unwrap();
            prop_assert_eq!(serde_json::to_value(&stated).unwrap(), serde_json::Value::from(text));
        }
    }
}
