//! The object of a run: what the suite orders, and what the watch delivers.

use std::{pin::Pin, process::Stdio, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use futures::{Stream, StreamExt as _};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, PostParams},
    runtime::watcher,
};
use refit_kinds::refit::{Gate, Stage};
use refit_predict::contract::{Event, Purpose, Refusal, Seen};
use refit_runtime::{apply, clock::instant};
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Test, request::refuses_object};
use crate::{client::Cluster, printer::Printer};

/// How long to wait before the watch begins again.
const WATCH_AGAIN: Duration = Duration::from_secs(1);
/// How long the watch may take to begin.
const WATCHED_WITHIN: Duration = Duration::from_mins(1);
/// How often a wait is shown.
const SHOW_AGAIN: Duration = Duration::from_secs(30);

type Watch = Pin<Box<dyn Stream<Item = watcher::Result<watcher::Event<DynamicObject>>> + Send>>;

/// The object of a run, and what happened to it.
pub(super) struct Watched<'a> {
    cluster: Cluster,
    api: Api<DynamicObject>,
    watch: Watch,
    name: String,
    purpose: Purpose,
    pub(super) events: Vec<Event>,
    /// Whether the watch has begun.
    has_begun: bool,
    /// Whether the list with which the watch began last had the object.
    is_listed: bool,
    /// Why the watch was interrupted, if nothing was delivered since.
    interrupted: Option<String>,
    limit: Duration,
    args: &'a Test,
    printer: Printer,
}

impl<'a> Watched<'a> {
    /// Watches for an object that does not exist yet.
    pub(super) async fn begin(
        cluster: Cluster,
        api: Api<DynamicObject>,
        name: String,
        purpose: Purpose,
        limit: Duration,
        args: &'a Test,
        printer: Printer,
    ) -> anyhow::Result<Self> {
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut watched = Self {
            watch: watcher(api.clone(), only).boxed(),
            cluster,
            api,
            name,
            purpose,
            events: Vec::new(),
            has_begun: false,
            is_listed: false,
            interrupted: None,
            limit,
            args,
            printer,
        };
        // Of writes before the first list, only the last is delivered.
        let until = instant() + WATCHED_WITHIN.max(limit);
        while !watched.has_begun {
            if !watched.next(until).await? {
                let why = watched.interrupted.unwrap_or_else(|| "no answer".to_owned());
                bail!("cannot watch object {} at {}: {why}", watched.name, watched.cluster.url);
            }
        }
        Ok(watched)
    }

