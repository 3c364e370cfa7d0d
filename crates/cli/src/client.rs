//! Access to a cluster: chooses the cluster, builds a client for it, and explains errors.

use std::{
    error::Error as _,
    fmt::Debug,
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use kube::{
    Api, Client, Config, Resource,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
    core::NamespaceResourceScope,
};
use refit_runtime::{Clock, client::ClientStack};
use serde::de::DeserializeOwned;

use crate::global::{GlobalArgs, program};

/// Page size of a list: small enough for fast responses, large enough for few requests.
const PAGE: u32 = 500;
/// API group of Refit's own kinds.
const OUR_GROUP: &str = "refit.dev";

/// The cluster that a command works on.
#[derive(Clone)]
pub(crate) struct Cluster {
    /// A client with deadlines on every call, and no retries of its own.
    pub(crate) client: Client,
    /// The requested namespace, or that of the context.
    pub(crate) namespace: String,
    /// URL of the API server.
    pub(crate) url: String,
    /// Clock of this host.
    pub(crate) clock: Clock,
}

/// Finds the cluster that flags and environment select, and builds a client for it. It sends no
/// request, but a credential plugin of the kubeconfig may run.
pub(crate) async fn connect(global: &GlobalArgs) -> anyhow::Result<Cluster> {
    let config = config(global).await?;
    if config.proxy_url.is_some() {
        bail!(
            "the kubeconfig sets a proxy for {}, but Refit calls API servers directly; run it \
             where the API server is reachable, or remove proxy-url from the kubeconfig",
            config.cluster_url
        );
    }
    let stack = ClientStack::production(concat!("refit-cli/", env!("CARGO_PKG_VERSION")));
    let url = config.cluster_url.to_string();
    let client = stack.client(&config).with_context(|| {
        format!("invalid credentials for {url}; check the user of this context")
    })?;
    let namespace = global.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    Ok(Cluster {
        client,
        namespace,
        url: url.trim_end_matches('/').to_owned(),
        clock: Clock::real(),
    })
}

async fn config(global: &GlobalArgs) -> anyhow::Result<Config> {
    let Some(kubeconfig) = kubeconfig(global)? else {
        if global.context.is_none() && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
            return Config::incluster()
                .context("cannot use the pod's service account; mount its token");
        }
        bail!(
            "no kubeconfig: ~/.kube/config does not exist, and KUBECONFIG is not set. Set \
             --kubeconfig FILE, or start a simulated cluster with `{} sandbox`",
            program()
        );
    };
    let contexts: Vec<String> = kubeconfig.contexts.iter().map(|c| c.name.clone()).collect();
    let list = match contexts.as_slice() {
        [] => "no contexts".to_owned(),
        names => format!("contexts: {}", names.join(", ")),
    };
    let wanted = global
        .context
        .clone()
        .or_else(|| kubeconfig.current_context.clone())
        .filter(|name| !name.is_empty());
    let Some(wanted) = wanted else {
        bail!("the kubeconfig has no current context; select one with --context ({list})");
    };
    if !contexts.contains(&wanted) {
        bail!("the kubeconfig has no context {wanted:?}; {list}");
    }
    let options =
        KubeConfigOptions { context: Some(wanted.clone()), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .with_context(|| format!("invalid context {wanted:?} in the kubeconfig"))
}

/// Loads the selected kubeconfig; returns `None` if no file exists.
fn kubeconfig(global: &GlobalArgs) -> anyhow::Result<Option<Kubeconfig>> {
    if let Some(path) = &global.kubeconfig {
        return Ok(Some(read(path)?));
    }
    let named = std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty());
    let paths: Vec<PathBuf> = match &named {
        Some(value) => {
            std::env::split_paths(value).filter(|path| !path.as_os_str().is_empty()).collect()
        }
        None => std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect(),
    };
    // Like kubectl: the list may contain files that do not exist.
    let there: Vec<&PathBuf> = paths.iter().filter(|path| path.exists()).collect();
    if there.is_empty() {
        return match (named.is_some(), paths.first()) {
            (true, Some(path)) => {
                bail!("KUBECONFIG names {}, which does not exist", path.display())
            }
            _ => Ok(None),
        };
    }
    there
        .into_iter()
        .try_fold(Kubeconfig::default(), |merged, path| {
            let next = read(path)?;
            merged
                .merge(next)
                .with_context(|| format!("{} conflicts with the previous files", path.display()))
        })
        .map(Some)
}

