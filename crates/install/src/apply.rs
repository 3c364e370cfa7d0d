//! Applies the objects of an installation, with server-side apply and in order.

use std::{fmt, time::Duration};

use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use refit_kinds::{
    json::{kind, name, text},
    keys,
};
use serde_json::Value;

/// Timeout for a CustomResourceDefinition to be served.
const ESTABLISHED_WITHIN: Duration = Duration::from_mins(1);
/// How often a CustomResourceDefinition is polled.
const LOOK: Duration = Duration::from_millis(500);

/// Why an installation stopped. Objects applied before stay; another run continues.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The object has no kind or no name.
    #[error("an object has no {0}")]
    Incomplete(&'static str),
    /// The API server does not serve ExtensionConfigs.
    #[error(
        "the cluster serves no ExtensionConfigs: install Cluster API v1.12 or newer with the \
         feature gates RuntimeSDK and InPlaceUpdates (docs/install.md), then run this again"
    )]
    NoClusterApi,
    /// Cluster API's webhook rejects ExtensionConfigs.
    #[error(
        "Cluster API rejects the ExtensionConfig ({message}); enable the feature gates RuntimeSDK \
         and InPlaceUpdates for its core and control plane managers (docs/install.md)"
    )]
    Gate {
        /// Message of the webhook.
        message: String,
    },
    /// The API server rejects an object.
    #[error("cannot apply {object}: {source}{}", hint(source))]
    Refused {
        /// The object.
        object: String,
        /// The cause.
        source: Box<kube::Error>,
    },
    /// A CustomResourceDefinition is not served in time.
    #[error(
        "applied {object}, but the API server did not serve it within {} s: {reason}",
        ESTABLISHED_WITHIN.as_secs()
    )]
    NotEstablished {
        /// The object.
        object: String,
        /// Message of its conditions.
        reason: String,
    },
}

fn hint(error: &kube::Error) -> &'static str {
    if matches!(error, kube::Error::Api(status) if status.code == 403) {
        "; an installation needs the rights of a cluster administrator"
    } else {
        ""
    }
}

/// What an apply changed in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectChange {
    /// The object was created.
    Created,
    /// The object was changed.
    Updated,
    /// The object was the same already.
    Unchanged,
}

impl fmt::Display for ObjectChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
        })
    }
}

/// One object that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// `kind.group/name`, in lower case as in kubectl.
    pub object: String,
    /// What the apply changed.
    pub change: ObjectChange,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.object, self.change)
    }
}

/// Applies objects in order with Refit's field manager, and reports each of them. Waits for each
/// CustomResourceDefinition until it is served.
pub async fn apply(
    client: &Client,
    objects: &[Value],
    mut report: impl FnMut(&Applied),
) -> Result<(), InstallError> {
    for object in objects {
        let applied = apply_one(client, object).await?;
        report(&applied);
    }
    for object in objects {
        if object["kind"] == "CustomResourceDefinition" {
            wait_established(client, object).await?;
        }
    }
    Ok(())
}

