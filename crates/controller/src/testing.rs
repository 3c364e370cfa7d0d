//! A management cluster for tests: a small fake API behind a real client, and objects to fill the
//! stores with.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::{Client, client::Body};
use refit_cluster_api::kinds::{
    Cluster, KubeadmControlPlane, Machine, MachineDeployment, MachineSet, MachineSpec,
    MachineStatus, NodeInfo, NodeRef,
};
use refit_kinds::{
    keys,
    refit::{HostPlan, HostPlanStatus, NodeUpdate, UpdateGroup},
};
use refit_runtime::{Clock, ObjectKey, client::ClientStack};
use serde_json::{Value, json};

use crate::{
    Settings,
    context::Context,
    sabotage::{Sabotage, Safeguard},
    workload_watch::ClusterView,
};

/// Objects by path, as an API server would keep them.
#[derive(Clone, Default)]
pub(crate) struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    writes: Vec<String>,
    version: u64,
    down: bool,
}

impl FakeApi {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A client of this API.
    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let (code, value) = api.answer(&parts.method, parts.uri.path(), body);
                let body = Body::from(value.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// Every write that succeeded, as `METHOD path`.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.lock().writes.clone()
    }

    /// Whether every call fails.
    pub(crate) fn set_down(&self, down: bool) {
        self.lock().down = down;
    }

    /// The NodeUpdates that there are.
    pub(crate) fn node_updates(&self) -> Vec<NodeUpdate> {
        self.list("/nodeupdates/")
    }

    /// The UpdateGroups that there are.
    pub(crate) fn update_groups(&self) -> Vec<UpdateGroup> {
        self.list("/updategroups/")
    }

    /// Reasons of the events that there are.
    pub(crate) fn event_reasons(&self) -> Vec<String> {
        let events: Vec<Value> = self.list("/events/");
        events.iter().map(|e| e["reason"].as_str().unwrap().to_owned()).collect()
    }

    fn list<T: serde::de::DeserializeOwned>(&self, infix: &str) -> Vec<T> {
        let state = self.lock();
        let found = state.objects.iter().filter(|(path, _)| path.contains(infix));
        found.map(|(_, value)| serde_json::from_value(value.clone()).unwrap()).collect()
    }

    fn answer(&self, method: &Method, path: &str, mut body: Value) -> (StatusCode, Value) {
        let mut state = self.lock();
        if state.down {
            return refuse(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable");
        }
        let path = path.trim_end_matches("/status").to_owned();
        match *method {
            Method::GET => match state.objects.get(&path) {
                Some(object) => (StatusCode::OK, object.clone()),
                None => refuse(StatusCode::NOT_FOUND, "NotFound"),
            },
            Method::POST => {
                state.version += 1;
                let meta = &mut body["metadata"];
                if meta["name"].as_str().is_none_or(str::is_empty) {
                    let prefix = meta["generateName"].as_str().unwrap_or_default();
                    meta["name"] = json!(format!("{prefix}{:05}", state.version));
                }
                let path = format!("{path}/{}", meta["name"].as_str().unwrap());
                if state.objects.contains_key(&path) {
                    return refuse(StatusCode::CONFLICT, "AlreadyExists");
                }
                meta["uid"] = json!(format!("uid-{}", state.version));
                meta["resourceVersion"] = json!(state.version.to_string());
                state.writes.push(format!("POST {path}"));
                state.objects.insert(path, body.clone());
                (StatusCode::CREATED, body)
            }
            _ => {
                let State { objects, writes, version, .. } = &mut *state;
                let Some(object) = objects.get_mut(&path) else {
                    return refuse(StatusCode::NOT_FOUND, "NotFound");
                };
                let mut patched = object.clone();
                if body.is_array() {
                    let patch: json_patch::Patch = serde_json::from_value(body).unwrap();
                    json_patch::patch(&mut patched, &patch).unwrap();
                } else {
                    json_patch::merge(&mut patched, &body);
                }
                if patched["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                    return refuse(StatusCode::CONFLICT, "Conflict");
                }
                *object = patched;
                *version += 1;
                object["metadata"]["resourceVersion"] = json!(version.to_string());
                writes.push(format!("{method} {path}"));
                (StatusCode::OK, object.clone())
            }
        }
    }
}

fn refuse(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "reason": reason, "message": reason, "code": code.as_u16()});
    (code, status)
}

