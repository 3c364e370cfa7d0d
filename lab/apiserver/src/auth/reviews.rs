//! Virtual resources: access reviews, token reviews, SelfSubjectReview and token requests.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::token::{self, Bound, Claims, Place};
use super::{Access, Attributes, Identity, MASTERS, authn};
use crate::error::{ApiError, invalid_value, required};
use crate::path::Target;
use crate::store::{Store, key_of, time_text};

const AUTHORIZATION: &str = "authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";
/// Minimum lifetime of a token, in seconds.
const SHORTEST_SECONDS: i64 = 600;
/// Default lifetime of a token, in seconds.
const USUAL_SECONDS: i64 = 3600;
/// Maximum lifetime of a token, in seconds.
const LONGEST_SECONDS: i64 = 1 << 32;

/// A resource that stores nothing; its only verb is `create`.
#[derive(Clone, Copy, Debug)]
pub struct VirtualResource {
    /// Its API group; the version is `v1`.
    pub group: &'static str,
    /// Plural, with its subresource.
    pub name: &'static str,
    /// Singular; empty for a subresource.
    pub singular: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Group of the kind, if it differs from that of the resource.
    pub kind_group: &'static str,
    /// Whether it is namespaced.
    pub namespaced: bool,
}

const fn of(
    group: &'static str,
    name: &'static str,
    singular: &'static str,
    kind: &'static str,
    namespaced: bool,
) -> VirtualResource {
    VirtualResource { group, name, singular, kind, kind_group: group, namespaced }
}

/// The virtual resources that the server serves, for discovery.
pub const VIRTUAL_RESOURCES: &[VirtualResource] = &[
    VirtualResource {
        group: "",
        name: "serviceaccounts/token",
        singular: "",
        kind: "TokenRequest",
        kind_group: AUTHENTICATION,
        namespaced: true,
    },
    of(AUTHENTICATION, "selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview", false),
    of(AUTHENTICATION, "tokenreviews", "tokenreview", "TokenReview", false),
    of(
        AUTHORIZATION,
        "localsubjectaccessreviews",
        "localsubjectaccessreview",
        "LocalSubjectAccessReview",
        true,
    ),
    of(
        AUTHORIZATION,
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        "SelfSubjectAccessReview",
        false,
    ),
    of(
        AUTHORIZATION,
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        "SelfSubjectRulesReview",
        false,
    ),
    of(AUTHORIZATION, "subjectaccessreviews", "subjectaccessreview", "SubjectAccessReview", false),
];

fn is_virtual(target: &Target) -> bool {
    matches!(target.group.as_str(), AUTHORIZATION | AUTHENTICATION)
        || (target.group.is_empty()
            && target.plural == "serviceaccounts"
            && target.subresource == "token")
}

/// Handles a request for one of [`VIRTUAL_RESOURCES`]; `None` for any other request.
pub(crate) fn serve(
    access: &Access,
    store: &Mutex<Store>,
    now: Timestamp,
    identity: &Identity,
    (verb, target): (&str, &Target),
    body: &[u8],
) -> Option<Result<Value, ApiError>> {
    if !is_virtual(target) {
        return None;
    }
    let desk = Desk { access, store, now, identity };
    Some(desk.answer(verb, target, body))
}

