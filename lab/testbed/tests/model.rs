//! Refit's model of Cluster API's controllers behaves as the real ones: the same flows run in the
//! sandbox, and their histories are compared with recordings of real runs.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lab_apiserver::ChangeKind;
use lab_testbed::{
    ClusterSpec, Line,
    cluster::{self, TO, settled},
    fixtures,
    history::{self, Sighting},
    objects::{
        self, CONTROL_PLANE, DEV_MACHINE_TEMPLATE, Kind, MACHINE, MACHINE_DEPLOYMENT, Objects, text,
    },
    recorder,
};
use lab_world::world::{World, WorldOptions, runtime};
use refit_cluster_api::kubeadm_config::{Entry, prepare};
use serde_json::{Value, json};

const KINDS: [&str; 4] = ["KubeadmControlPlane", "MachineDeployment", "MachineSet", "Machine"];
const CONDITIONS: [&str; 2] = ["Available", "MachinesUpToDate"];
/// In the simulated time of the world.
const WITHIN: Duration = Duration::from_hours(2);
/// After this time all work has ended.
const QUIET: Duration = Duration::from_mins(2);

/// A flow in the sandbox.
struct Model {
    world: World,
    objects: Objects,
    name: &'static str,
    seen: Arc<Mutex<Vec<Sighting>>>,
    since: u64,
}

impl Model {
    async fn new(name: &'static str, spec: &ClusterSpec) -> Self {
        let manifests = cluster::manifests(name, spec, 6443).unwrap();
        let world = World::new(WorldOptions::new(manifests)).await.unwrap();
        let seen: Arc<Mutex<Vec<Sighting>>> = Arc::default();
        let sink = seen.clone();
        world.management().observe(Box::new(move |event| {
            if KINDS.contains(&event.resource.kind.as_ref()) {
                let mut object: Value = serde_json::from_slice(event.new).unwrap();
                object["kind"] = json!(event.resource.kind.as_ref());
                sink.lock().unwrap().push(Sighting {
                    revision: event.revision,
                    object,
                    gone: event.kind == ChangeKind::Deleted,
                });
            }
        }));
        let up = world.until("every machine is available", WITHIN, World::is_ready);
        up.await.unwrap();
        world.pass(QUIET).await;
        let since = world.management().revision();
        let client = world.client("test").unwrap();
        Self { objects: Objects::in_namespace(client, name), world, name, seen, since }
    }

    async fn change(&self, kind: Kind, name: &str, spec: Value) {
        let patch = json!({"spec": spec});
        self.objects.merge(kind, name, &patch).await.unwrap();
    }

    async fn upgraded(&self, kind: Kind, name: &str) {
        self.until(format!("{name} is at {TO}"), async || {
            let owner = self.objects.get(kind, name).await.unwrap();
            let machines = self.machines(name).await;
            settled(&owner, &CONDITIONS).is_ok()
                && machines.iter().all(|m| text(m, "/spec/version") == TO)
        })
        .await;
    }

    async fn until(&self, what: String, mut look: impl AsyncFnMut() -> bool) {
        let end = self.world.now() + jiff::SignedDuration::try_from(WITHIN).unwrap();
        while !look().await {
            assert!(self.world.now() < end, "{what}: {}", self.history());
            self.world.pass(Duration::from_secs(1)).await;
        }
    }

    async fn machines(&self, group: &str) -> Vec<Value> {
        let mut machines = self.objects.list(MACHINE).await.unwrap();
        machines.retain(|machine| {
            let labels = &machine["metadata"]["labels"];
            let deployment = labels["cluster.x-k8s.io/deployment-name"].as_str();
            deployment.unwrap_or(self.name) == group
        });
        machines
    }

    fn history(&self) -> String {
        history::reduce(self.seen.lock().unwrap().clone(), self.since)
    }

    /// Compares the history with the recording of the real run.
    async fn compare(&self, flow: &str) {
        self.world.pass(QUIET).await;
        let real = fixtures::read(&recorder::fixture(Line::V1_14, flow)).unwrap();
        let found = history::differences(&real, &self.history());
        assert!(
            found.is_empty(),
            "- is what real Cluster API did, + what the model does:\n{}",
            found.join("\n")
        );
    }
}

/// The requests of Cluster API contain exactly what the model's `prepare` produces.
#[test]
fn recorded_requests_match_the_models_prepare() {
    let mut seen = 0;
    for line in ["v1.12", "v1.14"] {
        let path = format!("fixtures/hooks/{line}/control_plane_in_place.json");
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let calls: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        for call in calls.as_array().unwrap() {
            let spec = |side: &str| {
                let mut spec = call["request"][side]["bootstrapConfig"]["spec"].clone();
                // A pointer to an empty struct, which the model omits.
                if let Some(Value::Object(join)) = spec.get_mut("joinConfiguration") {
                    join.retain(|key, value| key != "controlPlane" || *value != json!({}));
                }
                spec
            };
            let (current, desired) = (spec("current"), spec("desired"));
            if current.is_null() {
                continue;
            }
            let mut prepared = (desired.clone(), current.clone());
            prepare(&mut prepared.0, &mut prepared.1, Entry::Join);
            assert_eq!(prepared, (desired, current), "{line}");
            seen += 1;
        }
    }
    assert!(seen >= 2, "only {seen} requests were recorded");
}

