//! Clusters that are slow or hostile, next to one that is not.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use lab_apiserver::{AnswerBody, ApiServer, FaultAction, FaultRule};
use refit_cluster_api::kinds::{Cluster, Machine, MachineDeployment, MachineSet};
use refit_kinds::{
    keys,
    refit::{HostPlan, HostPlanSpec, NodeUpdate, Phase},
};
use serde_json::json;
use tower::ServiceExt as _;

use super::lab::{FROM, GOAL, Lab, agent_status, kubelet_status, phase};
use crate::common::{
    objects::{install_kinds, made, made_in, owner, server, status},
    site::CONTROLLER,
};

const SLOW: usize = 20;

/// A Machine that an update was requested for, in a cluster of its own.
async fn requested_in(lab: &Lab, cluster: &str) -> ApiServer {
    let client = lab.site.client();
    let object: Cluster = made(&client, json!({"metadata": {"name": cluster}, "spec": {}})).await;
    let ready = json!({"initialization": {"controlPlaneInitialized": true}});
    status(&client, &object, ready).await;
    let template = json!({"spec": {"clusterName": cluster, "version": GOAL}});
    let spec = json!({
        "clusterName": cluster, "replicas": 1, "selector": {}, "template": template,
    });
    let deployment: MachineDeployment =
        made(&client, json!({"metadata": {"name": cluster}, "spec": spec})).await;
    let owned = json!({"name": cluster, "ownerReferences": [owner(&deployment)]});
    let set: MachineSet = made(&client, json!({"metadata": owned, "spec": spec})).await;
    let owned = json!({"name": cluster, "ownerReferences": [owner(&set)]});
    let machine: Machine =
        made(&client, json!({"metadata": owned, "spec": template["spec"]})).await;
    let available = json!({
        "nodeRef": {"name": cluster},
        "conditions": [{
            "type": "Available", "status": "True", "reason": "Available", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    });
    status(&client, &machine, available).await;
    lab.ask_for(cluster, &machine.uid().unwrap()).await;

    let workload = server(lab.site.clock);
    let client = Client::new(workload.clone(), keys::HOST_PLAN_NAMESPACE);
    install_kinds(&client).await;
    let namespace = json!({"metadata": {"name": keys::HOST_PLAN_NAMESPACE}});
    let _: Namespace = made_in(&Api::all(client.clone()), namespace).await;
    let nodes: Api<Node> = Api::all(client.clone());
    let _: Node = made_in(&nodes, json!({"metadata": {"name": cluster}})).await;
    let report = Patch::Merge(kubelet_status(&lab.site.clock, FROM));
    nodes.patch_status(cluster, &PatchParams::default(), &report).await.unwrap();
    let plans: Api<HostPlan> = Api::default_namespaced(client.clone());
    let plan = HostPlan::new(cluster, HostPlanSpec::default());
    let plan = plans.create(&PostParams::default(), &plan).await.unwrap();
    let report = json!({"status": agent_status(&plan, lab.site.clock.now_seconds())});
    plans.patch_status(cluster, &PatchParams::default(), &Patch::Merge(&report)).await.unwrap();
    workload
}

/// An API server that answers lists at once, and no write of a plan.
async fn slow(lab: &mut Lab, cluster: &str) {
    let workload = requested_in(lab, cluster).await;
    let hangs = FaultRule::next(FaultAction::Delay(Duration::from_hours(1)));
    let hangs = hangs.verb("patch").resource("hostplans.refit.dev").user_agent(CONTROLLER);
    workload.faults().add(hangs.times(u32::MAX));
    lab.site.add_workload(cluster, &workload).await;
}

/// An API server whose list of the control plane's pods has no end.
async fn endless(lab: &mut Lab, cluster: &str) {
    let workload = requested_in(lab, cluster).await;
    let pages = Arc::new(AtomicUsize::new(0));
    let service = tower::service_fn(move |request: Request<Incoming>| {
        let (workload, pages) = (workload.clone(), pages.clone());
        async move {
            let watches = request.uri().query().unwrap_or_default().contains("watch");
            if !watches && request.uri().path().ends_with("/kube-system/pods") {
                return Ok(page(pages.fetch_add(1, Ordering::Relaxed)));
            }
            workload.oneshot(request).await
        }
    });
    lab.site.add_workload(cluster, &service).await;
}

fn page(number: usize) -> Response<AnswerBody> {
    let pod = |index: usize| {
        json!({"metadata": {
            "namespace": "kube-system", "name": format!("p-{number}-{index}"),
            "resourceVersion": "1",
        }})
    };
    let pods: Vec<_> = (0..100).map(pod).collect();
    let list = json!({
        "apiVersion": "v1", "kind": "PodList", "items": pods,
        "metadata": {"resourceVersion": "1", "continue": "more"},
    });
    let body = Full::new(Bytes::from(list.to_string())).map_err(|never| match never {});
    Response::new(UnsyncBoxBody::<Bytes, io::Error>::new(body))
}

/// How long the updates of the lab's own cluster take, in simulated time.
async fn duration(lab: &Lab) -> SignedDuration {
    let begin = lab.site.clock.now();
    Box::pin(lab.run(Duration::from_hours(100))).await;
    lab.site.clock.now().duration_since(begin)
}

#[tokio::test(start_paused = true)]
async fn slow_and_endless_clusters_delay_no_other() {
    let alone = Lab::new().await;
    alone.ask().await;
    let alone = duration(&alone).await;

    let mut lab = Lab::new().await;
    for number in 0..SLOW {
        slow(&mut lab, &format!("slow-{number}")).await;
    }
    endless(&mut lab, "endless").await;
    lab.ask().await;
    assert_eq!(duration(&lab).await, alone);

    let updates = lab.updates().await;
    let of = |cluster: &str| -> &NodeUpdate {
        updates.iter().find(|update| update.spec.machine_ref.name == cluster).unwrap()
    };
    for number in 0..SLOW {
        assert_eq!(phase(of(&format!("slow-{number}"))), Phase::Pending);
    }
    let blockers = &of("endless").status.as_ref().unwrap().blocked_by;
    assert_eq!(blockers[0].reason, "ClusterTooLarge");
    assert!(blockers[0].message.contains("it has more than 500 Pods"), "{blockers:?}");
}
