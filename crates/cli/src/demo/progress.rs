//! Shows each machine's progress: bars on a terminal, lines elsewhere.

use std::{collections::BTreeMap, io};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::printer::{Printer, duration};

/// Where one machine is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// What is going on, such as `Draining`.
    pub(crate) phase: String,
    /// More words on it, such as the host's step or what blocks.
    pub(crate) detail: String,
    /// 0 to 100.
    pub(crate) percent: u64,
}

/// Shows the progress of a number of machines.
pub(crate) struct Board {
    printer: Printer,
    bars: MultiProgress,
    machines: BTreeMap<String, (ProgressBar, Step)>,
    width: usize,
}

impl Board {
    /// A board for machines whose names have at most `width` characters.
    pub(crate) fn new(printer: Printer, width: usize) -> Self {
        Self {
            printer,
            bars: MultiProgress::with_draw_target(printer.draw_target()),
            machines: BTreeMap::new(),
            width,
        }
    }

    /// Shows where a machine is, `seconds` of simulated time after the start. The same again shows
    /// nothing.
    pub(crate) fn show(&mut self, machine: &str, step: &Step, seconds: i64) -> io::Result<()> {
        let bar = match self.machines.get_mut(machine) {
            Some((_, shown)) if shown == step => return Ok(()),
            Some((bar, shown)) => {
                *shown = step.clone();
                bar.clone()
            }
            None => {
                let bar = self.bars.add(ProgressBar::new(100).with_style(style()));
                bar.set_prefix(format!("{machine:<width$}", width = self.width));
                self.machines
                    .insert(machine.to_owned(), (bar.clone(), step.clone()));
                bar
            }
        };
        bar.set_position(step.percent);
        bar.set_message(words(step));
        if self.printer.shows_bars() {
            return Ok(());
        }
        let line = format!(
            "[{:>7}] {machine:<width$}  {:>3}%  {}",
            duration(seconds),
            step.percent,
            words(step),
            width = self.width,
        );
        self.printer.note(line.trim_end())
    }

    /// Leaves the bars as they are and gives the terminal back.
    pub(crate) fn finish(&self) {
        for (bar, _) in self.machines.values() {
            bar.abandon();
        }
    }
}

fn words(step: &Step) -> String {
    if step.detail.is_empty() {
        step.phase.clone()
    } else {
        format!("{}: {}", step.phase, step.detail)
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("  {prefix} {bar:24.cyan/blue} {pos:>3}%  {wide_msg}")
        .expect("the template is a constant")
        .progress_chars("━╸─")
}