#[test]
fn a_control_plane_in_place_matches_real_cluster_api() {
    runtime().unwrap().block_on(async {
        let model = Model::new("in-place", &ClusterSpec::default()).await;
        let version = json!({"version": TO});
        model.change(CONTROL_PLANE, "in-place", version).await;
        model.upgraded(CONTROL_PLANE, "in-place").await;
        model.compare("control_plane_in_place").await;
    });
}

#[test]
fn surge_matches_real_cluster_api() {
    runtime().unwrap().block_on(async {
        let spec = ClusterSpec {
            surge: 1,
            workers: vec![("a", 5, 0, 1), ("b", 5, 1, 0), ("c", 2, 0, 1)],
            ..ClusterSpec::default()
        };
        let model = Model::new("surge", &spec).await;
        let version = json!({"version": TO});
        model.change(CONTROL_PLANE, "surge", version).await;
        model.upgraded(CONTROL_PLANE, "surge").await;
        let version = json!({"template": {"spec": {"version": TO}}});
        for workers in ["surge-a", "surge-b"] {
            model.change(MACHINE_DEPLOYMENT, workers, version.clone()).await;
        }
        rotate(&model, "surge-c", "surge-c-rotated", |_| {}).await;
        let rotated = json!({"template": {"spec": {
            "version": TO,
            "infrastructureRef": {"name": "surge-c-rotated"},
        }}});
        model.change(MACHINE_DEPLOYMENT, "surge-c", rotated).await;
        for workers in ["surge-a", "surge-b", "surge-c"] {
            model.upgraded(MACHINE_DEPLOYMENT, workers).await;
        }
        model.compare("surge").await;
    });
}

#[test]
fn an_uncovered_change_matches_real_cluster_api() {
    runtime().unwrap().block_on(async {
        let spec = ClusterSpec {
            control_planes: 1,
            surge: 1,
            workers: vec![("held", 2, 0, 1), ("free", 2, 1, 0)],
            ..ClusterSpec::default()
        };
        let model = Model::new("uncovered", &spec).await;
        let replace = [("refit.dev/on-uncovered", Some("Replace"))];
        let free = "uncovered-free";
        let annotated = model.objects.annotate(MACHINE_DEPLOYMENT, free, &replace);
        annotated.await.unwrap();
        let before: Vec<String> = uids(&model.machines(free).await);
        for workers in ["uncovered-held", free] {
            let slower = format!("{workers}-slower");
            rotate(&model, workers, &slower, |spec| {
                let machine = &mut spec["template"]["spec"]["backend"]["inMemory"];
                machine["vm"]["provisioning"]["startupDuration"] = json!("2s");
            })
            .await;
            let change = json!({"template": {"spec": {"infrastructureRef": {"name": slower}}}});
            model.change(MACHINE_DEPLOYMENT, workers, change).await;
        }
        model
            .until("the free ones are replaced".to_owned(), async || {
                let owner = model.objects.get(MACHINE_DEPLOYMENT, free).await.unwrap();
                let now = uids(&model.machines(free).await);
                settled(&owner, &CONDITIONS).is_ok() && !before.iter().any(|uid| now.contains(uid))
            })
            .await;
        model.world.pass(QUIET).await;
        let back = json!({"template": {"spec": {
            "infrastructureRef": {"name": "uncovered-held"},
        }}});
        model.change(MACHINE_DEPLOYMENT, "uncovered-held", back).await;
        model
            .until("the held ones are not held".to_owned(), async || {
                let owner = model.objects.get(MACHINE_DEPLOYMENT, "uncovered-held").await;
                settled(&owner.unwrap(), &CONDITIONS).is_ok()
            })
            .await;
        model.compare("uncovered").await;
    });
}

/// Creates a changed copy of an existing template.
async fn rotate(model: &Model, from: &str, to: &str, change: impl Fn(&mut Value)) {
    let template = model.objects.get(DEV_MACHINE_TEMPLATE, from).await.unwrap();
    let mut spec = template["spec"].clone();
    change(&mut spec);
    let object = json!({
        "apiVersion": template["apiVersion"],
        "kind": "DevMachineTemplate",
        "metadata": {"name": to, "namespace": model.name},
        "spec": spec,
    });
    objects::apply(&model.world.client("test").unwrap(), &object).await.unwrap();
}

fn uids(machines: &[Value]) -> Vec<String> {
    machines.iter().map(|m| objects::uid(m).to_owned()).collect()
}
