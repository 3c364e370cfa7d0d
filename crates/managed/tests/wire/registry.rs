//! The registry of a release image: row 38, with Debian's `docker-registry`, and with one that demands a token.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{
    Method, Request, StatusCode,
    header::{CONTENT_TYPE, LOCATION, WWW_AUTHENTICATE},
};
use kube::{Client, client::Body};
use refit_managed::remote::Remote;
use refit_openshift::{
    Compat,
    validation::{ImageRef, RELEASE_LABEL},
};
use refit_runtime::{Clock, client::ClientStack, tls::Authority};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::bed::{Bed, reply, validity};

const DOCKER: &str = "application/vnd.docker.distribution.manifest.v2+json";

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

fn config(labels: &Value) -> Vec<u8> {
    json!({"architecture": "amd64", "os": "linux", "config": {"Labels": labels},
           "rootfs": {"type": "layers", "diff_ids": []}})
    .to_string()
    .into_bytes()
}

fn manifest(config: &[u8]) -> Vec<u8> {
    json!({
        "schemaVersion": 2, "mediaType": DOCKER, "layers": [],
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json",
                   "size": config.len(), "digest": digest(config)},
    })
    .to_string()
    .into_bytes()
}

/// A registry program with TLS on a free port.
struct Registry {
    child: Child,
    _directory: TempDir,
    stack: ClientStack,
    client: Client,
    host: String,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    async fn start() -> Self {
        let authority = Authority::new("registry", validity()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let server = authority.server(&["localhost", "127.0.0.1"], validity()).unwrap();
        std::fs::write(path("cert.pem"), &server.cert_pem).unwrap();
        std::fs::write(path("key.pem"), &server.key_pem).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = json!({
            "version": "0.1",
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": path("data")}},
            "http": {
                "addr": format!("127.0.0.1:{port}"),
                "tls": {"certificate": path("cert.pem"), "key": path("key.pem")},
            },
        });
        std::fs::write(path("config.yml"), config.to_string()).unwrap();
        let child = Command::new("docker-registry")
            .args(["serve".into(), path("config.yml")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("no docker-registry, install it with `apt-get install docker-registry`");
        let ca = authority.material().cert_pem.as_bytes();
        let stack = ClientStack::production("test/1").with_extra_roots(ca).unwrap();
        let client = stack.web_client().unwrap();
        let host = format!("127.0.0.1:{port}");
        let registry = Self { child, _directory: directory, stack, client, host };
        for _ in 0..200 {
            let request = Request::get(registry.url("/v2/")).body(Body::empty()).unwrap();
            if registry.client.send(request).await.is_ok() {
                return registry;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("docker-registry does not answer at {}", registry.host);
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.host)
    }

    async fn write(&self, method: Method, url: &str, kind: &str, body: Vec<u8>) -> Option<String> {
        let request = Request::builder().method(method).uri(url).header(CONTENT_TYPE, kind);
        let response = self.client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
        let status = response.status();
        assert!([StatusCode::CREATED, StatusCode::ACCEPTED].contains(&status), "{url}: {status}");
        let location = response.headers().get(LOCATION)?;
        Some(location.to_str().unwrap().to_owned())
    }

    /// Pushes an image with this config.
    async fn push(&self, repository: &str, config: Vec<u8>) -> ImageRef {
        let bytes = "application/octet-stream";
        let manifest = manifest(&config);
        let uploads = self.url(&format!("/v2/{repository}/blobs/uploads/"));
        let upload = self.write(Method::POST, &uploads, bytes, Vec::new()).await.unwrap();
        let separator = if upload.contains('?') { '&' } else { '?' };
        let upload = format!("{upload}{separator}digest={}", digest(&config));
        self.write(Method::PUT, &upload, bytes, config).await;
        let digest = digest(&manifest);
        let url = self.url(&format!("/v2/{repository}/manifests/{digest}"));
        self.write(Method::PUT, &url, DOCKER, manifest).await;
        ImageRef::parse(&format!("{}/{repository}@{digest}", self.host)).unwrap()
    }
}

#[tokio::test]
async fn the_version_of_a_release_image_is_its_label() {
    let registry = Registry::start().await;
    let bed = Bed::new().await;
    let remote = Remote::new(registry.stack.clone(), bed.client(), Clock::real(), Compat::Repaired);
    let remote = remote.unwrap();
    let image = registry.push("ocp/release", config(&json!({RELEASE_LABEL: "4.16.3"}))).await;
    assert_eq!(remote.release(&image).await.unwrap(), "4.16.3");

    let other = registry.push("ocp/other", config(&json!({"a": "b"}))).await;
    let error = remote.release(&other).await.unwrap_err();
    assert!(error.contains("it has no label io.openshift.release"), "{error}");
    let missing = ImageRef { digest: digest(b"missing"), ..image.clone() };
    let error = remote.release(&missing).await.unwrap_err();
    assert!(error.contains("HTTP status 404") && error.contains(&missing.digest), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_version_of_a_release_is_read_with_the_token_that_a_registry_demands() {
    let bed = Bed::new().await;
    let config = config(&json!({RELEASE_LABEL: "4.16.3"}));
    let manifest = manifest(&config);
    let (image_digest, config_digest) = (digest(&manifest), digest(&config));
    let tokens = bed.answer("auth.example", 443, |_| reply(200, r#"{"token": "for-all"}"#));
    let forged = Arc::new(AtomicUsize::new(0));
    let is_forged = forged.clone();
    let blobs = format!("/v2/ocp/release/blobs/{config_digest}");
    let received = bed.answer("quay.example", 443, move |one| {
        if one.authorization != "Bearer for-all" {
            let mut response = reply(401, "");
            let challenge = "Bearer realm=\"https://auth.example/token\",service=\"quay.example\"";
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge.parse().unwrap());
            return response;
        }
        match one.line.strip_prefix("GET ") {
            Some(path) if path == blobs => {
                let mut response = reply(307, "");
                let location = "https://cdn.example/blob".parse().unwrap();
                response.headers_mut().insert(LOCATION, location);
                response
            }
            Some(path) if path.starts_with("/v2/ocp/release/manifests/") => {
                reply(200, manifest.clone())
            }
            _ => reply(404, ""),
        }
    });
    let cdn = bed.answer("cdn.example", 443, move |_| {
        let mut config = config.clone();
        if is_forged.load(Ordering::SeqCst) > 0 {
            config.push(b' ');
        }
        reply(200, config)
    });
    let image = ImageRef::parse(&format!("quay.example/ocp/release@{image_digest}")).unwrap();
    let remote = bed.remote(Compat::Repaired);
    assert_eq!(remote.release(&image).await.unwrap(), "4.16.3");
    let line = "GET /token?service=quay.example&scope=repository%3Aocp%2Frelease%3Apull";
    let asked = tokens.lock().unwrap().clone();
    assert_eq!(asked.len(), 1, "one token for both");
    assert_eq!((&*asked[0].line, &*asked[0].authorization), (line, ""));
    assert_eq!(received.lock().unwrap().len(), 3);
    assert_eq!(cdn.lock().unwrap()[0].authorization, "", "no token for another host");

    forged.store(1, Ordering::SeqCst);
    let error = remote.release(&image).await.unwrap_err();
    assert!(error.contains("has the digest sha256:"), "{error}");
    let wrong = ImageRef { digest: digest(b"other"), ..image };
    let error = remote.release(&wrong).await.unwrap_err();
    assert!(error.contains("has the digest sha256:"), "{error}");
}
