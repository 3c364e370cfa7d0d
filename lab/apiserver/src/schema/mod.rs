//! Schemas: pruning, defaults, validation, and how lists and maps merge.
//!
//! A [`Schema`] is built once per served version and shared. The same tree of nodes serves the four
//! passes over an object and, in [`crate::apply`], the ownership of its fields.

mod builtin;
pub(crate) mod cel;
mod default;
mod keywords;
mod parse;
mod prune;
mod validate;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod validate_tests;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use regex::Regex;
use serde_json::Value;

pub(crate) use default::drop_nulls;

/// Why a CRD's schema is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// The schema is not structural, or uses a feature that Kubernetes forbids.
    #[error("{path}: {message}")]
    Invalid {
        /// The path in the schema, for example `properties[spec].type`.
        path: String,
        /// The error in Kubernetes' words.
        message: String,
    },
    /// A validation rule does not compile.
    #[error("{path}: Invalid value: {rule:?}: compilation failed: {message}")]
    Rule {
        /// The path in the schema.
        path: String,
        /// The rule's text.
        rule: String,
        /// The compiler's error.
        message: String,
    },
}

impl SchemaError {
    fn invalid(path: &str, message: impl Into<String>) -> Self {
        let path = if path.is_empty() { "openAPIV3Schema" } else { path };
        Self::Invalid { path: path.to_owned(), message: message.into() }
    }
}

/// One reason why an object is rejected: an entry of `details.causes` in a `metav1.Status`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    /// Machine-readable reason, for example `FieldValueRequired`.
    pub reason: &'static str,
    /// The field's path, for example `spec.replicas`.
    pub field: String,
    /// Human-readable message, without the field.
    pub message: String,
}

/// The structural schema of one CRD version or built-in kind; cheap to clone.
#[derive(Debug, Clone)]
pub struct Schema {
    root: Arc<Node>,
}

/// Schemas by their text: reading one is slow, and each server has those of the same CRDs.
static READ: LazyLock<Mutex<BTreeMap<String, Schema>>> = LazyLock::new(Mutex::default);
/// Limit of these schemas: a server may be given any number of different ones.
const MOST_READ: usize = 256;

impl Schema {
    /// Reads `openAPIV3Schema`; rejects schemas that are not structural, and rules that do not
    /// compile. A schema that another server of this process has read is shared.
    pub fn from_open_api(schema: &Value) -> Result<Self, SchemaError> {
        let text = schema.to_string();
        let known = || READ.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = known().get(&text) {
            return Ok(read.clone());
        }
        let read = Self { root: Arc::new(parse::root(schema)?) };
        let mut known = known();
        if known.len() >= MOST_READ {
            known.clear();
        }
        known.insert(text, read.clone());
        Ok(read)
    }

    /// The schema that keeps all fields and knows only an object's metadata.
    pub fn schemaless() -> Self {
        let root = Node {
            preserve: true,
            properties: BTreeMap::from([("metadata".to_owned(), OBJECT_META.clone())]),
            ..Node::default()
        };
        Self { root: Arc::new(root) }
    }

    /// The list and map types of a built-in kind; unknown fields are kept.
    pub fn builtin(group: &str, kind: &str) -> Self {
        Self { root: Arc::new(builtin::root(group, kind)) }
    }

    /// Removes unknown fields and returns their paths.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune(&self.root, object)
    }

    /// Sets defaults, and drops nulls from fields that are not nullable.
    pub fn default(&self, object: &mut Value) {
        drop_nulls(&self.root, object);
        default::fill(&self.root, object);
    }

    /// Returns all validation errors of an object; none if it is valid.
    ///
    /// `old` is the stored object on an update: transition rules read it as `oldSelf`, and, as in
    /// Kubernetes since 1.33, an unchanged value that was already invalid is accepted.
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Cause> {
        validate::validate(&self.root, object, old)
    }

    /// The node of the whole object.
    pub(crate) fn root(&self) -> &Node {
        &self.root
    }
}

/// The type of a value, as in a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Kind {
    /// The name in a schema's `type`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// How two writers share a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ListType {
    /// One owner for the whole list.
    #[default]
    Atomic,
    /// Items are scalars, each with its own owners.
    Set,
    /// Items are objects, identified by these fields.
    Map(Vec<String>),
}

