//! The operator's configuration: the text `config.yaml` of a ConfigMap, as typed values.
//!
//! A [`Config`] is parsed at each look, so that an edit applies at once. Each consumer reads and validates its own part: a
//! mistake in the part of the steps does not keep the provider from cancelling an upgrade
//! (`docs/facts/openshift-upgrades.md#configuration`).

use std::ops::RangeInclusive;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ConfigMap;
use regex::Regex;
use serde_json::Value;

use crate::{
    Compat,
    pool_glob::PoolGlob,
    provider::OcmUrl,
    upgrade_config::{ARO, NAME, UpgradeType},
    url::without_credentials,
};

/// Name of the ConfigMap, in [`crate::upgrade_config::NAMESPACE`].
pub const CONFIG_MAP: &str = "managed-upgrade-operator-config";
/// Its key.
pub const CONFIG_KEY: &str = "config.yaml";
/// The longest duration of the configuration, a year: sums of durations stay within what a timestamp can hold.
const YEAR_MINUTES: i64 = 365 * 24 * 60;

/// Why a part of the configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There is no ConfigMap.
    #[error("ConfigMap {CONFIG_MAP} does not exist, create it with the key {CONFIG_KEY}")]
    NoConfigMap,
    /// The text is not a YAML map.
    #[error("cannot parse {CONFIG_KEY} of ConfigMap {CONFIG_MAP}: {reason}, correct the YAML")]
    Yaml {
        /// Where, and what is wrong.
        reason: String,
    },
    /// A value that has no default is missing.
    #[error("{key} of ConfigMap {CONFIG_MAP} is missing, expected {expected}")]
    Missing {
        /// The key, with dots.
        key: &'static str,
        /// What would be valid.
        expected: String,
    },
    /// A value is of the wrong kind, or out of its range.
    #[error("invalid {key} {value} in ConfigMap {CONFIG_MAP}, expected {expected}")]
    Invalid {
        /// The key, with dots.
        key: &'static str,
        /// The value, as JSON.
        value: String,
        /// What would be valid.
        expected: String,
    },
}

/// The platform whose steps are taken.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString, strum::VariantArray,
)]
#[strum(serialize_all = "UPPERCASE")]
pub enum Platform {
    /// OpenShift Dedicated, and ROSA.
    Osd,
    /// Azure Red Hat OpenShift.
    Aro,
}

impl Platform {
    /// The platform of an UpgradeConfig. A type that is unknown takes the steps of OSD.
    pub fn of(upgrade_type: &UpgradeType) -> Self {
        if upgrade_type.0 == ARO { Self::Aro } else { Self::Osd }
    }

    /// The type of an UpgradeConfig for this platform.
    pub fn upgrade_type(self) -> UpgradeType {
        UpgradeType(self.to_string())
    }
}

/// Where UpgradeConfigs come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The upgrade policies of OpenShift Cluster Manager.
    Ocm(OcmUrl),
    /// The object in the cluster, which a user has written.
    Local,
}

/// The part of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderConfig {
    /// Where UpgradeConfigs come from.
    pub source: Source,
    /// The platform of those that come from OCM.
    pub platform: Platform,
}

/// The part of the steps.
#[derive(Clone, Debug)]
pub struct UpgraderConfig {
    /// How long alerts are silenced for the control plane, and after which its upgrade is late.
    pub control_plane_time: SignedDuration,
    /// Names of critical alerts that are silenced with them.
    pub control_plane_criticals: Vec<String>,
    /// Extra capacity.
    pub scale: ScaleConfig,
    /// How long an upgrade may take to begin.
    pub window: WindowConfig,
    /// Drains of nodes; both durations are at least a minute here.
    pub drain: DrainConfig,
    /// Names of critical alerts that do not fail a health check.
    pub ignored_criticals: Vec<String>,
    /// Namespaces whose alerts do not fail a health check.
    pub ignored_namespaces: Vec<String>,
    /// URLs that must answer before an upgrade.
    pub dependencies: DependencyConfig,
    /// Whether this is a FedRAMP environment.
    pub fedramp: bool,
    /// Optional behaviour.
    pub gates: FeatureGates,
}