fn read(path: &Path) -> anyhow::Result<Kubeconfig> {
    if !path.exists() {
        bail!("kubeconfig {} does not exist", path.display());
    }
    Kubeconfig::read_from(path)
        .with_context(|| format!("cannot read the kubeconfig {}", path.display()))
}

impl Cluster {
    /// Returns the API of a kind in one namespace, or in all of them.
    pub(crate) fn api<K>(&self, namespace: Option<&str>) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// Returns the API of a kind in the requested namespace.
    pub(crate) fn here<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        self.api(Some(&self.namespace))
    }

    /// Gets an object by name; returns `None` if it does not exist.
    pub(crate) async fn get<K>(&self, name: &str) -> anyhow::Result<Option<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        match self.here::<K>().get(name).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if is_no_such_name(&status) => Ok(None),
            Err(error) => Err(self.explain(error, &attempt::<K>("get"))),
        }
    }

    /// Lists all objects of a kind that match `selector`, page by page.
    pub(crate) async fn list<K>(&self, api: &Api<K>, selector: &str) -> anyhow::Result<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let mut objects = Vec::new();
        let mut params = ListParams::default().limit(PAGE);
        if !selector.is_empty() {
            params = params.labels(selector);
        }
        loop {
            let page = api
                .list(&params)
                .await
                .map_err(|error| self.explain(error, &attempt::<K>("list")))?;
            objects.extend(page.items);
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => params = params.continue_token(&next),
                None => return Ok(objects),
            }
        }
    }

    /// Explains why `attempt` failed and what to do about it.
    pub(crate) fn explain(&self, error: kube::Error, attempt: &Attempt) -> anyhow::Error {
        if let kube::Error::Api(status) = &error {
            self.refused(status, attempt)
        } else if matches!(error, kube::Error::Service(_) | kube::Error::HyperError(_)) {
            self.unreachable(&error)
        } else {
            anyhow::Error::new(error).context(format!("cannot {attempt} at {}", self.url))
        }
    }

    fn refused(&self, status: &kube::core::Status, attempt: &Attempt) -> anyhow::Error {
        let message = status.message.trim_end_matches('.');
        match status.code {
            401 => anyhow!(
                "{} rejects the credentials of this context ({message}); log in again, or select \
                 another context with --context",
                self.url
            ),
            403 => anyhow!(
                "you are not allowed to {attempt}: {message}. Request the permission; `kubectl \
                 auth can-i {} {}` checks it",
                attempt.verb,
                attempt.resource()
            ),
            404 if !is_no_such_name(status) && attempt.group == OUR_GROUP => anyhow!(
                "{} does not serve {}: Refit is not installed there. Install it with `{} install`",
                self.url,
                attempt.resource(),
                program()
            ),
            404 if !is_no_such_name(status) => anyhow!(
                "{} does not serve {} {}: Cluster API of that version is not installed there. \
                 Check that this is the management cluster; --context selects another",
                self.url,
                attempt.resource(),
                attempt.version
            ),
            _ => anyhow!("cannot {attempt} at {}: {message}", self.url),
        }
    }

    fn unreachable(&self, error: &kube::Error) -> anyhow::Error {
        let url = &self.url;
        let mut causes = Vec::new();
        let mut next = error.source();
        while let Some(cause) = next {
            causes.push(cause.to_string());
            if let Some(io) = cause.downcast_ref::<io::Error>()
                && io.kind() == io::ErrorKind::ConnectionRefused
            {
                return anyhow!(
                    "{url} refuses connections: no API server listens there. Start it, or select \
                     another cluster with --context or --kubeconfig"
                );
            }
            next = cause.source();
        }
        causes.dedup();
        let reason = causes.last().cloned().unwrap_or_else(|| error.to_string());
        if reason.contains("certificate") {
            return anyhow!(
                "cannot establish a trusted connection to {url}: {reason}. The kubeconfig may \
                 belong to a previous cluster at that address"
            );
        }
        anyhow!(
            "cannot reach {url}: {reason}. Check the network, or select another cluster with \
             --context"
        )
    }
}

