//! Shows requests for objects to observers, to count them by client and field manager.

use std::sync::{Mutex, PoisonError};

use crate::error::ApiError;
use crate::store::Store;
use crate::verbs::Call;

/// A request that reached the server, other than a dry run.
#[derive(Debug, Clone, Copy)]
pub struct ObservedRequest<'a> {
    /// User agent of the client.
    pub user_agent: &'a str,
    /// Kubernetes verb, `get` to `deletecollection`; `apply` for a server-side apply.
    pub verb: &'a str,
    /// Whether it lists a further page of what an earlier request lists.
    pub is_further_page: bool,
    /// Kind of the object; its plural if the server does not know the kind.
    pub kind: &'a str,
    /// Subresource, or `""`.
    pub subresource: &'a str,
    /// Field manager: that of the query, or the one that the server derives from the user agent.
    pub manager: &'a str,
    /// HTTP status code with which the server rejected it.
    pub rejected: Option<u16>,
    /// Name of the object in the path, or `""`.
    pub name: &'a str,
    /// The request's body.
    pub body: &'a [u8],
}

impl ObservedRequest<'_> {
    /// Whether it changes nothing.
    pub fn is_read(&self) -> bool {
        ["get", "list", "watch"].contains(&self.verb)
    }
}

/// Called after a request, or after the begin of a watch; must not call the server.
pub type RequestObserver = Box<dyn FnMut(&ObservedRequest<'_>) + Send>;

/// The observers of a server.
#[derive(Default)]
pub(crate) struct Requests(Mutex<Vec<RequestObserver>>);

impl Requests {
    pub(crate) fn observe(&self, observer: RequestObserver) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(observer);
    }

    pub(crate) fn show(&self, store: &Mutex<Store>, call: &Call, error: Option<&ApiError>) {
        let mut observers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_dry_run = !call.query.get("dryRun").is_empty();
        if observers.is_empty() || call.verb.is_empty() || is_dry_run {
            return;
        }
        let registry = store.lock().unwrap_or_else(PoisonError::into_inner).registry.clone();
        let resource = registry.stored(&call.target.resource());
        let applies = call.verb == "patch" && call.head.content_type.contains("apply-patch");
        let user_agent = &call.head.user_agent;
        let manager = match call.query.get("fieldManager") {
            "" => user_agent.split('/').next().unwrap_or_default(),
            manager => manager,
        };
        let request = ObservedRequest {
            user_agent,
            verb: if applies { "apply" } else { call.verb },
            is_further_page: call.verb == "list" && !call.query.get("continue").is_empty(),
            kind: resource.map_or(&call.target.plural, |resource| &resource.kind),
            subresource: &call.target.subresource,
            manager,
            rejected: error.map(|error| error.code),
            name: call.target.name.as_deref().unwrap_or_default(),
            body: &call.body,
        };
        for observer in observers.iter_mut() {
            observer(&request);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
    use serde_json::json;

    use super::*;
    use crate::{ApiServer, Options};

    #[tokio::test]
    async fn observers_get_each_request_with_its_outcome() {
        let noon = "2026-01-01T12:00:00Z".parse().unwrap();
        let server = ApiServer::new(Options::new(Arc::new(move || noon)));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = seen.clone();
        server.observe_requests(Box::new(move |request| {
            let ObservedRequest { verb, kind, manager, rejected, .. } = *request;
            sink.lock().unwrap().push(format!("{verb} {kind} {manager:?} {rejected:?}"));
        }));
        let maps = Api::<ConfigMap>::default_namespaced(kube::Client::new(server, "default"));
        let map = ConfigMap {
            metadata: kube::api::ObjectMeta { name: Some("m".to_owned()), ..Default::default() },
            ..ConfigMap::default()
        };
        maps.create(&PostParams::default(), &map).await.unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap_err();
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        maps.create(&dry_run, &map).await.unwrap_err();
        maps.list(&ListParams::default()).await.unwrap();
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}});
        maps.patch("m", &PatchParams::apply("me"), &Patch::Apply(&body)).await.unwrap();
        let expected = [
            r#"create ConfigMap "" None"#,
            r#"create ConfigMap "" Some(409)"#,
            r#"list ConfigMap "" None"#,
            r#"apply ConfigMap "me" None"#,
        ];
        assert_eq!(*seen.lock().unwrap(), expected);
    }
}
