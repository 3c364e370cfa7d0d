//! Reads single keywords of `openAPIV3Schema`; a wrong type is an error with the path.

use regex::Regex;
use serde_json::{Map, Value};

use super::{Kind, SchemaError};

pub(super) type Fields = Map<String, Value>;
pub(super) type Parsed<T> = Result<T, SchemaError>;

pub(super) fn kind(fields: &Fields, path: &str) -> Parsed<Option<Kind>> {
    let Some(name) = string(fields, "type", path)? else {
        return Ok(None);
    };
    let kind = match name.as_str() {
        "" => return Ok(None),
        "object" => Kind::Object,
        "array" => Kind::Array,
        "string" => Kind::String,
        "integer" => Kind::Integer,
        "number" => Kind::Number,
        "boolean" => Kind::Boolean,
        other => {
            let message = format!(
                "Unsupported value: {other:?}: supported values: \"array\", \"boolean\", \
                 \"integer\", \"number\", \"object\", \"string\""
            );
            return Err(SchemaError::invalid(&join(path, "type"), message));
        }
    };
    Ok(Some(kind))
}

pub(super) fn pattern(fields: &Fields, path: &str) -> Parsed<Option<Regex>> {
    let Some(pattern) = string(fields, "pattern", path)? else {
        return Ok(None);
    };
    Regex::new(&pattern).map(Some).map_err(|error| {
        let message = format!("Invalid value: {pattern:?}: must be a valid pattern: {error}");
        SchemaError::invalid(&join(path, "pattern"), message)
    })
}

pub(super) fn object<'a>(schema: &'a Value, path: &str) -> Parsed<&'a Fields> {
    schema.as_object().ok_or_else(|| SchemaError::invalid(path, "Invalid value: must be an object"))
}

/// Reads one keyword; a wrong type is an error with the path.
pub(super) fn keyword<'a, T>(
    fields: &'a Fields,
    name: &str,
    path: &str,
    what: &str,
    read: impl FnOnce(&'a Value) -> Option<T>,
) -> Parsed<Option<T>> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => read(value).map(Some).ok_or_else(|| {
            let message = format!("Invalid value: {value}: must be {what}");
            SchemaError::invalid(&join(path, name), message)
        }),
    }
}

pub(super) fn boolean(fields: &Fields, name: &str, path: &str) -> Parsed<bool> {
    Ok(keyword(fields, name, path, "a boolean", Value::as_bool)?.unwrap_or(false))
}

pub(super) fn only_true(fields: &Fields, name: &str, path: &str) -> Parsed<bool> {
    let read = |value: &Value| (value == &Value::Bool(true)).then_some(true);
    Ok(keyword(fields, name, path, "true or undefined", read)?.unwrap_or(false))
}

pub(super) fn string(fields: &Fields, name: &str, path: &str) -> Parsed<Option<String>> {
    keyword(fields, name, path, "a string", |value| value.as_str().map(str::to_owned))
}

pub(super) fn number(fields: &Fields, name: &str, path: &str) -> Parsed<Option<f64>> {
    keyword(fields, name, path, "a number", Value::as_f64)
}

pub(super) fn count(fields: &Fields, name: &str, path: &str) -> Parsed<Option<u64>> {
    keyword(fields, name, path, "a whole number from 0", Value::as_u64)
}

pub(super) fn array<'a>(
    fields: &'a Fields,
    name: &str,
    path: &str,
) -> Parsed<Option<&'a Vec<Value>>> {
    keyword(fields, name, path, "an array", Value::as_array)
}

pub(super) fn strings(fields: &Fields, name: &str, path: &str) -> Parsed<Vec<String>> {
    let read = |value: &Value| {
        value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
    };
    Ok(keyword(fields, name, path, "an array of strings", read)?.unwrap_or_default())
}

pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
