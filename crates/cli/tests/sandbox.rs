//! `refit sandbox` from the user's side: a working kubeconfig and a clean shutdown.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use k8s_openapi::api::{authentication::v1::SelfSubjectReview, core::v1::Node};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
};
use refit_cluster_api::kinds::{Machine, MachineDeployment};
use serde_json::json;

/// Directory of the example of a provider.
const PROVIDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/provider");
const EXAMPLE: &str = include_str!("../../../examples/cluster.yaml");

/// A running sandbox. It is killed when a test fails.
pub(crate) struct Sandbox {
    child: Child,
    pub(crate) kubeconfig: PathBuf,
    /// The lines after the path.
    pub(crate) hints: Vec<String>,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refit"));
    command.arg("sandbox").args(args);
    command
        .env_remove("REFIT_LOG")
        .env("TMPDIR", env!("CARGO_TARGET_TMPDIR"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Sandbox {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut child = command(args).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let Some(first) = lines.next() else {
            let mut text = String::new();
            child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
            panic!("no path was printed: {text}");
        };
        let hints = lines.map(Result::unwrap).take_while(|line| !line.contains("Ctrl-C")).collect();
        Self { child, kubeconfig: PathBuf::from(first.unwrap()), hints }
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(sent.success());
    }

    pub(crate) fn end(mut self, signal: &str) -> (ExitStatus, String) {
        self.signal(signal);
        let status = self.child.wait().unwrap();
        let mut text = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut text).unwrap();
        (status, text)
    }

    fn contexts(&self) -> Vec<String> {
        let read = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        read.contexts.into_iter().map(|context| context.name).collect()
    }

    pub(crate) async fn config(&self, context: &str) -> Config {
        let options =
            KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
        let read = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        Config::from_custom_kubeconfig(read, &options).await.unwrap()
    }

    pub(crate) async fn client(&self, context: &str) -> Client {
        Client::try_from(self.config(context).await).unwrap()
    }

    async fn machines(&self) -> Vec<Machine> {
        let api: Api<Machine> = Api::all(self.client("refit").await);
        api.list(&ListParams::default()).await.unwrap().items
    }
}

pub(crate) fn in_real_time<T>(test: impl Future<Output = T>) -> T {
    refit_runtime::tls::install_provider();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(test)
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A cluster of three control plane machines and one worker that is a patch behind.
fn small(directory: &Path) -> String {
    let (control_plane, workers) = EXAMPLE.split_once("kind: MachineDeployment").unwrap();
    let workers = workers
        .replace("replicas: 5", "replicas: 1")
        .replace("version: v1.34.2", "version: v1.34.1");
    let path = directory.join("small.yaml");
    fs::write(&path, format!("{control_plane}kind: MachineDeployment{workers}")).unwrap();
    path.display().to_string()
}

fn uids(machines: &[Machine]) -> BTreeMap<String, String> {
    let pair = |machine: &Machine| (machine.name_any(), machine.uid().unwrap_or_default());
    machines.iter().map(pair).collect()
}

/// Sets the control plane's version on the worker.
async fn upgrade_worker(client: Client) {
    let body = json!({"spec": {"template": {"spec": {"version": "v1.34.2"}}}});
    Api::<MachineDeployment>::namespaced(client, "default")
        .patch("edge-1-md-0", &PatchParams::default(), &Patch::Merge(&body))
        .await
        .unwrap();
}

#[test]
fn machines_are_ready_and_ctrl_c_leaves_nothing_behind() {
    let sandbox = Sandbox::start(&[]);
    let path = sandbox.kubeconfig.clone();
    assert!(path.is_absolute());
    assert_eq!(path.file_name().unwrap(), "kubeconfig");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    let upgrade = "  refit upgrade cluster/edge-1 --to v1.35.0 --watch";
    assert!(sandbox.hints.iter().any(|line| line == upgrade));
    assert_eq!(sandbox.contexts(), ["refit", "edge-1"]);
    in_real_time(async {
        let machines = sandbox.machines().await;
        assert_eq!(machines.len(), 8);
        let nodes: Api<Node> = Api::all(sandbox.client("edge-1").await);
        assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items.len(), 8);
        let mut stranger = sandbox.config("refit").await;
        let me: Api<SelfSubjectReview> = Api::all(sandbox.client("refit").await);
        let me = me.create(&PostParams::default(), &SelfSubjectReview::default()).await.unwrap();
        let user = me.status.unwrap().user_info.unwrap();
        assert_eq!(user.username.as_deref(), Some("refit-admin"));
        // A client without a certificate is anonymous.
        stranger.auth_info = kube::config::AuthInfo::default();
        let refused = Api::<Machine>::all(Client::try_from(stranger).unwrap())
            .list(&ListParams::default())
            .await
            .unwrap_err();
        assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");
    });
    let (status, text) = sandbox.end("-INT");
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(text.contains("8 of 8 machines are available"), "{text}");
    assert!(text.ends_with("Stopped; the simulated clusters were removed.\n"), "{text}");
    assert!(!path.parent().unwrap().exists());
}

#[test]
fn an_upgrade_keeps_every_machine() {
    let place = temporary();
    let sandbox = Sandbox::start(&["--manifests", &small(place.path()), "--speed", "20"]);
    in_real_time(async {
        let before = uids(&sandbox.machines().await);
        assert_eq!(before.len(), 4);
        upgrade_worker(sandbox.client("refit").await).await;
        let upgraded = async {
            loop {
                let machines = sandbox.machines().await;
                assert_eq!(uids(&machines), before);
                let done = machines.iter().all(|machine| {
                    let info = machine.status.as_ref().and_then(|s| s.node_info.as_ref());
                    info.is_some_and(|info| info.kubelet_version == "v1.34.2".into())
                });
                if done {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(3), upgraded).await.expect("the upgrade ends");
    });
    let (status, text) = sandbox.end("-TERM");
    assert_eq!(status.code(), Some(0), "{text}");
}

/// Creates the definitions and the roles of the example of a provider.
async fn install_provider(client: &Client) {
    let files = ["crds.yaml", "provider.yaml"];
    let files = files.map(|file| Path::new(PROVIDER).join(file));
    let wanted = ["CustomResourceDefinition", "ClusterRole"];
    for manifest in refit_manifests::load(&files).unwrap() {
        let object: DynamicObject = serde_json::from_value(manifest.object).unwrap();
        let types = object.types.clone().unwrap();
        if wanted.contains(&types.kind.as_str()) {
            let kind = GroupVersionKind::try_from(types).unwrap();
            let api = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
            api.create(&PostParams::default(), &object).await.unwrap();
        }
    }
}

#[test]
fn the_example_of_a_provider_keeps_the_contract() {
    let place = temporary();
    let sandbox = Sandbox::start(&["--manifests", &small(place.path())]);
    in_real_time(async {
        let client = sandbox.client("refit").await;
        install_provider(&client).await;
        let machines = sandbox.machines().await;
        let worker =
            machines.iter().map(kube::ResourceExt::name_any).find(|name| name.contains("md"));
        let mut test = tokio::process::Command::new(env!("CARGO_BIN_EXE_refit"));
        test.args(["contract", "test", "--template", &format!("{PROVIDER}/test.yaml")])
            .args(["--machine", &worker.unwrap(), "--settle", "1s"])
            .env("KUBECONFIG", &sandbox.kubeconfig);
        let output = tokio::select! {
            () = memory_provider::run(client) => panic!("the provider has ended"),
            output = test.output() => output.unwrap(),
        };
        let report = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{report}");
        // A restart needs a process of its own.
        let untested: Vec<&str> =
            report.lines().filter(|line| line.starts_with("not tested")).collect();
        assert!(matches!(untested[..], [line] if line.contains("restarted")), "{report}");
    });
    let (status, text) = sandbox.end("-TERM");
    assert_eq!(status.code(), Some(0), "{text}");
}

#[test]
fn a_port_in_use_is_reported_immediately() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = command(&["--port", &port]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains(&format!("port {port} of 127.0.0.1 is in use")), "{text}");
    assert!(text.contains("--port"), "{text}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_cluster_that_is_applied_later_gets_a_context() {
    let place = temporary();
    let sandbox = Sandbox::start(&["--manifests", &small(place.path()), "--speed", "40"]);
    let text = fs::read_to_string(place.path().join("small.yaml")).unwrap();
    let second = text.replace("edge-1", "edge-2");
    in_real_time(async {
        let client = sandbox.client("refit").await;
        for object in lab_world::manifests::parse([("second.yaml", second.as_bytes())]).unwrap() {
            apply(&client, object.object).await;
        }
        let there = async {
            while !sandbox.contexts().iter().any(|name| name == "edge-2") {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            let nodes: Api<Node> = Api::all(sandbox.client("edge-2").await);
            while nodes.list(&ListParams::default()).await.unwrap().items.len() < 2 {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), there)
            .await
            .expect("the second cluster comes up");
    });
    assert_eq!(sandbox.contexts(), ["refit", "edge-1", "edge-2"]);
}

/// Creates an object of any kind.
async fn apply(client: &Client, object: serde_json::Value) {
    let object: kube::core::DynamicObject = serde_json::from_value(object).unwrap();
    let kind = object.types.clone().unwrap();
    let (group, version) = kind.api_version.split_once('/').unwrap();
    let gvk = kube::core::GroupVersionKind::gvk(group, version, &kind.kind);
    let resource = kube::core::ApiResource::from_gvk(&gvk);
    Api::<kube::core::DynamicObject>::namespaced_with(client.clone(), "default", &resource)
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
}

#[test]
fn a_script_opens_no_port_and_prints_its_output() {
    let place = temporary();
    let path = place.path().join("script.txt");
    fs::write(&path, "help\n").unwrap();
    let output = command(&["--script", &path.display().to_string()]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stdout).unwrap().contains("wait"));
    let both = command(&["--script", "x", "--port", "1"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
}
