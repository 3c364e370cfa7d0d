//! Why a step failed, and what can resolve it: a retry, another plan, or an operator.
//!
//! Programs explain failures in text, so the rules search for phrases: the first rule with a phrase
//! in the end of the output gives the reason. A failure that no rule matches is retried. A failure
//! after which the work went on, such as that of the first of two sources, does not count.

use jiff::SignedDuration;
use refit_kinds::refit::{FailureKind, StepError};

use crate::{
    engine::InvalidStep,
    host::{
        Command, Job,
        work::{deciding, failure_of},
    },
    judge::INTERRUPTED,
    policy::PolicyRefusal,
    state::StepOutcome,
};

/// Reason of an attempt that used its whole timeout; of a download, whatever its output is.
pub(crate) const TIMED_OUT: &str = "TimedOut";
/// Reason of a kubeadm that found the cluster not ready: after a power cut its control plane needs minutes.
pub(crate) const CLUSTER_NOT_READY: &str = "ClusterNotReady";
/// Whether the cause of a failure passes by itself: the host is up again, the cluster becomes ready.
pub(crate) fn passes(reason: &str) -> bool {
    [INTERRUPTED, CLUSTER_NOT_READY].contains(&reason)
}
/// Reason of a failure because no source has a package.
const PACKAGE_MISSING: &str = "PackageMissing";

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// What kind of failure it is.
    pub kind: FailureKind,
    /// Reason in CamelCase.
    pub reason: &'static str,
    /// What went wrong, and the remedy.
    pub message: String,
}

/// Phrases of a program, the failure that they mean, and the operator's remedy.
struct Rule {
    words: &'static [&'static str],
    kind: FailureKind,
    reason: &'static str,
    remedy: &'static str,
}

const fn rule(
    reason: &'static str,
    kind: FailureKind,
    words: &'static [&'static str],
    remedy: &'static str,
) -> Rule {
    Rule { words, kind, reason, remedy }
}

const RETRIABLE: FailureKind = FailureKind::Retriable;
const FINAL: FailureKind = FailureKind::Final;
const PERSON: FailureKind = FailureKind::NeedsPerson;

/// Ordered from unambiguous phrases to those that also occur in the output of other failures.
const RULES: [Rule; 21] = [
    rule(
        "DiskFull",
        PERSON,
        &["No space left on device", "Disk quota exceeded", "You don't have enough free space"],
        "free some space on the host",
    ),
    rule(
        "DiskBroken",
        PERSON,
        &["Read-only file system", "Input/output error", "Structure needs cleaning"],
        "check the host's disk",
    ),
    rule(
        "AgentPathForbidden",
        PERSON,
        &["belongs to the agent of this host"],
        "remove it from the plan, and write it with the host's own configuration management",
    ),
    rule(
        "StateNotLasting",
        PERSON,
        &["of the agent is on the A/B volume"],
        "move the state directory while no update is in progress",
    ),
    rule(
        "PackagesLocked",
        RETRIABLE,
        &["Could not get lock", "is another process using it", "lock-frontend", "transaction lock"],
        "",
    ),
    rule("RebootInhibited", RETRIABLE, &["inhibits the reboot"], ""),
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
        "install the signing key of the packages on the host, or correct the package sources",
    ),
    rule(
        PACKAGE_MISSING,
        PERSON,
        &[
            "Unable to locate package",
            "has no installation candidate",
            "' was not found",
            "No match for argument",
            "Unable to find a match",
        ],
        "add the packages of this version to a repository of the host",
    ),
    // The mirror may be changing at this moment, the package lists may be older than the mirror, or
    // only one of several sources may fail: a retry can succeed. If the error persists, the output
    // shows it.
    rule(PACKAGE_MISSING, RETRIABLE, &["404  Not Found"], ""),
    rule(
        "PackageConflict",
        PERSON,
        &["unmet dependencies", "held broken packages", "nothing provides", "conflicting requests"],
        "resolve the package conflict on the host",
    ),
    rule(
        "VersionRefused",
        FINAL,
        &[
            "Specified version to upgrade to",
            "[upgrade/version] FATAL",
            "can only upgrade one minor",
        ],
        "choose a version that kubeadm can upgrade to from here",
    ),
    rule(
        "CoreDnsRefused",
        PERSON,
        // Ignored, they are in the output of each failure, as warnings.
        &["[ERROR CoreDNSUnsupportedPlugins", "[ERROR CoreDNSMigration"],
        "fix the Corefile, or ignore this preflight error",
    ),
    rule(
        "CertificateExpired",
        PERSON,
        &["certificate has expired", "certificate is not yet valid"],
        "renew the certificate, and check the host's clock",
    ),
    rule(
        "StaticPodNotReplaced",
        RETRIABLE,
        &["did not change after", "static Pod hash for component"],
        "",
    ),
    rule(
        "EtcdNotReplaced",
        PERSON,
        &["etcd does not run with the image"],
        "correct the image, or what its log reports",
    ),
    rule(
        CLUSTER_NOT_READY,
        RETRIABLE,
        &[
            "[ERROR ControlPlaneNodesReady",
            "[ERROR CreateJob",
            "failed to get config map",
            "failed to get corresponding node",
        ],
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
    // After "Unreachable": the package lists are old then.
    rule(PACKAGE_MISSING, RETRIABLE, &["the repositories of the host have no package"], ""),
];

