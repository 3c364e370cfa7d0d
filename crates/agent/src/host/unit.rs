//! Transient units, in which a command outlives the agent that started it.
//!
//! Units have the type `oneshot` and remain after exit, so that a restarted agent can read the
//! result. A unit runs the agent's own program with a job file: checks, repairs and the work itself
//! are one process, which survives a restart of the agent.

use std::{collections::BTreeMap, path::PathBuf};

use super::{Invocation, Program, UnitState};

/// The kernel ends a unit only after ordinary pods if memory is short
/// (`docs/facts/kubernetes.md#out-of-memory`): a package manager or kubeadm that is killed half way
/// leaves a host that needs repair. Not -1000, so that a unit which takes all memory can be ended.
const OOM_SCORE: i32 = -900;

/// A transient unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnitSpec {
    /// Its name, without `.service`.
    pub name: String,
    /// Description shown by systemd.
    pub description: String,
    /// The program to run.
    pub call: Invocation,
    /// File for its output.
    pub output: PathBuf,
    /// Start timeout, in seconds.
    pub timeout_seconds: u32,
}

impl UnitSpec {
    /// The `systemd-run` call that starts the unit. No shell is involved, and no argument from
    /// Refit holds a blank, a quote, `$` or `%`, which systemd would interpret.
    pub(super) fn invocation(&self) -> Invocation {
        let output = self.output.display();
        let mut arguments = vec![
            format!("--unit={}.service", self.name),
            format!("--description={}", self.description),
            "--quiet".to_owned(),
            "--no-block".to_owned(),
            "--service-type=oneshot".to_owned(),
            // Not --collect: the agent reads the result, possibly after a restart.
            "--property=RemainAfterExit=yes".to_owned(),
            format!("--property=TimeoutStartSec={}", self.timeout_seconds),
            // Its memory holds secrets, which must not reach the disk in a core dump.
            "--property=LimitCORE=0".to_owned(),
            format!("--property=OOMScoreAdjust={OOM_SCORE}"),
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

/// Parses `systemctl show` of a unit. The caller adds the output.
pub(super) fn parse(text: &str) -> UnitState {
    let fields: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once('=')).collect();
    let field = |name: &str| fields.get(name).copied().unwrap_or_default();
    let exited = |code| UnitState::Exited { code, output_tail: String::new() };
    // A unit that was just created is inactive with its start still queued.
    let queued = !matches!(field("Job"), "" | "0");
    match (field("LoadState"), field("ActiveState")) {
        ("loaded", "inactive") if queued => UnitState::Running,
        ("not-found" | "", _) | (_, "inactive" | "") => UnitState::Unknown,
        (_, "active") => exited(0),
        // A unit ended by its timeout or a signal may have no status of its own.
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
    fn systemctl_show_is_parsed() {
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
