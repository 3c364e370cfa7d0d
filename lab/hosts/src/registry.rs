//! Container images made of local programs, and a registry that serves them on the bridge.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::{Ready, ready},
    path::{Path, PathBuf},
    sync::Arc,
    task::{Context, Poll},
};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use refit_runtime::{net::Listener, serve::serve};
use serde_json::json;

use crate::{net, packages::sha256, run};

/// Port of the registry.
pub const PORT: u16 = 5000;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// kubeadm's names of the control plane programs; each has its own image.
const CONTROL_PLANE: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// Waits for a termination signal. With `-v` it exits immediately: kubeadm's health check runs it
/// that way.
const PAUSE: &str = "\
#!/bin/busybox sh
[ \"$1\" = -v ] && exit 0
trap 'exit 0' TERM INT
while :; do /bin/busybox sleep 3600 & wait $!; done
";
/// Tags of the pause image, as kubelets and kubeadm of different versions request it.
const PAUSE_TAGS: [&str; 5] = ["3.8", "3.9", "3.10", "3.10.1", "3.10.2"];

/// Images by name and tag.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    blobs: BTreeMap<String, (&'static str, Bytes)>,
    tags: BTreeMap<String, String>,
}

/// A file of an image.
struct File {
    path: String,
    bytes: Vec<u8>,
}

impl Registry {
    /// Builds the images of these control plane versions, of Debian's etcd, and of pause; the pause
    /// image also runs the tests' application.
    pub async fn of(
        versions: &[(String, PathBuf)],
        base: &Path,
        etcd_tags: &[&str],
    ) -> anyhow::Result<Self> {
        let mut registry = Self::default();
        for (version, directory) in versions {
            for name in CONTROL_PLANE {
                let file = File::read(&directory.join(name), &format!("usr/local/bin/{name}"))?;
                registry.add(name, &[version.as_str()], vec![file], name)?;
            }
        }
        let mut etcd = Vec::new();
        for name in ["etcd", "etcdctl"] {
            let program = format!("usr/bin/{name}");
            etcd.extend(with_libraries(base, &program).await?);
        }
        registry.add("etcd", etcd_tags, etcd, "etcd")?;
        let pause = vec![
            File::read(&base.join("bin/busybox"), "bin/busybox")?,
            File { path: "pause".to_owned(), bytes: PAUSE.into() },
        ];
        registry.add("pause", &PAUSE_TAGS, pause, "/pause")?;
        Ok(registry)
    }

    fn add(
        &mut self,
        name: &str,
        tags: &[&str],
        files: Vec<File>,
        entry: &str,
    ) -> anyhow::Result<()> {
        let layer = layer(files)?;
        let layer_size = layer.len();
        let layer = self.blob(LAYER, layer);
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": [entry], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer]},
        })
        .to_string();
        let config_size = config.len();
        let config = self.blob(CONFIG, config.into_bytes());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": config, "size": config_size},
            "layers": [{"mediaType": LAYER, "digest": layer, "size": layer_size}],
        })
        .to_string();
        let manifest = self.blob(MANIFEST, manifest.into_bytes());
        for tag in tags {
            self.tags.insert(format!("{name}:{tag}"), manifest.clone());
        }
        Ok(())
    }

    fn blob(&mut self, kind: &'static str, bytes: Vec<u8>) -> String {
        let digest = format!("sha256:{}", sha256(&bytes));
        self.blobs.insert(digest.clone(), (kind, bytes.into()));
        digest
    }

    /// Serves the images on the bridge until the runtime ends.
    pub async fn serve(self: &Arc<Self>) -> anyhow::Result<()> {
        let address = format!("{}:{PORT}", net::SWITCH).parse()?;
        let listener = Listener::tcp(address).await?;
        let service = Service(self.clone());
        tokio::spawn(serve(listener, None, service, std::future::pending()));
        Ok(())
    }

    /// Finds the content at `/v2/NAME/manifests/REFERENCE` or `/v2/NAME/blobs/DIGEST`.
    fn find(&self, path: &str) -> Option<(&str, &'static str, Bytes)> {
        let mut words = path.trim_start_matches("/v2/").rsplitn(3, '/');
        let (reference, _, name) = (words.next()?, words.next()?, words.next()?);
        let digest = match self.tags.get(&format!("{name}:{reference}")) {
            Some(digest) => digest.as_str(),
            None => reference,
        };
        let (digest, (kind, bytes)) = self.blobs.get_key_value(digest)?;
        Some((digest, kind, bytes.clone()))
    }
}

impl File {
    fn read(from: &Path, path: &str) -> anyhow::Result<Self> {
        let bytes =
            std::fs::read(from).with_context(|| format!("failed to read {}", from.display()))?;
        Ok(Self { path: path.to_owned(), bytes })
    }
}

/// Returns a program of a root and the libraries that it needs.
async fn with_libraries(base: &Path, program: &str) -> anyhow::Result<Vec<File>> {
    let root = base.display().to_string();
    let list = run("chroot", [&root, "ldd", &format!("/{program}")]).await;
    // A statically linked program has none, and ldd reports that as a failure.
    let list = list.unwrap_or_default();
    let libraries = list.lines().filter_map(|line| {
        let paths = line.split_whitespace().filter(|word| word.starts_with('/'));
        paths.map(str::to_owned).next()
    });
    let mut files = vec![File::read(&base.join(program), program)?];
    for path in libraries {
        let path = path.trim_start_matches('/');
        files.push(File::read(&base.join(path), path)?);
    }
    Ok(files)
}

fn layer(files: Vec<File>) -> anyhow::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut seen = std::collections::BTreeSet::new();
    for file in files {
        if !seen.insert(file.path.clone()) {
            continue;
        }
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(file.bytes.len())?);
        header.set_mode(0o755);
        header.set_cksum();
        archive.append_data(&mut header, &file.path, file.bytes.as_slice())?;
    }
    Ok(archive.into_inner()?)
}

#[derive(Clone)]
struct Service(Arc<Registry>);

impl tower::Service<Request<Incoming>> for Service {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let path = request.uri().path();
        let mut answer = Response::new(Full::default());
        if path.trim_end_matches('/') == "/v2" {
            return ready(Ok(answer));
        }
        match self.0.find(path) {
            Some((digest, kind, bytes)) => {
                let headers = answer.headers_mut();
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
                if let Ok(digest) = HeaderValue::from_str(digest) {
                    headers.insert("Docker-Content-Digest", digest);
                }
                *answer.body_mut() = Full::new(bytes);
            }
            None => *answer.status_mut() = StatusCode::NOT_FOUND,
        }
        ready(Ok(answer))
    }
}
