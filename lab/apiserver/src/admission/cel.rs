//! What expressions see, and how they are evaluated.

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::objects::{Key, Map as CelMap};
use kube_cel::cel::{Context, Program, Value as CelValue};
use serde_json::{Map, Value, json};

use crate::auth::Identity;
use crate::schema::cel::with_functions;

use super::WriteRequest;

/// What each expression of a policy sees.
pub(super) struct Inputs(Vec<(&'static str, CelValue)>);

const PARAMS: &str = "params";
pub(super) const VARIABLES: &str = "variables";

impl Inputs {
    pub(super) fn new(
        write: &WriteRequest<'_>,
        requester: &Identity,
        home: Option<&Value>,
    ) -> Self {
        let to_cel_or_null = |value: Option<&Value>| value.map_or(CelValue::Null, to_cel);
        Self(vec![
            ("object", to_cel_or_null(write.object)),
            ("oldObject", to_cel_or_null(write.old)),
            ("request", to_cel(&request(write, requester))),
            ("namespaceObject", to_cel_or_null(home)),
            (PARAMS, CelValue::Null),
        ])
    }

    pub(super) fn set_params(&mut self, params: &Value) {
        self.0.retain(|(name, _)| *name != PARAMS);
        self.0.push((PARAMS, to_cel(params)));
    }

    pub(super) fn evaluate<T>(&self, evaluate: impl FnOnce(&Scope<'_>) -> T) -> T {
        with_functions(|functions| {
            let mut scope = functions.new_inner_scope();
            for (name, value) in &self.0 {
                scope.add_variable_from_value(*name, value.clone());
            }
            evaluate(&Scope(scope))
        })
    }
}

pub(super) struct Scope<'a>(Context<'a>);

impl Scope<'_> {
    /// Adds the variables of a policy. One that cannot be evaluated is an error where it is used.
    pub(super) fn with_variables(&self, variables: &[(String, Program)]) -> Scope<'_> {
        let mut known: HashMap<Key, CelValue> = HashMap::new();
        for (name, program) in variables {
            if let Ok(value) = self.with_known(known.clone()).execute(program) {
                known.insert(Key::String(Arc::new(name.clone())), value);
            }
        }
        self.with_known(known)
    }

    fn with_known(&self, known: HashMap<Key, CelValue>) -> Scope<'_> {
        let mut scope = self.0.new_inner_scope();
        let map = CelMap { map: Arc::new(known) };
        scope.add_variable_from_value(VARIABLES, CelValue::Map(map));
        Scope(scope)
    }

    pub(super) fn execute(&self, program: &Program) -> Result<CelValue, String> {
        program.execute(&self.0).map_err(|error| error.to_string())
    }

    pub(super) fn is_true(&self, program: &Program) -> Result<bool, String> {
        match self.execute(program)? {
            CelValue::Bool(value) => Ok(value),
            other => Err(format!("expected a boolean, found {:?}", other.type_of())),
        }
    }
}

/// The `AdmissionRequest`. Fields without a value are missing, as the real server omits them.
fn request(write: &WriteRequest<'_>, requester: &Identity) -> Value {
    let resource = write.resource;
    let (group, version) = (&*resource.group, &*resource.version);
    let kind = json!({"group": group, "version": version, "kind": &*resource.kind});
    let plural = json!({"group": group, "version": version, "resource": &*resource.plural});
    let mut user = Map::new();
    let user_fields = [
        ("username", json!(requester.user)),
        ("uid", json!(requester.uid)),
        ("groups", json!(requester.groups)),
        ("extra", json!(requester.extra)),
    ];
    user.extend(user_fields.into_iter().filter(|(_, value)| !is_empty(value)).map(owned));
    let mut request = Map::new();
    let request_fields = [
        ("kind", kind.clone()),
        ("requestKind", kind),
        ("resource", plural.clone()),
        ("requestResource", plural),
        ("subResource", json!(write.subresource)),
        ("requestSubResource", json!(write.subresource)),
        ("name", json!(write.name)),
        ("namespace", json!(write.namespace)),
        ("operation", json!(write.operation.name())),
        ("userInfo", Value::Object(user)),
        ("dryRun", json!(write.dry_run)),
    ];
    request.extend(request_fields.into_iter().filter(|(_, value)| !is_empty(value)).map(owned));
    Value::Object(request)
}

fn owned((key, value): (&str, Value)) -> (String, Value) {
    (key.to_owned(), value)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Null => true,
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Objects have no types in policies: a timestamp is a string.
fn to_cel(value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(value) => CelValue::Bool(*value),
        Value::Number(number) => number
            .as_i64()
            .map_or_else(|| CelValue::Float(number.as_f64().unwrap_or(f64::NAN)), CelValue::Int),
        Value::String(text) => CelValue::String(Arc::new(text.clone())),
        Value::Array(items) => CelValue::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(fields) => {
            let map = fields
                .iter()
                .map(|(key, value)| (Key::String(Arc::new(key.clone())), to_cel(value)))
                .collect();
            CelValue::Map(CelMap { map: Arc::new(map) })
        }
    }
}
