//! The whole test bed.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use kube::Client;
use refit_runtime::Clock;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{
    apiserver::ApiServer,
    certs::Certs,
    cluster::{Cluster, ClusterSpec},
    controller::Controller,
    directory::{self, Turn},
    hosts::Hosts,
    managers::{InPlace, Managers},
    objects::Objects,
    parts::{self, Line, Parts},
    process::{Part, Program},
    tap::Tap,
};

/// A management cluster with Cluster API, the Refit controller and hosts.
pub struct Bed {
    /// The line of Cluster API.
    pub line: Line,
    /// The programs of the bed.
    pub parts: Parts,
    /// Directory of the logs.
    pub directory: PathBuf,
    hosts: Hosts,
    controller: Controller,
    managers: Managers,
    api_server: ApiServer,
    certs: Arc<Certs>,
    calm: RwLock<()>,
    _turn: Turn,
}

impl Bed {
    /// Starts a bed. If too many beds are up, waits for its turn.
    pub async fn start(line: Line, in_place: InPlace) -> anyhow::Result<Self> {
        let clock = Clock::real();
        let parts = parts::find(line)?;
        let turn = directory::turn(clock).await?;
        let directory = directory::run(clock, line.name())?;
        let since = clock.now();
        let certs = Arc::new(Certs::new(clock)?);
        let started = Self::start_in((line, in_place), parts, directory.clone(), certs, turn).await;
        let seconds = clock.elapsed(since).as_secs();
        match started {
            Ok(bed) => {
                tracing::info!(%line, logs = %directory.display(), seconds, "the bed is up");
                Ok(bed)
            }
            Err(error) => Err(error
                .context(format!("failed to start the bed; logs are in {}", directory.display()))),
        }
    }

    async fn start_in(
        (line, in_place): (Line, InPlace),
        parts: Parts,
        directory: PathBuf,
        certs: Arc<Certs>,
        turn: Turn,
    ) -> anyhow::Result<Self> {
        let api_server = ApiServer::start(&parts, &certs, &directory).await?;
        let client = &api_server.client;
        let managers = Managers::start(&api_server, &parts, &certs, &directory, in_place).await?;
        let controller = Controller::start(client, &api_server.url, &certs, &directory).await?;
        let hosts = Hosts::start(client.clone(), &api_server.url, certs.clone());
        Ok(Self {
            line,
            parts,
            directory,
            hosts,
            controller,
            managers,
            api_server,
            certs,
            calm: RwLock::new(()),
            _turn: turn,
        })
    }

    /// Returns a client of the management cluster with all permissions.
    pub fn client(&self) -> &Client {
        &self.api_server.client
    }

    /// Returns the URL of the management cluster's API server.
    pub fn url(&self) -> &str {
        &self.api_server.url
    }

    /// Returns the objects of a namespace of the management cluster.
    pub fn objects(&self, namespace: &str) -> Objects {
        Objects::in_namespace(self.client().clone(), namespace)
    }

    /// Returns the path of a kubeconfig with all permissions.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join("admin.kubeconfig")
    }

    /// Starts the provider of `examples/provider-go` with this kubeconfig.
    pub fn hosts_provider(&self, kubeconfig: &Path, directory: &Path) -> anyhow::Result<Part> {
        let path = self.parts.hosts_provider.clone();
        let program = Program {
            name: "hosts-provider".to_owned(),
            path: path.context("the provider is not built: run `cargo xtask testbed build`")?,
            args: vec![format!("--kubeconfig={}", kubeconfig.display())],
            restart: true,
            ..Program::default()
        };
        Part::start(program, directory)
    }

    /// Returns the certificates of the bed.
    pub fn certs(&self) -> &Certs {
        &self.certs
    }

    /// Returns the Refit controller.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Returns the recording proxy for Refit's hooks, while fixtures are recorded.
    pub fn tap(&self) -> Option<&Tap> {
        self.controller.tap()
    }

    /// Returns Cluster API's managers.
    pub fn managers(&self) -> &Managers {
        &self.managers
    }

    /// Returns the hosts of all clusters.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Creates a cluster in a separate namespace, and waits until everything is up.
    pub async fn cluster(&self, name: &str, spec: &ClusterSpec) -> anyhow::Result<Cluster> {
        Cluster::create(self.client(), name, spec).await
    }

    /// A lock for tests that need all processes to stay up.
    pub async fn calm(&self) -> RwLockReadGuard<'_, ()> {
        self.calm.read().await
    }

    /// An exclusive lock for a test that stops processes.
    pub async fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.calm.write().await
    }
}
