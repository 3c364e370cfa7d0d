//! `refit hold`, `refit skip` and `refit release`: which machines do not begin although their group goes on.

use std::process::ExitCode;

use anyhow::bail;
use kube::ResourceExt as _;
use refit_cluster_api::kinds::{
    KubeadmControlPlane, Machine, MachineDeployment, MachineSet, update_in_progress,
};
use refit_core::group::{holds, present_rollout, request_of};
use refit_kinds::{
    keys,
    refit::{
        MAX_EXCEPTION_REASON, MachineUid, PacingException, UpdateGroup, UpdateGroupStatus,
        update_group_name,
    },
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    ask::{Decision, ask, report},
    client::{self, Cluster},
    exit,
    global::{GlobalArgs, program},
    printer::{Format, Printer},
    release,
    target::{Target, TargetKind, machine_argument},
};

/// Exit code if the command line is invalid.
const EXIT_USAGE: u8 = 2;
/// Exit code if nothing is changed.
const EXIT_NOTHING: u8 = 3;

/// The machine of a command, and how its result is shown.
#[derive(Debug, clap::Args)]
struct Common {
    /// Name of the Machine, with or without machine/.
    #[arg(value_name = "MACHINE", value_parser = machine_argument)]
    machine: Target,
    /// Report what would happen, without writing anything.
    #[arg(long)]
    dry_run: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// The machine of a command that needs a reason.
#[derive(Debug, clap::Args)]
struct Reasoned {
    #[command(flatten)]
    common: Common,
    /// Why; at most 256 characters.
    #[arg(long, value_parser = reason)]
    reason: String,
}

/// Flags of `refit hold`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit hold edge-1-md-0-x7k2p --reason 'its disk is being replaced'

The machine does not begin until `refit release`, whatever requests its update: its NodeUpdates wait with \
the reason Held, and the other machines of its group go on. The command annotates the Machine with \
refit.dev/hold and the reason. An update that has begun is finished.

A Machine that Cluster API has chosen already (annotation update-in-progress) is refused.

-o json writes {namespace, machine, action, message}; action is set, already or refused.

Exit codes:
  0  the machine is held
  1  the cluster cannot be read or written
  2  the command line is invalid
  3  Cluster API has chosen the machine already")]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    reasoned: Reasoned,
}

/// Flags of `refit skip`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit skip edge-1-md-0-x7k2p --reason 'it serves the fair until Sunday'

The machine does not begin in the present rollout of its group, or in the next one if no rollout is under way: its \
NodeUpdates wait with the reason Skipped, and the other machines go on. The command annotates the Machine \
with refit.dev/skip and the reason, and refit.dev/skip-rollout with the number of the rollout. `refit \
release` takes it into the rollout again.

A Machine that Cluster API has chosen already (annotation update-in-progress) is refused.

-o json writes {namespace, machine, action, message}; action is set, already or refused.

Exit codes:
  0  the machine is skipped
  1  the cluster cannot be read or written
  2  the command line is invalid
  3  Cluster API has chosen the machine already")]
pub(crate) struct SkipArgs {
    #[command(flatten)]
    reasoned: Reasoned,
}

/// Flags of `refit release`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit release edge-1-md-0-x7k2p
  refit release md/edge-1-md-0 --accept-replacement

For a machine, the command ends what `refit hold` and `refit skip` began: it removes their annotations from \
the Machine, and the Machine from spec.pacing.exceptions of its UpdateGroup.

For a KubeadmControlPlane or a MachineDeployment that an UpgradeTask has left paused, the command removes \
the annotations cluster.x-k8s.io/paused and refit.dev/task. Cluster API then goes on, and replaces the \
machines that are outdated: without --accept-replacement, the command names them and refuses. To upgrade \
them in place instead, use `refit resume`. A control plane of one machine whose replacement is held is not \
released: the message names the ways out.

-o json writes one array of {namespace, machine, action, message}, for an owner {namespace, owner, action, \
message}; action is set, none or refused.

Exit codes:
  0  the machine may begin, or Cluster API goes on with the owner
  1  the cluster cannot be read or written
  2  the command line is invalid
  3  the machine was neither held nor skipped; or the owner was not paused by Refit, or the release is refused")]
pub(crate) struct ReleaseArgs {
    /// Name of the Machine, with or without machine/; or kcp/NAME or md/NAME.
    #[arg(value_name = "TARGET", value_parser = release::argument)]
    target: Target,
    /// For an owner: let Cluster API replace its outdated machines.
    #[arg(long)]
    accept_replacement: bool,
    /// Report what would happen, without writing anything.
    #[arg(long)]
    dry_run: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// What a command does with a machine or an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Action {
    /// It was changed.
    Set,
    /// It was so before.
    Already,
    /// There is nothing to do.
    None,
    /// It is too late, or must be accepted first.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    machine: String,
    action: Action,
    message: String,
}

