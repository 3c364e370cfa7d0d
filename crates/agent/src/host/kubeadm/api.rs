//! The API server that kubeadm calls.

use std::{path::Path, time::Duration};

use http::Request;
use kube::Client;
use refit_kinds::refit::Role;
use refit_runtime::client::ClientStack;

use crate::host::Site;

/// How long a control plane may need after a boot until its API server is ready. kubeadm itself gives up within a
/// minute.
pub(super) const PATIENCE: Duration = Duration::from_mins(5);
const POLL: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(5);
/// How many times in succession an API server that was not ready must be ready: its etcd may have just started.
const SETTLED: u32 = 5;

/// The kubeconfig with which kubeadm upgrades a host.
const fn kubeconfig(role: Role) -> &'static str {
    match role {
        Role::FirstControlPlane | Role::ControlPlane => "/etc/kubernetes/admin.conf",
        Role::Worker => "/etc/kubernetes/kubelet.conf",
    }
}

/// Waits until the API server is ready. Best effort: kubeadm reports what is wrong with a kubeconfig or an API server
/// that does not become ready.
pub(super) async fn wait(site: &Site, role: Role, patience: Duration) {
    let Some(client) = client(&site.path(kubeconfig(role))).await else {
        return;
    };
    if is_ready(&client).await {
        return;
    }
    site.log("waiting until the API server is ready");
    let settled = async {
        let mut seen = 0;
        while seen < SETTLED {
            tokio::time::sleep(POLL).await;
            seen = if is_ready(&client).await { seen + 1 } else { 0 };
        }
    };
    if tokio::time::timeout(patience, settled).await.is_err() {
        site.log(&format!("the API server was not ready within {} s", patience.as_secs()));
    }
}

/// A client with a kubeconfig; `None` if it does not exist or is unusable.
async fn client(kubeconfig: &Path) -> Option<Client> {
    let config = crate::kubeconfig::config(kubeconfig).await.ok()?;
    let stack = ClientStack::production(concat!("refit-agent/", env!("CARGO_PKG_VERSION")));
    stack.with_deadline(DEADLINE).client(&config).ok()
}

async fn is_ready(client: &Client) -> bool {
    match Request::get("/readyz").body(Vec::new()) {
        Ok(request) => client.request_text(request).await.is_ok(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn the_wait_for_an_api_server_ends() {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        let path = site.path(kubeconfig(Role::ControlPlane));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "no kubeconfig").unwrap();
        for role in [Role::Worker, Role::ControlPlane] {
            // There is no API server to wait for.
            wait(&site, role, Duration::from_hours(9)).await;
        }
        let away = "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n\
                    users: [{name: u, user: {token: t}}]\nclusters: [{name: c, cluster: {server: \"https://127.0.0.1:1\"}}]\n";
        fs::write(path, away).unwrap();
        wait(&site, Role::ControlPlane, Duration::from_millis(10)).await;
    }
}
