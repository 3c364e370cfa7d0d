//! The verbs: from a parsed request to the store and the response.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::admission::{Operation, WriteRequest};
use crate::auth::Identity;
use crate::delete::{DeleteOptions, Deletion, parse_propagation, success};
use crate::error::ApiError;
use crate::patch::Patch;
use crate::path::{Head, ListOptions, Query, Target, View};
use crate::portforward::{Handshake, PortForward, Switch, identify, ports_of};
use crate::read::{render, render_value, selected};
use crate::resources::Resource;
use crate::scale::ScaleChange;
use crate::server::Shared;
use crate::store::{Store, key_of, name_of, namespace_of};
use crate::watch::{Watch, WatchRequest};
use crate::write::{Written, to_bytes, value_as};

/// One request for a resource.
pub(crate) struct Call {
    pub(crate) verb: &'static str,
    pub(crate) target: Target,
    pub(crate) query: Query,
    pub(crate) head: Head,
    pub(crate) body: Bytes,
    /// The caller.
    pub(crate) identity: Arc<Identity>,
    /// The requested switch to WebSocket, of a port-forward only.
    pub(crate) handshake: Option<Handshake>,
}

/// A response before it becomes HTTP.
pub(crate) enum Reply {
    Json(u16, Bytes),
    /// JSON with a specific content type.
    Typed(&'static str, Bytes),
    /// The result of a write, with warnings.
    Warned(u16, Bytes, Vec<String>),
    Text(u16, &'static str),
    Pieces(Vec<Bytes>),
    Watch(Box<Watch>),
    /// The connection becomes a WebSocket.
    Switch(Switch),
}

impl Reply {
    pub(crate) fn from_error(error: &ApiError) -> Self {
        Self::Json(error.code, to_bytes(&error.status()))
    }
}

const NO_PAGE: Reply = Reply::Text(404, "404 page not found\n");

/// Handles a request for a resource.
pub(crate) fn dispatch(shared: &Arc<Shared>, call: &Call) -> Result<Reply, ApiError> {
    let view = call.head.view(&call.query)?;
    let target = &call.target;
    if let Some(answer) = shared.review(call) {
        return answer.map(|review| Reply::Json(201, to_bytes(&review)));
    }
    let now = shared.now();
    let mut store = shared.lock();
    store.now = now;
    store.actor.clone_from(&call.head.user_agent);
    let found = store.registry.find(&target.group, &target.version, &target.plural).cloned();
    let Some(resource) = found else {
        return Ok(NO_PAGE);
    };
    let served = match target.subresource.as_str() {
        "" => true,
        "status" => resource.has_status,
        "eviction" => &*resource.id == "pods" && call.verb == "create",
        "scale" => resource.scale.is_some(),
        "attach" | "exec" | "log" | "portforward" | "proxy" => &*resource.id == "pods",
        _ => false,
    };
    let placed = match &target.namespace {
        Some(_) => resource.namespaced,
        None => !resource.namespaced || target.name.is_none(),
    };
    if !served || !placed {
        return Ok(NO_PAGE);
    }
    let handler = Handler { shared, resource: &resource, call, view };
    store.requester = Some(call.identity.clone());
    let reply = handler.handle(&mut store);
    store.requester = None;
    let reply = reply?;
    if !matches!(call.verb, "get" | "list" | "watch") {
        shared.written(&mut store, target);
    }
    Ok(reply)
}

fn read_json(body: &Bytes) -> Result<Value, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("cannot decode the request body: {error}")))
}

fn check_json(content_type: &str) -> Result<(), ApiError> {
    match content_type {
        "" | "application/json" | "*/*" => Ok(()),
        _ => Err(ApiError::unsupported_media_type("application/json")),
    }
}

struct Handler<'a> {
    shared: &'a Arc<Shared>,
    resource: &'a Arc<Resource>,
    call: &'a Call,
    view: View,
}

