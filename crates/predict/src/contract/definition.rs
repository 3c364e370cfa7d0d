//! The clauses about the kinds of a provider.

use refit_kinds::{json, keys};
use serde_json::Value;

use super::Verdict;

/// The fields of the contract in `spec`, and their types.
const SPEC_FIELDS: [(&str, &str); 9] = [
    ("machineRef.name", "string"),
    ("machineRef.uid", "string"),
    ("nodeName", "string"),
    ("goal.kubernetesVersion", "string"),
    ("goal.role", "string"),
    ("goal.option", "object"),
    ("goal.hash", "string"),
    ("gate", "string"),
    ("stage", "string"),
];
/// The fields of the contract in `status`, and their types.
const STATUS_FIELDS: [(&str, &str); 11] = [
    ("observedGeneration", "integer"),
    ("passed", "string"),
    ("ready", "boolean"),
    ("pastNoReturn", "boolean"),
    ("progress.percent", "integer"),
    ("progress.message", "string"),
    ("failureReason", "string"),
    ("failureMessage", "string"),
    ("retriable", "boolean"),
    ("leftBehind", "array"),
    ("conditions", "array"),
];
/// The values that a field with an `enum` must allow.
const VALUES: [(&str, &[&str]); 4] = [
    ("goal.role", &["FirstControlPlane", "ControlPlane", "Worker"]),
    ("gate", &["Stage", "Upgrade", "Disrupt"]),
    ("stage", &["Ongoing", "Abort"]),
    ("passed", &["Closed", "Stage", "Upgrade", "Disrupt"]),
];

/// A permission that Refit needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Plural of the kind.
    pub resource: String,
    /// What Refit does with it.
    pub verbs: &'static [&'static str],
}

/// What the API server has about the kinds of a provider.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The CustomResourceDefinition of the kind that Refit makes, or why it cannot be read.
    pub made: Result<Value, String>,
    /// API group of both kinds.
    pub group: String,
    /// Version of both kinds in the template.
    pub version: String,
    /// Whether objects of both kinds are in a namespace, or which are not.
    pub scopes: Result<(), String>,
    /// Whether the API server admits the template.
    pub template: Verdict,
    /// What Refit needs.
    pub needed: [Needed; 2],
    /// The ClusterRoles that are aggregated for Refit, or why they cannot be read.
    pub roles: Result<Vec<Value>, String>,
}

impl Definition {
    /// The definition, or the verdict that it cannot be read.
    fn read(&self) -> Result<&Value, Verdict> {
        self.made.as_ref().map_err(|why| Verdict::NotTested(why.clone()))
    }

    pub(super) fn label(&self) -> Verdict {
        let crd = match self.read() {
            Ok(crd) => crd,
            Err(verdict) => return verdict,
        };
        let listed = json::label(crd, keys::CONTRACT);
        if listed.is_some_and(|all| all.split('_').any(|version| version == self.version)) {
            return Verdict::Kept;
        }
        let has = listed.map_or("is missing".to_owned(), |value| format!("is {value:?}"));
        Verdict::Broken(format!(
            "the label {} of CustomResourceDefinition {} {has}: set it to {}",
            keys::CONTRACT,
            json::name(crd),
            self.version
        ))
    }

    /// Whether objects can be made at all.
    pub fn can_run(&self) -> bool {
        let has_status = !matches!(self.status_subresource(), Verdict::Broken(_));
        let has_template = !matches!(self.template, Verdict::Broken(_));
        self.scopes.is_ok() && has_template && has_status
    }

    pub(super) fn namespaced(&self) -> Verdict {
        Verdict::of_first(self.scopes.clone().err().into_iter())
    }

    pub(super) fn template(&self) -> Verdict {
        self.template.clone()
    }

    pub(super) fn status_subresource(&self) -> Verdict {
        self.with_version(|version| {
            let is_there = version.pointer("/subresources/status").is_some();
            let missing = || format!("version {} has no subresources.status", self.version);
            Verdict::of_first((!is_there).then(missing).into_iter())
        })
    }

    pub(super) fn spec_fields(&self) -> Verdict {
        self.fields("spec", &SPEC_FIELDS)
    }

