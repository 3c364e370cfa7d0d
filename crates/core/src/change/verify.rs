//! Whether a machine's objects show what an Updater has done: CEL over their statuses.

use serde_json::Value;

use crate::cel::Expression;

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
    let compiled = expressions.iter().filter_map(|expression| compiled(expression).ok());
    compiled.into_iter().any(|expression| expression.reads(variable))
}

/// Compiles an expression; the error is the first line of what is wrong with it.
pub(super) fn compiled(expression: &str) -> Result<Expression, String> {
    Expression::compile(expression, &VARIABLES)
}

/// Checks that every expression is true; otherwise the error names the first one that is not.
pub fn verified(expressions: &[String], objects: &Verified) -> Result<(), String> {
    let Verified { machine, infrastructure_machine, node } = objects;
    let [of_machine, of_infrastructure, of_node] = VARIABLES;
    let objects =
        [(of_machine, machine), (of_infrastructure, infrastructure_machine), (of_node, node)];
    // Only cluster administrators write them.
    expressions.iter().try_for_each(|expression| compiled(expression)?.check(&objects, &|| true))
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
