//! Expressions of CEL over objects of Kubernetes, as users write them.
//!
//! What an expression may cost is bounded: a parser must not run out of stack, and no object may keep a program busy or
//! make its memory grow.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use kube_cel::{
    KubeCelExt as _,
    cel::{
        Context, IdedExpr, Program, Value as Cel,
        common::ast::{EntryExpr, Expr},
        context::VariableResolver,
    },
};
use refit_kinds::refit::MAX_EXPRESSION;
use serde_json::Value;

/// How deep brackets, and alternatives of `?`, may be nested.
const MAX_NESTING: usize = 32;
/// How deep `all`, `exists` and others may be nested.
const MAX_LOOPS: usize = 2;
/// Functions whose result may be many times as large as what they are given.
const GROWING: [&str; 2] = ["replace", "format"];

/// An expression that can be evaluated.
#[derive(Debug)]
pub struct Expression {
    source: String,
    program: Program,
}

impl Expression {
    /// Compiles an expression that must read one of `variables`. The error is one line.
    pub fn compile(source: &str, variables: &[&str]) -> Result<Self, String> {
        if source.chars().count() > MAX_EXPRESSION {
            return Err(format!("it has more than {MAX_EXPRESSION} characters"));
        }
        if nesting(source) > MAX_NESTING {
            return Err(format!("its brackets are nested more than {MAX_NESTING} deep"));
        }
        let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
        // A parser may panic on what it does not expect.
        let program = catch_unwind(AssertUnwindSafe(|| Program::compile(source)))
            .map_err(|_| "it cannot be parsed".to_owned())?
            .map_err(|error| first_line(error.to_string()))?;
        let calls = program.references();
        if let Some(name) = GROWING.into_iter().find(|name| calls.has_function(name)) {
            return Err(format!("it calls {name}, which is not available"));
        }
        if loops(program.expression()) > MAX_LOOPS {
            return Err(format!(
                "all, exists and other loops are nested more than {MAX_LOOPS} deep"
            ));
        }
        if !variables.iter().any(|name| calls.has_variable(name)) {
            return Err(format!("it reads none of {}", variables.join(", ")));
        }
        drop(calls);
        Ok(Self { source: source.to_owned(), program })
    }

    /// Whether it reads a variable.
    pub fn reads(&self, variable: &str) -> bool {
        self.program.references().has_variable(variable)
    }

    /// Checks that it is true for these objects; otherwise the error tells what it is.
    ///
    /// It is given up when `goes_on` returns false, at the next time that it reads an object: whatever takes long does so
    /// again and again.
    pub fn check(
        &self,
        objects: &[(&str, &Value)],
        goes_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), String> {
        let source = &self.source;
        let variables = objects.iter().map(|(name, object)| (*name, cel_of(object))).collect();
        let objects = Objects { variables, goes_on };
        let mut context = Context::default().with_all();
        context.set_variable_resolver(&objects);
        let outcome = catch_unwind(AssertUnwindSafe(|| self.program.execute(&context)));
        if !goes_on() {
            return Err(format!("{source} takes too long"));
        }
        match outcome {
            Ok(Ok(Cel::Bool(true))) => Ok(()),
            Ok(Ok(Cel::Bool(false))) => Err(format!("{source} is false")),
            Ok(Ok(_)) => Err(format!("{source} is neither true nor false")),
            Ok(Err(error)) => Err(format!("{source}: {error}")),
            Err(_) => Err(format!("{source} cannot be evaluated")),
        }
    }
}

/// The objects that an expression reads, as long as it may go on.
struct Objects<'a> {
    variables: HashMap<&'a str, Cel>,
    goes_on: &'a (dyn Fn() -> bool + Sync),
}

impl VariableResolver for Objects<'_> {
    fn resolve(&self, name: &str) -> Option<Cel> {
        self.variables.get(name).filter(|_| (self.goes_on)()).cloned()
    }
}

/// How deep the brackets and the alternatives of a text are nested at most, whatever is in its strings.
fn nesting(source: &str) -> usize {
    let (mut depth, mut deepest, mut alternatives) = (0_usize, 0, 0);
    for character in source.chars() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '?' => alternatives += 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest.max(alternatives)
}

/// How deep loops are nested: `all`, `exists`, `map` and others.
fn loops(expression: &IdedExpr) -> usize {
    let all = |parts: &[IdedExpr]| parts.iter().map(loops).max().unwrap_or_default();
    match &expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => 0,
        Expr::Call(call) => all(&call.args).max(call.target.as_deref().map_or(0, loops)),
        Expr::List(list) => all(&list.elements),
        Expr::Select(select) => loops(&select.operand),
        Expr::Map(map) => map.entries.iter().map(|entry| of_entry(&entry.expr)).max().unwrap_or(0),
        Expr::Struct(object) => {
            object.entries.iter().map(|entry| of_entry(&entry.expr)).max().unwrap_or(0)
        }
        Expr::Comprehension(one) => {
            let body = [&one.loop_cond, &one.loop_step, &one.result].map(loops);
            let body = body.into_iter().max().unwrap_or_default();
            loops(&one.iter_range).max(loops(&one.accu_init)).max(1 + body)
        }
    }
}

fn of_entry(entry: &EntryExpr) -> usize {
    match entry {
        EntryExpr::StructField(field) => loops(&field.value),
        EntryExpr::MapEntry(entry) => loops(&entry.key).max(loops(&entry.value)),
    }
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
    use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

    use serde_json::json;

    use super::*;

    fn compile(source: &str) -> Result<Expression, String> {
        Expression::compile(source, &["self"])
    }

    #[test]
    fn an_expression_that_could_cost_too_much_is_refused() {
        let deep = format!("self.a == {}1{}", "(".repeat(40), ")".repeat(40));
        let alternatives = format!("self.a == {}1", "true ? 1 : ".repeat(40));
        let long = format!("self.a == '{}'", "x".repeat(2048));
        for (source, why) in [
            (&*deep, "its brackets are nested more than 32 deep"),
            (&*alternatives, "its brackets are nested more than 32 deep"),
            (&*long, "it has more than 2048 characters"),
            ("self.a.replace('a', 'aa') == ''", "it calls replace, which is not available"),
            (
                "self.a.all(x, x.b.all(y, y.c.all(z, z)))",
                "all, exists and other loops are nested more than 2 deep",
            ),
        ] {
            assert_eq!(compile(source).map(drop), Err(why.to_owned()), "{source}");
        }
        assert!(compile("self.a.map(x, x.b).filter(x, x).all(x, x.c.exists(y, y))").is_ok());
    }

    #[test]
    fn an_expression_that_takes_too_long_is_given_up() {
        let many: Vec<i64> = (0..2000).collect();
        let object = json!({"a": many});
        let loops = compile("self.a.all(x, self.a.all(y, x + y >= 0))").unwrap();
        let left = AtomicI64::new(100);
        let goes_on = || left.fetch_sub(1, Relaxed) > 0;
        let error = loops.check(&[("self", &object)], &goes_on).unwrap_err();
        assert!(error.ends_with("takes too long"), "{error}");
        assert!(left.load(Relaxed) > -10, "it went on: {left:?}");
    }
}
