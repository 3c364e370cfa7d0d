//! Validates an object against a schema, in Kubernetes' words.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Map, Value};

use super::prune::{push_field, push_index};
use super::{Cause, Kind, ListType, Node, cel, list_element};

/// A message shows at most this many bytes of a value.
const MAX_SHOWN: usize = 2048;

/// Reasons after which rules are not run: their results would be about a malformed object.
const BLOCKING: [&str; 4] =
    ["FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", "FieldValueTypeInvalid"];

/// All validation errors of an object.
pub(super) fn validate(root: &Node, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = structural(root, object);
    if !causes.is_empty() && old.is_some() {
        // A second pass compares with the old object: unchanged invalid values are accepted.
        let mut walk = Walk::default();
        walk.node(root, object, old);
        causes = walk.causes;
    }
    if !root.has_rules {
        return causes;
    }
    if causes.iter().any(|cause| BLOCKING.contains(&cause.reason)) {
        causes.push(Cause {
            reason: "FieldValueInvalid",
            field: "<nil>".to_owned(),
            message: "Invalid value: null: some validation rules were not checked because the \
                      object was invalid; correct the existing errors to complete validation"
                .to_owned(),
        });
        return causes;
    }
    causes.extend(cel::evaluate(root, object, old));
    causes
}

/// All validation errors of a value except those of its rules.
pub(super) fn structural(node: &Node, value: &Value) -> Vec<Cause> {
    let mut walk = Walk::default();
    walk.node(node, value, None);
    walk.causes
}

#[derive(Default)]
struct Walk {
    path: String,
    causes: Vec<Cause>,
}

impl Walk {
    fn node(&mut self, node: &Node, value: &Value, old: Option<&Value>) {
        let before = self.causes.len();
        self.check(node, value, old);
        if self.causes.len() > before && old == Some(value) {
            self.causes.truncate(before);
        }
    }

    fn check(&mut self, node: &Node, value: &Value, old: Option<&Value>) {
        if value.is_null() && (node.nullable || (node.kind.is_none() && !node.int_or_string)) {
            return;
        }
        if !self.has_type(node, value) {
            return;
        }
        match value {
            Value::String(text) => self.string(node, text),
            Value::Number(number) => self.number(node, number),
            Value::Array(items) => self.array(node, items, old),
            Value::Object(fields) => self.object(node, fields, old),
            Value::Null | Value::Bool(_) => {}
        }
        self.allowed(node, value);
        self.logic(node, value);
    }

    fn has_type(&mut self, node: &Node, value: &Value) -> bool {
        let wanted = if node.int_or_string {
            if value.is_string() || is_integer(value) {
                return true;
            }
            "integer,string"
        } else {
            let Some(kind) = node.kind else { return true };
            let fits = match kind {
                Kind::Object => value.is_object(),
                Kind::Array => value.is_array(),
                Kind::String => value.is_string(),
                Kind::Integer => is_integer(value),
                Kind::Number => value.is_number(),
                Kind::Boolean => value.is_boolean(),
            };
            if fits {
                return true;
            }
            kind.name()
        };
        let got = type_of(value);
        let message = format!(
            "Invalid value: {got:?}: {} in body must be of type {wanted}: {got:?}",
            self.path
        );
        self.push("FieldValueTypeInvalid", message);
        false
    }

    fn allowed(&mut self, node: &Node, value: &Value) {
        let Some(allowed) = &node.checks.allowed else {
            return;
        };
        if allowed.contains(value) {
            return;
        }
        let supported: Vec<String> = allowed.iter().map(Value::to_string).collect();
        let message = format!(
            "Unsupported value: {}: supported values: {}",
            shortened(value),
            supported.join(", ")
        );
        self.push("FieldValueNotSupported", message);
    }

