//! Parsing schemas, pruning, defaults.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Schema, SchemaError};

fn schema(properties: &Value) -> Schema {
    Schema::from_open_api(&whole(properties)).unwrap()
}

fn whole(properties: &Value) -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}})
}

fn refused(properties: &Value) -> String {
    Schema::from_open_api(&whole(properties)).unwrap_err().to_string()
}

fn pruned(schema: &Schema, mut object: Value) -> (Value, Vec<String>) {
    let removed = schema.prune(&mut object);
    (object, removed)
}

fn defaulted(schema: &Schema, mut object: Value) -> Value {
    schema.default(&mut object);
    object
}

#[test]
fn a_schema_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + Clone>() {}
    shared::<Schema>();
}

#[test]
fn a_root_that_is_no_object_is_refused() {
    let error = Schema::from_open_api(&json!({"type": "string"})).unwrap_err();
    assert_eq!(error.to_string(), "type: Invalid value: must be object at the root");
}

#[test]
fn a_field_without_a_type_is_refused_with_its_path() {
    let message = refused(&json!({"list": {"type": "array", "items": {"minimum": 1}}}));
    assert_eq!(
        message,
        "properties[spec].properties[list].items.type: Required value: must not be empty for \
         specified object fields"
    );
}

#[test]
fn an_unknown_type_is_refused() {
    let message = refused(&json!({"x": {"type": "int"}}));
    assert!(message.contains("Unsupported value: \"int\": supported values: \"array\""));
}

#[test]
fn an_unknown_extension_is_refused() {
    let message = refused(&json!({"x": {"type": "string", "x-kubernetes-magic": true}}));
    assert_eq!(
        message,
        "properties[spec].properties[x].x-kubernetes-magic: Unsupported value: unknown extension"
    );
}

#[test]
fn structure_inside_logic_is_refused() {
    let logic = json!({"x": {"type": "object", "anyOf": [{"description": "no"}]}});
    assert!(refused(&logic).contains("anyOf[0].description: Forbidden"));
    let typed = json!({"x": {"type": "object", "not": {"type": "string"}}});
    assert!(refused(&typed).contains("not.type: Forbidden"));
}

#[test]
fn a_field_that_only_logic_declares_is_refused() {
    let logic = json!({"x": {"type": "object", "anyOf": [{"properties": {"y": {}}}]}});
    assert!(refused(&logic).contains("anyOf[0].properties[y]: Required value"));
}

#[test]
fn the_logic_of_int_or_string_may_name_types() {
    schema(&json!({"x": {
        "x-kubernetes-int-or-string": true,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
    }}));
}

#[test]
fn metadata_may_only_restrict_the_name() {
    let with = |metadata: Value| {
        Schema::from_open_api(&json!({"type": "object", "properties": {"metadata": metadata}}))
    };
    let name = json!({"name": {"type": "string", "maxLength": 63}});
    with(json!({"type": "object", "properties": name})).unwrap();
    let labels = json!({"labels": {"type": "object"}});
    let error = with(json!({"type": "object", "properties": labels})).unwrap_err();
    assert!(error.to_string().contains("may only restrict name and generateName"));
}

#[test]
fn a_list_map_needs_keys_that_are_required_or_have_a_default() {
    let list = |items: Value| {
        json!({"list": {
            "type": "array", "items": items,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        }})
    };
    let name = json!({"name": {"type": "string"}});
    let message = refused(&list(json!({"type": "object", "properties": name})));
    assert!(message.contains("items.properties[name].default: Required value"), "{message}");
    let message = refused(&list(json!({"type": "object", "properties": {}})));
    assert!(message.contains("must name a property of the items"), "{message}");
    schema(&list(json!({"type": "object", "properties": name, "required": ["name"]})));
}

#[test]
fn a_default_that_its_own_schema_refuses_is_refused() {
    let message = refused(&json!({"n": {"type": "integer", "minimum": 1, "default": 0}}));
    assert!(message.contains("properties[n].default"), "{message}");
    assert!(message.contains("greater than or equal to 1"), "{message}");
}

#[test]
fn unique_items_are_refused_as_kubernetes_refuses_them() {
    let list = json!({"l": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}});
    assert!(refused(&list).contains("uniqueItems cannot be set to true"));
}

