//! etcd and kube-apiserver on loopback.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::Context as _;
use http::Request;
use kube::Client;
use refit_runtime::client::ClientStack;

use crate::{
    certs::{Certs, NAMES},
    directory::free_port,
    parts::Parts,
    process::{Part, Program, go_env},
    wait::eventually,
};

/// How long both may take to become ready.
const READY: Duration = Duration::from_mins(2);

/// A running API server.
pub struct ApiServer {
    /// URL of the API server.
    pub url: String,
    /// A client with all rights.
    pub client: Client,
    /// The configuration of that client.
    pub config: kube::Config,
    _etcd: Part,
    _api_server: Part,
}

impl ApiServer {
    /// Starts both, and waits until the API server is ready. Writes `admin.kubeconfig` to
    /// `directory`.
    pub async fn start(parts: &Parts, certs: &Certs, directory: &Path) -> anyhow::Result<Self> {
        let store = format!("http://127.0.0.1:{}", free_port()?);
        let etcd = Part::start(etcd(parts, &store, directory)?, directory)?;
        let port = free_port()?;
        certs.write_server(&directory.join("kube-apiserver"))?;
        certs.write_signing_key(&directory.join("kube-apiserver"))?;
        let program = api_server(parts, &store, port, &directory.join("kube-apiserver"));
        let api_server = Part::start(program, directory)?;
        let url = format!("https://{}:{port}", NAMES[1]);
        let admins = ["system:masters"];
        certs.write_kubeconfig(&directory.join("admin.kubeconfig"), &url, "admin", &admins)?;
        let config = certs.config(&url, "admin", &admins).await?;
        let client = ClientStack::production("refit-testbed").client(&config)?;
        let ready = eventually("the API server becomes ready", READY, async || {
            let request = Request::get("/readyz").body(Vec::new());
            let request = request.map_err(|error| error.to_string())?;
            let response = client.request_text(request).await;
            response.map(|_| ()).map_err(|error| error.to_string())
        });
        tokio::select! {
            biased;
            why = etcd.over() => anyhow::bail!(why),
            why = api_server.over() => anyhow::bail!(why),
            ready = ready => ready.with_context(|| api_server.tail())?,
        }
        Ok(Self { url, client, config, _etcd: etcd, _api_server: api_server })
    }
}

fn etcd(parts: &Parts, url: &str, directory: &Path) -> anyhow::Result<Program> {
    let peer = format!("http://127.0.0.1:{}", free_port()?);
    Ok(Program {
        name: "etcd".to_owned(),
        path: parts.etcd.clone(),
        args: vec![
            format!("--data-dir={}", directory.join("etcd").display()),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--unsafe-no-fsync=true".to_owned(),
            "--log-level=warn".to_owned(),
        ],
        env: BTreeMap::new(),
        restart: false,
    })
}

fn api_server(parts: &Parts, store: &str, port: u16, directory: &Path) -> Program {
    let file = |name: &str| directory.join(name).display().to_string();
    Program {
        name: "kube-apiserver".to_owned(),
        path: parts.api_server.0.clone(),
        args: vec![
            format!("--etcd-servers={store}"),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--tls-cert-file={}", file("tls.crt")),
            format!("--tls-private-key-file={}", file("tls.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--kubelet-certificate-authority={}", file("ca.crt")),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", file("signing.crt")),
            format!("--service-account-signing-key-file={}", file("signing.key")),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--profiling=false".to_owned(),
        ],
        env: go_env("1GiB"),
        restart: false,
    }
}
