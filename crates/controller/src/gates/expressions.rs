//! Evaluates expressions of users apart from everything else: one that takes long must not keep the controller busy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use refit_core::gates::objects::{ObjectsRead, judge_objects};
use refit_kinds::refit::ObjectsGate;

use super::turns::Turn;

/// How long the objects of a gate may take.
const DEADLINE: Duration = Duration::from_secs(1);
/// Enough for the parser and any expression of the greatest length.
const STACK_BYTES: usize = 64 << 20;

/// Ends an evaluation whose result no one waits for.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether the expression of a gate is true for what was read; otherwise the error is why not. It keeps its turn until it has
/// really ended.
pub(super) async fn judge(turn: Turn, gate: &ObjectsGate, read: ObjectsRead) -> Result<(), String> {
    let stop = Arc::new(AtomicBool::default());
    let _at_the_end = Stop(stop.clone());
    let (gate, stops) = (gate.clone(), stop.clone());
    let evaluate = move || {
        let _turn = turn;
        judge_objects(&gate, &read, &|| !stops.load(Ordering::Relaxed))
    };
    let cannot = || "its expression cannot be evaluated".to_owned();
    let evaluation = tokio::task::spawn_blocking(move || {
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(evaluate);
        thread.map_err(|_| cannot())?.join().map_err(|_| cannot())?
    });
    tokio::pin!(evaluation);
    if let Ok(ended) = tokio::time::timeout(DEADLINE, &mut evaluation).await {
        return ended.map_err(|_| cannot())?;
    }
    // Its own error names the object, if it stops soon.
    stop.store(true, Ordering::Relaxed);
    match tokio::time::timeout(DEADLINE, evaluation).await {
        Ok(Ok(Err(why))) => Err(why),
        Ok(_) | Err(_) => Err(format!("its expression takes more than {} s", DEADLINE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::turns::Turns, *};

    fn gate(expression: &str) -> ObjectsGate {
        let gate = json!({"apiVersion": "v1", "kind": "Pool", "expression": expression});
        serde_json::from_value(gate).unwrap()
    }

    #[tokio::test]
    async fn an_expression_that_takes_long_is_given_up_and_others_are_evaluated() {
        let many: Vec<u32> = (0..20_000).collect();
        let objects = vec![json!({"metadata": {"name": "p"}, "a": many})];
        let read = ObjectsRead { objects, ..ObjectsRead::default() };
        let turns = Turns::new(8, 1);
        let slow = gate("self.a.all(x, self.a.all(y, x - y < 100000))");
        let fast = gate("self.a.size() == 20000");
        let (first, second) = futures::try_join!(turns.next("a"), turns.next("b")).unwrap();
        let (slow, other) =
            futures::join!(judge(first, &slow, read.clone()), judge(second, &fast, read.clone()));
        assert!(slow.unwrap_err().contains("takes"));
        assert_eq!(other, Ok(()));
        let again = turns.next("a").await.unwrap();
        assert_eq!(judge(again, &fast, read).await, Ok(()), "its turn has ended");
    }

    #[tokio::test]
    async fn no_expression_needs_more_stack_than_there_is() {
        let fill = |begin: &str, part: &str, end: &str| {
            let times = (2048 - begin.len() - end.len()) / part.len();
            format!("{begin}{}{end}", part.repeat(times))
        };
        let read = ObjectsRead { objects: vec![json!({"a": 1})], ..ObjectsRead::default() };
        let turns = Turns::new(1, 1);
        for expression in [
            format!("self.a == {}1{}", "(".repeat(31), ")".repeat(31)),
            fill("self.a == 1", " && self.a == 1", ""),
            fill("self.a > 0 ? true : ", "self.a > 0 ? true : ", "false"),
            fill("self.a == 1", "+1-1", ""),
            fill("!!", "!!", "(self.a == 1)"),
            fill("self.a == 1", "||self.a==1", ""),
            fill("self.a", ".a", " == 1"),
            fill("self", "[0]", ""),
            fill("self.a == -", "-", "1"),
            fill("self", ".filter(x,x)", ""),
        ] {
            let turn = turns.next("a").await.unwrap();
            let _ = judge(turn, &gate(&expression), read.clone()).await;
        }
    }
}
