//! Expressions of CEL over objects of Kubernetes, as users write them.
//!
//! What an expression may cost is bounded: a parser must not run out of stack, and no object may keep a program busy or
//! make its memory grow. So only what tests values is available, nothing that makes larger ones, and each round of a loop
//! asks whether it may go on.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use kube_cel::{
    KubeCelExt as _,
    cel::{
        Context, ExecutionError, IdedExpr, Program, Value as Cel,
        common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, SelectExpr, operators},
        context::VariableResolver,
    },
};
use refit_kinds::refit::MAX_EXPRESSION;
use serde_json::Value;

/// How many characters of an expression messages show.
const SHOWN_CHARACTERS: usize = 120;
/// How deep brackets may be nested.
const MAX_NESTING: usize = 32;
/// The operators and functions that are available, apart from `+`. None of them makes a value that is larger than what it is
/// given.
const AVAILABLE: [&str; 43] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::NOT_STRICTLY_FALSE,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
    operators::IN,
    operators::INDEX,
    operators::NEGATE,
    operators::SUBSTRACT,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "lowerAscii",
    "upperAscii",
    "trim",
    "int",
    "uint",
    "double",
    "string",
    "timestamp",
    "duration",
    "quantity",
    "isQuantity",
    "semver",
    "isSemver",
    "compareTo",
    "isGreaterThan",
    "isLessThan",
    "asInteger",
    "sum",
    "min",
    "max",
];
/// How deep `all`, `exists` and others may be nested: each keeps a copy of what it goes through.
const MAX_LOOPS: usize = 2;
/// How many characters a pattern of `matches` has at most.
const MAX_PATTERN: usize = 100;
/// The name by which a loop asks whether it may go on. No expression of a user can contain it.
const GOES_ON: &str = "@goes_on";

/// An expression that can be evaluated.
#[derive(Debug)]
pub struct Expression {
    source: String,
    program: Program,
    checked: IdedExpr,
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
        if !variables.iter().any(|name| program.references().has_variable(name)) {
            return Err(format!("it reads none of {}", variables.join(", ")));
        }
        let names = variables.iter().map(|name| (*name).to_owned()).collect();
        let scope = Scope { names, loops: 0 };
        let checked = checked(program.expression().clone(), &scope)?;
        Ok(Self { source: source.to_owned(), program, checked })
    }

    /// Whether it reads a variable.
    pub fn reads(&self, variable: &str) -> bool {
        self.program.references().has_variable(variable)
    }

    /// Checks that it is true for these objects; otherwise the error is a sentence, without any of their values.
    ///
    /// It is given up once `goes_on` returns false.
    pub fn check(
        &self,
        objects: &[(&str, &Value)],
        goes_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), String> {
        let source = shown(&self.source);
        let variables = objects.iter().map(|(name, object)| (*name, cel_of(object))).collect();
        let objects = Objects { variables, goes_on };
        let mut context = Context::default().with_all();
        context.set_variable_resolver(&objects);
        let outcome = catch_unwind(AssertUnwindSafe(|| Cel::resolve(&self.checked, &context)));
        if !goes_on() {
            return Err(format!("{source} takes too long"));
        }
        match outcome {
            Ok(Ok(Cel::Bool(true))) => Ok(()),
            Ok(Ok(Cel::Bool(false))) => Err(format!("{source} is false")),
            Ok(Ok(_)) => Err(format!("{source} is neither true nor false")),
            // A key may be computed from a value.
            Ok(Err(ExecutionError::NoSuchKey(name))) if self.source.contains(&**name) => {
                Err(format!("{source}: there is no {name}"))
            }
            Ok(Err(ExecutionError::UndeclaredReference(name))) => {
                Err(format!("{source}: {name} is not defined"))
            }
            // Their texts contain the values.
            Ok(Err(_)) | Err(_) => Err(format!("{source} cannot be evaluated with its values")),
        }
    }
}

/// The objects that an expression reads, and whether it may go on.
struct Objects<'a> {
    variables: HashMap<&'a str, Cel>,
    goes_on: &'a (dyn Fn() -> bool + Sync),
}

