//! Authentication, RBAC, access reviews and ServiceAccount tokens.
//!
//! | module | purpose |
//! |---|---|
//! | `authn` | an [`Identity`] from a certificate, token or request extension; impersonation |
//! | `token` | issues and reads ServiceAccount tokens |
//! | `rbac` | evaluates roles and bindings for a request |
//! | `escalation` | prevents privilege escalation |
//! | `defaults` | roles that every cluster has, aggregated roles, `default` ServiceAccounts |
//! | `reviews` | TokenRequest, TokenReview, access reviews, SelfSubjectReview |
//!
//! With [`Authentication::Open`] every caller is `system:masters` and nothing is enforced, which
//! suits callers in the same process. With [`Authentication::Required`] every request is
//! authenticated and authorised.

mod authn;
mod defaults;
mod escalation;
mod rbac;
mod reviews;
#[cfg(test)]
mod tests;
mod token;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use bytes::Bytes;
use http::request::Parts;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::patch::Patch;
use crate::path::{Route, Target};
use crate::resources::Resource;
use crate::selector::FieldSelector;
use crate::store::{Store, StoreEvent, key_of};

use self::rbac::Policy;

pub(crate) use reviews::serve as serve_review;
pub use reviews::{VIRTUAL_RESOURCES, VirtualResource};

/// API group of RBAC's kinds.
pub(crate) const RBAC: &str = "rbac.authorization.k8s.io";
/// The group whose members have all permissions.
pub const MASTERS: &str = "system:masters";
/// The group of all authenticated callers.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of all anonymous callers.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The identity of a caller. In a request's extensions it is trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Name of the user.
    pub user: String,
    /// Unique id, if there is one.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Extra attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// A user with these groups, and `system:authenticated`.
    pub fn new(user: impl Into<String>, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(|&group| group.to_owned()).collect();
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Self { user: user.into(), groups, ..Self::default() }
    }

    /// An administrator with all permissions.
    pub fn admin() -> Self {
        Self::new("system:admin", &[MASTERS])
    }

    /// An anonymous caller.
    pub fn anonymous() -> Self {
        Self {
            user: "system:anonymous".to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// The identity of a ServiceAccount.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        let groups =
            ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
        Self {
            uid: uid.to_owned(),
            ..Self::new(format!("system:serviceaccount:{namespace}:{name}"), &groups)
        }
    }

    /// Whether the identity belongs to a group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|known| known == group)
    }
}

/// The verified client certificate of a connection, as DER. The listener has checked it against its
/// client CA and adds it to the extensions of each request.
#[derive(Clone, Debug)]
pub struct PeerCertificate(pub Arc<[u8]>);

/// Whether callers must authenticate.
#[derive(Clone, Debug, Default)]
pub enum Authentication {
    /// No: every caller has all permissions.
    #[default]
    Open,
    /// Yes, and RBAC decides.
    Required(Required),
}

/// How callers authenticate, besides certificates and request extensions.
#[derive(Clone)]
pub struct Required {
    /// Bearer tokens that never expire.
    pub tokens: BTreeMap<String, Identity>,
    /// Signs ServiceAccount tokens: with the same key they remain valid after a restart. A secret.
    pub signing_key: Vec<u8>,
    /// Called for each decision.
    pub recorder: Option<AccessRecorder>,
}

impl Required {
    /// Accepts only certificates, and ServiceAccount tokens signed with this key.
    pub fn new(signing_key: impl Into<Vec<u8>>) -> Self {
        Self { tokens: BTreeMap::new(), signing_key: signing_key.into(), recorder: None }
    }
}

impl std::fmt::Debug for Required {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Required").finish_non_exhaustive()
    }
}

/// Called for each decision; must not call the server.
pub type AccessRecorder = Arc<dyn Fn(&AccessRecord<'_>) + Send + Sync>;

/// One decision, as passed to a recorder.
#[derive(Clone, Copy, Debug)]
pub struct AccessRecord<'a> {
    /// The caller.
    pub identity: &'a Identity,
    /// The requested permission.
    pub attributes: &'a Attributes,
    /// The rule that allows it; `None` if it was denied.
    pub allowed_by: Option<&'a Grant>,
}

