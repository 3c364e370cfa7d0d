//! Changes while a host works: the update is cancelled, the goal changes, or the Machine is
//! deleted.
//!
//! Hosts are held in the middle of their work until the flow has made its checks.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab_testbed::{
    Bed, Cluster, ClusterSpec,
    cluster::error_text,
    eventually,
    objects::{
        self, HOST_PLAN, MACHINE, MACHINE_SET, NODE_UPDATE, UPDATE_GROUP, annotation,
        condition_text, name, text, uid,
    },
    wait,
};
use serde_json::{Value, json};

use super::look;

const WITHIN: Duration = Duration::from_mins(4);
/// How long a forbidden change must not happen. Cluster API calls again within this time.
const QUIET: Duration = Duration::from_secs(8);
/// Version of the control plane from the start: no kubelet may be newer.
const NEWEST: &str = "v1.35.4";
/// The step at which hosts are held: the Node is drained, and the kubelet is still the old one.
const STEP: &str = "kubelet-install";
/// Phases in which a host is disturbed.
const DISTURBED: [&str; 5] = ["Upgrading", "Draining", "Disrupting", "Verifying", "Uncordoning"];
const IN_PROGRESS: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let spec = ClusterSpec {
        control_planes: 1,
        surge: 1,
        workers: vec![("md", 2, 0, 1)],
        version: NEWEST,
        ..ClusterSpec::default()
    };
    let cluster = bed.cluster("midway", &spec).await?;
    let before = look::identities(&cluster).await?;
    let midway = Midway { bed, cluster };
    midway.given_up().await?;
    midway.another_goal().await?;
    let after = look::identities(&midway.cluster).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    midway.deleted().await?;
    look::nothing_is_left(&midway.cluster).await
}

struct Midway<'b> {
    bed: &'b Bed,
    cluster: Cluster,
}

