//! `refit plan`: predicts what a change will do to the machines.

mod ahead;
pub(crate) mod gather;
mod html;
mod junit;
mod output;
pub(crate) mod reader;
mod show;
mod waves;
mod workload;

#[cfg(test)]
#[cfg(feature = "sandbox")]
mod world_tests;

use std::{path::PathBuf, process::ExitCode};

use anyhow::bail;
use futures::future::join_all;
use kube::Client;
use refit_core::change::Provider;
use refit_kinds::{refit::Owner, version::KubernetesVersion};
use refit_manifests::{LoadError, load};
use refit_predict::{GroupRef, Input, Objects, Prediction, ProviderQuestion, Providers, predict};
use refit_runtime::{
    Clock,
    foreign::{ForeignKinds, ForeignObject},
};
use serde_json::Value;

use self::{
    gather::{Change, applied, gather},
    output::{FailOn, PlanFormat},
    reader::Reader,
};
use crate::{client, exit, global::GlobalArgs, printer::Printer, target::Target};

/// The greatest number of machines that `--simulate` accepts.
const MOST_SIMULATED: i64 = 100_000;

/// Flags of `refit plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit plan cluster/edge-1 --to v1.35.0
  refit plan md/edge-1-md-0 --to v1.35.0 -o json
  refit plan -f new-template.yaml -f edge-1-md-0.yaml
  refit plan -f wanted.yaml --current as-it-is.yaml      without any cluster
  refit plan md/edge-1-md-0 --to v1.35.0 --simulate 30000
  refit plan cluster/edge-1 --to v1.35.0 -o html > plan.html
  refit plan -f wanted.yaml -o junit --fail-on replace,uncovered,blocked > plan.xml

The command writes nothing. It simulates Cluster API's rollout with the answers that Refit's \
hooks would return, and shows how many machines of each group are updated in place, created and \
deleted, which updater changes each path, what blocks the change, and which machines Cluster API \
replaces without calling Refit, with the field that prevents it.

With -f, the objects are applied as `kubectl apply` would apply them, on top of the live \
objects. With --current, they are applied on top of those files and no cluster is read. A \
missing namespace is \"default\". To rotate a template, create it under a new name and refer to \
that name in the group.

-o json writes one document: outcome (Unchanged, InPlace, Blocked, Replaced), groups (namespace, \
kind, name, cluster, turn, from, to, outcome, machines {now, inPlace, new, deleted}, disruption, paths \
{line, updater, objects}, causes {reason, object, message, remedy}, blockedBy {reason, object, \
message}, warnings {reason, object, message, remedy}, drains {machine, node, pods, outcome, \
concerns {reason, object, message, remedy}, moreConcerns}, notes, after, seconds, timeline {takes {source, \
prepareSeconds, updateSeconds, newMachineSeconds}, turns {machine, action, startSeconds, disturbedSeconds, \
endSeconds}, availability {least, curve {seconds, available}}}), notes. -o yaml writes the same document.

-o html writes one page with the timeline drawn, which refers to nothing else. -o junit writes one \
suite for each group, whose cases fail where a machine is replaced, a path is covered by no updater, \
or something blocks.

With --simulate, each MachineDeployment is predicted as if it had so many machines, with its own \
strategy and pacing, to see how long a rollout takes and how many machines stay available.

Exit codes:
  0  every machine stays: it is updated in place, or nothing changes; or nothing that --fail-on names
  1  the cluster or a file cannot be read
  2  the command line is invalid
  3  at least one machine is created or deleted (--fail-on replace)
  4  no machine is replaced, and a group is blocked (--fail-on blocked)
  5  no updater covers a part of the change (--fail-on uncovered)
  130, 143  interrupted by Ctrl-C or SIGTERM")]
pub(crate) struct Args {
    /// cluster/NAME, kcp/NAME, md/NAME or ms/NAME.
    #[arg(value_name = "KIND/NAME", requires = "to", required_unless_present = "filename")]
    target: Option<Target>,
    /// Plan an upgrade to this version.
    #[arg(long, value_name = "VERSION", requires = "target")]
    to: Option<KubernetesVersion>,
    /// Plan to apply these manifests. May be repeated.
    #[arg(short, long, value_name = "FILE", conflicts_with = "target")]
    filename: Vec<PathBuf>,
    /// Read the current objects from these manifests instead of a cluster. May be repeated.
    #[arg(long, value_name = "FILE", requires = "filename")]
    current: Vec<PathBuf>,
    /// Predict so many machines in each MachineDeployment instead of its own: 1 to 100000, all available.
    #[arg(long, value_name = "MACHINES", value_parser = clap::value_parser!(i64).range(1..=MOST_SIMULATED))]
    simulate: Option<i64>,
    /// What makes the exit code other than 0. May be repeated.
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',', default_values = ["replace", "blocked"])]
    fail_on: Vec<FailOn>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: PlanFormat,
}