/// The rule that allows a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// `ClusterRoleBinding/NAME` or `RoleBinding/NAMESPACE/NAME`; empty for `system:masters`.
    pub binding: String,
    /// `ClusterRole/NAME` or `Role/NAMESPACE/NAME`; empty for `system:masters`.
    pub role: String,
    /// Index of the rule in the role, from 0.
    pub rule: usize,
}

/// The attributes of a request that RBAC checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attributes {
    /// Kubernetes verb, or the lower-case HTTP method for a path.
    pub verb: String,
    /// API group, `""` for core.
    pub group: String,
    /// Plural of the resource; empty for a path.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// Namespace; empty for the whole cluster.
    pub namespace: String,
    /// Name of the object; empty for a collection.
    pub name: String,
    /// A path that is not a resource.
    pub path: String,
}

impl Attributes {
    fn of_target(verb: &str, target: &Target) -> Self {
        let name = target.name.clone().unwrap_or_default();
        // A Namespace object counts as inside itself: permission to read namespaces there allows
        // reading it.
        let is_namespace = target.group.is_empty() && target.plural == "namespaces";
        let home = target.namespace.clone();
        let home = home.or_else(|| is_namespace.then(|| name.clone()));
        Self {
            verb: verb.to_owned(),
            group: target.group.clone(),
            resource: target.plural.clone(),
            subresource: target.subresource.clone(),
            namespace: home.unwrap_or_default(),
            name,
            path: String::new(),
        }
    }

    /// `pods/status`, as in rules.
    pub fn combined(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }

    fn refused(&self, identity: &Identity, why: &str) -> ApiError {
        let user = &identity.user;
        let tail = if why.is_empty() { String::new() } else { format!(": {why}") };
        if self.resource.is_empty() {
            let (verb, path) = (&self.verb, &self.path);
            let message = format!("forbidden: User {user:?} cannot {verb} path {path:?}{tail}");
            let mut error = ApiError::new(403, "Forbidden", message);
            error.details = json!({});
            return error;
        }
        let place = if self.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {:?}", self.namespace)
        };
        let qualified = crate::resources::resource_id(&self.group, &self.resource);
        let name = if self.name.is_empty() { String::new() } else { format!(" {:?}", self.name) };
        let message = format!(
            "{qualified}{name} is forbidden: User {user:?} cannot {} resource {:?} in API group \
             {:?} {place}{tail}",
            self.verb,
            self.combined(),
            self.group,
        );
        let mut error = ApiError::new(403, "Forbidden", message);
        error.details = json!({"kind": self.resource});
        if !self.name.is_empty() {
            error.details["name"] = json!(self.name);
        }
        if !self.group.is_empty() {
            error.details["group"] = json!(self.group);
        }
        error
    }
}

/// Authentication and authorisation of the server.
pub(crate) struct Access {
    required: Option<Required>,
    /// Whether a role or binding has changed since the policy was read.
    stale: Arc<AtomicBool>,
    policy: Mutex<Arc<Policy>>,
}

