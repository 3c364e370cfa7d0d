//! Failures of work on a host, and what can resolve them.

use std::io::ErrorKind;

use refit_kinds::refit::FailureKind;

use super::{HostError, ProgramError, files::UnsafeFile};

/// Exit code of a unit that may succeed on a retry. Unknown exit codes are treated the same.
pub(crate) const EXIT_RETRIABLE: i32 = 1;
/// Exit code of a unit that cannot carry out its plan (`EX_DATAERR`).
pub(crate) const EXIT_FINAL: i32 = 65;
/// Exit code of a unit whose failure requires manual intervention (`EX_CONFIG`).
pub(crate) const EXIT_NEEDS_PERSON: i32 = 78;

/// Line in the output of a unit after a failure that does not end its work, or a success with warnings. It has no word
/// that the mask of secrets would replace.
pub(crate) const GOES_ON: &str = "-- the work goes on: only what follows decides --";

/// The part of a unit's output that decides why it failed: the text after the last failure that did
/// not end its work, or all of it.
pub(crate) fn deciding(output: &str) -> &str {
    output.rsplit_once(GOES_ON).map_or(output, |(_, after)| after)
}

/// Why work on a host failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct WorkError {
    /// Whether a retry, a new plan or an operator can resolve it.
    pub kind: FailureKind,
    /// A whole sentence, with the remedy if one is known.
    pub message: String,
}

impl WorkError {
    /// A retry may succeed.
    pub fn retriable(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Retriable, message)
    }

    /// The plan cannot be carried out as it is.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Final, message)
    }

    /// Manual intervention is required.
    pub fn needs_person(message: impl Into<String>) -> Self {
        Self::new(FailureKind::NeedsPerson, message)
    }

    fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A failed file operation.
    pub fn file(path: &std::path::Path, error: &std::io::Error) -> Self {
        let message = format!("{}: {error}", path.display());
        let is_unsafe =
            error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<UnsafeFile>);
        if is_unsafe
            || matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::ReadOnlyFilesystem)
        {
            Self::needs_person(message)
        } else {
            Self::retriable(message)
        }
    }

    /// The exit code that reports this failure to the engine.
    pub fn exit_code(&self) -> i32 {
        match self.kind {
            FailureKind::Retriable => EXIT_RETRIABLE,
            FailureKind::Final => EXIT_FINAL,
            FailureKind::NeedsPerson => EXIT_NEEDS_PERSON,
        }
    }
}

/// The kind of failure of a unit that ended with `code`.
pub(crate) fn failure_of(code: i32) -> FailureKind {
    match code {
        EXIT_FINAL => FailureKind::Final,
        EXIT_NEEDS_PERSON => FailureKind::NeedsPerson,
        _ => FailureKind::Retriable,
    }
}

impl From<ProgramError> for WorkError {
    fn from(error: ProgramError) -> Self {
        let full = error.output_tail().contains("No space left on device");
        let message = error.to_string();
        if full {
            Self::needs_person(format!("{message}; free some space on the host"))
        } else {
            Self::retriable(message)
        }
    }
}

impl From<HostError> for WorkError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Program(error) => error.into(),
            HostError::Work(error) => error,
            other @ (HostError::File { .. }
            | HostError::Answer { .. }
            | HostError::Unread { .. }) => Self::retriable(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::program::tail;

    #[test]
    fn only_the_output_after_the_last_overcome_failure_decides() {
        for (output, expected) in [
            (String::new(), ""),
            ("NO_PUBKEY".to_owned(), "NO_PUBKEY"),
            (format!("NO_PUBKEY\n{GOES_ON}\nerror: x"), "\nerror: x"),
            (format!("a\n{GOES_ON}\nb\n{GOES_ON}\nc"), "\nc"),
            (format!("NO_PUBKEY\n{GOES_ON}"), ""),
        ] {
            assert_eq!(deciding(&output), expected, "{output}");
        }
        // The line is cut off, so all of the output follows it.
        let cut = format!("{}\nerror: x", &GOES_ON[3..]);
        assert_eq!(deciding(&cut), cut);
    }

    #[test]
    fn the_line_after_an_overcome_failure_is_not_masked() {
        for before in ["token", "password:", "secret=", "api-key: \""] {
            let output = tail(&format!("{before}\n{GOES_ON}\nerror: x"));
            assert_eq!(deciding(&output), "\nerror: x", "{output}");
        }
    }

    #[test]
    fn exit_codes_map_to_failure_kinds() {
        for error in
            [WorkError::retriable("x"), WorkError::permanent("x"), WorkError::needs_person("x")]
        {
            assert_eq!(failure_of(error.exit_code()), error.kind);
        }
        assert_eq!(failure_of(100), FailureKind::Retriable);
    }

    #[test]
    fn a_full_disk_needs_an_operator() {
        let full = ProgramError::Failed {
            command: "apt-get".to_owned(),
            code: Some(100),
            tail: "write failed: No space left on device".to_owned(),
        };
        assert_eq!(WorkError::from(full).kind, FailureKind::NeedsPerson);
    }
}