fn reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    let length = text.chars().count();
    if text.is_empty() {
        Err("a reason is required".to_owned())
    } else if length > MAX_EXCEPTION_REASON {
        Err(format!("{length} characters are too long: at most {MAX_EXCEPTION_REASON}"))
    } else {
        Ok(text.to_owned())
    }
}

/// Runs `refit hold`.
pub(crate) fn hold(args: &HoldArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let args = &args.reasoned;
    run(&args.common, global, async |cluster, group| {
        let annotations = json!({keys::HOLD: args.reason});
        except(cluster, &args.common, group, "held", &annotations).await
    })
}

/// Runs `refit skip`.
pub(crate) fn skip(args: &SkipArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let args = &args.reasoned;
    run(&args.common, global, async |cluster, group| {
        let owner = args.common.machine.owners(cluster).await?.into_iter().next();
        let request = match &owner {
            Some(owner) => request(cluster, owner).await?,
            None => String::new(),
        };
        let rollout = present_rollout(&status_of(group), &request);
        let annotations = json!({keys::SKIP: args.reason, keys::SKIP_ROLLOUT: rollout.to_string()});
        let what = format!("skipped in rollout {rollout}");
        except(cluster, &args.common, group, &what, &annotations).await
    })
}

/// Runs `refit release`.
pub(crate) fn release(args: &ReleaseArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let ReleaseArgs { target, accept_replacement, dry_run, output } = args;
    if target.owns_machines() {
        return release_owner(args, global);
    }
    if *accept_replacement {
        return Err(exit::error(
            EXIT_USAGE,
            format!(
                "--accept-replacement is for an owner that an UpgradeTask has left paused (kcp/NAME or md/NAME): the \
                 release of {target} replaces no machine"
            ),
        ));
    }
    let common = Common { machine: target.clone(), dry_run: *dry_run, output: *output };
    run(&common, global, async |cluster, group| {
        let Common { machine, dry_run, .. } = &common;
        let object = found(cluster, machine).await?;
        let listed = match group {
            Some(group) => {
                let decide = |group: &UpdateGroup| unlisted(group, &machine.name);
                ask(cluster, group, *dry_run, decide).await?.is_some()
            }
            None => false,
        };
        let decide = |object: &Machine| Some(released(object, listed));
        let row = ask(cluster, &object, *dry_run, decide).await?;
        row.ok_or_else(|| machine.missing(cluster))
    })
}

fn release_owner(args: &ReleaseArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let ReleaseArgs { target, accept_replacement, dry_run, output } = args;
    let printer = Printer::new(*output, global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        let row = release::release(&cluster, target, *accept_replacement, *dry_run).await?;
        report(printer, std::slice::from_ref(&row), "", |row| {
            format!("{}: {}{}", row.owner, row.message, dry_run_note(*dry_run, row.action))
        })?;
        Ok(code_of(row.action))
    })
}

/// The exit code after an action.
fn code_of(action: Action) -> ExitCode {
    match action {
        Action::Set | Action::Already => ExitCode::SUCCESS,
        Action::None | Action::Refused => ExitCode::from(EXIT_NOTHING),
    }
}

fn dry_run_note(dry_run: bool, action: Action) -> &'static str {
    if dry_run && action == Action::Set { " (dry run: nothing was written)" } else { "" }
}

fn run(
    args: &Common,
    global: &GlobalArgs,
    decide: impl AsyncFnOnce(&Cluster, Option<&UpdateGroup>) -> anyhow::Result<Row>,
) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output, global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        found(&cluster, &args.machine).await?;
        let group = group_of(&cluster, &args.machine).await?;
        let row = decide(&cluster, group.as_ref()).await?;
        show(printer, args, &row)?;
        Ok(code_of(row.action))
    })
}

async fn found(cluster: &Cluster, machine: &Target) -> anyhow::Result<Machine> {
    let object = cluster.get(&machine.name).await?;
    object.ok_or_else(|| machine.missing(cluster))
}

/// The UpdateGroup of a Machine, if there is one.
async fn group_of(cluster: &Cluster, machine: &Target) -> anyhow::Result<Option<UpdateGroup>> {
    let owners = machine.owners(cluster).await?;
    let Some(owner) = owners.first() else {
        return Ok(None);
    };
    cluster.get(&update_group_name(owner.kind.kind(), &owner.name)).await
}

