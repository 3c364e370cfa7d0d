//! ServiceAccount tokens: signed claims that expire by the server's clock and are valid as long as
//! the objects that they are bound to exist.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::hmac;
use serde::{Deserialize, Serialize};

use super::Identity;
use crate::store::{Store, key_of};

/// Default audience of tokens: this server.
pub(super) const AUDIENCE: &str = "https://kubernetes.default.svc.cluster.local";
/// The only header that is written, and thus the only one accepted.
const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;

/// An object that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bound {
    pub(super) name: String,
    pub(super) uid: String,
}

/// The namespace, ServiceAccount and bound objects of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) namespace: String,
    pub(super) serviceaccount: Bound,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<Bound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<Bound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<Bound>,
}

/// The claims of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claims {
    #[serde(rename = "iss")]
    pub(super) issuer: String,
    #[serde(rename = "sub")]
    pub(super) subject: String,
    #[serde(rename = "aud")]
    pub(super) audiences: Vec<String>,
    #[serde(rename = "iat")]
    pub(super) issued: i64,
    #[serde(rename = "exp")]
    pub(super) expires: i64,
    #[serde(rename = "kubernetes.io")]
    pub(super) place: Place,
}

impl Claims {
    /// Claims of a ServiceAccount that are valid for `seconds`.
    pub(super) fn new(place: Place, audiences: Vec<String>, now: Timestamp, seconds: i64) -> Self {
        let (namespace, name) = (&place.namespace, &place.serviceaccount.name);
        Self {
            issuer: AUDIENCE.to_owned(),
            subject: format!("system:serviceaccount:{namespace}:{name}"),
            audiences,
            issued: now.as_second(),
            expires: now.as_second().saturating_add(seconds),
            place,
        }
    }

    /// The identity of the token, if all objects that it is bound to still exist.
    pub(super) fn identity(&self, store: &Store) -> Option<Identity> {
        let place = &self.place;
        let there = |resource: &str, namespace: &str, bound: &Bound| {
            store
                .get(resource, &key_of(namespace, &bound.name))
                .is_some_and(|entry| *entry.uid == *bound.uid && !entry.deleting)
        };
        let namespace = &place.namespace;
        let bound = [
            ("serviceaccounts", Some(&place.serviceaccount)),
            ("pods", place.pod.as_ref()),
            ("secrets", place.secret.as_ref()),
        ];
        let all = bound
            .into_iter()
            .filter_map(|(resource, bound)| Some((resource, bound?)))
            .all(|(resource, bound)| there(resource, namespace, bound));
        let node = place.node.as_ref().is_none_or(|node| there("nodes", "", node));
        if !all || !node {
            return None;
        }
        let account = &place.serviceaccount;
        let mut identity = Identity::service_account(namespace, &account.name, &account.uid);
        for (key, bound) in [("pod", &place.pod), ("node", &place.node)] {
            if let Some(bound) = bound {
                for (part, text) in [("name", &bound.name), ("uid", &bound.uid)] {
                    let key = format!("authentication.kubernetes.io/{key}-{part}");
                    identity.extra.insert(key, vec![text.clone()]);
                }
            }
        }
        Some(identity)
    }
}

/// Signs claims.
pub(super) fn sign(key: &[u8], claims: &Claims) -> String {
    let body = serde_json::to_vec(claims).expect("claims have string keys only");
    let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(HEADER), URL_SAFE_NO_PAD.encode(body));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// The claims of a token, if its signature is valid and it has not expired.
pub(super) fn read(key: &[u8], token: &str, now: Timestamp) -> Option<Claims> {
    let (text, tag) = token.rsplit_once('.')?;
    let (header, body) = text.split_once('.')?;
    let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::verify(&key, text.as_bytes(), &tag).ok()?;
    if URL_SAFE_NO_PAD.decode(header).ok()? != HEADER.as_bytes() {
        return None;
    }
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).ok()?).ok()?;
    (claims.expires > now.as_second() && claims.issuer == AUDIENCE).then_some(claims)
}
