//! Everything together.

use std::{path::PathBuf, sync::Arc};

use kube::Client;
use refit_runtime::Clock;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{
    apiserver::ApiServer,
    certs::Certs,
    cluster::{Cluster, ClusterSpec},
    controller::Controller,
    folder::{self, Turn},
    hosts::Hosts,
    managers::Managers,
    objects::Objects,
    parts::{self, Line, Parts},
    tap::Tap,
};

/// A management cluster with Cluster API, our controller and hosts.
pub struct Bed {
    /// The line of Cluster API.
    pub line: Line,
    /// What runs in it.
    pub parts: Parts,
    /// Where its logs are.
    pub folder: PathBuf,
    hosts: Hosts,
    controller: Controller,
    managers: Managers,
    api_server: ApiServer,
    certs: Arc<Certs>,
    calm: RwLock<()>,
    _turn: Turn,
}

impl Bed {
    /// Starts a bed; waits where too many are up.
    pub async fn start(line: Line) -> anyhow::Result<Self> {
        let clock = Clock::real();
        let parts = parts::find(line)?;
        let turn = folder::turn(clock).await?;
        let folder = folder::run(clock, line.name())?;
        let since = clock.now();
        let certs = Arc::new(Certs::new(clock)?);
        let started = Self::start_in(line, parts, folder.clone(), certs, turn).await;
        let seconds = clock.elapsed(since).as_secs();
        match started {
            Ok(bed) => {
                tracing::info!(%line, logs = %folder.display(), seconds, "the bed is up");
                Ok(bed)
            }
            Err(error) => Err(error
                .context(format!("the bed does not come up; logs are in {}", folder.display()))),
        }
    }

    async fn start_in(
        line: Line,
        parts: Parts,
        folder: PathBuf,
        certs: Arc<Certs>,
        turn: Turn,
    ) -> anyhow::Result<Self> {
        let api_server = ApiServer::start(&parts, &certs, &folder).await?;
        let client = &api_server.client;
        let managers = Managers::start(client, &parts, &certs, &folder).await?;
        let controller = Controller::start(client, &api_server.url, &certs, &folder).await?;
        let hosts = Hosts::start(client.clone(), &api_server.url, certs.clone());
        Ok(Self {
            line,
            parts,
            folder,
            hosts,
            controller,
            managers,
            api_server,
            certs,
            calm: RwLock::new(()),
            _turn: turn,
        })
    }

    /// A client of the management cluster with all rights.
    pub fn client(&self) -> &Client {
        &self.api_server.client
    }

    /// The objects of a namespace of the management cluster.
    pub fn objects(&self, namespace: &str) -> Objects {
        Objects::in_namespace(self.client().clone(), namespace)
    }

    /// The certificates of the bed.
    pub fn certs(&self) -> &Certs {
        &self.certs
    }

    /// Our controller.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// What listens to the calls of our hooks, while fixtures are recorded.
    pub fn tap(&self) -> Option<&Tap> {
        self.controller.tap()
    }

    /// Cluster API's managers.
    pub fn managers(&self) -> &Managers {
        &self.managers
    }

    /// The hosts of all clusters.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// A cluster in a namespace of its own, with everything up.
    pub async fn cluster(&self, name: &str, spec: &ClusterSpec) -> anyhow::Result<Cluster> {
        Cluster::create(self.client(), name, spec).await
    }

    /// Held by a test that needs every process to stay up.
    pub async fn calm(&self) -> RwLockReadGuard<'_, ()> {
        self.calm.read().await
    }

    /// Held by a test that stops processes: it is alone.
    pub async fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.calm.write().await
    }
}
