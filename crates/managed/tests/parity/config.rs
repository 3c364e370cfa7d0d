//! Rows of the operator's configuration.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ConfigMap;
use refit_openshift::{
    Compat::{self, Repaired, Strict},
    config::{Config, ConfigError, FeatureGates, Platform, ProviderConfig, Source},
    upgrade_config::{ARO, OSD, UpgradeType},
};
use serde_json::json;

use crate::Row;

pub(crate) const ROWS: &[Row] = &[
    Row {
        number: 6,
        name: "a ConfigMap that is missing or is not a YAML map is an error",
        test: unreadable_configurations_are_errors,
    },
    Row {
        number: 7,
        name: "each rule of each part of the configuration holds",
        test: each_rule_holds,
    },
    Row {
        number: 7,
        name: "a number that is missing is its default, and 0 in the original",
        test: missing_numbers_are_defaults,
    },
    Row {
        number: 7,
        name: "the configurations that ship are valid, and unknown keys are ignored",
        test: shipped_configurations_are_valid,
    },
    Row {
        number: 9,
        name: "a provider without an upgradeType has ARO, unknown types take the steps of OSD",
        test: the_platform_has_a_default,
    },
    Row {
        number: 24,
        name: "source LOCAL with another localConfigName is an error",
        test: a_local_source_has_one_name,
    },
    Row {
        number: 77,
        name: "an invalid scale configuration is an error of the steps",
        test: an_invalid_scale_is_an_error,
    },
];

pub(crate) const COMPATS: [Compat; 2] = [Repaired, Strict];

/// Of OSD, without lists of alerts.
const OSD_YAML: &str = "
upgradeType: OSD
configManager:
  source: OCM
  ocmBaseUrl: https://api.openshift.com
  watchInterval: 60
maintenance:
  controlPlaneTime: 130
  ignoredAlerts:
    controlPlaneCriticals:
    - ClusterOperatorDown
    - KubeletDown
scale:
  timeOut: 30
  extraMachinePools: [non-serving-*]
upgradeWindow:
  delayTrigger: 30
  timeOut: 120
nodeDrain:
  timeOut: 45
  expectedNodeDrainTime: 8
  disableDrainStrategies: true
  ignoredNamespacePatterns: ['^openshift-']
healthCheck:
  ignoredCriticals:
  - PrometheusRuleFailures
  ignoredNamespaces:
  - openshift-logging
extDependencyAvailabilityChecks:
  http:
    timeout: 10
    urls:
    - https://api.openshift.com
featureGate:
  enabled:
  - PreHealthCheck
  - ServiceLogNotification
  - NotYetKnown
environment:
  fedramp: true
validation:
  cincinnati: true
notYetKnown: {}
";

/// Of ARO, as short as it may be.
const ARO_YAML: &str = "
configManager: {source: LOCAL, localConfigName: managed-upgrade-config, watchInterval: 1}
maintenance: {controlPlaneTime: 90}
scale: {timeOut: 30}
upgradeWindow: {timeOut: 120, delayTrigger: 30}
nodeDrain: {timeOut: 45, expectedNodeDrainTime: 8}
healthCheck:
";

pub(crate) fn config(yaml: &str, compat: Compat) -> Config {
    parse(yaml, compat).unwrap()
}

fn parse(yaml: &str, compat: Compat) -> Result<Config, ConfigError> {
    Config::parse(Some(&config_map(&json!({"config.yaml": yaml}))), compat)
}

fn config_map(data: &serde_json::Value) -> ConfigMap {
    serde_json::from_value(json!({"data": data})).unwrap()
}

fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

fn unreadable_configurations_are_errors() {
    for compat in COMPATS {
        let missing = Config::parse(None, compat).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "ConfigMap managed-upgrade-operator-config does not exist, create it with the key config.yaml"
        );
        for yaml in ["a: [", "- list", "text", "a: b: c"] {
            let error = parse(yaml, compat).unwrap_err();
            assert!(matches!(error, ConfigError::Yaml { .. }), "{yaml}: {error}");
        }
        for yaml in ["", "# nothing yet", "---", "{}"] {
            assert_eq!(config(yaml, compat).provider(), Ok(None), "{yaml}");
        }
        // A ConfigMap without the key reads as an empty text.
        for map in [ConfigMap::default(), config_map(&json!({"other": "x"}))] {
            let config = Config::parse(Some(&map), compat).unwrap();
            assert_eq!(config.provider(), Ok(None));
            assert!(config.upgrader().is_err());
        }
    }
}

