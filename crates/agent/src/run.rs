//! The process: watch the own HostPlan, act, report.
//!
//! Three futures in one: the watch, the engine that drives the host, and the reporter. The engine
//! never waits for the API, so the agent goes on while the API server of its own cluster is down.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use kube::{Api, runtime::watcher};
use refit_api::{
    keys,
    refit::{HostFacts, HostPlan, HostPlanStatus},
};
use refit_kube::{Clock, Store, client::ClientStack, store::reflect};
use tokio::sync::watch;

use crate::{
    disk::Disk,
    engine::{self, Next, Verdict},
    host::{Host, HostError, Job, Since, UnitState},
    journal::{Journal, JournalError},
    report::{self, Trouble},
    reporter::{OwnPlan, Reporter},
    state::{Outcome, Record},
};

/// Wait before a host or a disk that did not answer is tried again.
const LOCAL_RETRY: Duration = Duration::from_secs(10);
/// Wait before an ended unit is looked at again.
const POLL: Duration = Duration::from_secs(1);

/// What an agent needs.
pub struct AgentOptions {
    /// Builds the client.
    pub stack: ClientStack,
    /// The API in which the HostPlan is.
    pub config: kube::Config,
    /// The time.
    pub clock: Clock,
    /// Name of the node, and of its HostPlan.
    pub node_name: String,
    /// The host.
    pub host: Arc<dyn Host>,
    /// Where the journal is.
    pub disk: Arc<dyn Disk>,
}

impl std::fmt::Debug for AgentOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentOptions")
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

/// Runs the agent of one host until it is dropped. Dropping it at any point loses nothing.
///
/// Boxed, so that all of it is compiled here and not in whatever crate awaits it.
pub fn run(options: AgentOptions) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(process(options))
}

async fn process(options: AgentOptions) -> anyhow::Result<()> {
    let client = options.stack.client(&options.config)?;
    let api: Api<HostPlan> = Api::namespaced(client, keys::HOST_PLAN_NAMESPACE);
    let store = Store::default();
    let (changed, changes) = watch::channel(());
    let (reports, reported) = watch::channel(None);
    let field = format!("metadata.name={}", options.node_name);
    // Boxed: they are large, and whoever embeds an agent holds this future.
    let watching = Box::pin(reflect(
        api.clone(),
        // Not from the API server's cache: an old plan in a stale list would be run again.
        watcher::Config::default().fields(&field),
        store.clone(),
        |_| {
            changed.send_replace(());
        },
    ));
    let plan = OwnPlan::new(&options.node_name, store, changes);
    let driver = Driver {
        plan: plan.clone(),
        host: options.host,
        disk: options.disk,
        clock: options.clock,
        facts: HostFacts::default(),
        started: String::new(),
        reports,
    };
    let reporter = Reporter::new(plan, api, options.clock);
    tokio::select! {
        biased;
        () = watching => anyhow::bail!("the watch of the HostPlan has ended"),
        never = Box::pin(driver.run()) => match never {},
        never = Box::pin(reporter.run(reported)) => match never {},
    }
}

/// Drives the host from the journal.
struct Driver {
    plan: OwnPlan,
    host: Arc<dyn Host>,
    disk: Arc<dyn Disk>,
    clock: Clock,
    facts: HostFacts,
    /// The unit that this process started last.
    started: String,
    reports: watch::Sender<Option<HostPlanStatus>>,
}

/// Why the driver stops for a moment.
enum Pause {
    /// The journal.
    Journal(JournalError),
    /// The host.
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
    async fn run(mut self) -> std::convert::Infallible {
        loop {
            let mut journal = match Journal::open(self.disk.clone()).await {
                Ok(journal) => journal,
                Err(error) => {
                    self.suffer(None, &error).await;
                    continue;
                }
            };
            if let Err(Pause::Host(error)) = self.refresh(&journal).await {
                tracing::warn!(%error, "the host does not answer");
            }
            loop {
                match self.step(&mut journal).await {
                    Ok(()) => {}
                    Err(Pause::Host(error)) => {
                        tracing::warn!(error = %error, "the host does not answer");
                        tokio::time::sleep(LOCAL_RETRY).await;
                    }
                    Err(Pause::Journal(error)) => {
                        self.suffer(Some(&journal), &error).await;
                        break;
                    }
                }
            }
        }
    }

    /// Reports that the journal cannot be used, and waits.
    async fn suffer(&mut self, journal: Option<&Journal>, error: &JournalError) {
        tracing::warn!(%error, "nothing is done while the journal cannot be used");
        if let Ok(facts) = self.host.facts().await {
            self.facts = facts;
        }
        let trouble = Trouble::of_journal(error);
        let state = journal.map(Journal::state).cloned().unwrap_or_default();
        let spec = self.plan.spec();
        self.send(report::report(
            &state,
            spec.as_ref(),
            &self.facts,
            Some(&trouble),
        ));
        tokio::time::sleep(LOCAL_RETRY).await;
    }