#[test]
fn a_rule_that_does_not_compile_is_refused_with_its_text() {
    let rule = json!({"x": {
        "type": "integer", "x-kubernetes-validations": [{"rule": "self >"}],
    }});
    let error = Schema::from_open_api(&whole(&rule)).unwrap_err();
    let SchemaError::Rule { path, rule, .. } = error else { panic!("{error}") };
    assert_eq!(path, "properties[spec].properties[x].x-kubernetes-validations[0].rule");
    assert_eq!(rule, "self >");
}

#[test]
fn a_rule_with_a_variable_of_a_reserved_name_is_refused() {
    let with = |rule: &str| {
        let rules = json!([{"rule": rule}]);
        let items = json!({"type": "string"});
        let list = json!({"type": "array", "items": items, "x-kubernetes-validations": rules});
        Schema::from_open_api(&whole(&json!({"x": list})))
    };
    assert!(with("self.all(one, one != 'package')").is_ok());
    let SchemaError::Rule { message, .. } = with("self.all(package, package != '')").unwrap_err()
    else {
        panic!("its rule is refused")
    };
    assert_eq!(message, "reserved identifier: package");
}

#[test]
fn a_bad_pattern_is_refused() {
    assert!(refused(&json!({"x": {"type": "string", "pattern": "("}})).contains("valid pattern"));
}

#[test]
fn an_unknown_field_is_pruned_unless_preserved() {
    let schema = schema(&json!({
        "known": {"type": "string"},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }));
    let object = json!({"spec": {"known": "a", "unknown": 1, "open": {"free": {"deep": 1}}}});
    let (object, removed) = pruned(&schema, object);
    assert_eq!(object, json!({"spec": {"known": "a", "open": {"free": {"deep": 1}}}}));
    assert_eq!(removed, ["spec.unknown"]);
}

#[test]
fn known_fields_below_a_preserving_object_are_pruned_by_their_own_schema() {
    let schema = schema(&json!({"open": {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"closed": {"type": "object", "properties": {"a": {"type": "string"}}}},
    }}));
    let (_, removed) = pruned(&schema, json!({"spec": {"open": {"x": 1, "closed": {"b": 1}}}}));
    assert_eq!(removed, ["spec.open.closed.b"]);
}

#[test]
fn type_and_metadata_of_the_root_are_never_pruned() {
    let object = json!({
        "apiVersion": "a/v1", "kind": "K", "metadata": {"name": "n", "strange": 1}, "data": 1,
    });
    let (object, removed) = pruned(&schema(&json!({})), object);
    assert_eq!(removed, ["data"]);
    assert_eq!(object["metadata"]["strange"], 1);
    assert_eq!(object["kind"], "K");
}

#[test]
fn an_embedded_resource_keeps_its_type_and_metadata() {
    let schema = schema(&json!({"template": {
        "type": "object", "x-kubernetes-embedded-resource": true,
        "properties": {"spec": {"type": "object"}},
    }}));
    let template = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}, "extra": 1,
        "spec": {"x": 1},
    });
    let (_, removed) = pruned(&schema, json!({"spec": {"template": template}}));
    assert_eq!(removed, ["spec.template.extra", "spec.template.spec.x"]);
}

#[test]
fn pruning_reaches_into_lists_and_maps() {
    let inner = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let schema = schema(&json!({
        "list": {"type": "array", "items": inner},
        "map": {"type": "object", "additionalProperties": inner},
    }));
    let object = json!({"spec": {"list": [{"a": "x"}, {"b": 1}], "map": {"k": {"c": 1}}}});
    let (object, removed) = pruned(&schema, object);
    assert_eq!(removed, ["spec.list[1].b", "spec.map.k.c"]);
    assert_eq!(object, json!({"spec": {"list": [{"a": "x"}, {}], "map": {"k": {}}}}));
}

#[test]
fn a_schemaless_kind_keeps_everything() {
    let object = json!({"kind": "K", "metadata": {"x": null}, "spec": {"a": [1, {"b": null}]}});
    let (kept, removed) = pruned(&Schema::schemaless(), object.clone());
    assert_eq!((kept, removed.len()), (object, 0));
}

#[test]
fn defaults_reach_into_list_items() {
    let schema = schema(&json!({"list": {"type": "array", "items": {
        "type": "object", "properties": {"n": {"type": "integer", "default": 3}},
    }}}));
    let object = defaulted(&schema, json!({"spec": {"list": [{}, {"n": 1}]}}));
    assert_eq!(object, json!({"spec": {"list": [{"n": 3}, {"n": 1}]}}));
}