    fn string(&mut self, node: &Node, text: &str) {
        let checks = &node.checks;
        let value = || Value::from(text);
        if checks.max_length.is_some() || checks.min_length.is_some() {
            let length = text.chars().count() as u64;
            if let Some(limit) = checks.max_length.filter(|limit| length > *limit) {
                let message = format!("Too long: may not be more than {limit} bytes");
                self.push("FieldValueTooLong", message);
            }
            if let Some(limit) = checks.min_length.filter(|limit| length < *limit) {
                self.invalid(&value(), &format!("should be at least {limit} chars long"));
            }
        }
        if let Some(pattern) = checks.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
            self.invalid(&value(), &format!("should match '{pattern}'"));
        }
        if let Some(format) = checks.format.as_deref().filter(|format| !has_format(format, text)) {
            self.invalid(&value(), &format!("must be of type {format}: {}", shortened(&value())));
        }
    }

    fn number(&mut self, node: &Node, number: &serde_json::Number) {
        let checks = &node.checks;
        let value = Value::Number(number.clone());
        let float = number.as_f64().unwrap_or(f64::NAN);
        if let Some(limit) = checks.minimum {
            if checks.exclusive_minimum && float <= limit {
                self.invalid(&value, &format!("should be greater than {limit}"));
            } else if float < limit {
                self.invalid(&value, &format!("should be greater than or equal to {limit}"));
            }
        }
        if let Some(limit) = checks.maximum {
            if checks.exclusive_maximum && float >= limit {
                self.invalid(&value, &format!("should be less than {limit}"));
            } else if float > limit {
                self.invalid(&value, &format!("should be less than or equal to {limit}"));
            }
        }
        if let Some(divisor) = checks.multiple_of
            && divisor > 0.0
            && (float / divisor).fract() != 0.0
        {
            self.invalid(&value, &format!("should be a multiple of {divisor}"));
        }
        let outside = match checks.format.as_deref() {
            Some("int32") => number.as_i64().is_none_or(|number| i32::try_from(number).is_err()),
            Some("int64") => !is_integer(&value),
            _ => false,
        };
        if outside {
            let format = checks.format.as_deref().unwrap_or_default();
            self.invalid(&value, &format!("must be of type {format}: \"{number}\""));
        }
    }

    fn array(&mut self, node: &Node, items: &[Value], old: Option<&Value>) {
        let count = items.len() as u64;
        if let Some(limit) = node.checks.max_items.filter(|limit| count > *limit) {
            let message = format!("Too many: {count}: must have at most {limit} items");
            self.push("FieldValueTooMany", message);
        }
        if let Some(limit) = node.checks.min_items.filter(|limit| count < *limit) {
            self.invalid(&Value::from(count), &format!("should have at least {limit} items"));
        }
        if let Some(child) = &node.items {
            let old_items = old_items(node, old);
            for (index, item) in items.iter().enumerate() {
                let old_item =
                    old_items.as_ref().and_then(|old| old.get(&list_element(node, item)?).copied());
                let length = push_index(&mut self.path, index);
                self.node(child, item, old_item);
                self.path.truncate(length);
            }
        }
        self.duplicates(node, items);
    }

    fn duplicates(&mut self, node: &Node, items: &[Value]) {
        if node.list == ListType::Atomic {
            return;
        }
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let Some(element) = list_element(node, item) else {
                continue;
            };
            if let Some(element) = seen.replace(element) {
                let length = push_index(&mut self.path, index);
                self.push("FieldValueDuplicate", format!("Duplicate value: {}", &element[2..]));
                self.path.truncate(length);
            }
        }
    }

    fn object(&mut self, node: &Node, fields: &Map<String, Value>, old: Option<&Value>) {
        let count = fields.len() as u64;
        if let Some(limit) = node.checks.max_properties.filter(|limit| count > *limit) {
            let message = format!("Too many: {count}: must have at most {limit} items");
            self.push("FieldValueTooMany", message);
        }
        if let Some(limit) = node.checks.min_properties.filter(|limit| count < *limit) {
            self.invalid(&Value::from(count), &format!("should have at least {limit} properties"));
        }
        for key in &node.checks.required {
            if !fields.contains_key(key) {
                self.required(key, "Required value");
            }
        }
        if node.embedded {
            for key in ["apiVersion", "kind"] {
                let text = fields.get(key).and_then(Value::as_str).unwrap_or_default();
                if text.is_empty() && !node.checks.required.iter().any(|name| name == key) {
                    self.required(key, "Required value: must not be empty");
                }
            }
        }
        for (key, value) in fields {
            let Some(child) = node.properties.get(key).or(node.additional.as_ref()) else {
                continue;
            };
            let length = push_field(&mut self.path, key);
            self.node(child, value, old.and_then(|old| old.get(key)));
            self.path.truncate(length);
        }
    }

    fn required(&mut self, key: &str, message: &str) {
        let length = push_field(&mut self.path, key);
        self.push("FieldValueRequired", message.to_owned());
        self.path.truncate(length);
    }

    fn logic(&mut self, node: &Node, value: &Value) {
        let checks = &node.checks;
        let fits = |node: &Node| structural(node, value).is_empty();
        let before = self.causes.len();
        for all in &checks.all_of {
            self.node(all, value, None);
        }
        if self.causes.len() > before {
            self.invalid(value, "must validate all the schemas (allOf)");
        }
        if !checks.any_of.is_empty() && !checks.any_of.iter().any(fits) {
            self.invalid(value, "must validate at least one schema (anyOf)");
        }
        if !checks.one_of.is_empty() {
            let found = match checks.one_of.iter().filter(|node| fits(node)).count() {
                0 => "Found none valid".to_owned(),
                1 => String::new(),
                count => format!("Found {count} valid alternatives"),
            };
            if !found.is_empty() {
                let message = format!("must validate one and only one schema (oneOf). {found}");
                self.invalid(value, &message);
            }
        }
        if checks.not.as_ref().is_some_and(|node| fits(node)) {
            self.invalid(value, "must not validate the schema (not)");
        }
    }

    fn invalid(&mut self, value: &Value, detail: &str) {
        let message =
            format!("Invalid value: {}: {} in body {detail}", shortened(value), self.path);
        self.push("FieldValueInvalid", message);
    }

    fn push(&mut self, reason: &'static str, message: String) {
        let field = if self.path.is_empty() { "<nil>" } else { &self.path };
        self.causes.push(Cause { reason, field: field.to_owned(), message });
    }
}

