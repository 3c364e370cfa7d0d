//! What `refit plan` predicts on real Cluster API, and what then happens.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use lab_testbed::{
    Bed, Cluster, cli,
    objects::{NODE_UPDATE, text},
};
use refit_kinds::refit::NodeUpdate;
use serde_json::Value;

/// Numbers of machines updated in place, created and deleted.
pub(super) type Counts = (i64, i64, i64);

/// A plan as JSON.
pub(super) struct Planned(Value);

/// An update of a Machine: when its first step began, and when it ended.
struct Update {
    machine: String,
    begun: Timestamp,
    ended: Timestamp,
}

impl Planned {
    /// The plan for a version of `KIND/NAME`.
    pub(super) async fn version(
        bed: &Bed,
        cluster: &Cluster,
        target: &str,
        to: &str,
    ) -> anyhow::Result<Self> {
        let arguments = ["plan", target, "--to", to];
        Ok(Self(cli::json(&bed.kubeconfig(), &cluster.namespace, &arguments).await?))
    }

    /// The plan for objects to apply.
    pub(super) async fn objects(
        bed: &Bed,
        cluster: &Cluster,
        objects: &[Value],
    ) -> anyhow::Result<Self> {
        let mut arguments = vec!["plan".to_owned()];
        for (index, object) in objects.iter().enumerate() {
            let file: PathBuf = bed.directory.join(format!("plan-{}-{index}.json", cluster.name));
            std::fs::write(&file, object.to_string())?;
            arguments.extend(["-f".to_owned(), file.display().to_string()]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Ok(Self(cli::json(&bed.kubeconfig(), &cluster.namespace, &arguments).await?))
    }

    fn group(&self, name: &str) -> anyhow::Result<&Value> {
        let mut groups = self.0["groups"].as_array().into_iter().flatten();
        groups
            .find(|group| text(group, "/name") == name)
            .with_context(|| format!("no {name} in {}", self.0))
    }

    /// The predicted numbers of machines of a group.
    pub(super) fn counts(&self, group: &str) -> anyhow::Result<Counts> {
        let group = self.group(group)?;
        let count = |key: &str| group["machines"][key].as_i64().unwrap_or(-1);
        Ok((count("inPlace"), count("new"), count("deleted")))
    }

    /// Checks that a group is blocked for this reason, and that none of its machines changes.
    pub(super) fn is_blocked(&self, group: &str, reason: &str) -> anyhow::Result<()> {
        let found = self.group(group)?;
        let mut blocked = found["blockedBy"].as_array().into_iter().flatten();
        ensure!(
            text(found, "/outcome") == "Blocked"
                && blocked.any(|one| text(one, "/reason") == reason),
            "the plan of {group} is not blocked by {reason}: {found:#}"
        );
        Ok(())
    }

    /// The machines of a group in the predicted order of their updates.
    fn order(&self, group: &str) -> anyhow::Result<Vec<String>> {
        let turns = self.group(group)?["timeline"]["turns"].as_array().into_iter().flatten();
        let updates = turns.filter(|turn| text(turn, "/action") == "Update");
        Ok(updates.map(|turn| text(turn, "/machine").to_owned()).collect())
    }

    /// Checks that the machines of a group were updated in the predicted order, and logs what their updates took, and what was lost between
    /// one and the next.
    pub(super) async fn came_true(&self, cluster: &Cluster, group: &str) -> anyhow::Result<()> {
        let order = self.order(group)?;
        let mut done: BTreeMap<String, Update> = BTreeMap::new();
        for update in cluster.objects.list(NODE_UPDATE).await? {
            let update: NodeUpdate = serde_json::from_value(update)?;
            let Some(update) = Update::of(update).filter(|update| order.contains(&update.machine))
            else {
                continue;
            };
            let newest = done.get(&update.machine).is_none_or(|known| known.begun < update.begun);
            if newest {
                done.insert(update.machine.clone(), update);
            }
        }
        let mut done: Vec<Update> = done.into_values().collect();
        done.sort_by_key(|update| update.begun);
        let happened: Vec<&str> = done.iter().map(|update| update.machine.as_str()).collect();
        ensure!(happened == order, "{group}: predicted {order:?}, but it was {happened:?}");
        let lost: Vec<i64> = done
            .windows(2)
            .filter_map(|pair| {
                let [one, next] = pair else { return None };
                Some(next.begun.duration_since(one.ended).as_secs())
            })
            .collect();
        let first = done.iter().map(|update| update.begun).min();
        let last = done.iter().map(|update| update.ended).max();
        let took = first.zip(last).map(|(first, last)| last.duration_since(first).as_secs());
        tracing::info!(target: "lab_testbed", group, predicted = %self.group(group)?["seconds"], ?took, ?lost, "seconds");
        Ok(())
    }
}

impl Update {
    fn of(update: NodeUpdate) -> Option<Self> {
        let status = update.status?;
        let begun =
            status.steps.iter().filter_map(|step| step.started_at.as_ref()).map(|at| at.0).min()?;
        Some(Self { machine: update.spec.machine_ref.name, begun, ended: status.finished_at?.0 })
    }
}