/// The API of an object's kind, and the object's name in messages.
fn api_of(client: &Client, object: &Value) -> Result<(Api<DynamicObject>, String), InstallError> {
    let (kind, name) = (kind(object), name(object));
    if kind.is_empty() {
        return Err(InstallError::Incomplete("kind"));
    }
    if name.is_empty() {
        return Err(InstallError::Incomplete("name"));
    }
    let api_version = text(object, "/apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let gvk = GroupVersionKind::gvk(group, version, kind);
    let resource = ApiResource::from_gvk(&gvk);
    let shown = if group.is_empty() {
        format!("{}/{name}", kind.to_lowercase())
    } else {
        format!("{}.{group}/{name}", kind.to_lowercase())
    };
    let api = match text(object, "/metadata/namespace") {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    Ok((api, shown))
}

async fn apply_one(client: &Client, object: &Value) -> Result<Applied, InstallError> {
    let (api, shown) = api_of(client, object)?;
    let refused = |source| refusal(&shown, object, source);
    let name = name(object);
    let before = api.get_opt(name).await.map_err(refused)?;
    let params = PatchParams::apply(keys::MANAGER).force();
    let after = api.patch(name, &params, &Patch::Apply(object)).await;
    let after = after.map_err(refused)?;
    let change = match before {
        None => ObjectChange::Created,
        Some(before) if before.resource_version() == after.resource_version() => {
            ObjectChange::Unchanged
        }
        Some(_) => ObjectChange::Updated,
    };
    Ok(Applied { object: shown, change })
}

fn refusal(shown: &str, object: &Value, source: kube::Error) -> InstallError {
    if object["kind"] == "ExtensionConfig"
        && let kube::Error::Api(status) = &source
    {
        if status.code == 404 {
            return InstallError::NoClusterApi;
        }
        if status.message.contains("RuntimeSDK") {
            return InstallError::Gate { message: status.message.clone() };
        }
    }
    InstallError::Refused { object: shown.to_owned(), source: Box::new(source) }
}

async fn wait_established(client: &Client, object: &Value) -> Result<(), InstallError> {
    let (api, shown) = api_of(client, object)?;
    let name = name(object);
    let mut reason = String::new();
    let waiting = async {
        loop {
            let found = api.get_opt(name).await?;
            let conditions = found.and_then(|found| {
                let conditions = found.data["status"]["conditions"].as_array();
                conditions.cloned()
            });
            let conditions = conditions.unwrap_or_default();
            if conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True") {
                return Ok(());
            }
            let not_true = conditions.iter().filter(|c| c["status"] != "True");
            let messages: Vec<&str> = not_true.map(|c| text(c, "/message")).collect();
            reason = messages.join("; ");
            tokio::time::sleep(LOOK).await;
        }
    };
    match tokio::time::timeout(ESTABLISHED_WITHIN, waiting).await {
        Ok(outcome) => outcome.map_err(|source| refusal(&shown, object, source)),
        Err(_) => Err(InstallError::NotEstablished { object: shown, reason }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lab_apiserver::{ApiServer, Options};

    use super::*;
    use crate::manifests::{Choices, Part, manifests, objects};

    fn cluster() -> (ApiServer, Client) {
        let options = Options::new(Arc::new(|| jiff::Timestamp::UNIX_EPOCH));
        let server = ApiServer::new(options);
        let client = Client::new(server.clone(), "default");
        (server, client)
    }

    fn all() -> Vec<Value> {
        objects(&manifests(&Part::MANAGEMENT, &Choices::default()))
    }

    async fn run(client: &Client, objects: &[Value]) -> (Vec<Applied>, Option<InstallError>) {
        let mut applied = Vec::new();
        let outcome = apply(client, objects, |one| applied.push(one.clone())).await;
        (applied, outcome.err())
    }

    #[tokio::test(start_paused = true)]
    async fn without_cluster_api_all_but_the_extension_is_applied() {
        let (server, client) = cluster();
        let (applied, error) = run(&client, &all()).await;
        assert!(matches!(error, Some(InstallError::NoClusterApi)), "{error:?}");
        assert_eq!(applied.len(), all().len() - 1);
        assert!(applied.iter().all(|one| one.change == ObjectChange::Created));
        assert!(
            server.get_value("apps", "deployments", "refit-system", "refit-controller").is_some()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_apply_reports_only_differences() {
        let (server, client) = cluster();
        let crds: Vec<Value> = refit_cluster_api::crds()
            .iter()
            .map(|crd| serde_json::to_value(crd).unwrap())
            .collect();
        let (_, error) = run(&client, &crds).await;
        assert!(error.is_none(), "{error:?}");
        let (_, error) = run(&client, &all()).await;
        assert!(error.is_none(), "{error:?}");
        let revision = server.revision();
        let (applied, _) = run(&client, &all()).await;
        assert!(applied.iter().all(|one| one.change == ObjectChange::Unchanged));
        assert_eq!(server.revision(), revision);
        let choices = Choices { replicas: 3, ..Choices::default() };
        let more = objects(&manifests(&Part::MANAGEMENT, &choices));
        let (applied, _) = run(&client, &more).await;
        let changed: Vec<String> = applied
            .iter()
            .filter(|one| one.change != ObjectChange::Unchanged)
            .map(ToString::to_string)
            .collect();
        assert_eq!(changed, ["deployment.apps/refit-controller updated"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_agents_part_is_complete_by_itself() {
        let (_, client) = cluster();
        let agent = objects(&manifests(&[Part::Agent], &Choices::default()));
        let (applied, error) = run(&client, &agent).await;
        assert!(error.is_none(), "{error:?}");
        assert_eq!(applied.len(), agent.len());
    }
}