impl VariableResolver for Objects<'_> {
    fn resolve(&self, name: &str) -> Option<Cel> {
        if name == GOES_ON {
            return (self.goes_on)().then_some(Cel::Bool(true));
        }
        self.variables.get(name).cloned()
    }
}

/// An expression as messages show it: its beginning.
pub fn shown(source: &str) -> String {
    let mut shown: String = source.chars().take(SHOWN_CHARACTERS).collect();
    if shown.len() < source.len() {
        shown.push_str("...");
    }
    shown
}

/// How deep the brackets of a text are nested at most, whatever is in its strings.
fn nesting(source: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for character in source.chars() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// What an expression can name, and how many loops it is in.
struct Scope {
    names: Vec<String>,
    loops: usize,
}

/// The expression as it is evaluated, if all of it is available.
fn checked(expression: IdedExpr, scope: &Scope) -> Result<IdedExpr, String> {
    let id = expression.id;
    let expr = match expression.expr {
        Expr::Literal(_) | Expr::Ident(_) => expression.expr,
        Expr::Select(SelectExpr { operand, field, test: true }) => {
            let operand = Box::new(checked(*operand, scope)?);
            Expr::Select(SelectExpr { operand, field, test: true })
        }
        // The library returns false for a field of a value that is not a map.
        Expr::Select(SelectExpr { operand, field, test: false }) => {
            let key = Expr::Literal(LiteralValue::String(field.into()));
            let args = vec![checked(*operand, scope)?, IdedExpr { id, expr: key }];
            Expr::Call(CallExpr { func_name: operators::INDEX.to_owned(), target: None, args })
        }
        Expr::Call(call) => Expr::Call(available(call, scope)?),
        Expr::List(list) => {
            let is_literal = |one: &IdedExpr| matches!(one.expr, Expr::Literal(_));
            if !list.elements.iter().all(is_literal) {
                return Err("a list can contain only literals".to_owned());
            }
            Expr::List(list)
        }
        Expr::Comprehension(one) => Expr::Comprehension(Box::new(interruptible(*one, scope)?)),
        Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => {
            return Err("maps and structs are not available".to_owned());
        }
    };
    Ok(IdedExpr { id, expr })
}

fn available(call: CallExpr, scope: &Scope) -> Result<CallExpr, String> {
    let CallExpr { func_name, target, args } = call;
    // Such as `sets` of `sets.contains`, which is another function than `contains`.
    if let Some(Expr::Ident(name)) = target.as_ref().map(|target| &target.expr)
        && !scope.names.contains(name)
    {
        return Err(format!("{name}.{func_name} is not available"));
    }
    let is_pattern = |one: &IdedExpr| {
        let Expr::Literal(LiteralValue::String(pattern)) = &one.expr else { return false };
        let pattern = pattern.inner();
        pattern.chars().count() <= MAX_PATTERN && !pattern.contains('{')
    };
    if func_name == "matches" && !args.last().is_some_and(is_pattern) {
        return Err(format!(
            "matches needs a pattern in quotes, of at most {MAX_PATTERN} characters and without {{"
        ));
    }
    if func_name == operators::ADD {
        let is_bounded = |one: &IdedExpr| {
            if let Expr::Call(call) = &one.expr {
                return ["duration", "timestamp"].contains(&&*call.func_name);
            }
            matches!(
                one.expr,
                Expr::Literal(
                    LiteralValue::Int(_) | LiteralValue::UInt(_) | LiteralValue::Double(_)
                )
            )
        };
        if !args.iter().any(is_bounded) {
            return Err("+ needs a number, a duration or a timestamp".to_owned());
        }
    } else if !AVAILABLE.contains(&&*func_name) {
        return Err(format!("{func_name} is not available"));
    }
    let target = target.map(|target| checked(*target, scope)).transpose()?.map(nameless);
    let target = target.map(Box::new);
    let args = args.into_iter().map(|one| checked(one, scope)).collect::<Result<_, _>>()?;
    Ok(CallExpr { func_name, target, args })
}

/// The target of a call without its name: a loop variable may be called `sets`, and the library looks for `sets.contains` first.
fn nameless(target: IdedExpr) -> IdedExpr {
    if !matches!(target.expr, Expr::Ident(_)) {
        return target;
    }
    let id = target.id;
    let always = IdedExpr { id, expr: Expr::Literal(LiteralValue::Boolean(true.into())) };
    let func_name = operators::CONDITIONAL.to_owned();
    let args = vec![always, target.clone(), target];
    IdedExpr { id, expr: Expr::Call(CallExpr { func_name, target: None, args }) }
}

/// A loop that asks at each round whether it may go on.
fn interruptible(one: ComprehensionExpr, outer: &Scope) -> Result<ComprehensionExpr, String> {
    if outer.loops == MAX_LOOPS {
        return Err(format!("all, exists and other loops are nested more than {MAX_LOOPS} deep"));
    }
    let mut scope = Scope { loops: outer.loops + 1, names: outer.names.clone() };
    scope.names.push(one.iter_var.clone());
    let scope = &scope;
    let loop_step = if matches!(one.accu_init.expr, Expr::List(_)) {
        filtered(one.loop_step, &one.iter_var, scope)?
    } else {
        checked(one.loop_step, scope)?
    };
    let id = one.loop_cond.id;
    let goes_on = IdedExpr { id, expr: Expr::Ident(GOES_ON.to_owned()) };
    let both = CallExpr {
        func_name: operators::LOGICAL_AND.to_owned(),
        target: None,
        args: vec![goes_on, checked(one.loop_cond, scope)?],
    };
    Ok(ComprehensionExpr {
        iter_range: checked(one.iter_range, outer)?,
        loop_cond: IdedExpr { id, expr: Expr::Call(both) },
        loop_step,
        result: checked(one.result, scope)?,
        ..one
    })
}

/// The step of `filter`, which keeps an element or not. That of `map` could make larger ones.
fn filtered(step: IdedExpr, element: &str, scope: &Scope) -> Result<IdedExpr, String> {
    let refused = || Err("map is not available: use filter, all, exists or exists_one".to_owned());
    let Expr::Call(CallExpr { func_name, target: None, mut args }) = step.expr else {
        return refused();
    };
    let keeps = |one: &IdedExpr| {
        let Expr::Call(call) = &one.expr else { return false };
        let Some(Expr::List(kept)) = call.args.get(1).map(|kept| &kept.expr) else { return false };
        call.func_name == operators::ADD
            && kept.elements.iter().all(|one| one.expr == Expr::Ident(element.to_owned()))
    };
    if func_name != operators::CONDITIONAL || args.len() != 3 || !keeps(&args[1]) {
        return refused();
    }
    args[0] = checked(std::mem::take(&mut args[0]), scope)?;
    Ok(IdedExpr { id: step.id, expr: Expr::Call(CallExpr { func_name, target: None, args }) })
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

    fn check(source: &str, object: &Value) -> Result<(), String> {
        compile(source)?.check(&[("self", object)], &|| true)
    }

    #[test]
    fn an_expression_that_could_cost_too_much_is_refused() {
        let deep = format!("self.a == {}1{}", "(".repeat(40), ")".repeat(40));
        let long = format!("self.a == '{}'", "x".repeat(2048));
        for (source, why) in [
            (&*deep, "its brackets are nested more than 32 deep"),
            (&*long, "it has more than 2048 characters"),
            ("self.a.replace('a', 'aa') == ''", "replace is not available"),
            ("self.a.join(self.b) == ''", "join is not available"),
            ("lists.range(100000000).size() > self.a", "lists.range is not available"),
            ("sets.contains(self.a, self.a)", "sets.contains is not available"),
            (
                "self.a.all(x, x.b.all(y, y.c.all(z, z)))",
                "all, exists and other loops are nested more than 2 deep",
            ),
            (
                "self.a.matches(self.b)",
                "matches needs a pattern in quotes, of at most 100 characters and without {",
            ),
            (
                "self.a.matches('(a{1000}){1000}')",
                "matches needs a pattern in quotes, of at most 100 characters and without {",
            ),
            ("self.a + self.a == 'aa'", "+ needs a number, a duration or a timestamp"),
            ("self.a in [self.b]", "a list can contain only literals"),
            ("{'a': self}.size() == 1", "maps and structs are not available"),
            ("A{} == self", "maps and structs are not available"),
            (
                "self.a.map(x, [x, x]).size() == 1",
                "map is not available: use filter, all, exists or exists_one",
            ),
            (
                "self.a.all(x, x.map(y, y > 1, [y]).size() == 1)",
                "map is not available: use filter, all, exists or exists_one",
            ),
        ] {
            assert_eq!(compile(source).map(drop), Err(why.to_owned()), "{source}");
        }
    }

    #[test]
    fn an_expression_can_test_values() {
        let object = json!({
            "a": [{"b": 1}, {"b": 3}], "text": "Abc", "memory": "8Gi", "at": "2026-01-01T00:00:00Z", "null": null,
        });
        for source in [
            "self.a.filter(x, x.b > 1).size() == 1",
            "self.a.exists_one(x, x.b == 3) && self.a.all(x, x.b + 1 < 5) && !self.a.exists(x, x.b == 2)",
            "self.text.lowerAscii().startsWith('abc') && self.text.matches('^A') && self.text in ['Abc', 'x']",
            "quantity(self.memory).isGreaterThan(quantity('4Gi'))",
            "timestamp(self.at) + duration('1h') > timestamp('2026-01-01T00:30:00Z')",
            "has(self.text) && !has(self.absent) && self.a[0].b == 1 && self['text'] == 'Abc'",
            "has(self.absent) ? false : self.a.size() == 2",
        ] {
            assert_eq!(check(source, &object), Ok(()), "{source}");
        }
    }

    #[test]
    fn a_loop_variable_does_not_call_the_functions_of_a_library() {
        let object = json!({"a": ["x"]});
        assert!(check("self.a.all(sets, sets.contains(self.a, self.a))", &object).is_err());
        assert_eq!(check("self.a.all(sets, sets.contains('x'))", &object), Ok(()));
    }

    #[test]
    fn a_field_of_what_has_no_fields_is_an_error() {
        let object = json!({"list": [1], "text": "a", "null": null, "map": {}});
        for field in ["list", "text", "null", "map"] {
            for source in [format!("!self.{field}.failed"), format!("self.{field}.failed == false")]
            {
                let error = check(&source, &object).unwrap_err();
                assert!(!error.ends_with("is false"), "{error}");
            }
        }
        let error = check("self.map.failed", &object).unwrap_err();
        assert_eq!(error, "self.map.failed: there is no failed");
        assert_eq!(check("self.map == x", &object).unwrap_err(), "self.map == x: x is not defined");
    }

    #[test]
    fn an_error_of_an_expression_contains_no_values() {
        let object = json!({"password": "hunter2"});
        for source in [
            "self + 1 == 2",
            "self.password + 1 == 2",
            "self.password",
            "int(self.password) == 1",
            "self[self.password] == 1",
        ] {
            let error = check(source, &object).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_loop_is_given_up_at_any_round() {
        let many: Vec<i64> = (0..2000).collect();
        let object = json!({"a": many});
        for source in [
            "self.a.all(x, self.a.all(y, x + 1 >= 0 && y >= 0))",
            "[1, 2].all(z, self.a.exists(x, x < 0))",
            "self.a.filter(x, x > 1).size() > 1",
            "self.a.exists_one(x, x == 1)",
        ] {
            let left = AtomicI64::new(100);
            let goes_on = || left.fetch_sub(1, Relaxed) > 0;
            let error = compile(source).unwrap().check(&[("self", &object)], &goes_on).unwrap_err();
            assert!(error.ends_with("takes too long"), "{error}");
            assert!(left.load(Relaxed) > -10, "{source} went on: {left:?}");
        }
    }
}
