//! Refit's alert rules, judged by Debian's promtool.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{collections::BTreeSet, fs, process::Command};

use lab_testbed::prometheus::{promtool, rules};
use serde_json::Value;

const TESTS: &str = include_str!("../fixtures/alerts/tests.yml");

fn alerts() -> BTreeSet<String> {
    let groups = rules(false).unwrap();
    let groups = groups["groups"].as_array().unwrap().clone();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules.map(|rule| rule["alert"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_alert_is_raised_by_what_it_names_and_by_nothing_else() {
    let directory = std::env::temp_dir().join(format!("refit-alert-rules-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("rules.yml"), rules(false).unwrap().to_string()).unwrap();
    fs::write(directory.join("tests.yml"), TESTS).unwrap();
    for arguments in [["check", "rules", "rules.yml"], ["test", "rules", "tests.yml"]] {
        let ended = Command::new(promtool()).args(arguments).current_dir(&directory).output();
        let ended = ended.unwrap();
        let text = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "promtool {}: {text}", arguments.join(" "));
    }
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn every_alert_has_a_case_that_raises_it_and_one_that_does_not() {
    let tests: Value = serde_saphyr::from_str(TESTS).unwrap();
    let cases = tests["tests"].as_array().unwrap().iter();
    let cases = cases.flat_map(|test| test["alert_rule_test"].as_array().unwrap());
    let of = |raised: bool| -> BTreeSet<String> {
        let cases = cases.clone().filter(|case| {
            case["exp_alerts"].as_array().is_some_and(|alerts| alerts.is_empty() != raised)
        });
        cases.map(|case| case["alertname"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((of(true), of(false)), (alerts(), alerts()));
}
