//! What an agent may do at a real API server, with its own credentials and with those of another
//! agent.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::time::Duration;

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, Node, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use lab_testbed::{Line, apiserver::ApiServer, certs::Certs, directory, eventually, parts};
use refit_install::{Choices, Part, manifests, objects};
use refit_kinds::{keys, refit::HostPlan};
use refit_runtime::{Clock, apply, client::ClientStack};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_mins(1);
const FLEET: &str = "fleet";

/// An API server with the manifests of the agents, and two Nodes.
struct Lab {
    server: ApiServer,
    certs: Certs,
}

impl Lab {
    async fn start() -> Self {
        let clock = Clock::real();
        let parts = parts::find(Line::V1_14).unwrap();
        let directory = directory::run(clock, "agent-trust").unwrap();
        let certs = Certs::new(clock).unwrap();
        let server = ApiServer::start(&parts, &certs, &directory).await.unwrap();
        let lab = Self { server, certs };
        lab.install().await;
        lab
    }

    fn admin(&self) -> &Client {
        &self.server.client
    }

    async fn install(&self) {
        let choices = Choices::default();
        let all = objects(&manifests(&[Part::Crds, Part::Agent], &choices));
        // Here the namespace is applied after the definitions: an installation of agents alone.
        refit_install::apply(self.admin(), &all, |_| {}).await.unwrap();
        let nodes: Api<Node> = Api::all(self.admin().clone());
        let roles: Api<Role> = Api::namespaced(self.admin().clone(), keys::HOST_PLAN_NAMESPACE);
        let bindings: Api<RoleBinding> =
            Api::namespaced(self.admin().clone(), keys::HOST_PLAN_NAMESPACE);
        for name in ["n1", "n2"] {
            let mut node = Node::default();
            node.metadata.name = Some(name.to_owned());
            let node = nodes.create(&PostParams::default(), &node).await.unwrap();
            let [role, binding] = refit_controller::agent_rights(&node);
            let name = role["metadata"]["name"].as_str().unwrap();
            apply::apply(&roles, keys::MANAGER, name, &role).await.unwrap();
            apply::apply(&bindings, keys::MANAGER, name, &binding).await.unwrap();
        }
    }

    /// Returns the HostPlans as the agent of a Node can access them.
    async fn as_node(&self, node: &str) -> Plans {
        let user = format!("system:node:{node}");
        let config = self.certs.config(&self.server.url, &user, &["system:nodes"]);
        Plans::new(&config.await.unwrap(), keys::HOST_PLAN_NAMESPACE)
    }

    /// Returns the HostPlans as a client with a bound token of this ServiceAccount can access them.
    async fn with_token(&self, account: &str) -> Plans {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin().clone(), FLEET);
        let body = json!({"metadata": {"name": account}});
        let body: ServiceAccount = serde_json::from_value(body).unwrap();
        accounts.create(&PostParams::default(), &body).await.unwrap();
        let request = TokenRequest {
            spec: TokenRequestSpec { expiration_seconds: Some(600), ..TokenRequestSpec::default() },
            ..TokenRequest::default()
        };
        let params = PostParams::default();
        let token = accounts.create_token_request(account, &params, &request).await;
        let token = token.unwrap().status.unwrap().token;
        let mut config = self.server.config.clone();
        config.auth_info = kube::config::AuthInfo {
            token: Some(token.into()),
            ..kube::config::AuthInfo::default()
        };
        Plans::new(&config, FLEET)
    }

    /// Grants all users all verbs on HostPlans, so that only the admission policy can deny
    /// requests.
    async fn open_rbac(&self) {
        let roles: Api<ClusterRole> = Api::all(self.admin().clone());
        let bindings: Api<ClusterRoleBinding> = Api::all(self.admin().clone());
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "too-much"},
            "rules": [{
                "apiGroups": ["refit.dev"],
                "resources": ["hostplans", "hostplans/status"],
                "verbs": ["*"],
            }],
        });
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "too-much"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "too-much",
            },
            "subjects": [{
                "apiGroup": "rbac.authorization.k8s.io", "kind": "Group",
                "name": "system:authenticated",
            }],
        });
        apply::apply(&roles, "test", "too-much", &role).await.unwrap();
        apply::apply(&bindings, "test", "too-much", &binding).await.unwrap();
    }
}

/// The HostPlans of a namespace, with the credentials of one agent.
struct Plans(Api<HostPlan>);

impl Plans {
    fn new(config: &kube::Config, namespace: &str) -> Self {
        let client = ClientStack::production("agent-trust").client(config).unwrap();
        Self(Api::namespaced(client, namespace))
    }

    /// Creates a plan as the agent does if it is missing.
    async fn make(&self, name: &str, spec: Value) -> Result<(), String> {
        let body = json!({
            "apiVersion": "refit.dev/v1alpha1", "kind": "HostPlan",
            "metadata": {"name": name}, "spec": spec,
        });
        permission_result(apply::apply(&self.0, "refit-agent", name, &body).await)
    }

    async fn report(&self, name: &str) -> Result<(), String> {
        let status = json!({"agentVersion": "0.1.0", "capabilities": [], "facts": {}});
        permission_result(apply::apply_status(&self.0, "refit-agent", name, &status).await)
    }

    async fn change(&self, name: &str, body: Value) -> Result<(), String> {
        let params = PatchParams::default();
        permission_result(self.0.patch(name, &params, &Patch::Merge(&body)).await)
    }