/// Extra capacity during an upgrade.
#[derive(Clone, Debug)]
pub struct ScaleConfig {
    /// How long extra machines may take to become Ready.
    pub timeout: SignedDuration,
    /// Machine pools that get an extra machine, apart from `worker`.
    pub extra_machine_pools: Vec<PoolGlob>,
}

/// How long an upgrade may take to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// After which a delay is reported, `None` for never.
    pub delay_trigger: Option<SignedDuration>,
    /// After which the upgrade fails, `None` for never.
    pub timeout: Option<SignedDuration>,
}

/// Drains of nodes.
#[derive(Clone, Debug)]
pub struct DrainConfig {
    /// After which Pods without a PodDisruptionBudget are forced.
    pub timeout: SignedDuration,
    /// How long a drain takes after it was forced.
    pub expected_time: SignedDuration,
    /// Whether drains are only watched.
    pub disabled: bool,
    /// Namespaces whose Pods are left alone: a match anywhere in the name counts.
    pub ignored_namespaces: Vec<Regex>,
}

/// URLs that must answer before an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependencyConfig {
    /// The URLs.
    pub urls: Vec<String>,
    /// Of one request. It may be zero only if there are no URLs.
    pub timeout: SignedDuration,
}

/// Optional behaviour, which `featureGate.enabled` names. Other names are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    /// `PreHealthCheck`: six health checks instead of two, also hours before an upgrade.
    pub pre_health_check: bool,
    /// `ServiceLogNotification`: progress is written to the service log.
    pub service_log: bool,
}

/// The configuration, as far as it is a YAML map. What a key means is decided when it is read.
#[derive(Clone, Debug)]
pub struct Config {
    document: Value,
    compat: Compat,
}

impl Config {
    /// Parses the ConfigMap, which is `None` if it does not exist. A ConfigMap without the key counts as an empty text, and
    /// keys that are unknown are ignored.
    pub fn parse(config_map: Option<&ConfigMap>, compat: Compat) -> Result<Self, ConfigError> {
        let data = config_map.ok_or(ConfigError::NoConfigMap)?.data.as_ref();
        let text = data.and_then(|data| data.get(CONFIG_KEY)).map_or("", String::as_str);
        // As in Go, the last of several equal keys counts.
        let options = serde_saphyr::options! {
            duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
            with_snippet: false,
        };
        let document = if text.trim().is_empty() {
            Value::Null
        } else {
            serde_saphyr::from_str_with_options(text, options)
                .map_err(|error| ConfigError::Yaml { reason: error.to_string() })?
        };
        if !matches!(document, Value::Null | Value::Object(_)) {
            return Err(ConfigError::Yaml { reason: "it is not a map".to_owned() });
        }
        Ok(Self { document, compat })
    }

    /// Reads how long the manager waits from one sync to the next.
    pub fn watch_interval(&self) -> Result<SignedDuration, ConfigError> {
        self.minutes("configManager.watchInterval", Some(1), 1)
    }

    /// Reads whether an UpgradeConfig is held while its upgrade is under way, so that its provider neither deletes nor
    /// replaces it. It is, unless our key `configManager.holdWhileUpgrading` is `false` (deviation M17).
    pub fn holds_while_upgrading(&self) -> Result<bool, ConfigError> {
        match self.compat {
            Compat::Repaired => Ok(self.flag("configManager.holdWhileUpgrading")?.unwrap_or(true)),
            Compat::Strict => Ok(false),
        }
    }

    /// Reads the part of a provider, `None` if no source is configured: then UpgradeConfigs are left alone.
    pub fn provider(&self) -> Result<Option<ProviderConfig>, ConfigError> {
        const SOURCE: &str = "configManager.source";
        let source = match self.text(SOURCE)?.unwrap_or_default().to_ascii_uppercase().as_str() {
            "" => return Ok(None),
            "OCM" => Source::Ocm(self.ocm_url()?),
            "LOCAL" => self.local()?,
            _ => return Err(self.invalid(SOURCE, "OCM or LOCAL")),
        };
        Ok(Some(ProviderConfig { source, platform: self.platform()? }))
    }

