//! The paths of a document: the requests of a kind, with their parameters and bodies.

use serde_json::{Map, Value, json};

use super::builtin::{SCALE, reference};
use crate::patch::media_types;
use crate::resources::Resource;

/// Adds the paths of a resource whose objects have the named schema.
pub(super) fn add(resource: &Resource, schema: &str, paths: &mut Map<String, Value>) {
    let root = if resource.group.is_empty() {
        format!("/api/{}", resource.version)
    } else {
        format!("/apis/{}/{}", resource.group, resource.version)
    };
    let plural = &resource.plural;
    let maker = Maker { resource, schema };
    let home = if resource.namespaced {
        let all = maker.collection_of_all();
        paths.insert(format!("{root}/{plural}"), all);
        format!("{root}/namespaces/{{namespace}}/{plural}")
    } else {
        format!("{root}/{plural}")
    };
    paths.insert(home.clone(), maker.collection());
    paths.insert(format!("{home}/{{name}}"), maker.object());
    if resource.has_status {
        let path = format!("{home}/{{name}}/status");
        paths.insert(path, maker.subresource("status", schema, maker.kind()));
    }
    if resource.scale.is_some() {
        let kind = json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
        let path = format!("{home}/{{name}}/scale");
        paths.insert(path, maker.subresource("scale", SCALE, kind));
    }
}

struct Maker<'a> {
    resource: &'a Resource,
    schema: &'a str,
}

fn parameter(name: &str, kind: &str, help: &str) -> Value {
    json!({
        "name": name,
        "in": "query",
        "description": help,
        "schema": {"type": kind, "uniqueItems": true},
    })
}

fn in_path(name: &str, help: &str) -> Value {
    json!({
        "name": name,
        "in": "path",
        "required": true,
        "description": help,
        "schema": {"type": "string", "uniqueItems": true},
    })
}

fn writing() -> Vec<Value> {
    vec![
        parameter("dryRun", "string", "With All, nothing is stored."),
        parameter("fieldManager", "string", "The name of the field manager."),
        parameter(
            "fieldValidation",
            "string",
            "How to handle unknown fields: Ignore, Warn or Strict.",
        ),
    ]
}

fn listing() -> Vec<Value> {
    [
        ("allowWatchBookmarks", "boolean", "Requests bookmarks in a watch."),
        ("continue", "string", "The continue token of the previous page."),
        ("fieldSelector", "string", "Restricts the list by fields."),
        ("labelSelector", "string", "Restricts the list by labels."),
        ("limit", "integer", "The maximum number of objects per page."),
        ("resourceVersion", "string", "The resource version to read."),
        ("resourceVersionMatch", "string", "How to interpret resourceVersion."),
        ("sendInitialEvents", "boolean", "Starts a watch with the existing objects."),
        ("timeoutSeconds", "integer", "The timeout of the request in seconds."),
        ("watch", "boolean", "Watches for changes instead of listing."),
    ]
    .map(|(name, kind, help)| parameter(name, kind, help))
    .to_vec()
}

fn deleting() -> Vec<Value> {
    let mut all = vec![
        parameter("gracePeriodSeconds", "integer", "The grace period of the deletion in seconds."),
        parameter(
            "propagationPolicy",
            "string",
            "How to handle the dependents: Orphan, Background or Foreground.",
        ),
    ];
    all.extend(writing().into_iter().take(1));
    all
}

fn content(schema: &Value) -> Value {
    json!({"application/json": {"schema": schema}})
}

impl Maker<'_> {
    fn kind(&self) -> Value {
        json!({
            "group": &*self.resource.group,
            "version": &*self.resource.version,
            "kind": &*self.resource.kind,
        })
    }

    fn operation(
        &self,
        action: &str,
        what: &str,
        parameters: Vec<Value>,
        answer: &str,
        kind: &Value,
    ) -> Value {
        let id = format!("{action}{}{what}", self.resource.kind);
        let mut operation = json!({
            "description": format!("{action} {} {}", what.to_lowercase(), self.resource.plural),
            "operationId": id,
            "responses": {
                "200": {"description": "OK", "content": content(&reference(answer))},
                "401": {"description": "Unauthorized"},
            },
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind,
        });
        if !parameters.is_empty() {
            operation["parameters"] = Value::Array(parameters);
        }
        operation
    }

    fn with_body(mut operation: Value, schema: &str) -> Value {
        operation["requestBody"] =
            json!({"required": true, "content": content(&reference(schema))});
        operation
    }

    fn patching(&self, what: &str, schema: &str, kind: &Value) -> Value {
        let mut parameters = writing();
        parameters.push(parameter(
            "force",
            "boolean",
            "Takes ownership of fields that other managers own.",
        ));
        let mut patch = self.operation("patch", what, parameters, schema, kind);
        let bodies: Map<String, Value> = media_types(self.resource)
            .map(|media| (media.to_owned(), json!({"schema": {"type": "object"}})))
            .collect();
        patch["requestBody"] = json!({"required": true, "content": bodies});
        patch
    }

    fn path_parameters(&self, named: bool) -> Vec<Value> {
        let mut all = Vec::new();
        if named {
            all.push(in_path("name", &format!("Name of the {}.", self.resource.kind)));
        }
        if self.resource.namespaced {
            all.push(in_path("namespace", "The object's namespace."));
        }
        all
    }

    fn list(&self) -> Value {
        let list = format!("{}List", self.schema);
        self.operation("list", "", listing(), &list, &self.kind())
    }

    fn collection_of_all(&self) -> Value {
        json!({"get": self.list()})
    }

    fn collection(&self) -> Value {
        let kind = self.kind();
        let post = self.operation("post", "", writing(), self.schema, &kind);
        let mut parameters = listing();
        parameters.extend(deleting());
        let delete = self.operation("deletecollection", "", parameters, self.schema, &kind);
        let mut path = json!({
            "get": self.list(),
            "post": Self::with_body(post, self.schema),
            "delete": delete,
        });
        let parameters = self.path_parameters(false);
        if !parameters.is_empty() {
            path["parameters"] = Value::Array(parameters);
        }
        path
    }

    fn object(&self) -> Value {
        let kind = self.kind();
        let put = self.operation("put", "", writing(), self.schema, &kind);
        json!({
            "get": self.operation("get", "", Vec::new(), self.schema, &kind),
            "put": Self::with_body(put, self.schema),
            "patch": self.patching("", self.schema, &kind),
            "delete": self.operation("delete", "", deleting(), self.schema, &kind),
            "parameters": self.path_parameters(true),
        })
    }

    #[expect(clippy::needless_pass_by_value, reason = "the object is built for this call")]
    fn subresource(&self, name: &str, schema: &str, kind: Value) -> Value {
        let what = if name == "scale" { "Scale" } else { "Status" };
        let put = self.operation("put", what, writing(), schema, &kind);
        json!({
            "get": self.operation("get", what, Vec::new(), schema, &kind),
            "put": Self::with_body(put, schema),
            "patch": self.patching(what, schema, &kind),
            "parameters": self.path_parameters(true),
        })
    }
}
