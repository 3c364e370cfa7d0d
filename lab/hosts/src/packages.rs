//! The tests' own packages and the repository that serves them.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fmt::Write as _,
    fs,
    future::{Ready, ready},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use refit_runtime::{net::Listener, serve::serve};
use sha2::{Digest as _, Sha256};

use crate::{net, run};

/// The Kubernetes versions in the repository, each with its container runtime.
pub const VERSIONS: [(&str, &str); 3] =
    [("1.34.2", "1.7.24"), ("1.35.0", "2.1.4"), ("1.35.1", "2.1.5")];

/// Builds of a vendor in the repository, without a container runtime of their own.
pub const BUILDS: [&str; 2] = ["1.34.2+vmware.1", "1.35.0+vmware.1"];
/// Packages in the repository that have nothing to do with Kubernetes, with their versions in order; the host must boot for the
/// second. Hosts have the first versions.
pub const SITE: [(&str, [&str; 3], &str); 2] = [
    ("site-tool", ["1.0-1", "1.1-1", "1.2-1"], ""),
    ("site-kernel", ["1.0-1", "1.1-1", "1.2-1"], REQUIRES_BOOT),
];
/// What Debian's packages of kernels do once they are configured, with `update-notifier`'s hook.
const REQUIRES_BOOT: &str = "\
touch /run/reboot-required
echo PACKAGE >> /run/reboot-required.pkgs
";
/// Port of the repository.
const PORT: u16 = 8080;

const KUBELET_UNIT: &str = "\
[Unit]
Description=kubelet: The Kubernetes Node Agent
After=network.target
StartLimitIntervalSec=0

[Service]
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf $KUBELET_KUBEADM_ARGS
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
";
const CONTAINERD_UNIT: &str = "\
[Unit]
Description=containerd container runtime

[Service]
Type=notify
ExecStart=/usr/bin/containerd
Restart=always
KillMode=process

[Install]
WantedBy=multi-user.target
";
/// Runs the script that a test left for a point of a package's installation, once.
const SCRIPT: &str = "\
#!/bin/sh
set -e
f=/var/lib/stub/dpkg-PACKAGE.POINT
if [ -e $f ]; then mv $f $f.taken; . $f.taken; fi
";
const ENABLE: &str = "\
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
systemctl enable --quiet PACKAGE.service
";

/// A repository of stand-ins, in a directory.
#[derive(Debug)]
pub struct Repository {
    directory: PathBuf,
    stanzas: Vec<String>,
}

impl Repository {
    /// Creates an empty repository below `directory`.
    pub fn new(directory: &Path) -> anyhow::Result<Self> {
        let directory = directory.join("repository");
        fs::create_dir_all(&directory)?;
        Ok(Self { directory, stanzas: Vec::new() })
    }

    /// Returns the directory of the repository.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Adds the stand-ins of every version, all made from one program.
    pub async fn add_stubs(&mut self, stub: &Path) -> anyhow::Result<()> {
        let stripped = self.directory.join("stub");
        let arguments = ["-o".as_ref(), stripped.as_os_str(), stub.as_os_str()];
        run("strip", arguments).await?;
        let program = fs::read(&stripped)?;
        // It has Debian's name; hosts get it without a package.
        fs::write(self.directory.join("etcdctl"), named(&program, "etcdctl", "3.6.5"))?;
        for version in VERSIONS.map(|(version, _)| version).into_iter().chain(BUILDS) {
            for name in ["kubeadm", "kubectl", "kubelet"] {
                let stub = named(&program, name, version);
                let files = BTreeMap::from([(format!("usr/bin/{name}"), stub)]);
                let unit = (name == "kubelet").then_some(KUBELET_UNIT);
                self.add(name, &format!("{version}-1.1"), files, unit).await?;
            }
        }
        for (_, version) in VERSIONS {
            let stub = named(&program, "containerd", version);
            let files = BTreeMap::from([("usr/bin/containerd".to_owned(), stub)]);
            self.add("containerd", &format!("{version}-1"), files, Some(CONTAINERD_UNIT)).await?;
        }
        Ok(())
    }

    /// Adds every version of the packages of a site.
    pub async fn add_site(&mut self) -> anyhow::Result<()> {
        for (name, versions, configure) in SITE {
            for version in versions {
                let program = format!("#!/bin/sh\necho {version}\n").into_bytes();
                let files = BTreeMap::from([(format!("usr/bin/{name}"), program)]);
                self.build(name, version, (files, None), configure).await?;
            }
        }
        Ok(())
    }

    /// Adds a package with these programs. With a unit, it is a service, enabled on installation.
    pub async fn add(
        &mut self,
        name: &str,
        version: &str,
        programs: BTreeMap<String, Vec<u8>>,
        unit: Option<&str>,
    ) -> anyhow::Result<()> {
        let configure = if unit.is_some() { ENABLE } else { "" };
        self.build(name, version, (programs, unit), configure).await
    }

