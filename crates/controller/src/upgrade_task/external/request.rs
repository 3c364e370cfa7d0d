//! Parses an ExternalUpgrade request. An error names the wrong member without its value, which may be a secret.

use refit_kinds::external_upgrade::{
    ExternalUpgradeRequest, MAX_MACHINES, RequestCluster, RequestOwner,
};
use serde_json::{Map, Value};

use crate::hooks::wire::{self, BadRequest};

/// Parses a body. Unknown members are ignored.
pub(super) fn parse(body: &[u8]) -> Result<ExternalUpgradeRequest, BadRequest> {
    let mut request = wire::parse(body)?;
    let text = |path: &str| {
        let pointer = format!("/{}", path.replace('.', "/"));
        let found = request.pointer(&pointer).and_then(Value::as_str);
        let found = found.filter(|text| !text.is_empty()).map(str::to_owned);
        found.ok_or_else(|| wire::missing(path, "text"))
    };
    let cluster =
        RequestCluster { namespace: text("cluster.namespace")?, name: text("cluster.name")? };
    let owner = RequestOwner {
        api_version: text("owner.apiVersion")?,
        kind: text("owner.kind")?,
        name: text("owner.name")?,
        uid: text("owner.uid")?,
    };
    let names =
        request.get("machines").and_then(Value::as_array).filter(|all| all.len() <= MAX_MACHINES);
    let names =
        names.and_then(|all| all.iter().map(|name| name.as_str().map(str::to_owned)).collect());
    let machines =
        names.ok_or_else(|| wire::missing("machines", "a list of at most 1,000 names"))?;
    let mut spec = |member: &str| match request.get_mut(member).map(Value::take) {
        Some(Value::Object(spec)) => Ok::<Map<String, Value>, BadRequest>(spec),
        Some(_) | None => Err(wire::missing(member, "an object")),
    };
    Ok(ExternalUpgradeRequest {
        machine: spec("machine")?,
        bootstrap_config: spec("bootstrapConfig")?,
        infrastructure_machine: spec("infrastructureMachine")?,
        cluster,
        owner,
        machines,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn valid() -> Value {
        json!({
            "cluster": {"namespace": "default", "name": "edge-1"},
            "owner": {"apiVersion": "x/v1", "kind": "MachineDeployment", "name": "a", "uid": "1"},
            "machines": ["a-1"], "machine": {"version": "v1.35.0"},
            "bootstrapConfig": {"files": []}, "infrastructureMachine": {}, "settings": {},
        })
    }

    fn error(change: impl FnOnce(&mut Value)) -> String {
        let mut request = valid();
        change(&mut request);
        parse(request.to_string().as_bytes()).map_or_else(|why| why.to_string(), |_| String::new())
    }

    type Change = fn(&mut Value);

    #[test]
    fn each_member_of_a_request_is_checked_and_no_value_is_repeated() {
        assert_eq!(error(|_| {}), "");
        assert_eq!(parse(b"{").unwrap_err().to_string(), "the body is not JSON (line 1, column 1)");
        let table: [(Change, &str); 7] = [
            (|r| r["cluster"] = json!("edge-1"), "cluster.namespace is missing or not text"),
            (|r| r["owner"]["uid"] = json!(7), "owner.uid is missing or not text"),
            (|r| r["owner"]["kind"] = json!(""), "owner.kind is missing or not text"),
            (
                |r| r["machines"] = json!(["a", 1]),
                "machines is missing or not a list of at most 1,000 names",
            ),
            (
                |r| r["machines"] = json!(vec!["a"; 1001]),
                "machines is missing or not a list of at most 1,000 names",
            ),
            (|r| r["machine"] = json!("secret"), "machine is missing or not an object"),
            (|r| r["bootstrapConfig"] = json!(null), "bootstrapConfig is missing or not an object"),
        ];
        for (change, wanted) in table {
            assert_eq!(error(change), wanted);
        }
    }
}
