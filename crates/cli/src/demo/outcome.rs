//! Prints the result of a demo.

use std::process::ExitCode;

use serde::Serialize;

use super::{
    EXIT_REPLACED,
    fleet::Fleet,
    report::{Identity, MachineJson, Row, Verdict},
};
use crate::printer::{Printer, columns, duration};

/// Durations of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Simulated seconds from the version change to the last machine.
    pub(super) fleet_seconds: i64,
    /// Simulated seconds per second.
    pub(super) speed: f64,
}

/// The whole result.
pub(super) struct DemoOutcome<'a> {
    /// The planned run.
    pub(super) fleet: &'a Fleet,
    /// The result of each machine.
    pub(super) rows: Vec<Row>,
    /// Durations of the run.
    pub(super) timing: Timing,
    /// Invariants that were violated.
    pub(super) violations: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Json<'a> {
    target: String,
    simulated: bool,
    speed: f64,
    fleet_seconds: i64,
    host_seconds: i64,
    kept: usize,
    replaced_by_max_surge: usize,
    replaced_unasked: usize,
    invariant_violations: &'a [String],
    kept_not_acted_on: &'a [String],
    machines: Vec<MachineJson>,
}

impl DemoOutcome<'_> {
    /// Returns the exit code for the result.
    pub(super) fn exit_code(&self) -> ExitCode {
        if self.count(|v| *v == Verdict::Unasked) > 0 {
            ExitCode::from(EXIT_REPLACED)
        } else if self.violations.is_empty() && self.all_at_target() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    fn count(&self, verdict: impl Fn(&Verdict) -> bool) -> usize {
        self.rows.iter().filter(|row| verdict(&row.verdict)).count()
    }

    fn all_at_target(&self) -> bool {
        self.rows
            .iter()
            .all(|row| row.after.as_ref().is_some_and(|after| after.version.is(&self.fleet.target)))
    }

    fn host_seconds(&self) -> i64 {
        self.rows.iter().map(|row| row.work.host_seconds).sum()
    }

    /// Prints the result in the printer's format.
    pub(super) fn print(&self, printer: Printer, no_surge: bool) -> anyhow::Result<()> {
        if printer.is_json() {
            return self.print_json(printer);
        }
        printer.result("")?;
        for line in columns(&self.table(printer)) {
            printer.result(&line)?;
        }
        printer.result("")?;
        self.summary(printer)?;
        self.surge_advice(printer)?;
        for violation in &self.violations {
            printer.result(&printer.bad(&format!("invariant broken: {violation}")))?;
        }
        next_steps(printer, self.fleet, no_surge)
    }

    fn print_json(&self, printer: Printer) -> anyhow::Result<()> {
        let json = Json {
            target: self.fleet.target.to_string(),
            simulated: true,
            speed: self.timing.speed,
            fleet_seconds: self.timing.fleet_seconds,
            host_seconds: self.host_seconds(),
            kept: self.count(|v| *v == Verdict::Same),
            replaced_by_max_surge: self.count(|v| matches!(v, Verdict::Surge(_))),
            replaced_unasked: self.count(|v| *v == Verdict::Unasked),
            invariant_violations: &self.violations,
            kept_not_acted_on: &self.fleet.kept,
            machines: self.rows.iter().map(MachineJson::from).collect(),
        };
        printer.result(&serde_json::to_string_pretty(&json)?)?;
        Ok(())
    }

    fn table(&self, printer: Printer) -> Vec<Vec<String>> {
        let heading = ["MACHINE", "NODE", "VERSION", "STEPS", "TIME", "SAME MACHINE"];
        let mut table = vec![heading.map(str::to_owned).to_vec()];
        for row in &self.rows {
            let after = row.after.clone().unwrap_or_default();
            let word = row.verdict.text();
            let verdict = match row.verdict {
                Verdict::Same => printer.good(&word),
                Verdict::Surge(_) => printer.notable(&word),
                Verdict::Unasked => printer.bad(&word),
            };
            let arrow = |before: &str, after: &str| match (before == after, after) {
                (true, _) => before.to_owned(),
                (false, "") => format!("{before} -> (none)"),
                (false, after) => format!("{before} -> {after}"),
            };
            let (steps, time) = match row.work.steps {
                0 => ("-".to_owned(), "-".to_owned()),
                steps => (steps.to_string(), duration(row.work.seconds)),
            };
            table.push(vec![
                row.before.machine.clone(),
                match (&row.before, &after) {
                    // The first column already shows the old node's name.
                    (was, is) if was.node_name == was.machine && !is_same_or_unset(was, is) => {
                        format!("-> {}", is.node_name)
                    }
                    (was, is) => arrow(&was.node_name, &is.node_name),
                },
                arrow(&row.before.version.to_string(), &after.version.to_string()),
                steps,
                time,
                verdict,
            ]);
        }
        table
    }

    fn summary(&self, printer: Printer) -> anyhow::Result<()> {
        let kept = self.count(|v| *v == Verdict::Same);
        let line = format!("{kept} of {} machines were updated in place.", self.rows.len());
        printer.result(&printer.bold(&line))?;
        let host = self.host_seconds();
        printer.result(&format!(
            "The upgrade took {}; the work on the hosts adds up to {} (simulated).",
            duration(self.timing.fleet_seconds),
            duration(host),
        ))?;
        Ok(())
    }

    fn surge_advice(&self, printer: Printer) -> anyhow::Result<()> {
        let surged = |group: &&super::fleet::Group| {
            self.rows.iter().any(|row| {
                row.before.group == group.rule.group && matches!(row.verdict, Verdict::Surge(_))
            })
        };
        let groups: Vec<_> = self.fleet.groups.iter().filter(surged).collect();
        if groups.is_empty() {
            return Ok(());
        }
        printer.result("")?;
        printer.result(
            "Cluster API replaced machines because of their groups' own maxSurge. To keep every \
             machine, set",
        )?;
        for group in groups {
            for field in group.fields_to_set() {
                printer.result(&format!("  {field}"))?;
            }
        }
        printer.result("or run the same manifests with --no-surge.")?;
        Ok(())
    }
}

fn is_same_or_unset(was: &Identity, is: &Identity) -> bool {
    is.node_name.is_empty() || was.node_name == is.node_name
}

fn next_steps(printer: Printer, fleet: &Fleet, no_surge: bool) -> anyhow::Result<()> {
    let built_in = fleet.objects.iter().any(|object| object["kind"] == "SandboxCluster");
    let demo = command();
    let mut rows = Vec::new();
    let mut row = |command: String, what: &str| rows.push(vec![command, what.to_owned()]);
    if built_in {
        row(format!("  {demo} --manifests examples/bare-metal.yaml"), "another cluster");
        row(
            format!("  {demo} --manifests YOUR.yaml"),
            "your manifests, as printed by `clusterctl generate cluster`",
        );
    } else if !no_surge {
        row(format!("  {demo} --no-surge --manifests ..."), "the same without additional machines");
    }
    row(format!("  {demo} -o json"), "uids, providerIDs and boot ids, before and after");
    row("  docs/demo.md".to_owned(), "explains this output");
    printer.result("")?;
    printer.result("What to try next")?;
    for line in columns(&rows) {
        printer.result(&line)?;
    }
    Ok(())
}

/// Returns the command that started the demo: through cargo in a checkout, or an installed program.
fn command() -> &'static str {
    match std::env::var_os("CARGO") {
        Some(_) => "cargo run --release -- demo",
        None => "refit demo",
    }
}
