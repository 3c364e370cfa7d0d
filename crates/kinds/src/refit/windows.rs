//! Maintenance windows: when machines may begin.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many weekly windows, and how many that are open once, a group may have.
pub const MAX_WINDOWS: usize = 32;
/// How many dates a weekly window may leave out.
pub const MAX_EXCEPT: usize = 100;
/// How many characters the name of a window has at most.
pub const MAX_WINDOW_NAME: usize = 63;
/// How long an update is expected to take before one has shown it, in seconds.
pub const DEFAULT_ESTIMATE_SECONDS: i32 = 900;

/// When machines may begin: in any of these windows. An update begins only if it is expected to end before its
/// window closes; what has begun is finished.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("has(self.weekly) && size(self.weekly) > 0 || has(self.once) && size(self.once) > 0",
    "windows needs a window in weekly or once: without windows, machines begin at any time"))]
pub struct Windows {
    /// Windows that open each week.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_WINDOWS))]
    pub weekly: Vec<WeeklyWindow>,
    /// Windows that open once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_WINDOWS))]
    pub once: Vec<OneWindow>,
    /// How long an update of a machine is expected to take while past ones do not show it, in seconds.
    #[serde(default = "default_estimate")]
    #[schemars(range(min = 1, max = 604_800))]
    pub estimate_seconds: i32,
}

fn default_estimate() -> i32 {
    DEFAULT_ESTIMATE_SECONDS
}

impl Windows {
    /// Those of this name.
    #[must_use]
    pub fn named(&self, wanted: &str) -> Self {
        let mut found = self.clone();
        found.weekly.retain(|window| window.name.as_deref() == Some(wanted));
        found.once.retain(|window| window.name.as_deref() == Some(wanted));
        found
    }

    /// The names of all that have one, in order.
    pub fn names(&self) -> BTreeSet<&str> {
        let weekly = self.weekly.iter().map(|window| &window.name);
        let all = weekly.chain(self.once.iter().map(|window| &window.name));
        all.filter_map(Option::as_deref).collect()
    }
}

/// A window that opens each week.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WeeklyWindow {
    /// Its name, for `refit schedule --window`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_WINDOW_NAME))]
    pub name: Option<String>,
    /// The days on which it opens.
    #[schemars(length(min = 1, max = 7))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub days: Vec<Day>,
    /// When it opens, as `HH:MM` in its time zone. A time that clocks skip is as much later, one that they repeat is the
    /// first.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// How long it stays open, in minutes.
    #[schemars(range(min = 1, max = 10_080))]
    pub duration_minutes: i32,
    /// The time zone, by its IANA name such as `Europe/Berlin`.
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: String,
    /// Dates on which it is closed for the whole day, as `YYYY-MM-DD` in its time zone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_EXCEPT), inner(regex(pattern = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub except: Vec<String>,
}

/// A window that opens once.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("self.from < self.until", "until must be after from"))]
pub struct OneWindow {
    /// Its name, for `refit schedule --window`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_WINDOW_NAME))]
    pub name: Option<String>,
    /// When it opens.
    pub from: Time,
    /// When it closes.
    pub until: Time,
}

/// A day of the week.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::VariantArray,
)]
pub enum Day {
    /// Monday.
    Monday,
    /// Tuesday.
    Tuesday,
    /// Wednesday.
    Wednesday,
    /// Thursday.
    Thursday,
    /// Friday.
    Friday,
    /// Saturday.
    Saturday,
    /// Sunday.
    Sunday,
}
