//! Why work on a host ended badly, and what may end that.

use std::io::ErrorKind;

use refit_kinds::refit::FailureKind;

use super::{HostError, ProgramError};

/// Exit code of a unit whose failure another try may end; so may any code that is not known.
pub(crate) const EXIT_RETRIABLE: i32 = 1;
/// Exit code of a unit that cannot do what the plan says (`EX_DATAERR`).
pub(crate) const EXIT_FINAL: i32 = 65;
/// Exit code of a unit that only a person can help (`EX_CONFIG`).
pub(crate) const EXIT_NEEDS_PERSON: i32 = 78;

/// Why work on a host ended badly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct WorkError {
    /// What may end it.
    pub kind: FailureKind,
    /// A whole sentence, with the way out where one is known.
    pub message: String,
}

impl WorkError {
    /// Another try may help.
    pub fn retriable(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Retriable, message)
    }

    /// The plan cannot be carried out as it is.
    pub fn last(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Final, message)
    }

    /// A person has to do something first.
    pub fn needs_person(message: impl Into<String>) -> Self {
        Self::new(FailureKind::NeedsPerson, message)
    }

    fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A file that could not be used.
    pub fn file(path: &std::path::Path, error: &std::io::Error) -> Self {
        let message = format!("{} could not be used: {error}", path.display());
        if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::ReadOnlyFilesystem) {
            Self::needs_person(message)
        } else {
            Self::retriable(message)
        }
    }

    /// The exit code that tells the engine.
    pub fn exit_code(&self) -> i32 {
        match self.kind {
            FailureKind::Retriable => EXIT_RETRIABLE,
            FailureKind::Final => EXIT_FINAL,
            FailureKind::NeedsPerson => EXIT_NEEDS_PERSON,
        }
    }
}

/// What may end the failure of a unit that ended with `code`.
pub(crate) fn failure_of(code: i32) -> FailureKind {
    match code {
        EXIT_FINAL => FailureKind::Final,
        EXIT_NEEDS_PERSON => FailureKind::NeedsPerson,
        _ => FailureKind::Retriable,
    }
}

impl From<ProgramError> for WorkError {
    fn from(error: ProgramError) -> Self {
        let full = error.said().contains("No space left on device");
        let message = error.to_string();
        if full {
            Self::needs_person(format!("{message}; make room on the host"))
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
            other @ (HostError::File { .. } | HostError::Answer { .. }) => {
                Self::retriable(other.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_tells_what_may_end_a_failure() {
        for error in [WorkError::retriable("x"), WorkError::last("x"), WorkError::needs_person("x")]
        {
            assert_eq!(failure_of(error.exit_code()), error.kind);
        }
        assert_eq!(failure_of(100), FailureKind::Retriable);
    }

    #[test]
    fn a_full_disk_is_for_a_person() {
        let full = ProgramError::Failed {
            command: "apt-get".to_owned(),
            code: Some(100),
            tail: "write failed: No space left on device".to_owned(),
        };
        assert_eq!(WorkError::from(full).kind, FailureKind::NeedsPerson);
    }
}
