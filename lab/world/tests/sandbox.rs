//! A live world over TCP: its ports open and close with its control planes.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use crate::common::{CLUSTER, control_planes, example};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Config,
    api::{ListParams, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use lab_world::{
    sandbox::{self, BringUp, Ports, Sandbox, SandboxOptions},
    snapshot::Snapshot,
    world::World,
};
use refit_runtime::{Clock, client::ClientStack, gate::Open, net::Dialer, workload::Workloads};

/// Creates a client as kubectl does.
async fn client(sandbox: &Sandbox, context: &str) -> Client {
    let options =
        KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
    let read = Kubeconfig::read_from(sandbox.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(read, &options).await.unwrap();
    Client::try_from(config).unwrap()
}

async fn answers(nodes: &Api<Node>) -> bool {
    nodes.list(&ListParams::default()).await.is_ok()
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen"));
}

/// Takes a host down for some milliseconds.
fn take_down(world: &World, node: &str, milliseconds: i64) {
    let until = world.now() + SignedDuration::from_millis(milliseconds);
    world.with_host(node, |host| {
        host.down_until = Some(until);
        host.kubelet_up_at = until;
        host.static_pods_up_at = Some(until);
    });
}

/// The example, brought up once for all tests here.
fn brought_up() -> &'static BringUp {
    static MADE: OnceLock<BringUp> = OnceLock::new();
    refit_runtime::tls::install_provider();
    MADE.get_or_init(|| sandbox::bring_up(&example(), 20).unwrap())
}

async fn start(world: &Snapshot, directory: &Path) -> Sandbox {
    let options = SandboxOptions { directory: directory.to_owned(), hurry: 20 };
    let ports = Ports::take(None, None).unwrap();
    Sandbox::start(world, ports, options).await.unwrap()
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn a_workload_api_below_quorum_refuses_connections() {
    let brought_up = brought_up();
    assert_eq!((brought_up.available, brought_up.machines), (8, 8));
    let directory = temporary();
    sandbox::runtime().unwrap().block_on(async {
        let sandbox = start(&brought_up.world, directory.path()).await;
        let nodes: Api<Node> = Api::all(client(&sandbox, "edge-1").await);
        let text = std::fs::read_to_string(sandbox.kubeconfig()).unwrap();
        assert!(answers(&nodes).await);
        let watch = nodes.watch(&WatchParams::default(), "0").await.unwrap();
        let mut watch = Box::pin(watch);

        let machines = control_planes(sandbox.world());
        take_down(sandbox.world(), &machines[0], 1500);
        take_down(sandbox.world(), &machines[1], 1500);
        until("the outage", async || !answers(&nodes).await).await;
        // Watches are cut, and the management API continues.
        until("the end of the watch", async || {
            futures::StreamExt::next(&mut watch).await.is_none_or(|event| event.is_err())
        })
        .await;
        assert!(client(&sandbox, "refit").await.apiserver_version().await.is_ok());
        until("the return", async || answers(&nodes).await).await;
        assert_eq!(std::fs::read_to_string(sandbox.kubeconfig()).unwrap(), text);
        assert_eq!(sandbox.world().clusters(), [CLUSTER]);
        drop(sandbox);
        assert!(!answers(&nodes).await);
    });
}

/// Whether the kubeconfig Secret works for the workload cluster: over TCP, as `refit doctor` and
/// `refit plan` connect, and over the in-memory network, as the world's own processes do.
async fn secret_works(sandbox: &Sandbox) -> [bool; 2] {
    let memory = Dialer::Memory(sandbox.world().network().clone(), Arc::new(Open));
    let outside = ClientStack::production("test");
    let inside = ClientStack::new(memory, Arc::new(Open), "test");
    let mut leads = [false; 2];
    for (leads, stack) in leads.iter_mut().zip([outside, inside]) {
        let management = client(sandbox, "refit").await;
        let workloads = Workloads::new(management, stack, Clock::real());
        let workload = workloads.client("default", "edge-1").await.unwrap();
        *leads = answers(&Api::all(workload)).await;
    }
    leads
}

#[test]
fn the_kubeconfig_secret_works_from_outside_and_inside() {
    let brought_up = brought_up();
    let directory = temporary();
    sandbox::runtime().unwrap().block_on(async {
        let sandbox = start(&brought_up.world, directory.path()).await;
        assert_eq!(secret_works(&sandbox).await, [true, true]);
    });
}
