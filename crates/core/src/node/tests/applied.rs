//! The writes of a decision, applied to the objects of one machine.

use refit_kinds::{
    canonical::{K8SD, RefreshStatus},
    conditions, keys,
    refit::{Goal, PartState, PlanId, ProviderObject, ProviderStatus, Stage},
};

use super::world::{One, update};
use crate::node::*;

impl One {
    pub(super) fn apply(&mut self, decision: &Decision, write: Write) {
        self.log.push(match &write {
            Write::Updater(name) if !self.status().part(name).state.has_begun() => {
                format!("begin {name}")
            }
            write => word(write),
        });
        self.events.extend(decision.announce.iter().cloned());
        match write {
            Write::Management(ManagementWrite::Status) => {
                self.update.status = Some(decision.status.clone());
            }
            Write::Management(
                ManagementWrite::ClaimSlot(next) | ManagementWrite::ReleaseSlot(next),
            ) => self.group = Some(next),
            Write::Management(
                ManagementWrite::Guard(changes) | ManagementWrite::Unguard(changes),
            ) => {
                let machine = self.machine.as_mut().unwrap();
                let annotations = machine.metadata.annotations.get_or_insert_default();
                for (key, value) in changes {
                    match value {
                        Some(value) => annotations.insert(key, value),
                        None => annotations.remove(&key),
                    };
                }
            }
            Write::Management(ManagementWrite::Withdraw) => {
                let machine = self.machine.as_mut().unwrap();
                let annotations = machine.metadata.annotations.get_or_insert_default();
                annotations.remove(keys::UPDATE_IN_PROGRESS);
            }
            Write::Management(ManagementWrite::WithdrawForMember) => {
                let name = self.update.metadata.name.clone().unwrap();
                let machine = self.machine.as_mut().unwrap();
                let annotations = machine.metadata.annotations.get_or_insert_default();
                annotations.remove(keys::UPDATE_IN_PROGRESS);
                annotations.insert(keys::WITHDRAWN_FOR_MEMBER.to_owned(), name);
            }
            Write::Management(ManagementWrite::Again { ordinal, spec }) => {
                let mut next = update(&spec.machine_ref.name, ordinal);
                next.spec = *spec;
                self.siblings.push(next);
            }
            Write::HostPlan(spec) => self.plan.as_mut().unwrap().spec = spec,
            Write::Workload(WorkloadWrite::Cordon) => {
                let name = self.update.metadata.name.clone();
                let node = self.node_mut();
                node.unschedulable = true;
                node.cordoned_by = name;
            }
            Write::Workload(WorkloadWrite::Uncordon) => {
                let node = self.node_mut();
                node.unschedulable = false;
                node.cordoned_by = None;
            }
            Write::Workload(WorkloadWrite::Exclude) => {
                let name = self.update.metadata.name.clone();
                let node = self.node_mut();
                node.excluded = true;
                node.excluded_by = name;
            }
            Write::Workload(WorkloadWrite::Include) => {
                let node = self.node_mut();
                node.excluded = false;
                node.excluded_by = None;
            }
            Write::Workload(WorkloadWrite::Evict(pods)) => {
                let refused: Vec<_> = self
                    .refusals
                    .iter()
                    .filter(|r| pods.iter().any(|p| p.pod == r.pod && is_eviction(p.how)))
                    .cloned()
                    .collect();
                self.pods.retain(|pod| {
                    !pods.iter().any(|p| p.pod == pod.pod)
                        || refused.iter().any(|r| r.pod == pod.pod)
                });
                let decision = self.decide_with(Some(refused));
                if decision.write == Some(Write::STATUS) {
                    self.apply(&decision, Write::STATUS);
                }
            }
            Write::Provider(order) => {
                let plan_id = PlanId::of(&self.update.metadata);
                let own = |object: &&mut ProviderObject| {
                    object.updater == order.updater && object.plan_id == plan_id
                };
                if let Some(object) = self.providers.iter_mut().find(own) {
                    // The returned claim is an annotation.
                    object.generation += i64::from(object.spec != order.spec);
                    object.spec = order.spec;
                    object.returned_claim = order.returned_claim;
                } else {
                    self.providers.push(ProviderObject {
                        name: format!("{}-{}", order.updater, self.providers.len()),
                        updater: order.updater,
                        node_update: self.update.metadata.name.clone().unwrap(),
                        plan_id,
                        returned_claim: order.returned_claim,
                        generation: 1,
                        resource_version: String::new(),
                        is_deleting: false,
                        spec: order.spec,
                        status: ProviderStatus::default(),
                    });
                }
            }
            Write::OlderProvider(name, spec) => {
                let object = self.providers.iter_mut().find(|object| object.name == name).unwrap();
                object.generation += 1;
                object.spec = spec;
            }
            Write::AskUpdater(name) => {
                let now = super::world::at(self.now);
                let status = self.update.status.as_mut().unwrap();
                let part = status.parts.iter_mut().find(|part| part.updater == name).unwrap();
                *part = after_ask(part, self.callable.clone(), now);
            }
            Write::Updater(name) if name == K8SD => self.call_k8sd(),
            Write::Updater(name) => {
                let now = super::world::at(self.now);
                let status = self.update.status.as_mut().unwrap();
                let part = status.parts.iter_mut().find(|part| part.updater == name).unwrap();
                *part = match (part.state, &self.shows) {
                    (PartState::Pending | PartState::Ongoing, _) => begun(part, now),
                    (PartState::Verifying, Some(shows)) => {
                        after_verification(part, shows.clone(), now)
                    }
                    (_, shows) => after_call(part, &self.answer, shows.is_some(), now),
                };
            }
            Write::Management(ManagementWrite::MachineCondition(condition)) => {
                let status = self.machine.as_mut().unwrap().status.as_mut().unwrap();
                status.conditions.retain(|c| c.type_ != conditions::MACHINE_UP_TO_DATE);
                status.conditions.extend(condition);
            }
        }
    }

