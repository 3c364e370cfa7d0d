//! Whether an expression is true for each object of a gate.

use refit_kinds::refit::{MAX_GATE_OBJECTS, ObjectsGate};
use serde_json::Value;

use super::some_of;
use crate::cel::{self, Expression};

/// How large an object may be, in bytes of its JSON.
const MAX_OBJECT_BYTES: usize = 256 << 10;
/// How large all of them may be.
const MAX_BYTES: usize = 8 << 20;
/// The name of the object in the expression.
const SELF: &str = "self";

/// What was read of the objects of a gate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectsRead {
    /// At most [`MAX_GATE_OBJECTS`] objects.
    pub objects: Vec<Value>,
    /// Whether there are more.
    pub has_more: bool,
    /// The bytes of their JSON.
    pub bytes: usize,
}

impl ObjectsRead {
    /// Adds an object, unless there are too many already. The error is that it is too large, or all of them are.
    pub fn add(&mut self, kind: &str, mut object: Value) -> Result<(), String> {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let bytes = object.to_string().len();
        self.bytes = self.bytes.saturating_add(bytes);
        if bytes > MAX_OBJECT_BYTES {
            let name = named(kind, &object);
            return Err(format!("{name} has more than {} KiB", MAX_OBJECT_BYTES >> 10));
        }
        if self.bytes > MAX_BYTES {
            let most = MAX_BYTES >> 20;
            return Err(format!(
                "the objects of kind {kind} have more than {most} MiB: select fewer"
            ));
        }
        if i32::try_from(self.objects.len()).is_ok_and(|count| count < MAX_GATE_OBJECTS) {
            self.objects.push(object);
        } else {
            self.has_more = true;
        }
        Ok(())
    }
}

/// Whether the expression is true for each object, and there are enough of them. It is given up when `goes_on` returns
/// false.
pub fn judge_objects(
    gate: &ObjectsGate,
    read: &ObjectsRead,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Result<(), String> {
    let ObjectsGate { kind, at_least, expression, .. } = gate;
    if read.has_more {
        return Err(format!(
            "there are more than {MAX_GATE_OBJECTS} objects of kind {kind}: select fewer"
        ));
    }
    let shown = cel::shown(expression);
    let compiled =
        Expression::compile(expression, &[SELF]).map_err(|why| format!("{shown}: {why}"))?;
    let count = read.objects.len();
    if i32::try_from(count).is_ok_and(|count| count < *at_least) {
        return Err(format!("there are {count} objects of kind {kind}, and atLeast is {at_least}"));
    }
    let mut failing = Vec::new();
    for object in &read.objects {
        let name = named(kind, object);
        if !goes_on() {
            return Err(format!("{name}: {shown} takes too long"));
        }
        if let Err(why) = compiled.check(&[(SELF, object)], goes_on) {
            failing.push((name, why));
        }
    }
    let Some((first, why)) = failing.first() else { return Ok(()) };
    if failing.iter().all(|(_, other)| other == why) {
        let names: Vec<String> = failing.iter().map(|(name, _)| name.clone()).collect();
        return Err(format!("{}: {why}", some_of(&names)));
    }
    Err(format!("{first}: {why}; and {} more", failing.len().saturating_sub(1)))
}

fn named(kind: &str, object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let name = text("/metadata/name").unwrap_or("without name");
    match text("/metadata/namespace") {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn gate(expression: &str, at_least: i32) -> ObjectsGate {
        let gate = json!({"apiVersion": "v1", "kind": "Pool", "expression": expression, "atLeast": at_least});
        serde_json::from_value(gate).unwrap()
    }

    fn pools(states: &[&str]) -> ObjectsRead {
        let pool = |(number, state): (usize, &&str)| json!({"metadata": {"name": format!("p{number}"), "namespace": "db"}, "state": state});
        ObjectsRead {
            objects: states.iter().enumerate().map(pool).collect(),
            ..ObjectsRead::default()
        }
    }

    fn judge(gate: &ObjectsGate, read: &ObjectsRead) -> Result<(), String> {
        judge_objects(gate, read, &|| true)
    }

    #[test]
    fn an_expression_must_be_true_for_each_object_and_there_must_be_enough() {
        let good = gate("self.state == 'good'", 1);
        assert_eq!(judge(&good, &pools(&["good", "good"])), Ok(()));
        assert_eq!(
            judge(&good, &pools(&["bad", "good", "bad"])),
            Err("Pool db/p0, Pool db/p2: self.state == 'good' is false".to_owned())
        );
        assert_eq!(
            judge(&good, &pools(&[])),
            Err("there are 0 objects of kind Pool, and atLeast is 1".to_owned())
        );
        assert_eq!(judge(&gate("self.state == 'good'", 0), &pools(&[])), Ok(()));
        let more = ObjectsRead { has_more: true, ..pools(&["good"]) };
        let error = judge(&good, &more).unwrap_err();
        assert_eq!(error, "there are more than 500 objects of kind Pool: select fewer");
    }

    #[test]
    fn a_gate_whose_expression_cannot_be_evaluated_is_closed() {
        let absent = judge(&gate("self.absent == 1", 0), &pools(&["x"])).unwrap_err();
        assert!(absent.starts_with("Pool db/p0: self.absent == 1: "), "{absent}");
        let wrong = judge(&gate("self.state ==", 0), &pools(&[])).unwrap_err();
        assert!(wrong.starts_with("self.state ==: "), "{wrong}");
        let other = judge(&gate("node.state == 1", 0), &pools(&[])).unwrap_err();
        assert_eq!(other, "node.state == 1: it reads none of self");
        let mut read = ObjectsRead::default();
        let metadata = json!({"name": "p0", "namespace": "db"});
        let large = json!({"metadata": metadata, "text": "x".repeat(300 << 10)});
        assert_eq!(read.add("Pool", large), Err("Pool db/p0 has more than 256 KiB".to_owned()));
        for _ in 0..=MAX_GATE_OBJECTS {
            read.add("Pool", json!({})).unwrap();
        }
        assert_eq!((read.objects.len(), read.has_more), (500, true));
        let many = || json!({"metadata": {"managedFields": "x".repeat(300 << 10)}, "text": "x".repeat(200 << 10)});
        let outcome = (0..50).try_for_each(|_| read.add("Pool", many()));
        assert_eq!(
            outcome,
            Err("the objects of kind Pool have more than 8 MiB: select fewer".to_owned())
        );
        let late = judge_objects(&gate("self.state == 'x'", 0), &pools(&["x", "x"]), &|| false);
        assert_eq!(late, Err("Pool db/p0: self.state == 'x' takes too long".to_owned()));
    }
}