impl Failure {
    /// A failure with its reason.
    pub(crate) fn new(kind: FailureKind, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, reason, message: message.into() }
    }

    /// A command that exited with 0 although the host shows that it failed.
    pub(crate) fn not_verified(what: &str) -> Self {
        Self::new(
            FailureKind::Retriable,
            "NotVerified",
            format!("the command succeeded, but {what}"),
        )
    }

    /// A step that cannot be run as a command.
    pub(crate) fn invalid(why: &InvalidStep) -> Self {
        let (kind, reason) = match why {
            InvalidStep::Action { error: StepError::Member { .. }, .. } => {
                (FailureKind::NeedsPerson, "StepUnknown")
            }
            InvalidStep::Refused(PolicyRefusal::Unusable { .. }) => {
                (FailureKind::NeedsPerson, "PolicyUnusable")
            }
            InvalidStep::Refused(PolicyRefusal::Forbidden { .. }) => {
                (FailureKind::NeedsPerson, "PolicyForbids")
            }
            InvalidStep::Refused(PolicyRefusal::AgentPath { .. }) => {
                (FailureKind::NeedsPerson, "AgentPathForbidden")
            }
            InvalidStep::Refused(PolicyRefusal::ContentNotSigned { .. }) => {
                (FailureKind::NeedsPerson, "ContentNotSigned")
            }
            InvalidStep::Action {
                error: StepError::Arguments { .. } | StepError::NotOne(_) | StepError::Empty,
                ..
            }
            | InvalidStep::Missing { .. } => (FailureKind::Final, "InvalidStep"),
        };
        Self::new(kind, reason, why.to_string())
    }

    /// A command that ended with a nonzero exit code.
    pub(crate) fn of_exit(job: &Job, code: i32, tail: &str, took: SignedDuration) -> Self {
        let name = job.command.name();
        let summary = format!("{name} failed with exit code {code}; last output: {tail}");
        // The exit code of a Refit worker is more precise than the output of the programs that it
        // ran.
        let worker_kind = Some(failure_of(code)).filter(|kind| *kind != RETRIABLE);
        let output = deciding(tail);
        let rule = RULES.iter().find(|rule| rule.matches(output));
        let kind = rule.map(|rule| rule.kind_for(&job.command));
        let kind = worker_kind.or(kind).unwrap_or(RETRIABLE);
        // The clock may have jumped: the duration does not decide whether there is a retry, only how
        // many.
        let used_timeout = took >= SignedDuration::from_secs(i64::from(job.timeout_seconds));
        let timed_out =
            kind == RETRIABLE && used_timeout && (rule.is_none() || is_download(&job.command));
        let (reason, message) = match rule {
            Some(rule) if timed_out => {
                let seconds = job.timeout_seconds;
                (TIMED_OUT, format!("{summary}; {} until its timeout of {seconds} s", rule.reason))
            }
            Some(Rule { reason, remedy: "", .. }) => (*reason, summary),
            Some(Rule { reason, remedy, .. }) => (*reason, format!("{summary}; {remedy}")),
            None if timed_out => (TIMED_OUT, summary),
            None => ("CommandFailed", summary),
        };
        Self::new(kind, reason, message)
    }

    /// How the journal records it: a failure that a retry cannot resolve is not retried.
    pub(crate) fn outcome(&self) -> StepOutcome {
        match self.kind {
            FailureKind::Retriable => StepOutcome::Failed,
            FailureKind::Final | FailureKind::NeedsPerson => StepOutcome::FailedForGood,
        }
    }
}

