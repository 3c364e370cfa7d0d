//! Failures that are known and not fixed yet.

use serde::Deserialize;

use super::{
    fault::FaultKind,
    rule::{Problem, Rule},
};

/// A finding, and the problems that it causes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// Name of the finding.
    pub finding: String,
    /// The rules that it breaks.
    pub breaks: Vec<Rule>,
    /// A text that the problem contains; any by default.
    #[serde(default)]
    pub contains: String,
    /// A text that the problem does not contain.
    #[serde(default)]
    pub lacks: Option<String>,
    /// Kinds of faults, one of which must have happened before; any by default.
    #[serde(default)]
    pub after: Vec<FaultKind>,
}

/// Why a list of known failures cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("invalid list of known failures: {0}")]
pub struct KnownError(String);

impl Known {
    /// Parses a list of known failures.
    pub fn parse(yaml: &str) -> Result<Vec<Self>, KnownError> {
        serde_saphyr::from_str(yaml).map_err(|error| KnownError(error.to_string()))
    }

    fn explains(&self, happened: &[FaultKind], problem: &Problem) -> bool {
        self.breaks.contains(&problem.rule)
            && problem.text.contains(&self.contains)
            && self.lacks.as_ref().is_none_or(|lacks| !problem.text.contains(lacks))
            && (self.after.is_empty() || self.after.iter().any(|kind| happened.contains(kind)))
    }
}

/// The finding that explains a run in which these faults happened: the one that explains its first
/// problem, if each problem is explained by one.
pub(super) fn explain(
    known: &[Known],
    happened: &[FaultKind],
    problems: &[Problem],
) -> Option<String> {
    let finding = |problem: &Problem| known.iter().find(|known| known.explains(happened, problem));
    let all: Option<Vec<&Known>> = problems.iter().map(finding).collect();
    Some(all?.first()?.finding.clone())
}