impl Handler<'_> {
    fn handle(&self, store: &mut Store) -> Result<Reply, ApiError> {
        let subresource = self.call.target.subresource.as_str();
        let on_object = !subresource.is_empty();
        match subresource {
            "portforward" if self.call.handshake.is_some() => return self.forward(store),
            "attach" | "exec" | "log" | "portforward" | "proxy" => {
                return Err(self.no_host(store));
            }
            "scale" => return self.scale(store),
            _ => {}
        }
        match self.call.verb {
            "get" => self.get(store),
            "list" | "watch" => self.list(store),
            "create" if self.call.target.subresource == "eviction" => self.evict(store),
            "create" if !on_object => self.create(store),
            "update" => self.update(store),
            "patch" => self.patch(store),
            "delete" if !on_object => self.delete(store),
            "deletecollection" => self.delete_collection(store),
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    /// The error for logs, exec and similar requests: no containers run here.
    fn no_host(&self, store: &Store) -> ApiError {
        if let Err(error) = store.read(self.resource, self.namespace(), self.name()) {
            return error;
        }
        let what = match self.call.target.subresource.as_str() {
            "log" => "there are no logs",
            "portforward" | "proxy" => "no port can be reached",
            _ => "no command can run",
        };
        ApiError::new(
            501,
            "NotImplemented",
            format!("the hosts of this cluster are simulated and run no containers: {what}"),
        )
    }

    /// Connects a client to ports of a pod.
    fn forward(&self, store: &Store) -> Result<Reply, ApiError> {
        let call = self.call;
        let handshake = call.handshake.as_ref().ok_or_else(ApiError::method_not_allowed)?;
        let ports = ports_of(&call.query)?;
        let pod = store.read(self.resource, self.namespace(), self.name())?.value();
        let pod = identify(&pod)?;
        let agent = &call.head.user_agent;
        PortForward::open(self.shared, self.resource, pod, ports, agent)
            .spawn(self.shared.clone(), handshake);
        Ok(Reply::Switch(handshake.switch()))
    }

    fn scale(&self, store: &mut Store) -> Result<Reply, ApiError> {
        let call = self.call;
        if call.verb == "get" {
            let scale = store.scale(self.resource, self.namespace(), self.name())?;
            return Ok(Reply::Json(200, to_bytes(&scale)));
        }
        let change = match call.verb {
            "update" => {
                check_json(&call.head.content_type)?;
                ScaleChange::Put(read_json(&call.body)?)
            }
            "patch" => {
                let kind = &call.head.content_type;
                ScaleChange::Patch(Patch::read(kind, &call.body, self.resource)?)
            }
            _ => return Err(ApiError::method_not_allowed()),
        };
        let options = call.query.write_options(&call.head.user_agent)?;
        let written = store.set_scale(self.resource, &self.key(), change, &options)?;
        Ok(Reply::Warned(200, written.bytes, written.warnings))
    }

    fn namespace(&self) -> &str {
        self.call.target.namespace.as_deref().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.call.target.name.as_deref().unwrap_or_default()
    }

    fn key(&self) -> Arc<str> {
        key_of(self.namespace(), self.name()).into()
    }

    /// The revision that a lagging cache returns to this caller.
    fn stale(&self, store: &Store) -> Option<u64> {
        self.shared.stale_revision(&self.call.head.user_agent, &self.resource.id, store.now)
    }

    fn get(&self, store: &Store) -> Result<Reply, ApiError> {
        let (resource, name) = (self.resource, self.name());
        let stale = self.stale(store).filter(|_| self.call.query.get("resourceVersion") == "0");
        let entry = match stale {
            Some(revision) => store
                .table_at(resource, revision)?
                .get(&*self.key())
                .cloned()
                .ok_or_else(|| ApiError::not_found(resource, name))?,
            None => store.read(resource, self.namespace(), name)?,
        };
        Ok(Reply::Json(200, render(&entry, resource, self.view, store.now)))
    }

    fn list_options(&self) -> Result<ListOptions, ApiError> {
        self.call.query.list_options()
    }

    fn list(&self, store: &mut Store) -> Result<Reply, ApiError> {
        let options = self.list_options()?;
        let namespace = self.call.target.namespace.clone();
        let stale = self.stale(store);
        if options.watch {
            let request = WatchRequest {
                resource: self.resource.clone(),
                namespace,
                options,
                view: self.view,
                user_agent: self.call.head.user_agent.clone(),
                stale,
            };
            let watch = Watch::start(self.shared.clone(), store, request)?;
            return Ok(Reply::Watch(Box::new(watch)));
        }
        let answer = store.list(self.resource, namespace.as_deref(), &options, stale, self.view)?;
        Ok(Reply::Pieces(answer.pieces))
    }

    fn written(&self, store: &Store, written: Written) -> Result<Reply, ApiError> {
        let code = if written.created { 201 } else { 200 };
        let bytes = if self.view == View::Full {
            written.bytes
        } else {
            let value = read_json(&written.bytes)?;
            render_value(&value, self.resource, self.view, store.now)
        };
        Ok(Reply::Warned(code, bytes, written.warnings))
    }

    fn create(&self, store: &mut Store) -> Result<Reply, ApiError> {
        if self.resource.namespaced && self.call.target.namespace.is_none() {
            return Err(ApiError::method_not_allowed());
        }
        check_json(&self.call.head.content_type)?;
        let options = self.call.query.write_options(&self.call.head.user_agent)?;
        let body = read_json(&self.call.body)?;
        let written = store.create(self.resource, self.namespace(), body, &options)?;
        self.written(store, written)
    }

    fn update(&self, store: &mut Store) -> Result<Reply, ApiError> {
        check_json(&self.call.head.content_type)?;
        let options = self.call.query.write_options(&self.call.head.user_agent)?;
        let body = read_json(&self.call.body)?;
        let subresource = &self.call.target.subresource;
        let written = store.update(self.resource, &self.key(), body, subresource, &options)?;
        self.written(store, written)
    }

    fn patch(&self, store: &mut Store) -> Result<Reply, ApiError> {
        let call = self.call;
        let mut options = call.query.write_options(&call.head.user_agent)?;
        let patch = Patch::read(&call.head.content_type, &call.body, self.resource)?;
        if matches!(patch, Patch::Apply(_)) {
            // An apply must name its field manager; it does not default to the user agent.
            call.query.get("fieldManager").clone_into(&mut options.manager);
        } else if options.force {
            return Err(ApiError::invalid_kind(
                "meta.k8s.io",
                "PatchOptions",
                "",
                &[crate::error::cause(
                    "FieldValueForbidden",
                    "force",
                    "Forbidden: may not be specified for non-apply patch",
                )],
            ));
        }
        let subresource = &call.target.subresource;
        let written = store.patch(self.resource, &self.key(), patch, subresource, &options)?;
        self.written(store, written)
    }

    fn delete_options(&self) -> Result<DeleteOptions, ApiError> {
        let query = &self.call.query;
        let propagation = match query.get("propagationPolicy") {
            "" => None,
            policy => Some(parse_propagation(policy)?),
        };
        let options = DeleteOptions {
            grace: query.number("gracePeriodSeconds")?.and_then(|grace| i64::try_from(grace).ok()),
            propagation,
            dry_run: query.dry_run()?,
            ..DeleteOptions::default()
        };
        if self.call.body.is_empty() {
            return Ok(options);
        }
        check_json(&self.call.head.content_type)?;
        options.merge(&read_json(&self.call.body)?)
    }

    fn delete(&self, store: &mut Store) -> Result<Reply, ApiError> {
        let options = self.delete_options()?;
        let warnings = self.check_deletion(store, &self.key(), &options)?;
        let deletion = store.delete_entry(self.resource, &self.key(), &options)?;
        store.settle();
        let value = match deletion {
            Deletion::Gone(value) => success(self.resource, &value),
            Deletion::Waits(mut value) => {
                value["apiVersion"] = json!(self.resource.api_version());
                value
            }
        };
        Ok(Reply::Warned(200, to_bytes(&value), warnings))
    }

    /// Refuses a deletion that a policy denies; returns warnings.
    fn check_deletion(
        &self,
        store: &mut Store,
        key: &Arc<str>,
        options: &DeleteOptions,
    ) -> Result<Vec<String>, ApiError> {
        let Some(entry) = store.get(&self.resource.id, key) else { return Ok(vec![]) };
        store.check_policies(&WriteRequest {
            resource: self.resource,
            namespace: namespace_of(key),
            name: name_of(key),
            subresource: "",
            operation: Operation::Delete,
            object: None,
            old: Some(&value_as(&entry, self.resource)),
            dry_run: options.dry_run,
        })
    }

    fn delete_collection(&self, store: &mut Store) -> Result<Reply, ApiError> {
        let options = self.delete_options()?;
        let list = self.list_options()?;
        crate::read::check_fields(self.resource, &list)?;
        let table = store.table(&self.resource.id).cloned().unwrap_or_default();
        let namespace = self.call.target.namespace.as_deref();
        let (mut items, mut warnings) = (Vec::new(), Vec::new());
        for (key, _) in selected(self.resource, &table, namespace, &list) {
            warnings.extend(self.check_deletion(store, key, &options)?);
            match store.delete_entry(self.resource, key, &options) {
                Ok(Deletion::Gone(value) | Deletion::Waits(value)) => items.push(value),
                // An object that an earlier deletion already removed counts as deleted.
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
            store.settle();
        }
        let answer = json!({
            "kind": &*self.resource.list_kind,
            "apiVersion": self.resource.api_version(),
            "metadata": {"resourceVersion": store.revision.to_string()},
            "items": items,
        });
        Ok(Reply::Warned(200, to_bytes(&answer), warnings))
    }

    fn evict(&self, store: &mut Store) -> Result<Reply, ApiError> {
        check_json(&self.call.head.content_type)?;
        let body = read_json(&self.call.body)?;
        let dry_run = self.call.query.dry_run()?;
        let answer = store.evict(self.resource, self.namespace(), self.name(), &body, dry_run)?;
        Ok(Reply::Json(201, to_bytes(&answer)))
    }
}
