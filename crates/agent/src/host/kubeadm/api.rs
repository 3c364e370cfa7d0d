//! The API server that kubeadm calls.

use std::{path::Path, time::Duration};

use http::Request;
use refit_kinds::refit::Role;
use refit_runtime::{client::ClientStack, process::cluster};

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
    let path = site.path(kubeconfig(role));
    if !path.exists() || is_ready(&path).await {
        return;
    }
    site.log("waiting until the API server is ready");
    let settled = async {
        let mut seen = 0;
        while seen < SETTLED {
            tokio::time::sleep(POLL).await;
            seen = if is_ready(&path).await { seen + 1 } else { 0 };
        }
    };
    if tokio::time::timeout(patience, settled).await.is_err() {
        site.log(&format!("the API server was not ready within {} s", patience.as_secs()));
    }
}

async fn is_ready(kubeconfig: &Path) -> bool {
    let Ok(config) = cluster(Some(kubeconfig), None).await else {
        return false;
    };
    let stack = ClientStack::production(concat!("refit-agent/", env!("CARGO_PKG_VERSION")));
    let Ok(client) = stack.with_deadline(DEADLINE).client(&config) else {
        return false;
    };
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
        // Without a kubeconfig there is nothing to wait for.
        wait(&site, Role::Worker, Duration::from_hours(9)).await;
        let path = site.path(kubeconfig(Role::ControlPlane));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "no kubeconfig").unwrap();
        wait(&site, Role::ControlPlane, Duration::from_millis(10)).await;
    }
}
