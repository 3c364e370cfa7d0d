//! `refit upgrade`: upgrades a control plane, a MachineDeployment or a whole cluster to a version.

mod decide;
mod facts;
pub(crate) mod revert;
pub(crate) mod task;

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
    core::NamespaceResourceScope,
};
use refit_cluster_api::kinds::{KubeadmControlPlane, MachineDeployment};
use refit_kinds::{keys, refit::Via, version::KubernetesVersion};
use refit_runtime::apply::is_conflict;
use serde::de::DeserializeOwned;

pub(crate) use self::task::ViaFlag;
use self::{
    decide::{Field, Next, Whole, Write},
    facts::Read,
    task::Requested,
};
use crate::{
    client::{self, Cluster, attempt_on},
    exit,
    global::{GlobalArgs, program},
    printer::{Format, Printer},
    target::{Target, TargetKind},
    watch::{Line, Scope, follow, time, write_line},
};

/// Exit code if the upgrade was refused and nothing was written.
const EXIT_REFUSED: u8 = 4;
/// Exit code if the command line is invalid.
const EXIT_USAGE: u8 = 2;
/// How often a write is repeated if the object changed in the meantime.
const ATTEMPTS: u32 = 5;

/// Flags of `refit upgrade`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit upgrade kcp/edge-1 --to v1.35.0 --watch
  refit upgrade md/edge-1-md-0 --to v1.35.0
  refit upgrade cluster/edge-1 --to v1.35.0    the control plane, and when it is done the workers
  refit upgrade cluster/edge-1 --to v1.35.0 --dry-run
  refit upgrade cluster/edge-1 --to v1.36.1 --hops v1.35.2
  refit upgrade md/edge-1-md-0 --to v1.35.0 --via machines

For a KubeadmControlPlane or a MachineDeployment, the command sets the version in its spec \
(spec.version, spec.template.spec.version), and nothing else: Cluster API and Refit do the rest. It \
first checks that Cluster API calls Refit for these machines. Where Cluster API would replace them \
instead, such as with its feature gate off or on a control plane of one machine, the command creates \
an UpgradeTask that works through them (docs/tasks.md), and prints the reason. `refit plan` predicts \
the upgrade in detail.

For a cluster, the command always creates an UpgradeTask and does not wait: the task brings the \
control plane minor version by minor version to the target, then the workers. It leaves the machines \
to Cluster API where that calls Refit for all of them. The controller needs the component deploy/tasks.

--via makes an UpgradeTask in any case, and chooses: spec lets Cluster API do it and call Refit, \
machines lets Refit do it.

-o json writes {\"type\": \"written\", object, field, from, to, dryRun} for a version that is set, \
{\"type\": \"task\", object, task, to, dryRun} for an UpgradeTask and, \
with --watch, the lines of `refit watch -o json`.

Exit codes:
  0  the version is set or an UpgradeTask sets it (with --watch: and reached), or that was so before
  1  the cluster cannot be read or written
  2  the command line is invalid
  3  an update failed or was aborted while the command waited
  4  refused, and nothing was written
  5  --timeout has passed; the upgrade continues
  130, 143  interrupted by Ctrl-C or SIGTERM; the upgrade continues")]
pub(crate) struct Args {
    /// cluster/NAME, kcp/NAME or md/NAME.
    #[arg(value_name = "KIND/NAME")]
    target: Target,
    /// Upgrade to this version.
    #[arg(long, value_name = "VERSION")]
    to: KubernetesVersion,
    /// Leave the upgrade to an UpgradeTask: spec lets Cluster API do it and call Refit, machines lets Refit do it
    /// where Cluster API does not update in place [default: what reaches the machines]
    #[arg(long, value_enum)]
    via: Option<ViaFlag>,
    /// For a cluster that skips minor versions: take these versions on the way; others are taken at their first release
    #[arg(long, value_name = "VERSION", value_delimiter = ',')]
    hops: Vec<KubernetesVersion>,
    /// Wait until every machine runs the version.
    #[arg(short, long)]
    watch: bool,
    /// Run all checks, including the API server's, without writing anything.
    #[arg(long, conflicts_with = "watch")]
    dry_run: bool,
    /// Wait no longer than this duration, such as 90s, 30m or 2h.
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Runs `refit upgrade`.
pub(crate) fn run(args: &Args, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output, global);
    exit::run(async {
        upgradable(args)?;
        let cluster = client::connect(global).await?;
        let upgrade = Upgrade { args, start: cluster.clock.now(), cluster, printer };
        upgrade.run().await
    })
}

fn upgradable(args: &Args) -> anyhow::Result<()> {
    let target = &args.target;
    match target.kind {
        TargetKind::ControlPlane | TargetKind::MachineDeployment if !args.hops.is_empty() => {
            Err(exit::error(
                EXIT_USAGE,
                format!("--hops is for a whole cluster (cluster/NAME), not for {target}"),
            ))
        }
        TargetKind::Cluster | TargetKind::ControlPlane | TargetKind::MachineDeployment => Ok(()),
        TargetKind::MachineSet | TargetKind::Machine => Err(exit::error(
            EXIT_REFUSED,
            format!(
                "{target} gets its version from its owner: upgrade that KubeadmControlPlane (kcp/NAME) or \
                 MachineDeployment (md/NAME)"
            ),
        )),
    }
}

/// The result of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestState {
    /// Nothing had to be written.
    Before,
    /// A version was written.
    Now,
    /// A version would have been written.
    Rehearsed,
}

