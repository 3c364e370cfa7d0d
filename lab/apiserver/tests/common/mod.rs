//! Shared by the API tests: a server with its own clock, raw requests, watches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use lab_apiserver::{AnswerBody, ApiServer, Options};
use serde_json::{Value, json};
use tower::ServiceExt;

pub const START: i64 = 1_767_225_600;

#[derive(Clone)]
pub struct World {
    pub server: ApiServer,
    pub seconds: Arc<AtomicI64>,
    pub agent: String,
}

pub fn options(seconds: &Arc<AtomicI64>, ring: usize) -> Options {
    let seconds = seconds.clone();
    let mut options = Options::new(Arc::new(move || {
        jiff::Timestamp::from_second(seconds.load(Ordering::SeqCst)).unwrap()
    }));
    options.ring = ring;
    options.seed = 7;
    options
}

impl World {
    pub fn new() -> Self {
        Self::with_ring(10_000)
    }

    pub fn with_ring(ring: usize) -> Self {
        let seconds = Arc::new(AtomicI64::new(START));
        let server = ApiServer::new(options(&seconds, ring));
        Self { server, seconds, agent: "test/1".to_owned() }
    }

    pub fn as_agent(&self, agent: &str) -> Self {
        Self { agent: agent.to_owned(), ..self.clone() }
    }

    pub fn pass(&self, seconds: i64) {
        self.seconds.fetch_add(seconds, Ordering::SeqCst);
    }

    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.server.clone(), "default")
    }

    pub async fn raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> std::io::Result<http::Response<AnswerBody>> {
        let mut request =
            Request::builder().method(method).uri(path).header("user-agent", &self.agent);
        for (key, value) in headers {
            request = request.header(*key, *value);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        self.server.clone().oneshot(request).await
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> (u16, Value) {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let answer = self.raw(method, path, &[("content-type", content_type)], body).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.send("GET", path, "", &Value::Null).await
    }

    /// The object at a path; panics if it is missing.
    pub async fn object(&self, path: &str) -> Value {
        let (code, value) = self.get(path).await;
        assert_eq!(code, 200, "{path}: {value}");
        value
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send("POST", path, "application/json", body).await
    }

    pub async fn create(&self, path: &str, body: &Value) -> Value {
        let (code, value) = self.post(path, body).await;
        assert_eq!(code, 201, "{path}: {value}");
        value
    }

    pub async fn put(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send("PUT", path, "application/json", body).await
    }

    pub async fn merge(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send("PATCH", path, "application/merge-patch+json", body).await
    }

    pub async fn json_patch(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send("PATCH", path, "application/json-patch+json", body).await
    }

    pub async fn apply(&self, path: &str, manager: &str, body: &Value) -> (u16, Value) {
        let path = format!("{path}?fieldManager={manager}");
        self.send("PATCH", &path, "application/apply-patch+yaml", body).await
    }

    pub async fn delete(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send("DELETE", path, "application/json", body).await
    }

    pub async fn gone(&self, path: &str) {
        let (code, value) = self.get(path).await;
        assert_eq!(code, 404, "{path}: {value}");
    }

    pub async fn watch(&self, path: &str) -> WatchReader {
        let answer = self.raw("GET", path, &[], Vec::new()).await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        WatchReader { body: answer.into_body(), buffer: Vec::new(), ready: VecDeque::new() }
    }

    /// A CRD of Widgets with a status, a list-map and a default.
    pub async fn widgets(&self) {
        self.create(CRDS, &widget_crd()).await;
    }

    pub async fn widget(&self, name: &str, spec: &Value) -> Value {
        self.create(WIDGETS, &widget(name, spec)).await
    }
}

pub const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub const WIDGETS: &str = "/apis/example.dev/v1/namespaces/default/widgets";
pub const CONFIGS: &str = "/api/v1/namespaces/default/configmaps";
pub const PODS: &str = "/api/v1/namespaces/default/pods";

pub fn widget(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "example.dev/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": spec,
    })
}

pub fn config(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

pub fn widget_crd() -> Value {
    let schema = json!({
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 10},
                    "colour": {"type": "string", "default": "grey"},
                    "owner": {"type": "string"},
                    "parts": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {
                                "name": {"type": "string"},
                                "count": {"type": "integer"},
                            },
                        },
                    },
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                },
                "x-kubernetes-validations": [{
                    "rule": "!has(oldSelf.owner) || (has(self.owner) && self.owner == oldSelf.owner)",
                    "message": "owner is immutable once set",
                }],
            },
            "status": {
                "type": "object",
                "properties": {
                    "phase": {"type": "string"},
                    "conditions": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["type"],
                        "items": {
                            "type": "object",
                            "required": ["type"],
                            "properties": {
                                "type": {"type": "string"},
                                "status": {"type": "string"},
                            },
                        },
                    },
                },
            },
        },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.dev"},
        "spec": {
            "group": "example.dev",
            "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets", "shortNames": ["wd"]},
            "versions": [
                {
                    "name": "v1",
                    "served": true,
                    "storage": true,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                    "selectableFields": [{"jsonPath": ".spec.colour"}],
                },
                {
                    "name": "v1alpha1",
                    "served": true,
                    "storage": false,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                },
            ],
        },
    })
}

pub struct WatchReader {
    body: AnswerBody,
    buffer: Vec<u8>,
    ready: VecDeque<Value>,
}

impl WatchReader {
    /// The next event; `None` when the watch ends.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let frame = self.body.frame().await?.ok()?;
            self.buffer.extend_from_slice(&frame.into_data().unwrap());
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                self.ready.push_back(serde_json::from_slice(&line).unwrap());
            }
        }
    }

    /// Type and name of the next event.
    pub async fn next_type_and_name(&mut self) -> (String, String) {
        let event = self.next().await.expect("the watch ended");
        (
            event["type"].as_str().unwrap().to_owned(),
            event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        )
    }

    pub async fn expect(&mut self, kind: &str, name: &str) {
        assert_eq!(self.next_type_and_name().await, (kind.to_owned(), name.to_owned()));
    }

    /// Asserts that no event arrives within a second.
    pub async fn quiet(&mut self) {
        let next = tokio::time::timeout(Duration::from_secs(1), self.next()).await;
        assert!(next.is_err(), "an event came: {next:?}");
    }
}

pub fn rv(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}
