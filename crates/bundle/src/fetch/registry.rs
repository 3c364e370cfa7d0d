//! Fetches bundles from a registry, with the pull part of the OCI distribution API.

use http::{HeaderValue, StatusCode, Uri, header::WWW_AUTHENTICATE};
use serde::Deserialize;

use super::{
    Limits, Reference, Version,
    auth::{Challenge, percent_encoded},
    http::{Http, Range, RequestOptions, Stream, refused},
};
use crate::{
    digest::Digest,
    error::Error,
    images::{self, Descriptor, ImageManifest},
    layout,
};

/// Size limit of an artifact manifest or token response, in bytes.
const MAX_ANSWER_BYTES: u64 = 16 << 20;

/// A registry and one artifact in it.
pub(crate) struct Registry {
    http: Http,
    reference: Reference,
    base: String,
    authorization: Option<HeaderValue>,
    artifact: Option<ImageManifest>,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

impl Registry {
    /// Prepares the client; sends no request yet.
    pub(crate) fn new(reference: &Reference, limits: &Limits) -> Result<Self, Error> {
        let scheme = if reference.plain { "http" } else { "https" };
        let base = format!("{scheme}://{}/v2/{}", reference.host, reference.repository);
        let http = Http::new(limits)?;
        Ok(Self { http, reference: reference.clone(), base, authorization: None, artifact: None })
    }

    /// Fetches the manifest or the signature of the bundle.
    pub(crate) async fn named(&mut self, name: &str) -> Result<Stream, Error> {
        let media_type = match name {
            layout::MANIFEST => images::BUNDLE_MANIFEST,
            _ => images::BUNDLE_SIGNATURE,
        };
        let layers = self.layers().await?;
        let layer = layers.into_iter().find(|layer| layer.media_type == media_type);
        let digest = layer.map(|layer| Digest::from_oci(&layer.digest));
        match digest {
            Some(Ok(digest)) => {
                self.get(&format!("/blobs/{}", digest.to_oci()), RequestOptions::default()).await
            }
            Some(Err(error)) => Err(self.invalid_answer(error.to_string())),
            None => Err(Error::Missing { what: format!("{name} of {}", self.reference) }),
        }
    }

    /// Fetches a content, or a range of it.
    pub(crate) async fn blob(&mut self, digest: &Digest, range: Range) -> Result<Stream, Error> {
        let options = RequestOptions { range: Some(range), ..RequestOptions::default() };
        self.get(&format!("/blobs/{}", digest.to_oci()), options).await
    }

    async fn layers(&mut self) -> Result<Vec<Descriptor>, Error> {
        if let Some(artifact) = &self.artifact {
            return Ok(artifact.layers.clone());
        }
        let options =
            RequestOptions { accept: Some(images::OCI_MANIFEST), ..RequestOptions::default() };
        let path = format!("/manifests/{}", self.reference.version.to_path());
        let stream = self.get(&path, options).await?;
        let bytes = self.all(stream).await?;
        if let Version::Digest(expected) = &self.reference.version {
            let found = Digest::of(&bytes);
            if found != *expected {
                return Err(Error::Content {
                    file: self.reference.to_string(),
                    expected: expected.clone(),
                    found,
                });
            }
        }
        let artifact: ImageManifest = serde_json::from_slice(&bytes).map_err(|error| {
            self.invalid_answer(format!("cannot read the artifact's manifest: {error}"))
        })?;
        if artifact.artifact_type.as_deref() != Some(images::ARTIFACT) {
            return Err(self.invalid_answer(format!(
                "not a bundle, expected artifact type {}",
                images::ARTIFACT
            )));
        }
        Ok(self.artifact.insert(artifact).layers.clone())
    }

    /// Sends a request; if the registry requires a login, logs in and repeats the request.
    async fn get(&mut self, path: &str, mut options: RequestOptions) -> Result<Stream, Error> {
        let uri = url(&format!("{}{path}", self.base))?;
        options.authorization.clone_from(&self.authorization);
        let mut response = self.http.get(&uri, &options).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            let header = response.headers().get(WWW_AUTHENTICATE);
            let challenge = header.and_then(|value| value.to_str().ok()).and_then(Challenge::parse);
            self.authorization = Some(self.log_in(&uri, challenge).await?);
            options.authorization.clone_from(&self.authorization);
            response = self.http.get(&uri, &options).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                return Err(refused(&uri, StatusCode::UNAUTHORIZED));
            }
        }
        self.http.stream(&uri, &options, response)
    }

    async fn log_in(&self, uri: &Uri, challenge: Option<Challenge>) -> Result<HeaderValue, Error> {
        let basic = self.http.credentials().basic_for(uri);
        let (realm, service) = match challenge {
            Some(Challenge::Bearer { realm, service }) => (realm, service),
            Some(Challenge::Basic) => {
                return basic.ok_or_else(|| refused(uri, StatusCode::UNAUTHORIZED));
            }
            None => {
                return Err(self.invalid_answer("unsupported authentication scheme".to_owned()));
            }
        };
        if !self.reference.plain && !realm.starts_with("https://") {
            return Err(self.invalid_answer(format!("the token endpoint {realm} is not HTTPS")));
        }
        let scope = format!("repository:{}:pull", self.reference.repository);
        let separator = if realm.contains('?') { '&' } else { '?' };
        let query =
            format!("service={}&scope={}", percent_encoded(&service), percent_encoded(&scope));
        let realm = url(&format!("{realm}{separator}{query}"))?;
        let options = RequestOptions {
            // The registry names its token server, so the registry's credentials may go there.
            authorization: basic.filter(|_| realm.scheme_str() == Some("https")),
            ..RequestOptions::default()
        };
        let response = self.http.get(&realm, &options).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            return Err(refused(&realm, StatusCode::UNAUTHORIZED));
        }
        let bytes = self.all(self.http.stream(&realm, &options, response)?).await?;
        // serde_json's error message would quote the token.
        let token: Token = serde_json::from_slice(&bytes)
            .map_err(|_| self.invalid_answer("cannot read the token".to_owned()))?;
        let token = if token.token.is_empty() { token.access_token } else { token.token };
        let mut header = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| self.invalid_answer("the token is not a valid header value".to_owned()))?;
        header.set_sensitive(true);
        Ok(header)
    }

    async fn all(&self, mut stream: Stream) -> Result<Vec<u8>, Error> {
        let file = self.reference.to_string();
        let expected = stream.length.unwrap_or(0);
        let mut bytes = Vec::new();
        loop {
            let found = bytes.len() as u64;
            let torn = |reason| Error::Torn { file: file.clone(), found, expected, reason };
            let Some(chunk) = stream.chunk().await.map_err(torn)? else {
                return Ok(bytes);
            };
            bytes.extend_from_slice(&chunk);
            if bytes.len() as u64 > MAX_ANSWER_BYTES {
                let limit = MAX_ANSWER_BYTES;
                return Err(Error::Large { file, limit });
            }
        }
    }

    fn invalid_answer(&self, problem: String) -> Error {
        Error::Answer { url: self.reference.to_string(), problem }
    }
}

fn url(text: &str) -> Result<Uri, Error> {
    text.parse().map_err(|_| Error::Url { url: text.to_owned(), problem: "not a URL".to_owned() })
}