/// What the owner of Machines requests, as its rollouts name it.
async fn request(cluster: &Cluster, owner: &Target) -> anyhow::Result<String> {
    let missing = || owner.missing(cluster);
    Ok(match owner.kind {
        TargetKind::ControlPlane => {
            let object: KubeadmControlPlane =
                cluster.get(&owner.name).await?.ok_or_else(missing)?;
            let template = &object.spec.machine_template.spec.infrastructure_ref.name;
            request_of(&object.spec.version, template)
        }
        TargetKind::MachineDeployment => {
            let object: MachineDeployment = cluster.get(&owner.name).await?.ok_or_else(missing)?;
            let spec = &object.spec.template.spec;
            request_of(&spec.version, &spec.infrastructure_ref.name)
        }
        TargetKind::MachineSet => {
            let object: MachineSet = cluster.get(&owner.name).await?.ok_or_else(missing)?;
            let spec = &object.spec.template.spec;
            request_of(&spec.version, &spec.infrastructure_ref.name)
        }
        TargetKind::Cluster | TargetKind::Machine => bail!("{owner} owns no Machines"),
    })
}

fn status_of(group: Option<&UpdateGroup>) -> UpdateGroupStatus {
    group.and_then(|group| group.status.clone()).unwrap_or_default()
}

/// Annotates a Machine, unless Cluster API has chosen it.
async fn except(
    cluster: &Cluster,
    Common { machine, dry_run, .. }: &Common,
    group: Option<&UpdateGroup>,
    what: &str,
    annotations: &Value,
) -> anyhow::Result<Row> {
    let object = found(cluster, machine).await?;
    let status = status_of(group);
    let decide = |object: &Machine| Some(excepted(object, &status, what, annotations));
    let row = ask(cluster, &object, *dry_run, decide).await?;
    row.ok_or_else(|| machine.missing(cluster))
}

fn excepted(
    machine: &Machine,
    status: &UpdateGroupStatus,
    what: &str,
    annotations: &Value,
) -> Decision<Row> {
    let name = machine.name_any();
    if update_in_progress(machine) {
        let program = program();
        let message = format!(
            "Cluster API has chosen this machine already, and waits for its update. To try again after a \
             failure: `{program} retry machine/{name}`. To take the node as it was upgraded by hand: \
             `{program} adopt {name}`. To stop the update and return to the previous version: `{program} \
             abort machine/{name} --revert`"
        );
        return Decision { row: row(machine, Action::Refused, message), patch: None };
    }
    let known = |(key, value): (&String, &Value)| {
        machine.annotations().get(key).map(String::as_str) == value.as_str()
    };
    let wanted = annotations.as_object().into_iter().flatten();
    if wanted.into_iter().all(known) {
        let message = format!("{what} before, with the same reason");
        return Decision { row: row(machine, Action::Already, message), patch: None };
    }
    let begun = if holds(status, &MachineUid::of(&machine.metadata)) {
        ", once its present update has ended: it has begun, and is finished"
    } else {
        ""
    };
    Decision {
        row: row(machine, Action::Set, format!("{what}{begun}")),
        patch: Some(json!({"metadata": {"annotations": annotations}})),
    }
}

fn released(machine: &Machine, listed: bool) -> Decision<Row> {
    let all = [keys::HOLD, keys::SKIP, keys::SKIP_ROLLOUT];
    let annotated = all.iter().any(|key| machine.annotations().contains_key(*key));
    let row = if annotated || listed {
        row(machine, Action::Set, "may begin".to_owned())
    } else {
        row(machine, Action::None, "neither held nor skipped".to_owned())
    };
    let none = all.into_iter().map(|key| (key.to_owned(), Value::Null));
    let none: serde_json::Map<String, Value> = none.collect();
    Decision { row, patch: annotated.then(|| json!({"metadata": {"annotations": none}})) }
}

/// Removes a machine from the exceptions of its group.
fn unlisted(group: &UpdateGroup, machine: &str) -> Option<Decision<()>> {
    let all = &group.spec.pacing.exceptions;
    let rest: Vec<&PacingException> = all.iter().filter(|one| one.machine != machine).collect();
    (rest.len() < all.len()).then(|| Decision {
        row: (),
        patch: Some(json!({"spec": {"pacing": {"exceptions": rest}}})),
    })
}

fn row(machine: &Machine, action: Action, message: String) -> Row {
    let namespace = machine.namespace().unwrap_or_default();
    Row { namespace, machine: machine.name_any(), action, message }
}

fn show(printer: Printer, args: &Common, row: &Row) -> anyhow::Result<()> {
    report(printer, std::slice::from_ref(row), "", |row| {
        format!("{}: {}{}", row.machine, row.message, dry_run_note(args.dry_run, row.action))
    })
}
