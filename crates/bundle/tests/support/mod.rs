//! Inputs for bundles, and an HTTP server that misbehaves on demand.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use refit_bundle::{
    Digest, PublicKeys,
    build::{self, Built, FileSpec, ImageSpec, PackageSpec, SecretKey, Spec},
    fetch::{Limits, Location, Request, Staged, Wanted, stage},
    manifest::{Architecture, OsFamily},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// Inputs, a key, and directories for bundles and staging.
pub(crate) struct World {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) key: SecretKey,
    pub(crate) keys: PublicKeys,
}

impl World {
    pub(crate) fn new() -> Self {
        // Use memory if possible: these files need not survive a power loss.
        let memory = tempfile::tempdir_in("/dev/shm");
        let directory = memory.or_else(|_| tempfile::tempdir()).unwrap();
        let inputs = directory.path().join("inputs");
        fs::create_dir(&inputs).unwrap();
        for (name, filler) in [("kubeadm", 20_000), ("kubelet", 70_000)] {
            fs::write(inputs.join(format!("{name}.deb")), deb(name, filler)).unwrap();
        }
        fs::write(inputs.join("image.tar"), docker_archive("registry.example/app:1", b"shared"))
            .unwrap();
        fs::write(inputs.join("other.tar"), docker_archive("registry.example/other:1", b"shared"))
            .unwrap();
        fs::write(inputs.join("os.cosi"), noise(7, 3_000)).unwrap();
        let files = build::key::generate(&directory.path().join("release"), None).unwrap();
        Self {
            key: SecretKey::load(&files.secret, None).unwrap(),
            keys: PublicKeys::load(&files.public).unwrap(),
            directory,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn spec(&self) -> Spec {
        let input = |name: &str| self.path("inputs").join(name);
        Spec {
            os_family: Some(OsFamily::Debian),
            packages: vec![PackageSpec { path: self.path("inputs"), ..PackageSpec::default() }],
            images: ["image.tar", "other.tar"]
                .map(|name| ImageSpec { path: input(name), name: None })
                .into(),
            os_images: vec![FileSpec { path: input("os.cosi"), name: None }],
            ..Spec::new("v1.35.0".parse().unwrap(), Architecture::Amd64)
        }
    }

    /// Without the images: their archives would be treated as tarballs of binaries.
    pub(crate) fn packages(&self) -> Vec<PackageSpec> {
        let deb = |name: &str| PackageSpec {
            path: self.path("inputs").join(name),
            ..PackageSpec::default()
        };
        vec![deb("kubeadm.deb"), deb("kubelet.deb")]
    }

    pub(crate) fn build(&self, name: &str) -> (PathBuf, Built) {
        let spec = Spec { packages: self.packages(), ..self.spec() };
        let output = self.path(name);
        let built = build::build(&spec, &self.key, &output).unwrap();
        (output, built)
    }

    pub(crate) async fn stage(
        &self,
        location: &str,
        directory: &str,
    ) -> Result<Staged, refit_bundle::Error> {
        self.stage_wanted(location, directory, &Wanted::default(), &limits()).await
    }

    pub(crate) async fn stage_wanted(
        &self,
        location: &str,
        directory: &str,
        wanted: &Wanted,
        limits: &Limits,
    ) -> Result<Staged, refit_bundle::Error> {
        let location: Location = location.parse().unwrap();
        let request = Request {
            location: &location,
            keys: &self.keys,
            directory: &self.path(directory),
            limits,
            wanted,
            progress: None,
        };
        stage(&request).await
    }
}

pub(crate) fn limits() -> Limits {
    Limits {
        keep_free: 0,
        silence_timeout: std::time::Duration::from_millis(300),
        connect_timeout: std::time::Duration::from_secs(2),
        ..Limits::default()
    }
}

/// Bytes that do not repeat.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Reads every file below a directory, by path.
pub(crate) fn tree(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(directory).unwrap().display().to_string();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn tar_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append_data(&mut header, name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

pub(crate) fn deb(name: &str, filler: usize) -> Vec<u8> {
    let control = format!("Package: {name}\nVersion: 1.35.0-1.1\nArchitecture: amd64\n");
    let control = tar_of(&[("./control", control.as_bytes())]);
    let data = noise(name.len() as u64 + 3, filler);
    let mut bytes = b"!<arch>\n".to_vec();
    for (member, content) in
        [("debian-binary", &b"2.0\n"[..]), ("control.tar", &control), ("data.tar", &data)]
    {
        writeln!(
            bytes,
            "{member:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`",
            0,
            0,
            0,
            100_644,
            content.len()
        )
        .unwrap();
        bytes.extend_from_slice(content);
    }
    bytes
}

/// The format of `docker save` before Docker 25.
pub(crate) fn docker_archive(name: &str, shared: &[u8]) -> Vec<u8> {
    let layers = [shared.repeat(2000), noise(name.len() as u64, 9000)];
    let ids = layers.each_ref().map(|layer| Digest::of(layer).to_oci());
    let config = format!(
        r#"{{"architecture":"amd64","os":"linux","rootfs":{{"type":"layers","diff_ids":["{}","{}"]}}}}"#,
        ids[0], ids[1]
    );
    let manifest = format!(
        r#"[{{"Config":"c.json","RepoTags":["{name}"],"Layers":["a/layer.tar","b/layer.tar"]}}]"#
    );
    tar_of(&[
        ("c.json", config.as_bytes()),
        ("a/layer.tar", &layers[0]),
        ("b/layer.tar", &layers[1]),
        ("manifest.json", manifest.as_bytes()),
    ])
}

/// A request that the server received.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedRequest {
    pub(crate) path: String,
    pub(crate) range: Option<(usize, usize)>,
    pub(crate) authorization: Option<String>,
}

/// A response of the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Closes the connection after this many bytes of the body.
    pub(crate) cut: Option<usize>,
    /// Sends nothing after the body but keeps the connection open.
    pub(crate) stall: bool,
    /// Omits the length and closes the connection after the body.
    pub(crate) endless: bool,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub(crate) fn ok(body: Vec<u8>) -> Self {
        Self { status: 200, body, ..Self::default() }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Serves these bytes, or the requested range of them.
    pub(crate) fn ranged(request: &ReceivedRequest, body: &[u8]) -> Self {
        match request.range {
            None => Self::ok(body.to_vec()),
            Some((from, _)) if from >= body.len() => Self::status(416),
            Some((from, to)) => {
                let to = (to + 1).min(body.len());
                let range = format!("bytes {from}-{}/{}", to - 1, body.len());
                Self { status: 206, body: body[from..to].to_vec(), ..Self::default() }
                    .with("Content-Range", range)
            }
        }
    }
}

/// An HTTP server.
pub(crate) struct Server {
    pub(crate) address: String,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    pub(crate) async fn new(
        handler: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, handler) = (requests.clone(), Arc::new(handler));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (log, handler) = (log.clone(), handler.clone());
                tokio::spawn(async move {
                    // The client may disconnect at any time.
                    let _ = converse(stream, &log, &*handler).await;
                });
            }
        });
        Self { address, requests, task }
    }

    /// Serves a directory as it is.
    pub(crate) async fn directory(root: PathBuf) -> Self {
        Self::new(move |request| from_directory(&root, request)).await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Returns the requests received so far.
    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn forget(&self) {
        self.requests.lock().unwrap().clear();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves a file of a directory.
pub(crate) fn from_directory(root: &Path, request: &ReceivedRequest) -> Reply {
    match fs::read(root.join(request.path.trim_start_matches('/'))) {
        Ok(bytes) => Reply::ranged(request, &bytes),
        Err(_) => Reply::status(404),
    }
}

async fn converse(
    mut stream: TcpStream,
    log: &Mutex<Vec<ReceivedRequest>>,
    handler: &(dyn Fn(&ReceivedRequest) -> Reply + Send + Sync),
) -> std::io::Result<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let request = parse(&String::from_utf8(head).unwrap());
        log.lock().unwrap().push(request.clone());
        let reply = handler(&request);
        let mut text = format!("HTTP/1.1 {} X\r\n", reply.status);
        let has_length = reply.headers.iter().any(|(name, _)| name == "Content-Length");
        if !reply.endless && !has_length {
            let length = reply.body.len();
            text = format!("{text}Content-Length: {length}\r\n");
        }
        if reply.endless {
            text += "Connection: close\r\n";
        }
        for (name, value) in &reply.headers {
            text = format!("{text}{name}: {value}\r\n");
        }
        text += "\r\n";
        stream.write_all(text.as_bytes()).await?;
        let end = reply.cut.unwrap_or(usize::MAX).min(reply.body.len());
        stream.write_all(&reply.body[..end]).await?;
        stream.flush().await?;
        if reply.stall {
            std::future::pending::<()>().await;
        }
        if reply.endless || end < reply.body.len() {
            return stream.shutdown().await;
        }
    }
}