    /// Adds a package that ends its configuration with these lines of shell.
    async fn build(
        &mut self,
        name: &str,
        version: &str,
        (programs, unit): (BTreeMap<String, Vec<u8>>, Option<&str>),
        configure: &str,
    ) -> anyhow::Result<()> {
        let build = self.directory.join("build");
        let write = |path: &str, bytes: &[u8], mode: u32| -> anyhow::Result<()> {
            let path = build.join(path);
            fs::create_dir_all(path.parent().context("the path has no parent directory")?)?;
            fs::write(&path, bytes)?;
            Ok(fs::set_permissions(&path, fs::Permissions::from_mode(mode))?)
        };
        for (path, bytes) in &programs {
            write(path, bytes, 0o755)?;
        }
        if let Some(unit) = unit {
            write(&format!("usr/lib/systemd/system/{name}.service"), unit.as_bytes(), 0o644)?;
        }
        let control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: tests\n\
             Description: stands in for {name}\n"
        );
        write("DEBIAN/control", control.as_bytes(), 0o644)?;
        for point in ["preinst", "postinst", "prerm"] {
            let mut text = SCRIPT.replace("PACKAGE", name).replace("POINT", point);
            if point == "postinst" {
                text.push_str(&configure.replace("PACKAGE", name));
            }
            write(&format!("DEBIAN/{point}"), text.as_bytes(), 0o755)?;
        }
        let file = format!("{name}_{version}_amd64.deb");
        let path = self.directory.join(&file);
        let (from, to) = (build.display().to_string(), path.display().to_string());
        run("dpkg-deb", ["--root-owner-group", "-Znone", "--build", &from, &to]).await?;
        fs::remove_dir_all(&build)?;
        let bytes = fs::read(&path)?;
        self.stanzas.push(format!(
            "{control}Filename: ./{file}\nSize: {}\nSHA256: {}\n",
            bytes.len(),
            sha256(&bytes)
        ));
        Ok(())
    }

    /// Serves the repository on the bridge until the runtime ends.
    pub async fn serve(&self) -> anyhow::Result<Mirror> {
        let packages = self.stanzas.join("\n");
        let release = format!(
            "Suite: test\nCodename: test\nArchitectures: amd64\nSHA256:\n {} {} Packages\n",
            sha256(packages.as_bytes()),
            packages.len()
        );
        fs::write(self.directory.join("Packages"), packages)?;
        fs::write(self.directory.join("Release"), release)?;
        let address = format!("{}:{PORT}", net::SWITCH).parse()?;
        let listener = Listener::tcp(address).await?;
        let mirror = Mirror::default();
        let files = Files { directory: self.directory.clone(), mirror: mirror.clone() };
        tokio::spawn(serve(listener, None, files, std::future::pending()));
        Ok(mirror)
    }
}

/// The server of a repository. It has all packages at several addresses, of which each can be switched off.
#[derive(Clone, Debug, Default)]
pub struct Mirror {
    off: Arc<Mutex<BTreeSet<String>>>,
}

impl Mirror {
    /// The URL of the repository at the address of this name, which is one word.
    pub fn url(name: &str) -> String {
        format!("http://{}:{PORT}/{name}/", net::SWITCH)
    }

    /// The line of apt's sources for this address.
    pub fn source(name: &str) -> String {
        format!("deb [trusted=yes] {} ./\n", Self::url(name))
    }

    /// Answers all further requests at an address with 503.
    pub fn switch_off(&self, name: &str) {
        self.off.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }

    fn is_off(&self, name: &str) -> bool {
        self.off.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }
}

/// Returns the program with its identity as the last line.
fn named(program: &[u8], name: &str, version: &str) -> Vec<u8> {
    [program, format!("\n{name} v{version}\n").as_bytes()].concat()
}

/// SHA-256 of bytes, as hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Serves the files of a directory.
#[derive(Clone)]
struct Files {
    directory: PathBuf,
    mirror: Mirror,
}

impl tower::Service<Request<Incoming>> for Files {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let path = request.uri().path();
        let mut parts = path.trim_start_matches('/').split('/');
        let is_off = parts.next().is_some_and(|address| self.mirror.is_off(address));
        let name = parts.next_back().unwrap_or_default().replace("%2b", "+");
        let mut answer = Response::new(Full::default());
        match fs::read(self.directory.join(name)) {
            _ if is_off => *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE,
            Ok(bytes) => *answer.body_mut() = Full::new(bytes.into()),
            Err(_) => *answer.status_mut() = StatusCode::NOT_FOUND,
        }
        ready(Ok(answer))
    }
}
