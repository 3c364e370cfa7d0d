//! Calls of the hook server from outside.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use refit_kinds::json::text;
use refit_runtime::client::HttpsPoster;
use serde_json::Value;

use super::World;
use crate::pki;

/// How long a caller waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

impl World {
    /// Posts to the hook server with the certificate of Cluster API's managers; returns the status and the answer.
    pub async fn call_hook_server(&self, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
        let stack = self.inner.stack("refit-hook-call");
        let url = format!("https://{}:{}{path}", pki::HOOK_HOST, pki::HOOK_PORT);
        let extension = self.management().get_value(
            "runtime.cluster.x-k8s.io",
            "extensionconfigs",
            "",
            "refit",
        );
        let bundle = extension.as_ref().map_or("", |one| text(one, "/spec/clientConfig/caBundle"));
        let ca = STANDARD.decode(bundle)?;
        let identity = Some(self.inner.hook_client.identity.clone());
        let poster = HttpsPoster::presenting(&stack, &ca, identity)?;
        let (status, answer) = poster.post(&url, body.to_string().into_bytes(), TIMEOUT).await?;
        Ok((status, serde_json::from_slice(&answer).unwrap_or_default()))
    }
}
