//! One call of a hook over HTTPS (`docs/facts/hooks.md#paths-and-http`).

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use refit_cluster_api::kinds::ExtensionClientConfig;
use refit_runtime::{
    client::{ClientStack, HttpsPoster},
    tls::ClientIdentity,
};
use serde_json::Value;

use crate::context::lock;

/// How much of an error response is shown.
const SHOWN_CHARACTERS: usize = 512;

/// The URL of an extension, and the CA bundle to trust.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    /// `https://host[:port][/base]`, without a trailing slash.
    pub(crate) base: String,
    /// PEM bundle.
    pub(crate) ca_pem: Vec<u8>,
}

impl Target {
    /// Reads an ExtensionConfig's `spec.clientConfig`.
    pub(crate) fn of(config: &ExtensionClientConfig) -> Result<Self, String> {
        let base = match (&config.url, &config.service) {
            (Some(url), None) => {
                if !url.starts_with("https://") {
                    let scheme = url.split("://").next().unwrap_or_default();
                    return Err(format!(
                        "failed to compute URL: expected https scheme, got {scheme}"
                    ));
                }
                url.trim_end_matches('/').to_owned()
            }
            (None, Some(service)) => {
                let path = service.path.as_deref().unwrap_or_default();
                let path = path.trim_matches('/');
                let slash = if path.is_empty() { "" } else { "/" };
                format!(
                    "https://{}.{}.svc:{}{slash}{path}",
                    service.name,
                    service.namespace,
                    service.port.unwrap_or(443)
                )
            }
            _ => {
                return Err("failed to compute URL: want exactly one of url and service".to_owned());
            }
        };
        let bundle = config.ca_bundle.as_deref().unwrap_or_default();
        if bundle.is_empty() {
            return Err("spec.clientConfig.caBundle is not set".to_owned());
        }
        let ca_pem = STANDARD
            .decode(bundle)
            .map_err(|error| format!("spec.clientConfig.caBundle is not base64: {error}"))?;
        Ok(Self { base, ca_pem })
    }

    /// The URL of a hook, with the timeout that the client enforces itself.
    pub(crate) fn url(&self, hook: &str, handler: Option<&str>, timeout_seconds: i32) -> String {
        format!(
            "{}{}?timeout={}",
            self.base,
            refit_kinds::hooks::path(hook, handler),
            go_duration(timeout_seconds)
        )
    }
}

/// Formats seconds as Go formats a duration.
fn go_duration(seconds: i32) -> String {
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

/// Calls hooks; connections are kept per target.
pub(crate) struct HookClient {
    stack: ClientStack,
    identity: Option<ClientIdentity>,
    posters: Mutex<BTreeMap<Target, HttpsPoster>>,
}

impl HookClient {
    /// A client that connects through `stack` and presents a certificate.
    pub(crate) fn new(stack: ClientStack, identity: Option<ClientIdentity>) -> Self {
        Self { stack, identity, posters: Mutex::default() }
    }

    /// Calls one hook and returns its response, whose status is `Success`.
    ///
    /// Requests contain secrets (`docs/facts/hooks.md#secrets-in-requests`): neither a request nor
    /// anything derived from it is logged here.
    pub(crate) async fn call(
        &self,
        target: &Target,
        (hook, handler): (&str, Option<&str>),
        request: &Value,
        timeout_seconds: i32,
    ) -> Result<Value, Refusal> {
        let poster = self.poster(target)?;
        let url = target.url(hook, handler, timeout_seconds);
        let deadline = Duration::from_secs(u64::try_from(timeout_seconds).unwrap_or(0));
        let body = request.to_string().into_bytes();
        let outcome = poster.post(&url, body, deadline).await;
        let (status, body) =
            outcome.map_err(|error| Refusal::Call(format!("http call failed: {error}")))?;
        read_answer(status, &body)
    }

    fn poster(&self, target: &Target) -> Result<HttpsPoster, Refusal> {
        let mut posters = lock(&self.posters);
        if let Some(poster) = posters.get(target) {
            return Ok(poster.clone());
        }
        let identity = self.identity.clone();
        let poster = HttpsPoster::presenting(&self.stack, &target.ca_pem, identity)
            .map_err(|error| Refusal::Call(error.to_string()))?;
        posters.insert(target.clone(), poster.clone());
        Ok(poster)
    }
}

/// Why a call returned no usable response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The call failed: failurePolicy applies only to this case
    /// (`docs/facts/hooks.md#failure-policy`).
    Call(String),
    /// The extension returned `Failure` or an unknown status.
    Answer(String),
}

impl Refusal {
    /// The reason as text.
    pub(crate) fn into_reason(self) -> String {
        match self {
            Self::Call(reason) | Self::Answer(reason) => reason,
        }
    }
}

