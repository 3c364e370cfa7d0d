//! Follows the progress of a scope to the end.

use std::{collections::BTreeSet, io, time::Duration};

use refit_runtime::Clock;

use super::{
    feed::Feed,
    json::{Line, Lines},
    view::{MachineRow, Objects, Scope, Standing, View},
};
use crate::{
    client::Cluster,
    exit,
    printer::{Printer, duration},
    progress::{Board, step},
};

/// Exit code if an update failed or was stopped for good.
pub(crate) const EXIT_FAILED: u8 = 3;
/// Exit code if `--timeout` expired.
pub(crate) const EXIT_TIMEOUT: u8 = 5;
/// A failure counts as final after this long without a change. If the failed update does not block
/// its group, the next machine's update is created within seconds, and Cluster API calls at least
/// every 15 s.
const GRACE: Duration = Duration::from_secs(30);
/// Refresh interval of the times on the screen.
const TICK: Duration = Duration::from_secs(1);
/// If there are more machines than this, only those with activity are shown.
const SHOWN: usize = 24;

/// Follows `scope` until everything is up to date. An update that failed for good, or an expired
/// timeout, is an error with its own exit code.
pub(crate) async fn follow(
    cluster: &Cluster,
    scope: &Scope,
    printer: Printer,
    timeout: Option<Duration>,
) -> anyhow::Result<()> {
    let feed = Feed::open(cluster, scope.namespace.as_deref()).await?;
    let mut screen = Screen::new(printer, cluster.clock, scope);
    let deadline = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(deadline);
    loop {
        let view = View::of(&feed.objects(), scope);
        screen.show(&view)?;
        let standing = view.standing(scope);
        match standing {
            Standing::Done => return screen.done(&view),
            Standing::Failed { held_up: true } => return screen.failed(&view),
            Standing::Failed { held_up: false } | Standing::Going => {}
        }
        let grace = async {
            match standing {
                Standing::Going => std::future::pending().await,
                Standing::Done | Standing::Failed { .. } => tokio::time::sleep(GRACE).await,
            }
        };
        tokio::pin!(grace);
        // Between two changes only the times on the screen change.
        loop {
            tokio::select! {
                biased;
                () = feed.changed() => break,
                () = &mut deadline => return screen.late(&view, timeout.unwrap_or_default()),
                () = &mut grace => return screen.failed(&view),
                () = tokio::time::sleep(TICK), if printer.shows_bars() => screen.sum_up(&view),
            }
        }
    }
}

impl Feed {
    fn objects(&self) -> Objects {
        Objects {
            machines: self.machines.list(),
            updates: self.updates.list(),
            groups: self.groups.list(),
            control_planes: self.control_planes.list(),
            deployments: self.deployments.list(),
        }
    }
}

/// The output of the progress.
struct Screen<'a> {
    printer: Printer,
    clock: Clock,
    start: jiff::Timestamp,
    scope: &'a Scope,
    board: Board,
    lines: Option<Lines>,
}

impl<'a> Screen<'a> {
    fn new(printer: Printer, clock: Clock, scope: &'a Scope) -> Self {
        let mut board = Board::new(printer, 0);
        if printer.is_json() {
            board = board.without_lines();
        }
        Self {
            printer,
            clock,
            start: scope.since.unwrap_or_else(|| clock.now()),
            scope,
            board,
            lines: printer.is_json().then(|| Lines::new(printer)),
        }
    }

    /// Formats a machine's name, with its namespace if there may be several.
    fn name(&self, row: &MachineRow) -> String {
        let row = &row.progress;
        match &self.scope.namespace {
            Some(_) => row.machine.clone(),
            None => format!("{}/{}", row.namespace, row.machine),
        }
    }