struct Desk<'a> {
    access: &'a Access,
    store: &'a Mutex<Store>,
    now: Timestamp,
    identity: &'a Identity,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AccessSpec {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
    resource_attributes: Option<ResourceAttributes>,
    non_resource_attributes: Option<PathAttributes>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResourceAttributes {
    namespace: String,
    verb: String,
    group: String,
    resource: String,
    subresource: String,
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathAttributes {
    path: String,
    verb: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TokenSpec {
    audiences: Vec<String>,
    expiration_seconds: Option<i64>,
    bound_object_ref: Option<BoundRef>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct BoundRef {
    kind: String,
    name: String,
    uid: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TokenReviewSpec {
    token: String,
    audiences: Vec<String>,
}

fn spec<T: DeserializeOwned>(review: &Value) -> Result<T, ApiError> {
    let spec = review.get("spec").cloned().unwrap_or_else(|| json!({}));
    serde_json::from_value(spec)
        .map_err(|error| ApiError::bad_request(format!("cannot decode spec: {error}")))
}

impl Desk<'_> {
    fn answer(&self, verb: &str, target: &Target, body: &[u8]) -> Result<Value, ApiError> {
        let name = target.plural.as_str();
        let known = VIRTUAL_RESOURCES.iter().any(|known| {
            known.group == target.group
                && known.name.split_once('/').unwrap_or((known.name, ""))
                    == (name, target.subresource.as_str())
                && known.namespaced == target.namespace.is_some()
        });
        if !known || target.version != "v1" {
            return Err(ApiError::no_such_resource());
        }
        if verb != "create" {
            return Err(ApiError::method_not_allowed());
        }
        let mut review: Value = serde_json::from_slice(body).map_err(|error| {
            ApiError::bad_request(format!("cannot decode the request body: {error}"))
        })?;
        if !review.is_object() {
            let why = "the request body is not a JSON object";
            return Err(ApiError::bad_request(why));
        }
        let status = match name {
            "selfsubjectaccessreviews" => self.access_review(&review, true, target)?,
            "subjectaccessreviews" | "localsubjectaccessreviews" => {
                self.access_review(&review, false, target)?
            }
            "selfsubjectrulesreviews" => self.rules_review(&review)?,
            "selfsubjectreviews" => json!({"userInfo": user_info(self.identity)}),
            "tokenreviews" => self.token_review(&review)?,
            _ => self.issue(target, &mut review)?,
        };
        if !review["metadata"].is_object() {
            review["metadata"] = json!({"creationTimestamp": null});
        }
        review["status"] = status;
        Ok(review)
    }

    fn access_review(
        &self,
        review: &Value,
        for_self: bool,
        target: &Target,
    ) -> Result<Value, ApiError> {
        let spec: AccessSpec = spec(review)?;
        let kind = review["kind"].as_str().unwrap_or_default();
        let wrong = |cause| ApiError::invalid_kind(AUTHORIZATION, kind, "", &[cause]);
        let subject = if for_self {
            self.identity.clone()
        } else {
            if spec.user.is_empty() && spec.groups.is_empty() {
                let why = "at least one of user or group must be specified";
                return Err(wrong(required("spec.user", why)));
            }
            Identity { user: spec.user, uid: spec.uid, groups: spec.groups, extra: spec.extra }
        };
        let asked = match (spec.resource_attributes, spec.non_resource_attributes) {
            (Some(asked), None) => Attributes {
                verb: asked.verb,
                group: asked.group,
                resource: asked.resource,
                subresource: asked.subresource,
                namespace: asked.namespace,
                name: asked.name,
                path: String::new(),
            },
            (None, Some(asked)) => {
                Attributes { verb: asked.verb, path: asked.path, ..Attributes::default() }
            }
            _ => {
                let why = "exactly one of nonResourceAttributes or resourceAttributes must be \
                           specified";
                let field = "spec.resourceAttributes";
                return Err(wrong(invalid_value(field, "", why)));
            }
        };
        if let Some(namespace) = &target.namespace
            && *namespace != asked.namespace
        {
            let why = "must match metadata.namespace";
            let field = "spec.resourceAttributes.namespace";
            return Err(wrong(invalid_value(field, &asked.namespace, why)));
        }
        Ok(match self.access.decide(self.store, &subject, &asked) {
            Ok(grant) if grant.role.is_empty() => json!({"allowed": true}),
            Ok(grant) => {
                let (binding, role) = (grant.binding, grant.role);
                json!({"allowed": true, "reason": format!(
                    "RBAC: allowed by {binding} of {role} to {:?}", subject.user
                )})
            }
            Err(why) if why.is_empty() => json!({"allowed": false}),
            Err(why) => json!({"allowed": false, "reason": why}),
        })
    }

    fn rules_review(&self, review: &Value) -> Result<Value, ApiError> {
        let namespace = review["spec"]["namespace"].as_str().unwrap_or_default();
        if namespace.is_empty() {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        let everything = self.access.required().is_none() || self.identity.is_in(MASTERS);
        let mut resources = Vec::new();
        let mut paths = Vec::new();
        if everything {
            resources.push(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
            paths.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
        } else {
            let policy = self.access.policy(self.store);
            for rule in policy.rules_for(self.identity, namespace) {
                if !rule.resources.is_empty() {
                    let mut shown = json!({"verbs": rule.verbs, "apiGroups": rule.api_groups,
                                           "resources": rule.resources});
                    if !rule.resource_names.is_empty() {
                        shown["resourceNames"] = json!(rule.resource_names);
                    }
                    resources.push(shown);
                }
                if !rule.non_resource_urls.is_empty() {
                    let urls = &rule.non_resource_urls;
                    paths.push(json!({"verbs": rule.verbs, "nonResourceURLs": urls}));
                }
            }
        }
        Ok(json!({
            "resourceRules": resources,
            "nonResourceRules": paths,
            "incomplete": false,
        }))
    }

    fn token_review(&self, review: &Value) -> Result<Value, ApiError> {
        let spec: TokenReviewSpec = spec(review)?;
        let found =
            authn::of_token(self.access, self.store, self.now, &spec.token, &spec.audiences);
        Ok(match found {
            Some((identity, audiences)) => json!({
                "authenticated": true,
                "user": user_info(&identity),
                "audiences": audiences,
            }),
            None => json!({"authenticated": false, "error": "invalid bearer token"}),
        })
    }

    /// TokenRequest: issues a token for the ServiceAccount in the path.
    fn issue(&self, target: &Target, review: &mut Value) -> Result<Value, ApiError> {
        let Some(settings) = self.access.required() else {
            return Err(ApiError::new(
                404,
                "NotFound",
                "this API server does not authenticate clients and issues no tokens",
            ));
        };
        let wanted: TokenSpec = spec(review)?;
        let seconds = wanted.expiration_seconds.unwrap_or(USUAL_SECONDS);
        let wrong = |seconds: i64, why: &str| {
            let field = "spec.expirationSeconds";
            let cause = invalid_value(field, &seconds.to_string(), why);
            ApiError::invalid_kind(AUTHENTICATION, "TokenRequest", "", &[cause])
        };
        if seconds < SHORTEST_SECONDS {
            return Err(wrong(seconds, "may not specify a duration less than 10 minutes"));
        }
        if seconds > LONGEST_SECONDS {
            return Err(wrong(seconds, "may not specify a duration larger than 2^32 seconds"));
        }
        let audiences = if wanted.audiences.is_empty() {
            vec![token::AUDIENCE.to_owned()]
        } else {
            wanted.audiences
        };
        let place = self.place(target, wanted.bound_object_ref.as_ref())?;
        let claims = Claims::new(place, audiences.clone(), self.now, seconds);
        let expires = Timestamp::from_second(claims.expires)
            .map_err(|_| wrong(seconds, "exceeds the maximum timestamp"))?;
        if !review["spec"].is_object() {
            review["spec"] = json!({});
        }
        review["spec"]["audiences"] = json!(audiences);
        review["spec"]["expirationSeconds"] = json!(seconds);
        Ok(json!({
            "token": token::sign(&settings.signing_key, &claims),
            "expirationTimestamp": time_text(expires),
        }))
    }

    fn place(&self, target: &Target, bound: Option<&BoundRef>) -> Result<Place, ApiError> {
        let namespace = target.namespace.clone().unwrap_or_default();
        let name = target.name.clone().unwrap_or_default();
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |resource: &str, namespace: &str, name: &str| {
            let kind = store.registry.stored(resource).cloned();
            let kind = kind.ok_or_else(ApiError::no_such_resource)?;
            let entry = store
                .get(resource, &key_of(namespace, name))
                .ok_or_else(|| ApiError::not_found(&kind, name))?;
            Ok::<_, ApiError>((kind, Bound { name: name.to_owned(), uid: entry.uid.to_string() }))
        };
        let (_, serviceaccount) = find("serviceaccounts", &namespace, &name)?;
        let mut place = Place {
            namespace: namespace.clone(),
            serviceaccount,
            pod: None,
            secret: None,
            node: None,
        };
        let Some(bound) = bound else {
            return Ok(place);
        };
        let (resource, home) = match bound.kind.as_str() {
            "Pod" => ("pods", namespace.as_str()),
            "Secret" => ("secrets", namespace.as_str()),
            "Node" => ("nodes", ""),
            other => {
                let why = format!("cannot bind token for serviceaccount to object of type {other}");
                return Err(ApiError::bad_request(why));
            }
        };
        let (kind, found) = find(resource, home, &bound.name)?;
        if !bound.uid.is_empty() && bound.uid != found.uid {
            let why = format!(
                "the UID in the bound object reference ({}) does not match the UID in record. The \
                 object might have been deleted and then recreated",
                bound.uid
            );
            return Err(ApiError::conflict(&kind, &bound.name, &why));
        }
        match resource {
            "pods" => place.pod = Some(found),
            "secrets" => place.secret = Some(found),
            _ => place.node = Some(found),
        }
        Ok(place)
    }
}

fn user_info(identity: &Identity) -> Value {
    let mut info = json!({"username": identity.user});
    if !identity.uid.is_empty() {
        info["uid"] = json!(identity.uid);
    }
    if !identity.groups.is_empty() {
        info["groups"] = json!(identity.groups);
    }
    if !identity.extra.is_empty() {
        info["extra"] = json!(identity.extra);
    }
    info
}
