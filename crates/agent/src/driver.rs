//! Drives the host from the journal: gets the next action from the engine, records it, runs it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use refit_kinds::refit::{
    FailureKind, HostFacts, HostPlanSpec, HostPlanStatus, PlanId, PlannedStep, StepType, UnreadFact,
};
use refit_runtime::{Clock, clock::instant};
use tokio::sync::watch;

use crate::{
    disk::Disk,
    engine::{self, Next},
    host::{Fact, Host, HostError, Job, Since, UnitState, facts},
    journal::{Journal, JournalError},
    judge::{Known, Verdict, judge},
    reason::Failure,
    report::{self, Trouble},
    reporter::OwnPlan,
    state::{JournalState, Record, StepOutcome},
    trust::{Extras, Refused},
    undo,
};

/// Delay before a host or a disk that did not respond is tried again.
const LOCAL_RETRY: Duration = Duration::from_secs(10);
/// Delay before an idle agent reads facts again that it could not read: a query may take a minute.
const UNREAD_RETRY: Duration = Duration::from_mins(1);
/// Delay before an ended unit is checked again.
const POLL: Duration = Duration::from_secs(1);

/// Drives the host from the journal.
pub(crate) struct Driver {
    pub(crate) plan: OwnPlan,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Clock,
    pub(crate) facts: HostFacts,
    /// The unit that this process started last.
    pub(crate) started: String,
    /// The last ended unit that this process found, and when it found it.
    pub(crate) ended: Option<(String, tokio::time::Instant)>,
    pub(crate) reports: watch::Sender<Option<HostPlanStatus>>,
    pub(crate) extras: Extras,
    /// The plan that is not trusted.
    pub(crate) refused: Option<Refused>,
}

/// Why the driver pauses.
enum Pause {
    Journal(JournalError),
    Host(HostError),
}

impl From<JournalError> for Pause {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl From<HostError> for Pause {
    fn from(error: HostError) -> Self {
        Self::Host(error)
    }
}

impl Driver {
    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) -> std::convert::Infallible {
        loop {
            let mut journal = match Journal::open(self.disk.clone()).await {
                Ok(journal) => journal,
                Err(error) => {
                    self.report_journal_error(None, &error).await;
                    continue;
                }
            };
            self.refresh(&journal).await;
            loop {
                match self.step(&mut journal).await {
                    Ok(()) => {}
                    Err(Pause::Host(error)) => {
                        self.report_trouble(Some(&journal), &Trouble::of_host(&error)).await;
                    }
                    Err(Pause::Journal(error)) => {
                        self.report_journal_error(Some(&journal), &error).await;
                        break;
                    }
                }
            }
        }
    }

    /// Reports that the journal cannot be used, and waits.
    async fn report_journal_error(&mut self, journal: Option<&Journal>, error: &JournalError) {
        if matches!(error, JournalError::Newer { .. }) {
            self.extras.notify_waits_for_newer();
        }
        self.report_trouble(journal, &Trouble::of_journal(error)).await;
    }

    /// Reports that the journal or the host cannot be used, and waits.
    async fn report_trouble(&mut self, journal: Option<&Journal>, trouble: &Trouble) {
        tracing::warn!(reason = trouble.reason, error = trouble.message, "pausing");
        self.read_facts().await;
        let state = journal.map(Journal::state).cloned().unwrap_or_default();
        let spec = self.plan.spec();
        self.send(report::report(&state, spec.as_ref(), &self.facts, Some(trouble)));
        tokio::time::sleep(LOCAL_RETRY).await;
    }

    /// The packages and versions that a rollback of these steps restores.
    async fn packages(
        &mut self,
        steps: &[PlannedStep],
    ) -> Result<BTreeMap<String, String>, HostError> {
        self.read_fact(Fact::Packages).await?;
        let mut packages = self.facts.packages.clone();
        packages.extend(self.host.versions(&undo::named_packages(steps)).await?);
        Ok(packages)
    }