    /// Makes the object, with the first gate open; false if the API server refuses it.
    pub(super) async fn create(&mut self, object: &DynamicObject) -> anyhow::Result<bool> {
        self.note("gate Stage")?;
        let created = match self.api.create(&PostParams::default(), object).await {
            // A request that was sent again, because the answer to the first one was lost.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                self.api.get(&self.name).await
            }
            created => created,
        };
        if !self.record_order(Gate::Stage, Stage::Ongoing, "create", created)? {
            return Ok(false);
        }
        self.restart().await?;
        Ok(true)
    }

    fn last(&self) -> Option<&Seen> {
        self.events.iter().rev().find_map(Event::seen)
    }

    /// The newest object, if it has the newest order.
    pub(super) fn answer(&self) -> Option<&Seen> {
        let ordered = self.events.iter().rev().find_map(Event::order);
        self.last().filter(|seen| Some(seen.generation()) >= ordered.map(Seen::generation))
    }

    pub(super) fn has_failed(&self) -> bool {
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

    async fn send_delete(&self) -> anyhow::Result<()> {
        let deleted = apply::optional(self.api.delete(&self.name, &DeleteParams::default()).await);
        deleted.map(drop).map_err(|error| self.failed("delete", error))
    }

    /// Records an order that was written; false if the API server refuses it.
    fn record_order(
        &mut self,
        gate: Gate,
        stage: Stage,
        attempt: &str,
        written: kube::Result<DynamicObject>,
    ) -> anyhow::Result<bool> {
        match written {
            Ok(written) => {
                let seen = Seen::new(self.cluster.clock.now(), serde_json::to_value(written)?);
                self.events.push(Event::Ordered(seen));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if refuses_object(&status) => {
                self.note(&format!("the API server refuses it: {}", status.message))?;
                self.events.push(Event::Refused(Refusal { gate, stage, message: status.message }));
                Ok(false)
            }
            Err(error) => Err(self.failed(attempt, error)),
        }
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
    ///
    /// After an error the watcher goes on where it was, so that nothing is missed; if the API server does not have
    /// that place any more, it begins again with a list (`docs/facts/kube-rs.md#an-interrupted-watch`).
    async fn next(&mut self, until: Instant) -> anyhow::Result<bool> {
        let event = match timeout_at(until, self.watch.next()).await {
            Err(_) => return Ok(false),
            Ok(None) => bail!("the watch of object {} has ended", self.name),
            Ok(Some(Err(error))) => {
                // Before anything waits: a caller may drop this future.
                self.record_once(Event::Interrupted);
                self.interrupted = Some(error.to_string());
                self.note(&format!("the watch is interrupted: {error}"))?;
                sleep_until(until.min(instant() + WATCH_AGAIN)).await;
                return Ok(instant() < until);
            }
            Ok(Some(Ok(event))) => event,
        };
        if matches!(event, watcher::Event::Init) {
            self.is_listed = false;
            if self.has_begun {
                self.record_once(Event::Relisted);
            }
            return Ok(true);
        }
        self.interrupted = None;
        match event {
            watcher::Event::Apply(object) => self.record(object)?,
            watcher::Event::InitApply(object) => {
                self.is_listed = true;
                self.record(object)?;
            }
            watcher::Event::Delete(_) => self.events.push(Event::Gone),
            watcher::Event::InitDone => {
                self.has_begun = true;
                // It went while the watch was interrupted.
                if !self.is_listed && self.events.contains(&Event::Deleted) {
                    self.events.push(Event::Gone);
                }
            }
            watcher::Event::Init => {}
        }
        Ok(true)
    }

    fn record_once(&mut self, event: Event) {
        if self.events.last() != Some(&event) {
            self.events.push(event);
        }
    }

    /// An error if what did not happen in time may only not have been delivered.
    fn check_watch(&self) -> anyhow::Result<()> {
        match &self.interrupted {
            Some(why) => bail!(
                "the watch of object {} was interrupted, and nothing was delivered since: {why}",
                self.name
            ),
            None => Ok(()),
        }
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
                    self.check_watch()?;
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
    pub(super) async fn until_passed(&mut self, gate: Gate) -> anyhow::Result<bool> {
        let has_passed = move |seen: &Seen| {
            seen.status.as_ref().is_ok_and(|status| status.passed >= gate)
                && (gate < Gate::Disrupt || seen.is_ready())
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

    /// Sends an abort, and waits until the provider has stopped.
    pub(super) async fn abort(&mut self, gate: Gate) -> anyhow::Result<()> {
        if self.order(gate, Stage::Abort).await?
            && self.until("the end of the abort", Seen::has_ended).await?
        {
            self.settle().await?;
        }
        Ok(())
    }

    /// Makes sure that the provider has ended its work on the machine; false if it may still be at work.
    pub(super) async fn has_ended(&mut self) -> anyhow::Result<bool> {
        if self.answer().is_some_and(Seen::has_ended) {
            return Ok(true);
        }
        // A provider that has reported nothing has not begun.
        if self.last().is_none_or(|seen| seen.object.get("status").is_none()) {
            return Ok(true);
        }
        let aborts = |refusal: &Refusal| refusal.stage == Stage::Abort;
        if !self.events.iter().filter_map(Event::refusal).any(aborts)
            && self.last().is_none_or(|seen| seen.stage() != Stage::Abort)
        {
            let gate = self.last().map(Seen::gate).unwrap_or_default();
            self.order(gate, Stage::Abort).await?;
        }
        // Without an abort, the deletion of the object is what stops the provider.
        if self.events.iter().filter_map(Event::refusal).any(aborts) {
            return Ok(true);
        }
        self.until("the end of the abort", Seen::has_ended).await
    }

    /// Opens a gate; false if it is not passed.
    pub(super) async fn open(&mut self, gate: Gate) -> anyhow::Result<bool> {
        if !self.order(gate, Stage::Ongoing).await? {
            return Ok(false);
        }
        self.restart().await?;
        self.until_passed(gate).await
    }

    /// Opens all gates after the first, as far as they are passed.
    pub(super) async fn open_all(&mut self) -> anyhow::Result<()> {
        let _ = self.until_passed(Gate::Stage).await?
            && self.open(Gate::Upgrade).await?
            && self.open(Gate::Disrupt).await?;
        Ok(())
    }

    /// Writes an order; false if the API server refuses it.
    async fn order(&mut self, gate: Gate, stage: Stage) -> anyhow::Result<bool> {
        let what = match stage {
            Stage::Abort => "abort".to_owned(),
            Stage::Ongoing => format!("gate {gate:?}"),
        };
        self.note(&what)?;
        let body = json!({"spec": {"gate": gate, "stage": stage}});
        let written = apply::merge(&self.api, &self.name, &body).await;
        self.record_order(gate, stage, "patch", written)
    }

    /// Restarts the provider, in the run of the whole update. What is delivered meanwhile is recorded.
    async fn restart(&mut self) -> anyhow::Result<()> {
        let Some(restart) = self.args.restart.as_ref().filter(|_| self.purpose == Purpose::Update)
        else {
            return Ok(());
        };
        self.note("restarting the provider")?;
        let mut shell = tokio::process::Command::new("sh");
        shell.args(["-c", restart]).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let mut ended = std::pin::pin!(shell.status());
        let status = loop {
            tokio::select! {
                biased;
                status = &mut ended => break status.context("cannot run sh for --restart")?,
                recorded = self.next(instant() + SHOW_AGAIN) => recorded?,
            };
        };
        if !status.success() {
            bail!("the command of --restart failed ({status}): {restart}");
        }
        self.events.push(Event::Restarted(self.cluster.clock.now()));
        Ok(())
    }

    /// Gives the provider time in which there is nothing to do.
    pub(super) async fn settle(&mut self) -> anyhow::Result<()> {
        self.events.push(Event::Waited);
        let until = instant() + self.args.settle;
        while instant() < until {
            self.next(until).await?;
        }
        Ok(())
    }

    /// Deletes the object, and waits until it is gone.
    pub(super) async fn delete(&mut self) -> anyhow::Result<()> {
        self.events.push(Event::Deleted);
        self.send_delete().await?;
        let until = instant() + self.limit;
        while !self.events.contains(&Event::Gone) {
            if !self.next(until).await? {
                return self.check_watch();
            }
        }
        Ok(())
    }
}
