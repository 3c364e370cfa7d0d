//! `refit schedule`: requests the upgrade of a whole cluster at a time.

use std::{collections::BTreeSet, process::ExitCode};

use anyhow::Context as _;
use jiff::{Timestamp, Zoned, civil::DateTime, tz::TimeZone};
use k8s_openapi::{
    api::authentication::v1::SelfSubjectReview, apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use refit_cluster_api::kinds::Machine;
use refit_core::{
    managed::cluster::was_commenced,
    task::{GroupVersion, unreachable},
    windows::{OpenTime, Schedule},
};
use refit_kinds::{
    keys,
    refit::{
        ClusterCheck, ClusterUpgrade, ClusterUpgradeSpec, DEFAULT_START_WITHIN_MINUTES, GroupOwner,
        MAX_MINUTES, MAX_REQUEST_TEXT, UpdateGroup, UpgradePhase, UpgradeRecord, Windows,
    },
    version::{KubernetesVersion, StatedVersion},
};
use refit_runtime::apply::{is_conflict, merge_diff};
use serde_json::json;

use super::{ClusterName, EXIT_REFUSED};
use crate::{
    client::{self, Cluster, attempt_on},
    exit,
    global::{GlobalArgs, program},
    printer::{Format, Printer},
    target::{Gathered, Target, TargetKind},
    upgrade::ViaFlag,
};

/// How often a write is repeated if the object changed in the meantime.
const ATTEMPTS: u32 = 5;

/// Flags of `refit schedule`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  refit schedule edge-1 --to v1.36.1 --at 2026-12-05T22:00:00Z
  refit schedule edge-1 --to v1.36.1 --at \"2026-12-05 22:00\"    in the time zone of this host
  refit schedule edge-1 --to v1.36.1 --window saturday-night
  refit schedule edge-1 --to v1.36.1 --at now --hops v1.35.2
  refit history edge-1                                          what became of it

The command writes the ClusterUpgrade of the cluster, all of its spec but silences and extraCapacity (docs/cluster-upgrades.md). At its time, the \
controller checks the cluster, creates an UpgradeTask that does the work, and checks the cluster \
again. One that could not begin in time has failed, and nothing was changed. Another version \
replaces one that has not begun, and comes after one that has.

--window takes the next time at which a window of this name is open, and lets the upgrade begin \
until it closes. Windows have names in spec.pacing.windows of the cluster's UpdateGroups. An upgrade \
that has begun goes on in the next window of each group, as any update does (docs/pacing.md).

-o json writes {cluster, version, startAt, startWithinMinutes, dryRun}.

Exit codes:
  0  the upgrade is scheduled
  1  the cluster cannot be read or written
  2  the command line is invalid
  4  refused, such as for a lower version, and nothing was written")]
#[command(group = clap::ArgGroup::new("time").required(true).args(["at", "window"]))]
pub(crate) struct ScheduleArgs {
    /// Name of the cluster.
    #[arg(value_name = "CLUSTER")]
    cluster: ClusterName,
    /// Upgrade to this version.
    #[arg(long, value_name = "VERSION")]
    to: KubernetesVersion,
    /// Begin at this time: now, with a zone, or without one in the time zone of this host.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Begin when a window of this name is open.
    #[arg(long, value_name = "NAME")]
    window: Option<String>,
    /// Fail if it could not begin so many minutes after its time; 0 for never [default: 120, or until the window closes]
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(i32).range(0..=i64::from(MAX_MINUTES)))]
    within: Option<i32>,
    /// Take these versions on the way; others are taken at their first release.
    #[arg(long, value_name = "VERSION", value_delimiter = ',')]
    hops: Vec<KubernetesVersion>,
    /// Take only versions of this channel of the controller's version graph.
    #[arg(long, value_name = "CHANNEL")]
    channel: Option<String>,
    /// Accept this risk of the version graph, by its name.
    #[arg(long, value_name = "RISK", value_delimiter = ',')]
    accept_risk: Vec<String>,
    /// Who works through the machines: spec lets Cluster API do it and call Refit, machines lets Refit do it [default: what
    /// reaches the machines]
    #[arg(long, value_enum)]
    via: Option<ViaFlag>,
    /// Do not wait for this check of the cluster's health: ClusterApi, ControlPlane, Etcd, Nodes or Cordons.
    #[arg(long, value_name = "CHECK", value_delimiter = ',')]
    ignore_check: Vec<ClusterCheck>,
    /// Run all checks, including the API server's, without writing anything.
    #[arg(long)]
    dry_run: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// When an upgrade may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    at: Timestamp,
    within_minutes: Option<i32>,
}

