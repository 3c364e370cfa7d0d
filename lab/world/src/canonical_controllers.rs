//! Canonical's controllers, as far as two of them could act on one Machine: the one that upgrades a single Machine by
//! the annotations of Canonical's prefix (`docs/facts/canonical.md`).
//!
//! It is written from the description of its behaviour, with its first attempt at once and none of its errors: what
//! matters here is that it knows nothing of Refit.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::StreamExt as _;
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::{Controller, controller::Action, watcher},
};
use lab_simhost::k8sd::{K8sd, REFRESH, REFRESH_STATUS};
use refit_cluster_api::kinds::Machine;
use refit_kinds::canonical::CANONICAL;
use serde_json::{Value, json};

use crate::env::canonical::node_token;

const CHANGE_ID: &str = "v1beta2.k8sd.io/in-place-upgrade-change-id";
/// When to look again at what is under way, and after an error.
const AGAIN: Duration = Duration::from_secs(5);

/// Finds the k8sd of a host by its key, `namespace/cluster/node`.
type K8sdOf = Arc<dyn Fn(&str) -> Option<Arc<K8sd>> + Send + Sync>;

struct Controllers {
    client: Client,
    k8sd_of: K8sdOf,
}

/// Runs them until the future is dropped.
pub(crate) async fn run(client: Client, k8sd_of: K8sdOf) {
    let machines: Api<Machine> = Api::all(client.clone());
    let controllers = Arc::new(Controllers { client, k8sd_of });
    let on_error = |_: Arc<Machine>, _: &kube::Error, _: Arc<Controllers>| Action::requeue(AGAIN);
    Controller::new(machines, watcher::Config::default())
        .run(reconcile, on_error, controllers)
        .for_each(|_| async {})
        .await;
}

async fn reconcile(
    machine: Arc<Machine>,
    controllers: Arc<Controllers>,
) -> Result<Action, kube::Error> {
    let annotations = machine.annotations();
    let Some(wanted) = annotations.get(CANONICAL.upgrade_to) else {
        return Ok(Action::await_change());
    };
    let namespace = machine.namespace().unwrap_or_default();
    let node = machine.name_any();
    let host = format!("{namespace}/{}/{node}", machine.spec.cluster_name);
    let Some(k8sd) = (controllers.k8sd_of)(&host) else {
        return Ok(Action::requeue(AGAIN));
    };
    let Some(changes) = next(&k8sd, annotations, wanted, &node_token(&node)).await else {
        return Ok(Action::requeue(AGAIN));
    };
    let api: Api<Machine> = Api::namespaced(controllers.client.clone(), &namespace);
    let body = Patch::Merge(json!({"metadata": {"annotations": changes}}));
    api.patch(&node, &PatchParams::default(), &body).await?;
    Ok(Action::requeue(AGAIN))
}

/// What to write on a Machine next; `None` to look again later.
async fn next(
    k8sd: &Arc<K8sd>,
    annotations: &BTreeMap<String, String>,
    wanted: &str,
    token: &str,
) -> Option<Value> {
    let text = |key: &str| annotations.get(key).map_or("", String::as_str);
    let (status, change) = (text(CANONICAL.status), text(CHANGE_ID));
    match (status, change) {
        ("done", _) => Some(json!({
            CANONICAL.upgrade_to: null, CHANGE_ID: null, CANONICAL.last_failed_attempt_at: null,
            CANONICAL.release: wanted,
        })),
        ("failed", _) => Some(json!({CANONICAL.status: null, CHANGE_ID: null})),
        (_, "") => {
            let (option, value) = wanted.split_once('=')?;
            let answer = k8sd.request(REFRESH, token, &json!({option: value})).await.ok()?;
            Some(json!({
                CANONICAL.status: "in-progress", CHANGE_ID: answer["changeId"],
                CANONICAL.release: null,
            }))
        }
        (_, change) => {
            let body = json!({"changeId": change});
            let answer = k8sd.request(REFRESH_STATUS, token, &body).await.ok()?;
            let end = if answer["status"] == "Done" { "done" } else { "failed" };
            (answer["completed"] == true).then(|| json!({CANONICAL.status: end}))
        }
    }
}
