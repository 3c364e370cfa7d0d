//! Serves the updater over HTTPS.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use axum_server::tls_rustls::RustlsConfig;
use clap::Parser;
use kube::Client;

/// Change the memory of machines in place: the server of an Updater
#[derive(Debug, Parser)]
struct Args {
    /// Serve the hooks over HTTPS at this address
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    bind: SocketAddr,
    /// Use the certificate in this PEM file
    #[arg(long, value_name = "FILE", default_value = "/certs/tls.crt")]
    cert: PathBuf,
    /// Use the key in this PEM file
    #[arg(long, value_name = "FILE", default_value = "/certs/tls.key")]
    key: PathBuf,
}

/// How often the certificate is read again.
const RELOAD: Duration = Duration::from_mins(10);

/// Reads the certificate again, since it is renewed while the server runs.
async fn renewed(tls: RustlsConfig, cert: PathBuf, key: PathBuf) {
    loop {
        tokio::time::sleep(RELOAD).await;
        // While the files are being replaced, the certificate stays as it is.
        let _ = tls.reload_from_pem_file(&cert, &key).await;
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a cryptography provider is installed already"))?;
    let client = Client::try_default().await.context("no Kubernetes cluster")?;
    let tls = RustlsConfig::from_pem_file(&args.cert, &args.key).await.with_context(|| {
        format!("cannot use {} and {}", args.cert.display(), args.key.display())
    })?;
    tokio::spawn(renewed(tls.clone(), args.cert, args.key));
    let router = hook_updater::router(client).into_make_service();
    axum_server::bind_rustls(args.bind, tls).serve(router).await.context("cannot serve the hooks")
}
