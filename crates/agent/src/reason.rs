//! Why a step failed, and what may end that: another try, another plan, or a person.
//!
//! Programs say it in words, so words are looked for: the first rule that finds one of its words in
//! the end of the output names the reason. What no rule knows is tried again.

use jiff::SignedDuration;
use refit_kinds::refit::{FailureKind, StepError};

use crate::{
    engine::InvalidStep,
    host::{Job, work::failure_of},
    state::StepOutcome,
};

/// A failed try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// What may end it.
    pub kind: FailureKind,
    /// CamelCase reason.
    pub reason: &'static str,
    /// What went wrong, and what to do.
    pub message: String,
}

/// Words of a program, what they mean, and what a person does about it.
struct Rule {
    words: &'static [&'static str],
    kind: FailureKind,
    reason: &'static str,
    way_out: &'static str,
}

const fn rule(
    reason: &'static str,
    kind: FailureKind,
    words: &'static [&'static str],
    way_out: &'static str,
) -> Rule {
    Rule { words, kind, reason, way_out }
}

const RETRIABLE: FailureKind = FailureKind::Retriable;
const FINAL: FailureKind = FailureKind::Final;
const PERSON: FailureKind = FailureKind::NeedsPerson;

/// From the plainest words to those that also stand in the output of other failures.
const RULES: [Rule; 15] = [
    rule(
        "DiskFull",
        PERSON,
        &["No space left on device", "Disk quota exceeded", "You don't have enough free space"],
        "free some room on the host",
    ),
    rule(
        "DiskBroken",
        PERSON,
        &["Read-only file system", "Input/output error", "Structure needs cleaning"],
        "look at the host's disk",
    ),
    rule(
        "PackagesLocked",
        RETRIABLE,
        &["Could not get lock", "is another process using it", "lock-frontend", "transaction lock"],
        "",
    ),
    rule(
        "PackagesInterrupted",
        RETRIABLE,
        &["dpkg was interrupted", "rpmdb: damaged header", "There are unfinished transactions"],
        "",
    ),
    rule(
        "SignatureInvalid",
        PERSON,
        &["NO_PUBKEY", "couldn't be verified", "is not signed", "GPG check FAILED", "BADSIG"],
        "give the host the key that signs its packages, or take the wrong ones away",
    ),
    rule(
        "PackageMissing",
        PERSON,
        &[
            "Unable to locate package",
            "has no installation candidate",
            "' was not found",
            "No match for argument",
            "Unable to find a match",
        ],
        "put the packages of this version where the host looks for them",
    ),
    // A mirror that is changed at this moment, lists that are older than it, or one source of several:
    // the next try knows more. One that lasts is told by its output.
    rule("PackageMissing", RETRIABLE, &["404  Not Found"], ""),
    rule(
        "PackageConflict",
        PERSON,
        &["unmet dependencies", "held broken packages", "nothing provides", "conflicting requests"],
        "make the packages fit each other on the host",
    ),
    rule(
        "VersionRefused",
        FINAL,
        &[
            "Specified version to upgrade to",
            "[upgrade/version] FATAL",
            "can only upgrade one minor",
        ],
        "ask for a version that kubeadm can go to from here",
    ),
    rule(
        "CoreDnsRefused",
        PERSON,
        &["CoreDNSUnsupportedPlugins", "CoreDNSMigration"],
        "mend the Corefile, or let this preflight error be ignored",
    ),
    rule(
        "CertificateExpired",
        PERSON,
        &["certificate has expired", "certificate is not yet valid"],
        "renew the certificate, and see that the host's clock is right",
    ),
    rule(
        "StaticPodNotReplaced",
        RETRIABLE,
        &["did not change after", "static Pod hash for component"],
        "",
    ),
    rule("PreflightRefused", RETRIABLE, &["[preflight] Some fatal errors occurred", "[ERROR "], ""),
    rule(
        "Unreachable",
        RETRIABLE,
        &[
            "Could not resolve",
            "Temporary failure",
            "Failed to fetch",
            "Hash Sum mismatch",
            "Cannot download",
            "onnection timed out",
            "onnection refused",
            "i/o timeout",
            "TLS handshake timeout",
            "no route to host",
        ],
        "",
    ),
    rule("OutOfMemory", RETRIABLE, &["Out of memory", "oom-kill", "Cannot allocate memory"], ""),
];

