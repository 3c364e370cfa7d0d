//! A fake extension: it covers version changes, and its updates take two calls.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{environment::node_info, resource};

#[derive(Default)]
pub struct ReceivedCalls {
    /// The called hooks with their objects, in order.
    pub calls: Vec<String>,
    /// Requests with a Content-Type, which Cluster API never sends.
    pub content_types: usize,
    /// Maximum number of Machines updated at the same time.
    pub most_at_once: usize,
    running: BTreeMap<String, String>,
}

pub struct Extension {
    workload: Client,
    pub seen: Mutex<ReceivedCalls>,
    /// Whether CanUpdate* hooks return patches.
    pub covers: AtomicBool,
    /// Whether every response is a Failure.
    pub fails: AtomicBool,
    /// Whether updates never finish.
    pub hangs: AtomicBool,
}

impl Extension {
    pub fn new(workload: Client) -> Self {
        Self {
            workload,
            seen: Mutex::default(),
            covers: AtomicBool::new(true),
            fails: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
        }
    }

    pub fn calls(&self, hook: &str) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let calls = seen.calls.iter();
        calls.filter(|call| call.starts_with(&format!("{hook} "))).cloned().collect()
    }

    pub async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        if request.headers().contains_key("content-type") {
            self.seen.lock().unwrap().content_types += 1;
        }
        let has_timeout = request.uri().query().is_some_and(|query| query == "timeout=10s");
        assert!(has_timeout, "{}", request.uri());
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let hook = path.split('/').nth(3).unwrap_or_default().to_owned();
        let answer = match hook.as_str() {
            "discovery" => discovery(),
            _ if self.fails.load(Ordering::SeqCst) => {
                self.note(&hook, &body);
                json!({"status": "Failure", "message": "not now"})
            }
            "canupdatemachine" | "canupdatemachineset" => self.can_update(&hook, &body),
            "updatemachine" => self.update(&body).await,
            other => panic!("no such hook: {other}"),
        };
        Response::new(Full::new(Bytes::from(answer.to_string())))
    }

    fn note(&self, hook: &str, body: &Value) {
        assert_eq!(body["settings"], json!({"mode": "test"}));
        let object = ["/desired/machine", "/desired/machineSet"]
            .iter()
            .find_map(|pointer| body.pointer(pointer))
            .unwrap();
        assert!(object["metadata"].get("uid").is_none());
        let name = object["metadata"]["name"].as_str().unwrap();
        self.seen.lock().unwrap().calls.push(format!("{hook} {name}"));
    }

    fn can_update(&self, hook: &str, body: &Value) -> Value {
        self.note(hook, body);
        if !self.covers.load(Ordering::SeqCst) {
            return json!({"status": "Success"});
        }
        let (key, patch) = if hook == "canupdatemachine" {
            let version = &body["desired"]["machine"]["spec"]["version"];
            ("machinePatch", json!({"spec": {"version": version}}))
        } else {
            let version = &body["desired"]["machineSet"]["spec"]["template"]["spec"]["version"];
            let patch = json!({"spec": {"template": {"spec": {"version": version}}}});
            ("machineSetPatch", patch)
        };
        json!({"status": "Success", key: {
            "patchType": "JSONMergePatch", "patch": STANDARD.encode(patch.to_string()),
        }})
    }

    /// The first call starts an update, a later one reports it as done.
    async fn update(&self, body: &Value) -> Value {
        self.note("updatemachine", body);
        let machine = &body["desired"]["machine"];
        let name = machine["metadata"]["name"].as_str().unwrap().to_owned();
        let version = machine["spec"]["version"].as_str().unwrap().to_owned();
        let started = {
            let mut seen = self.seen.lock().unwrap();
            let before = seen.running.insert(name.clone(), version.clone());
            seen.most_at_once = seen.most_at_once.max(seen.running.len());
            before.is_some_and(|before| before == version)
        };
        if !started || self.hangs.load(Ordering::SeqCst) {
            return json!({"status": "Success", "message": "draining", "retryAfterSeconds": 5});
        }
        self.seen.lock().unwrap().running.remove(&name);
        let nodes: Api<DynamicObject> =
            Api::all_with(self.workload.clone(), &resource("v1", "Node"));
        let status = json!({"status": {"nodeInfo": node_info(&version)}});
        nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
        json!({"status": "Success", "message": "", "retryAfterSeconds": 0})
    }
}

fn discovery() -> Value {
    let handler = |name: &str, hook: &str| {
        json!({"name": name, "requestHook": {
            "apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "hook": hook,
        }})
    };
    json!({"status": "Success", "handlers": [
        handler("can-update-machine", "CanUpdateMachine"),
        handler("can-update-machineset", "CanUpdateMachineSet"),
        handler("update-machine", "UpdateMachine"),
    ]})
}
