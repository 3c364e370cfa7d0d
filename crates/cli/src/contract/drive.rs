//! Drives a provider through the runs of a test.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject},
};
use refit_kinds::refit::Gate;
use refit_predict::contract::{Event, Look, Purpose, Run, Seen};
use refit_runtime::{apply, clock::instant};

use super::{Test, preconditions, request::Retries, subject::Subject, watched::Watched};
use crate::{
    client::Cluster,
    exit,
    plan::reader::Reader,
    printer::{Printer, duration},
};

/// How long a step may take, unless an option or the Updater limits it.
const TIMEOUT: Duration = Duration::from_mins(10);
/// How long the machine may take to show what the provider has done.
const SHOWN_WITHIN: Duration = Duration::from_mins(1);
/// How often the machine is looked at meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Drives the runs of a test.
pub(super) struct Driver<'a> {
    reader: Reader,
    api: Api<DynamicObject>,
    subject: &'a Subject,
    args: &'a Test,
    printer: Printer,
    /// How long a step may take.
    limit: Duration,
    retries: Retries,
    /// Whether the Node can be read: if it once was, a failure passes by itself.
    has_read_node: bool,
    /// The runs that have finished.
    pub(super) runs: Vec<Run>,
    /// The object that exists, if a run has not finished.
    left_over: Option<String>,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        reader: Reader,
        subject: &'a Subject,
        args: &'a Test,
        printer: Printer,
    ) -> Self {
        let by_updater = subject.timeout_seconds().map(Duration::from_secs);
        let limit = args.timeout.or(by_updater).unwrap_or(TIMEOUT);
        let retries = Retries::new(limit, printer);
        let client = retries.client(&reader.cluster.client);
        let cluster = Cluster { client: client.clone(), ..reader.cluster };
        Self {
            api: Api::namespaced_with(client, &cluster.namespace, &subject.made),
            reader: Reader::new(cluster),
            subject,
            args,
            printer,
            limit,
            retries,
            has_read_node: false,
            runs: Vec::new(),
            left_over: None,
        }
    }

    /// Deletes what an interrupted test has left.
    pub(super) async fn remove_left_over(&self) -> anyhow::Result<()> {
        for purpose in Purpose::ALL {
            let name = self.subject.first_object(purpose)?.name_any();
            if self.exists(&name).await? {
                self.remove(&name).await?;
            }
        }
        Ok(())
    }

    /// Drives all runs, as far as each one leaves a machine for the next one.
    pub(super) async fn run_all(&mut self) -> anyhow::Result<()> {
        for purpose in Purpose::ALL {
            self.check().await?;
            let has_ended = self.run(purpose).await?;
            let has_reported = self.runs.iter().any(Run::has_reported);
            // What is deleted at once need not be reported.
            let is_refused = |run: &Run| run.refusal().is_some() && run.orders().next().is_some();
            if !has_ended || !has_reported && !self.runs.last().is_some_and(is_refused) {
                break;
            }
        }
        Ok(())
    }

    /// Adds the object that is left to an error.
    pub(super) fn with_left_over(&self, error: anyhow::Error) -> anyhow::Error {
        if exit::is_broken_pipe(&error) { error } else { anyhow!("{error:#}{}", self.remedy()) }
    }

    /// The error of an interrupted test.
    pub(super) fn interrupted_by(&self, number: u8) -> anyhow::Error {
        exit::interrupted_by(number, format!("the test was interrupted{}", self.remedy()))
    }

    fn remedy(&self) -> String {
        let Some(name) = &self.left_over else {
            return String::new();
        };
        let (kind, namespace) = (&self.subject.made, &self.reader.cluster.namespace);
        format!(
            "; object {name} is left: run the test again, or `kubectl delete {}.{} {name} --namespace \
             {namespace}`",
            kind.plural, kind.group
        )
    }

    async fn check(&self) -> anyhow::Result<()> {
        preconditions::check(&self.reader, &self.api, &self.subject.machine).await
    }

    async fn exists(&self, name: &str) -> anyhow::Result<bool> {
        let found = apply::optional(self.api.get(name).await);
        let url = &self.reader.cluster.url;
        Ok(found.with_context(|| format!("cannot get object {name} at {url}"))?.is_some())
    }

    async fn remove(&self, name: &str) -> anyhow::Result<()> {
        self.printer.note(&format!("deleting what an earlier test has left: {name}"))?;
        let deleted = apply::optional(self.api.delete(name, &DeleteParams::default()).await);
        let url = &self.reader.cluster.url;
        deleted.with_context(|| format!("cannot delete object {name} at {url}"))?;
        let until = instant() + self.limit;
        while self.exists(name).await? {
            if instant() >= until {
                bail!(
                    "object {name} of an earlier test does not go after {}; remove its finalizers",
                    duration(i64::try_from(self.limit.as_secs()).unwrap_or(i64::MAX))
                );
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    /// Drives one run to its end, and deletes its object. Returns whether the next run may begin: not while
    /// the provider may still be at work on the machine.
    async fn run(&mut self, purpose: Purpose) -> anyhow::Result<bool> {
        let mut run = Run {
            purpose,
            restarts: self.args.restart.as_ref().map(drop).ok_or("--restart is not set".to_owned()),
            version: self.subject.version(),
            before: self.look().await?,
            staged: None,
            after: None,
            events: Vec::new(),
        };
        let object = self.subject.first_object(purpose)?;
        let mut watched = self.watch(&object, purpose).await?;
        self.left_over = Some(object.name_any());
        let is_made = watched.create(&object).await?;
        let mut has_ended = true;
        if is_made {
            run.staged = self.open_gates(purpose, &mut watched).await?;
            run.after = Some(self.look_until_shown(purpose, &watched).await?);
            if purpose != Purpose::Delete {
                has_ended = watched.has_ended().await?;
                watched.delete().await?;
            }
        }
        let is_gone = !is_made || watched.events.contains(&Event::Gone);
        if is_gone {
            self.left_over = None;
        }
        run.events = watched.events;
        self.runs.push(run);
        Ok(has_ended && is_gone)
    }

    /// Does what the run is for. Returns the machine once the gate Stage is passed.
    async fn open_gates(
        &mut self,
        purpose: Purpose,
        watched: &mut Watched<'_>,
    ) -> anyhow::Result<Option<Look>> {
        match purpose {
            Purpose::AbortAtStage => watched.abort(Gate::Stage).await?,
            Purpose::AbortAtUpgrade => {
                let staged = self.stage(watched).await?;
                if staged.is_some() && watched.open(Gate::Upgrade).await? {
                    watched.abort(Gate::Upgrade).await?;
                }
                return Ok(staged);
            }
            Purpose::Delete => {
                let _ =
                    watched.until_passed(Gate::Stage).await? && watched.open(Gate::Upgrade).await?;
                watched.delete().await?;
            }
            Purpose::Update => {
                let staged = self.stage(watched).await?;
                if staged.is_some() && watched.open(Gate::Upgrade).await? {
                    watched.open(Gate::Disrupt).await?;
                }
                return Ok(staged);
            }
            Purpose::Repeat => watched.open_all().await?,
            Purpose::OtherMachine => {
                watched.open_all().await?;
                if watched.has_failed() {
                    watched.settle().await?;
                }
            }
        }
        Ok(None)
    }

    /// Watches for the object of a run, before it exists.
    async fn watch(&self, object: &DynamicObject, purpose: Purpose) -> anyhow::Result<Watched<'a>> {
        Watched::begin(
            self.reader.cluster.clone(),
            self.api.clone(),
            object.name_any(),
            purpose,
            self.limit,
            self.args,
            self.printer,
        )
        .await
    }

    /// Waits until the gate Stage is passed, and looks at the machine; `None` if it is not.
    async fn stage(&mut self, watched: &mut Watched<'_>) -> anyhow::Result<Option<Look>> {
        if !watched.until_passed(Gate::Stage).await? {
            return Ok(None);
        }
        self.look().await.map(Some)
    }

    /// The machine as it is now.
    async fn look(&mut self) -> anyhow::Result<Look> {
        let retries = self.has_read_node.then_some(self.retries);
        let look = self.subject.look(&mut self.reader, retries).await?;
        self.has_read_node |= look.node.is_ok();
        Ok(look)
    }

    /// The machine at the end. It may take time to show what was done.
    async fn look_until_shown(
        &mut self,
        purpose: Purpose,
        watched: &Watched<'_>,
    ) -> anyhow::Result<Look> {
        let is_ready = watched.answer().is_some_and(Seen::is_ready);
        let until = instant() + SHOWN_WITHIN.min(self.limit);
        loop {
            let look = self.look().await?;
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
