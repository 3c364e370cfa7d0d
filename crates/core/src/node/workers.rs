//! The updaters that work through gates in one update: the agent on the host and providers, as one.
//!
//! All of them prepare at the same time. A gate that disturbs opens for one after the other, in their order; the
//! next one waits until the one before has passed it. An abort reaches all of them.

use std::sync::Arc;

use jiff::Timestamp;
use refit_kinds::refit::{
    ClaimId, Gate, NodeName, NodeUpdate, NodeUpdateStatus, Phase, ProviderObject, Role,
};

use super::{
    host::Host,
    provider::{ProviderWork, abort_older, may_be_at_work, older_work},
    seen::NodeView,
    snapshot::{Snapshot, Write},
    work_order::{WorkOrder, WorkReport, WorkState, WorkStep},
};
use crate::report::Refusal;

/// The updaters that work through gates for one NodeUpdate.
#[derive(Clone, Debug)]
pub(super) struct Workers<'a> {
    pub(super) host: Host<'a>,
    update: &'a NodeUpdate,
    objects: &'a [Arc<ProviderObject>],
    pub(super) providers: Vec<ProviderWork<'a>>,
}

impl<'a> Workers<'a> {
    pub(super) fn new(
        update: &'a NodeUpdate,
        host: Host<'a>,
        objects: &'a [Arc<ProviderObject>],
    ) -> Self {
        let parts = update.spec.provider_parts();
        let providers = parts.map(|part| ProviderWork::new(update, part, objects)).collect();
        Self { host, update, objects, providers }
    }

    /// The same workers for another NodeUpdate of the Machine.
    pub(super) fn for_update(&self, update: &'a NodeUpdate) -> Self {
        Self::new(update, self.host.for_update(update), self.objects)
    }

    /// Whether the agent on the host takes part.
    pub(super) fn has_agent(&self) -> bool {
        self.update.spec.works_on_host()
    }

