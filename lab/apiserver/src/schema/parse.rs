//! Parses `openAPIV3Schema` into nodes and rejects schemas that are not structural.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::keywords::{
    Fields, Parsed, array, boolean, count, join, kind, number, object, only_true, pattern, string,
    strings,
};
use super::{Checks, Kind, ListType, Node, OBJECT_META, SchemaError, cel, default, validate};

/// A deeper schema is rejected, to protect the stack.
const MAX_DEPTH: usize = 64;

const FORBIDDEN: [&str; 11] = [
    "$ref",
    "definitions",
    "dependencies",
    "deprecated",
    "discriminator",
    "id",
    "patternProperties",
    "readOnly",
    "writeOnly",
    "xml",
    "additionalItems",
];

/// Structural keywords, which are not allowed inside `allOf`, `anyOf`, `oneOf` and `not`.
const FORBIDDEN_IN_LOGIC: [&str; 11] = [
    "additionalProperties",
    "default",
    "description",
    "nullable",
    "title",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
];

const EXTENSIONS: [&str; 7] = [
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

/// Parses the schema of a whole object.
pub(super) fn root(schema: &Value) -> Parsed<Node> {
    let fields = object(schema, "")?;
    if fields.get("type").and_then(Value::as_str) != Some("object") {
        return Err(SchemaError::invalid("type", "Invalid value: must be object at the root"));
    }
    let mut node = node(schema, "", 0)?;
    node.properties.insert("metadata".to_owned(), root_metadata(&node, fields)?);
    Ok(node)
}

/// `metadata` is the same for every kind; a schema may only restrict the name.
fn root_metadata(root: &Node, fields: &Fields) -> Parsed<Arc<Node>> {
    let path = "properties[metadata]";
    let Some(own) = root.properties.get("metadata") else {
        return Ok(OBJECT_META.clone());
    };
    let written = fields.get("properties").and_then(|all| all.get("metadata"));
    let keywords = written.and_then(Value::as_object).into_iter().flat_map(Fields::keys);
    for keyword in keywords {
        if !matches!(keyword.as_str(), "type" | "description" | "properties" | "title") {
            let message = format!("Forbidden: {keyword} must not be specified for metadata");
            return Err(SchemaError::invalid(path, message));
        }
    }
    let mut metadata = Node::clone(&OBJECT_META);
    for (key, child) in &own.properties {
        if !matches!(key.as_str(), "name" | "generateName") {
            let message = "Forbidden: metadata may only restrict name and generateName";
            return Err(SchemaError::invalid(&format!("{path}.properties[{key}]"), message));
        }
        metadata.properties.insert(key.clone(), child.clone());
    }
    Ok(Arc::new(metadata))
}

fn node(schema: &Value, path: &str, depth: usize) -> Parsed<Node> {
    if depth > MAX_DEPTH {
        return Err(SchemaError::invalid(path, format!("must not be deeper than {MAX_DEPTH}")));
    }
    let fields = object(schema, path)?;
    check_keywords(fields, path)?;
    let mut node = Node {
        kind: kind(fields, path)?,
        int_or_string: only_true(fields, "x-kubernetes-int-or-string", path)?,
        nullable: boolean(fields, "nullable", path)?,
        preserve: only_true(fields, "x-kubernetes-preserve-unknown-fields", path)?,
        embedded: only_true(fields, "x-kubernetes-embedded-resource", path)?,
        // Generators write `default: null` for "no default".
        default: fields.get("default").filter(|value| !value.is_null()).cloned(),
        ..Node::default()
    };
    check_type(&node, path)?;
    children(&mut node, fields, path, depth)?;
    node.checks = checks(fields, path, Some(&node), depth)?;
    list_type(&mut node, fields, path)?;
    map_type(&mut node, fields, path)?;
    check_embedded(&node, path)?;
    node.rules = cel::rules(fields.get("x-kubernetes-validations"), path)?;
    node.has_rules = !node.rules.is_empty()
        || node.properties.values().any(|child| child.has_rules)
        || node.additional.as_ref().is_some_and(|child| child.has_rules)
        || node.items.as_ref().is_some_and(|child| child.has_rules);
    check_default(&node, path)?;
    Ok(node)
}

fn check_keywords(fields: &Fields, path: &str) -> Parsed<()> {
    for keyword in fields.keys() {
        let place = join(path, keyword);
        if FORBIDDEN.contains(&keyword.as_str()) {
            return Err(SchemaError::invalid(&place, "Forbidden: must not be set"));
        }
        if keyword.starts_with("x-kubernetes-") && !EXTENSIONS.contains(&keyword.as_str()) {
            return Err(SchemaError::invalid(&place, "Unsupported value: unknown extension"));
        }
    }
    if boolean(fields, "uniqueItems", path)? {
        let message = "Forbidden: uniqueItems cannot be set to true since the runtime complexity \
                       becomes quadratic";
        return Err(SchemaError::invalid(&join(path, "uniqueItems"), message));
    }
    Ok(())
}

fn check_type(node: &Node, path: &str) -> Parsed<()> {
    let place = join(path, "type");
    if node.int_or_string && node.kind.is_some() {
        let message = "Invalid value: must be empty if x-kubernetes-int-or-string is true";
        return Err(SchemaError::invalid(&place, message));
    }
    if node.kind.is_none() && !node.int_or_string && !node.preserve {
        let message = "Required value: must not be empty for specified object fields";
        return Err(SchemaError::invalid(&place, message));
    }
    Ok(())
}

fn children(node: &mut Node, fields: &Fields, path: &str, depth: usize) -> Parsed<()> {
    node.properties = properties(fields, path, |_, schema, place| {
        self::node(schema, place, depth + 1).map(Arc::new)
    })?;
    let place = join(path, "additionalProperties");
    match fields.get("additionalProperties") {
        None => {}
        Some(Value::Bool(true)) => node.additional = Some(super::ANY.clone()),
        Some(Value::Bool(false)) => {
            return Err(SchemaError::invalid(&place, "Forbidden: must not be false"));
        }
        Some(schema) => node.additional = Some(Arc::new(self::node(schema, &place, depth + 1)?)),
    }
    if node.additional.is_some() && !node.properties.is_empty() {
        let message = "Forbidden: additionalProperties and properties are mutual exclusive";
        return Err(SchemaError::invalid(&place, message));
    }
    let place = join(path, "items");
    match fields.get("items") {
        None if node.kind == Some(Kind::Array) => {
            return Err(SchemaError::invalid(&place, "Required value: must be specified"));
        }
        None => {}
        Some(Value::Array(_)) => {
            let message = "Forbidden: items must be a schema object and not an array";
            return Err(SchemaError::invalid(&place, message));
        }
        Some(schema) => node.items = Some(Arc::new(self::node(schema, &place, depth + 1)?)),
    }
    Ok(())
}

fn properties<T>(
    fields: &Fields,
    path: &str,
    mut read: impl FnMut(&str, &Value, &str) -> Parsed<T>,
) -> Parsed<BTreeMap<String, T>> {
    let mut properties = BTreeMap::new();
    if let Some(all) = fields.get("properties") {
        for (key, schema) in object(all, &join(path, "properties"))? {
            let place = join(path, &format!("properties[{key}]"));
            properties.insert(key.clone(), read(key, schema, &place)?);
        }
    }
    Ok(properties)
}

/// Parses the value validations; `structure` is the node that contains them.
fn checks(fields: &Fields, path: &str, structure: Option<&Node>, depth: usize) -> Parsed<Checks> {
    let logic = |keyword: &str| -> Parsed<Vec<Node>> {
        let Some(list) = fields.get(keyword) else {
            return Ok(Vec::new());
        };
        let list = list.as_array().ok_or_else(|| {
            SchemaError::invalid(&join(path, keyword), "Invalid value: must be an array")
        })?;
        let place = |index| join(path, &format!("{keyword}[{index}]"));
        let read = |(index, schema)| junctor(schema, &place(index), structure, depth + 1);
        list.iter().enumerate().map(read).collect()
    };
    let not = match fields.get("not") {
        None => None,
        Some(schema) => Some(Box::new(junctor(schema, &join(path, "not"), structure, depth + 1)?)),
    };
    Ok(Checks {
        allowed: array(fields, "enum", path)?.cloned(),
        pattern: pattern(fields, path)?,
        format: string(fields, "format", path)?,
        minimum: number(fields, "minimum", path)?,
        exclusive_minimum: boolean(fields, "exclusiveMinimum", path)?,
        maximum: number(fields, "maximum", path)?,
        exclusive_maximum: boolean(fields, "exclusiveMaximum", path)?,
        multiple_of: number(fields, "multipleOf", path)?,
        min_length: count(fields, "minLength", path)?,
        max_length: count(fields, "maxLength", path)?,
        min_items: count(fields, "minItems", path)?,
        max_items: count(fields, "maxItems", path)?,
        min_properties: count(fields, "minProperties", path)?,
        max_properties: count(fields, "maxProperties", path)?,
        required: strings(fields, "required", path)?,
        all_of: logic("allOf")?,
        any_of: logic("anyOf")?,
        one_of: logic("oneOf")?,
        not,
    })
}

/// Parses a schema inside `allOf`, `anyOf`, `oneOf` or `not`, which may only restrict values of
/// fields that the surrounding structure declares.
fn junctor(schema: &Value, path: &str, structure: Option<&Node>, depth: usize) -> Parsed<Node> {
    if depth > MAX_DEPTH {
        return Err(SchemaError::invalid(path, format!("must not be deeper than {MAX_DEPTH}")));
    }
    let fields = object(schema, path)?;
    check_keywords(fields, path)?;
    let forbidden = FORBIDDEN_IN_LOGIC.iter().find(|keyword| fields.contains_key(**keyword));
    if let Some(keyword) = forbidden {
        let message = "Forbidden: must be undefined to be structural";
        return Err(SchemaError::invalid(&join(path, keyword), message));
    }
    let kind = kind(fields, path)?;
    if kind.is_some() && !structure.is_some_and(|node| node.int_or_string) {
        let message = "Forbidden: must be empty to be structural";
        return Err(SchemaError::invalid(&join(path, "type"), message));
    }
    let child = |key: &str| {
        let node = structure?;
        node.properties.get(key).or(node.additional.as_ref()).map(AsRef::as_ref)
    };
    let properties = properties(fields, path, |key, schema, place| {
        let inner = child(key);
        if inner.is_none() && !structure.is_some_and(|node| node.preserve) {
            let message = "Required value: must be specified outside of the logical junctor too";
            return Err(SchemaError::invalid(place, message));
        }
        junctor(schema, place, inner, depth + 1).map(Arc::new)
    })?;
    let items = match fields.get("items") {
        None => None,
        Some(schema) => {
            let inner = structure.and_then(|node| node.items.as_deref());
            Some(Arc::new(junctor(schema, &join(path, "items"), inner, depth + 1)?))
        }
    };
    let checks = checks(fields, path, structure, depth)?;
    Ok(Node { kind, nullable: true, preserve: true, properties, items, checks, ..Node::default() })
}

fn list_type(node: &mut Node, fields: &Fields, path: &str) -> Parsed<()> {
    let place = join(path, "x-kubernetes-list-type");
    let keys = strings(fields, "x-kubernetes-list-map-keys", path)?;
    let written = string(fields, "x-kubernetes-list-type", path)?;
    if written.is_some() && node.kind != Some(Kind::Array) {
        let message = "Invalid value: must be array if x-kubernetes-list-type is specified";
        return Err(SchemaError::invalid(&join(path, "type"), message));
    }
    if !keys.is_empty() && written.as_deref() != Some("map") {
        let message = "Invalid value: must be map if x-kubernetes-list-map-keys is non-empty";
        return Err(SchemaError::invalid(&place, message));
    }
    node.list = match written.as_deref() {
        None | Some("atomic") => ListType::Atomic,
        Some("set") => {
            check_set(node, path)?;
            ListType::Set
        }
        Some("map") => {
            check_map_keys(node, &keys, path)?;
            ListType::Map(keys)
        }
        Some(other) => {
            let message = format!(
                "Unsupported value: {other:?}: supported values: \"atomic\", \"map\", \"set\""
            );
            return Err(SchemaError::invalid(&place, message));
        }
    };
    Ok(())
}

fn check_set(node: &Node, path: &str) -> Parsed<()> {
    let item = node.item();
    let whole = match item.kind {
        Some(Kind::Object) => item.atomic,
        Some(Kind::Array) => item.list == ListType::Atomic,
        _ => true,
    };
    if whole && !item.nullable {
        return Ok(());
    }
    let message = "Invalid value: items of a set must be scalars or atomic, and not nullable";
    Err(SchemaError::invalid(&join(path, "items"), message))
}

fn check_map_keys(node: &Node, keys: &[String], path: &str) -> Parsed<()> {
    let place = join(path, "x-kubernetes-list-map-keys");
    if keys.is_empty() {
        let message = "Required value: must not be empty if x-kubernetes-list-type is map";
        return Err(SchemaError::invalid(&place, message));
    }
    let item = node.item();
    for key in keys {
        let Some(field) = item.properties.get(key) else {
            let message = format!("Invalid value: {key:?}: must name a property of the items");
            return Err(SchemaError::invalid(&place, message));
        };
        if matches!(field.kind, Some(Kind::Array | Kind::Object)) {
            let message = format!("Invalid value: {key:?}: must name a scalar property");
            return Err(SchemaError::invalid(&place, message));
        }
        if field.default.is_none() && !item.checks.required.contains(key) {
            let place = join(path, &format!("items.properties[{key}].default"));
            let message = "Required value: this property is in x-kubernetes-list-map-keys, so it \
                           must have a default or be a required property";
            return Err(SchemaError::invalid(&place, message));
        }
    }
    Ok(())
}

fn map_type(node: &mut Node, fields: &Fields, path: &str) -> Parsed<()> {
    let Some(written) = string(fields, "x-kubernetes-map-type", path)? else {
        return Ok(());
    };
    if node.kind != Some(Kind::Object) {
        let message = "Invalid value: must be object if x-kubernetes-map-type is specified";
        return Err(SchemaError::invalid(&join(path, "type"), message));
    }
    node.atomic = match written.as_str() {
        "atomic" => true,
        "granular" => false,
        other => {
            let message =
                format!("Unsupported value: {other:?}: supported values: \"atomic\", \"granular\"");
            return Err(SchemaError::invalid(&join(path, "x-kubernetes-map-type"), message));
        }
    };
    Ok(())
}

fn check_embedded(node: &Node, path: &str) -> Parsed<()> {
    if !node.embedded {
        return Ok(());
    }
    if node.kind != Some(Kind::Object) {
        let message = "Invalid value: must be object if x-kubernetes-embedded-resource is true";
        return Err(SchemaError::invalid(&join(path, "type"), message));
    }
    if node.properties.is_empty() && !node.preserve {
        let message = "Required value: must not be empty if x-kubernetes-embedded-resource is \
                       true without x-kubernetes-preserve-unknown-fields";
        return Err(SchemaError::invalid(&join(path, "properties"), message));
    }
    Ok(())
}

fn check_default(node: &Node, path: &str) -> Parsed<()> {
    let Some(value) = &node.default else {
        return Ok(());
    };
    let mut value = value.clone();
    default::fill(node, &mut value);
    match validate::structural(node, &value).first() {
        None => Ok(()),
        Some(cause) => Err(SchemaError::invalid(&join(path, "default"), cause.message.clone())),
    }
}
