//! Validation, including rules in CEL.

use serde_json::{Value, json};

use super::{Cause, Schema};

fn schema(properties: &Value) -> Schema {
    Schema::from_open_api(&json!({
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": properties}},
    }))
    .unwrap()
}

fn causes(properties: &Value, spec: &Value) -> Vec<Cause> {
    schema(properties).validate(&json!({"spec": spec}), None)
}

/// The only validation error of `spec.x`.
fn wrong(x: &Value, value: &Value) -> String {
    let causes = causes(&json!({"x": x}), &json!({"x": value}));
    let [cause] = causes.as_slice() else { panic!("{causes:?}") };
    format!("{} {}: {}", cause.reason, cause.field, cause.message)
}

fn right(x: &Value, value: &Value) {
    assert_eq!(causes(&json!({"x": x}), &json!({"x": value})), []);
}

fn rule(rule: &Value) -> Schema {
    schema(&json!({
        "min": {"type": "integer"}, "max": {"type": "integer"},
        "ranged": {
            "type": "object",
            "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}},
            "x-kubernetes-validations": [rule],
        },
    }))
}

fn ruled(schema: &Schema, ranged: &Value, old: Option<&Value>) -> Vec<(String, String)> {
    let whole = |ranged: &Value| json!({"spec": {"ranged": ranged}});
    let old = old.map(whole);
    let causes = schema.validate(&whole(ranged), old.as_ref());
    causes.into_iter().map(|cause| (cause.field, cause.message)).collect()
}

#[test]
fn a_wrong_type_is_named() {
    assert_eq!(
        wrong(&json!({"type": "integer"}), &json!("three")),
        "FieldValueTypeInvalid spec.x: Invalid value: \"string\": spec.x in body must be of type \
         integer: \"string\""
    );
}

#[test]
fn a_whole_number_written_as_a_float_is_an_integer() {
    right(&json!({"type": "integer"}), &json!(3.0));
    assert!(wrong(&json!({"type": "integer"}), &json!(3.5)).contains("\"number\""));
}

#[test]
fn null_is_accepted_only_where_nullable() {
    right(&json!({"type": "string", "nullable": true}), &Value::Null);
    assert!(wrong(&json!({"type": "string"}), &Value::Null).contains("must be of type string"));
}

#[test]
fn a_missing_required_field_is_named() {
    let inner = json!({"type": "object", "properties": {"y": {"type": "string"}},
        "required": ["y"]});
    assert_eq!(wrong(&inner, &json!({})), "FieldValueRequired spec.x.y: Required value");
}

#[test]
fn a_value_outside_the_enum_names_the_supported_ones() {
    assert_eq!(
        wrong(&json!({"type": "string", "enum": ["A", "B"]}), &json!("x")),
        "FieldValueNotSupported spec.x: Unsupported value: \"x\": supported values: \"A\", \"B\""
    );
}

#[test]
fn a_pattern_must_match() {
    let x = json!({"type": "string", "pattern": "^v[0-9]+$"});
    right(&x, &json!("v1"));
    assert_eq!(
        wrong(&x, &json!("1")),
        "FieldValueInvalid spec.x: Invalid value: \"1\": spec.x in body should match '^v[0-9]+$'"
    );
}

#[test]
fn bounds_are_inclusive_by_default() {
    let x = json!({"type": "integer", "minimum": 1, "maximum": 3});
    right(&x, &json!(1));
    right(&x, &json!(3));
    assert!(wrong(&x, &json!(0)).ends_with("should be greater than or equal to 1"));
    assert!(wrong(&x, &json!(4)).ends_with("should be less than or equal to 3"));
    let x = json!({"type": "number", "minimum": 0.5, "exclusiveMinimum": true});
    assert!(wrong(&x, &json!(0.5)).ends_with("should be greater than 0.5"));
}

#[test]
fn lengths_count_characters() {
    let x = json!({"type": "string", "minLength": 2, "maxLength": 3});
    right(&x, &json!("äöü"));
    assert!(wrong(&x, &json!("ä")).ends_with("should be at least 2 chars long"));
    assert_eq!(
        wrong(&x, &json!("abcd")),
        "FieldValueTooLong spec.x: Too long: may not be more than 3 bytes"
    );
}

#[test]
fn lists_and_maps_have_sizes() {
    let x = json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2});
    assert!(wrong(&x, &json!([])).ends_with("should have at least 1 items"));
    assert_eq!(
        wrong(&x, &json!(["a", "b", "c"])),
        "FieldValueTooMany spec.x: Too many: 3: must have at most 2 items"
    );
    let x = json!({"type": "object", "additionalProperties": {"type": "string"},
        "minProperties": 1, "maxProperties": 1});
    assert!(wrong(&x, &json!({})).ends_with("should have at least 1 properties"));
    assert!(wrong(&x, &json!({"a": "", "b": ""})).contains("must have at most 1 items"));
}

