//! The version of a release image, of its registry and without a login.

use http::{HeaderValue, StatusCode, header::WWW_AUTHENTICATE};
use refit_openshift::validation::{ImageRef, RELEASE_LABEL};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::http::{Answer, Headers, Web, encoded, url};

/// How long a request may take.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(20);
const MANIFESTS: &str = "application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.oci.image.manifest.v1+json";

#[derive(Deserialize)]
struct Manifest {
    config: Option<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

pub(super) async fn release(web: &Web, image: &ImageRef) -> Result<String, String> {
    let ImageRef { registry, repository, digest } = image;
    let read = async {
        let mut headers = Headers { accept: Some(MANIFESTS), authorization: None };
        let manifest = get(web, image, ("manifests", digest), &mut headers).await?;
        let manifest: Manifest = serde_json::from_slice(&manifest)
            .map_err(|error| format!("its manifest cannot be read: {error}"))?;
        let config = manifest.config.ok_or_else(|| {
            "its manifest has no config, use the digest of an image of one architecture".to_owned()
        })?;
        headers.accept = None;
        let config = get(web, image, ("blobs", &config.digest), &mut headers).await?;
        let config: Value = serde_json::from_slice(&config)
            .map_err(|error| format!("its config cannot be read: {error}"))?;
        let label = config.pointer("/config/Labels").and_then(|labels| labels.get(RELEASE_LABEL));
        let label = label.and_then(Value::as_str).filter(|label| !label.is_empty());
        label.map(ToOwned::to_owned).ok_or_else(|| {
            format!("it has no label {RELEASE_LABEL}, set spec.desired.image to a release image")
        })
    };
    read.await.map_err(|why: String| {
        format!("cannot read the version of image {registry}/{repository}@{digest}: {why}")
    })
}

/// Gets what a digest names, and verifies it.
async fn get(
    web: &Web,
    image: &ImageRef,
    (kind, digest): (&str, &str),
    headers: &mut Headers,
) -> Result<Vec<u8>, String> {
    let ImageRef { registry, repository, .. } = image;
    let url = format!("https://{registry}/v2/{repository}/{kind}/{digest}");
    let url = self::url(&url).map_err(|error| error.why)?;
    let ask = async |headers: &Headers| {
        let answer = web.get(&url, headers, DEADLINE).await;
        answer.map_err(|error| format!("the registry does not answer: {error}"))
    };
    let mut answer = ask(headers).await?;
    if answer.status == StatusCode::UNAUTHORIZED && headers.authorization.is_none() {
        headers.authorization = Some(token(web, repository, &answer).await?);
        answer = ask(headers).await?;
    }
    match answer.status {
        StatusCode::OK => verified(digest, answer.body),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Err("the registry demands a login, use an image that is public".to_owned())
        }
        status => Err(format!("the registry answers with HTTP status {}", status.as_u16())),
    }
}

fn verified(digest: &str, bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    let Some(wanted) = digest.strip_prefix("sha256:") else {
        return Err(format!("invalid digest {digest:?}, expected sha256:HEX"));
    };
    let found = format!("{:x}", Sha256::digest(&bytes));
    if found != wanted {
        return Err(format!("what the registry sends has the digest sha256:{found}, not {digest}"));
    }
    Ok(bytes)
}

/// Gets the token that a registry demands also for public images. No login is sent for it.
async fn token(web: &Web, repository: &str, answer: &Answer) -> Result<HeaderValue, String> {
    let challenge = answer.headers.get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
    let parameters = challenge.and_then(|text| {
        let (scheme, parameters) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(parameters)
    });
    let parameter = |name: &str| parameter(parameters?, name);
    let realm = parameter("realm").filter(|realm| realm.starts_with("https://"));
    let realm = realm.ok_or("the registry demands a login of an unknown kind")?;
    let scope = format!("repository:{repository}:pull");
    let service = parameter("service").unwrap_or_default();
    let separator = if realm.contains('?') { '&' } else { '?' };
    let query = encoded([("service", service), ("scope", &scope)]);
    let url = url(&format!("{realm}{separator}{query}")).map_err(|error| error.why)?;
    let answer = web.get(&url, &Headers::default(), DEADLINE).await;
    let answer =
        answer.map_err(|error| format!("the token server {realm} does not answer: {error}"))?;
    if answer.status != StatusCode::OK {
        let status = answer.status.as_u16();
        return Err(format!("the token server {realm} answers with HTTP status {status}"));
    }
    let unreadable = || format!("the answer of the token server {realm} has no token");
    // The error of the parser would have the token.
    let token: Token = serde_json::from_slice(&answer.body).map_err(|_| unreadable())?;
    let token = if token.token.is_empty() { token.access_token } else { token.token };
    let header = HeaderValue::try_from(format!("Bearer {token}"));
    let mut header = header.ok().filter(|_| !token.is_empty()).ok_or_else(unreadable)?;
    header.set_sensitive(true);
    Ok(header)
}

/// A parameter of a challenge, `name="value",...`: a comma inside quotes belongs to the value.
fn parameter<'a>(mut rest: &'a str, wanted: &str) -> Option<&'a str> {
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        if name.trim_matches([' ', ',']).eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_a_challenge_are_found_by_name() {
        let text = r#"realm="https://auth.example/token?a=b",service="reg,istry", Scope=x"#;
        for (name, wanted) in [
            ("realm", Some("https://auth.example/token?a=b")),
            ("service", Some("reg,istry")),
            ("scope", Some("x")),
            ("error", None),
        ] {
            assert_eq!(parameter(text, name), wanted, "{name}");
        }
        assert_eq!(parameter("realm=\"x", "realm"), None);
    }
}
