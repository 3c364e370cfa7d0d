//! What a world tells its log, where it has one.

use std::sync::Arc;

use lab_apiserver::{ApiServer, StoreEvent, StoredWrite};
use refit_runtime::gate::Effect;

use super::{Actor, Inner, lock};
use crate::{persist::Record, pki::Identity, snapshot::WorkloadSnapshot};

impl Inner {
    /// Writes down what happens from now on; what is there already stands in the log.
    pub(crate) fn keep_from_now_on(self: &Arc<Self>) {
        let Some(log) = &self.log else { return };
        self.keep_writes(None, &self.management);
        let workloads: Vec<(String, ApiServer)> = lock(&self.workloads)
            .iter()
            .map(|(key, workload)| (key.clone(), workload.server.clone()))
            .collect();
        for (key, server) in workloads {
            self.keep_writes(Some(key), &server);
        }
        let inner = Arc::downgrade(self);
        self.hub.keep(Box::new(move |actor, effect| {
            if let (Some(inner), Actor::Agent(host)) = (inner.upgrade(), actor)
                && !matches!(effect, Effect::Api { .. })
            {
                inner.keep_host(host);
            }
        }));
        log.begin(crate::snapshot::take(self));
        self.spawn(crate::persist::tend(Arc::downgrade(self), log.clone()));
    }

    /// Every write of a server, in the order of the commits.
    fn keep_writes(&self, cluster: Option<String>, server: &ApiServer) {
        let Some(log) = self.log.clone() else { return };
        server.observe(Box::new(move |event: &StoreEvent<'_>| {
            log.write(
                event.now,
                &Record::Write { cluster: cluster.clone(), write: StoredWrite::of(event) },
            );
        }));
    }

    fn keep(&self, record: impl FnOnce() -> Record) {
        if let Some(log) = self.log.as_ref().filter(|log| log.has_begun()) {
            log.write(self.clock.now(), &record());
        }
    }

    /// A new workload cluster, and its writes.
    pub(crate) fn keep_workload(&self, key: &str, server: &ApiServer, identity: &Identity) {
        if !self.log.as_ref().is_some_and(crate::persist::Log::has_begun) {
            return;
        }
        self.keep(|| Record::Workload {
            cluster: key.to_owned(),
            part: Box::new(WorkloadSnapshot {
                store: server.snapshot(),
                identity: identity.clone(),
            }),
        });
        self.keep_writes(Some(key.to_owned()), server);
    }

    /// The version that a workload cluster tells.
    pub(crate) fn keep_version(&self, cluster: &str, version: &str) {
        self.keep(|| Record::Version { cluster: cluster.to_owned(), version: version.to_owned() });
    }

    /// A host and its disk, where they changed. What time alone does to a host follows from its
    /// state and the time, and is not written down.
    pub(crate) fn keep_host(&self, key: &str) {
        if let Some(log) = self.log.as_ref().filter(|log| log.has_begun())
            && let Some(host) = lock(&self.hosts).get(key).cloned()
        {
            log.host(self.clock.now(), key, host.snapshot());
        }
    }

    /// What the environment remembers, where it changed.
    pub(crate) fn keep_env(&self) {
        if let Some(log) = self.log.as_ref().filter(|log| log.has_begun()) {
            log.env(self.clock.now(), &lock(&self.env));
        }
    }

    /// That a process was started.
    pub(crate) fn keep_incarnation(&self, actor: &Actor, count: u32) {
        self.keep(|| Record::Incarnation { actor: actor.clone(), count });
    }
}