/// A part, as its consumer reads it.
type Part = fn(&Config) -> Option<ConfigError>;

const SYNC: Part = |config| config.watch_interval().err();
const PROVIDER: Part = |config| config.provider().err();
const UPGRADER: Part = |config| config.upgrader().err();
const DRAIN: Part = |config| config.drain().err();

const FROM_1: &str = "a number of minutes from 1 to 525600";
const FROM_0: &str = "a number of minutes from 0 to 525600";
const SECONDS: &str = "a number of seconds from 1 to 60";
const URL: &str = "a URL such as https://api.openshift.com";
const GLOBS: &str = "patterns such as non-serving-*";

/// A rule: the part that has it, its key with the value of `OSD_YAML`, and values that are valid and wrong.
type Rule = (Part, &'static str, &'static [&'static str], &'static [&'static str], &'static str);

const RULES: &[Rule] = &[
    (SYNC, "configManager.watchInterval: 60", &["1"], &["0", "-1", "\"1h\"", "1.5"], FROM_1),
    (SYNC, "configManager.watchInterval: 60", &["525600"], &["9223372036854775807"], FROM_1),
    (PROVIDER, "configManager.source: OCM", &["ocm", "''", ""], &["\"GIT\""], "OCM or LOCAL"),
    (PROVIDER, "upgradeType: OSD", &["ARO", ""], &["\"osd\"", "\"BM\""], "OSD or ARO"),
    (
        PROVIDER,
        "configManager.ocmBaseUrl: https://api.openshift.com",
        &["http://[::1]:80/a/"],
        &["\"\"", "\":\"", "\"api.openshift.com\"", "\"https://u:p@a\"", "\"http://a b\""],
        URL,
    ),
    (UPGRADER, "maintenance.controlPlaneTime: 130", &["1"], &["0", "-1"], FROM_1),
    (UPGRADER, "scale.timeOut: 30", &["1"], &["0", "-1"], FROM_1),
    (UPGRADER, "upgradeWindow.delayTrigger: 30", &["0"], &["-1"], FROM_0),
    (UPGRADER, "upgradeWindow.timeOut: 120", &["0"], &["-1"], FROM_0),
    (UPGRADER, "nodeDrain.timeOut: 45", &["1"], &["0", "-1"], FROM_1),
    (DRAIN, "nodeDrain.timeOut: 45", &["0"], &["-1"], FROM_0),
    (UPGRADER, "nodeDrain.expectedNodeDrainTime: 8", &["1"], &["0", "-1"], FROM_1),
    (DRAIN, "nodeDrain.expectedNodeDrainTime: 8", &["0"], &["-1"], FROM_0),
    (
        DRAIN,
        "nodeDrain.disableDrainStrategies: true",
        &["yes", "off"],
        &["\"maybe\""],
        "true or false",
    ),
    (
        UPGRADER,
        "extDependencyAvailabilityChecks.http.timeout: 10",
        &["1", "60"],
        &["0", "61"],
        SECONDS,
    ),
    (UPGRADER, "environment.fedramp: true", &["false", ""], &["1"], "true or false"),
    (
        UPGRADER,
        "scale.extraMachinePools: [non-serving-*]",
        &["[]", ""],
        &["\"infra\""],
        "a list of texts",
    ),
];

fn each_rule_holds() {
    for (part, entry, valid, wrong, expected) in RULES {
        let (key, value) = entry.split_once(": ").unwrap();
        let name = key.rsplit('.').next().unwrap();
        let from = format!("{name}: {value}");
        assert!(OSD_YAML.contains(&from), "{from}");
        for (value, is_wrong) in
            valid.iter().map(|value| (value, false)).chain(wrong.iter().map(|value| (value, true)))
        {
            let yaml = OSD_YAML.replacen(&from, &format!("{name}: {value}"), 1);
            let problem = is_wrong.then(|| {
                // A password is not shown.
                let value = value.replace("u:p@", "");
                format!("invalid {key} {value} in ConfigMap managed-upgrade-operator-config, expected {expected}")
            });
            for compat in COMPATS {
                let error = part(&config(&yaml, compat));
                assert_eq!(error.map(|error| error.to_string()), problem, "{compat} {value}");
            }
        }
    }
    for (part, from, to, key, value, expected) in [
        (UPGRADER, "[non-serving-*]", "[a, '[bad']", "scale.extraMachinePools", "\"[bad\"", GLOBS),
        // A panic in the original.
        (
            DRAIN,
            "['^openshift-']",
            "['(']",
            "nodeDrain.ignoredNamespacePatterns",
            "\"(\"",
            "regular expressions",
        ),
        (UPGRADER, "\nenvironment:", "\nenvironment: 5\nother:", "environment", "5", "a map"),
        (
            UPGRADER,
            "\nnotYetKnown:",
            "\nfeatureGate: {enabled: [5, 'https://u:p@a']}\nother:",
            "featureGate.enabled",
            "[5,\"https://a\"]",
            "a list of texts",
        ),
        // Of several equal keys, the last counts.
        (UPGRADER, "\nnotYetKnown:", "\nscale: {timeOut: 0}\nother:", "scale.timeOut", "0", FROM_1),
    ] {
        let (value, expected) = (value.to_owned(), expected.to_owned());
        for compat in COMPATS {
            let error = part(&config(&OSD_YAML.replace(from, to), compat));
            let (value, expected) = (value.clone(), expected.clone());
            assert_eq!(error, Some(ConfigError::Invalid { key, value, expected }));
        }
    }
    // Without URLs, the timeout has no lower limit; without a source, the rest is not read.
    for yaml in ["timeout: 0", "timeout: -1", "timeout: 60"] {
        let yaml = format!("{ARO_YAML}\nextDependencyAvailabilityChecks: {{http: {{{yaml}}}}}");
        for compat in COMPATS {
            assert_eq!(UPGRADER(&config(&yaml, compat)), None);
            assert_eq!(PROVIDER(&config("upgradeType: osd", compat)), None);
        }
    }
    let error = config("scale: {timeOut: 0}", Repaired).upgrader().unwrap_err();
    assert_eq!(
        error.to_string(),
        "nodeDrain.timeOut of ConfigMap managed-upgrade-operator-config is missing, expected a number of minutes from 1 to 525600"
    );
}

fn an_invalid_scale_is_an_error() {
    for (scale, key) in [
        ("{timeOut: 0}", "scale.timeOut"),
        ("{timeOut: 30, extraMachinePools: ['[bad']}", "scale.extraMachinePools"),
    ] {
        for compat in COMPATS {
            let yaml = OSD_YAML.replace("scale:", &format!("unknown: 1\nscale: {scale}\nother:"));
            let error = config(&yaml, compat).upgrader().unwrap_err();
            assert!(error.to_string().starts_with(&format!("invalid {key}")), "{error}");
        }
    }
}

fn missing_numbers_are_defaults() {
    let least = "nodeDrain: {timeOut: 45}";
    let repaired = config(least, Repaired);
    assert_eq!(repaired.watch_interval(), Ok(minutes(1)));
    assert!(repaired.holds_while_upgrading().unwrap());
    let upgrader = repaired.upgrader().unwrap();
    assert_eq!(
        [upgrader.control_plane_time, upgrader.scale.timeout, upgrader.drain.expected_time],
        [90, 30, 8].map(minutes)
    );
    assert_eq!(
        [upgrader.window.delay_trigger, upgrader.window.timeout],
        [30, 120].map(|time| Some(minutes(time)))
    );
    assert_eq!(upgrader.dependencies.timeout, SignedDuration::from_secs(15));
    // A drain has no default: its number is missing rather than 0.
    assert!(config("", Repaired).drain().is_err());

    assert!(config(least, Strict).watch_interval().is_err());
    assert!(!config(least, Strict).holds_while_upgrading().unwrap());
    let drain = config("", Strict).drain().unwrap();
    assert_eq!([drain.timeout, drain.expected_time], [SignedDuration::ZERO; 2]);
    // The window is off without its numbers; each other number is required.
    let without_window = ARO_YAML.replace("upgradeWindow", "other");
    let window = config(&without_window, Strict).upgrader().unwrap().window;
    assert_eq!([window.delay_trigger, window.timeout], [None; 2]);
    for key in ["maintenance", "scale", "nodeDrain"] {
        let yaml = ARO_YAML.replace(key, "other");
        assert!(config(&yaml, Strict).upgrader().is_err(), "{key}");
    }
    let urls = "extDependencyAvailabilityChecks: {http: {urls: [https://a]}}";
    let with_urls = ARO_YAML.replace("healthCheck:", urls);
    assert!(config(&with_urls, Strict).upgrader().is_err());
    assert!(config(&with_urls, Repaired).upgrader().is_ok());
}

fn shipped_configurations_are_valid() {
    for compat in COMPATS {
        let osd = config(OSD_YAML, compat);
        assert_eq!(osd.watch_interval(), Ok(minutes(60)));
        assert!(osd.asks_cincinnati().unwrap());
        let upgrader = osd.upgrader().unwrap();
        assert_eq!(upgrader.control_plane_time, minutes(130));
        assert_eq!(upgrader.control_plane_criticals, ["ClusterOperatorDown", "KubeletDown"]);
        let pools = &upgrader.scale.extra_machine_pools;
        assert!(pools.len() == 1 && pools[0].matches("non-serving-9a"));
        assert!(upgrader.drain.disabled && upgrader.fedramp);
        let patterns = &upgrader.drain.ignored_namespaces;
        assert!(patterns.len() == 1 && patterns[0].is_match("openshift-logging"));
        assert_eq!(upgrader.ignored_criticals, ["PrometheusRuleFailures"]);
        assert_eq!(upgrader.ignored_namespaces, ["openshift-logging"]);
        assert_eq!(upgrader.dependencies.urls, ["https://api.openshift.com"]);
        assert_eq!(upgrader.dependencies.timeout, SignedDuration::from_secs(10));
        assert_eq!(upgrader.gates, FeatureGates { pre_health_check: true, service_log: true });

        let aro = config(ARO_YAML, compat);
        assert!(!aro.asks_cincinnati().unwrap());
        let local = ProviderConfig { source: Source::Local, platform: Platform::Aro };
        assert_eq!(aro.provider(), Ok(Some(local)));
        let upgrader = aro.upgrader().unwrap();
        assert!(!upgrader.drain.disabled && !upgrader.fedramp);
        assert_eq!(upgrader.gates, FeatureGates::default());
        assert!(upgrader.dependencies.urls.is_empty());
    }
}

fn the_platform_has_a_default() {
    for compat in COMPATS {
        for (yaml, platform) in [
            ("", Platform::Aro),
            ("upgradeType: ''", Platform::Aro),
            ("upgradeType: OSD", Platform::Osd),
        ] {
            let yaml = format!("{yaml}\n{ARO_YAML}");
            let provider = config(&yaml, compat).provider().unwrap().unwrap();
            assert_eq!(provider.platform, platform, "{yaml}");
        }
    }
    for (name, platform) in
        [(OSD, Platform::Osd), (ARO, Platform::Aro), ("BM", Platform::Osd), ("", Platform::Osd)]
    {
        assert_eq!(Platform::of(&UpgradeType(name.to_owned())), platform, "{name}");
    }
    assert_eq!([Platform::Osd, Platform::Aro].map(|one| one.upgrade_type().0), [OSD, ARO]);
}

fn a_local_source_has_one_name() {
    for compat in COMPATS {
        let provider = |name| {
            config(&format!("configManager: {{source: local, localConfigName: {name}}}"), compat)
                .provider()
        };
        let local = ProviderConfig { source: Source::Local, platform: Platform::Aro };
        assert_eq!(provider("managed-upgrade-config"), Ok(Some(local)));
        let error = provider("osd-upgrade-config").unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid configManager.localConfigName \"osd-upgrade-config\" in ConfigMap managed-upgrade-operator-config, expected managed-upgrade-config"
        );
        assert!(matches!(provider("").unwrap_err(), ConfigError::Missing { .. }));
    }
}