    async fn step(&mut self, journal: &mut Journal) -> Result<(), Pause> {
        // The plan is marked as seen first, so that a change between here and the wait ends the
        // wait.
        self.plan.mark_seen();
        let spec = self.trusted_spec(journal.state()).await;
        let now = self.clock.now();
        let plan = journal.state().plan.as_ref().map(|plan| plan.id.clone()).unwrap_or_default();
        let next = engine::next(journal.state(), spec.as_ref(), now);
        let next = match &self.extras.policy {
            Some(policy) => policy.enforce(journal.state(), next),
            None => next,
        };
        match next {
            Next::Accept { plan, node_update, steps, point_of_no_return } => {
                let packages = match self.packages(&steps).await {
                    // There will be nothing to roll back.
                    Err(_) if spec.as_ref().is_some_and(|spec| spec.abort) => BTreeMap::new(),
                    packages => packages?,
                };
                self.host.remove_fetched().await;
                let record = Record::PlanAccepted {
                    plan,
                    node_update,
                    steps,
                    point_of_no_return,
                    packages,
                    static_pods: self.facts.static_pods.clone(),
                    at: now,
                };
                self.write(journal, record).await
            }
            Next::SeeGate { gate } => self.write(journal, Record::GateSeen { plan, gate }).await,
            Next::SeeAbort { cause } => {
                self.write(journal, Record::AbortSeen { plan, cause }).await
            }
            Next::Start { job, attempt } => self.start(journal, plan, job, attempt).await,
            Next::Attend { job, attempt, since } => {
                self.attend(journal, plan, job, attempt, since).await
            }
            Next::Refuse { step, attempt, why } => {
                let record = refusal(plan, step, attempt, &Failure::invalid(&why), now);
                self.write(journal, record).await
            }
            Next::End { state } => {
                // Before the record: an interrupted removal is then repeated.
                self.host.remove_fetched().await;
                let at = now;
                self.write(journal, Record::PlanEnded { plan, state, at }).await
            }
            Next::Idle | Next::AtGate { .. } => {
                self.refresh(journal).await;
                let heartbeat = Duration::try_from(report::HEARTBEAT).unwrap_or(LOCAL_RETRY);
                let wait = if self.facts.unread.is_empty() { heartbeat } else { UNREAD_RETRY };
                self.pause(wait).await;
                Ok(())
            }
            Next::Backoff { until, .. } => {
                self.refresh(journal).await;
                self.pause(self.clock.until(until)).await;
                Ok(())
            }
        }
    }

    /// Returns the spec if there is one, it is trusted, and no earlier host has started it.
    async fn trusted_spec(&mut self, state: &JournalState) -> Option<HostPlanSpec> {
        let plan = self.plan.get()?;
        if engine::is_of_earlier_host(state, &plan) {
            self.refuse(Refused::of_earlier_host(plan.spec.clone()));
            return None;
        }
        let trust = self.extras.trust.clone();
        let Some(trust) = trust.filter(|_| !plan.spec.plan_id.is_empty()) else {
            self.refused = None;
            return Some(plan.spec.clone());
        };
        match trust.believe(&plan).await {
            Ok(()) => {
                self.refused = None;
                Some(plan.spec.clone())
            }
            Err(error) => {
                self.refuse(Refused::new(plan.spec.clone(), &error));
                None
            }
        }
    }

    fn refuse(&mut self, refused: Refused) {
        if self.refused.as_ref() != Some(&refused) {
            tracing::warn!(plan = %refused.plan(), error = refused.message(), "plan rejected");
            self.refused = Some(refused);
        }
    }

    async fn start(
        &mut self,
        journal: &mut Journal,
        plan: PlanId,
        job: Job,
        attempt: i32,
    ) -> Result<(), Pause> {
        self.read_fact(Fact::BootId).await?;
        let record = Record::StepStarted {
            plan: plan.clone(),
            step: job.step.clone(),
            attempt,
            unit: job.unit.clone(),
            boot_id: self.facts.boot_id.clone(),
            at: self.clock.now(),
        };
        self.write(journal, record).await?;
        tracing::info!(step = job.step, attempt, unit = job.unit, "starting step");
        self.start_unit(journal, plan, &job, attempt).await
    }

    async fn start_unit(
        &mut self,
        journal: &mut Journal,
        plan: PlanId,
        job: &Job,
        attempt: i32,
    ) -> Result<(), Pause> {
        if self.started == job.unit {
            // The unit was started and is unknown at once: do not restart it in a tight loop.
            tokio::time::sleep(POLL).await;
        }
        self.started.clone_from(&job.unit);
        let Err(error) = self.host.start(job).await else {
            return Ok(());
        };
        let failure = Failure::new(FailureKind::Retriable, "NotStarted", error.to_string());
        self.finish(journal, plan, job, attempt, Err(failure)).await
    }

    async fn attend(
        &mut self,
        journal: &mut Journal,
        plan: PlanId,
        job: Job,
        attempt: i32,
        since: Since,
    ) -> Result<(), Pause> {
        let unit = self.host.poll(&job.unit).await?;
        let boot_id = match unit {
            UnitState::Unknown => {
                self.read_fact(Fact::BootId).await?;
                self.facts.boot_id.clone()
            }
            UnitState::Running | UnitState::Exited { .. } => since.boot_id.clone(),
        };
        let known = Known {
            job: &job,
            since: &since,
            boot_id: &boot_id,
            unit: &unit,
            evidence: None,
            waited: self.waited(&job.unit, &unit),
            now: self.clock.now(),
        };
        let mut verdict = judge(known);
        if verdict == Verdict::Look {
            let evidence = self.host.look(&job, &since).await?;
            let evidence = Some(&evidence);
            verdict = judge(Known { evidence, ..known });
        }
        match verdict {
            Verdict::Wait => {
                self.publish(journal);
                let host = self.host.clone();
                let ended = async {
                    if unit == UnitState::Running {
                        host.wait(&job.unit).await;
                    } else {
                        tokio::time::sleep(POLL).await;
                    }
                };
                tokio::select! {
                    biased;
                    () = self.plan.changed() => {}
                    () = ended => {}
                }
                Ok(())
            }
            Verdict::StartUnit => self.start_unit(journal, plan, &job, attempt).await,
            Verdict::Look => Ok(()),
            Verdict::Done => self.finish(journal, plan, &job, attempt, Ok(())).await,
            Verdict::Fail(failure) => {
                let ended = Err(failure);
                self.finish(journal, plan, &job, attempt, ended).await
            }
        }
    }

