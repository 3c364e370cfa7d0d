//! Validation rules in CEL: `x-kubernetes-validations`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use kube_cel::KubeCelExt as _;
use kube_cel::cel::objects::{Key, Map as CelMap, OptionalValue};
use kube_cel::cel::{Context, ExecutionError, Program, Value as CelValue};
use serde_json::Value;

use super::prune::{push_field, push_index};
use super::{Cause, Kind, Node, SchemaError, list_element};

/// Reserved words of CEL; a field with such a name is written `__name__`.
const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
    "var",
    "void",
    "while",
];

thread_local! {
    /// All functions of Kubernetes' CEL libraries; building them for each object would cost more
    /// than most rules.
    static FUNCTIONS: Context<'static> = Context::default().with_all();
    static TIMESTAMP: Program =
        Program::compile("timestamp(value)").expect("the expression is valid");
    static DURATION: Program =
        Program::compile("duration(value)").expect("the expression is valid");
}

/// Passes on all functions of Kubernetes' CEL libraries.
pub(crate) fn with_functions<T>(use_them: impl FnOnce(&Context<'static>) -> T) -> T {
    FUNCTIONS.with(use_them)
}

/// One compiled rule of a node.
pub(crate) struct Rule {
    text: String,
    program: Program,
    message: Option<String>,
    message_program: Option<Program>,
    reason: &'static str,
    field_path: String,
    /// Whether the rule compares with the stored object.
    transition: bool,
    /// Whether the rule also runs on a create, with an empty optional as `oldSelf`.
    optional_old: bool,
}

impl fmt::Debug for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Rule").field(&self.text).finish()
    }
}

/// Compiles the rules of a node.
pub(super) fn rules(list: Option<&Value>, path: &str) -> Result<Vec<Arc<Rule>>, SchemaError> {
    let Some(list) = list else {
        return Ok(Vec::new());
    };
    let place = if path.is_empty() { String::new() } else { format!("{path}.") };
    let place = format!("{place}x-kubernetes-validations");
    let list = list
        .as_array()
        .ok_or_else(|| SchemaError::invalid(&place, "Invalid value: must be an array"))?;
    list.iter()
        .enumerate()
        .map(|(index, rule)| compile_rule(rule, &format!("{place}[{index}]")).map(Arc::new))
        .collect()
}

fn compile_rule(rule: &Value, path: &str) -> Result<Rule, SchemaError> {
    let text = |name: &str| match rule.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => {
            let message = format!("Invalid value: {other}: must be a string");
            Err(SchemaError::invalid(&format!("{path}.{name}"), message))
        }
    };
    let rule_text = text("rule")?.filter(|text| !text.trim().is_empty()).ok_or_else(|| {
        SchemaError::invalid(&format!("{path}.rule"), "Required value: rule is not specified")
    })?;
    let program = compile(&rule_text, &format!("{path}.rule"))?;
    let message_program = match text("messageExpression")? {
        None => None,
        Some(expression) => Some(compile(&expression, &format!("{path}.messageExpression"))?),
    };
    let reason = match text("reason")?.as_deref() {
        None | Some("FieldValueInvalid") => "FieldValueInvalid",
        Some("FieldValueForbidden") => "FieldValueForbidden",
        Some("FieldValueRequired") => "FieldValueRequired",
        Some("FieldValueDuplicate") => "FieldValueDuplicate",
        Some(other) => {
            let message = format!("Unsupported value: {other:?}");
            return Err(SchemaError::invalid(&format!("{path}.reason"), message));
        }
    };
    Ok(Rule {
        transition: program.references().has_variable("oldSelf"),
        program,
        message: text("message")?,
        message_program,
        reason,
        field_path: text("fieldPath")?.unwrap_or_default(),
        optional_old: rule.get("optionalOldSelf") == Some(&Value::Bool(true)),
        text: rule_text,
    })
}

fn compile(text: &str, path: &str) -> Result<Program, SchemaError> {
    let refused = |message: String| SchemaError::Rule {
        path: path.to_owned(),
        rule: text.to_owned(),
        message,
    };
    let program = Program::compile(text).map_err(|error| refused(error.to_string()))?;
    // The compiler of Kubernetes takes none of them as the name of a variable.
    let references = program.references();
    match RESERVED.iter().find(|word| references.has_variable(word)) {
        Some(word) => Err(refused(format!("reserved identifier: {word}"))),
        None => Ok(program),
    }
}

/// Runs all rules at and below a node.
pub(super) fn evaluate(root: &Node, value: &Value, old: Option<&Value>) -> Vec<Cause> {
    FUNCTIONS.with(|functions| {
        let mut walk = Walk { functions, path: String::new(), causes: Vec::new() };
        walk.node(root, value, old);
        walk.causes
    })
}

struct Walk<'a> {
    functions: &'a Context<'static>,
    path: String,
    causes: Vec<Cause>,
}