impl Access {
    /// Prepares a store: creates the default roles, and tracks changes of RBAC objects.
    pub(crate) fn new(authentication: Authentication, store: &mut Store) -> Self {
        let stale = Arc::new(AtomicBool::new(true));
        let required = match authentication {
            Authentication::Open => None,
            Authentication::Required(required) => {
                defaults::bootstrap(store);
                let stale = stale.clone();
                store.observe(Box::new(move |event: &StoreEvent<'_>| {
                    if &*event.resource.group == RBAC {
                        stale.store(true, Ordering::Release);
                    }
                }));
                Some(required)
            }
        };
        Self { required, stale, policy: Mutex::default() }
    }

    pub(crate) fn required(&self) -> Option<&Required> {
        self.required.as_ref()
    }

    /// The policy of the current roles and bindings.
    fn policy(&self, store: &Mutex<Store>) -> Arc<Policy> {
        let mut policy = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        if self.stale.swap(false, Ordering::AcqRel) {
            let tables = store.lock().unwrap_or_else(PoisonError::into_inner).tables.clone();
            *policy = Arc::new(Policy::read(&tables));
        }
        policy.clone()
    }

    /// Whether an identity has this permission; calls the recorder.
    pub(crate) fn authorize(
        &self,
        store: &Mutex<Store>,
        identity: &Identity,
        attributes: &Attributes,
    ) -> Result<(), String> {
        let Some(required) = &self.required else {
            return Ok(());
        };
        let outcome = self.decide(store, identity, attributes);
        if let Some(recorder) = &required.recorder {
            recorder(&AccessRecord { identity, attributes, allowed_by: outcome.as_ref().ok() });
        }
        outcome.map(|_| ())
    }

    /// Like [`Access::authorize`] without calling the recorder: for access reviews.
    fn decide(
        &self,
        store: &Mutex<Store>,
        identity: &Identity,
        attributes: &Attributes,
    ) -> Result<Grant, String> {
        if self.required.is_none() || identity.is_in(MASTERS) {
            return Ok(Grant { binding: String::new(), role: String::new(), rule: 0 });
        }
        self.policy(store).decide(identity, attributes)
    }
}

/// Admits a request or returns why not. The returned identity is the effective one: the
/// impersonated one, if the caller requests it and has the permission.
pub(crate) fn admit(
    access: &Access,
    store: &Mutex<Store>,
    now: Timestamp,
    parts: &Parts,
    request: (&Route, &Target, &str, &str),
) -> Result<Arc<Identity>, ApiError> {
    static ADMIN: LazyLock<Arc<Identity>> = LazyLock::new(|| Arc::new(Identity::admin()));
    if access.required.is_none() {
        return Ok(match parts.extensions.get::<Identity>() {
            Some(identity) => Arc::new(identity.clone()),
            None => ADMIN.clone(),
        });
    }
    let caller = authn::authenticate(access, store, now, parts)?;
    let identity = authn::impersonate(access, store, parts, caller)?;
    let (route, target, verb, field_selector) = request;
    let mut attributes = match route {
        Route::Resource(_) => Attributes::of_target(verb, target),
        _ => Attributes { path: parts.uri.path().to_owned(), ..Attributes::default() },
    };
    if attributes.verb.is_empty() {
        attributes.verb = parts.method.as_str().to_ascii_lowercase();
    }
    // A list by name reads one object, so a rule with that name may allow it.
    if attributes.name.is_empty()
        && matches!(verb, "list" | "watch")
        && let Ok(selector) = FieldSelector::parse(field_selector)
        && let Some(name) = selector.name()
    {
        name.clone_into(&mut attributes.name);
    }
    access
        .authorize(store, &identity, &attributes)
        .map_err(|why| attributes.refused(&identity, &why))?;
    Ok(Arc::new(identity))
}

