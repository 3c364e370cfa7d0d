//! Evaluates expressions of users apart from everything else: one that takes long must not keep the controller busy.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use refit_core::gates::objects::{ObjectsRead, judge_objects};
use refit_kinds::refit::ObjectsGate;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long the objects of a gate may take.
const DEADLINE: Duration = Duration::from_secs(1);
/// How many are evaluated at once.
const AT_ONCE: usize = 8;
/// How many of one namespace.
const OF_NAMESPACE: usize = 1;

/// The evaluations of all gates.
#[derive(Debug)]
pub(super) struct Expressions {
    all: Arc<Semaphore>,
    namespaces: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

impl Default for Expressions {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(AT_ONCE)), namespaces: Mutex::default() }
    }
}

/// Ends an evaluation whose result no one waits for.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Expressions {
    /// Whether the expression of a gate is true for what was read; otherwise the error is why not. It takes its turn in its
    /// namespace until it has really ended.
    pub(super) async fn judge(
        &self,
        namespace: &str,
        gate: &ObjectsGate,
        read: ObjectsRead,
    ) -> Result<(), String> {
        let turns = self.turns(namespace).await?;
        let stop = Arc::new(AtomicBool::default());
        let _at_the_end = Stop(stop.clone());
        let gate = gate.clone();
        let stops = stop.clone();
        let evaluation = tokio::task::spawn_blocking(move || {
            let _turns = turns;
            judge_objects(&gate, &read, &|| !stops.load(Ordering::Relaxed))
        });
        tokio::pin!(evaluation);
        if let Ok(ended) = tokio::time::timeout(DEADLINE, &mut evaluation).await {
            return ended.map_err(|_| "its expression cannot be evaluated".to_owned())?;
        }
        // Its own words name the object, if it stops soon.
        stop.store(true, Ordering::Relaxed);
        match tokio::time::timeout(DEADLINE, evaluation).await {
            Ok(Ok(Err(why))) => Err(why),
            Ok(_) | Err(_) => {
                Err(format!("its expression takes more than {} s", DEADLINE.as_secs()))
            }
        }
    }

    async fn turns(&self, namespace: &str) -> Result<[OwnedSemaphorePermit; 2], String> {
        let of_namespace = {
            let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
            // Those that are not in use are made again.
            namespaces.retain(|_, turns| {
                turns.available_permits() < OF_NAMESPACE || Arc::strong_count(turns) > 1
            });
            let new = || Arc::new(Semaphore::new(OF_NAMESPACE));
            namespaces.entry(namespace.to_owned()).or_insert_with(new).clone()
        };
        let ends = |_| "the controller ends".to_owned();
        let own = of_namespace.acquire_owned().await.map_err(ends)?;
        let one_of_all = self.all.clone().acquire_owned().await.map_err(ends)?;
        Ok([own, one_of_all])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn gate(expression: &str) -> ObjectsGate {
        let gate = json!({"apiVersion": "v1", "kind": "Pool", "expression": expression});
        serde_json::from_value(gate).unwrap()
    }

    #[tokio::test]
    async fn an_expression_that_takes_long_is_given_up_and_others_are_evaluated() {
        let many: Vec<u32> = (0..20_000).collect();
        let objects = vec![json!({"metadata": {"name": "p"}, "a": many})];
        let read = ObjectsRead { objects, has_more: false };
        let expressions = Expressions::default();
        let slow = gate("self.a.all(x, self.a.all(y, x + y >= 0))");
        let fast = gate("self.a.size() == 20000");
        let (slow, other) = futures::join!(
            expressions.judge("a", &slow, read.clone()),
            expressions.judge("b", &fast, read.clone()),
        );
        assert!(slow.unwrap_err().contains("takes"));
        assert_eq!(other, Ok(()));
        assert_eq!(expressions.judge("a", &fast, read).await, Ok(()), "its turn has ended");
    }

    #[tokio::test]
    async fn the_deepest_brackets_that_are_allowed_fit_the_stack_of_a_thread() {
        let deep = format!("self.a == {}1{}", "(".repeat(31), ")".repeat(31));
        let many = format!("self.a == 1{}", " && self.a == 1".repeat(130));
        let alternatives = format!("self.a == {}1", "self.a == 1 ? 1 : ".repeat(31));
        let read = ObjectsRead { objects: vec![json!({"a": 1})], has_more: false };
        for expression in [deep, many, alternatives] {
            let judged = Expressions::default().judge("a", &gate(&expression), read.clone()).await;
            assert_eq!(judged, Ok(()), "{expression}");
        }
    }
}
