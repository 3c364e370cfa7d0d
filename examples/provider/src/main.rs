//! Runs the provider.

use std::io::Write as _;

use anyhow::Context as _;
use kube::Client;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // `memory-provider crds >crds.yaml` writes the definitions: JSON is YAML.
    if std::env::args().nth(1).as_deref() == Some("crds") {
        write!(std::io::stdout().lock(), "{}", memory_provider::crds()?)?;
        return Ok(());
    }
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a cryptography provider is installed already"))?;
    let client = Client::try_default().await.context("no Kubernetes cluster")?;
    memory_provider::run(client).await;
    Ok(())
}
