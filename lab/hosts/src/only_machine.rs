//! The only machine of a control plane, which Refit updates in place when its owner is edited, and a
//! recording of what existed meanwhile.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use futures::{TryStreamExt as _, pin_mut};
use http::Request;
use kube::{Client, core::WatchEvent};
use refit_kinds::{
    json::{annotations, is_true, name, text},
    keys,
};
use serde_json::{Value, json};

use crate::{
    eventually,
    management::{CONTROL_PLANES, Management, owner, send},
    print_line,
};

const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/machines";
const INFRASTRUCTURE: &str = "/apis/infrastructure.cluster.x-k8s.io/v1beta2/sandboxmachines";
const UPGRADE_TASKS: &str = "/apis/refit.dev/v1alpha1/upgradetasks";
/// How long Cluster API may take to go on once the machine is updated.
const SETTLES_WITHIN: Duration = Duration::from_mins(2);

/// Holds replacements in the namespace of the cluster, and lets Refit update its only control plane
/// machine in place. Cluster API alone would create a second machine, and delete the first: a
/// control plane of one machine has a surge of one.
pub async fn opt_in(management: &Management) -> anyhow::Result<()> {
    let body = json!({"metadata": {"labels": {
        keys::IN_PLACE: keys::OPTED_IN, keys::HOLD_REPLACEMENTS: keys::OPTED_IN,
    }}});
    send(&management.client, "PATCH", "/api/v1/namespaces/default", &body).await?;
    let body = json!({
        "metadata": {"annotations": {keys::SINGLE_REPLICA: "InPlace"}},
        "spec": {"rollout": {"strategy": {"rollingUpdate": {"maxSurge": 1}}}},
    });
    send(&management.client, "PATCH", &owner("edge-1"), &body).await.map(drop)
}

/// The only machine, and every Machine and infrastructure machine since it was first seen.
#[derive(Debug)]
pub struct OnlyMachine {
    identity: Vec<String>,
    /// The uid of its infrastructure machine.
    infrastructure_uid: String,
    machines: Recording,
    infrastructure: Recording,
}

impl OnlyMachine {
    /// Records Machines and infrastructure machines from now on.
    pub async fn watch(management: &Management) -> anyhow::Result<Self> {
        let client = &management.client;
        let machines = Recording::start(client, MACHINES).await?;
        let infrastructure = Recording::start(client, INFRASTRUCTURE).await?;
        let identity = identity(&only(&machines.objects()?)?);
        let first = only(&infrastructure.objects()?)?;
        let infrastructure_uid = text(&first, "/metadata/uid").to_owned();
        Ok(Self { identity, infrastructure_uid, machines, infrastructure })
    }

