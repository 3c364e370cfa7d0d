//! What failures of dnf mean.

use std::collections::BTreeSet;

use super::{Want, dnf_sources::Section};
use crate::host::{ProgramError, work::WorkError};

/// Whether dnf refuses a transaction without having changed anything.
pub(super) fn is_unsolvable(error: &ProgramError) -> bool {
    let known = [
        "nothing provides",
        "conflicting requests",
        "GPG check FAILED",
        "Signature verification failed",
        "is not signed",
        "No match for argument",
        "Unable to find a match",
    ];
    known.iter().any(|text| error.output_tail().contains(text))
}

/// Classifies a failed transaction.
pub(super) fn explain(error: ProgramError, sections: &[Section], wants: &[Want]) -> WorkError {
    let output = error.output_tail();
    let filtered = ["filtered out by exclude filtering", "matches only excluded packages"];
    if filtered.iter().any(|text| output.contains(text)) {
        return WorkError::needs_person(format!(
            "dnf excludes a wanted package; nothing was changed. {}: {error}",
            excludes(sections, wants)
        ));
    }
    let known = ["nothing provides", "conflicting requests", "GPG check FAILED", "is not signed"];
    if known.iter().any(|text| output.contains(text)) {
        return WorkError::needs_person(format!(
            "dnf cannot install the packages; nothing was changed, fix it on the host: {error}"
        ));
    }
    error.into()
}

/// Which repository excludes which wanted package, and how.
fn excludes(sections: &[Section], wants: &[Want]) -> String {
    let hidden = sections.iter().flat_map(|section| {
        wants.iter().filter_map(move |want| {
            let option = section.hides(&want.name)?;
            Some(format!("[{}] in {} has {option}", section.id, section.file))
        })
    });
    let hidden: BTreeSet<String> = hidden.collect();
    if hidden.is_empty() {
        return "Look for exclude, excludepkgs, includepkgs, a version lock or a module that hides \
                it on the host"
            .to_owned();
    }
    let hidden: Vec<String> = hidden.into_iter().collect();
    format!("{}; remove the package from there on the host", hidden.join(", "))
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::FailureKind;

    use super::*;
    use crate::host::packages::dnf_sources::parse;

    fn failed(tail: &str) -> ProgramError {
        let (command, tail) = ("dnf install".to_owned(), tail.to_owned());
        ProgramError::Failed { command, code: Some(1), tail }
    }

    fn wants() -> [Want; 1] {
        [Want::kubernetes("kubeadm", &"v1.35.0".parse().unwrap())]
    }

    #[test]
    fn an_excluded_package_is_reported_with_repository_file_and_option() {
        let file = "/etc/yum.repos.d/redhat.repo";
        let sections = parse(file, "[satellite-k8s]\nexclude=kube*\n[base]\nexclude=vim\n");
        for text in [
            "All matches were filtered out by exclude filtering for argument: kubeadm-1.35.0-*",
            "Argument 'kubeadm-1.35.0-*' matches only excluded packages.",
        ] {
            let error = explain(failed(text), &sections, &wants());
            assert_eq!(error.kind, FailureKind::NeedsPerson);
            let wanted =
                "[satellite-k8s] in /etc/yum.repos.d/redhat.repo has exclude=kube*; remove";
            assert!(error.message.contains(wanted), "{error}");
            let error = explain(failed(text), &[], &wants());
            assert!(error.message.contains("Look for exclude, excludepkgs"), "{error}");
        }
    }

    #[test]
    fn dependency_problems_need_an_operator_and_a_mirror_does_not() {
        for text in ["nothing provides x", "GPG check FAILED", "package is not signed"] {
            assert!(is_unsolvable(&failed(text)));
            let error = explain(failed(text), &[], &wants());
            assert_eq!(error.kind, FailureKind::NeedsPerson, "{text}");
        }
        let away = "Curl error (7): Couldn't connect to server";
        assert!(!is_unsolvable(&failed(away)));
        assert_eq!(explain(failed(away), &[], &wants()).kind, FailureKind::Retriable);
        let missing = "Error: Unable to find a match: kubeadm-1.35.0-*";
        assert!(is_unsolvable(&failed(missing)));
        assert_eq!(explain(failed(missing), &[], &wants()).kind, FailureKind::Retriable);
    }
}