fn refused(refusal: &decide::Refusal) -> anyhow::Error {
    let text = refusal.to_string().replace("`refit ", &format!("`{} ", program()));
    exit::error(EXIT_REFUSED, format!("nothing was written: {text}"))
}

struct Upgrade<'a> {
    args: &'a Args,
    cluster: Cluster,
    printer: Printer,
    start: jiff::Timestamp,
}

impl Upgrade<'_> {
    async fn run(&self) -> anyhow::Result<ExitCode> {
        let target = &self.args.target;
        let requested = match (self.args.via, target.kind) {
            (Some(via), _) => self.leave_to_task(via.into(), None).await?,
            (None, TargetKind::Cluster) => self.upgrade_cluster().await?,
            (
                None,
                TargetKind::ControlPlane
                | TargetKind::MachineDeployment
                | TargetKind::MachineSet
                | TargetKind::Machine,
            ) => self.upgrade_group().await?,
        };
        if requested == RequestState::Rehearsed {
            return Ok(ExitCode::SUCCESS);
        }
        if self.args.watch {
            self.follow(target).await?;
        } else {
            self.note(&format!("`{} watch {target}` shows the progress", program()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Leaves the upgrade to the unfinished task for it, or to another one; `why` is the reason for `via`.
    async fn leave_to_task(&self, via: Via, why: Option<&str>) -> anyhow::Result<RequestState> {
        let Args { target, to, hops, dry_run, .. } = self.args;
        let versions = (to, &**hops);
        let task = match task::unfinished(&self.cluster, target, versions, Some(via)).await? {
            Some(task) => task,
            None => task::request(&self.cluster, target, versions, via, *dry_run).await?,
        };
        if let (Some(why), RequestState::Now | RequestState::Rehearsed) = (why, task.state) {
            let name = match task.state {
                RequestState::Rehearsed => "an UpgradeTask".to_owned(),
                RequestState::Now | RequestState::Before => format!("UpgradeTask/{}", task.name),
            };
            self.note(&format!("{why}: {name} works through the machines instead"))?;
        }
        self.show_task(task)
    }

    fn show_task(&self, Requested { name, state }: Requested) -> anyhow::Result<RequestState> {
        let Args { target, to, dry_run, .. } = self.args;
        if self.printer.is_json() {
            let (object, to) = (target.to_string(), to.clone());
            write_line(self.printer, &Line::Task { object, task: name, to, dry_run: *dry_run })?;
            return Ok(state);
        }
        let line = match state {
            RequestState::Before => format!("UpgradeTask/{name} works on it already"),
            RequestState::Now => format!("UpgradeTask/{name}: brings {target} to {to}"),
            RequestState::Rehearsed => {
                format!("UpgradeTask: brings {target} to {to} (dry run: nothing was written)")
            }
        };
        self.printer.result(&line)?;
        if state != RequestState::Rehearsed {
            self.note(&format!("`kubectl get upgradetask {name}` shows what it waits for"))?;
        }
        Ok(state)
    }

    fn asked(&self) -> anyhow::Result<RequestState> {
        if !self.printer.is_json() {
            let Args { target, to, .. } = self.args;
            self.printer.result(&format!("{target} already requests {to}"))?;
        }
        Ok(RequestState::Before)
    }

    fn show_notes(&self, read: &Read) -> anyhow::Result<()> {
        read.notes.iter().try_for_each(|note| self.note(&format!("note: {note}")))
    }

    /// Leaves the upgrade of a whole cluster to a task.
    async fn upgrade_cluster(&self) -> anyhow::Result<RequestState> {
        let Args { target, to, hops, .. } = self.args;
        if let Some(task) = task::unfinished(&self.cluster, target, (to, hops), None).await? {
            return self.show_task(task);
        }
        let read = facts::read(&self.cluster, target).await?;
        match decide::whole(&read.facts, to).map_err(|refusal| refused(&refusal))? {
            Whole::Asked => self.asked(),
            Whole::Task { via, why } => {
                self.show_notes(&read)?;
                self.leave_to_task(via, why.as_deref()).await
            }
        }
    }

    /// Sets the version of a group, or leaves that to a task.
    async fn upgrade_group(&self) -> anyhow::Result<RequestState> {
        let Args { target, to, dry_run, .. } = self.args;
        for attempt in 0..ATTEMPTS {
            let read = facts::read(&self.cluster, target).await?;
            let next = decide::next(&read.facts, to).map_err(|refusal| refused(&refusal))?;
            if attempt == 0 && next != Next::Asked {
                self.show_notes(&read)?;
            }
            match next {
                Next::Asked => return self.asked(),
                Next::Task(why) => return self.leave_to_task(Via::Machines, Some(&why)).await,
                Next::Write(write) => {
                    if set_version(&self.cluster, &write, to, *dry_run).await? {
                        self.show(&write)?;
                        return Ok(if *dry_run {
                            RequestState::Rehearsed
                        } else {
                            RequestState::Now
                        });
                    }
                }
            }
        }
        bail!("{target} keeps changing; try again")
    }

    /// Prints a progress line.
    fn note(&self, text: &str) -> anyhow::Result<()> {
        if !self.printer.is_json() {
            self.printer.note(text)?;
        }
        Ok(())
    }

    async fn follow(&self, target: &Target) -> anyhow::Result<()> {
        let scope = Scope {
            target: Some(target.clone()),
            namespace: Some(self.cluster.namespace.clone()),
            wanted: Some(self.args.to.clone()),
            since: Some(self.start),
        };
        follow(&self.cluster, &scope, self.printer, self.args.timeout).await
    }

    fn show(&self, write: &Write) -> anyhow::Result<()> {
        let (to, dry_run) = (&self.args.to, self.args.dry_run);
        if self.printer.is_json() {
            let line = Line::Written {
                object: write.object.clone(),
                field: write.field.path(),
                from: write.from.clone(),
                to: to.clone(),
                dry_run,
            };
            write_line(self.printer, &line)?;
            return Ok(());
        }
        let rest = if dry_run { " (dry run: nothing was written)" } else { "" };
        self.printer.result(&format!("{}{rest}", write.line(to)))?;
        Ok(())
    }
}

/// Writes a version; returns `false` if the object changed since it was read.
async fn set_version(
    cluster: &Cluster,
    write: &Write,
    to: &KubernetesVersion,
    dry_run: bool,
) -> anyhow::Result<bool> {
    match write.field {
        Field::ControlPlane => patch::<KubeadmControlPlane>(cluster, write, to, dry_run).await,
        Field::Deployment => patch::<MachineDeployment>(cluster, write, to, dry_run).await,
    }
}

async fn patch<K>(
    cluster: &Cluster,
    write: &Write,
    to: &KubernetesVersion,
    dry_run: bool,
) -> anyhow::Result<bool>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = cluster.here();
    let params = PatchParams {
        dry_run,
        field_manager: Some(keys::MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(write.field.patch(&write.resource_version, to));
    match api.patch(&write.name, &params, &patch).await {
        Ok(_) => Ok(true),
        Err(error) if is_conflict(&error) => Ok(false),
        Err(error) => Err(cluster.explain(error, &attempt_on::<K>("patch", &write.name))),
    }
}