    /// Waits until there is a second Machine, and returns what exists then.
    pub async fn has_second(&self) -> anyhow::Error {
        loop {
            if let Err(error) = self.machines.objects().and_then(|found| only(&found)) {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until Cluster API goes on with the control plane, and checks that its machine is the
    /// same, has the version, and was at all times the only one.
    pub async fn is_kept(&self, management: &Management, version: &str) -> anyhow::Result<()> {
        eventually("Cluster API goes on with the machine", SETTLES_WITHIN, async || {
            let settled = settled(management, version).await;
            settled.map_err(|error| format!("{error:#}"))
        })
        .await?;
        let machine = only(&self.machines.objects()?)?;
        let after = identity(&machine);
        ensure!(after == self.identity, "{:?} became {after:?}", self.identity);
        self.has_one_infrastructure_machine()
    }

    /// Checks that the Machine has the infrastructure machine that it had, and that no other one has
    /// ever belonged to a Machine: a provider creates nothing before that. Cluster API creates the
    /// infrastructure machine first; when the Machine is refused, there is one without a Machine.
    fn has_one_infrastructure_machine(&self) -> anyhow::Result<()> {
        let found = self.infrastructure.objects()?;
        let of_machines: Vec<Value> =
            found.iter().filter(|one| has_machine(one)).cloned().collect();
        let uid = text(&only(&of_machines)?, "/metadata/uid").to_owned();
        ensure!(uid == self.infrastructure_uid, "infrastructure machine {uid} is another one");
        print_line(&format!("{} infrastructure machines without a Machine", found.len() - 1));
        Ok(())
    }
}

/// Checks that one task has updated the machine, and that Cluster API agrees.
async fn settled(management: &Management, version: &str) -> anyhow::Result<()> {
    let task = only(&management.list(UPGRADE_TASKS).await?)?;
    ensure!(text(&task, "/status/phase") == "Complete", "{} is not complete", name(&task));
    let plane = only(&management.list(CONTROL_PLANES).await?)?;
    let marks = annotations(&plane);
    let paused = [keys::PAUSED, keys::TASK].map(|key| marks.contains_key(key));
    ensure!(paused == [false; 2], "the control plane is paused: {marks:?}");
    ensure!(plane["status"]["upToDateReplicas"] == 1, "no up-to-date replica: {}", plane["status"]);
    let machine = only(&management.list(MACHINES).await?)?;
    ensure!(
        text(&machine, "/spec/version") == version && is_true(&machine, "UpToDate"),
        "Machine {} is not up to date: {}",
        name(&machine),
        machine["status"]["conditions"]
    );
    Ok(())
}

/// What stays the same of a Machine that is kept.
fn identity(machine: &Value) -> Vec<String> {
    let parts = [
        "/metadata/name",
        "/metadata/uid",
        "/spec/providerID",
        "/spec/infrastructureRef/name",
        "/spec/bootstrap/configRef/name",
        "/status/nodeRef/name",
    ];
    parts.map(|part| text(machine, part).to_owned()).to_vec()
}

/// Whether an infrastructure machine belongs to a Machine.
fn has_machine(infrastructure: &Value) -> bool {
    let owners = infrastructure["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|owner| owner["kind"] == "Machine")
}

fn only(objects: &[Value]) -> anyhow::Result<Value> {
    let [object] = objects else {
        let shown: Vec<String> = objects
            .iter()
            .map(|one| format!("{} of {}", name(one), one["metadata"]["ownerReferences"]))
            .collect();
        bail!("{} objects instead of one: {}", objects.len(), shown.join(", "));
    };
    Ok(object.clone())
}

/// The objects of a kind that have existed since the recording began.
#[derive(Clone, Debug)]
struct Recording(Arc<Mutex<Recorded>>);

#[derive(Debug, Default)]
struct Recorded {
    /// The last state of each, by uid.
    objects: BTreeMap<String, Value>,
    /// Why the recording has gaps.
    broken: Option<String>,
}

impl Recording {
    /// Lists the objects, and watches them from that moment until the runtime ends.
    async fn start(client: &Client, path: &'static str) -> anyhow::Result<Self> {
        let list = send(client, "GET", path, &Value::Null).await?;
        let recording = Self(Arc::default());
        for object in list["items"].as_array().into_iter().flatten() {
            recording.note(object.clone());
        }
        let since = text(&list, "/metadata/resourceVersion").to_owned();
        tokio::spawn(recording.clone().follow(client.clone(), path, since));
        Ok(recording)
    }

    /// The last state of each object, if none was missed.
    fn objects(&self) -> anyhow::Result<Vec<Value>> {
        let recorded = self.lock();
        if let Some(why) = &recorded.broken {
            bail!("the recording has gaps: {why}");
        }
        Ok(recorded.objects.values().cloned().collect())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, object: Value) {
        let uid = text(&object, "/metadata/uid").to_owned();
        self.lock().objects.insert(uid, object);
    }

    /// A watch that ends is continued from its last event, so that nothing is missed.
    async fn follow(self, client: Client, path: &'static str, mut since: String) {
        loop {
            if let Err(error) = self.watch(&client, path, &mut since).await {
                self.lock().broken = Some(format!("{error:#}"));
                return;
            }
        }
    }

    async fn watch(&self, client: &Client, path: &str, since: &mut String) -> anyhow::Result<()> {
        let path = format!("{path}?watch=true&allowWatchBookmarks=true&resourceVersion={since}");
        let request = Request::get(path).body(Vec::new())?;
        let events = client.request_events::<Value>(request).await?;
        pin_mut!(events);
        while let Some(event) = events.try_next().await? {
            match event {
                WatchEvent::Added(object)
                | WatchEvent::Modified(object)
                | WatchEvent::Deleted(object) => {
                    text(&object, "/metadata/resourceVersion").clone_into(since);
                    self.note(object);
                }
                WatchEvent::Bookmark(mark) => *since = mark.metadata.resource_version,
                WatchEvent::Error(status) => {
                    return Err(kube::Error::Api(status)).context("a watch failed");
                }
            }
        }
        Ok(())
    }
}