/// A call to an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    verb: &'static str,
    plural: String,
    group: String,
    version: String,
    name: String,
}

impl Attempt {
    /// Returns the resource in kubectl's notation.
    fn resource(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }
}

impl std::fmt::Display for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.resource())?;
        if self.name.is_empty() { Ok(()) } else { write!(f, " {}", self.name) }
    }
}

/// A call on the resource of a kind, with kubectl's verb.
pub(crate) fn attempt<K: Resource<DynamicType = ()>>(verb: &'static str) -> Attempt {
    attempt_on::<K>(verb, "")
}

/// A call on one object, with kubectl's verb.
pub(crate) fn attempt_on<K: Resource<DynamicType = ()>>(verb: &'static str, name: &str) -> Attempt {
    Attempt {
        verb,
        plural: K::plural(&()).into_owned(),
        group: K::group(&()).into_owned(),
        version: K::version(&()).into_owned(),
        name: name.to_owned(),
    }
}

/// Reports whether a 404 is about the object; otherwise it is about the kind.
fn is_no_such_name(status: &kube::core::Status) -> bool {
    status.code == 404 && status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

#[cfg(test)]
mod tests {
    use kube::core::{Status, response::StatusDetails};
    use refit_cluster_api::kinds::Machine;
    use refit_kinds::refit::NodeUpdate;

    use super::*;

    fn cluster() -> Cluster {
        refit_runtime::tls::install_provider();
        let url = "https://127.0.0.1:6443";
        let config = Config::new(url.parse().unwrap());
        let stack = ClientStack::production("test");
        Cluster {
            client: stack.client(&config).unwrap(),
            namespace: "default".into(),
            url: url.into(),
            clock: Clock::real(),
        }
    }

    fn explanation<K: Resource<DynamicType = ()>>(code: u16, name: &str) -> String {
        let status = Status {
            code,
            message: "because".into(),
            details: Some(StatusDetails {
                name: name.into(),
                group: String::new(),
                kind: String::new(),
                uid: String::new(),
                causes: Vec::new(),
                retry_after_seconds: 0,
            }),
            ..Status::failure("", "")
        };
        let error = kube::Error::Api(Box::new(status));
        cluster().explain(error, &attempt::<K>("list")).to_string()
    }

    #[tokio::test]
    async fn refusals_of_an_api_server_name_a_remedy() {
        assert!(explanation::<NodeUpdate>(404, "").contains("`refit install`"));
        assert!(explanation::<Machine>(404, "").contains("management cluster"));
        let forbidden = explanation::<Machine>(403, "");
        assert!(
            forbidden.contains("kubectl auth can-i list machines.cluster.x-k8s.io"),
            "{forbidden}"
        );
        assert!(explanation::<Machine>(401, "").contains("--context"));
        assert!(explanation::<Machine>(500, "").contains("because"));
    }

    #[tokio::test]
    async fn a_server_that_does_not_listen_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let url = format!("http://127.0.0.1:{port}");
        let mut cluster = cluster();
        let config = Config::new(url.parse().unwrap());
        cluster.client = ClientStack::production("test").client(&config).unwrap();
        cluster.url = url.clone();
        let error = cluster.get::<Machine>("m").await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("{url} refuses connections")), "{error}");
    }
}