/// The old items of a list by identity; `None` if there is no old list or no identity.
fn old_items<'a>(node: &Node, old: Option<&'a Value>) -> Option<BTreeMap<String, &'a Value>> {
    let items = old?.as_array()?;
    Some(items.iter().filter_map(|item| Some((list_element(node, item)?, item))).collect())
}

fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|float| float.fract() == 0.0)
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) if is_integer(value) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A value as messages show it.
fn shortened(value: &Value) -> String {
    let mut text = value.to_string();
    if text.len() > MAX_SHOWN {
        let end = (0..=MAX_SHOWN).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// Whether a string has a format; unknown formats accept everything.
fn has_format(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => {
            text.as_bytes().get(10).is_some_and(|byte| byte.eq_ignore_ascii_case(&b'T'))
                && !text.contains('[')
                && text.parse::<jiff::Timestamp>().is_ok()
        }
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "duration" => is_duration(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "byte" => is_base64(text),
        "uuid" => is_uuid(text),
        _ => true,
    }
}

/// Go's notation, `1h30m`, or a number with a unit in words, `3 days`.
fn is_duration(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if unsigned == "0" {
        return true;
    }
    let mut rest = unsigned;
    while !rest.is_empty() {
        let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let digits = &rest[..rest.len() - unit.len()];
        if digits.parse::<f64>().is_err() {
            return false;
        }
        let word = unit.trim_start();
        let next = word.trim_start_matches(|c: char| c.is_alphabetic());
        if !is_duration_unit(&word[..word.len() - next.len()]) {
            return false;
        }
        rest = next.trim_start();
    }
    !unsigned.is_empty()
}

fn is_duration_unit(unit: &str) -> bool {
    const UNITS: [&str; 18] = [
        "ns", "us", "µs", "μs", "ms", "s", "m", "h", "d", "w", "second", "minute", "hour", "day",
        "week", "sec", "min", "hr",
    ];
    UNITS.contains(&unit) || unit.strip_suffix('s').is_some_and(|unit| UNITS.contains(&unit))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let (Ok(address), Ok(bits)) = (address.parse::<IpAddr>(), bits.parse::<u8>()) else {
        return false;
    };
    bits <= if address.is_ipv4() { 32 } else { 128 }
}

fn is_base64(text: &str) -> bool {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).is_ok()
}

fn is_uuid(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_hexdigit).count();
    let hyphens = text.bytes().filter(|byte| *byte == b'-').count();
    digits == 32 && digits + hyphens == text.len()
}
