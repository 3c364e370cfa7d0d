//! What agents may write, beside what RBAC can say: a ValidatingAdmissionPolicy and its binding.
//!
//! A Role names the one HostPlan that an agent may touch; the policy says what it may do to it. The
//! manifests are those of `deploy/admission`, so a cluster has the same whoever applied them.

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

/// Applies policy and binding where they are missing or say something else. An API server that does
/// not know them (before Kubernetes 1.30) has the Roles alone.
pub(crate) async fn ensure(client: &Client) -> kube::Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let applied = async {
        ensure_one(&policies, POLICY).await?;
        ensure_one(&bindings, BINDING).await
    };
    match applied.await {
        Err(error) if apply::is_not_found(&error) => {
            tracing::debug!(%error, "a workload cluster knows no ValidatingAdmissionPolicies");
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
    let there = api.get_opt(name).await?;
    let there = there.map(|there| serde_json::to_value(there).unwrap_or_default());
    if there.is_some_and(|there| holds(&there, &wanted)) {
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
    fn nothing_of_the_manifests_is_unknown_to_the_kinds() {
        let (there, wanted) = typed::<ValidatingAdmissionPolicy>(POLICY);
        assert!(holds(&there, &wanted), "{there:#}");
        let (there, wanted) = typed::<ValidatingAdmissionPolicyBinding>(BINDING);
        assert!(holds(&there, &wanted), "{there:#}");
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
    async fn it_is_applied_once_and_again_when_somebody_changed_it() {
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
