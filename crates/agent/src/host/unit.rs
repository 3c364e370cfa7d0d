//! Transient units: how a command outlives the agent that started it.
//!
//! Of type `oneshot` and remaining after they ended, so that an agent which comes back learns how
//! they did so. What runs in a unit is the agent's own program with a job file, so that checks,
//! repairs and the work itself are one process which no restart of the agent ends.

use std::{collections::BTreeMap, path::PathBuf};

use super::{Invocation, Program, UnitState};

/// A transient unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnitSpec {
    /// Its name, without `.service`.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// What it runs.
    pub call: Invocation,
    /// Where its output goes.
    pub output: PathBuf,
    /// How long it may take.
    pub timeout_seconds: u32,
}

impl UnitSpec {
    /// The call of systemd-run that starts it. No shell is involved, and no argument of ours holds
    /// a blank, a quote, `$` or `%`, which systemd would read.
    pub(super) fn invocation(&self) -> Invocation {
        let output = self.output.display();
        let mut arguments = vec![
            format!("--unit={}.service", self.name),
            format!("--description={}", self.description),
            "--quiet".to_owned(),
            "--no-block".to_owned(),
            "--service-type=oneshot".to_owned(),
            // Not --collect: how it ended is asked for after the agent has come back.
            "--property=RemainAfterExit=yes".to_owned(),
            format!("--property=TimeoutStartSec={}", self.timeout_seconds),
            // Its memory holds secrets that nobody else may find on the disk.
            "--property=LimitCORE=0".to_owned(),
            format!("--property=StandardOutput=append:{output}"),
            format!("--property=StandardError=append:{output}"),
            "--setenv=LC_ALL=C".to_owned(),
            "--".to_owned(),
            self.call.program.clone(),
        ];
        arguments.extend(self.call.arguments.iter().cloned());
        Invocation::new(Program::SystemdRun, arguments)
    }
}

/// Reads `systemctl show` of a unit; the output is added by the caller.
pub(super) fn parse(text: &str) -> UnitState {
    let fields: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once('=')).collect();
    let field = |name: &str| fields.get(name).copied().unwrap_or_default();
    let exited = |code| UnitState::Exited { code, output_tail: String::new() };
    // Just created, it is inactive with its start still queued.
    let queued = !matches!(field("Job"), "" | "0");
    match (field("LoadState"), field("ActiveState")) {
        ("loaded", "inactive") if queued => UnitState::Running,
        ("not-found" | "", _) | (_, "inactive" | "") => UnitState::Unknown,
        (_, "active") => exited(0),
        // Ended by its timeout or a signal it may have no status of its own.
        (_, "failed") => exited(match field("ExecMainStatus").parse() {
            Ok(code) if code != 0 => code,
            _ => 1,
        }),
        _ => UnitState::Running,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_as_systemd_shows_them() {
        let show = |load, active, status| {
            parse(&format!(
                "LoadState={load}\nActiveState={active}\nJob=0\nExecMainStatus={status}\n"
            ))
        };
        let queued = "LoadState=loaded\nActiveState=inactive\nJob=812\nExecMainStatus=0\n";
        assert_eq!(parse(queued), UnitState::Running);
        let exited = |code| UnitState::Exited { code, output_tail: String::new() };
        assert_eq!(show("not-found", "inactive", 0), UnitState::Unknown);
        assert_eq!(show("loaded", "inactive", 0), UnitState::Unknown);
        assert_eq!(show("loaded", "activating", 0), UnitState::Running);
        assert_eq!(show("loaded", "active", 0), exited(0));
        assert_eq!(show("loaded", "failed", 78), exited(78));
        assert_eq!(show("loaded", "failed", 0), exited(1), "ended by a signal");
        assert_eq!(parse(""), UnitState::Unknown);
    }
}
