//! Creates a world from manifests or from a snapshot.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use lab_apiserver::{
    ApiServer, Options, PortHandler, Registry, Webhook,
    auth::{Authentication, Required},
};
use refit_install::{Choices, Part, manifests, objects};
use refit_kinds::{
    json::{kind, name, namespace, text},
    keys,
};
use refit_runtime::{Clock, net::MemoryNetwork, serve, tls};
use serde_json::{Value, json};
use tokio::{sync::Notify, task::AbortHandle};

use super::{
    Hosts, Hub, Inner, Workload, World, WorldError, WorldOptions, enforced, hosts, lock,
    process::Actor,
};
use crate::{
    alertmanager::{self, Alertmanager},
    direct::{Call, Direct, USER, server_options},
    env::{
        canonical::{K8SD_PORT, K8SD_PROXY},
        state::{EnvState, host_key},
    },
    invariants::Checker,
    leaders::Leaders,
    manifests::{BUNDLED_CRDS, schemaless_crds},
    mirror::{Mirror, management_resources, workload_resources},
    pki::{self, HookClient, Identity},
    prometheus::{self, Prometheus},
    receivers::{self, Receivers},
    snapshot::Snapshot,
    update_server::{self, UpdateServer},
};

impl World {
    /// Creates a world and applies the manifests in it. Must be called in a [`super::runtime`].
    pub async fn new(options: WorldOptions) -> Result<Self, WorldError> {
        let clock = Clock::simulated(options.epoch);
        let management_identity = Identity::new("management", &[pki::MANAGEMENT_HOST])?;
        let authentication = match &options.enforced {
            Some(enforced) => enforced.management(&signing_key(&management_identity)),
            None => Authentication::Open,
        };
        let management = ApiServer::new(Options {
            authentication: authentication.clone(),
            ..server_options(clock, options.seed)
        });
        let parts = Parts {
            clock,
            management,
            management_identity,
            hook_identity: Identity::new("refit-webhook", &[pki::HOOK_HOST, pki::UPDATER_HOST])?,
            env: EnvState::default(),
            incarnations: BTreeMap::new(),
            authentication,
        };
        let world = Self { inner: Arc::new(parts.assemble(&options)?) };
        world.load(&options.manifests).await?;
        world.start()?;
        Ok(world)
    }

    /// Creates a world from a snapshot. Only state is restored: every process and every connection
    /// is new. Manifests, seed and epoch of the options are not used.
    pub fn restore(snapshot: &Snapshot, options: &WorldOptions) -> Result<Self, WorldError> {
        let clock = options.clock_from(snapshot.time);
        let key = signing_key(&snapshot.management_identity);
        let authentication = match &options.enforced {
            Some(enforced) => enforced.management(&key),
            None if options.real_time => Authentication::Required(Required::new(key)),
            None => Authentication::Open,
        };
        let parts = Parts {
            clock,
            management: ApiServer::restore(
                snapshot.management.clone(),
                Options {
                    authentication: authentication.clone(),
                    webhook: options.real_time.then(webhook),
                    ..server_options(clock, snapshot.seed)
                },
            ),
            management_identity: snapshot.management_identity.clone(),
            hook_identity: snapshot.hook_identity.clone(),
            env: snapshot.env.for_restore(),
            incarnations: snapshot.incarnations.iter().cloned().collect(),
            authentication,
        };
        let options = WorldOptions { seed: snapshot.seed, ..options.clone() };
        let inner = parts.assemble(&options)?;
        for (key, part) in &snapshot.workloads {
            let server = ApiServer::restore(part.store.clone(), inner.workload_options(key));
            let workload = inner.workload_of(key, server, part.identity.clone());
            lock(&inner.workloads).insert(key.clone(), workload);
        }
        for (key, part) in &snapshot.hosts {
            let handle = hosts::HostHandle::restore(key, part, &inner)?;
            if !inner.journal {
                *lock(&handle.disk) = lab_simhost::DiskState::default();
            }
            lock(&inner.hosts).insert(key.clone(), handle);
        }
        let world = Self { inner: Arc::new(inner) };
        world.inner.checker.start(&world.inner);
        world.start()?;
        Ok(world)
    }