#[test]
fn a_duplicate_item_of_a_list_map_is_invalid() {
    let x = json!({
        "type": "array",
        "items": {"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string"}, "value": {"type": "string"}}},
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    });
    let items = json!([{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]);
    assert_eq!(
        wrong(&x, &items),
        "FieldValueDuplicate spec.x[1]: Duplicate value: {\"name\":\"a\"}"
    );
}

#[test]
fn a_duplicate_item_of_a_set_is_invalid() {
    let x = json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"});
    assert_eq!(
        wrong(&x, &json!(["a", "b", "a"])),
        "FieldValueDuplicate spec.x[2]: Duplicate value: \"a\""
    );
}

#[test]
fn formats_of_strings_are_checked() {
    for (format, good, bad) in [
        ("date-time", "2026-01-02T03:04:05Z", "2026-01-02"),
        ("date", "2026-01-02", "2026-13-02"),
        ("duration", "1h30m", "soon"),
        ("ipv4", "10.0.0.1", "10.0.0"),
        ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
        ("byte", "YQ==", "?"),
        ("uuid", "3f0b2c52-6a0e-4c1c-9f3c-0a1b2c3d4e5f", "3f0b"),
    ] {
        let x = json!({"type": "string", "format": format});
        right(&x, &json!(good));
        let message = wrong(&x, &json!(bad));
        assert!(message.ends_with(&format!("must be of type {format}: \"{bad}\"")), "{message}");
    }
}

#[test]
fn an_int32_must_fit() {
    let x = json!({"type": "integer", "format": "int32"});
    right(&x, &json!(-5));
    assert!(wrong(&x, &json!(3_000_000_000_i64)).contains("must be of type int32"));
}

#[test]
fn int_or_string_takes_both_and_nothing_else() {
    let x = json!({"x-kubernetes-int-or-string": true});
    right(&x, &json!(1));
    right(&x, &json!("25%"));
    assert!(wrong(&x, &json!(true)).contains("must be of type integer,string"));
}

#[test]
fn logic_restricts_values() {
    let fields = json!({"a": {"type": "string"}, "b": {"type": "string"}});
    let with = |logic: &str, list: Value| {
        json!({"type": "object", "properties": fields,
        logic: list})
    };
    let any = with("anyOf", json!([{"required": ["a"]}, {"required": ["b"]}]));
    right(&any, &json!({"a": "", "b": ""}));
    assert!(wrong(&any, &json!({})).ends_with("must validate at least one schema (anyOf)"));
    let one = with("oneOf", json!([{"required": ["a"]}, {"required": ["b"]}]));
    right(&one, &json!({"a": ""}));
    assert!(wrong(&one, &json!({})).ends_with("Found none valid"));
    assert!(wrong(&one, &json!({"a": "", "b": ""})).ends_with("Found 2 valid alternatives"));
    let not = with("not", json!({"required": ["a"]}));
    right(&not, &json!({"b": ""}));
    assert!(wrong(&not, &json!({"a": ""})).ends_with("must not validate the schema (not)"));
    let all = with("allOf", json!([{"properties": {"a": {"minLength": 1}}}]));
    right(&all, &json!({"a": "x"}));
    let causes = causes(&json!({"x": all}), &json!({"x": {"a": ""}}));
    assert_eq!(causes[0].field, "spec.x.a");
    assert!(causes[1].message.ends_with("must validate all the schemas (allOf)"));
}

