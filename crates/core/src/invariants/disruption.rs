//! Violations of how much an update disturbs its machine: what its parts and its plan say is what happens.

use super::{
    Invariant, Violation,
    objects::Plan,
    observe::violation,
    state::{Key, World},
};

impl World {
    /// The violation of a Refit write that drains a node while the update of its machine keeps the pods there.
    pub(super) fn drains(&self, (cluster, node): &Key, how: &str) -> Option<Violation> {
        let (key, machine) = self.machine_of(cluster, node)?;
        let plan = self.plans.get(&(cluster.clone(), node.clone()));
        let mut unfinished = self
            .updates
            .iter()
            .filter(|(_, update)| update.machine_uid == machine.uid && !update.phase.is_final());
        let (update, most) = unfinished.find_map(|(key, update)| {
            let own = plan.filter(|plan| plan.plan_id == update.uid);
            let most = own.map_or(update.disruption, |own| own.disruption.max(update.disruption));
            (!most.drains()).then_some((key, most))
        })?;
        let message = format!("{how}, and the disruption of NodeUpdate {} is {most:?}", update.1);
        Some(violation(Invariant::Disruption, "Machine", &key.1, message))
    }

    /// The violation of a plan that disturbs its machine otherwise than its NodeUpdate and its own steps need.
    pub(super) fn disturbs_otherwise(&self, key: &Key, plan: &Plan) -> Option<Violation> {
        let update = self.updates.values().find(|update| update.uid == plan.plan_id);
        let has = plan.disruption;
        let needs_more = plan.steps.iter().find(|(_, least)| *least > has);
        let more_than_certificates = || {
            let only = update?.only_steps?;
            plan.steps.iter().find(|(step, _)| !only.contains(&step.as_str()))
        };
        let message = if let Some(update) = update.filter(|update| update.disruption > has) {
            format!("its disruption is {has:?}, and that of its NodeUpdate {:?}", update.disruption)
        } else if let Some((step, least)) = needs_more {
            format!("its disruption is {has:?}, and step {step} needs {least:?}")
        } else {
            let (step, _) = more_than_certificates()?;
            format!("it has step {step}, and its NodeUpdate only issues certificates")
        };
        Some(violation(Invariant::Disruption, "HostPlan", &key.1, message))
    }
}