    /// Serves the management API and starts the environment and the processes.
    fn start(&self) -> Result<(), WorldError> {
        let inner = &self.inner;
        inner.serve(
            pki::MANAGEMENT_HOST,
            pki::MANAGEMENT_PORT,
            &inner.management,
            &inner.management_identity,
        )?;
        inner.spawn(crate::env::run::run(inner.clone()));
        let listener = inner.network.listen(prometheus::HOST, prometheus::PORT);
        inner.spawn(inner.prometheus.clone().serve(listener));
        if let Some(receivers) = inner.receivers.clone() {
            let listener = inner.network.listen(receivers::HOST, receivers::PORT);
            inner.spawn(receivers.serve(listener, inner.clock)?);
        }
        let listener = inner.network.listen(alertmanager::HOST, alertmanager::PORT);
        inner.spawn(inner.alertmanager.clone().serve(listener, None, inner.clock));
        let listener = inner.network.listen(update_server::HOST, update_server::PORT);
        inner.spawn(inner.update_server.clone().serve(listener, inner.management.clone()));
        inner.supervise(&Actor::Capi);
        inner.supervise(&Actor::Controller);
        for other in &inner.others {
            inner.supervise(other);
        }
        if inner.two_controllers {
            inner.leaders.follow_management(&inner.management);
            inner.supervise(&Actor::Standby);
        }
        let hosts: Vec<String> = lock(&inner.hosts).keys().cloned().collect();
        for host in hosts {
            inner.supervise(&Actor::Agent(host));
        }
        Ok(())
    }

    /// Applies the objects of an installation and of the user.
    async fn load(&self, manifests: &[Value]) -> Result<(), WorldError> {
        let api = Direct::new(self.inner.management.clone(), USER);
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        for crd in BUNDLED_CRDS.iter() {
            let body = serde_json::to_value(crd).expect("a CRD is JSON");
            api.send(Call::create(definitions, body)).await?;
        }
        for crd in schemaless_crds(manifests) {
            api.send(Call::create(definitions, crd)).await?;
        }
        self.load_namespaces(&api, manifests).await?;
        match &self.inner.enforced {
            Some(enforced) => {
                enforced.install(&self.inner.management).await.map_err(WorldError::Install)?;
            }
            None => self.install(&api).await?,
        }
        crate::env::managers::describe(&api).await?;
        self.inner.checker.start(&self.inner);
        for manifest in manifests {
            let mut object = manifest.clone();
            lab_cluster_api_shell::defaults::default_object(&mut object);
            let Some(path) = collection(&self.inner.management, &object) else {
                tracing::warn!(object = %object, "no API serves this kind");
                continue;
            };
            match api.send(Call::create(path, object)).await {
                // A Namespace, or an object that both the manifests and the installation contain.
                Err(error) if error.code() == Some(409) => {}
                outcome => {
                    outcome?;
                }
            }
        }
        Ok(())
    }

    /// Creates the namespaces of the manifests, with the labels that these give them, and opts them in.
    async fn load_namespaces(&self, api: &Direct, manifests: &[Value]) -> Result<(), WorldError> {
        let mut names: Vec<&str> = manifests.iter().map(namespace).collect();
        names.push(pki::HOOK_NAMESPACE);
        names.push("default");
        names.sort_unstable();
        names.dedup();
        for space in names.into_iter().filter(|name| !name.is_empty()) {
            let described =
                manifests.iter().find(|one| kind(one) == "Namespace" && name(one) == space);
            let labels = described.and_then(|one| one.pointer("/metadata/labels")?.as_object());
            let mut labels = labels.cloned().unwrap_or_default();
            if space != pki::HOOK_NAMESPACE {
                labels.entry(keys::IN_PLACE).or_insert_with(|| "enabled".into());
            }
            let body = json!({
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": space, "labels": labels},
            });
            match api.send(Call::create("/api/v1/namespaces", body)).await {
                Err(error) if error.code() == Some(409) => {
                    let body = json!({"metadata": {"labels": labels}});
                    let path = format!("/api/v1/namespaces/{space}");
                    api.send(Call::merge(path, body)).await?;
                }
                outcome => {
                    outcome?;
                }
            }
        }
        Ok(())
    }

    /// Creates the objects of a Refit installation: Service, certificate, ExtensionConfig and the policy that holds
    /// replacements.
    async fn install(&self, api: &Direct) -> Result<(), WorldError> {
        let hook = &self.inner.hook_identity;
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": pki::HOOK_SECRET, "namespace": pki::HOOK_NAMESPACE},
            "stringData": {
                "ca.crt": hook.ca.cert(),
                "tls.crt": hook.server.cert(),
                "tls.key": hook.server.key(),
            },
        });
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": pki::HOOK_SERVICE, "namespace": pki::HOOK_NAMESPACE},
            "spec": {"ports": [{"port": pki::HOOK_PORT}]},
        });
        let base = format!("/api/v1/namespaces/{}", pki::HOOK_NAMESPACE);
        api.send(Call::create(format!("{base}/secrets"), secret)).await?;
        api.send(Call::create(format!("{base}/services"), service)).await?;
        let source = format!("{}/{}", pki::HOOK_NAMESPACE, pki::HOOK_SECRET);
        let extension = json!({
            "apiVersion": "runtime.cluster.x-k8s.io/v1beta2",
            "kind": "ExtensionConfig",
            "metadata": {
                "name": "refit",
                "annotations": {keys::INJECT_CA_FROM_SECRET: source},
            },
            "spec": {
                "clientConfig": {"service": {
                    "namespace": pki::HOOK_NAMESPACE,
                    "name": pki::HOOK_SERVICE,
                    "port": pki::HOOK_PORT,
                }},
                "namespaceSelector": {"matchLabels": {keys::IN_PLACE: "enabled"}},
            },
        });
        let path = "/apis/runtime.cluster.x-k8s.io/v1beta2/extensionconfigs";
        api.send(Call::create(path, extension)).await?;
        let mut policies = manifests(&[Part::Rbac], &Choices::default());
        policies.retain(|manifest| manifest.path.starts_with("holds/"));
        for policy in objects(&policies) {
            let path = collection(&self.inner.management, &policy).expect("the kinds are built in");
            api.send(Call::create(path, policy)).await?;
        }
        Ok(())
    }
}