    fn agent(&self) -> Option<&Host<'a>> {
        Some(&self.host).filter(|_| self.has_agent())
    }

    /// The last orders: the furthest gate of any, and whether any is to stop; `None` before the first.
    pub(super) fn ordered(&self) -> Option<WorkOrder> {
        // An update that is being stopped may have an order that it would not give today.
        let all = [self.host.ordered()].into_iter();
        all.chain(self.providers.iter().map(ProviderWork::ordered)).flatten().reduce(
            |one, other| WorkOrder {
                gate: one.gate.max(other.gate),
                abort: one.abort || other.abort,
            },
        )
    }

    /// Whether one of them has no order yet.
    pub(super) fn awaits_first_order(&self) -> bool {
        self.agent().is_some_and(|host| host.ordered().is_none())
            || self.providers.iter().any(|worker| worker.ordered().is_none())
    }

    /// The first order of the next one without, which allows it to prepare, and the steps of all.
    /// `None` if the goal has no Kubernetes version for the host.
    pub(super) fn first_order(
        &self,
        s: &Snapshot,
        node: &NodeName,
        role: Role,
        status: &NodeUpdateStatus,
    ) -> Option<(Vec<WorkStep>, Write)> {
        let of_providers = self.providers.iter().map(|worker| worker.step(status));
        if let Some(host) = self.agent().filter(|host| host.ordered().is_none()) {
            let (planned, write) = host.first_order(s, role)?;
            return Some((planned.into_iter().chain(of_providers).collect(), write));
        }
        let next = self.providers.iter().find(|worker| worker.ordered().is_none())?;
        let steps = self.host.steps().into_iter().chain(of_providers).collect();
        Some((steps, next.first_order(node, role)))
    }

    /// Whether one is past the point from which it cannot be stopped.
    pub(super) fn past_no_return(&self) -> bool {
        let mut reports = self.providers.iter().filter_map(ProviderWork::report);
        reports.any(|report| report.past_no_return && !report.has_ended())
    }

    /// Whether a provider may still be at work on the machine.
    pub(super) fn has_busy_provider(&self) -> bool {
        self.objects.iter().any(|object| may_be_at_work(object))
    }

    /// The steps of all.
    pub(super) fn steps(&self, status: &NodeUpdateStatus) -> Vec<WorkStep> {
        let of_providers = self.providers.iter().map(|worker| worker.step(status));
        self.host.steps().into_iter().chain(of_providers).collect()
    }

    fn reports(&self) -> Vec<WorkReport> {
        let of_host = self.host.ordered().map(|_| self.host.report().unwrap_or_default());
        let others = self.providers.iter().filter_map(ProviderWork::report);
        of_host.into_iter().chain(others).collect()
    }

    /// The reports of all as one; `None` until there is one.
    pub(super) fn report(&self) -> Option<WorkReport> {
        if self.providers.is_empty() {
            return self.host.report();
        }
        let reports = self.reports();
        let passed_gate = if self.awaits_first_order() { None } else { passed(&reports) };
        (!reports.is_empty()).then(|| WorkReport {
            passed_gate: passed_gate.unwrap_or_default(),
            state: state(&reports),
            past_no_return: reports.iter().any(|report| report.past_no_return),
            left_behind: reports.iter().flat_map(|report| report.left_behind.clone()).collect(),
        })
    }

    /// Gives an order after the first: to the first that lacks it, once those before it have passed the gate.
    pub(super) fn order(&self, order: WorkOrder) -> Option<Write> {
        let of_host = || (self.host.order(order), self.host.report());
        let is_ordered = self.host.ordered().is_some();
        let of_providers =
            self.providers.iter().map(|worker| (worker.order(order), worker.report()));
        for (write, report) in is_ordered.then(of_host).into_iter().chain(of_providers) {
            let report = report.unwrap_or_default();
            if order.abort {
                // What has ended has nothing to stop.
                if let Some(write) = write.filter(|_| !report.has_ended()) {
                    return Some(write);
                }
            } else if write.is_some() || report.passed_gate < order.gate {
                return write;
            }
        }
        None
    }

    /// Whether one of several has failed.
    pub(super) fn one_has_failed(&self) -> bool {
        let failed = |report: &WorkReport| match report.state {
            WorkState::Failed(_) => true,
            WorkState::Working | WorkState::Undoing | WorkState::Succeeded | WorkState::Stopped => {
                false
            }
        };
        !self.providers.is_empty() && self.reports().iter().any(failed)
    }

    /// The role for kubeadm that the steps were planned for.
    pub(super) fn role(&self) -> Option<Role> {
        let mut of_providers =
            self.providers.iter().filter_map(|worker| worker.own()?.spec.goal.role);
        self.host.role().or_else(|| of_providers.next())
    }

    /// What prevents the work from starting: an agent that is too old, or older work that has not ended.
    pub(super) fn start_refusal(
        &self,
        s: &Snapshot,
        node: &NodeName,
        role: Role,
    ) -> Option<Refusal> {
        let of_host = match self.agent() {
            Some(host) => host.start_refusal(s, node, role),
            None => self.host.older_plan(node),
        };
        of_host.or_else(|| self.older_provider(node))
    }

    /// The refusal while the provider of another NodeUpdate has not ended its work on the machine.
    pub(super) fn older_provider(&self, node: &NodeName) -> Option<Refusal> {
        older_work(self.update, self.objects).map(|older| Refusal::OlderPlanRunning {
            node: node.clone(),
            node_update: older.node_update.clone(),
        })
    }

    /// Aborts the work of another NodeUpdate, unless that NodeUpdate does so itself.
    pub(super) fn abort_orphan(&self, siblings: &[Arc<NodeUpdate>]) -> Option<Write> {
        let adopted = self.update.spec.adopts().then_some(&self.host);
        let of_host = self.agent().or(adopted).and_then(|host| host.abort_orphan(siblings));
        of_host.or_else(|| abort_older(self.update, self.objects, siblings))
    }

    /// Whether a worker, of this NodeUpdate or of another, may disturb the node: if it is not known, it may.
    pub(super) fn may_disturb(&self) -> bool {
        self.agent().is_some_and(Host::may_disturb)
            || self.providers.iter().any(ProviderWork::may_disturb)
            || self.objects.iter().any(|object| may_be_at_work(object))
    }

    /// The claims of slots that each worker knows as returned unused.
    fn returned_claims(&self) -> impl Iterator<Item = ClaimId> {
        let of_host = self.agent().map(Host::returned_claim);
        let of_providers = self.providers.iter().filter_map(ProviderWork::returned_claim);
        of_host.into_iter().chain(of_providers)
    }

    /// The newest claim for which some gate does not open any more.
    pub(super) fn returned_claim(&self) -> ClaimId {
        self.returned_claims().max().unwrap_or_else(|| self.host.returned_claim())
    }

    /// Whether no worker opens a gate for this claim any more.
    pub(super) fn know_as_returned(&self, claim: ClaimId) -> bool {
        self.returned_claims().all(|returned| returned >= claim)
    }

    /// Records with the next worker that a claim is returned unused: no gate opens for it any more.
    pub(super) fn return_claim(&self, claim: ClaimId) -> Option<Write> {
        let of_host = self.agent().filter(|host| host.returned_claim() != claim);
        let of_host = of_host.and_then(|host| host.return_claim(claim));
        of_host.or_else(|| self.providers.iter().find_map(|worker| worker.return_claim(claim)))
    }

    /// Whether the update has ended and the machine is as it was before.
    pub(super) fn ended_rolled_back(&self) -> bool {
        if self.providers.is_empty() {
            return self.host.ended_rolled_back();
        }
        let Some(status) = &self.update.status else {
            return false;
        };
        let is_known =
            |worker: &ProviderWork<'_>| worker.recorded().is_none() || worker.own().is_some();
        if !self.providers.iter().all(is_known) {
            return false;
        }
        let reports = self.reports();
        let given_up = matches!(status.phase, Phase::Failed | Phase::Stopped);
        let whole = reports.iter().all(WorkReport::is_rolled_back);
        given_up && whole && (!reports.is_empty() || status.steps.is_empty())
    }

    /// Checks that the Node shows the host as it is after this NodeUpdate; otherwise the error is what
    /// does not match.
    pub(super) fn verify(&self, node: &NodeView, now: Timestamp) -> Result<(), String> {
        self.agent().map_or(Ok(()), |host| host.verify(node, now))
    }
}

/// The gate up to which all have done everything.
fn passed(reports: &[WorkReport]) -> Option<Gate> {
    reports.iter().map(|report| report.passed_gate).min()
}

/// The state of all: none has ended before every one has.
fn state(reports: &[WorkReport]) -> WorkState {
    let is = |state: &WorkState| reports.iter().any(|report| report.state == *state);
    let failed = reports.iter().find_map(|report| match &report.state {
        WorkState::Failed(failure) => Some(WorkState::Failed(failure.clone())),
        WorkState::Working | WorkState::Undoing | WorkState::Succeeded | WorkState::Stopped => None,
    });
    if is(&WorkState::Undoing) {
        WorkState::Undoing
    } else if is(&WorkState::Working) {
        WorkState::Working
    } else if let Some(failed) = failed {
        failed
    } else if is(&WorkState::Stopped) {
        WorkState::Stopped
    } else {
        WorkState::Succeeded
    }
}