    fn platform(&self) -> Result<Platform, ConfigError> {
        const KEY: &str = "upgradeType";
        match self.text(KEY)?.unwrap_or_default() {
            "" => Ok(Platform::Aro),
            name => name.parse().map_err(|_| self.invalid(KEY, "OSD or ARO")),
        }
    }

    fn ocm_url(&self) -> Result<OcmUrl, ConfigError> {
        const KEY: &str = "configManager.ocmBaseUrl";
        let url = self.text(KEY)?.and_then(OcmUrl::parse);
        url.ok_or_else(|| self.invalid(KEY, "a URL such as https://api.openshift.com"))
    }

    fn local(&self) -> Result<Source, ConfigError> {
        const KEY: &str = "configManager.localConfigName";
        match self.text(KEY)? {
            Some(NAME) => Ok(Source::Local),
            Some(_) | None => Err(self.invalid(KEY, NAME)),
        }
    }

    /// Reads whether an update to another channel is looked up in the version graph.
    pub fn asks_cincinnati(&self) -> Result<bool, ConfigError> {
        Ok(self.flag("validation.cincinnati")?.unwrap_or_default())
    }

    /// Reads the part of the steps.
    pub fn upgrader(&self) -> Result<UpgraderConfig, ConfigError> {
        let off_at_zero = |time: SignedDuration| (!time.is_zero()).then_some(time);
        let delay_trigger = self.minutes("upgradeWindow.delayTrigger", Some(30), 0)?;
        let timeout = self.minutes("upgradeWindow.timeOut", Some(120), 0)?;
        // The part of the nodes accepts zero for these.
        self.minutes(DRAIN_TIMEOUT, None, 1)?;
        self.minutes(DRAIN_EXPECTED, Some(8), 1)?;
        Ok(UpgraderConfig {
            control_plane_time: self.minutes("maintenance.controlPlaneTime", Some(90), 1)?,
            control_plane_criticals: self
                .list("maintenance.ignoredAlerts.controlPlaneCriticals")?,
            scale: self.scale()?,
            window: WindowConfig {
                delay_trigger: off_at_zero(delay_trigger),
                timeout: off_at_zero(timeout),
            },
            drain: self.drain()?,
            ignored_criticals: self.list("healthCheck.ignoredCriticals")?,
            ignored_namespaces: self.list("healthCheck.ignoredNamespaces")?,
            dependencies: self.dependencies()?,
            fedramp: self.flag("environment.fedramp")?.unwrap_or_default(),
            gates: self.gates()?,
        })
    }

    /// Reads the part of the nodes.
    pub fn drain(&self) -> Result<DrainConfig, ConfigError> {
        const PATTERNS: &str = "nodeDrain.ignoredNamespacePatterns";
        let pattern = |text: String| {
            Regex::new(&text).map_err(|_| invalid(PATTERNS, &text.into(), "regular expressions"))
        };
        Ok(DrainConfig {
            timeout: self.minutes(DRAIN_TIMEOUT, None, 0)?,
            expected_time: self.minutes(DRAIN_EXPECTED, Some(8), 0)?,
            disabled: self.flag("nodeDrain.disableDrainStrategies")?.unwrap_or_default(),
            ignored_namespaces: self
                .list(PATTERNS)?
                .into_iter()
                .map(pattern)
                .collect::<Result<_, _>>()?,
        })
    }

    fn scale(&self) -> Result<ScaleConfig, ConfigError> {
        const POOLS: &str = "scale.extraMachinePools";
        let glob = |text: String| {
            PoolGlob::parse(&text)
                .ok_or_else(|| invalid(POOLS, &text.into(), "patterns such as non-serving-*"))
        };
        Ok(ScaleConfig {
            timeout: self.minutes("scale.timeOut", Some(30), 1)?,
            extra_machine_pools: self
                .list(POOLS)?
                .into_iter()
                .map(glob)
                .collect::<Result<_, _>>()?,
        })
    }

