//! The messages of ExternalUpgrade: another client than Cluster API requests the upgrade of Machines in place
//! (`docs/external-upgrade.md`).

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// API group in the paths.
pub const GROUP: &str = "external-upgrade.refit.dev";
/// Version in the paths.
pub const VERSION: &str = "v1alpha1";
/// Last segment of the path of the request.
pub const REQUEST: &str = "externalupgrade";
/// Last segment of the path of the description of this API.
pub const DESCRIPTION: &str = "openapi.json";
/// How many Machines a request may name.
pub const MAX_MACHINES: usize = crate::refit::MAX_TASK_MACHINES;

/// The path of something of this API.
pub fn path(last: &str) -> String {
    format!("/{GROUP}/{VERSION}/{last}")
}

/// A request to upgrade Machines of an owner in place.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalUpgradeRequest {
    /// The Cluster.
    pub cluster: RequestCluster,
    /// The control plane or MachineDeployment that owns the Machines, in the namespace of the Cluster.
    pub owner: RequestOwner,
    /// Names of the Machines that require the upgrade; empty for all that are outdated. At most 1,000.
    pub machines: Vec<String>,
    /// New `spec` of the Machines.
    pub machine: Map<String, Value>,
    /// New `spec` of their bootstrap configs.
    pub bootstrap_config: Map<String, Value>,
    /// New `spec` of their infrastructure machines.
    pub infrastructure_machine: Map<String, Value>,
}

/// The Cluster of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RequestCluster {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The owner of the Machines of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestOwner {
    /// Group and version.
    pub api_version: String,
    /// `KubeadmControlPlane` or `MachineDeployment`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its uid: a request for an owner that has been replaced is refused.
    pub uid: String,
}

/// The answer to a request that was judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExternalUpgradeResponse {
    /// Always `Success`: a request that could not be judged is answered with a Kubernetes Status.
    pub status: ResponseStatus,
    /// Whether an UpgradeTask works on the request.
    pub accepted: bool,
    /// Why the request is declined, with the paths of the specs; empty if it is accepted.
    pub reason: String,
    /// Name of the UpgradeTask, in the namespace of the Cluster; empty if the request is declined.
    pub task: String,
}

/// Whether a request was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ResponseStatus {
    /// It was.
    Success,
}

/// The OpenAPI document of this API.
pub fn openapi() -> Value {
    let mut generator = SchemaSettings::openapi3().into_generator();
    let request = generator.subschema_for::<ExternalUpgradeRequest>();
    let answer = generator.subschema_for::<ExternalUpgradeResponse>();
    let content = |schema: &Value| json!({"application/json": {"schema": schema}});
    let status = json!({
        "type": "object", "required": ["status", "reason", "message", "code"],
        "properties": {
            "kind": {"type": "string"}, "apiVersion": {"type": "string"},
            "status": {"type": "string"}, "reason": {"type": "string"},
            "message": {"type": "string"}, "code": {"type": "integer"},
        },
    });
    let refused = |description: &str| {
        json!({
            "description": description,
            "content": content(&json!({"$ref": "#/components/schemas/Status"})),
        })
    };
    let mut unavailable =
        refused("Refit cannot judge the request yet: repeat it after Retry-After seconds.");
    unavailable["headers"] = json!({"Retry-After": {"schema": {"type": "integer"}}});
    let mut schemas = generator.take_definitions(true);
    schemas.insert("Status".to_owned(), status);
    let judged = json!({
        "description": "The request was judged: accepted, or declined with a reason.",
        "content": content(&json!(answer)),
    });
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": "Refit ExternalUpgrade", "version": VERSION,
            "description": "Requests the upgrade of Machines in place. Clients present a certificate.",
        },
        "paths": {path(REQUEST): {"post": {
            "operationId": "externalUpgrade",
            "requestBody": {"required": true, "content": content(&json!(request))},
            "responses": {
                "200": judged,
                "400": refused("The request is malformed: the message names the member."),
                "403": refused("The client is not admitted, or the namespace has not opted in."),
                "404": refused("The Cluster, the owner or a Machine does not exist."),
                "503": unavailable,
            },
        }}},
        "components": {"schemas": schemas},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `UPDATE_DOCS=1` writes it.
    #[test]
    fn the_document_that_is_checked_in_describes_the_messages() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/external-upgrade.openapi.json");
        let wanted = format!("{}\n", serde_json::to_string_pretty(&openapi()).unwrap());
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(file, &wanted).unwrap();
        }
        assert_eq!(std::fs::read_to_string(file).unwrap(), wanted);
    }
}