    pub(super) fn status_fields(&self) -> Verdict {
        self.fields("status", &STATUS_FIELDS)
    }

    fn fields(&self, part: &str, fields: &[(&str, &str)]) -> Verdict {
        self.with_version(|version| {
            let schema = version.pointer("/schema/openAPIV3Schema").unwrap_or(&Value::Null);
            let faults = fields.iter().filter_map(|(field, kind)| {
                fault(schema, part, field, kind).or_else(|| needed(schema, part, field))
            });
            let faults = faults.collect::<Vec<_>>();
            if faults.is_empty() { Verdict::Kept } else { Verdict::Broken(faults.join("; ")) }
        })
    }

    fn with_version(&self, judge: impl FnOnce(&Value) -> Verdict) -> Verdict {
        let crd = match self.read() {
            Ok(crd) => crd,
            Err(verdict) => return verdict,
        };
        let versions = crd.pointer("/spec/versions").and_then(Value::as_array);
        let mut versions = versions.into_iter().flatten();
        match versions.find(|version| json::text(version, "/name") == self.version) {
            Some(version) => judge(version),
            None => Verdict::Broken(format!("the definition has no version {}", self.version)),
        }
    }

    pub(super) fn permissions(&self) -> Verdict {
        let roles = match &self.roles {
            Ok(roles) => roles,
            Err(why) => return Verdict::NotTested(why.clone()),
        };
        let lacking = self.needed.iter().flat_map(|needed| {
            let verbs =
                needed.verbs.iter().filter(|verb| !allows(roles, self, &needed.resource, verb));
            verbs.map(|verb| format!("{verb} {}.{}", needed.resource, self.group))
        });
        let lacking = lacking.collect::<Vec<_>>();
        if lacking.is_empty() {
            return Verdict::Kept;
        }
        Verdict::Broken(format!(
            "no ClusterRole with the label {}: \"true\" allows Refit to {}",
            keys::AGGREGATE_TO_CONTROLLER,
            lacking.join(", ")
        ))
    }
}

fn allows(roles: &[Value], definition: &Definition, resource: &str, verb: &str) -> bool {
    let names = |rule: &Value, field: &str, wanted: &str| {
        let list = rule.get(field).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).any(|name| name == wanted || name == "*")
    };
    let rules = roles.iter().filter_map(|role| role.get("rules")?.as_array()).flatten();
    let mut rules = rules.filter(|rule| rule.get("resourceNames").is_none());
    rules.any(|rule| {
        names(rule, "apiGroups", &definition.group)
            && names(rule, "resources", resource)
            && names(rule, "verbs", verb)
    })
}

/// Whether a status without a field is refused: a patch of what has changed leaves out what stays empty.
fn needed(schema: &Value, part: &str, field: &str) -> Option<String> {
    if part != "status" {
        return None;
    }
    let mut at = schema.get("properties")?.get(part)?;
    for name in field.split('.') {
        let field_schema = at.get("properties")?.get(name)?;
        let required = at.get("required").and_then(Value::as_array).into_iter().flatten();
        if required.into_iter().any(|one| one == name) && field_schema.get("default").is_none() {
            return Some(format!("{part}.{field} is required and has no default"));
        }
        at = field_schema;
    }
    None
}

