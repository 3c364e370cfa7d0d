//! What the steps ask for is written.

use k8s_openapi::{NamespaceResourceScope, api::core::v1::Node};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, DynamicObject, PostParams},
};
use refit_openshift::{
    kinds::{CLUSTER_VERSION, ClusterVersion, MACHINE_API, MachineSet},
    maintenance::SilenceWrite,
    nodes::DrainSettings,
    notify::Event,
    steps::{Notification, Write, file_integrity},
    upgrade_config::{NAME, UpgradeConfig},
};
use refit_runtime::{apply, client::cause};
use serde_json::{Value, json};

use super::{look::Look, read::sentence};
use crate::{nodes::Drain, notices::Notifier, record::Stored};

impl Look<'_> {
    /// Makes a write and notes its outcome. What it has changed is read again.
    pub(super) async fn perform(&mut self, write: Write) -> anyhow::Result<Stored> {
        let outcome = match &write {
            Write::Read(fact) => {
                self.read(fact.clone()).await;
                return Ok(Stored::Yes);
            }
            Write::Notify(Notification { event, text }) => {
                match self.notify((*event, text)).await {
                    Ok(Stored::Changed) => return Ok(Stored::Changed),
                    Ok(Stored::Yes) => Ok(()),
                    Err(error) => Err(sentence(error)),
                }
            }
            Write::Silence(write) => self.silence(write).await,
            Write::CreateMachineSet(set) => self.create_machine_set(set).await,
            Write::DeleteMachineSet(name) => self.delete_machine_set(name).await,
            Write::Drain(nodes) => self.drain(nodes).await,
            Write::Request(patch) => self.request(patch).await,
            Write::ReinitFileIntegrity => self.reinit_file_integrity().await,
            Write::SetVersion(version) => {
                let body = json!({
                    "metadata": {"resourceVersion": self.record.upgrade.resource_version()},
                    "spec": {"desired": {"version": version}},
                });
                let set = apply::merge::<UpgradeConfig>(&self.ctx.own(), NAME, &body).await;
                set.map(drop).map_err(|error| failed("set spec.desired.version", &error))
            }
        };
        if let Err(error) = &outcome {
            tracing::warn!(error, "a step of the upgrade failed");
        }
        self.tried.push((write, outcome));
        Ok(Stored::Yes)
    }

    async fn notify(&mut self, message: (Event, &str)) -> anyhow::Result<Stored> {
        let notifier = Notifier {
            ctx: self.ctx,
            config: &self.config,
            has_service_log: self.upgrader.gates.service_log,
            now: self.now,
        };
        notifier.send(&mut self.record, message).await
    }

    async fn silence(&mut self, write: &SilenceWrite) -> Result<(), String> {
        self.facts.silences = None;
        self.ctx.remote.monitoring().await?.write(write).await
    }

    /// The API of a kind of the machine API.
    pub(super) fn machine_api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.ctx.client.clone(), MACHINE_API)
    }

    async fn create_machine_set(&mut self, set: &MachineSet) -> Result<(), String> {
        self.facts.machines = None;
        let created = self.machine_api().create(&PostParams::default(), set).await;
        match created {
            Ok(_) => Ok(()),
            // A look before has created it, and did not see the answer.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(error) => Err(failed(&format!("create MachineSet {}", set.name_any()), &error)),
        }
    }

    async fn delete_machine_set(&mut self, name: &str) -> Result<(), String> {
        self.facts.machines = None;
        let deleted = self.machine_api::<MachineSet>().delete(name, &DeleteParams::default()).await;
        let deleted = apply::optional(deleted);
        deleted.map(drop).map_err(|error| failed(&format!("delete MachineSet {name}"), &error))
    }

    async fn drain(&mut self, nodes: &[String]) -> Result<(), String> {
        let settings = DrainSettings {
            config: &self.upgrader.drain,
            pdb_force_drain_minutes: self.record.upgrade.spec.pdb_force_drain_timeout,
            compat: self.ctx.compat,
        };
        let mut drain = Drain {
            ctx: self.ctx,
            config: &self.config,
            settings,
            record: &mut self.record,
            now: self.now,
        };
        let api: Api<Node> = self.ctx.all();
        for name in nodes {
            let node = api.get_opt(name).await;
            let node = node.map_err(|error| failed(&format!("read Node {name}"), &error))?;
            let Some(node) = node else { continue };
            if drain.advance(&node).await.map_err(sentence)? {
                self.facts.failed_drains.push(name.clone());
            }
        }
        Ok(())
    }

    async fn request(&mut self, patch: &Value) -> Result<(), String> {
        let api: Api<ClusterVersion> = self.ctx.all();
        let patched = apply::merge(&api, CLUSTER_VERSION, patch).await;
        let what = format!("patch ClusterVersion {CLUSTER_VERSION}");
        self.cluster = patched.map_err(|error| failed(&what, &error))?;
        Ok(())
    }

    async fn reinit_file_integrity(&self) -> Result<(), String> {
        let (client, kind) = (self.ctx.client.clone(), file_integrity::resource());
        let api: Api<DynamicObject> =
            Api::namespaced_with(client, file_integrity::NAMESPACE, &kind);
        let what = format!("{} {}/{}", kind.kind, file_integrity::NAMESPACE, file_integrity::NAME);
        let object = api.get(file_integrity::NAME).await;
        let object = object.map_err(|error| {
            if apply::is_not_found(&error) {
                return format!("{what} does not exist, create it, or set environment.fedramp of ConfigMap managed-upgrade-operator-config to false");
            }
            failed(&format!("read {what}"), &error)
        })?;
        let patch = file_integrity::patch(object.annotations(), self.ctx.compat);
        let patched = apply::merge(&api, file_integrity::NAME, &patch).await;
        patched.map(drop).map_err(|error| failed(&format!("annotate {what}"), &error))
    }
}

fn failed(what: &str, error: &kube::Error) -> String {
    format!("cannot {what}: {}", cause(error))
}
