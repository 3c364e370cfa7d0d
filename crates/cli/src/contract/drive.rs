//! Drives a provider through one update, and records what it does.

use std::{pin::Pin, process::Stdio, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use futures::{Stream, StreamExt as _, stream};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, PostParams},
    runtime::watcher,
};
use refit_kinds::refit::{Gate, Stage};
use refit_predict::contract::{Event, Look, Purpose, Run, Seen};
use refit_runtime::{apply, clock::instant};
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Test, subject::Subject};
use crate::{
    client::Cluster,
    plan::reader::Reader,
    printer::{Printer, duration},
};

/// How long a step may take, unless an option or the Updater limits it.
const TIMEOUT: Duration = Duration::from_mins(10);
/// How long the machine may take to show what the provider has done.
const SHOWN_WITHIN: Duration = Duration::from_mins(1);
/// How often the machine is looked at meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often a wait is shown.
const SHOW_AGAIN: Duration = Duration::from_secs(30);

type Watch = Pin<Box<dyn Stream<Item = watcher::Result<watcher::Event<DynamicObject>>> + Send>>;

/// Drives the runs of a test.
pub(super) struct Driver<'a> {
    reader: &'a mut Reader,
    subject: &'a Subject,
    args: &'a Test,
    printer: Printer,
}

