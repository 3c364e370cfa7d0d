//! `refit plan`: what a change will do to the machines, before it is made.

mod gather;
pub(crate) mod reader;
mod show;

#[cfg(test)]
#[cfg(feature = "sandbox")]
mod world_tests;

use std::{path::PathBuf, process::ExitCode};

use refit_kinds::version::KubernetesVersion;
use refit_manifests::{LoadError, load};
use refit_predict::{Input, Objects, PredictedOutcome, Prediction, predict};
use refit_runtime::Clock;
use serde_json::Value;

use self::{
    gather::{Change, applied, gather},
    reader::Reader,
};
use crate::{
    client, exit,
    global::GlobalArgs,
    printer::{Format, Printer},
    target::Target,
};

/// Exit code where a machine is created or deleted.
const EXIT_REPLACED: u8 = 3;
/// Exit code where something keeps the change from being made.
const EXIT_BLOCKED: u8 = 4;

/// Flags of `refit plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit plan cluster/edge-1 --to v1.35.0
  refit plan md/edge-1-md-0 --to v1.35.0 -o json
  refit plan -f new-template.yaml -f edge-1-md-0.yaml
  refit plan -f wanted.yaml --current as-it-is.yaml      without any cluster

It writes nothing. Cluster API's own decisions are run to their end on paper, with the answers that Refit would
give: how many machines of each group are updated in place, created and deleted, by which updater each path is
changed, what blocks, and which machines Cluster API replaces without asking, with the field to set against it.

With -f the objects are taken as `kubectl apply` would apply them, on top of the live objects, or on top of those of
--current, and then no cluster is asked; an absent namespace is \"default\". A template that is rotated is named by its
new name in the group that refers to it.

-o json writes one document: outcome (Unchanged, InPlace, Blocked, Replaced), groups (namespace, kind, name, cluster,
turn, from, to, outcome, machines {now, inPlace, new, deleted}, paths {line, updater, objects}, causes {reason, object,
message, remedy}, blockedBy {reason, object, message}, notes, seconds), notes.

Exit codes:
  0  every machine stays: in place, or nothing changes
  1  the cluster or a file cannot be read; the text says why
  2  the command line is wrong
  3  a machine is created or deleted somewhere
  4  no machine is replaced, and something blocks
  130, 143  interrupted by Ctrl-C or SIGTERM")]
pub(crate) struct Args {
    /// cluster/NAME, kcp/NAME, md/NAME or ms/NAME.
    #[arg(value_name = "KIND/NAME", requires = "to", required_unless_present = "filename")]
    target: Option<Target>,
    /// Version to go to.
    #[arg(long, value_name = "VERSION", requires = "target")]
    to: Option<KubernetesVersion>,
    /// Manifests of what is wanted. May be given several times.
    #[arg(short, long, value_name = "FILE", conflicts_with = "target")]
    filename: Vec<PathBuf>,
    /// Manifests of what there is, instead of a cluster. May be given several times.
    #[arg(long, value_name = "FILE", requires = "filename")]
    current: Vec<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Runs `refit plan`.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output, global);
    if !args.current.is_empty() {
        let found = predict(&offline(&args.filename, &args.current)?);
        return tell(printer, &found);
    }
    exit::run(async {
        let objects = objects(&args.filename)?;
        let change = match (&args.target, &args.to) {
            (Some(target), Some(to)) => Change::Version(target, to),
            _ => Change::Objects(&objects),
        };
        let mut reader = Reader::new(client::connect(global).await?);
        let input = gather(&mut reader, &change).await?;
        tell(printer, &noted(predict(&input), &input, &objects))
    })
}

fn tell(printer: Printer, plan: &Prediction) -> anyhow::Result<ExitCode> {
    if printer.is_json() {
        printer.result(&serde_json::to_string_pretty(plan)?)?;
    } else {
        show::show(printer, plan)?;
    }
    Ok(match plan.outcome {
        PredictedOutcome::Unchanged | PredictedOutcome::InPlace => ExitCode::SUCCESS,
        PredictedOutcome::Replaced => ExitCode::from(EXIT_REPLACED),
        PredictedOutcome::Blocked => ExitCode::from(EXIT_BLOCKED),
    })
}

fn objects(files: &[PathBuf]) -> Result<Vec<Value>, LoadError> {
    Ok(load(files)?.into_iter().map(|manifest| manifest.object).collect())
}

/// The input of a plan that asks no cluster.
fn offline(wanted: &[PathBuf], current: &[PathBuf]) -> anyhow::Result<Input> {
    let wanted = objects(wanted)?;
    let current: Objects = objects(current)?.into_iter().collect();
    let with_last: Objects = current.iter().cloned().map(as_applied).collect();
    let (desired, targets) = applied(&with_last, &wanted);
    Ok(Input::offline(Clock::real().now(), current, desired, targets))
}

/// An object as kubectl keeps it: what a file says was applied last, so that what the next file
/// leaves out goes.
fn as_applied(object: Value) -> Value {
    let text = object.to_string();
    let mut object = object;
    object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] =
        text.into();
    object
}

/// The plan with what the files hold and Cluster API does not look at.
fn noted(plan: Prediction, input: &Input, objects: &[Value]) -> Prediction {
    use refit_kinds::json::{kind, name, namespace};
    let Prediction { groups, mut notes, .. } = plan;
    for object in objects.iter().filter(|object| kind(object).ends_with("Template")) {
        let of = |objects: &Objects| {
            let found = objects.get(kind(object), namespace(object), name(object));
            found.and_then(|found| found.get("spec").cloned())
        };
        let (now, wanted) = (of(&input.current), of(&input.desired));
        if now.is_some() && now != wanted {
            notes.push(format!(
                "{}/{} changes under its name: Cluster API does not look into it, and no machine is \
                 updated; make a template of another name and let the group refer to that",
                kind(object),
                name(object)
            ));
        }
    }
    Prediction::of(groups, notes)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn example() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/cluster.yaml")
    }

    #[test]
    fn two_files_make_a_plan_without_a_cluster() {
        let text = std::fs::read_to_string(example()).unwrap();
        let wanted = file(&text.replacen("v1.34.2", "v1.35.0", 1));
        let input = offline(&[wanted.path().to_owned()], &[example()]).unwrap();
        let found = predict(&input);
        assert_eq!(found.outcome, PredictedOutcome::InPlace, "{found:#?}");
        assert_eq!(found.groups[0].machines.in_place, 3);
        assert_eq!(found.groups[1].machines.in_place, 0);
    }

    #[test]
    fn the_same_file_twice_changes_nothing() {
        let found = predict(&offline(&[example()], &[example()]).unwrap());
        assert_eq!(found.outcome, PredictedOutcome::Unchanged, "{found:#?}");
        assert_eq!(found.groups.len(), 2);
    }

    #[test]
    fn a_file_that_is_wrong_is_named_with_its_line() {
        let wrong = file("kind: MachineDeployment\nmetadata: {}\n");
        let error = objects(&[wrong.path().to_owned()]).unwrap_err().to_string();
        assert!(error.contains(&format!("{}:1:", wrong.path().display())), "{error}");
    }
}