/// What is wrong with a field of a schema; `None` if it holds what the contract has.
fn fault(schema: &Value, part: &str, field: &str, kind: &str) -> Option<String> {
    let mut at = schema;
    for name in [part].into_iter().chain(field.split('.')) {
        let inner = at.get("properties").and_then(|properties| properties.get(name));
        let Some(inner) = inner else {
            let keeps = json::flag(at, "/x-kubernetes-preserve-unknown-fields");
            return (!keeps)
                .then(|| format!("{part}.{field} is not in the schema, so it is dropped"));
        };
        at = inner;
    }
    let has = json::text(at, "/type");
    let is_free = has.is_empty() && json::flag(at, "/x-kubernetes-preserve-unknown-fields");
    if has != kind && !is_free {
        return Some(format!("{part}.{field} has type {has:?}, want {kind}"));
    }
    let allowed = at.get("enum").and_then(Value::as_array)?;
    let (_, wanted) = VALUES.iter().find(|(name, _)| *name == field)?;
    let missing = wanted.iter().find(|value| !allowed.iter().any(|one| one == *value))?;
    Some(format!("{part}.{field} does not allow {missing}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use refit_kinds::refit::{
        GoalOption, MachineRef, ProviderGoal, ProviderProgress, ProviderSpec, ProviderStatus, Role,
    };
    use serde_json::json;

    use super::*;

    /// The definitions of the example.
    const EXAMPLE: &str = include_str!("../../../../examples/provider/crds.yaml");

    fn example() -> Definition {
        let documents = EXAMPLE.split("---").filter_map(|text| serde_json::from_str(text).ok());
        let mut documents = documents.filter(|crd: &Value| crd.is_object());
        let made = documents.find(|crd| json::text(crd, "/spec/names/kind") == "MemoryUpdate");
        Definition {
            made: Ok(made.unwrap()),
            group: "memory.example".into(),
            version: "v1".into(),
            scopes: Ok(()),
            template: Verdict::Kept,
            needed: [
                Needed { resource: "memoryupdatetemplates".into(), verbs: &["get"] },
                Needed { resource: "memoryupdates".into(), verbs: &["get", "patch"] },
            ],
            roles: Ok(vec![json!({"rules": [
                {"apiGroups": ["memory.example"], "resources": ["memoryupdatetemplates"], "verbs": ["get"]},
                {"apiGroups": ["memory.example"], "resources": ["memoryupdates"], "verbs": ["get", "patch"]},
            ]})]),
        }
    }

    /// The verdicts of all clauses about kinds.
    fn verdicts(definition: &Definition) -> [Verdict; 7] {
        [
            definition.label(),
            definition.namespaced(),
            definition.template(),
            definition.status_subresource(),
            definition.spec_fields(),
            definition.status_fields(),
            definition.permissions(),
        ]
    }

    fn broken(verdict: &Verdict) -> &str {
        match verdict {
            Verdict::Broken(why) => why,
            Verdict::Kept | Verdict::NotTested(_) => "",
        }
    }

    #[test]
    fn the_definitions_of_the_example_keep_every_clause() {
        assert_eq!(verdicts(&example()), [const { Verdict::Kept }; 7]);
    }

    #[test]
    fn a_definition_that_cannot_be_read_is_not_tested() {
        let unread = Definition {
            made: Err("forbidden".into()),
            roles: Err("forbidden".into()),
            ..example()
        };
        let verdicts = verdicts(&unread);
        let not_tested = verdicts.iter().filter(|one| matches!(one, Verdict::NotTested(_)));
        assert_eq!(not_tested.count(), 5, "{verdicts:?}");
    }

    #[test]
    fn a_missing_label_names_its_value() {
        let mut definition = example();
        let crd = definition.made.as_mut().unwrap();
        crd["metadata"]["labels"] = json!({"refit.dev/v1alpha1": "v1beta1_v2"});
        let found = definition.label();
        assert!(broken(&found).ends_with("is \"v1beta1_v2\": set it to v1"), "{found:?}");
        definition.made.as_mut().unwrap()["metadata"]["labels"] =
            json!({"refit.dev/v1alpha1": "v2_v1"});
        assert_eq!(definition.label(), Verdict::Kept);
    }

    #[test]
    fn a_missing_permission_is_named_by_verb_and_resource() {
        let mut definition = example();
        definition.roles.as_mut().unwrap()[0]["rules"][1]["verbs"] = json!(["get"]);
        let found = definition.permissions();
        assert!(broken(&found).ends_with("patch memoryupdates.memory.example"), "{found:?}");
        definition.roles.as_mut().unwrap()[0]["rules"][1]["verbs"] = json!(["*"]);
        assert_eq!(definition.permissions(), Verdict::Kept);
        definition.roles.as_mut().unwrap()[0]["rules"][1]["resourceNames"] = json!(["one"]);
        assert!(broken(&definition.permissions()).contains("get memoryupdates"));
    }

    /// Every field of the contract, one after the other, dropped from the schema and with another type.
    #[test]
    fn each_field_that_is_dropped_or_has_another_type_is_named() {
        for (part, fields) in [("spec", &SPEC_FIELDS[..]), ("status", &STATUS_FIELDS[..])] {
            for (field, _) in fields {
                let path = field.replace('.', "/properties/");
                let schema = "/spec/versions/0/schema/openAPIV3Schema/properties";
                let (above, name) = path.rsplit_once('/').unwrap_or(("", &path));
                let above = if above.is_empty() {
                    "properties".to_owned()
                } else {
                    format!("properties/{above}")
                };
                let above = format!("{schema}/{part}/{above}");
                let judge = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
                    let mut definition = example();
                    let crd = definition.made.as_mut().unwrap();
                    change(crd.pointer_mut(&above).unwrap().as_object_mut().unwrap());
                    let found = if part == "spec" {
                        definition.spec_fields()
                    } else {
                        definition.status_fields()
                    };
                    broken(&found).to_owned()
                };
                let dropped = judge(&|members| drop(members.remove(name)));
                assert!(
                    dropped.contains(&format!("{part}.{field} is not in the schema")),
                    "{dropped}"
                );
                let other = judge(&|members| members[name]["type"] = json!("number"));
                assert!(other.contains(&format!("{part}.{field} has type \"number\"")), "{other}");
            }
        }
    }

    #[test]
    fn a_required_field_of_status_needs_a_default() {
        let mut definition = example();
        let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/status";
        let status = definition.made.as_mut().unwrap().pointer_mut(schema).unwrap();
        status["required"] = json!(["ready"]);
        status["properties"]["ready"]["default"] = json!(false);
        assert_eq!(definition.status_fields(), Verdict::Kept);
        let status = definition.made.as_mut().unwrap().pointer_mut(schema).unwrap();
        status["properties"]["ready"].as_object_mut().unwrap().remove("default");
        assert_eq!(
            broken(&definition.status_fields()),
            "status.ready is required and has no default"
        );
    }

    #[test]
    fn an_enum_without_a_value_of_the_contract_is_refused() {
        let mut definition = example();
        let crd = definition.made.as_mut().unwrap();
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            ["gate"]["enum"] = json!(["Stage", "Upgrade"]);
        assert!(broken(&definition.spec_fields()).contains("spec.gate does not allow Disrupt"));
    }

    /// Paths of the leaves of a value; lists and `goal.option` count as leaves.
    fn leaves(value: &Value, prefix: &str, into: &mut BTreeSet<String>) {
        for (name, member) in value.as_object().into_iter().flatten() {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            if member.is_object() && path != "goal.option" {
                leaves(member, &path, into);
            } else {
                into.insert(path);
            }
        }
    }

    #[test]
    fn the_tables_have_every_field_that_refit_writes_and_reads() {
        let spec = ProviderSpec {
            machine_ref: MachineRef { name: "m".into(), uid: "u".into() },
            node_name: "n".into(),
            goal: ProviderGoal {
                kubernetes_version: Some("v1.35.0".parse().unwrap()),
                role: Some(Role::Worker),
                option: Some(GoalOption::Channel("c".into())),
                hash: "h".into(),
            },
            stage: refit_kinds::refit::Stage::Abort,
            gate: refit_kinds::refit::Gate::Disrupt,
        };
        let status = ProviderStatus {
            observed_generation: Some(1),
            progress: Some(ProviderProgress { percent: 1, message: "m".into() }),
            left_behind: vec!["l".into()],
            failure_reason: "F".into(),
            failure_message: "f".into(),
            conditions: vec![
                serde_json::from_value(json!({"type": "T", "status": "True", "reason": "R",
                "message": "", "lastTransitionTime": "2026-03-02T08:00:00Z"}))
                .unwrap(),
            ],
            ..ProviderStatus::default()
        };
        for (value, table) in [(json!(spec), &SPEC_FIELDS[..]), (json!(status), &STATUS_FIELDS[..])]
        {
            let mut found = BTreeSet::new();
            leaves(&value, "", &mut found);
            assert_eq!(found, table.iter().map(|(field, _)| (*field).to_owned()).collect());
        }
    }
}