    /// Applies a write from an earlier snapshot: all evictions succeed.
    fn call_k8sd(&mut self) {
        let now = super::world::at(self.now);
        let Goal { option, certificates, .. } = self.update.spec.goal.clone();
        let status = self.update.status.as_mut().unwrap();
        let part = status.parts.iter_mut().find(|part| part.updater == K8SD).unwrap();
        let begins = match certificates {
            Some(_) => begins_attempt(part),
            None => part.state == PartState::Pending,
        };
        *part = if begins {
            attempt_begun(part, now)
        } else if let Some(certificates) = certificates {
            let seconds = certificates.lifetime_seconds.unwrap();
            self.log.push(format!("certificates for {seconds} s"));
            after_certificates(part, self.issued.pop_front().unwrap_or(Ok(now)), now)
        } else {
            match k8sd_call(part, &option.unwrap()) {
                K8sdCall::Refresh(option) => {
                    self.log.push(format!("refresh to {option}"));
                    after_refresh(part, "7", now)
                }
                K8sdCall::Status { .. } => {
                    let done = || RefreshStatus {
                        status: "Done".into(),
                        completed: true,
                        error_message: String::new(),
                    };
                    let found = self.changes.pop_front().unwrap_or_else(done);
                    let limit = Some(jiff::SignedDuration::from_hours(1));
                    let attempts = K8sdAttempts { limit, repeat_at_once: false };
                    after_status(part, &found, attempts, now)
                }
            }
        };
    }

    pub(super) fn apply_alone(&mut self, decision: &Decision, write: Write) {
        match write {
            Write::Workload(WorkloadWrite::Evict(pods)) => {
                self.pods.retain(|pod| !pods.iter().any(|p| p.pod == pod.pod));
            }
            write => self.apply(decision, write),
        }
    }
}

fn is_eviction(how: How) -> bool {
    matches!(how, How::Evict { .. })
}

/// A write as a word for tests.
pub(super) fn word(write: &Write) -> String {
    match write {
        Write::Management(ManagementWrite::Status) => "status".into(),
        Write::Management(ManagementWrite::ClaimSlot(next)) if next.slots.is_empty() => {
            "enter".into()
        }
        Write::Management(ManagementWrite::ClaimSlot(_)) => "claim".into(),
        Write::Management(ManagementWrite::ReleaseSlot(_)) => "release".into(),
        Write::Management(ManagementWrite::Guard(_)) => "guard".into(),
        Write::Management(ManagementWrite::Unguard(_)) => "unguard".into(),
        Write::Management(ManagementWrite::Again { ordinal, .. }) => format!("again {ordinal}"),
        Write::Management(ManagementWrite::Withdraw) => "withdraw".into(),
        Write::Management(ManagementWrite::WithdrawForMember) => "withdraw for member".into(),
        Write::HostPlan(spec) if spec.abort => "abort".into(),
        Write::HostPlan(spec) => format!("gate {:?}", spec.gate),
        Write::Workload(WorkloadWrite::Cordon) => "cordon".into(),
        Write::Workload(WorkloadWrite::Uncordon) => "uncordon".into(),
        Write::Workload(WorkloadWrite::Exclude) => "exclude".into(),
        Write::Workload(WorkloadWrite::Include) => "include".into(),
        Write::Workload(WorkloadWrite::Evict(pods)) => match pods.iter().map(|p| p.how).next() {
            Some(How::Delete { .. }) => "delete".into(),
            Some(How::Force) => "force".into(),
            _ => "evict".into(),
        },
        Write::Provider(order) if order.spec.stage == Stage::Abort => {
            format!("abort {}", order.updater)
        }
        Write::Provider(order) => format!("{} up to {:?}", order.updater, order.spec.gate),
        Write::OlderProvider(name, spec) => format!("{name}: {:?}", spec.stage),
        Write::AskUpdater(name) => format!("ask {name}"),
        Write::Updater(name) => format!("call {name}"),
        Write::Management(ManagementWrite::MachineCondition(None)) => "condition gone".into(),
        Write::Management(ManagementWrite::MachineCondition(Some(condition))) => {
            format!("condition {}", condition.reason)
        }
    }
}
