//! What failures and warnings of apt mean.

use crate::host::{ProgramError, program::tail, work::WorkError};

/// Why apt refuses an installation without having changed anything; `None` for other failures.
pub(super) fn unsolvable(error: &ProgramError) -> Option<&'static str> {
    let output = error.output_tail().to_lowercase();
    let known = [
        ("held packages were changed", "a held package would have to change"),
        ("packages need to be removed", "other packages would have to be removed"),
        ("unmet dependencies", "dependencies cannot be satisfied"),
        ("pkgproblemresolver::resolve generated breaks", "dependencies cannot be satisfied"),
        ("not authenticated", "the repository has no signature that the host trusts"),
        ("is not signed", "the repository has no signature that the host trusts"),
    ];
    known.iter().find(|(text, _)| output.contains(text)).map(|(_, what)| *what)
}

/// The warnings in the output of apt-get.
pub(super) fn warnings(output: &str) -> String {
    let warnings: Vec<&str> = output.lines().filter(|line| line.starts_with("W: ")).collect();
    tail(&warnings.join("\n"))
}

/// Classifies a failed installation.
pub(super) fn explain(error: ProgramError) -> WorkError {
    match unsolvable(&error) {
        Some(what) => WorkError::needs_person(format!(
            "{what}; nothing was changed, fix it on the host with apt: {error}"
        )),
        None => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::FailureKind;

    use super::*;

    #[test]
    fn dependency_problems_need_an_operator() {
        let failed = |tail: &str| ProgramError::Failed {
            command: "apt-get install".to_owned(),
            code: Some(100),
            tail: tail.to_owned(),
        };
        for text in [
            "E: Held packages were changed and -y was used without --allow-change-held-packages.",
            "E: Packages need to be removed but remove is disabled.",
            "The following packages have unmet dependencies:",
        ] {
            assert_eq!(explain(failed(text)).kind, FailureKind::NeedsPerson, "{text}");
        }
        assert_eq!(explain(failed("Temporary failure resolving")).kind, FailureKind::Retriable);
    }

    #[test]
    fn warnings_of_apt_are_distinguished_from_its_other_output() {
        let fetch = "W: Failed to fetch http://m/InRelease  Could not resolve 'm'";
        let ignored = "W: Some index files failed to download. They have been ignored";
        for (output, expected) in [
            (String::new(), String::new()),
            ("Hit:1 http://m InRelease\nReading package lists...".to_owned(), String::new()),
            (format!("Err:1 http://m\n{fetch}\n{ignored}\n"), format!("{fetch}\n{ignored}")),
        ] {
            assert_eq!(warnings(&output), expected, "{output}");
        }
    }
}
