//! Serves the APIs on loopback, over TLS.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use lab_apiserver::{ApiServer, auth::MASTERS};
use lab_simhost::{HostState, service::HostService};
use refit_runtime::{
    net::Listener,
    serve,
    tls::{self, Authority, KeyAndCert, TlsError},
};
use tokio::{sync::watch, task::AbortHandle};

use super::{
    SandboxError,
    kubeconfig::{self, Entry, FILE, HOST, MANAGEMENT},
    secret,
};
use crate::{
    http::Served,
    pki,
    snapshot::Snapshot,
    world::{Inner, World, WorldOptions, lock},
};

/// Delay before opening a port that is in use is retried.
const RETRY: Duration = Duration::from_secs(1);
/// How long the start waits for the APIs of the workload clusters.
const FIRST: Duration = Duration::from_secs(5);
/// Names and addresses in the server certificates.
const NAMES: [&str; 2] = [HOST, "localhost"];
/// Common name of the kubeconfig's client certificate.
const ADMIN: &str = "refit-admin";

/// Creates the runtime of a live world: one thread, as in simulations, but real time.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// The ports of the sandbox, opened before anything else happens.
#[derive(Debug)]
pub struct Ports {
    pub(super) management: TcpListener,
    hosts: Option<TcpListener>,
}

impl Ports {
    /// Opens the port of the management API, by default any free one, and the port of the API that
    /// upgrades hosts ([`HostService`]), which is not served by default.
    pub fn take(management: Option<u16>, hosts: Option<u16>) -> Result<Self, SandboxError> {
        Ok(Self {
            management: listen(management.unwrap_or(0), "--port")?,
            hosts: hosts.map(|port| listen(port, "--hosts-port")).transpose()?,
        })
    }
}

pub(super) fn listen(port: u16, option: &'static str) -> Result<TcpListener, SandboxError> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpListener::bind(address).map_err(|source| {
        if source.kind() == io::ErrorKind::AddrInUse {
            SandboxError::PortInUse { port, option }
        } else {
            SandboxError::Listen { port, source }
        }
    })
}

pub(super) fn port_of(listener: &TcpListener) -> io::Result<u16> {
    Ok(listener.local_addr()?.port())
}

/// Options of a live world.
#[derive(Debug)]
pub struct SandboxOptions {
    /// Directory of the kubeconfig.
    pub directory: PathBuf,
    /// How many times faster than real hosts these work.
    pub hurry: u32,
}

/// A running world and its kubeconfig. Dropping it stops the world and closes its ports.
#[derive(Debug)]
pub struct Sandbox {
    world: World,
    kubeconfig: PathBuf,
}

impl Sandbox {
    /// Continues a world in real time and serves its APIs. Must be called in a [`runtime`].
    pub async fn start(
        world: &Snapshot,
        ports: Ports,
        options: SandboxOptions,
    ) -> Result<Self, SandboxError> {
        let world_options =
            WorldOptions { hurry: options.hurry, real_time: true, ..WorldOptions::new(Vec::new()) };
        let world = World::restore(world, &world_options)?;
        let inner = world.inner.clone();
        let apis = inner.apis.subscribe();
        let path = options.directory.join(FILE);
        if let Some(hosts) = ports.hosts {
            serve_hosts(&inner, Listener::listening(hosts)?);
        }
        let mut front = Front::new(inner, ports.management, path.clone())?;
        let (up, mut all_up) = watch::channel(false);
        let clusters = lock(&world.inner.env).clusters.len();
        world.inner.spawn(async move { front.run(apis, clusters, &up).await });
        // A cluster without a running control plane has no API: do not wait longer for it.
        let _ = tokio::time::timeout(FIRST, all_up.wait_for(|up| *up)).await;
        Ok(Self { world, kubeconfig: path })
    }

    /// The running world.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Path of the kubeconfig.
    pub fn kubeconfig(&self) -> &std::path::Path {
        &self.kubeconfig
    }
}

fn serve_hosts(inner: &Arc<Inner>, listener: Listener) {
    let world = inner.clone();
    let hosts =
        move |node: &str, act: &mut dyn FnMut(&mut HostState)| world.with_host(node, act).is_some();
    let service = Arc::new(HostService::new(Box::new(hosts)));
    inner.spawn(service.serve(listener));
}

/// One API that has been served at least once.
pub(super) struct Api {
    server: ApiServer,
    ca: String,
    admin: KeyAndCert,
    tls: Arc<rustls::ServerConfig>,
    port: u16,
    serving: Option<AbortHandle>,
    /// The task that serves the same address on the in-memory network.
    inside: Option<AbortHandle>,
    /// Whether the cluster's kubeconfig Secret has this address.
    published: bool,
}

impl Api {
    pub(super) fn new(server: ApiServer, ca: &pki::Pem, port: u16) -> Result<Self, TlsError> {
        let material = KeyAndCert { cert_pem: ca.cert().to_owned(), key_pem: ca.key().to_owned() };
        let authority = Authority::from_pem(material)?;
        let validity = pki::validity();
        let cert = tls::ReloadableCert::new(&authority.server(&NAMES, validity)?)?;
        Ok(Self {
            server,
            ca: ca.cert().to_owned(),
            admin: authority.client_in(ADMIN, &[MASTERS], validity)?,
            tls: tls::api_server_config(cert, ca.cert().as_bytes())?,
            port,
            serving: None,
            inside: None,
            published: false,
        })
    }

    /// Serves the API at a listener without end. Dropping the future closes the port and all connections.
    pub(super) fn outside(&self, listener: Listener) -> impl Future<Output = ()> + Send + use<> {
        let service = Served::outside(self.server.clone());
        serve::serve(listener, Some(self.tls.clone()), service, std::future::pending())
    }

