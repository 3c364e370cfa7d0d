//! `refit upgrade`: upgrades a control plane, a MachineDeployment or a whole cluster to a version.

mod decide;
mod facts;
pub(crate) mod revert;
mod task;

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
    core::NamespaceResourceScope,
};
use refit_cluster_api::kinds::{Cluster as ClusterObject, KubeadmControlPlane, MachineDeployment};
use refit_kinds::{keys, version::KubernetesVersion};
use refit_runtime::apply::is_conflict;
use serde::de::DeserializeOwned;

use self::{
    decide::{Field, Next, Write},
    task::{Requested, ViaFlag},
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
/// Message before the workers of a cluster are upgraded.
const WORKERS_FOLLOW: &str = "The workers follow when the control plane has finished.";
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
  refit upgrade cluster/edge-1 --to v1.36.1 --hops v1.35.2 --via machines

The command sets spec.version of a KubeadmControlPlane, spec.template.spec.version of a \
MachineDeployment, or spec.topology.version of a Cluster with a topology, and nothing else: \
Cluster API and Refit do the rest. It first checks that Cluster API calls Refit for these \
machines; otherwise Cluster API would replace them, and nothing is written. `refit plan` \
predicts the upgrade in detail.

The workers of a cluster are upgraded after its control plane; the command waits until then. \
After Ctrl-C the upgrade stays as it is, and the same command continues it.

With --via, the command creates an UpgradeTask and does not wait: the task brings the control \
plane minor version by minor version to the target, then the workers. --via machines works where \
Cluster API does not update in place, such as a control plane of one machine (docs/tasks.md).

-o json writes {\"type\": \"written\", object, field, from, to, dryRun} for each write, \
{\"type\": \"task\", object, task, to, dryRun} for an UpgradeTask and, \
while it waits, the lines of `refit watch -o json`.

Exit codes:
  0  the version is set (with --watch: and reached), or was set before
  1  the cluster cannot be read or written
  2  the command line is invalid
  3  an update failed or was aborted while the command waited
  4  refused, and nothing (more) was written
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
    /// where Cluster API does not update in place
    #[arg(long, value_enum)]
    via: Option<ViaFlag>,
    /// For a cluster that skips minor versions: take these versions on the way; others are taken at their first release
    #[arg(long, value_name = "VERSION", value_delimiter = ',', requires = "via")]
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
        upgradable(&args.target)?;
        let cluster = client::connect(global).await?;
        let upgrade = Upgrade { args, start: cluster.clock.now(), cluster, printer };
        upgrade.run().await
    })
}

fn upgradable(target: &Target) -> anyhow::Result<()> {
    match target.kind {
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

fn refused(refusal: &decide::Refusal, state: RequestState) -> anyhow::Error {
    let text = refusal.to_string().replace("`refit ", &format!("`{} ", program()));
    let what = match state {
        RequestState::Now => "the workers were not changed",
        RequestState::Before | RequestState::Rehearsed => "nothing was written",
    };
    exit::error(EXIT_REFUSED, format!("{what}: {text}"))
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
        let requested = match self.args.via {
            Some(via) => self.request_task(via).await?,
            None => self.write_versions().await?,
        };
        match requested {
            RequestState::Rehearsed => return Ok(ExitCode::SUCCESS),
            RequestState::Before if !self.printer.is_json() && self.args.via.is_none() => {
                let line = format!("{target} already requests {}", self.args.to);
                self.printer.result(&line)?;
            }
            RequestState::Before | RequestState::Now => {}
        }
        if self.args.watch {
            self.follow(target).await?;
        } else {
            self.note(&format!("`{} watch {target}` shows the progress", program()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Leaves the upgrade to a task.
    async fn request_task(&self, via: ViaFlag) -> anyhow::Result<RequestState> {
        let Args { target, to, hops, dry_run, .. } = self.args;
        let made = task::request(&self.cluster, target, (to, hops), via, *dry_run).await?;
        let Requested { name, state } = made;
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

    /// Writes the versions, one step after the other.
    async fn write_versions(&self) -> anyhow::Result<RequestState> {
        let target = &self.args.target;
        let (mut state, mut conflicts, mut awaited) = (RequestState::Before, 0, false);
        loop {
            let read = facts::read(&self.cluster, target).await?;
            let next = decide::next(&read.facts, &self.args.to);
            match next.map_err(|refusal| refused(&refusal, state))? {
                Next::Asked => return Ok(state),
                Next::AwaitControlPlane if self.args.dry_run => {
                    self.note(WORKERS_FOLLOW)?;
                    return Ok(RequestState::Rehearsed);
                }
                Next::AwaitControlPlane => {
                    let Some(group) = read.facts.control_plane.filter(|_| !awaited) else {
                        bail!("the control plane of {target} changed in the meantime; try again");
                    };
                    awaited = true;
                    self.await_control_plane(group.name).await?;
                }
                Next::Write(writes) => {
                    if state == RequestState::Before && conflicts == 0 {
                        for note in &read.notes {
                            self.note(&format!("note: {note}"))?;
                        }
                    }
                    match self.write(&writes).await? {
                        true if self.args.dry_run => return self.rehearsed(&writes),
                        true => state = RequestState::Now,
                        false if conflicts < ATTEMPTS => conflicts += 1,
                        false => bail!("{target} keeps changing; try again"),
                    }
                }
            }
        }
    }

    async fn await_control_plane(&self, name: String) -> anyhow::Result<()> {
        self.note(&format!(
            "{WORKERS_FOLLOW} Ctrl-C changes nothing; run the same command to continue."
        ))?;
        let kind = TargetKind::ControlPlane;
        self.follow(&Target { kind, name }).await
    }

    fn rehearsed(&self, writes: &[Write]) -> anyhow::Result<RequestState> {
        let more = self.args.target.kind == TargetKind::Cluster
            && writes.iter().all(|write| write.field == Field::ControlPlane);
        if more {
            self.note(WORKERS_FOLLOW)?;
        }
        Ok(RequestState::Rehearsed)
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

    /// Writes these versions; returns `false` if an object changed since it was read.
    async fn write(&self, writes: &[Write]) -> anyhow::Result<bool> {
        let (to, dry_run) = (&self.args.to, self.args.dry_run);
        for write in writes {
            if !set_version(&self.cluster, write, to, dry_run).await? {
                return Ok(false);
            }
            self.show(write)?;
        }
        Ok(true)
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
        Field::Topology => patch::<ClusterObject>(cluster, write, to, dry_run).await,
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