    async fn step(&mut self, journal: &mut Journal) -> Result<(), Pause> {
        // Seen from here on, so that a change between this look and the wait ends the wait.
        self.plan.mark_seen();
        let spec = self.plan.spec();
        let now = self.clock.now();
        let plan = journal
            .state()
            .plan
            .as_ref()
            .map_or_else(String::new, |plan| plan.id.clone());
        match engine::next(journal.state(), spec.as_ref(), now) {
            Next::Accept {
                plan,
                node_update,
                steps,
            } => {
                let packages = self.host.facts().await?.packages;
                let at = now;
                let record = Record::PlanAccepted {
                    plan,
                    node_update,
                    steps,
                    packages,
                    at,
                };
                self.write(journal, record).await?;
            }
            Next::SeeGate { gate } => {
                self.write(journal, Record::GateSeen { plan, gate }).await?;
            }
            Next::SeeAbort { cause } => {
                self.write(journal, Record::AbortSeen { plan, cause })
                    .await?;
            }
            Next::Start { job, attempt } => self.start(journal, plan, job, attempt).await?,
            Next::Attend {
                job,
                attempt,
                since,
            } => self.attend(journal, plan, job, attempt, since).await?,
            Next::Refuse { step, attempt, why } => {
                let record = Record::StepFinished {
                    plan,
                    step,
                    attempt,
                    outcome: Outcome::FailedForGood,
                    reason: "InvalidStep".to_owned(),
                    message: why.to_string(),
                    at: now,
                };
                self.write(journal, record).await?;
            }
            Next::End { state } => {
                let at = now;
                self.write(journal, Record::PlanEnded { plan, state, at })
                    .await?;
            }
            Next::Idle | Next::AtGate { .. } => {
                self.refresh(journal).await?;
                self.pause(Duration::try_from(report::HEARTBEAT).unwrap_or(LOCAL_RETRY))
                    .await;
            }
            Next::Backoff { until, .. } => {
                self.refresh(journal).await?;
                self.pause(self.clock.until(until)).await;
            }
        }
        Ok(())
    }

    async fn start(
        &mut self,
        journal: &mut Journal,
        plan: String,
        job: Job,
        attempt: i32,
    ) -> Result<(), Pause> {
        self.facts = self.host.facts().await?;
        let record = Record::StepStarted {
            plan: plan.clone(),
            step: job.step.clone(),
            attempt,
            unit: job.unit.clone(),
            boot_id: self.facts.boot_id.clone(),
            at: self.clock.now(),
        };
        self.write(journal, record).await?;
        tracing::info!(step = job.step, attempt, unit = job.unit, "a step starts");
        self.start_unit(journal, plan, &job, attempt).await
    }

    async fn start_unit(
        &mut self,
        journal: &mut Journal,
        plan: String,
        job: &Job,
        attempt: i32,
    ) -> Result<(), Pause> {
        if self.started == job.unit {
            // It was started and is unknown at once: not again and again without a breath.
            tokio::time::sleep(POLL).await;
        }
        self.started.clone_from(&job.unit);
        let Err(error) = self.host.start(job).await else {
            return Ok(());
        };
        let verdict = Verdict::Finish {
            outcome: Outcome::Failed,
            reason: "NotStarted",
            message: error.to_string(),
        };
        self.finish(journal, plan, job, attempt, verdict).await
    }

    async fn attend(
        &mut self,
        journal: &mut Journal,
        plan: String,
        job: Job,
        attempt: i32,
        since: Since,
    ) -> Result<(), Pause> {
        let unit = self.host.poll(&job.unit).await?;
        let mut verdict = engine::judge(&job, &since, &unit, None, self.clock.now());
        if verdict == Verdict::Look {
            let evidence = self.host.look(&job, &since).await?;
            verdict = engine::judge(&job, &since, &unit, Some(&evidence), self.clock.now());
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
            finish @ Verdict::Finish { .. } => {
                self.finish(journal, plan, &job, attempt, finish).await
            }
        }
    }

    async fn finish(
        &mut self,
        journal: &mut Journal,
        plan: String,
        job: &Job,
        attempt: i32,
        verdict: Verdict,
    ) -> Result<(), Pause> {
        let Verdict::Finish {
            outcome,
            reason,
            message,
        } = verdict
        else {
            return Ok(());
        };
        tracing::info!(
            step = job.step,
            attempt,
            ?outcome,
            reason,
            message,
            "a step ended"
        );
        let record = Record::StepFinished {
            plan,
            step: job.step.clone(),
            attempt,
            outcome,
            reason: reason.to_owned(),
            message,
            at: self.clock.now(),
        };
        self.write(journal, record).await?;
        self.host.release(&job.unit).await;
        self.refresh(journal).await
    }

    async fn write(&self, journal: &mut Journal, record: Record) -> Result<(), Pause> {
        journal.append(record).await?;
        self.publish(journal);
        Ok(())
    }

    /// Looks at the host again, then publishes.
    async fn refresh(&mut self, journal: &Journal) -> Result<(), Pause> {
        self.facts = self.host.facts().await?;
        self.publish(journal);
        Ok(())
    }

    /// Gives the reporter what there is to say. Before the host was seen there is nothing.
    fn publish(&self, journal: &Journal) {
        if self.facts != HostFacts::default() {
            self.send(report::report(journal.state(), None, &self.facts, None));
        }
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
