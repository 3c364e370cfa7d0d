//! `refit sandbox --platform openshift` from the user's side: an upgrade that OCM has scheduled, and the next one.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use http::{HeaderName, HeaderValue, Request};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, PostParams},
    core::GroupVersionKind,
};
use refit_runtime::Clock;
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, command, in_real_time};

/// The steps of an upgrade, as conditions.
const STEPS: [&str; 15] = [
    "StartedNotificationSent",
    "IsClusterUpgradable",
    "ClusterHealthyBeforeUpgrade",
    "ExternalDependenciesAvailable",
    "ComputeCapacityReserved",
    "ControlPlaneMaintenanceWindowCreated",
    "UpgradeCommenced",
    "ControlPlaneUpgraded",
    "ControlPlaneMaintenanceWindowRemoved",
    "WorkersMaintenanceWindowCreated",
    "WorkerNodesUpgraded",
    "ComputeCapacityRemoved",
    "WorkersMaintenanceWindowRemoved",
    "ClusterHealthyAfterUpgrade",
    "CompletedNotificationSent",
];

/// Waits until the ClusterVersion requests a version.
async fn commenced(client: &Client, wanted: &str) {
    let kind = GroupVersionKind::gvk("config.openshift.io", "v1", "ClusterVersion");
    let versions: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let commenced = async {
        while versions.get("version").await.unwrap().data["spec"]["desiredUpdate"]["version"]
            != wanted
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let commenced = tokio::time::timeout(Duration::from_mins(5), commenced).await;
    commenced.unwrap_or_else(|_| panic!("the upgrade to {wanted} commences"));
}

/// A value of the configuration of curl.
fn curl_value<'a>(config: &'a str, key: &str) -> &'a str {
    let value = config.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
    value.unwrap().trim_end_matches('"')
}

/// A client of OCM, and the path of the policies, by a configuration of curl.
fn ocm(config: &Path) -> (Client, String) {
    let text = fs::read_to_string(config).unwrap();
    let (name, value) = curl_value(&text, "header").split_once(": ").unwrap();
    let uri: http::Uri = curl_value(&text, "url").parse().unwrap();
    let mut config = Config::new(format!("http://{}", uri.authority().unwrap()).parse().unwrap());
    let header = (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap());
    config.headers.push(header);
    (Client::try_from(config).unwrap(), uri.path().to_owned())
}

/// Waits until OCM shows a policy as completed.
async fn completed(config: &Path, policy: &str) {
    let (client, path) = ocm(config);
    let completed = async {
        loop {
            let request = Request::get(format!("{path}/{policy}/state")).body(Vec::new()).unwrap();
            if client.request::<Value>(request).await.unwrap()["value"] == "completed" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let completed = tokio::time::timeout(Duration::from_mins(5), completed).await;
    completed.expect("the upgrade is completed");
}

/// An object that a client creates has the time of the cluster, which starts a day ago.
async fn assert_own_clock(client: Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "mine"}})).unwrap();
    let created = maps.create(&PostParams::default(), &map).await.unwrap();
    let created: Timestamp = created.creation_timestamp().unwrap().0;
    assert!(created < Clock::real().now() - SignedDuration::from_hours(1), "{created}");
}

#[test]
fn a_sandbox_of_openshift_completes_the_scheduled_upgrade_and_begins_the_next() {
    let sandbox = Sandbox::start(&["--platform", "openshift", "--speed", "1000"]);
    let directory = sandbox.kubeconfig.parent().unwrap().to_owned();
    let curl = directory.join("ocm");
    for path in [&sandbox.kubeconfig, &curl] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let next = format!("  curl -K {} -d '{{\"version\": \"4.17.1\"}}'", curl.display());
    assert!(sandbox.hints.contains(&next), "{:?}", sandbox.hints);
    in_real_time(async {
        let client = sandbox.client("openshift").await;
        assert_own_clock(client.clone()).await;
        // A client without a certificate is anonymous.
        let mut stranger = sandbox.config("openshift").await;
        stranger.auth_info = kube::config::AuthInfo::default();
        let nodes = Api::<Node>::all(Client::try_from(stranger).unwrap());
        let refused = nodes.list(&ListParams::default()).await.unwrap_err();
        assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");
        commenced(&client, "4.16.4").await;
        completed(&curl, "policy-1").await;
        for node in Api::<Node>::all(client.clone()).list(&ListParams::default()).await.unwrap() {
            assert_eq!(node.status.unwrap().node_info.unwrap().kubelet_version, "v1.29.4");
        }
        let (ocm, path) = ocm(&curl);
        let next = Request::post(path).body(br#"{"version": "4.17.1"}"#.to_vec()).unwrap();
        assert_eq!(ocm.request::<Value>(next).await.unwrap()["version"], "4.17.1");
        commenced(&client, "4.17.1").await;
    });
    let (status, text) = sandbox.end("-INT");
    assert_eq!(status.code(), Some(0), "{text}");
    for line in [
        "OCM: policy-1 to 4.16.4 is scheduled: Upgrade is scheduled\n",
        "UpgradeConfig of 4.16.4: Pending\n",
        "  ControlPlaneUpgraded still in progress\n",
        "OCM: policy-1 to 4.16.4 is completed: Cluster has been successfully upgraded",
        "Completed: the cluster runs 4.16.4.\n",
        "To upgrade again: curl -K ",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    for step in STEPS {
        assert!(text.contains(&format!("  {step}: done\n")), "no {step} in\n{text}");
    }
    assert!(!text.contains("StateStarted"), "{text}");
    assert!(text.ends_with("Stopped; the simulated clusters were removed.\n"), "{text}");
    assert!(!directory.exists());
}

#[test]
fn a_quiet_sandbox_of_openshift_prints_only_the_path() {
    let mut child = command(&["--platform", "openshift", "--quiet"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let path = PathBuf::from(lines.next().unwrap().unwrap());
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(lines.count(), 0);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(!path.exists());
}

#[test]
fn flags_that_the_platform_does_not_have_are_refused() {
    for (args, why) in [
        (&["--platform", "openshift", "--manifests", "x"][..], "--manifests cannot be used"),
        (&["--platform", "openshift", "--hosts-port", "8099"], "--hosts-port cannot be used"),
        (&["--platform", "openshift", "--script", "x"], "cannot be used with"),
        (&["--platform", "openshift", "--speed", "1001"], "1001"),
        (&["--speed", "101"], "expected a number from 1 to 100"),
    ] {
        let output = command(args).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(why), "{text}");
        assert!(output.stdout.is_empty());
    }
}