#[cfg(feature = "sabotage")]
impl World {
    /// Removes the admission policies of the installation.
    pub(crate) async fn remove_policies(&self) -> Result<(), crate::direct::DirectError> {
        let api = Direct::new(self.inner.management.clone(), USER);
        for plural in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
            let group = "admissionregistration.k8s.io";
            for object in self.inner.management.list_values(group, plural, None) {
                api.send(Call::delete(format!("/apis/{group}/v1/{plural}/{}", name(&object))))
                    .await?;
            }
        }
        Ok(())
    }
}

/// Path of the collection that an object belongs to; `None` if no API serves its kind.
pub(crate) fn collection(server: &ApiServer, object: &Value) -> Option<String> {
    let api_version = text(object, "/apiVersion");
    let kind = text(object, "/kind");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let base =
        if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{api_version}") };
    let (plural, namespaced) =
        defined(server, group, kind).or_else(|| built_in(group, version, kind))?;
    Some(if namespaced {
        format!("{base}/namespaces/{}/{plural}", namespace(object))
    } else {
        format!("{base}/{plural}")
    })
}

/// Plural of a kind that a CRD defines, and whether the kind is namespaced.
fn defined(server: &ApiServer, group: &str, kind: &str) -> Option<(String, bool)> {
    let definitions = server.list_values("apiextensions.k8s.io", "customresourcedefinitions", None);
    let found = definitions
        .iter()
        .find(|crd| text(crd, "/spec/group") == group && text(crd, "/spec/names/kind") == kind)?;
    let namespaced = text(found, "/spec/scope") == "Namespaced";
    Some((text(found, "/spec/names/plural").to_owned(), namespaced))
}

/// Plural of a built-in kind, and whether the kind is namespaced.
fn built_in(group: &str, version: &str, kind: &str) -> Option<(String, bool)> {
    let registry = Registry::builtin();
    let resource = registry.all().find(|resource| {
        *resource.group == *group && *resource.version == *version && *resource.kind == *kind
    })?;
    Some((resource.plural.to_string(), resource.namespaced))
}

/// The parts that [`Inner`] is assembled from.
struct Parts {
    clock: Clock,
    management: ApiServer,
    management_identity: Identity,
    hook_identity: Identity,
    env: EnvState,
    incarnations: BTreeMap<Actor, u32>,
    authentication: Authentication,
}

/// Cluster API's defaulting webhooks, for objects applied while the world runs. The initial
/// manifests are already defaulted.
fn webhook() -> Webhook {
    Arc::new(lab_cluster_api_shell::defaults::default_object)
}

/// Key that signs ServiceAccount tokens. It is derived from the authority's key, so that tokens
/// stay valid in a restored world, as certificates do.
fn signing_key(management: &Identity) -> Vec<u8> {
    management.ca.derive("service accounts")
}

