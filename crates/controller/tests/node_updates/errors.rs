//! Errors of a workload cluster's API server, and a cluster that moves to another one.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, ResourceExt as _, api::DeleteParams};
use lab_apiserver::{FaultAction, FaultRule};
use refit_cluster_api::kinds::Machine;
use refit_kinds::refit::{Blocker, NodeUpdate, Phase};
use serde_json::json;
use tower::ServiceExt as _;

use super::lab::{FROM, Lab, WORKERS, phase};
use crate::common::{
    objects::made_in,
    site::{CONTROLLER, settle},
};

/// The probe of a workload cluster.
const PROBE: (Method, &str) = (Method::GET, "/api/v1/namespaces/refit-system");
/// Writes of Nodes.
const NODE_WRITES: (Method, &str) = (Method::PATCH, "/api/v1/nodes/");
/// The list of a Node's pods, which only a drain needs.
const PODS: (Method, &str) = (Method::GET, "/api/v1/pods");

/// Creates a NodeUpdate for the first worker.
async fn ask(lab: &Lab) {
    let machines: Api<Machine> = Api::default_namespaced(lab.site.client());
    let machine = machines.get("w-0").await.unwrap();
    lab.ask_for("w-0", &machine.uid().unwrap()).await;
}

async fn the_update(lab: &Lab) -> NodeUpdate {
    lab.updates().await.remove(0)
}

fn blockers(update: &NodeUpdate) -> &[Blocker] {
    update.status.as_ref().map_or(&[], |status| &status.blocked_by)
}

/// Whether the caches of the workload cluster are current.
async fn is_up(lab: &Lab) -> bool {
    let up = "refit_workload_api_up{namespace=\"default\",cluster=\"edge-1\"} 1";
    lab.site.metrics().await.lines().any(|line| line == up)
}

/// Runs hosts for two minutes: longer than a probe interval, and than the longest delay after an
/// error. Returns how often the cluster was not up.
async fn work(lab: &Lab) -> usize {
    let mut down = 0;
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        lab.hosts_work().await;
        down += usize::from(!is_up(lab).await);
    }
    down
}

/// Asserts that the only error among the blockers has this reason, object and message.
async fn assert_shown(lab: &Lab, (reason, object, message): (&str, &str, &str)) {
    let update = the_update(lab).await;
    let blockers = blockers(&update);
    let errors: Vec<_> = blockers.iter().filter(|b| b.reason.starts_with("Api")).collect();
    assert_eq!(errors.len(), 1, "{blockers:?}");
    assert_eq!((&*errors[0].reason, &*errors[0].object), (reason, object), "{blockers:?}");
    assert!(errors[0].message.contains(message), "{blockers:?}");
}

