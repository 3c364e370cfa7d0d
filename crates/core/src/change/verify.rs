//! Whether a machine's objects show what an Updater has done: CEL over their statuses.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use kube_cel::{
    KubeCelExt as _,
    cel::{Context, Program, Value as Cel},
};
use serde_json::Value;

/// The objects of a machine, as expressions of an Updater name them.
#[derive(Clone, Debug)]
pub struct Verified {
    /// `machine`: the Machine.
    pub machine: Value,
    /// `infrastructureMachine`: its infrastructure machine.
    pub infrastructure_machine: Value,
    /// `node`: its Node.
    pub node: Value,
}

/// The names that an expression may use.
const VARIABLES: [&str; 3] = ["machine", "infrastructureMachine", "node"];

/// Whether one of the expressions reads an object.
pub fn reads(expressions: &[String], variable: &str) -> bool {
    let programs = expressions.iter().filter_map(|expression| compiled(expression).ok());
    programs.into_iter().any(|program| program.references().has_variable(variable))
}

/// Compiles an expression; the error is the first line of what is wrong with it.
pub(super) fn compiled(expression: &str) -> Result<Program, String> {
    let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
    // A parser may panic on what it does not expect.
    match catch_unwind(AssertUnwindSafe(|| Program::compile(expression))) {
        Ok(outcome) => {
            let program = outcome.map_err(|error| first_line(error.to_string()))?;
            let reads = VARIABLES.iter().any(|name| program.references().has_variable(name));
            if reads {
                Ok(program)
            } else {
                Err(format!("it reads none of {}", VARIABLES.join(", ")))
            }
        }
        Err(_) => Err("it cannot be parsed".to_owned()),
    }
}

/// Checks that every expression is true; otherwise the error names the first one that is not.
pub fn verified(expressions: &[String], objects: &Verified) -> Result<(), String> {
    expressions.iter().try_for_each(|expression| {
        let program = compiled(expression)?;
        let mut context = Context::default().with_all();
        for (name, value) in [
            ("machine", &objects.machine),
            ("infrastructureMachine", &objects.infrastructure_machine),
            ("node", &objects.node),
        ] {
            context.add_variable_from_value(name, cel_of(value));
        }
        match catch_unwind(AssertUnwindSafe(|| program.execute(&context))) {
            Ok(Ok(Cel::Bool(true))) => Ok(()),
            Ok(Ok(Cel::Bool(false))) => Err(format!("{expression} is false")),
            Ok(Ok(_)) => Err(format!("{expression} is neither true nor false")),
            Ok(Err(error)) => Err(format!("{expression}: {error}")),
            Err(_) => Err(format!("{expression} cannot be evaluated")),
        }
    })
}

/// A value as Kubernetes gives it to CEL: whole numbers are integers.
fn cel_of(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Cel::Int(whole),
            None => Cel::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(cel_of).collect())),
        Value::Object(members) => {
            let members: HashMap<String, Cel> =
                members.iter().map(|(key, value)| (key.clone(), cel_of(value))).collect();
            members.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(expression: &str) -> Result<(), String> {
        let objects = Verified {
            machine: json!({"metadata": {"name": "m"}}),
            infrastructure_machine: json!({"status": {"ready": true, "memoryMiB": 8192, "disks": [{"size": 1}]}}),
            node: json!({"status": {"capacity": {"memory": "8Gi"}}}),
        };
        verified(&[expression.to_owned()], &objects)
    }

    #[test]
    fn an_expression_reads_the_objects() {
        for true_one in [
            "infrastructureMachine.status.ready",
            "infrastructureMachine.status.memoryMiB == 8192",
            "infrastructureMachine.status.disks.all(d, d.size >= 1)",
            "node.status.capacity.memory == '8Gi' && machine.metadata.name == 'm'",
            "has(infrastructureMachine.status.ready)",
        ] {
            assert_eq!(check(true_one), Ok(()), "{true_one}");
        }
    }

    #[test]
    fn an_expression_that_is_not_true_is_named() {
        for (expression, why) in [
            ("infrastructureMachine.status.memoryMiB > 9000", "is false"),
            ("infrastructureMachine.status.memoryMiB", "neither true nor false"),
            ("infrastructureMachine.status.absent", "infrastructureMachine.status.absent: "),
        ] {
            let error = check(expression).unwrap_err();
            assert!(error.starts_with(expression) && error.contains(why), "{error}");
        }
    }

    #[test]
    fn rubbish_is_refused_in_one_line() {
        let unknown = compiled("infraMachine.status.ready").map(drop).unwrap_err();
        assert_eq!(unknown, "it reads none of machine, infrastructureMachine, node");
        assert!(compiled("machine.status.conditions.all(c, c.status == 'True')").is_ok());
        for rubbish in ["", "a ==", "((", "'", "\u{0}", "a b c", "1 +* 2"] {
            let error = compiled(rubbish).map(drop).unwrap_err();
            assert!(!error.is_empty() && !error.contains('\n'), "{rubbish:?}: {error:?}");
        }
    }
}
