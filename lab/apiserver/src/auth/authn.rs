//! Authentication: determines the caller of a request.

use std::sync::Mutex;

use http::header::AUTHORIZATION;
use http::request::Parts;
use jiff::Timestamp;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{AUTHENTICATED, Access, Attributes, Identity, PeerCertificate, UNAUTHENTICATED, token};
use crate::error::ApiError;
use crate::store::Store;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// The caller of a request: from an extension, which is trusted, then a certificate, then a bearer
/// token. An invalid token is rejected; a request without credentials is anonymous.
pub(super) fn authenticate(
    access: &Access,
    store: &Mutex<Store>,
    now: Timestamp,
    parts: &Parts,
) -> Result<Identity, ApiError> {
    if let Some(identity) = parts.extensions.get::<Identity>() {
        return Ok(identity.clone());
    }
    if let Some(PeerCertificate(der)) = parts.extensions.get::<PeerCertificate>() {
        return of_certificate(der).ok_or_else(|| ApiError::of_code(401));
    }
    let Some(header) = parts.headers.get(AUTHORIZATION) else {
        return Ok(Identity::anonymous());
    };
    let bearer = header.to_str().ok().and_then(|text| {
        let (scheme, token) = text.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
    });
    let Some(bearer) = bearer.filter(|bearer| !bearer.is_empty()) else {
        return Ok(Identity::anonymous());
    };
    of_token(access, store, now, &bearer, &[])
        .map(|(identity, _)| identity)
        .ok_or_else(|| ApiError::of_code(401))
}

/// The common name is the user, organisations are groups.
pub(super) fn of_certificate(der: &[u8]) -> Option<Identity> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let user = subject.iter_common_name().next()?.as_str().ok()?;
    let groups: Vec<&str> =
        subject.iter_organization().filter_map(|name| name.as_str().ok()).collect();
    (!user.is_empty()).then(|| Identity::new(user, &groups))
}

/// The identity of a valid token, and the audiences that it is valid for.
pub(super) fn of_token(
    access: &Access,
    store: &Mutex<Store>,
    now: Timestamp,
    bearer: &str,
    audiences: &[String],
) -> Option<(Identity, Vec<String>)> {
    let required = access.required()?;
    if let Some(identity) = required.tokens.get(bearer) {
        return Some((identity.clone(), Vec::new()));
    }
    let claims = token::read(&required.signing_key, bearer, now)?;
    let wanted: Vec<String> =
        if audiences.is_empty() { vec![token::AUDIENCE.to_owned()] } else { audiences.to_vec() };
    let fits: Vec<String> =
        wanted.into_iter().filter(|audience| claims.audiences.contains(audience)).collect();
    if fits.is_empty() {
        return None;
    }
    let store = store.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    claims.identity(&store).map(|identity| (identity, fits))
}

/// The impersonated identity, if the caller requests one and has the permission.
pub(super) fn impersonate(
    access: &Access,
    store: &Mutex<Store>,
    parts: &Parts,
    caller: Identity,
) -> Result<Identity, ApiError> {
    let wanted = wanted(parts)?;
    let Some(mut wanted) = wanted else {
        return Ok(caller);
    };
    let may = |attributes: Attributes| {
        access
            .authorize(store, &caller, &attributes)
            .map_err(|why| attributes.refused(&caller, &why))
    };
    let account = wanted
        .user
        .strip_prefix("system:serviceaccount:")
        .and_then(|rest| rest.split_once(':'))
        .map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
    match &account {
        Some((namespace, name)) => may(ask("", "serviceaccounts", "", namespace, name))?,
        None => may(ask("", "users", "", "", &wanted.user))?,
    }
    for group in &wanted.groups {
        may(ask("", "groups", "", "", group))?;
    }
    let authentication = "authentication.k8s.io";
    if !wanted.uid.is_empty() {
        may(ask(authentication, "uids", "", "", &wanted.uid))?;
    }
    for (key, values) in &wanted.extra {
        for value in values {
            may(ask(authentication, "userextras", key, "", value))?;
        }
    }
    if let Some((namespace, name)) = account
        && wanted.groups.is_empty()
    {
        wanted.groups = Identity::service_account(&namespace, &name, "").groups;
    }
    let general = if wanted.user == "system:anonymous" { UNAUTHENTICATED } else { AUTHENTICATED };
    if !wanted.is_in(general) {
        wanted.groups.push(general.to_owned());
    }
    Ok(wanted)
}

/// The permission to impersonate a user, group or other subject.
fn ask(group: &str, resource: &str, subresource: &str, namespace: &str, name: &str) -> Attributes {
    Attributes {
        verb: "impersonate".to_owned(),
        group: group.to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        path: String::new(),
    }
}

fn wanted(parts: &Parts) -> Result<Option<Identity>, ApiError> {
    let text = |value: &http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let mut wanted = Identity::default();
    let mut any = false;
    for (name, value) in &parts.headers {
        match name.as_str() {
            USER => wanted.user = text(value),
            GROUP => wanted.groups.push(text(value)),
            UID => wanted.uid = text(value),
            other => match other.strip_prefix(EXTRA) {
                Some(key) => wanted.extra.entry(key.to_owned()).or_default().push(text(value)),
                None => continue,
            },
        }
        any = true;
    }
    if any && wanted.user.is_empty() {
        let why = "requested groups, a uid or extra without impersonating a user";
        return Err(ApiError::internal(format!("Internal error occurred: {why}")));
    }
    Ok(any.then_some(wanted))
}
