//! The contract of ExternalUpgrade, as a client that is not Refit's sees it: curl, over TCP.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use kube::{Api, Client, api::PostParams};
use refit_cluster_api::kinds::{
    Cluster, KubeadmConfigTemplate, Machine, MachineDeployment, MachineSet,
};
use refit_kinds::{
    external_upgrade::{DESCRIPTION, REQUEST, openapi, path},
    refit::UpgradeTask,
};
use refit_runtime::{
    Clock,
    net::{Listener, MemoryNetwork},
    tls::Authority,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::common::{
    hooks::{CLIENT, Server},
    objects::{install_kinds, label_default, made, owner, serve_api, server, validity},
};

/// A hook server over TCP, and the files of a client with this name.
struct Site {
    _server: Server,
    port: u16,
    files: TempDir,
    client: Client,
    uid: String,
}

impl Site {
    async fn start(name: &str) -> Self {
        let network = MemoryNetwork::default();
        let api = server(Clock::real());
        let client = Client::new(api.clone(), "default");
        install_kinds(&client).await;
        let uid = workers(&client).await;
        tokio::spawn(serve_api(&network, "management.test", &api));
        let ca = Authority::new("clients", validity()).unwrap();
        let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Server::start(&network, listener, Some(&ca));
        let files = TempDir::new().unwrap();
        let identity = ca.client(name, validity()).unwrap();
        let file = |name: &str, text: &str| std::fs::write(files.path().join(name), text).unwrap();
        file("ca.pem", &server.ca_pem());
        file("cert.pem", &identity.cert_pem);
        file("key.pem", &identity.key_pem);
        Self { _server: server, port, files, client, uid }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Runs curl; returns the status, the header Retry-After and the body.
    async fn curl(&self, last: &str, body: Option<&str>) -> (u16, String, Value) {
        let answer = self.file("answer");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "20", "--output"]).arg(&answer);
        curl.args(["--write-out", "%{http_code} %header{retry-after}"]);
        let pem = |flag: &str, file: &Path| [flag.to_owned(), file.display().to_string()];
        for (flag, file) in [("--cacert", "ca.pem"), ("--cert", "cert.pem"), ("--key", "key.pem")] {
            curl.args(pem(flag, &self.file(file)));
        }
        if let Some(body) = body {
            curl.args(["--header", "Content-Type: application/json", "--data-binary", body]);
        }
        curl.arg(format!("https://localhost:{}{}", self.port, path(last)));
        let output = curl.output().await.expect("curl is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let told = String::from_utf8(output.stdout).unwrap();
        let (status, retry_after) = told.split_once(' ').unwrap();
        let body = serde_json::from_slice(&std::fs::read(answer).unwrap()).unwrap();
        (status.parse().unwrap(), retry_after.to_owned(), body)
    }

    async fn post(&self, request: &Value) -> (u16, String, Value) {
        self.curl(REQUEST, Some(&request.to_string())).await
    }

    /// Posts until the caches are synced.
    async fn judged(&self, request: &Value) -> (u16, Value) {
        for _ in 0..100 {
            let (status, retry_after, body) = self.post(request).await;
            if status != 503 {
                return (status, body);
            }
            assert_eq!((&*retry_after, &body["reason"]), ("5", &json!("ServiceUnavailable")));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("the caches are never synced");
    }

    /// Seed 2's request: the Machines, their new specs, the Cluster and the owner.
    fn request(&self) -> Value {
        json!({
            "cluster": {"namespace": "default", "name": "edge-1"},
            "owner": {
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "name": "md",
                "uid": self.uid,
            },
            "machines": ["md-1"],
            "machine": machine_spec("v1.35.0"),
            "bootstrapConfig": {"joinConfiguration": {"nodeRegistration": {"name": "x"}}},
            "infrastructureMachine": {"cpus": 4},
        })
    }

    async fn tasks(&self) -> Vec<UpgradeTask> {
        let api: Api<UpgradeTask> = Api::default_namespaced(self.client.clone());
        api.list(&kube::api::ListParams::default()).await.unwrap().items
    }
}

fn reference(kind: &str, group: &str, name: &str) -> Value {
    json!({"apiGroup": format!("{group}.cluster.x-k8s.io"), "kind": kind, "name": name})
}

fn machine_spec(version: &str) -> Value {
    json!({
        "clusterName": "edge-1", "version": version,
        "bootstrap": {"configRef": reference("KubeadmConfig", "bootstrap", "md-1")},
        "infrastructureRef": reference("RackMachine", "infrastructure", "md-1"),
    })
}

fn template(version: &str) -> Value {
    json!({"spec": {
        "clusterName": "edge-1", "version": version,
        "bootstrap": {"configRef": reference("KubeadmConfigTemplate", "bootstrap", "md")},
        "infrastructureRef": reference("RackMachineTemplate", "infrastructure", "md"),
    }})
}

/// A paused MachineDeployment of one Machine, which requests v1.35.0; returns its uid.
async fn workers(client: &Client) -> String {
    racks(client).await;
    let _: Cluster = made(client, json!({"metadata": {"name": "edge-1"}, "spec": {}})).await;
    let join = json!({"joinConfiguration": {"nodeRegistration": {"name": "x"}}});
    let _: KubeadmConfigTemplate =
        made(client, json!({"metadata": {"name": "md"}, "spec": {"template": {"spec": join}}}))
            .await;
    let of_cluster = json!({"cluster.x-k8s.io/cluster-name": "edge-1"});
    let group = |name: &str, version: &str| {
        json!({
            "metadata": {"name": name, "labels": of_cluster},
            "spec": {"clusterName": "edge-1", "replicas": 1, "selector": {"matchLabels": {}},
                "template": template(version)},
        })
    };
    let mut deployment = group("md", "v1.35.0");
    deployment["metadata"]["annotations"] = json!({"cluster.x-k8s.io/paused": ""});
    let deployment: MachineDeployment = made(client, deployment).await;
    let mut set = group("md-old", "v1.34.2");
    set["metadata"]["ownerReferences"] = json!([owner(&deployment)]);
    let set: MachineSet = made(client, set).await;
    let _: Machine = made(
        client,
        json!({
            "metadata": {"name": "md-1", "labels": of_cluster, "ownerReferences": [owner(&set)]},
            "spec": machine_spec("v1.34.2"),
        }),
    )
    .await;
    let _: refit_cluster_api::kinds::KubeadmConfig =
        made(client, json!({"metadata": {"name": "md-1"}, "spec": join})).await;
    deployment.metadata.uid.unwrap()
}

/// The kinds of a provider, and the objects of the Machine.
async fn racks(client: &Client) {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let group = "infrastructure.cluster.x-k8s.io";
    for (kind, plural) in
        [("RackMachine", "rackmachines"), ("RackMachineTemplate", "rackmachinetemplates")]
    {
        let crd = json!({
            "metadata": {
                "name": format!("{plural}.{group}"),
                "labels": {"cluster.x-k8s.io/v1beta2": "v1beta2"},
            },
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{"name": "v1beta2", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    }}}],
            },
        });
        crds.create(&PostParams::default(), &serde_json::from_value(crd).unwrap()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let cpus = json!({"cpus": 4});
    for (kind, plural, name, spec) in [
        ("RackMachine", "rackmachines", "md-1", cpus.clone()),
        ("RackMachineTemplate", "rackmachinetemplates", "md", json!({"template": {"spec": cpus}})),
    ] {
        let resource = kube::api::ApiResource {
            group: group.into(),
            version: "v1beta2".into(),
            api_version: format!("{group}/v1beta2"),
            kind: kind.into(),
            plural: plural.into(),
        };
        let api: Api<kube::api::DynamicObject> =
            Api::default_namespaced_with(client.clone(), &resource);
        let object = json!({
            "apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }
}

#[tokio::test]
async fn a_request_of_seed_2_makes_one_task_and_is_repeated_without_another() {
    let site = Site::start("provisioner").await;
    let (status, answer) = site.judged(&site.request()).await;
    assert_eq!((status, &answer["accepted"]), (200, &json!(true)), "{answer}");
    assert_eq!((&answer["status"], &answer["reason"]), (&json!("Success"), &json!("")));
    assert_eq!(site.judged(&site.request()).await, (200, answer.clone()));
    let tasks = site.tasks().await;
    let [task] = &tasks[..] else { panic!("{tasks:#?}") };
    assert_eq!(task.metadata.name.as_deref(), answer["task"].as_str());
    assert_eq!(task.spec.machines, Some(vec!["md-1".to_owned()]));
    let secret = &task.spec.request_ref.as_ref().unwrap().name;
    let secrets: Api<k8s_openapi::api::core::v1::Secret> =
        Api::default_namespaced(site.client.clone());
    let secret = secrets.get(secret).await.unwrap();
    let specs: Value = serde_json::from_slice(&secret.data.unwrap()["specs"].0).unwrap();
    assert_eq!(specs["machine"]["version"], "v1.35.0");
    assert_eq!(
        secret.metadata.owner_references.unwrap()[0].name,
        tasks[0].metadata.name.clone().unwrap()
    );

    // Another request for the same owner stops the task before it is judged.
    let mut other = site.request();
    other["bootstrapConfig"]["files"] = json!([{"path": "/etc/motd"}]);
    other["machine"]["version"] = json!("v1.36.0");
    let (status, answer) = site.judged(&other).await;
    assert_eq!((status, &answer["accepted"]), (200, &json!(false)));
    assert!(
        answer["reason"].as_str().unwrap().contains("bootstrapConfig.files, machine.version"),
        "{answer}"
    );
    let tasks = site.tasks().await;
    assert_eq!((tasks.len(), tasks[0].spec.stage), (1, refit_kinds::refit::Stage::Abort));
}

#[tokio::test]
async fn requests_that_cannot_be_judged_are_answered_with_their_status() {
    let site = Site::start("provisioner").await;
    site.judged(&site.request()).await;
    let with = |change: fn(&mut Value)| {
        let mut request = site.request();
        change(&mut request);
        request
    };
    let table: [(Value, u16, &str); 7] = [
        (with(|r| r["machines"] = json!("md-1")), 400, "machines is missing or not a list"),
        (with(|r| r["machine"] = json!(null)), 400, "machine is missing or not an object"),
        (with(|r| r["cluster"]["name"] = json!("other")), 404, "Cluster other does not exist"),
        (with(|r| r["owner"]["uid"] = json!("1")), 404, "MachineDeployment md with uid 1"),
        (with(|r| r["owner"]["name"] = json!("x")), 404, "MachineDeployment x with uid"),
        (with(|r| r["machines"] = json!(["md-9"])), 404, "Machine md-9 of MachineDeployment md"),
        (with(|r| r["cluster"]["namespace"] = json!("kube-system")), 403, "has not opted in"),
    ];
    for (request, status, message) in table {
        let (found, body) = site.judged(&request).await;
        assert_eq!((found, &body["kind"]), (status, &json!("Status")), "{body}");
        assert!(body["message"].as_str().unwrap().contains(message), "{body}");
    }
    let (status, _, body) = site.curl(REQUEST, Some("{")).await;
    assert_eq!(
        (status, body["message"].as_str()),
        (400, Some("the body is not JSON (line 1, column 1)"))
    );
    let (status, _, _) = site.curl(REQUEST, None).await;
    assert_eq!(status, 405);
    assert_eq!(site.curl(DESCRIPTION, None).await, (200, String::new(), openapi()));
    label_default(&site.client, json!({"refit.dev/in-place": null})).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(site.judged(&site.request()).await.0, 403);
}

#[tokio::test]
async fn clients_that_may_call_hooks_may_not_request_upgrades() {
    let site = Site::start(CLIENT).await;
    let (status, _, body) = site.post(&site.request()).await;
    assert_eq!(status, 403);
    let message = body["message"].as_str().unwrap();
    assert!(message.contains("is for capi, not for provisioner"), "{message}");
    assert_eq!(site.tasks().await, []);
}
