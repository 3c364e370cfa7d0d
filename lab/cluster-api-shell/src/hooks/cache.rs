//! Results cached between calls, in memory as in Cluster API: a restart loses them.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use refit_runtime::ObjectKey;

/// How long a result is cached.
const TTL: SignedDuration = SignedDuration::from_hours(24);

/// Results of CanUpdateMachineSet by the pair of MachineSets; positive and negative ones are cached
/// (`docs/facts/machine-deployment.md#canupdatemachineset`).
#[derive(Debug, Default)]
pub(crate) struct DecisionCache(BTreeMap<(ObjectKey, ObjectKey), (bool, Timestamp)>);

impl DecisionCache {
    /// The result for a pair, unless it has expired.
    pub(crate) fn get(&self, old: &ObjectKey, new: &ObjectKey, now: Timestamp) -> Option<bool> {
        let (answer, since) = self.0.get(&(old.clone(), new.clone()))?;
        (now.duration_since(*since) < TTL).then_some(*answer)
    }

    /// Caches a result.
    pub(crate) fn put(&mut self, old: ObjectKey, new: ObjectKey, answer: bool, now: Timestamp) {
        self.0.retain(|_, (_, since)| now.duration_since(*since) < TTL);
        self.0.insert((old, new), (answer, now));
    }

    /// Removes the results for a deleted MachineSet.
    pub(crate) fn forget(&mut self, set: &ObjectKey) {
        self.0.retain(|(old, new), _| old != set && new != set);
    }
}

/// When UpdateMachine may be called again for a Machine, and its last message
/// (`docs/facts/machine.md#in-place-update`, step 8).
#[derive(Debug, Default)]
pub(crate) struct CallCache(BTreeMap<ObjectKey, Call>);

#[derive(Debug)]
struct Call {
    at: Timestamp,
    due: Timestamp,
    message: String,
}

impl CallCache {
    /// How long to wait for the next call, and the last message; `None` if the call is due.
    pub(crate) fn wait(
        &self,
        machine: &ObjectKey,
        now: Timestamp,
    ) -> Option<(SignedDuration, String)> {
        let call = self.0.get(machine)?;
        let rest = call.due.duration_since(now);
        (rest > SignedDuration::ZERO).then(|| (rest, call.message.clone()))
    }

    /// Records that the extension asked for another call after some seconds.
    pub(crate) fn put(
        &mut self,
        machine: ObjectKey,
        now: Timestamp,
        retry_after_seconds: i32,
        message: String,
    ) {
        self.0.retain(|_, call| now.duration_since(call.at) < TTL);
        let due = now + SignedDuration::from_secs(i64::from(retry_after_seconds));
        self.0.insert(machine, Call { at: now, due, message });
    }

    /// Removes a Machine whose update is complete.
    pub(crate) fn forget(&mut self, machine: &ObjectKey) {
        self.0.remove(machine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("default", name)
    }

    #[test]
    fn negative_and_positive_results_are_cached_equally_long() {
        let mut cache = DecisionCache::default();
        cache.put(key("old"), key("new"), false, at(0));
        cache.put(key("older"), key("new"), true, at(0));
        let day = 24 * 3600;
        assert_eq!(cache.get(&key("old"), &key("new"), at(day - 1)), Some(false));
        assert_eq!(cache.get(&key("older"), &key("new"), at(day - 1)), Some(true));
        assert_eq!(cache.get(&key("old"), &key("new"), at(day)), None);
        assert_eq!(cache.get(&key("new"), &key("old"), at(0)), None);
        cache.forget(&key("old"));
        assert_eq!(cache.get(&key("old"), &key("new"), at(0)), None);
        assert!(cache.get(&key("older"), &key("new"), at(0)).is_some());
    }

    #[test]
    fn a_call_is_due_after_the_extensions_retry_seconds() {
        let mut cache = CallCache::default();
        assert_eq!(cache.wait(&key("m"), at(0)), None);
        cache.put(key("m"), at(0), 5, "draining".to_owned());
        let (rest, message) = cache.wait(&key("m"), at(2)).unwrap();
        assert_eq!((rest.as_secs(), message.as_str()), (3, "draining"));
        assert_eq!(cache.wait(&key("m"), at(5)), None);
        cache.put(key("m"), at(5), 5, "draining".to_owned());
        cache.forget(&key("m"));
        assert_eq!(cache.wait(&key("m"), at(6)), None);
    }
}