/// The object of a run, and what happened to it.
struct Watched<'a> {
    cluster: Cluster,
    api: Api<DynamicObject>,
    watch: Watch,
    name: String,
    purpose: Purpose,
    events: Vec<Event>,
    /// Whether the list with which the watch began last had the object.
    is_listed: bool,
    limit: Duration,
    args: &'a Test,
    printer: Printer,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        reader: &'a mut Reader,
        subject: &'a Subject,
        args: &'a Test,
        printer: Printer,
    ) -> Self {
        Self { reader, subject, args, printer }
    }

    /// Drives one run to its end, and deletes its object. Also returns whether the next run may begin: not
    /// while the provider may still be at work on the machine.
    pub(super) async fn run(&mut self, purpose: Purpose) -> anyhow::Result<(bool, Run)> {
        let before = self.subject.look(self.reader).await?;
        let restarts = match &self.args.restart {
            Some(_) => Ok(()),
            None => Err("--restart is not set".to_owned()),
        };
        let mut watched = self.create(purpose).await?;
        let staged = match purpose {
            Purpose::AbortAtStage => {
                watched.order(Gate::Stage, Stage::Abort).await?;
                watched.until_stopped().await?;
                None
            }
            Purpose::AbortAtUpgrade => {
                let staged = self.stage(&mut watched).await?;
                if staged.is_some() && watched.open(Gate::Upgrade).await? {
                    watched.order(Gate::Upgrade, Stage::Abort).await?;
                    watched.until_stopped().await?;
                }
                staged
            }
            Purpose::Delete => {
                let _ =
                    watched.until_passed(Gate::Stage).await? && watched.open(Gate::Upgrade).await?;
                watched.delete().await?;
                None
            }
            Purpose::Update => {
                let staged = self.stage(&mut watched).await?;
                if staged.is_some() && watched.open(Gate::Upgrade).await? {
                    watched.open(Gate::Disrupt).await?;
                }
                staged
            }
            Purpose::Repeat => {
                watched.open_all().await?;
                None
            }
            Purpose::OtherMachine => {
                watched.open_all().await?;
                if watched.has_failed() {
                    watched.settle().await?;
                }
                None
            }
        };
        let after = self.look_until_shown(purpose, &watched).await?;
        let has_ended = purpose == Purpose::Delete || watched.has_ended().await?;
        if purpose != Purpose::Delete {
            watched.delete().await?;
        }
        let has_ended = has_ended && watched.events.contains(&Event::Gone);
        Ok((
            has_ended,
            Run {
                purpose,
                restarts,
                version: self.subject.version(),
                before,
                staged,
                after: Some(after),
                events: watched.events,
            },
        ))
    }

    /// Makes the object of a run, with the first gate open.
    async fn create(&self, purpose: Purpose) -> anyhow::Result<Watched<'a>> {
        let object = self.subject.first_object(purpose)?;
        let cluster = self.reader.cluster.clone();
        let client = cluster.client.clone();
        let api: Api<DynamicObject> =
            Api::namespaced_with(client, &cluster.namespace, &self.subject.made);
        let name = object.name_any();
        let by_updater = self.subject.timeout_seconds().map(Duration::from_secs);
        let mut watched = Watched {
            watch: stream::pending().boxed(),
            cluster,
            api,
            name,
            purpose,
            events: Vec::new(),
            is_listed: false,
            limit: self.args.timeout.or(by_updater).unwrap_or(TIMEOUT),
            args: self.args,
            printer: self.printer,
        };
        watched.remove_left_over().await?;
        watched.watch = watch(&watched.api, &watched.name);
        watched.note("gate Stage")?;
        let created = watched.api.create(&PostParams::default(), &object).await;
        let created = created.map_err(|error| watched.failed("create", error))?;
        watched.record_order(created)?;
        watched.restart().await?;
        Ok(watched)
    }

    /// Waits until the gate Stage is passed, and looks at the machine; `None` if it is not.
    async fn stage(&mut self, watched: &mut Watched<'_>) -> anyhow::Result<Option<Look>> {
        if !watched.until_passed(Gate::Stage).await? {
            return Ok(None);
        }
        self.subject.look(self.reader).await.map(Some)
    }

    /// The machine at the end. It may take time to show what was done.
    async fn look_until_shown(
        &mut self,
        purpose: Purpose,
        watched: &Watched<'_>,
    ) -> anyhow::Result<Look> {
        let is_ready = watched.answer().is_some_and(is_ready);
        let until = instant() + SHOWN_WITHIN.min(watched.limit);
        loop {
            let look = self.subject.look(self.reader).await?;
            let version = self.subject.version();
            let shows_version = match (&version, &look.node) {
                (Some(version), Ok(node)) => node.kubelet_version == *version,
                (Some(_), Err(_)) | (None, _) => true,
            };
            let is_shown = shows_version && !matches!(look.verified, Some(Err(_)));
            if purpose != Purpose::Update || !is_ready || is_shown || instant() >= until {
                return Ok(look);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

fn watch(api: &Api<DynamicObject>, name: &str) -> Watch {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    watcher(api.clone(), only).boxed()
}

fn is_ready(seen: &Seen) -> bool {
    seen.is_observed() && seen.status.as_ref().is_ok_and(|status| status.ready)
}

impl Watched<'_> {
    fn last(&self) -> Option<&Seen> {
        self.events.iter().rev().find_map(|event| match event {
            Event::Seen(seen) => Some(seen),
            Event::Ordered(_) | Event::Waited | Event::Deleted | Event::Gone => None,
        })
    }

    /// The newest object, if it has the newest order.
    fn answer(&self) -> Option<&Seen> {
        let ordered = self.events.iter().rev().find_map(|event| match event {
            Event::Ordered(order) => Some(order.generation()),
            Event::Seen(_) | Event::Waited | Event::Deleted | Event::Gone => None,
        });
        self.last().filter(|seen| Some(seen.generation()) >= ordered)
    }

    fn has_failed(&self) -> bool {
        self.last().is_some_and(Seen::has_failed_for_good)
    }

    fn note(&self, what: &str) -> anyhow::Result<()> {
        Ok(self.printer.note(&format!("run {}: {what}", self.purpose))?)
    }

    fn failed(&self, attempt: &str, error: kube::Error) -> anyhow::Error {
        let what =
            if let kube::Error::Api(status) = error { status.message } else { error.to_string() };
        anyhow!("cannot {attempt} object {} at {}: {what}", self.name, self.cluster.url)
    }

    /// Deletes what an interrupted test has left.
    async fn remove_left_over(&self) -> anyhow::Result<()> {
        if self.is_gone().await? {
            return Ok(());
        }
        self.note("deleting what an earlier test has left")?;
        self.send_delete().await?;
        let until = instant() + self.limit;
        while !self.is_gone().await? {
            if instant() >= until {
                bail!(
                    "object {} of an earlier test does not go after {}; remove its finalizers",
                    self.name,
                    duration(i64::try_from(self.limit.as_secs()).unwrap_or(i64::MAX))
                );
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    async fn is_gone(&self) -> anyhow::Result<bool> {
        let found = apply::optional(self.api.get(&self.name).await);
        Ok(found.map_err(|error| self.failed("get", error))?.is_none())
    }

    async fn send_delete(&self) -> anyhow::Result<()> {
        let deleted = apply::optional(self.api.delete(&self.name, &DeleteParams::default()).await);
        deleted.map(drop).map_err(|error| self.failed("delete", error))
    }

    fn record_order(&mut self, written: DynamicObject) -> anyhow::Result<()> {
        let seen = Seen::new(self.cluster.clock.now(), serde_json::to_value(written)?);
        self.events.push(Event::Ordered(seen));
        Ok(())
    }

    /// Records what the watch delivered. A watch that begins again delivers the same once more.
    fn record(&mut self, object: DynamicObject) -> anyhow::Result<()> {
        let seen = Seen::new(self.cluster.clock.now(), serde_json::to_value(object)?);
        if self.last().is_none_or(|last| last.object != seen.object) {
            self.events.push(Event::Seen(seen));
        }
        Ok(())
    }

    /// Records the next thing that happens before `until`; false if nothing does.
    async fn next(&mut self, until: Instant) -> anyhow::Result<bool> {
        let event = match timeout_at(until, self.watch.next()).await {
            Err(_) => return Ok(false),
            Ok(None) => bail!("the watch of object {} has ended", self.name),
            Ok(Some(Err(error))) => {
                // The watcher begins again by itself.
                self.note(&format!("the watch is interrupted: {error}"))?;
                sleep_until(until.min(instant() + LOOK_AGAIN)).await;
                return Ok(instant() < until);
            }
            Ok(Some(Ok(event))) => event,
        };
        match event {
            watcher::Event::Apply(object) => self.record(object)?,
            watcher::Event::InitApply(object) => {
                self.is_listed = true;
                self.record(object)?;
            }
            watcher::Event::Delete(_) => self.events.push(Event::Gone),
            watcher::Event::Init => self.is_listed = false,
            // It went while the watch was interrupted.
            watcher::Event::InitDone
                if !self.is_listed && self.events.contains(&Event::Deleted) =>
            {
                self.events.push(Event::Gone);
            }
            watcher::Event::InitDone => {}
        }
        Ok(true)
    }

    /// Waits until the newest object is as wanted; false if it is not in time.
    async fn until(&mut self, what: &str, done: impl Fn(&Seen) -> bool) -> anyhow::Result<bool> {
        let start = instant();
        let end = start + self.limit;
        let mut shown = start + SHOW_AGAIN;
        loop {
            if self.answer().is_some_and(&done) {
                return Ok(true);
            }
            if !self.next(end.min(shown)).await? {
                if instant() >= end {
                    return Ok(false);
                }
                shown += SHOW_AGAIN;
                let seconds = start.elapsed().as_secs();
                let message = self.last().and_then(|seen| {
                    Some(seen.status.as_ref().ok()?.progress.as_ref()?.message.clone())
                });
                let message = message.filter(|message| !message.is_empty());
                let message = message.map(|message| format!(": {message}")).unwrap_or_default();
                self.note(&format!("waiting for {what} for {seconds}s{message}"))?;
            }
        }
    }

    /// Waits until a gate is passed, and then whether the provider waits for the next one.
    async fn until_passed(&mut self, gate: Gate) -> anyhow::Result<bool> {
        let has_passed = move |seen: &Seen| {
            seen.status.as_ref().is_ok_and(|status| status.passed >= gate)
                && (gate < Gate::Disrupt || is_ready(seen))
        };
        self.until(&format!("gate {gate:?}"), |seen| {
            seen.has_failed_for_good() || has_passed(seen) && seen.is_observed()
        })
        .await?;
        if self.has_failed() || !self.answer().is_some_and(has_passed) {
            return Ok(false);
        }
        self.settle().await?;
        Ok(true)
    }

    async fn until_stopped(&mut self) -> anyhow::Result<()> {
        let has_ended = |seen: &Seen| is_ready(seen) || seen.has_failed_for_good();
        if self.until("the end of the abort", has_ended).await? {
            self.settle().await?;
        }
        Ok(())
    }

    /// Makes sure that the provider has ended its work on the machine; false if it may still be at work.
    async fn has_ended(&mut self) -> anyhow::Result<bool> {
        let has_ended = |seen: &Seen| is_ready(seen) || seen.has_failed_for_good();
        if self.answer().is_some_and(has_ended) {
            return Ok(true);
        }
        // A provider that has reported nothing has not begun.
        if self.last().is_none_or(|seen| seen.object.get("status").is_none()) {
            return Ok(true);
        }
        if self.last().is_none_or(|seen| seen.stage() != Stage::Abort) {
            let gate = self.last().map(Seen::gate).unwrap_or_default();
            self.order(gate, Stage::Abort).await?;
        }
        self.until("the end of the abort", has_ended).await
    }

    /// Opens a gate; false if it is not passed.
    async fn open(&mut self, gate: Gate) -> anyhow::Result<bool> {
        self.order(gate, Stage::Ongoing).await?;
        self.restart().await?;
        self.until_passed(gate).await
    }

    /// Opens all gates after the first, as far as they are passed.
    async fn open_all(&mut self) -> anyhow::Result<()> {
        let _ = self.until_passed(Gate::Stage).await?
            && self.open(Gate::Upgrade).await?
            && self.open(Gate::Disrupt).await?;
        Ok(())
    }

    async fn order(&mut self, gate: Gate, stage: Stage) -> anyhow::Result<()> {
        let what = match stage {
            Stage::Abort => "abort".to_owned(),
            Stage::Ongoing => format!("gate {gate:?}"),
        };
        self.note(&what)?;
        let body = json!({"spec": {"gate": gate, "stage": stage}});
        let written = apply::merge(&self.api, &self.name, &body).await;
        let written = written.map_err(|error| self.failed("patch", error))?;
        self.record_order(written)
    }

    /// Restarts the provider, in the run of the whole update.
    async fn restart(&mut self) -> anyhow::Result<()> {
        let Some(restart) = self.args.restart.as_ref().filter(|_| self.purpose == Purpose::Update)
        else {
            return Ok(());
        };
        self.note("restarting the provider")?;
        let mut shell = tokio::process::Command::new("sh");
        shell.args(["-c", restart]).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let status = shell.status().await.context("cannot run sh for --restart")?;
        if !status.success() {
            bail!("the command of --restart failed ({status}): {restart}");
        }
        // The provider has its minute from now on.
        let now = self.cluster.clock.now();
        if let Some(Event::Ordered(order)) = self.events.last_mut() {
            order.at = now;
        }
        Ok(())
    }

    /// Gives the provider time in which there is nothing to do.
    async fn settle(&mut self) -> anyhow::Result<()> {
        self.events.push(Event::Waited);
        let until = instant() + self.args.settle;
        while instant() < until {
            self.next(until).await?;
        }
        Ok(())
    }

    /// Deletes the object, and waits until it is gone.
    async fn delete(&mut self) -> anyhow::Result<()> {
        self.events.push(Event::Deleted);
        self.send_delete().await?;
        let until = instant() + self.limit;
        while !self.events.contains(&Event::Gone) && self.next(until).await? {}
        Ok(())
    }
}
