//! Identifiers that must not be confused with each other.

use std::{fmt, ops::Deref};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
            JsonSchema,
        )]
        #[serde(transparent)]
        #[schemars(inline)]
        pub struct $name(String);

        impl $name {
            /// Whether the identifier is absent.
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.0 == *other
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// uid of a Machine; a later Machine of the same name has another one.
    MachineUid
}

text_id! {
    /// Name of a Node. Empty: the Machine has no Node.
    NodeName
}

text_id! {
    /// Identifies a plan of a host: the uid of its NodeUpdate. Empty: there is no plan.
    PlanId
}

impl MachineUid {
    /// The uid of a Machine; empty if the Machine has not been created yet.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self(meta.uid.clone().unwrap_or_default())
    }
}

impl PlanId {
    /// The plan of a NodeUpdate; empty if the NodeUpdate has not been created yet.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self(meta.uid.clone().unwrap_or_default())
    }
}

/// Number of a slot claim; a later claim has a higher number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
#[schemars(inline)]
pub struct ClaimId(i64);

impl From<i64> for ClaimId {
    fn from(number: i64) -> Self {
        Self(number)
    }
}

impl ClaimId {
    /// The next claim.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}
