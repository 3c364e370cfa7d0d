//! Failures that are known and not fixed yet.

use serde::Deserialize;

use super::{
    fault::FaultKind,
    oracle::{Problem, Rule},
    plan::Plan,
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
    /// Kinds of faults, one of which must be in the schedule; any by default.
    #[serde(default)]
    pub after: Vec<String>,
}

/// Why a list of known failures cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("invalid list of known failures: {0}")]
pub struct KnownError(String);

impl Known {
    /// Parses a list of known failures.
    pub fn parse(yaml: &str) -> Result<Vec<Self>, KnownError> {
        let list: Vec<Self> =
            serde_saphyr::from_str(yaml).map_err(|error| KnownError(error.to_string()))?;
        for kind in list.iter().flat_map(|known| &known.after) {
            kind.parse::<FaultKind>()
                .map_err(|_| KnownError(format!("unknown kind of fault {kind:?}")))?;
        }
        Ok(list)
    }

    fn explains(&self, plan: &Plan, problem: &Problem) -> bool {
        let mut after = self.after.iter().filter_map(|kind| kind.parse().ok());
        self.breaks.contains(&problem.rule)
            && problem.text.contains(&self.contains)
            && (self.after.is_empty() || after.any(|kind| plan.has(kind)))
    }
}

/// The finding that explains a run: the one that explains its first problem, if each problem is
/// explained by one.
pub(super) fn explain(known: &[Known], plan: &Plan, problems: &[Problem]) -> Option<String> {
    let finding = |problem: &Problem| known.iter().find(|known| known.explains(plan, problem));
    let all: Option<Vec<&Known>> = problems.iter().map(finding).collect();
    Some(all?.first()?.finding.clone())
}
