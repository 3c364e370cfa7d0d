//! UpgradeTasks via Machines, as the simulated user creates them.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::{
    json::{self, name, namespace, text},
    refit::{self, CapacityMethod},
};
use serde_json::{Value, json};

use super::World;
use crate::{
    direct::{Call, Direct, DirectError, USER},
    script::look::owners,
};

/// HTTP status code for an object that exists.
const CONFLICT: u16 = 409;

impl World {
    /// Creates an UpgradeTask for each control plane and MachineDeployment that has none. A task has the name of
    /// its owner.
    pub async fn upgrade_by_tasks(&self, version: &str) -> Result<(), DirectError> {
        let existing = self.upgrade_tasks();
        let api = Direct::new(self.management().clone(), USER);
        for owner in owners(self) {
            if existing.iter().any(|task| name(task) == name(&owner)) {
                continue;
            }
            let path =
                format!("/apis/refit.dev/v1alpha1/namespaces/{}/upgradetasks", namespace(&owner));
            match api.send(Call::create(path, task_for(&owner, version))).await {
                // It was created since the look.
                Err(error) if error.code() == Some(CONFLICT) => {}
                outcome => drop(outcome?),
            }
        }
        Ok(())
    }

    /// Creates a ClusterUpgrade for each control plane, which has the name of its Cluster, unless there is one. It may have
    /// extra Machines.
    pub async fn upgrade_cluster(
        &self,
        version: &str,
        extra: Option<CapacityMethod>,
    ) -> Result<(), DirectError> {
        let existing = self.cluster_upgrades();
        let api = Direct::new(self.management().clone(), USER);
        let start_at = self.now() + SignedDuration::from_secs(30);
        let start_at = Timestamp::from_second(start_at.as_second()).unwrap_or(start_at);
        for plane in owners(self) {
            let (name, namespace) = (name(&plane), namespace(&plane));
            let is_worker = !text(&plane, "/spec/clusterName").is_empty();
            if is_worker || existing.iter().any(|one| json::name(one) == name) {
                continue;
            }
            let path = format!("/apis/refit.dev/v1alpha1/namespaces/{namespace}/clusterupgrades");
            let mut upgrade = json!({
                "apiVersion": "refit.dev/v1alpha1",
                "kind": "ClusterUpgrade",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"version": version, "startAt": start_at.to_string()},
            });
            if let Some(method) = extra {
                upgrade["spec"]["extraCapacity"] = json!({"method": method});
            }
            match api.send(Call::create(path, upgrade)).await {
                // It was created since the look.
                Err(error) if error.code() == Some(CONFLICT) => {}
                outcome => drop(outcome?),
            }
        }
        Ok(())
    }

    /// Every ClusterUpgrade, as stored, in order of namespace and name.
    pub fn cluster_upgrades(&self) -> Vec<Value> {
        self.management().list_values(refit::GROUP, "clusterupgrades", None)
    }

    /// Every ClusterUpgradePlan, as stored, in order of name.
    pub fn cluster_upgrade_plans(&self) -> Vec<Value> {
        self.management().list_values(refit::GROUP, "clusterupgradeplans", None)
    }

    /// Whether there is a ClusterUpgrade, and all are completed.
    pub fn cluster_upgrades_are_complete(&self) -> bool {
        let all = self.cluster_upgrades();
        !all.is_empty() && all.iter().all(|one| text(one, "/status/phase") == "Completed")
    }

    /// Every UpgradeTask, as stored, in order of namespace and name.
    pub fn upgrade_tasks(&self) -> Vec<Value> {
        self.management().list_values(refit::GROUP, "upgradetasks", None)
    }

    /// Whether each control plane and MachineDeployment has an UpgradeTask, and all are complete.
    pub fn tasks_are_complete(&self) -> bool {
        let tasks = self.upgrade_tasks();
        tasks.len() == owners(self).len()
            && tasks.iter().all(|task| text(task, "/status/phase") == "Complete")
    }
}

fn task_for(owner: &Value, version: &str) -> Value {
    let cluster = match text(owner, "/spec/clusterName") {
        // A control plane has the name of its Cluster.
        "" => name(owner),
        cluster => cluster,
    };
    json!({
        "apiVersion": "refit.dev/v1alpha1",
        "kind": "UpgradeTask",
        "metadata": {"name": name(owner), "namespace": namespace(owner)},
        "spec": {
            "clusterRef": {"name": cluster},
            "ownerRef": {
                "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": name(owner),
            },
            "version": version,
            "via": "Machines",
        },
    })
}