fn parse(head: &str) -> ReceivedRequest {
    let header = |name: &str| {
        let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let mut found = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.trim().to_owned())
    };
    let range = header("range").and_then(|range| {
        let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
        let last = if to.is_empty() { usize::MAX - 1 } else { to.parse().ok()? };
        Some((from.parse().ok()?, last))
    });
    ReceivedRequest {
        path: head.split(' ').nth(1).unwrap_or_default().to_owned(),
        range,
        authorization: header("authorization"),
    }
}

pub(crate) fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Lists the staging directory without its subdirectories and lock file.
pub(crate) fn leftovers(world: &World, directory: &str) -> Vec<String> {
    let names = tree(&world.path(directory)).into_keys();
    names.filter(|name| name != "lock").collect()
}

/// A registry with one artifact, pushed from a bundle the way OCI tools do.
pub(crate) async fn registry(directory: &Path, login: Option<&'static str>) -> Server {
    let root: PathBuf = directory.to_owned();
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(root.join("index.json")).unwrap()).unwrap();
    let entry = index["manifests"][0].clone();
    let name = |key: &str| entry["annotations"][key].as_str().unwrap().to_owned();
    let (tag, digest) =
        (name("org.opencontainers.image.ref.name"), entry["digest"].as_str().unwrap().to_owned());
    Server::new(move |request| {
        if request.path.starts_with("/token") {
            assert!(
                request.path.contains("scope=repository:mirror/bundle:pull"),
                "{}",
                request.path
            );
            return Reply::ok(br#"{"token":"good"}"#.to_vec());
        }
        if let Some(challenge) = login
            && request.authorization.as_deref() != Some("Bearer good")
        {
            return Reply::status(401).with("WWW-Authenticate", challenge);
        }
        let rest = request.path.strip_prefix("/v2/mirror/bundle/").unwrap_or_default();
        let digest = match rest.split_once('/') {
            Some(("manifests", version)) if version == tag || version == digest => &digest,
            Some(("blobs", digest)) => digest,
            _ => return Reply::status(404),
        };
        let path = format!("/blobs/sha256/{}", digest.trim_start_matches("sha256:"));
        from_directory(&root, &ReceivedRequest { path, ..request.clone() })
    })
    .await
}
