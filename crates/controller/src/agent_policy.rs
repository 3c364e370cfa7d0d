//! A ValidatingAdmissionPolicy and its binding, for limits on agents that RBAC cannot express.
//!
//! A Role names the one HostPlan that an agent may write; the policy restricts the changes. The
//! manifests are those of `deploy/admission`, so a cluster has the same objects however they were
//! applied.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{Api, Client, Resource, core::ClusterResourceScope};
use refit_kinds::keys;
use refit_runtime::apply;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::agent_access::holds;

const POLICY: &str = include_str!("../../../deploy/admission/agent_policy.yaml");
const BINDING: &str = include_str!("../../../deploy/admission/agent_policy_binding.yaml");

/// Applies the policy and its binding if they are missing or different. An API server without these
/// kinds (before Kubernetes 1.30) has only the Roles.
pub(crate) async fn ensure(client: &Client) -> kube::Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let applied = async {
        ensure_one(&policies, POLICY).await?;
        ensure_one(&bindings, BINDING).await
    };
    match applied.await {
        Err(error) if apply::is_not_found(&error) => {
            tracing::debug!(%error, "workload cluster does not serve ValidatingAdmissionPolicies");
            Ok(())
        }
        outcome => outcome,
    }
}

async fn ensure_one<K>(api: &Api<K>, manifest: &str) -> kube::Result<()>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope>
        + Clone
        + DeserializeOwned
        + Serialize
        + std::fmt::Debug,
{
    let wanted: Value = serde_saphyr::from_str(manifest).expect("a test reads the manifest");
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let existing = api.get_opt(name).await?;
    let existing = existing.map(|existing| serde_json::to_value(existing).unwrap_or_default());
    if existing.is_some_and(|existing| holds(&existing, &wanted)) {
        return Ok(());
    }
    apply::apply(api, keys::MANAGER, name, &wanted).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lab_apiserver::{ApiServer, Options};

    use super::*;

    fn typed<K: DeserializeOwned + Serialize>(manifest: &str) -> (Value, Value) {
        let wanted: Value = serde_saphyr::from_str(manifest).unwrap();
        let typed: K = serde_json::from_value(wanted.clone()).unwrap();
        (serde_json::to_value(typed).unwrap(), wanted)
    }

    #[test]
    fn the_manifests_have_no_unknown_fields() {
        let (existing, wanted) = typed::<ValidatingAdmissionPolicy>(POLICY);
        assert!(holds(&existing, &wanted), "{existing:#}");
        let (existing, wanted) = typed::<ValidatingAdmissionPolicyBinding>(BINDING);
        assert!(holds(&existing, &wanted), "{existing:#}");
    }

    #[test]
    fn the_policy_covers_status_and_spec_of_host_plans_and_denies() {
        let policy: Value = serde_saphyr::from_str(POLICY).unwrap();
        let rule = &policy["spec"]["matchConstraints"]["resourceRules"][0];
        assert_eq!(rule["resources"], serde_json::json!(["hostplans", "hostplans/status"]));
        assert_eq!(policy["spec"]["failurePolicy"], "Fail");
        let binding: Value = serde_saphyr::from_str(BINDING).unwrap();
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
        assert_eq!(binding["spec"]["validationActions"][0], "Deny");
    }

    #[tokio::test(start_paused = true)]
    async fn the_policy_is_applied_once_and_again_after_a_change() {
        let server = ApiServer::new(Options::new(Arc::new(|| jiff::Timestamp::UNIX_EPOCH)));
        let client = Client::new(server.clone(), "default");
        ensure(&client).await.unwrap();
        let revision = server.revision();
        ensure(&client).await.unwrap();
        assert_eq!(server.revision(), revision);
        let api: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
        let looser = serde_json::json!({"spec": {"failurePolicy": "Ignore"}});
        apply::merge(&api, "refit-agents", &looser).await.unwrap();
        ensure(&client).await.unwrap();
        let policy = api.get("refit-agents").await.unwrap();
        let spec = policy.spec.unwrap();
        assert_eq!(spec.failure_policy.as_deref(), Some("Fail"));
    }
}
