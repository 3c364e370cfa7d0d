//! Violations of updates that only issue certificates: pods stay, but for static ones.

use super::{
    Invariant, Violation,
    objects::Plan,
    observe::violation,
    state::{Key, World},
};

/// The steps of a plan that renews certificates.
const OF_CERTIFICATES: [&str; 3] = ["preflight", "certificates-renew", "verify"];

impl World {
    /// The violation of a Refit write that drains a node while its machine only gets certificates.
    pub(super) fn drains(&self, (cluster, node): &Key, how: &str) -> Option<Violation> {
        let (key, machine) = self.machine_of(cluster, node)?;
        let mut unfinished = self
            .updates
            .iter()
            .filter(|(_, update)| update.machine_uid == machine.uid && !update.phase.is_final());
        let (update, _) = unfinished.find(|(_, update)| update.keeps_pods)?;
        let message = format!("{how} while NodeUpdate {} only issues certificates", update.1);
        Some(violation(Invariant::PodsStay, "Machine", &key.1, message))
    }

    /// The violation of a plan that does more on a host than to renew certificates, for an update that only issues them.
    pub(super) fn more_than_certificates(&self, key: &Key, plan: &Plan) -> Option<Violation> {
        let mut updates = self.updates.values();
        updates.find(|update| update.uid == plan.plan_id && update.keeps_pods)?;
        let more = plan.steps.iter().find(|step| !OF_CERTIFICATES.contains(&step.as_str()))?;
        let message = format!("it has step {more}, and its NodeUpdate only issues certificates");
        Some(violation(Invariant::PodsStay, "HostPlan", &key.1, message))
    }
}