#[test]
fn a_default_is_filled_in_further_by_the_defaults_below_it() {
    let schema = schema(&json!({"outer": {
        "type": "object", "default": {},
        "properties": {"inner": {"type": "string", "default": "x"}},
    }}));
    assert_eq!(defaulted(&schema, json!({"spec": {}})), json!({"spec": {"outer": {"inner": "x"}}}));
}

#[test]
fn a_missing_parent_without_a_default_gets_no_children() {
    let schema = schema(&json!({"n": {"type": "integer", "default": 3}}));
    assert_eq!(defaulted(&schema, json!({})), json!({}));
}

#[test]
fn a_null_is_defaulted_or_dropped_unless_nullable() {
    let schema = schema(&json!({
        "defaulted": {"type": "integer", "default": 3},
        "plain": {"type": "integer"},
        "nullable": {"type": "integer", "nullable": true, "default": 1},
    }));
    let object = json!({"spec": {"defaulted": null, "plain": null, "nullable": null}});
    let expected = json!({"spec": {"defaulted": 3, "nullable": null}});
    assert_eq!(defaulted(&schema, object), expected);
}

#[test]
fn a_default_of_null_is_no_default() {
    let schema = schema(&json!({"x": {"type": "string", "nullable": true, "default": null}}));
    assert_eq!(defaulted(&schema, json!({"spec": {}})), json!({"spec": {}}));
}

#[test]
fn the_usual_idioms_of_generated_crds_are_accepted() {
    schema(&json!({
        "json": {"x-kubernetes-preserve-unknown-fields": true},
        "quantity": {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": "^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE])?$",
            "x-kubernetes-int-or-string": true,
        },
        "percent": {
            "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"minimum": 0}],
            "x-kubernetes-int-or-string": true,
        },
        "reference": {"type": "object", "properties": {"name": {"type": "string"}},
            "x-kubernetes-map-type": "atomic", "description": "A reference."},
        "choice": {"type": "object", "minProperties": 1,
            "properties": {"a": {"type": "object"}, "b": {"type": "object"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        "kind": {"type": "string", "enum": ["A", "B", null], "nullable": true},
        "count": {"type": "integer", "format": "uint32", "minimum": 0.0},
        "url": {"type": "string", "pattern": "^https?:\\/\\/[^\\s]+$"},
    }));
}

#[test]
fn nulls_in_metadata_go() {
    let object = json!({"metadata": {"name": "x", "creationTimestamp": null}});
    let expected = json!({"metadata": {"name": "x"}});
    assert_eq!(defaulted(&Schema::schemaless(), object), expected);
}

#[test]
fn a_service_port_of_a_built_in_service_is_tcp() {
    let object = json!({"spec": {"ports": [{"port": 80}]}});
    let object = defaulted(&Schema::builtin("", "Service"), object);
    assert_eq!(object["spec"]["ports"][0]["protocol"], "TCP");
}

/// Any JSON with a few keys, so that it often matches the schema.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3..9i64).prop_map(Value::from),
        "[a-c]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-f]|spec|metadata", inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn rich_schema() -> Schema {
    let inner = json!({"type": "object", "properties": {
        "a": {"type": "integer", "default": 1, "maximum": 5},
        "b": {"type": "string", "enum": ["a", "b"]},
        "c": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
    }, "required": ["a"]});
    schema(&json!({
        "a": inner,
        "b": {"type": "array", "items": inner},
        "c": {"type": "object", "additionalProperties": inner},
        "d": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "nullable": true},
        "e": {"x-kubernetes-int-or-string": true, "default": "x"},
    }))
}

proptest! {
    #[test]
    fn pruning_twice_is_pruning_once(spec in any_json()) {
        let schema = rich_schema();
        let (once, _) = pruned(&schema, json!({"kind": "K", "spec": spec}));
        let (twice, removed) = pruned(&schema, once.clone());
        prop_assert_eq!(once, twice);
        prop_assert!(removed.is_empty());
    }

    #[test]
    fn defaulting_twice_is_defaulting_once(spec in any_json()) {
        let schema = rich_schema();
        let once = defaulted(&schema, json!({"spec": spec}));
        prop_assert_eq!(defaulted(&schema, once.clone()), once);
    }

    #[test]
    fn validating_a_defaulted_object_gives_the_same_answer_twice(spec in any_json()) {
        let schema = rich_schema();
        let object = defaulted(&schema, json!({"spec": spec}));
        let first = schema.validate(&object, None);
        prop_assert_eq!(&first, &schema.validate(&object, None));
        prop_assert!(schema.validate(&object, Some(&object)).is_empty(), "untouched is accepted");
    }
}
