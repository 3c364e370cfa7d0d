//! A plan as a JUnit report: one suite for each group, one case for each statement.

use std::time::Duration;

use anyhow::Context as _;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use refit_predict::{GroupPrediction, Prediction};

/// The report.
pub(crate) fn report(plan: &Prediction) -> anyhow::Result<String> {
    let mut report = Report::new("refit plan");
    for group in &plan.groups {
        report.add_test_suite(suite(group));
    }
    report.to_string().context("cannot write the plan as JUnit report")
}

fn suite(group: &GroupPrediction) -> TestSuite {
    let mut suite = TestSuite::new(format!("{}/{}/{}", group.namespace, group.kind, group.name));
    let seconds = group.seconds.and_then(|seconds| u64::try_from(seconds).ok());
    suite.set_time(Duration::from_secs(seconds.unwrap_or_default()));
    let uncovered = group.paths.iter().filter(|path| path.updater.is_none());
    let replaced = group.causes.iter().map(|cause| {
        let remedy = Some(&cause.remedy).filter(|remedy| !remedy.is_empty());
        let remedy = remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
        (format!("{:?}", cause.reason), format!("{}{remedy}", cause.message))
    });
    let blocked =
        group.blocked_by.iter().map(|blocked| (blocked.reason.clone(), blocked.message.clone()));
    suite.add_test_cases([
        case("every machine stays", replaced.collect()),
        case(
            "an updater covers every change",
            uncovered.map(|path| ("Uncovered".to_owned(), path.to_string())).collect(),
        ),
        case("nothing blocks the change", blocked.collect()),
    ]);
    suite
}

/// A case that fails with these reasons and messages; without any it passes.
fn case(name: &str, failures: Vec<(String, String)>) -> TestCase {
    let Some((reason, _)) = failures.first().cloned() else {
        return TestCase::new(name, TestCaseStatus::success());
    };
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
    let messages: Vec<String> = failures.into_iter().map(|(_, message)| message).collect();
    status.set_type(reason).set_message(messages.join("\n"));
    TestCase::new(name, status)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::plan_of_example, *};

    #[test]
    fn each_statement_that_does_not_hold_is_a_failure_with_its_reason() {
        let text = report(&plan_of_example("maxSurge: 0", "maxSurge: 1")).unwrap();
        let read = Report::deserialize_from_str(&text).unwrap();
        assert_eq!(read.test_suites.len(), 2);
        assert_eq!(read.failures, 1, "{text}");
        let failed = read.test_suites.iter().flat_map(|suite| &suite.test_cases);
        let failed: Vec<(&str, Option<&str>)> = failed
            .filter_map(|case| match &case.status {
                TestCaseStatus::NonSuccess { ty, .. } => {
                    Some((case.name.as_str(), ty.as_ref().map(quick_junit::XmlString::as_str)))
                }
                TestCaseStatus::Success { .. } | TestCaseStatus::Skipped { .. } => None,
            })
            .collect();
        assert_eq!(failed, [("every machine stays", Some("Surge"))]);
    }
}
