//! A live world over TCP: its ports open and close as its control planes can serve.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::time::Duration;

use common::{CLUSTER, control_planes, example};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Config,
    api::{ListParams, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use refit_sandbox::{
    live::{self, Live, LiveOptions, Ports},
    world::World,
};

/// A client as kubectl makes one.
async fn client(live: &Live, context: &str) -> Client {
    let options = KubeConfigOptions {
        context: Some(context.to_owned()),
        ..KubeConfigOptions::default()
    };
    let read = Kubeconfig::read_from(live.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(read, &options)
        .await
        .unwrap();
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

/// Takes a host down for a while.
fn take_down(world: &World, node: &str, milliseconds: i64) {
    let until = world.now() + SignedDuration::from_millis(milliseconds);
    world.with_host(node, |host| {
        host.down_until = Some(until);
        host.kubelet_up_at = until;
        host.static_pods_up_at = Some(until);
    });
}

#[test]
fn a_workload_api_below_quorum_refuses_connections_and_comes_back_at_its_port() {
    refit_kube::tls::install_provider();
    let made = live::bring_up(&example(), 20).unwrap();
    assert_eq!((made.available, made.machines), (8, 8));
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    live::runtime().unwrap().block_on(async {
        let options = LiveOptions {
            folder: folder.path().to_owned(),
            hurry: 20,
            log: None,
        };
        let ports = Ports::take(None, None).unwrap();
        let live = Live::start(&made.world, ports, options).await.unwrap();
        let nodes: Api<Node> = Api::all(client(&live, "edge-1").await);
        let text = std::fs::read_to_string(live.kubeconfig()).unwrap();
        assert!(answers(&nodes).await);
        let watch = nodes.watch(&WatchParams::default(), "0").await.unwrap();
        let mut watch = Box::pin(watch);

        let machines = control_planes(live.world());
        take_down(live.world(), &machines[0], 1500);
        take_down(live.world(), &machines[1], 1500);
        until("the outage", async || !answers(&nodes).await).await;
        // Who watches is cut off, and the management API goes on.
        until("the end of the watch", async || {
            futures::StreamExt::next(&mut watch)
                .await
                .is_none_or(|event| event.is_err())
        })
        .await;
        assert!(
            client(&live, "refit")
                .await
                .apiserver_version()
                .await
                .is_ok()
        );
        until("the return", async || answers(&nodes).await).await;
        assert_eq!(std::fs::read_to_string(live.kubeconfig()).unwrap(), text);
        assert_eq!(live.world().clusters(), [CLUSTER]);
        live.stop().await;
        assert!(!answers(&nodes).await);
    });
}