    async fn delete(&self, name: &str) -> Result<(), String> {
        permission_result(self.0.delete(name, &DeleteParams::default()).await)
    }

    async fn list(&self, name: &str) -> Result<(), String> {
        let params = ListParams::default().fields(&format!("metadata.name={name}"));
        permission_result(self.0.list(&params).await)
    }
}

/// Returns the message of a denial. Any error other than a denial fails the test.
fn permission_result<T>(outcome: kube::Result<T>) -> Result<(), String> {
    match outcome {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 403 => Err(status.message.clone()),
        Err(error) => panic!("neither allowed nor refused: {error}"),
    }
}

fn refused_by(outcome: &Result<(), String>, why: &str) {
    let message = outcome.as_ref().expect_err(why);
    assert!(message.contains(why), "{message}");
}

const BY_RBAC: &str = "cannot";
const ITS_OWN: &str = "may write its own HostPlan only";

#[tokio::test]
async fn an_agent_reads_and_reports_only_its_own_plan() {
    let lab = Lab::start().await;
    let (one, two) = (lab.as_node("n1").await, lab.as_node("n2").await);
    let planned = json!({"planId": "u", "gate": "Disrupt", "steps": []});
    let mut tries = 0;
    eventually("policy and rights are in force", SOON, async || {
        one.make("n1", json!({})).await?;
        tries += 1;
        let note = json!({"metadata": {"annotations": {"tries": tries.to_string()}}});
        match one.change("n1", note).await {
            Err(message) if message.contains("not its metadata") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    let all = Plans(Api::namespaced(lab.admin().clone(), keys::HOST_PLAN_NAMESPACE));
    all.delete("n1").await.unwrap();

    // Only the controller creates a plan with content.
    refused_by(&one.make("n1", planned.clone()).await, "without a plan");

    // The normal requests of an agent.
    one.make("n1", json!({})).await.unwrap();
    one.make("n1", json!({})).await.unwrap();
    one.list("n1").await.unwrap();
    one.report("n1").await.unwrap();
    two.make("n2", json!({})).await.unwrap();

    // The spec and the metadata of the agent's own plan belong to the controller.
    refused_by(&one.change("n1", json!({"spec": planned})).await, "not its spec");
    let note = json!({"metadata": {"annotations": {keys::PLAN_SIGNATURE: "{}"}}});
    refused_by(&one.change("n1", note).await, "not its metadata");
    refused_by(&one.delete("n1").await, BY_RBAC);

    // An agent has no access to the plan of another.
    for outcome in [
        two.list("n1").await,
        two.report("n1").await,
        two.make("n1", json!({})).await,
        two.change("n1", json!({"spec": {"abort": true}})).await,
        two.delete("n1").await,
        permission_result(two.0.get("n1").await),
        permission_result(two.0.list(&ListParams::default()).await),
    ] {
        refused_by(&outcome, BY_RBAC);
    }

    // The writes of the controller are allowed.
    all.change("n1", json!({"spec": {"nodeUpdate": "m1-1", "planId": "u"}})).await.unwrap();
    one.report("n1").await.unwrap();

    the_policy_holds_without_rbac(&lab, &one, &two).await;
    tokens_of_the_management_cluster(&lab).await;
    all.delete("n1").await.unwrap();
}

/// Even with far too wide RBAC permissions, the policy limits each agent to its own plan.
async fn the_policy_holds_without_rbac(lab: &Lab, one: &Plans, two: &Plans) {
    lab.open_rbac().await;
    eventually("the wide rights are in force", SOON, async || two.list("n1").await).await.unwrap();
    refused_by(&two.report("n1").await, ITS_OWN);
    refused_by(&two.make("n1", json!({})).await, ITS_OWN);
    refused_by(&two.change("n1", json!({"spec": {"abort": true}})).await, ITS_OWN);
    refused_by(&two.delete("n1").await, ITS_OWN);
    refused_by(&one.delete("n1").await, "must not delete a HostPlan");
    refused_by(&one.change("n1", json!({"spec": {"gate": "Disrupt"}})).await, "not its spec");
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n2", "uid": "u"}]);
    let owned = json!({"metadata": {"ownerReferences": owner}});
    refused_by(&one.change("n1", owned).await, "not its metadata");
    one.report("n1").await.unwrap();
}

/// If plans are stored next to their Machines, an agent is a ServiceAccount named after its
/// Machine.
async fn tokens_of_the_management_cluster(lab: &Lab) {
    let namespaces: Api<Namespace> = Api::all(lab.admin().clone());
    let body: Namespace = serde_json::from_value(json!({"metadata": {"name": FLEET}})).unwrap();
    namespaces.create(&PostParams::default(), &body).await.unwrap();
    let (one, two) =
        (lab.with_token("refit-agent-m1").await, lab.with_token("refit-agent-m2").await);
    one.make("m1", json!({})).await.unwrap();
    one.report("m1").await.unwrap();
    refused_by(&two.report("m1").await, ITS_OWN);
    refused_by(&two.make("m1", json!({})).await, ITS_OWN);
    refused_by(&one.change("m1", json!({"spec": {"planId": "x"}})).await, "not its spec");
    // A node of that cluster has no plan there, whatever the name of the node.
    let node = lab.as_node("m1").await;
    let fleet = Plans(Api::namespaced(node.0.into_client(), FLEET));
    refused_by(&fleet.report("m1").await, ITS_OWN);
    let made = Api::<HostPlan>::namespaced(lab.admin().clone(), FLEET).get("m1").await;
    assert_eq!(made.unwrap().name_any(), "m1");
}
