//! `refit upgrades`: lists the upgrades of whole clusters.

use std::process::ExitCode;

use jiff::Timestamp;
use kube::ResourceExt as _;
use refit_kinds::refit::{ClusterUpgrade, UpgradePhase, UpgradeRecord};
use serde_json::{Value, json};

use super::{newest, sort, why};
use crate::{
    client::{self, Cluster},
    exit,
    global::GlobalArgs,
    printer::{Format, Printer, columns, duration},
};

/// Flags of `refit upgrades`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit upgrades
  refit upgrades --all-namespaces
  refit upgrades -o json

The upgrades that are under way come first, then those that wait, then those that have ended.

-o json writes one array: {namespace, cluster, version, from, hops, phase, step, startAt, \
startTime, completeTime, message}.

Exit codes:
  0  the upgrades are listed
  1  the cluster cannot be read")]
pub(crate) struct UpgradesArgs {
    /// List those of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Runs `refit upgrades`.
pub(crate) fn upgrades(args: &UpgradesArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output, global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        let mut found = list(&cluster, args.all_namespaces).await?;
        sort(&mut found);
        found.sort_by_key(|upgrade| order(phase(upgrade)));
        if printer.is_json() {
            let rows: Vec<Value> = found.iter().map(json).collect();
            printer.result(&serde_json::to_string_pretty(&rows)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        if found.is_empty() {
            printer.result("no cluster has a ClusterUpgrade")?;
            return Ok(ExitCode::SUCCESS);
        }
        for line in table(&found, args.all_namespaces, cluster.clock.now()) {
            printer.result(&line)?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

async fn list(cluster: &Cluster, everywhere: bool) -> anyhow::Result<Vec<ClusterUpgrade>> {
    let api = if everywhere { cluster.api(None) } else { cluster.here() };
    cluster.list(&api, "").await
}

fn phase(upgrade: &ClusterUpgrade) -> UpgradePhase {
    upgrade.status.as_ref().map(|status| status.phase).unwrap_or_default()
}

fn order(phase: UpgradePhase) -> u8 {
    match phase {
        UpgradePhase::Upgrading => 0,
        UpgradePhase::New | UpgradePhase::Pending => 1,
        UpgradePhase::Failed => 2,
        UpgradePhase::Completed => 3,
    }
}

fn table(found: &[ClusterUpgrade], everywhere: bool, now: Timestamp) -> Vec<String> {
    let heading = ["CLUSTER", "VERSION", "FROM", "PHASE", "STEP", "TIME", "WHY"];
    let row = |upgrade: &ClusterUpgrade| {
        let record = newest(upgrade);
        let from = record.and_then(|record| record.preceding_version.as_ref());
        let cells = [
            upgrade.name_any(),
            upgrade.spec.version.to_string(),
            from.map_or_else(|| "-".to_owned(), ToString::to_string),
            phase(upgrade).to_string(),
            record.and_then(step).unwrap_or("-").to_owned(),
            times(upgrade, record, now),
            why(upgrade).to_owned(),
        ];
        with_namespace(everywhere, upgrade.namespace().unwrap_or_default(), cells)
    };
    let first = with_namespace(everywhere, "NAMESPACE".to_owned(), heading.map(str::to_owned));
    let rows: Vec<Vec<String>> = [first].into_iter().chain(found.iter().map(row)).collect();
    columns(&rows)
}

fn with_namespace(everywhere: bool, namespace: String, cells: [String; 7]) -> Vec<String> {
    everywhere.then_some(namespace).into_iter().chain(cells).collect()
}

/// The step that an upgrade is at.
fn step(record: &UpgradeRecord) -> Option<&str> {
    let mut steps = record.conditions.iter().rev();
    steps.find(|step| step.status != "True").map(|step| &*step.type_)
}

/// When an upgrade begins, for how long it has been under way, or how long it took.
fn times(upgrade: &ClusterUpgrade, record: Option<&UpgradeRecord>, now: Timestamp) -> String {
    let began = record.and_then(|record| record.start_time.as_ref());
    let ended = record.and_then(|record| record.complete_time.as_ref());
    match (began, ended, &upgrade.spec.start_at) {
        (Some(began), Some(ended), _) => {
            format!("took {}", duration(ended.0.duration_since(began.0).as_secs()))
        }
        (Some(began), None, _) => {
            format!("for {}", duration(now.duration_since(began.0).as_secs()))
        }
        (None, None, Some(at)) => format!("at {}", at.0),
        (None, _, _) => "-".to_owned(),
    }
}

fn json(upgrade: &ClusterUpgrade) -> Value {
    let record = newest(upgrade);
    json!({
        "namespace": upgrade.namespace(),
        "cluster": upgrade.name_any(),
        "version": upgrade.spec.version,
        "from": record.and_then(|record| record.preceding_version.as_ref()),
        "hops": record.map(|record| &*record.hops).unwrap_or_default(),
        "phase": phase(upgrade),
        "step": record.and_then(step),
        "startAt": upgrade.spec.start_at,
        "startTime": record.and_then(|record| record.start_time.as_ref()),
        "completeTime": record.and_then(|record| record.complete_time.as_ref()),
        "message": why(upgrade),
    })
}