/// Checks permissions beyond a write's verb: an apply that creates needs `create` too, and granting
/// roles requires holding them.
pub(crate) fn before_write(
    access: &Access,
    store: &Mutex<Store>,
    identity: &Identity,
    (verb, target): (&str, &Target),
    (content_type, body): (&str, &Bytes),
) -> Result<(), ApiError> {
    if access.required.is_none() || !matches!(verb, "create" | "update" | "patch") {
        return Ok(());
    }
    let (resource, old) = {
        let store = store.lock().unwrap_or_else(PoisonError::into_inner);
        let found = store.registry.find(&target.group, &target.version, &target.plural).cloned();
        let Some(resource) = found else {
            return Ok(());
        };
        let name = target.name.as_deref().unwrap_or_default();
        let namespace = target.namespace.as_deref().unwrap_or_default();
        let old = store.get(&resource.id, &key_of(namespace, name));
        (resource, old)
    };
    let patch =
        if verb == "patch" { Some(Patch::read(content_type, body, &resource)?) } else { None };
    if old.is_none() && matches!(patch, Some(Patch::Apply(_))) {
        let attributes = Attributes::of_target("create", target);
        access
            .authorize(store, identity, &attributes)
            .map_err(|why| attributes.refused(identity, &why))?;
    }
    if &*resource.group != RBAC {
        return Ok(());
    }
    let old = old.map(|entry| entry.value());
    let Some(new) = becomes(&resource, target, old.as_ref(), patch, body)? else {
        return Ok(());
    };
    let named = new["metadata"]["name"].as_str().unwrap_or_default();
    let name = target.name.as_deref().unwrap_or(named);
    let place = (target.namespace.as_deref().unwrap_or_default(), name);
    let objects = (old.as_ref(), &new);
    escalation::check(access, store, identity, &resource, place, objects)
}

/// Checks the additional permission of a WebSocket to a pod: since Kubernetes 1.35 the client may
/// also `create` the subresource, although its request is a GET.
pub(crate) fn before_upgrade(
    access: &Access,
    store: &Mutex<Store>,
    identity: &Identity,
    target: &Target,
) -> Result<(), ApiError> {
    let version = store.lock().unwrap_or_else(PoisonError::into_inner).git_version.clone();
    if !checks_create(&version) {
        return Ok(());
    }
    let attributes = Attributes::of_target("create", target);
    access.authorize(store, identity, &attributes).map_err(|why| attributes.refused(identity, &why))
}

/// Whether this version has `AuthorizePodWebsocketUpgradeCreatePermission` enabled.
fn checks_create(git_version: &str) -> bool {
    let mut numbers = git_version.trim_start_matches('v').split('.').map(str::parse::<u32>);
    let (major, minor) = (numbers.next(), numbers.next());
    matches!((major, minor), (Some(Ok(1)), Some(Ok(35..))))
}

/// The object after a write; `None` if there is no object to patch.
fn becomes(
    resource: &Resource,
    target: &Target,
    old: Option<&Value>,
    patch: Option<Patch>,
    body: &Bytes,
) -> Result<Option<Value>, ApiError> {
    match (patch, old) {
        (Some(Patch::Apply(config)), None) => Ok(Some(config)),
        (Some(Patch::Apply(config)), Some(old)) => Ok(Some(laid_over(old, &config))),
        (Some(patch), Some(old)) => {
            let name = target.name.as_deref().unwrap_or_default();
            patch.apply_to(resource, name, old).map(Some)
        }
        (Some(_), None) => Ok(None),
        (None, _) => serde_json::from_slice(body).map(Some).map_err(|error| {
            ApiError::bad_request(format!("cannot decode the request body: {error}"))
        }),
    }
}

/// A role or binding after an apply: lists are replaced, labels added. Fields missing from the
/// configuration are assumed to stay.
fn laid_over(old: &Value, config: &Value) -> Value {
    let mut new = old.clone();
    let is_set = |value: &&Value| !value.is_null();
    for key in ["aggregationRule", "roleRef", "rules", "subjects"] {
        if let Some(value) = config.get(key).filter(is_set) {
            new[key] = value.clone();
        }
    }
    let labels = config.pointer("/metadata/labels").and_then(Value::as_object);
    for (key, value) in labels.into_iter().flatten() {
        new["metadata"]["labels"][key] = value.clone();
    }
    new
}

/// Performs the follow-up writes of other control plane components: aggregates roles, creates
/// `default` ServiceAccounts.
pub(crate) fn after_write(access: &Access, store: &mut Store, target: &Target) {
    if access.required.is_none() {
        return;
    }
    match (target.group.as_str(), target.plural.as_str()) {
        ("", "namespaces") => defaults::ensure_accounts(store),
        (RBAC, "clusterroles") => defaults::aggregate(store),
        _ => {}
    }
}