impl Midway<'_> {
    /// Removes the mark of the update from the Machine while the host is half done.
    async fn given_up(&self) -> anyhow::Result<()> {
        let goal = "v1.35.1";
        let held = self.held(goal).await?;
        let machine = text(&held, "/spec/machineRef/name");
        let nothing = [(IN_PROGRESS, None)];
        self.cluster.objects.annotate(MACHINE, machine, &nothing).await?;
        let second = eventually("Cluster API updates the next machine", WITHIN, async || {
            let updates = look::of_goal(&self.cluster, goal).await.map_err(error_text)?;
            let other = updates.into_iter().find(|one| uid(one) != uid(&held));
            other.ok_or_else(|| "it does not".to_owned())
        })
        .await?;
        wait::never("a second machine is disturbed", QUIET, async || {
            self.half_done(&held, &second).await
        })
        .await?;
        self.resume()?;
        self.cluster.workers_are_at("md", goal, WITHIN).await?;
        for update in look::of_goal(&self.cluster, goal).await? {
            let phase = text(&update, "/status/phase");
            ensure!(phase == "Succeeded", "{} is {phase}", name(&update));
        }
        Ok(())
    }

    /// Checks that the conditions of the first host show the unfinished update, and that the second
    /// host waits.
    async fn half_done(&self, held: &Value, second: &Value) -> Result<(), String> {
        let cluster = &self.cluster;
        let get = async |kind, name| cluster.objects.get(kind, name).await.map_err(error_text);
        let machine = get(MACHINE, text(held, "/spec/machineRef/name")).await?;
        if annotation(&machine, IN_PROGRESS).is_some() {
            return Err(format!("{} is being updated again", name(&machine)));
        }
        let refit = condition_text(&machine, "MachineUpToDate");
        if !refit.starts_with("Unknown/ExternalUpgradeInProgress") {
            return Err(format!("{}: {refit}", name(&machine)));
        }
        let cluster_api = condition_text(&machine, "UpToDate");
        if cluster_api.starts_with("True") && self.bed.line != lab_testbed::Line::V1_12 {
            return Err(format!("{}: {cluster_api}", name(&machine)));
        }
        let held = get(NODE_UPDATE, name(held)).await?;
        if text(&held, "/status/phase") != "Disrupting" {
            return Err(format!("the first is {}", text(&held, "/status/phase")));
        }
        let second = get(NODE_UPDATE, name(second)).await?;
        if DISTURBED.contains(&text(&second, "/status/phase")) {
            return Err(format!("the second is {}", text(&second, "/status/phase")));
        }
        let groups = cluster.objects.list(UPDATE_GROUP).await.map_err(error_text)?;
        let slots: Vec<&str> = groups
            .iter()
            .flat_map(|group| group["status"]["slots"].as_array().into_iter().flatten())
            .map(|slot| text(slot, "/machine"))
            .collect();
        if slots != [name(&machine)] {
            return Err(format!("the slots are held by {slots:?}"));
        }
        Ok(())
    }

    /// Returns the Machines that belong to the MachineSet of a version, do not have that version,
    /// and are no longer marked for an update.
    ///
    /// They are caused by a race in Cluster API: its MachineSet controller marks a Machine and
    /// moves it with one patch against its cached state. If the Machine controller removes the mark
    /// of the previous update at that moment, the patch contains no mark, and both controllers
    /// consider the Machine up to date.
    async fn forgotten(&self, version: &str) -> anyhow::Result<Vec<String>> {
        let mut forgotten = Vec::new();
        for machine in self.cluster.worker_machines("md").await? {
            if text(&machine, "/spec/version") == version {
                continue;
            }
            let owner = text(&machine, "/metadata/ownerReferences/0/name");
            let set = self.cluster.objects.get(MACHINE_SET, owner).await?;
            let marked = machine["metadata"]["annotations"].get(IN_PROGRESS);
            if text(&set, "/spec/template/spec/version") == version && marked.is_none() {
                forgotten.push(name(&machine).to_owned());
            }
        }
        Ok(forgotten)
    }

    /// The goal in progress is reached first; the new goal gets a separate update.
    async fn another_goal(&self) -> anyhow::Result<()> {
        let (old, new) = ("v1.35.2", "v1.35.3");
        let held = self.held(old).await?;
        self.ask(new).await?;
        let asked = "a host receives the new goal before it is done with the old one";
        wait::never(asked, QUIET, async || {
            self.nothing_is_done_that_is_not(new).await?;
            let updates = look::of_goal(&self.cluster, new).await.map_err(error_text)?;
            let machine = text(&held, "/spec/machineRef/uid");
            let early = updates.iter().find(|one| text(one, "/spec/machineRef/uid") == machine);
            early.map_or(Ok(()), |early| Err(name(early).to_owned()))
        })
        .await?;
        self.resume()?;
        let reached = eventually("the new goal is reached", WITHIN, async || {
            self.nothing_is_done_that_is_not(new).await?;
            let shortly = Duration::from_millis(1);
            let reached = self.cluster.workers_are_at("md", new, shortly).await;
            reached.map_err(error_text)
        });
        let mut forgotten = Vec::new();
        if let Err(error) = reached.await {
            forgotten = self.forgotten(new).await?;
            ensure!(!forgotten.is_empty(), error);
            tracing::warn!(?forgotten, "Cluster API skipped the update of these Machines");
        }
        let held = self.cluster.objects.get(NODE_UPDATE, name(&held)).await?;
        let (phase, ended) = (text(&held, "/status/phase"), text(&held, "/status/finishedAt"));
        ensure!(phase == "Succeeded", "the NodeUpdate of the old goal is {phase}");
        let done = look::of_goal(&self.cluster, new).await?;
        ensure!(
            done.len() + forgotten.len() == 2,
            "{} NodeUpdates updated two Machines to the new goal, except {forgotten:?}",
            done.len()
        );
        for update in &done {
            let phase = text(update, "/status/phase");
            ensure!(phase == "Succeeded", "{} is {phase}", name(update));
            let begun = text(update, "/status/startedAt");
            ensure!(begun >= ended, "{} began {begun}, before {ended}", name(update));
        }
        Ok(())
    }

    /// Checks that every Machine that is reported at the goal really runs it on its host.
    async fn nothing_is_done_that_is_not(&self, goal: &str) -> Result<(), String> {
        let updates = look::of_goal(&self.cluster, goal).await.map_err(error_text)?;
        for machine in self.cluster.worker_machines("md").await.map_err(error_text)? {
            let done = updates.iter().any(|update| {
                text(update, "/spec/machineRef/name") == name(&machine)
                    && text(update, "/status/phase") == "Succeeded"
            });
            let up_to_date =
                text(&machine, "/spec/version") == goal && objects::is_true(&machine, "UpToDate");
            let runs = self
                .bed
                .hosts()
                .with(&self.cluster.namespace, name(&machine), |host| host.kubelet_version.clone());
            let runs = runs.map_err(error_text)?;
            if (done || up_to_date) && runs != goal {
                return Err(format!("{} is done, and runs {runs}", name(&machine)));
            }
        }
        Ok(())
    }

    /// The work on a host ends before its Machine is drained and deleted.
    async fn deleted(&self) -> anyhow::Result<()> {
        let held = self.held(NEWEST).await?;
        let machine = text(&held, "/spec/machineRef/name");
        self.cluster.objects.delete(MACHINE, machine).await?;
        eventually("the host is ordered to stop", WITHIN, async || {
            let plan = self.cluster.objects.get(HOST_PLAN, machine).await;
            let plan = plan.map_err(error_text)?;
            let aborts = plan["spec"]["abort"] == true;
            aborts.then_some(()).ok_or_else(|| "not yet".to_owned())
        })
        .await?;
        let waits = "the Machine waits for its host";
        wait::never("the Machine is drained", QUIET, async || {
            let found = self.cluster.objects.find(MACHINE, machine).await;
            let found = found.map_err(error_text)?.ok_or("it is gone")?;
            let deleting = condition_text(&found, "Deleting");
            let held = deleting.contains("WaitingForPreDrainHook") || !deleting.starts_with("True");
            held.then_some(()).ok_or_else(|| format!("{waits}: {deleting}"))
        })
        .await?;
        self.resume()?;
        eventually("the Machine is deleted", WITHIN, async || {
            let update = self.cluster.objects.get(NODE_UPDATE, name(&held)).await;
            let update = update.map_err(error_text)?;
            let found = self.cluster.objects.find(MACHINE, machine).await;
            let stopped = text(&update, "/status/phase") == "Stopped";
            match found.map_err(error_text)? {
                None if stopped => Ok(Ok(())),
                None => Ok(Err(format!("{machine} is gone while its host works"))),
                Some(found) => Err(condition_text(&found, "Deleting")),
            }
        })
        .await?
        .map_err(anyhow::Error::msg)?;
        self.cluster.workers_are_at("md", NEWEST, WITHIN).await
    }

    async fn ask(&self, version: &str) -> anyhow::Result<()> {
        let change = json!({"template": {"spec": {"version": version}}});
        self.cluster.change_workers("md", &change).await
    }

    /// Sets a goal, waits until a host is held in the middle of the update, and returns its
    /// NodeUpdate.
    async fn held(&self, goal: &str) -> anyhow::Result<Value> {
        // Cluster API chooses which machine is first.
        for machine in self.cluster.worker_machines("md").await? {
            let hosts = self.bed.hosts();
            hosts.hold(&self.cluster.namespace, name(&machine), STEP)?;
        }
        self.ask(goal).await?;
        let held = eventually("a host is in the middle of the update", WITHIN, async || {
            let updates = look::of_goal(&self.cluster, goal).await.map_err(error_text)?;
            let at = |update: &Value| look::step(update, STEP) == "Running";
            let found = updates.iter().position(at);
            let phases: Vec<&str> = updates.iter().map(|u| text(u, "/status/phase")).collect();
            found.and_then(|at| updates.get(at).cloned()).ok_or_else(|| format!("{phases:?}"))
        });
        held.await.with_context(|| format!("goal {goal}"))
    }

    fn resume(&self) -> anyhow::Result<()> {
        for machine in self.bed.hosts().machines(&self.cluster.namespace) {
            self.bed.hosts().resume(&self.cluster.namespace, &machine)?;
        }
        Ok(())
    }
}