/// Runs `refit schedule`.
pub(crate) fn schedule(args: &ScheduleArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let printer = Printer::new(args.output, global);
    exit::run(async {
        let cluster = client::connect(global).await?;
        let name = &args.cluster.0;
        let target = Target { kind: TargetKind::Cluster, name: name.clone() };
        target.check(&cluster).await?;
        let groups = groups_of(target.gather(&cluster).await?);
        if let Some(why) = unreachable(&groups, &args.to) {
            return Err(refused(&why));
        }
        let now = cluster.clock.now();
        let start = match (&args.at, &args.window) {
            (Some(text), _) => Start { at: time(text, now)?, within_minutes: None },
            (None, window) => {
                let window = window.as_deref().unwrap_or_default();
                next_of(&windows(&cluster, name).await?, window, now)?
            }
        };
        let before = cluster.get::<ClusterUpgrade>(name).await?;
        let requested_by = user(&cluster).await;
        let applied = request(&cluster, args, start, requested_by).await?;
        show(printer, args, &applied, before.as_ref())?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The groups of a cluster, with the versions of their Machines and of what their owners request.
fn groups_of(found: Gathered) -> Vec<GroupVersion> {
    let Gathered { control_plane, deployments, machines, .. } = found;
    let of = |owner: GroupOwner, requested: &StatedVersion, machines: Vec<&Machine>| {
        let runs = machines.iter().filter_map(|machine| machine.spec.version.version());
        GroupVersion::of(owner, runs.chain([requested.version()?]).cloned())
    };
    let is_of_plane = |machine: &Machine| machine.labels().contains_key(keys::CONTROL_PLANE);
    let plane = control_plane.iter().filter_map(|plane| {
        let members = machines.iter().filter(|machine| is_of_plane(machine));
        of(owner_of(plane), &plane.spec.version, members.collect())
    });
    let workers = deployments
        .iter()
        .filter(|one| !one.labels().contains_key(keys::EXTRA_CAPACITY))
        .filter_map(|deployment| {
            let name = deployment.name_any();
            let of_deployment =
                |machine: &&Machine| machine.labels().get(keys::DEPLOYMENT_NAME) == Some(&name);
            let members = machines.iter().filter(of_deployment);
            of(owner_of(deployment), &deployment.spec.template.spec.version, members.collect())
        });
    plane.chain(workers).collect()
}

fn owner_of<K: Resource<DynamicType = ()>>(owner: &K) -> GroupOwner {
    GroupOwner {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.name_any(),
    }
}

fn refused(message: &str) -> anyhow::Error {
    exit::error(EXIT_REFUSED, format!("nothing was written: {message}"))
}

/// Reads a time of the command line.
fn time(text: &str, now: Timestamp) -> anyhow::Result<Timestamp> {
    if text == "now" {
        return Ok(now);
    }
    let local = || {
        let read: DateTime = text.parse().ok()?;
        read.to_zoned(TimeZone::system()).ok().map(|zoned| zoned.timestamp())
    };
    let zoned = || text.parse::<Zoned>().ok().map(|zoned| zoned.timestamp());
    let read = text.parse().ok().or_else(zoned).or_else(local).with_context(|| {
        format!(
            "invalid value {text:?} for --at, expected now or a time such as 2026-12-05T22:00:00Z"
        )
    })?;
    if read < now {
        return Err(refused(&format!("{read} has passed")));
    }
    Ok(read)
}

/// The windows of the groups of a cluster.
async fn windows(cluster: &Cluster, name: &str) -> anyhow::Result<Vec<Windows>> {
    let groups: Vec<UpdateGroup> = cluster.list(&cluster.here(), "").await?;
    let of_cluster = groups.into_iter().filter(|group| group.spec.cluster_name == name);
    Ok(of_cluster.filter_map(|group| group.spec.pacing.windows).collect())
}

/// The next time at which a window of this name is open, and how long it stays so.
fn next_of(all: &[Windows], name: &str, now: Timestamp) -> anyhow::Result<Start> {
    let named: Vec<Windows> = all.iter().map(|windows| windows.named(name)).collect();
    if named.iter().all(|windows| windows.weekly.is_empty() && windows.once.is_empty()) {
        let known: BTreeSet<&str> = all.iter().flat_map(Windows::names).collect();
        let known = match known.len() {
            0 => "no window of its UpdateGroups has a name".to_owned(),
            _ => format!("there are {}", known.into_iter().collect::<Vec<_>>().join(", ")),
        };
        return Err(refused(&format!("the cluster has no window {name:?}; {known}")));
    }
    let read: Vec<Schedule> = named.iter().map(Schedule::of).collect::<Result<_, _>>()?;
    let next = read.iter().filter_map(|schedule| schedule.next_open(now)).min();
    let Some(OpenTime { from, until }) = next else {
        return Err(refused(&format!("window {name:?} opens no more")));
    };
    let at = from.max(now);
    let minutes = until.duration_since(at).as_mins();
    Ok(Start { at, within_minutes: i32::try_from(minutes.max(1)).ok() })
}

/// The name of the user, as the API server knows it; `None` if it does not answer that.
async fn user(cluster: &Cluster) -> Option<String> {
    let api: Api<SelfSubjectReview> = Api::all(cluster.client.clone());
    let review = api.create(&PostParams::default(), &SelfSubjectReview::default()).await.ok()?;
    let name = review.status?.user_info?.username?;
    let name: String = name.chars().take(MAX_REQUEST_TEXT).collect();
    (!name.is_empty()).then_some(name)
}

/// Writes the request. It replaces all of an earlier one.
async fn request(
    cluster: &Cluster,
    args: &ScheduleArgs,
    start: Start,
    requested_by: Option<String>,
) -> anyhow::Result<ClusterUpgrade> {
    let name = &args.cluster.0;
    let within = args.within.or(start.within_minutes);
    let wanted = ClusterUpgradeSpec {
        start_at: Some(Time(whole_seconds(start.at))),
        start_within_minutes: within.unwrap_or(DEFAULT_START_WITHIN_MINUTES),
        hops: Some(args.hops.clone()).filter(|hops| !hops.is_empty()),
        channel: args.channel.clone(),
        accepted_risks: args.accept_risk.clone(),
        via: args.via.map(Into::into),
        ignored_checks: args.ignore_check.clone(),
        requested_by,
        ..ClusterUpgradeSpec::to(args.to.clone())
    };
    let api = cluster.here::<ClusterUpgrade>();
    for _ in 0..ATTEMPTS {
        let known = cluster.get::<ClusterUpgrade>(name).await?;
        let verb = if known.is_some() { "patch" } else { "create" };
        let written = if let Some(known) = known {
            // There are no flags for them.
            let silences = known.spec.silences.clone();
            let extra_capacity = known.spec.extra_capacity.clone();
            let wanted = ClusterUpgradeSpec { silences, extra_capacity, ..wanted.clone() };
            let spec = merge_diff(&json!(known.spec), &json!(wanted));
            let body = json!({
                "metadata": {"resourceVersion": known.resource_version()},
                "spec": spec.unwrap_or_else(|| json!({})),
            });
            let params = PatchParams {
                dry_run: args.dry_run,
                field_manager: Some(keys::MANAGER.to_owned()),
                ..PatchParams::default()
            };
            api.patch(name, &params, &Patch::Merge(body)).await
        } else {
            let field_manager = Some(keys::MANAGER.to_owned());
            let params = PostParams { dry_run: args.dry_run, field_manager };
            api.create(&params, &ClusterUpgrade::new(name, wanted.clone())).await
        };
        match written {
            Err(error) if is_conflict(&error) => {}
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => {
                return Err(cluster.explain(error, &attempt_on::<ClusterUpgrade>(verb, name)));
            }
            Ok(written) => return Ok(written),
        }
    }
    anyhow::bail!("ClusterUpgrade/{name} keeps changing; try again")
}

/// Times of the API have no fractions.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn show(
    printer: Printer,
    args: &ScheduleArgs,
    applied: &ClusterUpgrade,
    before: Option<&ClusterUpgrade>,
) -> anyhow::Result<()> {
    let (name, spec) = (applied.name_any(), &applied.spec);
    if printer.is_json() {
        let line = json!({
            "cluster": name, "version": spec.version, "startAt": spec.start_at,
            "startWithinMinutes": spec.start_within_minutes, "dryRun": args.dry_run,
        });
        printer.result(&line.to_string())?;
        return Ok(());
    }
    let rest = if args.dry_run { " (dry run: nothing was written)" } else { "" };
    let at = spec.start_at.as_ref().map(|at| at.0.to_string()).unwrap_or_default();
    let within = match spec.start_within_minutes {
        0 => String::new(),
        minutes => format!(", or up to {minutes} minutes later"),
    };
    printer.result(&format!("ClusterUpgrade/{name}: to {} at {at}{within}{rest}", spec.version))?;
    if let Some(waits_for) = under_way(before).filter(|version| *version != spec.version) {
        printer.note(&format!("the upgrade to {waits_for} is under way, and is finished first"))?;
    }
    if !args.dry_run {
        let (program, cluster) = (program(), &args.cluster.0);
        printer.note(&format!(
            "`{program} history {cluster}` shows what becomes of it, `{program} cancel {cluster}` stops it"
        ))?;
    }
    Ok(())
}

/// The version that a cluster is being upgraded to.
fn under_way(upgrade: Option<&ClusterUpgrade>) -> Option<KubernetesVersion> {
    let history = &upgrade?.status.as_ref()?.history;
    let is_commenced =
        |record: &&UpgradeRecord| record.phase == UpgradePhase::Upgrading && was_commenced(record);
    history.iter().find(is_commenced).map(|record| record.version.clone())
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::{Day, WeeklyWindow};

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn nightly() -> Windows {
        let window = WeeklyWindow {
            name: Some("nightly".into()),
            days: vec![Day::Saturday],
            start: "22:30".into(),
            duration_minutes: 120,
            time_zone: "Europe/Berlin".into(),
            except: Vec::new(),
        };
        Windows { weekly: vec![window], once: Vec::new(), estimate_seconds: 900 }
    }

    #[test]
    fn schedule_reads_times_with_and_without_a_zone() {
        let now = at("2026-11-01T00:00:00Z");
        assert_eq!(time("now", now).unwrap(), now);
        let utc = time("2026-12-05T22:00:00Z", now).unwrap();
        assert_eq!(time("2026-12-05T23:00:00+01:00", now).unwrap(), utc);
        assert_eq!(time("2026-12-05T23:00:00[Europe/Berlin]", now).unwrap(), utc);
        assert!(time("2026-12-05 22:00", now).is_ok());
        let error = time("tomorrow", now).unwrap_err();
        assert!(error.to_string().contains("invalid value \"tomorrow\" for --at"), "{error}");
        let error = time("2026-10-05T22:00:00Z", now).unwrap_err();
        assert!(error.to_string().contains("has passed"), "{error}");
    }

    #[test]
    fn schedule_finds_the_next_window_of_a_name() {
        let start = next_of(&[nightly()], "nightly", at("2026-11-25T00:00:00Z")).unwrap();
        assert_eq!(start, Start { at: at("2026-11-28T21:30:00Z"), within_minutes: Some(120) });
        let open = next_of(&[nightly()], "nightly", at("2026-11-28T22:30:00Z")).unwrap();
        assert_eq!(open, Start { at: at("2026-11-28T22:30:00Z"), within_minutes: Some(60) });
        let error = next_of(&[nightly()], "daily", at("2026-11-25T00:00:00Z")).unwrap_err();
        assert!(error.to_string().contains("no window \"daily\"; there are nightly"), "{error}");
    }
}
