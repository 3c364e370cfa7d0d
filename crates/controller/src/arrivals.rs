//! When the reports in HostPlans arrived.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::Timestamp;
use refit_core::node::Arrival;
use refit_kinds::refit::HostPlan;
use refit_runtime::{ObjectKey, Store};

/// When the reports in the HostPlans of one store arrived, by the clock of this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals(Arc<Mutex<BTreeMap<ObjectKey, Arrival>>>);

impl Arrivals {
    /// Notes that the watch of a store delivered a HostPlan, or its deletion.
    pub(crate) fn saw(&self, plans: &Store<HostPlan>, key: ObjectKey, now: Timestamp) {
        match plans.get(&key) {
            Some(plan) => {
                self.note(key, &plan, now);
            }
            None => {
                self.lock().remove(&key);
            }
        }
    }

    /// Returns when the report in a HostPlan arrived, and notes it if the watch has not delivered it yet.
    pub(crate) fn note(
        &self,
        key: ObjectKey,
        plan: &HostPlan,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut known = self.lock();
        let arrival = Arrival::of(known.get(&key).copied(), plan, now);
        known.insert(key, arrival);
        arrival.reported_at()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, Arrival>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
