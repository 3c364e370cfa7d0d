//! Output of the long tasks.

/// Prints a line of the result.
#[expect(clippy::print_stdout, reason = "the result of the task")]
pub(crate) fn result(line: &str) {
    println!("{line}");
}

/// Prints a line about progress.
#[expect(clippy::print_stderr, reason = "progress")]
pub(crate) fn progress(line: &str) {
    eprintln!("{line}");
}
