//! Tables, the output of `kubectl get`. The server chooses columns and cells: those of the CRD for
//! custom kinds, those of Kubernetes for built-in ones.

mod access;
mod age;
mod cells;
mod cluster;
mod core;
mod pods;
mod workloads;

#[cfg(test)]
mod tests;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::jsonpath::JsonPath;
use crate::object::{member, meta_text};
use crate::path::Include;
use crate::read::metadata_only;
use crate::resources::Resource;
use crate::write::to_bytes;

const NAME_HELP: &str = "Name must be unique within a namespace. Is required when creating \
    resources, although some resources may allow a client to request the generation of an \
    appropriate name automatically. Name is primarily intended for creation idempotence and \
    configuration definition. Cannot be updated. More info: \
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

/// A column of a custom kind.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
    path: JsonPath,
}

impl Column {
    /// Parses an entry of `additionalPrinterColumns`.
    pub(crate) fn read(column: &Value) -> Result<Self, String> {
        let text = |key: &str| column[key].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            name: text("name"),
            kind: text("type"),
            format: text("format"),
            description: text("description"),
            priority: column["priority"].as_i64().unwrap_or(0),
            path: JsonPath::parse(column["jsonPath"].as_str().unwrap_or_default())?,
        })
    }

    /// The column after the name for a kind without columns of its own.
    pub(crate) fn age() -> Self {
        Self {
            name: "Age".to_owned(),
            kind: "date".to_owned(),
            format: String::new(),
            description: "CreationTimestamp is a timestamp representing the server time when \
                          this object was created."
                .to_owned(),
            priority: 0,
            path: JsonPath::parse(".metadata.creationTimestamp").expect("a plain path"),
        }
    }

    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let Some(found) = self.path.first(object) else {
            return Value::Null;
        };
        match (self.kind.as_str(), found) {
            ("integer", Value::Number(number)) => {
                #[expect(clippy::cast_possible_truncation, reason = "as Kubernetes prints it")]
                let whole = number.as_i64().or(number.as_f64().map(|number| number as i64));
                json!(whole)
            }
            ("number", Value::Number(_))
            | ("boolean", Value::Bool(_))
            | ("string", Value::String(_)) => found.clone(),
            ("date", Value::String(_)) => {
                age::since(found, now).map_or_else(|| Value::from("<invalid>"), Value::from)
            }
            ("string", other) => Value::from(other.to_string()),
            _ => Value::Null,
        }
    }

    fn definition(&self) -> Value {
        definition(&self.name, &self.kind, &self.format, &self.description, self.priority)
    }
}

/// A column of a built-in kind.
#[derive(Debug, Clone, Copy)]
struct Col(&'static str, &'static str, u8);

/// How objects of a built-in kind are printed.
struct Printer {
    /// The columns after the name.
    columns: &'static [Col],
    /// The cells after the name.
    cells: fn(&Value, Timestamp) -> Vec<Value>,
    /// Whether the name comes first; events print theirs last.
    named: bool,
}

const AGE: Col = Col("Age", "string", 0);

const fn plain(columns: &'static [Col], cells: fn(&Value, Timestamp) -> Vec<Value>) -> Printer {
    Printer { columns, cells, named: true }
}

fn definition(name: &str, kind: &str, format: &str, help: &str, priority: i64) -> Value {
    json!({
        "name": name,
        "type": kind,
        "format": format,
        "description": help,
        "priority": priority,
    })
}

fn printer(resource: &Resource) -> &'static Printer {
    static DEFAULT: Printer = plain(&[AGE], |object, now| vec![cells::age_of(object, now)]);
    match resource.group.as_ref() {
        "" => pods::printer(&resource.kind).or_else(|| core::printer(&resource.kind)),
        "apps" => workloads::printer(&resource.kind),
        "rbac.authorization.k8s.io" | "policy" => access::printer(&resource.kind),
        "events.k8s.io" => core::printer(&resource.kind),
        _ => cluster::printer(&resource.kind),
    }
    .unwrap_or(&DEFAULT)
}

/// `columnDefinitions`.
fn columns(resource: &Resource) -> Vec<Value> {
    let name = definition("Name", "string", "name", NAME_HELP, 0);
    if resource.custom {
        let others = resource.columns.iter().map(Column::definition);
        return std::iter::once(name).chain(others).collect();
    }
    let printer = printer(resource);
    let others = printer.columns.iter().map(|Col(label, kind, priority)| {
        let format = if *label == "Name" { "name" } else { "" };
        definition(label, kind, format, "", i64::from(*priority))
    });
    printer.named.then_some(name).into_iter().chain(others).collect()
}

fn row(resource: &Resource, object: &Value, include: Include, now: Timestamp) -> Value {
    let mut cells = vec![Value::from(meta_text(object, "name"))];
    if resource.custom {
        cells.extend(resource.columns.iter().map(|column| column.cell(object, now)));
    } else {
        let printer = printer(resource);
        if !printer.named {
            cells.clear();
        }
        cells.extend((printer.cells)(object, now));
    }
    let mut row = json!({ "cells": cells });
    match include {
        Include::Nothing => {}
        Include::Metadata => row["object"] = metadata_only(object),
        Include::Object => row["object"] = object.clone(),
    }
    row
}

/// The start of a table of many objects; the rows follow, separated by commas, then `]}`.
pub(crate) fn list_head(resource: &Resource, meta: &Value) -> String {
    let columns = Value::Array(columns(resource));
    format!(
        "{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{meta},\
         \"columnDefinitions\":{columns},\"rows\":["
    )
}

/// One row of a table of many objects.
pub(crate) fn list_row(
    resource: &Resource,
    object: &Value,
    include: Include,
    now: Timestamp,
) -> Bytes {
    to_bytes(&row(resource, object, include, now))
}

/// The table of one object.
pub(crate) fn of_one(
    resource: &Resource,
    object: &Value,
    include: Include,
    now: Timestamp,
) -> Value {
    let version = member(object, &["metadata", "resourceVersion"]);
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": columns(resource),
        "rows": [row(resource, object, include, now)],
    })
}

/// An empty table at a revision, used for a watch's bookmark.
pub(crate) fn of_none(resource: &Resource, meta: &Value) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": columns(resource),
        "rows": [],
    })
}