impl Parts {
    fn assemble(self, options: &WorldOptions) -> Result<Inner, WorldError> {
        tls::install_provider();
        // The back-off of a provider's watch has jitter. All of a world runs in this thread.
        fastrand::seed(options.seed);
        self.management.faults().exempt(USER);
        let woken = Arc::new(Notify::new());
        let others = [
            (Actor::Updater, options.updater),
            (Actor::Provider, options.provider),
            (Actor::VersionProvider, options.version_provider),
            (Actor::CanonicalControllers, options.canonical_controllers),
        ]
        .into_iter();
        Ok(Inner {
            hook_client: match &options.enforced {
                Some(_) => enforced::hook_client(self.management.clone()),
                None => HookClient::of(&self.hook_identity)?,
            },
            clock: self.clock,
            seed: options.seed,
            #[cfg(feature = "sabotage")]
            without: options.without,
            journal: options.journal,
            two_controllers: options.two_controllers,
            others: others.filter_map(|(actor, runs)| runs.then_some(actor)).collect(),
            misbehaviour: Mutex::default(),
            prometheus: Prometheus::default(),
            receivers: options.receivers.then(Receivers::new).transpose()?,
            update_server: UpdateServer::default(),
            alertmanager: Alertmanager::default(),
            lease_retry: options.lease_retry,
            leaders: Leaders::default(),
            hurry: options.hurry.max(1),
            enforced: options.enforced.clone(),
            apis: tokio::sync::watch::Sender::default(),
            settings: options.settings.clone(),
            plan_keys: options.plan_keys.clone(),
            network: MemoryNetwork::default(),
            management_mirror: Mirror::follow(
                &self.management,
                management_resources,
                woken.clone(),
            )
            .noting_changes(),
            hub: Hub::new(self.management.clone(), woken.clone()),
            management: self.management,
            authentication: self.authentication,
            management_identity: self.management_identity,
            hook_identity: self.hook_identity,
            workloads: Mutex::default(),
            env: Mutex::new(self.env),
            hosts: Arc::default(),
            signing_requests: Mutex::default(),
            processes: Mutex::default(),
            incarnations: Mutex::new(self.incarnations),
            clock_steps: Mutex::default(),
            woken,
            checker: Checker::default(),
            tasks: Mutex::default(),
        })
    }
}

/// Seed of a workload cluster's API server.
pub(crate) fn cluster_seed(seed: u64, cluster: &str) -> u64 {
    seed.wrapping_add(crate::env::spread(cluster, u64::from(u32::MAX)))
}

impl Inner {
    /// How the API server of a workload cluster is set up.
    pub(crate) fn workload_options(&self, key: &str) -> Options {
        let authentication = match &self.enforced {
            Some(enforced) => enforced.workload(&signing_key(&self.management_identity)),
            None => self.authentication.clone(),
        };
        Options { authentication, ..server_options(self.clock, cluster_seed(self.seed, key)) }
    }

    /// Serves an API on the in-memory network.
    pub(crate) fn serve(
        &self,
        host: &str,
        port: u16,
        server: &ApiServer,
        identity: &Identity,
    ) -> Result<AbortHandle, WorldError> {
        let tls = tls::server_config(identity.server.reloadable()?)?;
        let listener = self.network.listen(host, port);
        let service = if self.enforced.is_some() {
            crate::http::Served::enforced(server.clone(), host == pki::MANAGEMENT_HOST)
        } else {
            crate::http::Served::inside(server.clone())
        };
        Ok(self.spawn(serve::serve(listener, Some(tls), service, std::future::pending())))
    }

    /// Creates the workload cluster of an API server.
    pub(crate) fn workload_of(&self, key: &str, server: ApiServer, identity: Identity) -> Workload {
        server.faults().exempt(USER);
        let mirror = Mirror::follow(&server, workload_resources, self.woken.clone());
        self.checker.follow_workload(key, &server);
        if self.two_controllers {
            self.leaders.follow_workload(&server);
        }
        server.serve_ports(k8sd_ports(key, self.hosts.clone(), self.clock));
        Workload { server, identity, mirror, serving: None }
    }
}

/// The ports of the `k8sd-proxy` pods of a cluster, while the kubelets of their nodes run.
fn k8sd_ports(cluster: &str, hosts: Hosts, clock: Clock) -> PortHandler {
    let cluster = cluster.to_owned();
    Box::new(move |pod, port| {
        let host = lock(&hosts).get(&host_key(&cluster, &pod.node)).cloned()?;
        let reached = port == K8SD_PORT && pod.name.starts_with(K8SD_PROXY);
        let runs = reached && lock(&host.state).kubelet_up(clock.now());
        host.k8sd.filter(|_| runs)?.connect()
    })
}

/// Creates the Secrets through which a workload cluster is reachable.
pub(crate) fn cluster_secrets(key: &str, host: &str, port: u16, identity: &Identity) -> Vec<Call> {
    let (namespace, cluster) = key.split_once('/').unwrap_or(("default", key));
    let secret = |suffix: &str, data: Value| {
        let body = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "cluster.x-k8s.io/secret",
            "metadata": {
                "name": format!("{cluster}-{suffix}"),
                "namespace": namespace,
                "labels": {keys::CLUSTER_NAME: cluster},
            },
            "stringData": data,
        });
        Call::create(format!("/api/v1/namespaces/{namespace}/secrets"), body)
    };
    let ca = json!({"tls.crt": identity.ca.cert(), "tls.key": identity.ca.key()});
    let kubeconfig = pki::kubeconfig(cluster, host, port, &identity.ca);
    vec![secret("ca", ca), secret("kubeconfig", json!({"value": kubeconfig}))]
}