/// Whether a command is a download. Each of its attempts may take an hour.
fn is_download(command: &Command) -> bool {
    match command {
        Command::Step(step) => step.rules().is_download(),
        Command::Undo(_) => false,
    }
}

impl Rule {
    /// The kind of failure of a command. A mirror may get the packages of a new version later than others,
    /// and a download has time for that.
    fn kind_for(&self, command: &Command) -> FailureKind {
        let may_come = self.reason == PACKAGE_MISSING && is_download(command);
        if may_come { RETRIABLE } else { self.kind }
    }

    fn matches(&self, tail: &str) -> bool {
        self.words.iter().any(|words| tail.contains(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::work::{EXIT_NEEDS_PERSON, GOES_ON};
    use refit_kinds::refit::{HostStep, ImageArgs, PackageArgs};

    fn failed(tail: &str, seconds: i64) -> Failure {
        let job = Job::new("p", "u", "snapshot", HostStep::Snapshot {});
        Failure::of_exit(&job, 100, tail, SignedDuration::from_secs(seconds))
    }

    #[test]
    fn reasons_are_found_in_the_output_of_programs() {
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
            (
                "[WARNING CoreDNSMigration]: x\n[ERROR ControlPlaneNodesReady]: y",
                "ClusterNotReady",
                RETRIABLE,
            ),
            ("[upgrade] FATAL: failed to get config map: EOF", "ClusterNotReady", RETRIABLE),
            ("x509: certificate has expired or is not yet valid", "CertificateExpired", PERSON),
            (
                "static Pod hash for component etcd on Node n did not change after 5m0s",
                "StaticPodNotReplaced",
                RETRIABLE,
            ),
            (
                "error: etcd does not run with the image r.example/etcd:3.6.5-0 300 s after",
                "EtcdNotReplaced",
                PERSON,
            ),
            ("[ERROR CreateJob]: Job did not complete", "ClusterNotReady", RETRIABLE),
            ("[ERROR Swap]: running with swap on is not supported", "PreflightRefused", RETRIABLE),
            ("Could not resolve 'pkgs.k8s.io'", "Unreachable", RETRIABLE),
            (
                "error: /etc/refit/x belongs to the agent of this host, and no plan may write it",
                "AgentPathForbidden",
                PERSON,
            ),
            ("process 812 (APT) inhibits the reboot: it installs", "RebootInhibited", RETRIABLE),
            (
                "the state directory /x of the agent is on the A/B volume /, which an update",
                "StateNotLasting",
                PERSON,
            ),
            ("segmentation fault", "CommandFailed", RETRIABLE),
        ] {
            let failure = failed(tail, 1);
            assert_eq!((failure.reason, failure.kind), (reason, kind), "{tail}");
            assert!(failure.message.contains(tail));
        }
    }

    #[test]
    fn a_404_of_a_mirror_means_a_missing_package() {
        let tail = "E: Failed to fetch http://m/kubeadm.deb  404  Not Found [IP: 10.0.0.1 80]";
        let failure = failed(tail, 1);
        assert_eq!((failure.reason, failure.kind), ("PackageMissing", RETRIABLE));
        // "not found" in the output of another program does not mean a missing package.
        let other = "error: configmap \"kubeadm-config\" was not found";
        assert_eq!(failed(other, 1).reason, "CommandFailed");
    }

    #[test]
    fn a_download_waits_for_a_mirror_that_does_not_have_the_package_yet() {
        let (version, packages) = ("v1.35.0".parse().unwrap(), PackageArgs::default());
        let stage =
            HostStep::Stage { version, packages: packages.clone(), images: None, bundle: None };
        let version = "v1.35.0".parse().unwrap();
        let install = HostStep::KubeadmInstall { version, packages };
        for (tail, kind) in [
            ("Error: Unable to find a match: kubeadm-1.35.0-*", PERSON),
            ("No match for argument: kubeadm-1.35.0-*", PERSON),
            ("E: Version '1.35.0-*' for 'kubeadm' was not found", PERSON),
            ("E: Unable to locate package kubeadm", PERSON),
            ("error: the repositories of the host have no package kubeadm at v1.35.0", RETRIABLE),
        ] {
            for (step, kind) in [(&stage, RETRIABLE), (&install, kind)] {
                let job = Job::new("p", "u", "s", step.clone());
                let failure = Failure::of_exit(&job, 1, tail, SignedDuration::from_secs(9));
                assert_eq!((failure.reason, failure.kind), ("PackageMissing", kind), "{tail}");
            }
        }
        // The packages are there, so a retry does not help.
        let job = Job::new("p", "u", "s", stage);
        let conflict = Failure::of_exit(&job, 1, "nothing provides x", SignedDuration::ZERO);
        assert_eq!(conflict.kind, PERSON);
    }

    #[test]
    fn a_command_that_used_its_whole_timeout_timed_out() {
        assert_eq!(failed("", 899).reason, "CommandFailed");
        assert_eq!(failed("", 900).reason, "TimedOut");
        assert_eq!(failed("", -5).reason, "CommandFailed");
    }

    #[test]
    fn only_what_follows_an_overcome_failure_decides_the_reason() {
        let first = "Error: nothing provides x needed by kubeadm";
        for (tail, reason, kind) in [
            (first.to_owned(), "PackageConflict", PERSON),
            (format!("{first}\n{GOES_ON}\nCould not resolve host"), "Unreachable", RETRIABLE),
            (format!("{first}\n{GOES_ON}\nerror: x"), "CommandFailed", RETRIABLE),
            (format!("Could not resolve host\n{GOES_ON}\n{first}"), "PackageConflict", PERSON),
        ] {
            let failure = failed(&tail, 1);
            assert_eq!((failure.reason, failure.kind), (reason, kind), "{tail}");
            assert!(failure.message.contains(first), "the message has all of the output");
        }
    }

    #[test]
    fn a_download_that_used_its_whole_timeout_timed_out_whatever_its_output() {
        let images = ImageArgs::default();
        let download = HostStep::ImagePreload { version: None, images, bundle: None };
        let away = "Connection timed out";
        for (step, code, tail, seconds, reason, kind) in [
            (&download, 15, away, 3600, TIMED_OUT, RETRIABLE),
            (&download, 15, away, 3599, "Unreachable", RETRIABLE),
            (&download, 15, "", 3600, TIMED_OUT, RETRIABLE),
            (&download, 15, "No space left on device", 3600, "DiskFull", PERSON),
            (&download, EXIT_NEEDS_PERSON, away, 3600, "Unreachable", PERSON),
            (&download, EXIT_NEEDS_PERSON, "", 3600, "CommandFailed", PERSON),
            (&HostStep::Snapshot {}, 15, away, 3600, "Unreachable", RETRIABLE),
        ] {
            let job = Job::new("p", "u", "s", step.clone());
            let failure = Failure::of_exit(&job, code, tail, SignedDuration::from_secs(seconds));
            assert_eq!((failure.reason, failure.kind), (reason, kind), "{code} {tail} {seconds}");
            assert!(failure.message.contains(tail));
        }
        let job = Job::new("p", "u", "s", download);
        let failure = Failure::of_exit(&job, 15, away, SignedDuration::from_secs(3600));
        let end = "Connection timed out; Unreachable until its timeout of 3600 s";
        assert!(failure.message.ends_with(end), "{}", failure.message);
    }

    #[test]
    fn only_retriable_failures_are_retried() {
        assert_eq!(failed("", 1).outcome(), StepOutcome::Failed);
        assert_eq!(failed("No space left on device", 1).outcome(), StepOutcome::FailedForGood);
        let refused = Failure::new(FINAL, "VersionRefused", "");
        assert_eq!(refused.outcome(), StepOutcome::FailedForGood);
    }

    #[test]
    fn manual_failures_name_a_remedy() {
        for rule in &RULES {
            assert_eq!(rule.kind == RETRIABLE, rule.remedy.is_empty(), "{}", rule.reason);
        }
    }
}
