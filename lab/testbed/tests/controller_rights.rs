//! What the controller may read of Secrets, and which HostSettings and Updaters are accepted, at a real API server.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::time::Duration;

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, Secret, ServiceAccount},
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, PostParams},
    core::Status,
};
use lab_testbed::{Line, apiserver::ApiServer, certs::Certs, directory, eventually, parts};
use refit_install::{Choices, Part, manifests, objects};
use refit_kinds::refit::{HostSettings, Updater};
use refit_runtime::{Clock, client::ClientStack};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_mins(1);
/// The namespace whose kubeconfigs the controller may read.
const CHOSEN: &str = "edge";
const OTHER: &str = "core";
const KUBECONFIG: &str = "c1-kubeconfig";

/// An API server with Refit's kinds and the controller's rights.
async fn start(name: &str) -> ApiServer {
    let clock = Clock::real();
    let parts = parts::find(Line::V1_14).unwrap();
    let directory = directory::run(clock, name).unwrap();
    let certs = Certs::new(clock).unwrap();
    let server = ApiServer::start(&parts, &certs, &directory).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(server.client.clone());
    for namespace in [CHOSEN, OTHER] {
        made(&namespaces, json!({"metadata": {"name": namespace}})).await;
        let secrets: Api<Secret> = Api::namespaced(server.client.clone(), namespace);
        made(&secrets, json!({"metadata": {"name": KUBECONFIG}})).await;
    }
    let choices = Choices { kubeconfigs_in: vec![CHOSEN.to_owned()], ..Choices::default() };
    let all = objects(&manifests(&[Part::Namespace, Part::Crds, Part::Rbac], &choices));
    refit_install::apply(&server.client, &all, |_| {}).await.unwrap();
    server
}

async fn made<K>(api: &Api<K>, body: Value)
where
    K: Clone + serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let body: K = serde_json::from_value(body).unwrap();
    api.create(&PostParams::default(), &body).await.unwrap();
}

/// A client with a token of the controller's ServiceAccount.
async fn as_controller(server: &ApiServer) -> Client {
    let accounts: Api<ServiceAccount> = Api::namespaced(server.client.clone(), "refit-system");
    let request = TokenRequest {
        spec: TokenRequestSpec { expiration_seconds: Some(600), ..TokenRequestSpec::default() },
        ..TokenRequest::default()
    };
    let params = PostParams::default();
    let token = accounts.create_token_request("refit-controller", &params, &request).await;
    let mut config = server.config.clone();
    config.auth_info = kube::config::AuthInfo {
        token: Some(token.unwrap().status.unwrap().token.into()),
        ..kube::config::AuthInfo::default()
    };
    ClientStack::production("controller-rights").client(&config).unwrap()
}

