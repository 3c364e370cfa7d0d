//! Reads the templates of infrastructure machines and bootstrap configs.

use kube::{Api, api::DynamicObject, discovery::ApiResource};
use refit_cluster_api::{desired::Template, kinds::ContractRef};
use refit_runtime::apply::is_not_found;
use serde_json::json;

use crate::{context::Context, contract, error::Error};

/// Reads a template.
pub(crate) async fn fetch(
    context: &Context,
    namespace: &str,
    reference: &ContractRef,
) -> Result<Template, Error> {
    let resource: ApiResource = contract::resolve(context, reference).await?;
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), namespace, &resource);
    let object = api.get(&reference.name).await.map_err(|error| {
        let name = format!("{namespace}/{}", reference.name);
        if is_not_found(&error) {
            Error::Missing { kind: reference.kind.clone(), name }
        } else {
            Error::api(format!("read {} {name}", reference.kind))(error)
        }
    })?;
    let data = serde_json::to_value(&object);
    let mut json = data.map_err(|error| Error::Invalid(error.to_string()))?;
    json["apiVersion"] = json!(resource.api_version);
    json["kind"] = json!(resource.kind);
    Ok(Template { reference: reference.clone(), json })
}
