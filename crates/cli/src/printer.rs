//! Decides what the program writes to the terminal.

use std::io::{self, IsTerminal as _, Write as _};

use indicatif::ProgressDrawTarget;

use crate::global::GlobalArgs;

/// Output format of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Text for people.
    #[default]
    Text,
    /// One JSON document on stdout for programs; everything else goes to stderr.
    Json,
}

/// Decides where results and progress go, and how they look.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about streams and flags")]
pub(crate) struct Printer {
    format: Format,
    stdout_is_terminal: bool,
    stderr_is_terminal: bool,
    colour: bool,
    quiet: bool,
}

impl Printer {
    /// Inspects the standard streams, the flags, `NO_COLOR` and `TERM`.
    pub(crate) fn new(format: Format, global: &GlobalArgs) -> Self {
        let stdout_is_terminal = io::stdout().is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            format,
            stdout_is_terminal,
            stderr_is_terminal: io::stderr().is_terminal() && !dumb,
            colour: stdout_is_terminal && !no_colour && !dumb && !global.no_color,
            quiet: global.quiet,
        }
    }

    /// Reports whether the result is JSON.
    pub(crate) fn is_json(self) -> bool {
        self.format == Format::Json
    }

    /// Reports whether progress is shown as bars that redraw themselves.
    pub(crate) fn shows_bars(self) -> bool {
        !self.quiet && self.stderr_is_terminal && (self.is_json() || self.stdout_is_terminal)
    }

    /// Returns the width of the terminal that shows the bars.
    pub(crate) fn columns(self) -> Option<u16> {
        let (_, columns) = console::Term::stderr().size_checked()?;
        self.shows_bars().then_some(columns)
    }

    /// Returns the draw target of the bars.
    pub(crate) fn draw_target(self) -> ProgressDrawTarget {
        if self.shows_bars() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
    }

    /// Writes a line that is part of the result.
    #[expect(clippy::unused_self, reason = "the printer decides where results go")]
    pub(crate) fn result(self, line: &str) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{line}")
    }

    /// Writes a progress line: to stdout for text, to stderr if stdout is JSON, nowhere with
    /// `--quiet`.
    pub(crate) fn note(self, line: &str) -> io::Result<()> {
        if self.quiet {
            Ok(())
        } else if self.is_json() {
            writeln!(io::stderr().lock(), "{line}")
        } else {
            writeln!(io::stdout().lock(), "{line}")
        }
    }

    /// Makes text bold if colours are enabled.
    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Makes text green if colours are enabled.
    pub(crate) fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Makes text red if colours are enabled.
    pub(crate) fn bad(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    /// Makes text yellow if colours are enabled.
    pub(crate) fn notable(self, text: &str) -> String {
        self.paint("33", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Formats a duration for display: `42s`, `3m05s`, `1h02m`, `3d04h`.
pub(crate) fn duration(seconds: i64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest:02}s"),
        (..48, _) => format!("{hours}h{minutes:02}m"),
        _ => format!("{}d{:02}h", hours / 24, hours % 24),
    }
}

/// Aligns rows in columns; the first row is the heading. Widths are counted without colour codes.
pub(crate) fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| visible(cell)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| {
            format!("{cell}{}", " ".repeat(width.saturating_sub(visible(cell))))
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Returns the width of a text on the terminal.
fn visible(text: &str) -> usize {
    let mut count = 0;
    let mut in_escape = false;
    for c in text.chars() {
        match c {
            '\x1b' => in_escape = true,
            'm' if in_escape => in_escape = false,
            _ if in_escape => {}
            _ => count += 1,
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_say_them() {
        assert_eq!(duration(42), "42s");
        assert_eq!(duration(185), "3m05s");
        assert_eq!(duration(3725), "1h02m");
        assert_eq!(duration(47 * 3600), "47h00m");
        assert_eq!(duration(76 * 3600), "3d04h");
    }

    #[test]
    fn columns_line_up_whatever_their_colour() {
        let rows =
            [["a", "b"], ["\x1b[32mlong\x1b[0m", "c"]].map(|row| row.map(str::to_owned).to_vec());
        let lines = columns(&rows);
        assert_eq!(lines[0], "a     b");
        assert_eq!(visible(&lines[1]), 7);
    }
}