    fn serve(&mut self, inner: &Inner, listener: Listener) {
        self.serving = Some(inner.spawn(self.outside(listener)));
    }

    /// Serves the same address to the world's own processes, which also read the Secret.
    fn serve_inside(&mut self, inner: &Inner) {
        let listener = inner.network.listen(HOST, self.port);
        let service = Served::inside(self.server.clone());
        let tls = Some(self.tls.clone());
        let serving = serve::serve(listener, tls, service, std::future::pending());
        self.inside = Some(inner.spawn(serving));
    }

    /// Refuses new connections and closes existing ones.
    fn stop(&mut self, inner: &Inner) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
        if let Some(inside) = self.inside.take() {
            inner.network.close(HOST, self.port);
            inside.abort();
        }
    }

    pub(super) fn entry(&self, name: impl Into<String>) -> Entry<'_> {
        Entry { name: name.into(), port: self.port, ca: &self.ca, admin: &self.admin }
    }
}

/// Serves every API that is up in the world, and maintains the kubeconfig.
struct Front {
    inner: Arc<Inner>,
    management: Api,
    /// Workload clusters, by key.
    workloads: BTreeMap<String, Api>,
    path: PathBuf,
}

impl Front {
    fn new(inner: Arc<Inner>, listener: TcpListener, path: PathBuf) -> Result<Self, SandboxError> {
        let port = port_of(&listener)?;
        let ca = inner.management_identity.ca.clone();
        let mut management = Api::new(inner.management.clone(), &ca, port)?;
        management.serve(&inner, Listener::listening(listener)?);
        let front = Self { inner, management, workloads: BTreeMap::new(), path };
        front.write()?;
        Ok(front)
    }

    /// Follows the world forever. Sends `true` to `up` once this many clusters are served.
    async fn run(
        &mut self,
        mut apis: watch::Receiver<BTreeMap<String, bool>>,
        clusters: usize,
        up: &watch::Sender<bool>,
    ) {
        loop {
            let wanted = apis.borrow_and_update().clone();
            let complete = self.follow(&wanted) & self.publish().await;
            let served = self.workloads.values().filter(|api| api.serving.is_some());
            if served.count() >= clusters {
                up.send_replace(true);
            }
            let again = async {
                if complete {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(RETRY).await;
            };
            tokio::select! {
                biased;
                changed = apis.changed() => if changed.is_err() { return },
                () = again => {}
            }
        }
    }

    /// Opens and closes ports; returns whether all required ports are open.
    fn follow(&mut self, wanted: &BTreeMap<String, bool>) -> bool {
        let mut complete = true;
        let mut news = false;
        for (key, answers) in wanted {
            if !answers {
                if let Some(api) = self.workloads.get_mut(key) {
                    api.stop(&self.inner);
                }
                continue;
            }
            match self.open(key) {
                Ok(new) => news |= new,
                Err(error) => {
                    tracing::warn!(cluster = key, "the API is not served yet: {error}");
                    complete = false;
                }
            }
        }
        if news && let Err(error) = self.write() {
            tracing::warn!("{error}");
            complete = false;
        }
        complete
    }

    /// Serves a workload cluster; returns whether its address is new.
    fn open(&mut self, key: &str) -> Result<bool, SandboxError> {
        let known = self.workloads.get(key);
        if known.is_some_and(|api| api.serving.is_some()) {
            return Ok(false);
        }
        let (listener, news) = if let Some(port) = known.map(|api| api.port) {
            // The port stays the same, because kubeconfigs contain it.
            (listen(port, "--port")?, false)
        } else {
            let listener = listen(0, "--port")?;
            self.add(key, port_of(&listener)?)?;
            (listener, true)
        };
        let listener = Listener::listening(listener)?;
        if let Some(api) = self.workloads.get_mut(key) {
            api.serve(&self.inner, listener);
            api.serve_inside(&self.inner);
        }
        Ok(news)
    }

    /// Updates the kubeconfig Secrets of the served clusters; returns whether all are updated.
    async fn publish(&mut self) -> bool {
        let mut complete = true;
        for (key, api) in &mut self.workloads {
            if api.published || api.serving.is_none() {
                continue;
            }
            let (namespace, cluster) = key.split_once('/').unwrap_or(("default", key));
            let entry = api.entry(cluster);
            let written = secret::publish(&self.inner.management, namespace, &entry).await;
            if let Err(error) = written {
                tracing::warn!(cluster = key, "the kubeconfig is not published yet: {error}");
                complete = false;
            } else {
                api.published = true;
            }
        }
        complete
    }

    fn add(&mut self, key: &str, port: u16) -> Result<(), SandboxError> {
        let found = lock(&self.inner.workloads)
            .get(key)
            .map(|workload| (workload.server.clone(), workload.identity.ca.clone()));
        if let Some((server, ca)) = found {
            self.workloads.insert(key.to_owned(), Api::new(server, &ca, port)?);
        }
        Ok(())
    }

    fn write(&self) -> Result<(), SandboxError> {
        let keys: Vec<&str> = self.workloads.keys().map(String::as_str).collect();
        let contexts = kubeconfig::contexts(&keys);
        let management = std::iter::once((MANAGEMENT.to_owned(), &self.management));
        let workloads =
            self.workloads.iter().filter_map(|(key, api)| Some((contexts.get(key)?.clone(), api)));
        let entries: Vec<Entry<'_>> =
            management.chain(workloads).map(|(name, api)| api.entry(name)).collect();
        kubeconfig::write(&self.path, &kubeconfig::text(&entries))
            .map_err(|source| SandboxError::Kubeconfig { path: self.path.clone(), source })
    }
}
