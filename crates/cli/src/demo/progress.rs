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
    /// Predicted rest, where there is something to predict from.
    pub(crate) remaining_seconds: Option<i32>,
}

impl Step {
    /// Whether a line would say the same.
    fn reads_as(&self, other: &Self) -> bool {
        (&self.phase, &self.detail, self.percent) == (&other.phase, &other.detail, other.percent)
    }
}

/// Shows the progress of a number of machines.
pub(crate) struct Board {
    printer: Printer,
    bars: MultiProgress,
    sum: ProgressBar,
    machines: BTreeMap<String, (ProgressBar, Step)>,
    width: usize,
}

impl Board {
    /// A board for machines whose names have at most `width` characters.
    pub(crate) fn new(printer: Printer, width: usize) -> Self {
        let bars = MultiProgress::with_draw_target(printer.draw_target());
        let sum = bars.add(ProgressBar::new(1).with_style(sum_style()));
        sum.set_prefix(format!("{:<width$}", "all machines"));
        Self {
            printer,
            bars,
            sum,
            machines: BTreeMap::new(),
            width,
        }
    }

    /// Shows where a machine is, `seconds` of simulated time after the start. The same again shows
    /// nothing.
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
                let bar = ProgressBar::new(100).with_style(style());
                let bar = self.bars.insert_before(&self.sum, bar);
                bar.set_prefix(format!("{machine:<width$}", width = self.width));
                self.machines
                    .insert(machine.to_owned(), (bar.clone(), step.clone()));
                bar
            }
        };
        bar.set_position(step.percent);
        bar.set_message(match step.remaining_seconds {
            Some(rest) => format!("{}, about {} left", words(step), duration(i64::from(rest))),
            None => words(step),
        });
        if self.printer.shows_bars() || !news {
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

    /// Says of the machines that are no more that they are gone.
    pub(crate) fn gone(&mut self, gone: impl Fn(&str) -> bool, seconds: i64) -> io::Result<()> {
        let step = Step {
            phase: "Gone".to_owned(),
            detail: "a new machine stands in its place".to_owned(),
            percent: 100,
            remaining_seconds: None,
        };
        let names: Vec<String> = self
            .machines
            .keys()
            .filter(|name| gone(name))
            .cloned()
            .collect();
        names
            .iter()
            .try_for_each(|name| self.show(name, &step, seconds))
    }

    /// Shows how far all machines are together, below the others.
    pub(crate) fn sum_up(&self, done: usize, machines: usize, seconds: i64) {
        self.sum.set_length(machines as u64);
        self.sum.set_position(done as u64);
        self.sum
            .set_message(format!("{} of simulated time", duration(seconds)));
    }

    /// Leaves the bars as they are and gives the terminal back.
    pub(crate) fn finish(&self) -> io::Result<()> {
        for (bar, _) in self.machines.values() {
            bar.abandon();
        }
        self.sum.abandon();
        // The last bar has no end of line of its own.
        if self.printer.shows_bars() {
            self.printer.note("")?;
        }
        Ok(())
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

fn sum_style() -> ProgressStyle {
    ProgressStyle::with_template("  {prefix:.bold} {bar:24.green/blue} {pos:>2}/{len}  {wide_msg}")
        .expect("the template is a constant")
        .progress_chars("━╸─")
}
