//! Shows the progress of each machine: bars on a terminal, lines elsewhere.

use std::{collections::BTreeMap, io};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::Step;
use crate::printer::{Printer, duration};

/// Width of a bar if the terminal is wide enough.
const BAR: usize = 24;
/// Terminals narrower than this get shorter bars.
const NARROW: u16 = 90;
/// Terminals narrower than this get no bars, only percentages.
const TINY: u16 = 60;

/// Shows the progress of machines, and what blocks their groups.
pub(crate) struct Board {
    printer: Printer,
    bars: MultiProgress,
    sum: ProgressBar,
    machines: BTreeMap<String, (ProgressBar, Step)>,
    notes: BTreeMap<String, (ProgressBar, String)>,
    width: usize,
    bar: usize,
    lines: bool,
}

impl Board {
    /// Creates a board for machine names of at most `width` characters.
    pub(crate) fn new(printer: Printer, width: usize) -> Self {
        let target = printer.draw_target();
        let bar = match printer.columns() {
            Some(columns) if columns < TINY => 0,
            Some(columns) if columns < NARROW => BAR / 2,
            _ => BAR,
        };
        let bars = MultiProgress::with_draw_target(target);
        let sum = bars.add(ProgressBar::new(1).with_style(sum_style(bar)));
        sum.set_prefix(format!("{:<width$}", "all machines"));
        Self {
            printer,
            bars,
            sum,
            machines: BTreeMap::new(),
            notes: BTreeMap::new(),
            width,
            bar,
            lines: true,
        }
    }

    /// Disables the lines that replace bars on outputs without bars.
    pub(crate) fn without_lines(mut self) -> Self {
        self.lines = false;
        self
    }

    /// Widens the name column to this many characters.
    pub(crate) fn widen(&mut self, width: usize) {
        if width <= self.width {
            return;
        }
        self.width = width;
        for (name, (bar, _)) in self.machines.iter().map(|(n, b)| (n.as_str(), b)) {
            bar.set_prefix(format!("{name:<width$}"));
        }
        self.sum.set_prefix(format!("{:<width$}", "all machines"));
    }

    /// Shows the step of a machine, `seconds` after the start. An unchanged step shows nothing.
    pub(crate) fn show(&mut self, machine: &str, step: &Step, seconds: i64) -> io::Result<()> {
        let mut news = true;
        let bar = match self.machines.get_mut(machine) {
            Some((_, shown)) if shown == step => return Ok(()),
            Some((bar, shown)) => {
                news = !shown.reads_as(step);
                *shown = step.clone();
                bar.clone()
            }
            None => {
                let bar = ProgressBar::new(100).with_style(style(self.bar));
                let bar = self.bars.insert_before(&self.sum, bar);
                bar.set_prefix(format!("{machine:<width$}", width = self.width));
                self.machines.insert(machine.to_owned(), (bar.clone(), step.clone()));
                bar
            }
        };
        bar.set_position(step.percent);
        let words = step.words();
        bar.set_message(match step.remaining_seconds {
            Some(rest) => format!("{words}, about {} left", duration(i64::from(rest))),
            None => words.clone(),
        });
        if !news {
            return Ok(());
        }
        self.line(
            seconds,
            &format!("{machine:<width$}  {:>3}%  {words}", step.percent, width = self.width),
        )
    }

    /// Reports whether a machine is shown.
    pub(crate) fn has(&self, machine: &str) -> bool {
        self.machines.contains_key(machine)
    }

    /// Removes the bar of a machine.
    pub(crate) fn hide(&mut self, machine: &str) {
        if let Some((bar, _)) = self.machines.remove(machine) {
            self.bars.remove(&bar);
        }
    }

    /// Shows a text about something other than a machine, such as what blocks a group; `None`
    /// removes it. An unchanged text shows nothing.
    pub(crate) fn show_note(
        &mut self,
        about: &str,
        text: Option<&str>,
        seconds: i64,
    ) -> io::Result<()> {
        match (self.notes.get_mut(about), text) {
            (Some((_, shown)), Some(text)) if shown == text => return Ok(()),
            (None, None) => return Ok(()),
            (Some((bar, shown)), Some(text)) => {
                text.clone_into(shown);
                bar.set_message(text.to_owned());
            }
            (Some(_), None) => {
                if let Some((bar, _)) = self.notes.remove(about) {
                    self.bars.remove(&bar);
                }
                return self.line(seconds, &format!("{about}: continuing"));
            }
            (None, Some(text)) => {
                let bar = ProgressBar::new(1).with_style(note_style());
                let bar = self.bars.insert_before(&self.sum, bar);
                bar.set_prefix(format!("{about}:"));
                bar.set_message(text.to_owned());
                self.notes.insert(about.to_owned(), (bar, text.to_owned()));
            }
        }
        self.line(seconds, &format!("{about}: {}", text.unwrap_or_default()))
    }

    /// Reports the machines that no longer exist as gone.
    pub(crate) fn report_gone(
        &mut self,
        is_gone: impl Fn(&str) -> bool,
        seconds: i64,
    ) -> io::Result<()> {
        let step = Step {
            phase: "Gone".to_owned(),
            detail: "replaced by a new machine".to_owned(),
            percent: 100,
            remaining_seconds: None,
        };
        let names: Vec<String> =
            self.machines.keys().filter(|name| is_gone(name)).cloned().collect();
        names.iter().try_for_each(|name| self.show(name, &step, seconds))
    }

    /// Shows the total progress of all machines below the bars.
    pub(crate) fn sum_up(&self, done: usize, machines: usize, message: String) {
        self.sum.set_length(machines as u64);
        self.sum.set_position(done as u64);
        self.sum.set_message(message);
    }

    /// Keeps the bars as drawn and releases the terminal.
    pub(crate) fn finish(&self) -> io::Result<()> {
        for (bar, _) in self.machines.values() {
            bar.abandon();
        }
        for (bar, _) in self.notes.values() {
            bar.abandon();
        }
        self.sum.abandon();
        // The last bar does not end with a newline.
        if self.printer.shows_bars() {
            self.printer.note("")?;
        }
        Ok(())
    }

    /// Writes a line if no bars are shown.
    fn line(&self, seconds: i64, text: &str) -> io::Result<()> {
        if self.printer.shows_bars() || !self.lines {
            return Ok(());
        }
        let line = format!("[{:>7}] {text}", duration(seconds));
        self.printer.note(line.trim_end())
    }
}

fn style(bar: usize) -> ProgressStyle {
    let bar = match bar {
        0 => String::new(),
        columns => format!("{{bar:{columns}.cyan/blue}} "),
    };
    template(&format!("  {{prefix}} {bar}{{pos:>3}}%  {{wide_msg}}"))
}

fn sum_style(bar: usize) -> ProgressStyle {
    let bar = match bar {
        0 => String::new(),
        columns => format!("{{bar:{columns}.green/blue}} "),
    };
    template(&format!("  {{prefix:.bold}} {bar}{{pos:>2}}/{{len}}  {{wide_msg}}"))
}

fn note_style() -> ProgressStyle {
    template("  {prefix:.yellow.bold} {wide_msg}")
}

fn template(text: &str) -> ProgressStyle {
    ProgressStyle::with_template(text)
        .expect("the templates are constant except for a width")
        .progress_chars("━╸─")
}
