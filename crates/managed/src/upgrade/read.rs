//! What the steps ask for is read.

use k8s_openapi::api::{core::v1::Node, policy::v1::PodDisruptionBudget};
use kube::Api;
use refit_openshift::{
    config::Platform,
    health::{Essential, Extended, Read, alerts, budgets::DvoRead},
    kinds::{ClusterOperator, Machine, MachineSet},
    manager::may_start,
    scaler::can_scale,
    steps::{Fact, Machines},
};

use super::look::Look;
use crate::{context::list, provider::refresh};

impl Look<'_> {
    /// Reads a fact.
    pub(super) async fn read(&mut self, fact: Fact) {
        let remote = &self.ctx.remote;
        match fact {
            Fact::Health => self.facts.health = Some(self.health().await),
            Fact::MoreHealth => self.facts.more_health = Some(self.more_health().await),
            Fact::Dependencies(urls) => {
                let unavailable = remote.unavailable(&urls, &self.upgrader.dependencies).await;
                self.facts.dependencies = Some(unavailable);
            }
            Fact::Machines => self.facts.machines = Some(self.machines().await),
            Fact::Silences => self.facts.silences = Some(self.silences().await),
            Fact::Sent { event, query } => {
                let found = self.series(&query).await;
                self.facts.sent.insert(event, found.map(|found| !found.is_empty()));
            }
            Fact::Release(image) => self.facts.release = Some(remote.release(&image).await),
            Fact::Graph(request) => self.facts.offered = Some(remote.graph(&request).await),
            Fact::Refresh => {
                let refreshed = refresh(self.ctx).await.map_err(sentence);
                self.facts.refreshed = Some(refreshed.map(|did| may_start(did.as_ref())));
            }
            Fact::PagingAlerts { query } => {
                self.facts.paging_alerts = Some(self.alert_names(&query).await);
            }
        }
    }

    async fn health(&self) -> Essential {
        let (namespaces, names) =
            (&self.upgrader.ignored_namespaces, &self.upgrader.ignored_criticals);
        let query = alerts::query(namespaces, names);
        let operators: Api<ClusterOperator> = self.ctx.all();
        let (alerts, operators) =
            futures::join!(self.alert_names(&query), list(&operators, "the ClusterOperators"));
        Essential { alerts, operators: operators.map_err(sentence) }
    }

    async fn more_health(&self) -> Extended {
        let is_reserved = self.record.upgrade.spec.capacity_reservation.unwrap_or_default();
        let can_scale = async {
            if !is_reserved {
                return None;
            }
            let sets = list(&self.machine_api::<MachineSet>(), "the MachineSets").await;
            Some(sets.map(|sets| can_scale(&sets)).map_err(sentence))
        };
        let (nodes, budgets): (Api<Node>, Api<PodDisruptionBudget>) =
            (self.ctx.all(), self.ctx.all());
        let (can_scale, nodes, budgets, dvo) = futures::join!(
            can_scale,
            list(&nodes, "the Nodes"),
            list(&budgets, "the PodDisruptionBudgets"),
            self.dvo()
        );
        Extended {
            can_scale,
            nodes: nodes.map_err(sentence),
            budgets: budgets.map_err(sentence),
            dvo,
        }
    }

    async fn dvo(&self) -> DvoRead {
        match self.platform {
            Platform::Aro => return DvoRead::WithoutClient,
            Platform::Osd => {}
        }
        match self.ctx.remote.dvo_metrics().await {
            Ok(Some(metrics)) => DvoRead::Metrics(metrics),
            Ok(None) => {
                DvoRead::Absent("the deployment-validation-operator is not installed".to_owned())
            }
            Err(why) => DvoRead::Failed(why),
        }
    }

    async fn machines(&self) -> Read<Machines> {
        let (sets, machines, nodes): (_, _, Api<Node>) =
            (self.machine_api::<MachineSet>(), self.machine_api::<Machine>(), self.ctx.all());
        let read = futures::try_join!(
            list(&sets, "the MachineSets"),
            list(&machines, "the Machines"),
            list(&nodes, "the Nodes")
        );
        let (sets, machines, nodes) = read.map_err(sentence)?;
        Ok(Machines { sets, machines, nodes })
    }

    async fn silences(&self) -> Read<Vec<refit_openshift::maintenance::Silence>> {
        self.ctx.remote.monitoring().await?.silences().await
    }

    /// The series in the result of a query.
    async fn series(&self, query: &str) -> Read<Vec<alerts::Sample>> {
        self.ctx.remote.monitoring().await?.query(query).await
    }

    /// The alerts in the result of a query, each once.
    async fn alert_names(&self, query: &str) -> Read<Vec<String>> {
        Ok(alerts::names(&self.series(query).await?))
    }
}

/// An error as the message of a condition.
pub(super) fn sentence(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}
