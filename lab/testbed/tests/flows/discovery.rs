//! Real Cluster API rejects a Discovery response with an unknown hook; Refit's response has none.

use std::time::Duration;

use anyhow::ensure;
use lab_testbed::{
    Bed,
    controller::EXTENSION,
    eventually,
    extension::Extension,
    objects::{self, EXTENSION_CONFIG, Objects, text},
};
use serde_json::{Value, json};

const VERSION: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";
const OTHER: &str = "with-an-unknown-hook";

pub(super) async fn run(bed: &Bed) -> anyhow::Result<()> {
    let _calm = bed.calm().await;
    let objects = Objects::of_cluster(bed.client().clone());
    let refit = objects.get(EXTENSION_CONFIG, EXTENSION).await?;
    ensure!(
        objects::is_true(&refit, "Discovered"),
        "{}",
        objects::condition_text(&refit, "Discovered")
    );
    let handlers = refit["status"]["handlers"].as_array().cloned();
    let mut hooks: Vec<String> = handlers
        .unwrap_or_default()
        .iter()
        .map(|handler| text(handler, "/requestHook/hook").to_owned())
        .collect();
    hooks.sort();
    ensure!(
        hooks == ["CanUpdateMachine", "CanUpdateMachineSet", "UpdateMachine"],
        "our hooks are {hooks:?}"
    );
    if let Some(tap) = bed.tap() {
        tap.write(bed.line, "discovery", None)?;
    }
    let server = Extension::start(&bed.certs().server()?, |_, _| discovery()).await?;
    let other = json!({
        "apiVersion": "runtime.cluster.x-k8s.io/v1beta2",
        "kind": "ExtensionConfig",
        "metadata": {"name": OTHER},
        "spec": {
            "clientConfig": {
                "url": format!("https://localhost:{}/", server.port),
                "caBundle": bed.certs().ca_bundle(),
            },
            "namespaceSelector": {"matchLabels": {"no-namespace": "has-it"}},
        },
    });
    objects::apply(bed.client(), &other).await?;
    let outcome = refused(&objects).await;
    // The managers do not start while an ExtensionConfig is not discovered.
    objects.delete(EXTENSION_CONFIG, OTHER).await?;
    outcome
}

async fn refused(objects: &Objects) -> anyhow::Result<()> {
    let within = Duration::from_mins(1);
    let found = eventually("the Discovery is rejected", within, async || {
        let found = objects.get(EXTENSION_CONFIG, OTHER).await;
        let found = found.map_err(|error| format!("{error:#}"))?;
        let condition = objects::condition_text(&found, "Discovered");
        if condition.starts_with("False") { Ok((condition, found)) } else { Err(condition) }
    })
    .await?;
    let (condition, found) = found;
    ensure!(condition.contains("Discover"), "{condition}");
    ensure!(
        found["status"]["handlers"].as_array().is_none_or(Vec::is_empty),
        "one unknown hook does not affect the others: {found}"
    );
    Ok(())
}

fn discovery() -> Value {
    let handler = |name: &str, hook: &str| {
        json!({
            "name": name,
            "requestHook": {"apiVersion": VERSION, "hook": hook},
            "timeoutSeconds": 10,
            "failurePolicy": "Fail",
        })
    };
    json!({
        "apiVersion": VERSION,
        "kind": "DiscoveryResponse",
        "status": "Success",
        "message": "",
        "handlers": [
            handler("update-machine", "UpdateMachine"),
            handler("from-the-future", "UpdateMachineFromTheFuture"),
        ],
    })
}
