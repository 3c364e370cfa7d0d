//! `cargo xtask writes`: counts the writes of Refit's processes per machine of an upgrade.

use std::{cmp::Reverse, collections::BTreeMap, path::Path, process::ExitCode};

use clap::{Args, ValueEnum};
use lab_world::{
    manifests,
    writes::{UpgradeVia, WriteCount, WriteKind, WritesOptions, WritesReport, count},
};

use crate::print;

/// Writes per machine that are too many: with fewer, a fleet of 10,000 machines that is upgraded within 8 hours makes
/// about 10 writes per second at most.
const TOO_MANY_PER_MACHINE: u64 = 30;
/// The same for tasks. Their writes include those that Cluster API makes itself where it calls the hooks: the mark of
/// each Machine and its removal, the hand-over, the Machine and its objects, and two MachineSets. Twice as many Machines
/// prepare as may be down, and show for what they wait.
const TOO_MANY_BY_TASKS: u64 = 45;

/// Options of a count.
#[derive(Args, Clone, Debug)]
pub(crate) struct WritesArgs {
    /// Upgrade a fleet of this many machines.
    #[arg(long, value_name = "N", default_value_t = 100)]
    machines: usize,
    /// Upgrade it in this way.
    #[arg(long, value_enum, default_value_t = Via::Hooks)]
    via: Via,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Via {
    /// Through Cluster API, which calls Refit's hooks.
    Hooks,
    /// By an UpgradeTask for each owner.
    Tasks,
}

/// Counts the writes; the exit code reports whether they are too many.
pub(crate) fn run(root: &Path, args: &WritesArgs) -> anyhow::Result<ExitCode> {
    let loaded = manifests::load(&[root.join("examples/cluster.yaml")])?;
    let options = WritesOptions {
        cluster: loaded.into_iter().map(|manifest| manifest.object).collect(),
        machines: args.machines,
        version: "v1.35.0".to_owned(),
        via: match args.via {
            Via::Hooks => UpgradeVia::Hooks,
            Via::Tasks => UpgradeVia::Tasks,
        },
    };
    let report = count(&options, print::progress)?;
    print::result(&table(&report));
    let (machines, total) = (args.machines, report.total());
    let per_machine = per_machine(total, machines);
    let limit = match args.via {
        Via::Hooks => TOO_MANY_PER_MACHINE,
        Via::Tasks => TOO_MANY_BY_TASKS,
    };
    print::result(&format!(
        "{machines} machines, {per_machine} writes per machine, expected below {limit}"
    ));
    let is_few = total < limit * u64::try_from(machines)?;
    Ok(if is_few { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A quotient with two decimals.
pub(crate) fn per_machine(count: u64, machines: usize) -> String {
    let machines = u64::try_from(machines).unwrap_or(u64::MAX).max(1);
    let hundredths = (count.saturating_mul(100) + machines / 2) / machines;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// A row for each kind of write, the most frequent first; then those that are counted apart.
fn table(report: &WritesReport) -> String {
    let mut rows = vec![
        ["PER MACHINE", "COUNT", "REJECTED", "PROCESS", "VERB", "OBJECT", "MANAGER"]
            .map(str::to_owned),
    ];
    let (apart, counted): (BTreeMap<_, _>, BTreeMap<_, _>) =
        report.counts.iter().partition(|(kind, _)| kind.is_apart());
    for part in [counted, apart] {
        let mut part: Vec<(&WriteKind, &WriteCount)> = part.into_iter().collect();
        part.sort_by_key(|(kind, count)| (Reverse(count.requests), *kind));
        rows.extend(part.into_iter().map(|(kind, count)| {
            let suffix = if kind.is_apart() { " (apart)" } else { "" };
            [
                per_machine(count.requests, report.machines),
                count.requests.to_string(),
                count.rejected.to_string(),
                kind.process.to_owned(),
                kind.verb.clone(),
                format!("{}{suffix}", kind.object),
                kind.manager.clone(),
            ]
        }));
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let line = |row: &[String; 7]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_rounded_to_two_decimals() {
        assert_eq!(per_machine(2999, 100), "29.99");
        assert_eq!(per_machine(1, 3), "0.33");
        assert_eq!(per_machine(2, 3), "0.67");
    }
}
