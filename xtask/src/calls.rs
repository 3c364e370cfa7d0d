//! `cargo xtask calls`: counts the API calls of the controller per Machine of an upgrade by annotation.

use std::{collections::BTreeSet, path::Path, process::ExitCode};

use clap::Args;
use lab_world::{
    calls::{CallsReport, count},
    manifests,
};

use crate::{print, writes::per_machine};

/// By how much the calls per Machine may differ between an owner and one of a quarter of its size, in percent.
const TOLERANCE_PERCENT: u64 = 2;

/// Options of a count.
#[derive(Args, Clone, Debug)]
pub(crate) struct CallsArgs {
    /// Compare an owner of this many Machines with one of a quarter of them.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(8..=1000))]
    machines: u32,
}

/// Counts the calls; the exit code reports whether they are the same for each Machine.
pub(crate) fn run(root: &Path, args: &CallsArgs) -> anyhow::Result<ExitCode> {
    let loaded = manifests::load(&[root.join("examples/canonical.yaml")])?;
    let cluster: Vec<_> = loaded.into_iter().map(|manifest| manifest.object).collect();
    let many = usize::try_from(args.machines)?;
    let few = count(&cluster, many / 4)?;
    print::progress(&format!("{} calls for {} Machines", few.total(), few.machines));
    let many = count(&cluster, many)?;
    print::result(&table(&few, &many));
    let [of_few, of_many] =
        [&few, &many].map(|report| per_machine(report.total(), report.machines));
    print::result(&format!(
        "{of_few} calls per Machine of {}, {of_many} per Machine of {}",
        few.machines, many.machines
    ));
    Ok(if are_equal(&few, &many) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn are_equal(few: &CallsReport, many: &CallsReport) -> bool {
    let scaled = |report: &CallsReport, by: usize| report.total() * u64::try_from(by).unwrap_or(1);
    let (a, b) = (scaled(few, many.machines), scaled(many, few.machines));
    a.abs_diff(b) * 100 <= a.max(b) * TOLERANCE_PERCENT
}

/// A row for each call, with its number per Machine of either owner.
fn table(few: &CallsReport, many: &CallsReport) -> String {
    let calls: BTreeSet<&String> = few.counts.keys().chain(many.counts.keys()).collect();
    let mut lines = vec![format!("{:>9}  {:>9}  CALL", few.machines, many.machines)];
    lines.extend(calls.into_iter().map(|call| {
        let [few, many] = [few, many].map(|report| {
            per_machine(report.counts.get(call).copied().unwrap_or_default(), report.machines)
        });
        format!("{few:>9}  {many:>9}  {call}")
    }));
    let [pages_of_few, pages_of_many] =
        [few, many].map(|report| per_machine(report.further_pages, report.machines));
    lines.push(format!("{pages_of_few:>9}  {pages_of_many:>9}  further pages of a list (apart)"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_grow_with_the_owner_are_not_equal() {
        let report = |machines, total| {
            let counts = [("list Node".to_owned(), total)].into();
            CallsReport { machines, counts, further_pages: 0 }
        };
        assert!(are_equal(&report(50, 5000), &report(200, 20_000)));
        assert!(are_equal(&report(50, 5050), &report(200, 20_000)));
        assert!(!are_equal(&report(50, 5000), &report(200, 22_000)));
    }
}
