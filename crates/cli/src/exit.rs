//! Exit codes, signals, and errors that carry their own exit code.

use std::{
    fmt,
    future::Future,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;

/// Base of the exit code for a signal, as in shells: 128 plus the signal number.
const BY_SIGNAL: u8 = 128;

/// An error with its own exit code.
#[derive(Debug)]
struct Coded {
    code: u8,
    message: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

/// Creates an error with its own exit code; the command's `--help` documents the code.
pub(crate) fn error(code: u8, message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Coded { code, message: message.into() })
}

/// Returns the exit code of an error: 1 unless it has its own.
pub(crate) fn code_of(error: &anyhow::Error) -> ExitCode {
    error.downcast_ref::<Coded>().map_or(ExitCode::FAILURE, |coded| ExitCode::from(coded.code))
}

/// Reports whether the reader of the output closed the pipe, as `head` does.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|io| io.kind() == io::ErrorKind::BrokenPipe)
}

/// Runs a command in real time until it ends, or until Ctrl-C or SIGTERM (exit 130 and 143).
pub(crate) fn run(
    command: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    block_on(async {
        match unless_interrupted(command).await {
            Ok(code) => code,
            Err(number) => {
                // Keep the drawn bars; the shell prompt appears below them.
                if io::stderr().is_terminal() {
                    let _ = writeln!(io::stderr().lock());
                }
                Ok(by_signal(number))
            }
        }
    })
}

/// Runs a command in real time until it ends. It handles signals itself.
pub(crate) fn block_on(
    command: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let code = runtime.block_on(command);
    // A credential plugin or a name lookup may still be running; do not wait for it.
    runtime.shutdown_background();
    code
}

/// Waits for the future; returns the number of the signal if SIGINT or SIGTERM comes first.
pub(crate) async fn unless_interrupted<T>(future: impl Future<Output = T>) -> Result<T, u8> {
    tokio::select! {
        biased;
        number = interrupted() => Err(number),
        value = future => Ok(value),
    }
}

/// Returns the exit code of a process that this signal ended.
pub(crate) fn by_signal(number: u8) -> ExitCode {
    ExitCode::from(BY_SIGNAL + number)
}

/// Creates the error of a command that this signal interrupted.
pub(crate) fn interrupted_by(number: u8, message: impl Into<String>) -> anyhow::Error {
    error(BY_SIGNAL + number, message)
}

/// Waits for SIGINT or SIGTERM and returns its number.
pub(crate) async fn interrupted() -> u8 {
    use tokio::signal::unix::{SignalKind, signal};
    let wait = async |kind| match signal(kind) {
        Ok(mut stream) => {
            stream.recv().await;
        }
        // Without a handler, the signal terminates the process.
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        biased;
        () = wait(SignalKind::interrupt()) => 2,
        () = wait(SignalKind::terminate()) => 15,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_survives_context() {
        let refused = error(4, "no").context("while upgrading");
        assert_eq!(code_of(&refused), ExitCode::from(4));
        assert_eq!(code_of(&anyhow::anyhow!("x")), ExitCode::FAILURE);
    }
}