/// The time at which tests begin.
pub(crate) fn epoch() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// A context over a fake API, with empty stores.
pub(crate) fn context(api: &FakeApi) -> Arc<Context> {
    Arc::new(new_context(api))
}

/// The same for a process that lacks a safeguard.
pub(crate) fn context_without(api: &FakeApi, safeguard: Safeguard) -> Arc<Context> {
    Arc::new(new_context(api).with_sabotage(Sabotage::of(safeguard)))
}

fn new_context(api: &FakeApi) -> Context {
    Context::new(
        api.client(),
        ClientStack::production("refit-test"),
        Clock::simulated(epoch()),
        Settings::default(),
    )
}

/// A context whose caches are complete and hold one cluster: three control plane machines and one
/// MachineDeployment of two, all at v1.34.2 and with fresh reports.
pub(crate) fn fleet(api: &FakeApi) -> Arc<Context> {
    let ctx = context(api);
    fill(&ctx);
    ctx
}

/// Fills the stores with the cluster that [`fleet`] speaks of.
pub(crate) fn fill(ctx: &Context) {
    let stores = &ctx.stores;
    stores.clusters.insert(named(Cluster::new("edge-1", <_>::default()), "uid-cluster"));
    stores
        .control_planes
        .insert(named(KubeadmControlPlane::new("edge-1", <_>::default()), "uid-kcp"));
    stores
        .machine_deployments
        .insert(named(MachineDeployment::new("edge-1-md-0", <_>::default()), "uid-md"));
    let mut set = named(MachineSet::new("edge-1-md-0-a", <_>::default()), "uid-ms");
    set.spec.cluster_name = "edge-1".into();
    set.metadata.owner_references =
        Some(vec![owner("cluster.x-k8s.io/v1beta2", "MachineDeployment", "edge-1-md-0", "uid-md")]);
    stores.machine_sets.insert(set);
    let view = ClusterView::default();
    for name in ["edge-1-cp-0", "edge-1-cp-1", "edge-1-cp-2", "edge-1-w-0", "edge-1-w-1"] {
        stores.machines.insert(machine(name, "v1.34.2"));
        view.host_plans.insert(reported(name, ctx.clock.now()));
    }
    view.host_plans.mark_ready();
    view.nodes.mark_ready();
    view.static_pods.mark_ready();
    ctx.workload_index.insert(ObjectKey::new("default", "edge-1"), view);
    stores.mark_ready();
}

/// A HostPlan without a plan whose agent reported at this time.
pub(crate) fn reported(node: &str, at: Timestamp) -> HostPlan {
    let mut plan = HostPlan::new(node, <_>::default());
    plan.metadata.namespace = Some(keys::HOST_PLAN_NAMESPACE.into());
    plan.status = Some(HostPlanStatus {
        agent_version: "0.1.0".into(),
        reported_at: Some(Time(at)),
        ..HostPlanStatus::default()
    });
    plan
}

/// A Machine of the fleet: of the control plane where its name has `-cp-` in it.
pub(crate) fn machine(name: &str, kubelet: &str) -> Machine {
    let spec = MachineSpec {
        cluster_name: "edge-1".into(),
        version: Some(kubelet.into()),
        ..MachineSpec::default()
    };
    let mut machine = named(Machine::new(name, spec), &format!("uid-{name}"));
    machine.status = Some(MachineStatus {
        node_ref: Some(NodeRef { name: name.into() }),
        node_info: Some(NodeInfo { kubelet_version: kubelet.into(), boot_id: "b".into() }),
        ..MachineStatus::default()
    });
    let by = if name.contains("-cp-") {
        machine.metadata.labels = Some([(keys::CONTROL_PLANE.to_owned(), String::new())].into());
        let version = "controlplane.cluster.x-k8s.io/v1beta2";
        owner(version, "KubeadmControlPlane", "edge-1", "uid-kcp")
    } else {
        owner("cluster.x-k8s.io/v1beta2", "MachineSet", "edge-1-md-0-a", "uid-ms")
    };
    machine.metadata.owner_references = Some(vec![by]);
    machine
}

fn named<K: kube::ResourceExt>(mut object: K, uid: &str) -> K {
    object.meta_mut().namespace = Some("default".into());
    object.meta_mut().uid = Some(uid.into());
    object
}

/// A reference to the controller of an object.
pub(crate) fn owner(api_version: &str, kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: api_version.into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid.into(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