    fn dependencies(&self) -> Result<DependencyConfig, ConfigError> {
        const TIMEOUT: &str = "extDependencyAvailabilityChecks.http.timeout";
        let urls = self.list("extDependencyAvailabilityChecks.http.urls")?;
        let range = if urls.is_empty() { i64::MIN..=60 } else { 1..=60 };
        let seconds = self.number(TIMEOUT, Some(15), range, "a number of seconds from 1 to 60")?;
        Ok(DependencyConfig { urls, timeout: SignedDuration::from_secs(seconds.max(0)) })
    }

    fn gates(&self) -> Result<FeatureGates, ConfigError> {
        let enabled = self.list("featureGate.enabled")?;
        let has = |gate: &str| enabled.iter().any(|name| name == gate);
        Ok(FeatureGates {
            pre_health_check: has("PreHealthCheck"),
            service_log: has("ServiceLogNotification"),
        })
    }

    fn minutes(
        &self,
        key: &'static str,
        default: Option<i64>,
        at_least: i64,
    ) -> Result<SignedDuration, ConfigError> {
        let expected = format!("a number of minutes from {at_least} to {YEAR_MINUTES}");
        let minutes = self.number(key, default, at_least..=YEAR_MINUTES, &expected)?;
        Ok(SignedDuration::from_mins(minutes))
    }

    /// Reads a number. If it is missing, it is its default; in the original it is 0 (deviation M1).
    fn number(
        &self,
        key: &'static str,
        default: Option<i64>,
        range: RangeInclusive<i64>,
        expected: &str,
    ) -> Result<i64, ConfigError> {
        let number = match (self.get(key)?, self.compat, default) {
            (Some(value), _, _) => value.as_i64(),
            (None, Compat::Strict, _) => Some(0),
            (None, Compat::Repaired, Some(default)) => Some(default),
            (None, Compat::Repaired, None) => {
                return Err(ConfigError::Missing { key, expected: expected.to_owned() });
            }
        };
        number.filter(|number| range.contains(number)).ok_or_else(|| self.invalid(key, expected))
    }

    fn flag(&self, key: &'static str) -> Result<Option<bool>, ConfigError> {
        let flag =
            |value: &Value| value.as_bool().ok_or_else(|| invalid(key, value, "true or false"));
        self.get(key)?.map(flag).transpose()
    }

    fn text(&self, key: &'static str) -> Result<Option<&str>, ConfigError> {
        let text = |value| Value::as_str(value).ok_or_else(|| invalid(key, value, "text"));
        self.get(key)?.map(text).transpose()
    }

    fn list(&self, key: &'static str) -> Result<Vec<String>, ConfigError> {
        let Some(value) = self.get(key)? else { return Ok(Vec::new()) };
        let texts = |list: &Vec<Value>| {
            list.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<_>>()
        };
        value.as_array().and_then(texts).ok_or_else(|| invalid(key, value, "a list of texts"))
    }

    /// Returns the value of a key with dots, `None` if it is missing or null.
    fn get(&self, key: &'static str) -> Result<Option<&Value>, ConfigError> {
        let (mut value, mut end) = (&self.document, 0);
        for name in key.split('.') {
            value = match value {
                Value::Object(map) => map.get(name).unwrap_or(&Value::Null),
                Value::Null => return Ok(None),
                Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                    return Err(invalid(key.get(..end).unwrap_or(key), value, "a map"));
                }
            };
            end += usize::from(end > 0) + name.len();
        }
        Ok(Some(value).filter(|value| !value.is_null()))
    }

    fn invalid(&self, key: &'static str, expected: &str) -> ConfigError {
        match self.get(key) {
            Ok(Some(value)) => invalid(key, value, expected),
            Ok(None) => ConfigError::Missing { key, expected: expected.to_owned() },
            Err(error) => error,
        }
    }
}

const DRAIN_TIMEOUT: &str = "nodeDrain.timeOut";
const DRAIN_EXPECTED: &str = "nodeDrain.expectedNodeDrainTime";

fn invalid(key: &'static str, value: &Value, expected: &str) -> ConfigError {
    ConfigError::Invalid { key, value: shown(value).to_string(), expected: expected.to_owned() }
}

/// A value as an error shows it: URLs have no passwords.
fn shown(value: &Value) -> Value {
    match value {
        Value::String(text) => without_credentials(text).into(),
        Value::Array(list) => list.iter().map(shown).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), shown(value))).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}