fn read_answer(status: u16, body: &[u8]) -> Result<Value, Refusal> {
    if status != 200 {
        let text = String::from_utf8_lossy(body);
        let shown: String = text.chars().take(SHOWN_CHARACTERS).collect();
        return Err(Refusal::Call(format!(
            "http call failed: got response with status code {status} != 200: response : {shown:?}"
        )));
    }
    let first = serde_json::Deserializer::from_slice(body).into_iter::<Value>().next();
    let answer = match first {
        Some(Ok(answer @ Value::Object(_))) => answer,
        Some(Ok(_)) | None => {
            return Err(Refusal::Call(
                "failed to decode response: no JSON object in it".to_owned(),
            ));
        }
        Some(Err(error)) => {
            return Err(Refusal::Call(format!("failed to decode response: {error}")));
        }
    };
    let message = answer["message"].as_str().unwrap_or_default();
    match answer["status"].as_str().unwrap_or_default() {
        "Success" => Ok(answer),
        "Failure" => Err(Refusal::Answer(format!("got failure response with message: {message}"))),
        status => Err(Refusal::Answer(format!(
            "got unknown response status {status:?} with message: {message}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use refit_cluster_api::kinds::ExtensionService;

    use super::*;

    fn service(path: Option<&str>, port: Option<i32>) -> ExtensionClientConfig {
        ExtensionClientConfig {
            url: None,
            service: Some(ExtensionService {
                namespace: "refit-system".to_owned(),
                name: "refit-webhook".to_owned(),
                path: path.map(str::to_owned),
                port,
            }),
            ca_bundle: Some(STANDARD.encode("pem")),
        }
    }

    #[test]
    fn urls_are_built_as_cluster_api_builds_them() {
        let cases = [
            (None, None, "https://refit-webhook.refit-system.svc:443"),
            (Some("/v1.12/"), Some(9443), "https://refit-webhook.refit-system.svc:9443/v1.12"),
        ];
        for (path, port, base) in cases {
            let target = Target::of(&service(path, port)).unwrap();
            assert_eq!(
                target.url("UpdateMachine", Some("update-machine"), 10),
                format!(
                    "{base}/hooks.runtime.cluster.x-k8s.io/v1alpha1/updatemachine/update-machine?timeout=10s"
                )
            );
        }
        let mut config = service(None, None);
        config.service = None;
        config.url = Some("https://localhost:9443/base/".to_owned());
        let target = Target::of(&config).unwrap();
        assert_eq!(
            target.url("Discovery", None, 10),
            "https://localhost:9443/base/hooks.runtime.cluster.x-k8s.io/v1alpha1/discovery?timeout=10s"
        );
    }

    #[test]
    fn only_https_with_a_ca_bundle_is_called() {
        let mut config = service(None, None);
        config.service = None;
        config.url = Some("http://localhost".to_owned());
        assert_eq!(
            Target::of(&config).unwrap_err(),
            "failed to compute URL: expected https scheme, got http"
        );
        let mut config = service(None, None);
        config.ca_bundle = None;
        assert!(Target::of(&config).unwrap_err().contains("caBundle"));
        config.ca_bundle = Some("%".to_owned());
        assert!(Target::of(&config).unwrap_err().contains("not base64"));
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        assert_eq!(go_duration(10), "10s");
        assert_eq!(go_duration(60), "1m0s");
        assert_eq!(go_duration(75), "1m15s");
    }

    #[test]
    fn answers_are_read_as_cluster_api_reads_them() {
        let ok = br#"{"status":"Success","retryAfterSeconds":5,"unknown":1} trailing"#;
        assert_eq!(read_answer(200, ok).unwrap()["retryAfterSeconds"], 5);
        let cases: [(u16, &str, Refusal); 5] = [
            (
                500,
                "oops",
                Refusal::Call(
                    "http call failed: got response with status code 500 != 200: response : \"oops\""
                        .to_owned(),
                ),
            ),
            (
                200,
                r#"{"status":"Failure","message":"not now"}"#,
                Refusal::Answer("got failure response with message: not now".to_owned()),
            ),
            (
                200,
                r#"{"message":"m"}"#,
                Refusal::Answer("got unknown response status \"\" with message: m".to_owned()),
            ),
            (
                200,
                "[]",
                Refusal::Call("failed to decode response: no JSON object in it".to_owned()),
            ),
            (
                200,
                "",
                Refusal::Call("failed to decode response: no JSON object in it".to_owned()),
            ),
        ];
        for (status, body, want) in cases {
            assert_eq!(read_answer(status, body.as_bytes()).unwrap_err(), want);
        }
    }
}