#[tokio::test(start_paused = true)]
async fn an_error_while_pods_are_read_is_in_the_status_with_the_api_servers_message() {
    let lab = Lab::new().await;
    let _controller = lab.site.start(None);
    settle().await;
    ask(&lab).await;
    let write = "a write to the UpdateGroup";
    for (code, shown) in [
        (500, ("ApiErrors", write, "the list of pods: Internal error occurred")),
        (429, ("ApiErrors", write, "the list of pods: the server has received too many requests")),
        (403, ("ApiRefused", write, "the list of pods: ")),
    ] {
        lab.site.workload.faults().clear();
        let fails = FaultRule::next(FaultAction::Status(code)).verb("list").resource("pods");
        let mut fails = fails.user_agent(CONTROLLER).times(u32::MAX);
        // In all namespaces: the mirror pods of the control plane are listed in their own.
        fails.namespace = Some(String::new());
        lab.site.workload.faults().add(fails);
        assert_eq!(work(&lab).await, 0, "{code}: the cluster responds");
        assert_eq!(phase(&the_update(&lab).await), Phase::Staging, "{code}: it has no slot yet");
        assert_shown(&lab, shown).await;
    }
    lab.site.workload.faults().clear();
    work(&lab).await;
    let update = the_update(&lab).await;
    assert_eq!(phase(&update), Phase::Succeeded);
    assert!(blockers(&update).is_empty(), "{update:?}");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_attached_to_the_node_is_found_among_hundreds_of_others() {
    let lab = Lab::new().await;
    let attachments: Api<VolumeAttachment> = Api::all(lab.site.workload_client());
    // More than a page of others, and then the one of the node.
    for number in 0..=510 {
        let node = if number == 510 { "w-0" } else { "w-1" };
        let body = json!({
            "metadata": {"name": format!("disk-{number:03}")},
            "spec": {"attacher": "csi.example.com", "nodeName": node,
                "source": {"persistentVolumeName": format!("disk-{number:03}")}},
        });
        made_in::<VolumeAttachment>(&attachments, body).await;
    }
    let _controller = lab.site.start(None);
    settle().await;
    ask(&lab).await;
    work(&lab).await;
    let update = the_update(&lab).await;
    let reasons: Vec<_> = blockers(&update).iter().map(|b| (&*b.reason, &*b.object)).collect();
    assert_eq!(reasons, [("VolumeAttached", "disk-510")]);
    attachments.delete("disk-510", &DeleteParams::default()).await.unwrap();
    work(&lab).await;
    assert_eq!(phase(&the_update(&lab).await), Phase::Succeeded);
}

/// Serves the workload cluster with a page instead of the response to these requests. An affected
/// write has no effect.
fn garble(lab: &mut Lab) -> Arc<Mutex<Vec<(Method, &'static str)>>> {
    let garbled = Arc::<Mutex<Vec<(Method, &'static str)>>>::default();
    let (workload, affected) = (lab.site.workload.clone(), garbled.clone());
    let service = tower::service_fn(move |request: Request<Incoming>| {
        let (method, path) = (request.method(), request.uri().path());
        let hit = |(of, start): &(Method, &str)| of == method && path.starts_with(start);
        let is_garbled = affected.lock().unwrap().iter().any(hit);
        let workload = workload.clone();
        async move {
            if !is_garbled {
                return workload.oneshot(request).await;
            }
            let page = Full::new(Bytes::from_static(b"<html></html>"));
            let page = page.map_err(|never| match never {});
            Ok(Response::new(UnsyncBoxBody::<Bytes, io::Error>::new(page)))
        }
    });
    lab.site.serve_workload(&service);
    garbled
}

#[tokio::test(start_paused = true)]
async fn a_response_that_cannot_be_parsed_does_not_make_its_cluster_unreachable() {
    let mut lab = Lab::new().await;
    let garbled = garble(&mut lab);
    let _controller = lab.site.start(None);
    settle().await;
    ask(&lab).await;
    for (request, object) in
        [(NODE_WRITES, "a write to the Node"), (PODS, "the list of its Node's pods")]
    {
        *garbled.lock().unwrap() = vec![PROBE, request];
        assert_eq!(work(&lab).await, 0, "{object}: the cluster responds");
        assert_shown(&lab, ("ApiErrors", object, "its response cannot be read")).await;
    }
    garbled.lock().unwrap().clear();
    assert_eq!(work(&lab).await, 0);
    assert_eq!(phase(&the_update(&lab).await), Phase::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn a_running_controller_follows_a_cluster_to_the_server_in_its_changed_kubeconfig() {
    let mut lab = Lab::new().await;
    let _controller = lab.site.start(None);
    settle().await;
    assert!(is_up(&lab).await);
    lab.site.move_workload("edge-1").await;
    // A kubeconfig that is not in doubt is read again after ten minutes.
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(is_up(&lab).await, "its watches are at the new server");
    for name in WORKERS {
        lab.kubelet_reports(name, FROM).await;
    }
    ask(&lab).await;
    assert_eq!(work(&lab).await, 0);
    assert_eq!(phase(&the_update(&lab).await), Phase::Succeeded);
}