#[test]
fn an_embedded_resource_needs_a_type() {
    let x = json!({"type": "object", "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true});
    right(&x, &json!({"apiVersion": "v1", "kind": "Pod"}));
    assert_eq!(
        wrong(&x, &json!({"kind": "Pod"})),
        "FieldValueRequired spec.x.apiVersion: Required value: must not be empty"
    );
}

#[test]
fn an_unchanged_invalid_value_is_accepted() {
    let schema = schema(&json!({"x": {"type": "integer", "maximum": 3}, "y": {"type": "string"}}));
    let old = json!({"spec": {"x": 5, "y": "a"}});
    assert_eq!(schema.validate(&json!({"spec": {"x": 5, "y": "b"}}), Some(&old)), []);
    assert_eq!(schema.validate(&json!({"spec": {"x": 6, "y": "b"}}), Some(&old)).len(), 1);
}

#[test]
fn a_failed_rule_returns_its_message() {
    let schema = rule(&json!({"rule": "self.min <= self.max", "message": "min above max"}));
    assert_eq!(ruled(&schema, &json!({"min": 1, "max": 2}), None), []);
    let expected =
        ("spec.ranged".to_owned(), "Invalid value: \"object\": min above max".to_owned());
    assert_eq!(ruled(&schema, &json!({"min": 3, "max": 2}), None), [expected]);
}

#[test]
fn a_rule_without_a_message_returns_its_text() {
    let schema = rule(&json!({"rule": "self.min <= self.max"}));
    let causes = ruled(&schema, &json!({"min": 3, "max": 2}), None);
    assert!(causes[0].1.ends_with("failed rule: self.min <= self.max"));
}

#[test]
fn a_message_expression_is_computed() {
    let schema = rule(&json!({
        "rule": "self.min <= self.max", "message": "static",
        "messageExpression": "'min is ' + string(self.min)",
    }));
    assert!(ruled(&schema, &json!({"min": 3, "max": 2}), None)[0].1.ends_with("min is 3"));
}

#[test]
fn reason_and_field_path_of_a_rule_reach_the_cause() {
    let schema = rule(&json!({
        "rule": "has(self.min)", "reason": "FieldValueRequired", "fieldPath": ".min",
        "message": "needed",
    }));
    let cause = &schema.validate(&json!({"spec": {"ranged": {}}}), None)[0];
    assert_eq!((cause.reason, cause.field.as_str()), ("FieldValueRequired", "spec.ranged.min"));
    assert_eq!(cause.message, "Required value: needed");
}

#[test]
fn a_transition_rule_is_skipped_on_create_and_holds_on_update() {
    let schema = rule(&json!({"rule": "self.min == oldSelf.min", "message": "immutable"}));
    assert_eq!(ruled(&schema, &json!({"min": 1}), None), []);
    assert_eq!(ruled(&schema, &json!({"min": 1, "max": 9}), Some(&json!({"min": 1}))), []);
    assert_eq!(ruled(&schema, &json!({"min": 2}), Some(&json!({"min": 1}))).len(), 1);
}

#[test]
fn an_optional_old_self_runs_on_create_too() {
    let schema = rule(&json!({
        "rule": "!oldSelf.hasValue() || oldSelf.value().min == self.min",
        "optionalOldSelf": true,
    }));
    assert_eq!(ruled(&schema, &json!({"min": 1}), None), []);
    assert_eq!(ruled(&schema, &json!({"min": 2}), Some(&json!({"min": 1}))).len(), 1);
}

#[test]
fn items_of_a_list_map_match_their_old_values_by_key() {
    let schema = schema(&json!({"list": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "type": "object", "required": ["name"],
            "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "self.size >= oldSelf.size"}],
        },
    }}));
    let object = |items: Value| json!({"spec": {"list": items}});
    let old = object(json!([{"name": "a", "size": 1}, {"name": "b", "size": 5}]));
    let moved = object(json!([{"name": "b", "size": 5}, {"name": "a", "size": 1}]));
    assert_eq!(schema.validate(&moved, Some(&old)), []);
    let shrunk = object(json!([{"name": "b", "size": 4}, {"name": "c", "size": 0}]));
    let causes = schema.validate(&shrunk, Some(&old));
    assert_eq!(causes.len(), 1);
    assert_eq!(causes[0].field, "spec.list[0]");
}

#[test]
fn rules_are_not_run_on_an_object_of_wrong_types() {
    let schema = rule(&json!({"rule": "self.min <= self.max"}));
    let causes = ruled(&schema, &json!({"min": "x", "max": 2}), None);
    assert_eq!(causes.len(), 2);
    assert!(causes[1].1.contains("some validation rules were not checked"));
}

#[test]
fn rules_see_times_numbers_and_escaped_names() {
    let rules = json!([
        {"rule": "self.at < timestamp('2030-01-01T00:00:00Z')"},
        {"rule": "self.ratio > 0.5"},
        {"rule": "self.a__dash__b == 'x' && self.__namespace__ == 'y' && self.snake_case == 'z'"},
        {"rule": "self.labels['a-b'].size() == 1"},
        {"rule": "self.tags.isSorted() && self.name.lowerAscii() == 'n'"},
    ]);
    let x = json!({
        "type": "object", "x-kubernetes-validations": rules,
        "properties": {
            "at": {"type": "string", "format": "date-time"},
            "ratio": {"type": "number"},
            "a-b": {"type": "string"},
            "namespace": {"type": "string"},
            "snake_case": {"type": "string"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "tags": {"type": "array", "items": {"type": "string"}},
            "name": {"type": "string"},
        },
    });
    let value = json!({
        "at": "2026-01-01T00:00:00Z", "ratio": 1, "a-b": "x", "namespace": "y",
        "snake_case": "z", "labels": {"a-b": "1"}, "tags": ["a", "b"], "name": "N",
    });
    right(&x, &value);
}

#[test]
fn a_rule_that_meets_a_missing_field_fails_closed() {
    let schema = rule(&json!({"rule": "self.min <= self.max"}));
    let causes = ruled(&schema, &json!({"min": 1}), None);
    assert!(causes[0].1.contains("evaluating rule: self.min <= self.max"), "{causes:?}");
}