/// Runs `refit plan`.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output.stream(), global);
    let print = |plan: &Prediction| output::print(printer, args.output, &args.fail_on, plan);
    if !args.current.is_empty() {
        let mut input = offline(&args.filename, &args.current)?;
        simulate(&mut input, args.simulate)?;
        return print(&predict(&input));
    }
    exit::run(async {
        let objects = objects(&args.filename)?;
        let change = match (&args.target, &args.to) {
            (Some(target), Some(to)) => Change::Version(target, to),
            _ => Change::Objects(&objects),
        };
        let mut reader = Reader::new(client::connect(global).await?);
        let mut input = gather(&mut reader, &change).await?;
        simulate(&mut input, args.simulate)?;
        let prediction = predict_live(&reader.cluster.client, &mut input).await;
        print(&noted(prediction, &input, &objects))
    })
}

/// Has a prediction imagine so many machines.
fn simulate(input: &mut Input, machines: Option<i64>) -> anyhow::Result<()> {
    let is_deployment = |target: &GroupRef| target.owner() == Some(Owner::Deployment);
    if machines.is_some() && !input.targets.iter().any(is_deployment) {
        bail!(
            "--simulate imagines the machines of MachineDeployments, and the change concerns none of them"
        );
    }
    input.simulate = machines;
    Ok(())
}

/// The prediction, with the answers of the providers that it depends on.
pub(crate) async fn predict_live(client: &Client, input: &mut Input) -> Prediction {
    let prediction = predict(input);
    let questions: Vec<_> = prediction.groups.iter().flat_map(|group| &group.questions).collect();
    if questions.is_empty() {
        return prediction;
    }
    let asked = questions
        .into_iter()
        .map(async |question| (question.machine.clone(), ask_provider(client, question).await));
    input.providers = Providers::Asked(join_all(asked).await.into_iter().collect());
    predict(input)
}

async fn ask_provider(
    client: &Client,
    ProviderQuestion { machine, change }: &ProviderQuestion,
) -> Provider {
    let object = ForeignObject {
        group: change.group.clone(),
        version: Some(change.version.clone()),
        kind: machine.kind.clone(),
        namespace: machine.namespace.clone(),
        name: machine.name.clone(),
    };
    match ForeignKinds::default().dry_run(client, &object, |live| change.changed(live)).await {
        Ok(true) => change.accepted.clone(),
        Ok(false) => {
            Provider::Unknown { why: "its lists differ from those that were compared".to_owned() }
        }
        Err(kube::Error::Api(status)) => Provider::of_error(status.code, &status.message),
        Err(error) => Provider::Unknown { why: error.to_string() },
    }
}

fn objects(files: &[PathBuf]) -> Result<Vec<Value>, LoadError> {
    Ok(load(files)?.into_iter().map(|manifest| manifest.object).collect())
}

/// Builds the input of a plan that needs no cluster.
fn offline(wanted: &[PathBuf], current: &[PathBuf]) -> anyhow::Result<Input> {
    let wanted = objects(wanted)?;
    let current: Objects = objects(current)?.into_iter().collect();
    let with_last: Objects = current.iter().cloned().map(as_applied).collect();
    let (desired, targets) = applied(&with_last, &wanted);
    Ok(Input::offline(Clock::real().now(), current, desired, targets))
}

/// Adds kubectl's last-applied annotation to an object, so that fields missing from the next file
/// are removed.
fn as_applied(object: Value) -> Value {
    let text = object.to_string();
    let mut object = object;
    object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] =
        text.into();
    object
}

/// Adds notes about content of the files that Cluster API ignores.
fn noted(plan: Prediction, input: &Input, objects: &[Value]) -> Prediction {
    use refit_kinds::json::{kind, name, namespace};
    let Prediction { groups, mut notes, .. } = plan;
    for object in objects.iter().filter(|object| kind(object).ends_with("Template")) {
        let spec_of = |objects: &Objects| {
            let found = objects.get(kind(object), namespace(object), name(object));
            found.and_then(|found| found.get("spec").cloned())
        };
        let (now, wanted) = (spec_of(&input.current), spec_of(&input.desired));
        if now.is_some() && now != wanted {
            notes.push(format!(
                "the change of {}/{} keeps its name, so Cluster API ignores it and updates no \
                 machine; create a template with a new name and refer to it in the group",
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

    use refit_predict::PredictedOutcome;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn example() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/cluster.yaml")
    }

    /// The plan of the example with a text in it replaced, and the version upgraded.
    pub(super) fn plan_of_example(from: &str, to: &str) -> Prediction {
        let text = std::fs::read_to_string(example()).unwrap();
        assert!(text.contains(from), "{from} is not in the example");
        let wanted = file(&text.replacen(from, to, 1).replacen("v1.34.2", "v1.35.0", 1));
        predict(&offline(&[wanted.path().to_owned()], &[example()]).unwrap())
    }

    #[test]
    fn a_simulation_needs_a_deployment() {
        let text = std::fs::read_to_string(example()).unwrap();
        let wanted = file(&text.replace("v1.34.2", "v1.35.0"));
        let mut input = offline(&[wanted.path().to_owned()], &[example()]).unwrap();
        simulate(&mut input, Some(500)).unwrap();
        let found = predict(&input);
        assert_eq!(found.groups[1].machines.now, 500);
        input.targets.retain(|target| target.owner() == Some(Owner::ControlPlane));
        let error = simulate(&mut input, Some(500)).unwrap_err().to_string();
        assert!(error.contains("MachineDeployments"), "{error}");
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