/// The answer of the API server that refuses a request.
fn refusal<T: std::fmt::Debug>(outcome: kube::Result<T>) -> Status {
    match outcome {
        Err(kube::Error::Api(status)) => *status,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn kubeconfigs_are_readable_only_in_the_chosen_namespaces() {
    let server = start("kubeconfigs").await;
    let client = as_controller(&server).await;
    let chosen: Api<Secret> = Api::namespaced(client.clone(), CHOSEN);
    eventually("the rights are in force", SOON, async || {
        chosen.get(KUBECONFIG).await.map(drop).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    let other: Api<Secret> = Api::namespaced(client.clone(), OTHER);
    assert_eq!(refusal(other.get(KUBECONFIG).await).code, 403);
    assert_eq!(refusal(chosen.list(&ListParams::default()).await).code, 403);
    assert_eq!(refusal(Api::<Secret>::all(client).list(&ListParams::default()).await).code, 403);
}

#[tokio::test]
async fn updaters_whose_steps_could_not_be_carried_out_are_rejected() {
    let server = start("updaters").await;
    let resource = ApiResource::erase::<Updater>(&());
    let api: Api<DynamicObject> = Api::all_with(server.client.clone(), &resource);
    let create = async |name: &str, more: Value| {
        let mut spec = json!({
            "action": "Update", "disruption": "Restart",
            "claims": [{"group": "g.example", "kind": "M", "paths": ["/spec/packages/**"]}],
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        let body = json!({
            "apiVersion": "refit.dev/v1alpha1", "kind": "Updater",
            "metadata": {"name": name}, "spec": spec,
        });
        api.create(&PostParams::default(), &serde_json::from_value(body).unwrap()).await
    };
    let image = json!({"urlFrom": "/spec/image/url", "checksumFrom": "/spec/image/checksum"});
    let packages = json!({"installFrom": "/spec/packages"});
    for (name, more) in [
        ("packages", json!({"host": {"osPackages": packages}})),
        ("drained", json!({"host": {"osPackages": packages}, "disruption": "Drain"})),
        ("booted", json!({"host": {"osPackages": packages}, "disruption": "Reboot"})),
        ("security", json!({"host": {"osPackages": {"securityFrom": "/spec/level"}}})),
        ("image", json!({"host": {"osImage": image}, "disruption": "Reboot"})),
    ] {
        create(name, more).await.unwrap();
    }
    let steps = "disruption is Restart, Drain or Reboot, and verify is empty";
    for (name, more, why) in [
        ("none", json!({"host": {}}), "host has exactly one of osImage and osPackages"),
        (
            "both",
            json!({"host": {"osImage": image, "osPackages": packages}, "disruption": "Reboot"}),
            "host has exactly one of osImage and osPackages",
        ),
        (
            "nothing",
            json!({"host": {"osPackages": {"exclude": ["vim"]}}}),
            "osPackages asks for nothing",
        ),
        (
            "stars",
            json!({"host": {"osPackages": {"installFrom": "/spec/packages/**"}}}),
            "installFrom",
        ),
        ("still", json!({"host": {"osPackages": packages}, "disruption": "None"}), steps),
        ("verify", json!({"host": {"osPackages": packages}, "verify": ["true"]}), steps),
        ("kept", json!({"host": {"osImage": image}}), "host.osImage reboots the machine"),
    ] {
        let status = refusal(create(name, more).await);
        assert_eq!(status.code, 422, "{name}: {}", status.message);
        assert!(status.message.contains(why), "{name}: {}", status.message);
    }
}

#[tokio::test]
async fn host_settings_that_no_plan_could_carry_out_are_rejected() {
    let server = start("host-settings").await;
    let resource = ApiResource::erase::<HostSettings>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(server.client.clone(), CHOSEN, &resource);
    let create = async |name: &str, spec: Value| {
        let body = json!({
            "apiVersion": "refit.dev/v1alpha1", "kind": "HostSettings",
            "metadata": {"name": name}, "spec": spec,
        });
        api.create(&PostParams::default(), &serde_json::from_value(body).unwrap()).await
    };
    let file = json!({"files": {"files": [{"path": "/etc/motd", "content": "hello"}]}});
    let owner = json!({"kind": "MachineDeployment", "name": "md-0"});
    create("good", json!({"appliesTo": {"owners": [owner]}, "settings": file})).await.unwrap();
    create("all", json!({"appliesTo": {"all": {}}, "settings": {}})).await.unwrap();

    let image = json!({"osImage": {"name": "os", "url": "bundle:///os/os.img", "sha384": "00"}});
    let wrong = [
        ("none", json!({"appliesTo": {}, "settings": file}), "appliesTo"),
        (
            "both",
            json!({"appliesTo": {"all": {}, "clusters": ["c1"]}, "settings": file}),
            "appliesTo",
        ),
        ("empty", json!({"appliesTo": {"owners": []}, "settings": file}), "appliesTo.owners"),
        (
            "kind",
            json!({"appliesTo": {"owners": [{"kind": "Cluster", "name": "c"}]}, "settings": file}),
            "spec.appliesTo.owners[0].kind",
        ),
        (
            "bundle",
            json!({"appliesTo": {"all": {}}, "settings": image}),
            "osImage.url is an image of a bundle: set settings.bundle",
        ),
    ];
    for (name, spec, why) in wrong {
        let status = refusal(create(name, spec).await);
        assert_eq!(status.code, 422, "{name}: {}", status.message);
        assert!(status.message.contains(why), "{name}: {}", status.message);
    }
}