impl Walk<'_> {
    fn node(&mut self, node: &Node, value: &Value, old: Option<&Value>) {
        if !node.has_rules || value.is_null() {
            return;
        }
        if !node.rules.is_empty() {
            self.rules(node, value, old);
        }
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    let Some(child) = node.properties.get(key).or(node.additional.as_ref()) else {
                        continue;
                    };
                    let length = push_field(&mut self.path, key);
                    self.node(child, value, old.and_then(|old| old.get(key)));
                    self.path.truncate(length);
                }
            }
            Value::Array(items) => self.items(node, items, old),
            _ => {}
        }
    }

    /// Matches items with their old values by key; items of other lists have no old value.
    fn items(&mut self, node: &Node, items: &[Value], old: Option<&Value>) {
        let Some(child) = node.items.as_ref().filter(|child| child.has_rules) else {
            return;
        };
        let old_items: BTreeMap<String, &Value> = old
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|item| Some((list_element(node, item)?, item)))
            .collect();
        for (index, item) in items.iter().enumerate() {
            let old_item =
                list_element(node, item).and_then(|element| old_items.get(&element).copied());
            let length = push_index(&mut self.path, index);
            self.node(child, item, old_item);
            self.path.truncate(length);
        }
    }

    fn rules(&mut self, node: &Node, value: &Value, old: Option<&Value>) {
        let mut scope = self.functions.new_inner_scope();
        scope.add_variable_from_value("self", to_cel(node, value));
        let old_value = old.filter(|old| !old.is_null()).map(|old| to_cel(node, old));
        for rule in &node.rules {
            if rule.transition && old_value.is_none() && !rule.optional_old {
                continue;
            }
            let mut scope = scope.new_inner_scope();
            if rule.optional_old {
                let optional =
                    old_value.clone().map_or_else(OptionalValue::none, OptionalValue::of);
                scope.add_variable_from_value("oldSelf", CelValue::Opaque(Arc::new(optional)));
            } else if let Some(old_value) = &old_value {
                scope.add_variable_from_value("oldSelf", old_value.clone());
            }
            let unchanged = || !rule.transition && old == Some(value);
            match rule.program.execute(&scope) {
                Ok(CelValue::Bool(true)) => {}
                _ if unchanged() => {}
                Ok(CelValue::Bool(false)) => {
                    let message = rule.failure(&scope);
                    self.report(node, rule, rule.reason, &message);
                }
                Ok(_) => {
                    let message = format!("rule did not evaluate to a boolean: {}", rule.text);
                    self.report(node, rule, "FieldValueInvalid", &message);
                }
                Err(error) => {
                    let message = rule.error(&error);
                    self.report(node, rule, "FieldValueInvalid", &message);
                }
            }
        }
    }

    fn report(&mut self, node: &Node, rule: &Rule, reason: &'static str, message: &str) {
        let field = format!("{}{}", self.path, rule.field_path);
        let field = field.strip_prefix('.').unwrap_or(&field);
        let message = match reason {
            "FieldValueForbidden" => format!("Forbidden: {message}"),
            "FieldValueRequired" => format!("Required value: {message}"),
            "FieldValueDuplicate" => format!("Duplicate value: {:?}", node.type_name()),
            _ => format!("Invalid value: {:?}: {message}", node.type_name()),
        };
        let field = if field.is_empty() { "<nil>" } else { field };
        self.causes.push(Cause { reason, field: field.to_owned(), message });
    }
}

impl Rule {
    fn failure(&self, scope: &Context<'_>) -> String {
        if let Some(program) = &self.message_program
            && let Ok(CelValue::String(text)) = program.execute(scope)
            && !text.trim().is_empty()
            && !text.contains('\n')
        {
            return text.trim().to_owned();
        }
        match &self.message {
            Some(message) if !message.trim().is_empty() => message.trim().to_owned(),
            _ => format!("failed rule: {}", self.text.trim()),
        }
    }

    fn error(&self, error: &ExecutionError) -> String {
        let name = self.message.as_deref().unwrap_or(&self.text);
        format!("{error} evaluating rule: {}", name.trim())
    }
}

/// Converts a value for a rule; the schema determines which strings are timestamps and which names
/// are escaped.
fn to_cel(node: &Node, value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(value) => CelValue::Bool(*value),
        // A field of type number is a double in CEL, even if it has no fraction.
        Value::Number(number) => match number.as_i64() {
            Some(whole) if node.kind != Some(Kind::Number) => CelValue::Int(whole),
            _ => CelValue::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => string_to_cel(node, text),
        Value::Array(items) => {
            let item = node.item();
            CelValue::List(Arc::new(items.iter().map(|value| to_cel(item, value)).collect()))
        }
        Value::Object(fields) => {
            let map: HashMap<Key, CelValue> = fields
                .iter()
                .map(|(key, value)| {
                    let (child, _) = node.child(key);
                    let key = if node.additional.is_some() { key.clone() } else { escape(key) };
                    (Key::String(Arc::new(key)), to_cel(child, value))
                })
                .collect();
            CelValue::Map(CelMap { map: Arc::new(map) })
        }
    }
}

fn string_to_cel(node: &Node, text: &str) -> CelValue {
    let plain = CelValue::String(Arc::new(text.to_owned()));
    let convert = match node.checks.format.as_deref() {
        Some("date-time") => &TIMESTAMP,
        Some("duration") => &DURATION,
        _ => return plain,
    };
    FUNCTIONS.with(|functions| {
        let mut scope = functions.new_inner_scope();
        scope.add_variable_from_value("value", plain.clone());
        convert.with(|program| program.execute(&scope)).unwrap_or(plain)
    })
}

/// A field's name as a rule writes it.
fn escape(name: &str) -> String {
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    if !name.contains("__") && !name.contains(['.', '-', '/']) {
        return name.to_owned();
    }
    name.replace("__", "__underscores__")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__")
}
