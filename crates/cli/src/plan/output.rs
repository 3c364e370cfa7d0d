//! The formats of a plan, and what fails a pipeline.

use std::process::ExitCode;

use anyhow::Context as _;
use refit_predict::{PredictedOutcome, Prediction};

use super::{html, junit, show};
use crate::printer::{Format, Printer};

/// Exit code if a machine will be created or deleted.
const EXIT_REPLACED: u8 = 3;
/// Exit code if the change is blocked.
const EXIT_BLOCKED: u8 = 4;
/// Exit code if no updater covers a part of the change.
const EXIT_UNCOVERED: u8 = 5;

/// Output format of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PlanFormat {
    /// Text for people.
    #[default]
    #[value(alias = "text")]
    Table,
    /// One JSON document.
    Json,
    /// The same document as YAML.
    Yaml,
    /// One page that refers to nothing else, with the timeline drawn.
    Html,
    /// A JUnit report, with one test case for each statement that a pipeline can fail on.
    Junit,
}

impl PlanFormat {
    /// The format for the printer: everything but text is for programs.
    pub(crate) fn stream(self) -> Format {
        match self {
            Self::Table => Format::Text,
            Self::Json | Self::Yaml | Self::Html | Self::Junit => Format::Json,
        }
    }
}

/// What makes the exit code of a plan other than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FailOn {
    /// A machine is created or deleted: exit code 3.
    Replace,
    /// No updater covers a part of the change: exit code 5.
    Uncovered,
    /// A group is blocked: exit code 4.
    Blocked,
}

impl FailOn {
    /// The exit code if this is so in the plan.
    fn code(self, plan: &Prediction) -> Option<u8> {
        let mut groups = plan.groups.iter();
        match self {
            Self::Replace => groups
                .any(|group| group.outcome == PredictedOutcome::Replaced)
                .then_some(EXIT_REPLACED),
            Self::Uncovered => {
                let mut paths = groups.flat_map(|group| &group.paths);
                paths.any(|path| path.updater.is_none()).then_some(EXIT_UNCOVERED)
            }
            Self::Blocked => groups
                .any(|group| group.outcome == PredictedOutcome::Blocked)
                .then_some(EXIT_BLOCKED),
        }
    }
}

/// Prints a plan, and returns its exit code.
pub(crate) fn print(
    printer: Printer,
    format: PlanFormat,
    fail_on: &[FailOn],
    plan: &Prediction,
) -> anyhow::Result<ExitCode> {
    match format {
        PlanFormat::Table => show::show(printer, plan)?,
        PlanFormat::Json => printer.result(&serde_json::to_string_pretty(plan)?)?,
        PlanFormat::Yaml => printer.result(yaml(plan)?.trim_end())?,
        PlanFormat::Html => printer.result(&html::page(plan))?,
        PlanFormat::Junit => printer.result(junit::report(plan)?.trim_end())?,
    }
    Ok(exit_code(fail_on, plan))
}

fn yaml(plan: &Prediction) -> anyhow::Result<String> {
    serde_saphyr::to_string(plan).context("cannot write the plan as YAML")
}

/// The code of the first thing to fail on that is so.
fn exit_code(fail_on: &[FailOn], plan: &Prediction) -> ExitCode {
    let order = [FailOn::Replace, FailOn::Uncovered, FailOn::Blocked];
    let mut asked = order.into_iter().filter(|one| fail_on.contains(one));
    let code = asked.find_map(|one| one.code(plan));
    code.map_or(ExitCode::SUCCESS, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::plan_of_example, *};

    fn code(fail_on: &[FailOn], plan: &Prediction) -> ExitCode {
        exit_code(fail_on, plan)
    }

    #[test]
    fn a_pipeline_fails_only_on_what_it_asks_for() {
        use FailOn::{Blocked, Replace, Uncovered};
        let all = [Replace, Uncovered, Blocked];
        let in_place = plan_of_example("v1.34.2", "v1.35.0");
        assert_eq!(code(&all, &in_place), ExitCode::SUCCESS);
        let surge = plan_of_example("maxSurge: 0", "maxSurge: 1");
        assert_eq!(surge.outcome, PredictedOutcome::Replaced, "{surge:#?}");
        assert_eq!(code(&all, &surge), ExitCode::from(3));
        assert_eq!(code(&[Uncovered, Blocked], &surge), ExitCode::SUCCESS);
        let mut both = surge;
        both.groups[1].outcome = PredictedOutcome::Blocked;
        assert_eq!(code(&[Blocked], &both), ExitCode::from(4));
        assert_eq!(code(&[Blocked, Replace], &both), ExitCode::from(3));
        both.groups[1].paths = vec![refit_predict::PathLine {
            line: "spec.a: 1 -> 2".to_owned(),
            updater: None,
            left: false,
            objects: Vec::new(),
        }];
        assert_eq!(code(&[Blocked, Uncovered], &both), ExitCode::from(5));
    }

    #[test]
    fn a_plan_as_yaml_is_the_same_document_as_its_json() {
        let plan = plan_of_example("v1.34.2", "v1.35.0");
        let read: serde_json::Value = serde_saphyr::from_str(&yaml(&plan).unwrap()).unwrap();
        assert_eq!(read, serde_json::to_value(&plan).unwrap());
    }
}