/// The schema of one place in an object.
#[expect(clippy::struct_excessive_bools, reason = "each is a keyword of the schema language")]
#[derive(Debug, Clone, Default)]
pub(crate) struct Node {
    /// `None` accepts every type.
    pub(crate) kind: Option<Kind>,
    pub(crate) int_or_string: bool,
    pub(crate) nullable: bool,
    /// Whether unknown fields are kept.
    pub(crate) preserve: bool,
    /// Whether it is a complete embedded object with apiVersion, kind and metadata.
    pub(crate) embedded: bool,
    /// Whether fields not listed in `properties` are fields of a struct and not keys of a map: the
    /// tables of the built-in kinds list only exceptions.
    pub(crate) named: bool,
    /// Whether it is a map with one owner for the whole map.
    pub(crate) atomic: bool,
    pub(crate) properties: BTreeMap<String, Arc<Self>>,
    /// The schema of a map's values.
    pub(crate) additional: Option<Arc<Self>>,
    pub(crate) items: Option<Arc<Self>>,
    pub(crate) list: ListType,
    pub(crate) default: Option<Value>,
    pub(crate) checks: Checks,
    pub(crate) rules: Vec<Arc<cel::Rule>>,
    /// Whether this node or one below it has rules.
    pub(crate) has_rules: bool,
}

/// The value validations of a node, which may also be inside `allOf`, `anyOf`, `oneOf`, `not`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checks {
    pub(crate) allowed: Option<Vec<Value>>,
    pub(crate) pattern: Option<Regex>,
    pub(crate) format: Option<String>,
    pub(crate) minimum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_maximum: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) min_length: Option<u64>,
    pub(crate) max_length: Option<u64>,
    pub(crate) min_items: Option<u64>,
    pub(crate) max_items: Option<u64>,
    pub(crate) min_properties: Option<u64>,
    pub(crate) max_properties: Option<u64>,
    pub(crate) required: Vec<String>,
    pub(crate) all_of: Vec<Node>,
    pub(crate) any_of: Vec<Node>,
    pub(crate) one_of: Vec<Node>,
    pub(crate) not: Option<Box<Node>>,
}

/// A place without a schema: maps merge by key, lists are atomic.
static ANY: LazyLock<Arc<Node>> =
    LazyLock::new(|| Arc::new(Node { preserve: true, ..Node::default() }));

/// A place inside a built-in kind that the tables do not mention.
static NAMED: LazyLock<Arc<Node>> =
    LazyLock::new(|| Arc::new(Node { preserve: true, named: true, ..Node::default() }));

/// `ObjectMeta`, the same for every kind.
static OBJECT_META: LazyLock<Arc<Node>> = LazyLock::new(|| Arc::new(builtin::object_meta()));

impl Node {
    /// The node of a field, and whether it is a field of a struct rather than a key of a map.
    pub(crate) fn child(&self, key: &str) -> (&Self, bool) {
        if let Some(node) = self.properties.get(key) {
            (node, true)
        } else if let Some(node) = &self.additional {
            (node, false)
        } else if self.named {
            (&NAMED, true)
        } else {
            (&ANY, false)
        }
    }

    /// The node of a list's items.
    pub(crate) fn item(&self) -> &Self {
        match &self.items {
            Some(node) => node,
            None if self.named => &NAMED,
            None => &ANY,
        }
    }

    /// The type's name for messages.
    pub(crate) fn type_name(&self) -> &'static str {
        self.kind.map_or("object", Kind::name)
    }
}

/// An item's identity within its list, as in `fieldsV1` (`k:{"name":"x"}`, `v:"x"`).
///
/// `None` if the list is atomic, or if a key without a default is missing.
pub(crate) fn list_element(list: &Node, item: &Value) -> Option<String> {
    match &list.list {
        ListType::Atomic => None,
        ListType::Set => Some(format!("v:{item}")),
        ListType::Map(keys) => {
            let item_node = list.item();
            let mut identity = BTreeMap::new();
            for key in keys {
                let value = match item.get(key) {
                    Some(value) => value,
                    None => item_node.properties.get(key)?.default.as_ref()?,
                };
                identity.insert(key.as_str(), value);
            }
            let text = serde_json::to_string(&identity).expect("a map of JSON values is JSON");
            Some(format!("k:{text}"))
        }
    }
}
