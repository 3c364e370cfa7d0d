//! Packages of a mirror that is away after they were fetched: real apt and dnf over HTTP.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use refit_agent::host::{Program, Site};
use refit_kinds::refit::PackageArgs;

use crate::{apt, dnf};

const NAMES: [&str; 3] = ["kubeadm", "kubelet", "kubectl"];

/// An HTTP server for a directory.
struct Mirror {
    url: String,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mirror {
    fn of(directory: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => answer(stream, &directory),
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Self { url, stopped, thread: Some(thread) }
    }

    /// From now on, connections are refused.
    fn stop(mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn answer(mut stream: std::net::TcpStream, directory: &Path) {
    stream.set_nonblocking(false).unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split_whitespace().nth(1).unwrap().trim_start_matches('/');
    let (status, body) = match fs::read(directory.join(path)) {
        Ok(body) => ("200 OK", body),
        Err(_) => ("404 Not Found", Vec::new()),
    };
    let length = body.len();
    // The client may close the connection before it has read everything.
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )
    .and_then(|()| stream.write_all(&body));
}

/// Runs a command of the host that deletes the cache of its package manager.
async fn clean(site: &Site, program: Program, arguments: &[&str]) {
    site.call(program, arguments.iter().copied()).output().await.unwrap();
}

#[tokio::test]
async fn apt_installs_what_was_fetched_although_the_mirror_is_away() {
    let Some(world) = apt::World::new() else {
        return;
    };
    let old = NAMES.map(|name| apt::stub(name, "1.34.2-1.1"));
    world.repository("v1.34/deb", &old);
    let mut new = NAMES.map(|name| apt::stub(name, "1.35.0-1.1")).to_vec();
    new[0].fields = "Depends: cri-tools (>= 1:1.35)\n";
    new.push(apt::stub("cri-tools", "1:1.35.0-1.1"));
    world.repository("v1.35/deb", &new);
    let mirror = Mirror::of(world.path(""));
    let list = "/etc/apt/sources.list.d/kubernetes.list";
    let line = format!("deb [trusted=yes] {}/v1.34/deb/ /\n", mirror.url);
    fs::write(world.site.path(list), line).unwrap();
    world.install("v1.34.2", &NAMES, &PackageArgs::default()).await.unwrap();

    let repository = format!("{}/v1.35/deb", mirror.url);
    let from = PackageArgs { repository, ..PackageArgs::default() };
    world.apt().fetch(&apt::World::order("v1.35.0", &NAMES, &from)).await.unwrap();
    mirror.stop();
    clean(&world.site, Program::AptGet, &["clean"]).await;
    // The new kubelet is unpacked from its package, which is found by this name.
    let fetched = fs::read_dir(world.site.path("/var/cache/refit-agent/plan")).unwrap();
    let names = fetched.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().any(|name| name.starts_with("kubelet_1.35.0-1.1_")));
    world.install("v1.35.0", &["kubeadm"], &from).await.unwrap();
    world.install("v1.35.0", &["kubelet", "kubectl"], &from).await.unwrap();
    assert_eq!(
        world.installed().await,
        "cri-tools 1:1.35.0-1.1, kubeadm 1.35.0-1.1, kubectl 1.35.0-1.1, kubelet 1.35.0-1.1",
        "{}",
        world.log()
    );
}

#[tokio::test]
async fn apt_uses_the_mirror_if_what_was_fetched_does_not_suffice() {
    let Some(world) = apt::World::new() else {
        return;
    };
    world.repository("v1.35/deb", &NAMES.map(|name| apt::stub(name, "1.35.0-1.1")));
    let mirror = Mirror::of(world.path(""));
    let list = "/etc/apt/sources.list.d/kubernetes.list";
    let line = format!("deb [trusted=yes] {}/v1.35/deb/ /\n", mirror.url);
    fs::write(world.site.path(list), line).unwrap();
    let from = PackageArgs::default();
    world.apt().fetch(&apt::World::order("v1.35.0", &["kubeadm"], &from)).await.unwrap();
    world.install("v1.35.0", &NAMES, &from).await.unwrap();
    let now = world.installed().await;
    assert_eq!(now, "kubeadm 1.35.0-1.1, kubectl 1.35.0-1.1, kubelet 1.35.0-1.1");
}

/// The fetched packages of a host whose name starts with this.
fn fetched(site: &Site, plan: &str, name: &str) -> Vec<PathBuf> {
    let directory = site.path("/var/cache/refit-agent").join(plan);
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let is_named = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(name);
    let files: Vec<PathBuf> = files.filter(is_named).collect();
    assert!(!files.is_empty(), "{name} was not fetched");
    files
}

/// Changes the last byte of a file: its header stays as it is.
fn damage(path: &Path) {
    let mut content = fs::read(path).unwrap();
    *content.last_mut().unwrap() ^= 1;
    fs::write(path, content).unwrap();
}

#[tokio::test]
async fn apt_fetches_a_package_again_that_was_damaged_or_removed_since() {
    let remove: fn(&Path) = |path| fs::remove_file(path).unwrap();
    for change in [damage as fn(&Path), remove] {
        let Some(world) = apt::World::new() else {
            return;
        };
        world.repository("v1.35/deb", &NAMES.map(|name| apt::stub(name, "1.35.0-1.1")));
        let mirror = Mirror::of(world.path(""));
        let list = "/etc/apt/sources.list.d/kubernetes.list";
        let line = format!("deb [trusted=yes] {}/v1.35/deb/ /\n", mirror.url);
        fs::write(world.site.path(list), line).unwrap();
        let from = PackageArgs::default();
        world.apt().fetch(&apt::World::order("v1.35.0", &NAMES, &from)).await.unwrap();
        for name in ["kubeadm", "kubelet"] {
            for path in fetched(&world.site, "plan", name) {
                change(&path);
            }
        }
        world.install("v1.35.0", &["kubeadm"], &from).await.unwrap();
        assert_eq!(world.installed().await, "kubeadm 1.35.0-1.1", "{}", world.log());
        mirror.stop();
        clean(&world.site, Program::AptGet, &["clean"]).await;
        let error = world.install("v1.35.0", &["kubelet"], &from).await.unwrap_err();
        let lost = "/var/cache/refit-agent/plan/kubelet_1.35.0-1.1_amd64.deb is ";
        assert!(error.message.contains(lost), "{error}");
        assert!(error.message.contains("make the source of the packages reachable"), "{error}");
        // The other packages are as they were fetched.
        world.install("v1.35.0", &["kubectl"], &from).await.unwrap();
    }
}

#[tokio::test]
async fn a_broken_source_of_other_packages_does_not_stop_apt() {
    let Some(world) = apt::World::new() else {
        return;
    };
    world.repository("v1.34/deb", &[apt::stub("kubeadm", "1.34.2-1.1")]);
    world.repository("v1.35/deb", &[apt::stub("kubeadm", "1.35.0-1.1")]);
    world.repository("tools", &[apt::stub("cri-tools", "1.35.0-1.1")]);
    world.source("tools", "tools");
    world.source("gone", "no-such-directory");
    let list = world.site.path("/etc/apt/sources.list.d/kubernetes.sources");
    let sources = |minor: &str| {
        let directory = world.path(minor).display().to_string();
        format!("Types: deb\nURIs: file:{directory}/deb/\nSuites: /\nTrusted: yes\n")
    };
    fs::write(&list, sources("v1.34")).unwrap();
    let none = PackageArgs::default();
    world.apt().fetch(&apt::World::order("v1.34.2", &["kubeadm"], &none)).await.unwrap();
    world.install("v1.34.2", &["kubeadm"], &none).await.unwrap();
    let before = world.log().len();
    let repository = format!("file:{}/deb", world.path("v1.35").display());
    let from = PackageArgs { repository, ..PackageArgs::default() };
    world.apt().fetch(&apt::World::order("v1.35.0", &["kubeadm"], &from)).await.unwrap();
    world.install("v1.35.0", &["kubeadm"], &from).await.unwrap();
    assert_eq!(world.installed().await, "kubeadm 1.35.0-1.1");
    let log = world.log().split_off(before);
    assert!(!log.contains("no-such-directory"), "only its own source is updated: {log}");
    // A package of another source needs the update of all.
    let mut order = apt::World::order("v1.35.0", &["kubeadm", "cri-tools"], &from);
    order.plan = "another plan";
    world.apt().fetch(&order).await.unwrap();
    world.apt().install(&order).await.unwrap();
    assert_eq!(world.installed().await, "cri-tools 1.35.0-1.1, kubeadm 1.35.0-1.1");
}

/// A host with v1.34.2 installed from a mirror that has v1.35.0 since.
async fn of_dnf() -> Option<(dnf::World, Mirror)> {
    let world = dnf::World::new()?;
    world.kubernetes("repo", "1.34.2-1.1");
    world.index("repo");
    let mirror = Mirror::of(world.path(""));
    let repository = format!(
        "[kubernetes]\nname=Kubernetes\nbaseurl={}/repo/\nenabled=1\nexclude=kubelet kubeadm \
         kubectl cri-tools\n",
        mirror.url
    );
    fs::write(world.site.path("/etc/yum.repos.d/kubernetes.repo"), repository).unwrap();
    world.install(&dnf::order("v1.34.2", &NAMES, &PackageArgs::default())).await.unwrap();
    world.kubernetes("repo", "1.35.0-1.1");
    world.index("repo");
    Some((world, mirror))
}

#[tokio::test]
async fn dnf_installs_what_was_fetched_although_the_mirror_is_away() {
    let Some((world, mirror)) = of_dnf().await else {
        return;
    };
    let from = PackageArgs::default();
    world.dnf().fetch(&dnf::order("v1.35.0", &NAMES, &from)).await.unwrap();
    assert_eq!(world.versions().await, dnf::at("1.34.2-1.1"), "fetching installs nothing");
    mirror.stop();
    world.install(&dnf::order("v1.35.0", &["kubeadm"], &from)).await.unwrap();
    clean(&world.site, Program::Dnf, &["clean", "all"]).await;
    world.install(&dnf::order("v1.35.0", &["kubelet", "kubectl"], &from)).await.unwrap();
    assert_eq!(world.versions().await, dnf::at("1.35.0-1.1"), "{}", world.log());
}

#[tokio::test]
async fn dnf_uses_the_mirror_if_what_was_fetched_does_not_suffice() {
    let Some((world, _mirror)) = of_dnf().await else {
        return;
    };
    let from = PackageArgs::default();
    world.dnf().fetch(&dnf::order("v1.35.0", &NAMES, &from)).await.unwrap();
    // A dependency of what was fetched is not there any more.
    let fetched = fs::read_dir(world.site.path("/var/cache/refit-agent/p")).unwrap();
    for path in fetched.map(|entry| entry.unwrap().path()) {
        if path.display().to_string().contains("cri-tools") {
            fs::remove_file(path).unwrap();
        }
    }
    world.install(&dnf::order("v1.35.0", &["kubeadm"], &from)).await.unwrap();
    assert_eq!(world.versions().await["kubeadm"], "1.35.0-1.1");
    assert!(world.log().contains("the fetched packages do not suffice"), "{}", world.log());
}

#[tokio::test]
async fn dnf_fetches_a_package_again_that_was_damaged_or_removed_since() {
    let remove: fn(&Path) = |path| fs::remove_file(path).unwrap();
    for change in [damage as fn(&Path), remove] {
        let Some((world, mirror)) = of_dnf().await else {
            return;
        };
        let from = PackageArgs::default();
        world.dnf().fetch(&dnf::order("v1.35.0", &NAMES, &from)).await.unwrap();
        for name in ["kubeadm", "kubelet"] {
            for path in fetched(&world.site, "p", name) {
                change(&path);
            }
        }
        world.install(&dnf::order("v1.35.0", &["kubeadm"], &from)).await.unwrap();
        assert_eq!(world.versions().await["kubeadm"], "1.35.0-1.1");
        mirror.stop();
        clean(&world.site, Program::Dnf, &["clean", "all"]).await;
        let error = world.install(&dnf::order("v1.35.0", &["kubelet"], &from)).await.unwrap_err();
        let lost = "/var/cache/refit-agent/p/kubelet-1.35.0-1.1.";
        assert!(error.message.contains(lost), "{error}");
        assert!(error.message.contains("make the source of the packages reachable"), "{error}");
        world.install(&dnf::order("v1.35.0", &["kubectl"], &from)).await.unwrap();
    }
}