impl Failure {
    /// A failure with its reason.
    pub(crate) fn new(kind: FailureKind, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, reason, message: message.into() }
    }

    /// A command that said it went well, and the host shows that it did not.
    pub(crate) fn not_verified(what: &str) -> Self {
        Self::new(
            FailureKind::Retriable,
            "NotVerified",
            format!("the command ended well, but {what}"),
        )
    }

    /// A step that cannot be turned into a command.
    pub(crate) fn invalid(why: &InvalidStep) -> Self {
        let (kind, reason) = match why {
            InvalidStep::Action { error: StepError::Member { .. }, .. } => {
                (FailureKind::NeedsPerson, "StepUnknown")
            }
            InvalidStep::Action {
                error: StepError::Arguments { .. } | StepError::NotOne(_) | StepError::Empty,
                ..
            }
            | InvalidStep::Missing { .. } => (FailureKind::Final, "InvalidStep"),
        };
        Self::new(kind, reason, why.to_string())
    }

    /// A command that ended with another exit code than 0.
    pub(crate) fn of_exit(job: &Job, code: i32, tail: &str, took: SignedDuration) -> Self {
        let name = job.command.name();
        let said = format!("{name} ended with exit code {code}; its output ends: {tail}");
        // A worker of ours knows more than the words of the programs that it ran.
        let told = Some(failure_of(code)).filter(|kind| *kind != RETRIABLE);
        if let Some(rule) = RULES.iter().find(|rule| rule.matches(tail)) {
            let kind = told.unwrap_or(rule.kind);
            let message = match rule.way_out {
                "" => said,
                way_out => format!("{said}; {way_out}"),
            };
            return Self::new(kind, rule.reason, message);
        }
        if let Some(kind) = told {
            return Self::new(kind, "CommandFailed", said);
        }
        // The clock may have jumped: this names the reason and decides nothing.
        if took >= SignedDuration::from_secs(i64::from(job.timeout_seconds)) {
            return Self::new(RETRIABLE, "TimedOut", said);
        }
        Self::new(RETRIABLE, "CommandFailed", said)
    }

    /// How the journal calls it: what another try cannot end is not tried again.
    pub(crate) fn outcome(&self) -> StepOutcome {
        match self.kind {
            FailureKind::Retriable => StepOutcome::Failed,
            FailureKind::Final | FailureKind::NeedsPerson => StepOutcome::FailedForGood,
        }
    }
}

impl Rule {
    fn matches(&self, tail: &str) -> bool {
        self.words.iter().any(|words| tail.contains(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refit_kinds::refit::HostStep;

    fn failed(tail: &str, seconds: i64) -> Failure {
        let job = Job::new("p", "u", "snapshot", HostStep::Snapshot {});
        Failure::of_exit(&job, 100, tail, SignedDuration::from_secs(seconds))
    }

    #[test]
    fn programs_say_why_in_words() {
        for (tail, reason, kind) in [
            ("cp: write error: No space left on device", "DiskFull", PERSON),
            ("touch: /var: Read-only file system", "DiskBroken", PERSON),
            (
                "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812",
                "PackagesLocked",
                RETRIABLE,
            ),
            (
                "E: dpkg was interrupted, you must manually run 'dpkg --configure -a'",
                "PackagesInterrupted",
                RETRIABLE,
            ),
            ("E: Version '1.35.0-*' for 'kubeadm' was not found", "PackageMissing", PERSON),
            ("The following signatures couldn't be verified", "SignatureInvalid", PERSON),
            (" kubeadm : Depends: cri-tools; unmet dependencies.", "PackageConflict", PERSON),
            ("Specified version to upgrade to \"v1.36.0\" is too high", "VersionRefused", FINAL),
            ("[ERROR CoreDNSUnsupportedPlugins]: x", "CoreDnsRefused", PERSON),
            ("x509: certificate has expired or is not yet valid", "CertificateExpired", PERSON),
            (
                "static Pod hash for component etcd on Node n did not change after 5m0s",
                "StaticPodNotReplaced",
                RETRIABLE,
            ),
            ("[ERROR CreateJob]: Job did not complete", "PreflightRefused", RETRIABLE),
            ("Could not resolve 'pkgs.k8s.io'", "Unreachable", RETRIABLE),
            ("segmentation fault", "CommandFailed", RETRIABLE),
        ] {
            let failure = failed(tail, 1);
            assert_eq!((failure.reason, failure.kind), (reason, kind), "{tail}");
            assert!(failure.message.contains(tail));
        }
    }

    #[test]
    fn a_package_that_the_mirror_does_not_have_is_not_an_unreachable_mirror() {
        let tail = "E: Failed to fetch http://m/kubeadm.deb  404  Not Found [IP: 10.0.0.1 80]";
        let failure = failed(tail, 1);
        assert_eq!((failure.reason, failure.kind), ("PackageMissing", RETRIABLE));
        // Words of others about what they do not find are no missing package.
        let other = "error: configmap \"kubeadm-config\" was not found";
        assert_eq!(failed(other, 1).reason, "CommandFailed");
    }

    #[test]
    fn a_command_that_took_all_its_time_has_timed_out() {
        assert_eq!(failed("", 899).reason, "CommandFailed");
        assert_eq!(failed("", 900).reason, "TimedOut");
        assert_eq!(failed("", -5).reason, "CommandFailed");
    }

    #[test]
    fn only_what_another_try_may_end_is_tried_again() {
        assert_eq!(failed("", 1).outcome(), StepOutcome::Failed);
        assert_eq!(failed("No space left on device", 1).outcome(), StepOutcome::FailedForGood);
        let refused = Failure::new(FINAL, "VersionRefused", "");
        assert_eq!(refused.outcome(), StepOutcome::FailedForGood);
    }

    #[test]
    fn whoever_needs_a_person_says_what_the_person_does() {
        for rule in &RULES {
            assert_eq!(rule.kind == RETRIABLE, rule.way_out.is_empty(), "{}", rule.reason);
        }
    }
}