    fn show(&mut self, view: &View) -> io::Result<()> {
        if let Some(lines) = &mut self.lines {
            lines.show(view)?;
        }
        let seconds = self.seconds();
        let names: Vec<String> = view.machines.iter().map(|row| self.name(row)).collect();
        self.board.widen(names.iter().map(String::len).max().unwrap_or_default());
        let few = view.machines.len() <= SHOWN;
        for (row, name) in view.machines.iter().zip(&names) {
            let progress = &row.progress;
            let happens = progress.is_under_way() || progress.has_failed() || progress.in_progress;
            if few || happens || (self.board.has(name) && !self.printer.shows_bars()) {
                self.board.show(name, &step(progress, &row.target), seconds)?;
            } else {
                self.board.hide(name);
            }
        }
        self.board.report_gone(|name| !names.iter().any(|there| there == name), seconds)?;
        for group in &view.groups {
            let about = match &self.scope.namespace {
                Some(_) => group.owner.clone(),
                None => format!("{} in {}", group.owner, group.namespace),
            };
            let text = group.blocked.as_ref().map(|(reason, message)| {
                format!("blocked ({reason}): {}", message.replace('\n', "; "))
            });
            self.board.show_note(&about, text.as_deref(), seconds)?;
        }
        self.sum_up(view);
        Ok(())
    }

    fn seconds(&self) -> i64 {
        self.clock.now().duration_since(self.start).as_secs()
    }

    /// Shows the total progress, the elapsed time and the remaining time.
    fn sum_up(&self, view: &View) {
        let passed = duration(self.seconds());
        let summary = match view.rest_seconds() {
            Some(rest) => format!("{passed}, about {} left", duration(rest)),
            None => passed,
        };
        self.board.sum_up(view.done(), view.machines.len(), summary);
    }

    fn end(&self, outcome: &'static str, view: &View, message: &str) -> io::Result<()> {
        self.board.finish()?;
        match &self.lines {
            Some(lines) => lines.write(&Line::End {
                target: self.scope.target.as_ref().map(ToString::to_string),
                outcome,
                message: message.to_owned(),
                machines: view.machines.len(),
                done: view.done(),
            }),
            None => Ok(()),
        }
    }

    fn done(&self, view: &View) -> anyhow::Result<()> {
        let what = match &self.scope.target {
            Some(target) => target.to_string(),
            None => "all groups".to_owned(),
        };
        let versions: BTreeSet<_> = view.machines.iter().map(|row| &row.target).collect();
        let versions: Vec<String> = versions.iter().map(ToString::to_string).collect();
        let versions = versions.join(", ");
        let message = match view.machines.len() {
            0 => format!("{what}: no machines"),
            1 => format!("{what}: 1 machine runs {versions}"),
            n => format!("{what}: {n} machines run {versions}"),
        };
        self.end("done", view, &message)?;
        if self.lines.is_none() {
            self.printer.result(&self.printer.good(&message))?;
        }
        Ok(())
    }

    fn failed(&self, view: &View) -> anyhow::Result<()> {
        let failed = view.failed();
        let lines: Vec<String> = failed
            .iter()
            .map(|row| {
                let progress = &row.progress;
                let how = progress.phase.map(|phase| format!("{phase:?}")).unwrap_or_default();
                format!(
                    "{}: {} ({}): {}",
                    self.name(row),
                    how.to_lowercase(),
                    progress.failure_reason,
                    progress.message
                )
            })
            .collect();
        let message = lines.join("\n");
        self.end("failed", view, &message)?;
        let first = failed.first().map(|row| row.progress.machine.clone());
        Err(exit::error(
            EXIT_FAILED,
            format!(
                "{} of {} machines will not be updated without a retry:\n{message}\n\
                 When the cause is fixed: `{} retry machine/{}`",
                failed.len(),
                view.machines.len(),
                crate::global::program(),
                first.unwrap_or_default(),
            ),
        ))
    }

    fn late(&self, view: &View, timeout: Duration) -> anyhow::Result<()> {
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        let message = format!(
            "{} of {} machines have finished after {}; the update continues without being watched",
            view.done(),
            view.machines.len(),
            duration(seconds)
        );
        self.end("timeout", view, &message)?;
        Err(exit::error(EXIT_TIMEOUT, message))
    }
}