    /// How long this process has known that a unit ended.
    fn waited(&mut self, unit: &str, state: &UnitState) -> Duration {
        if !matches!(state, UnitState::Exited { .. }) {
            return Duration::ZERO;
        }
        match &self.ended {
            Some((known, since)) if known == unit => since.elapsed(),
            _ => {
                self.ended = Some((unit.to_owned(), instant()));
                Duration::ZERO
            }
        }
    }

    async fn finish(
        &mut self,
        journal: &mut Journal,
        plan: PlanId,
        job: &Job,
        attempt: i32,
        ended: Result<(), Failure>,
    ) -> Result<(), Pause> {
        let unchanged = ended.is_err() && self.is_unchanged(journal, &job.step).await;
        let failure = ended.err();
        let (step, reason) = (&job.step, failure.as_ref().map(|failure| failure.reason));
        tracing::info!(step, attempt, reason, unchanged, "step ended");
        let record = Record::StepFinished {
            plan,
            step: job.step.clone(),
            attempt,
            outcome: failure.as_ref().map_or(StepOutcome::Done, Failure::outcome),
            failure: failure.as_ref().map(|failure| failure.kind),
            unchanged,
            reason: reason.unwrap_or_default().to_owned(),
            message: failure.map_or_else(String::new, |failure| failure.message),
            at: self.clock.now(),
        };
        // First, because the report that a gate is passed must show the host as it is then.
        self.read_facts().await;
        self.write(journal, record).await?;
        self.host.release(&job.unit).await;
        Ok(())
    }

    /// Whether a step at the point of no return failed and the host is as it was before the plan.
    /// kubeadm restores the manifests itself when a new static pod does not come up
    /// (`docs/facts/kubeadm.md#static-pods`); everything before that step can then still be rolled
    /// back.
    async fn is_unchanged(&mut self, journal: &Journal, step: &str) -> bool {
        let Some(plan) = journal.state().live() else {
            return false;
        };
        let at_the_point = plan.irreversible().first().is_some_and(|first| {
            first.id == step && first.step_type() == Some(StepType::KubeadmUpgrade)
        });
        if !at_the_point || plan.static_pods_before.is_empty() {
            return false;
        }
        self.read_facts().await;
        self.facts.static_pods == plan.static_pods_before
    }

    async fn write(&self, journal: &mut Journal, record: Record) -> Result<(), Pause> {
        journal.append(record).await?;
        self.publish(journal);
        Ok(())
    }

    /// Reads the host's facts again. One that cannot be read keeps its last value, and is marked.
    async fn read_facts(&mut self) {
        let facts = facts::merged(self.host.facts().await, &self.facts);
        if facts.unread != self.facts.unread {
            for UnreadFact { fact, message } in &facts.unread {
                tracing::warn!(fact, error = message, "cannot read a fact of the host");
            }
        }
        self.facts = facts;
    }

    /// Reads the host's facts again, and fails if this one cannot be read.
    async fn read_fact(&mut self, fact: Fact) -> Result<(), HostError> {
        self.read_facts().await;
        facts::check(&self.facts, fact)
    }

    /// Reads the host's facts again, then publishes.
    async fn refresh(&mut self, journal: &Journal) {
        self.read_facts().await;
        self.publish(journal);
    }

    /// Hands the current report to the reporter. Before the first facts there is no report.
    fn publish(&self, journal: &Journal) {
        let state = journal.state();
        self.extras.notify_between_steps(state);
        if self.facts == HostFacts::default() {
            return;
        }
        self.send(match &self.refused {
            Some(refused) => refused.report(state, &self.facts),
            None => report::report(state, None, &self.facts, None),
        });
    }

    fn send(&self, status: HostPlanStatus) {
        self.reports.send_if_modified(|known| {
            let news = known.as_ref() != Some(&status);
            if news {
                *known = Some(status);
            }
            news
        });
    }

    async fn pause(&mut self, at_most: Duration) {
        tokio::select! {
            biased;
            () = self.plan.changed() => {}
            () = tokio::time::sleep(at_most) => {}
        }
    }
}

/// The final record of a step that cannot be run at all.
fn refusal(plan: PlanId, step: String, attempt: i32, failure: &Failure, at: Timestamp) -> Record {
    Record::StepFinished {
        plan,
        step,
        attempt,
        outcome: StepOutcome::FailedForGood,
        failure: Some(failure.kind),
        unchanged: false,
        reason: failure.reason.to_owned(),
        message: failure.message.clone(),
        at,
    }
}
