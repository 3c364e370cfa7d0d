use refit_kinds::refit::{FailureKind, PackageArgs};

use super::*;
use crate::host::site::Tool;

struct World {
    _directory: tempfile::TempDir,
    site: Site,
}

fn version(text: &str) -> KubernetesVersion {
    text.parse::<KubernetesVersion>().unwrap()
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path().join("root"), directory.path().join("state"));
        for path in [site.path("/usr/bin"), site.path("/srv"), site.state().to_owned()] {
            fs::create_dir_all(path).unwrap();
        }
        Self { _directory: directory, site }
    }

    /// Creates a tarball whose programs report `version`.
    fn tarball(&self, version: &str) -> PackageArgs {
        let inside = self.site.path("/srv/make/kubernetes/server/bin");
        fs::create_dir_all(&inside).unwrap();
        for name in KUBERNETES {
            let path = inside.join(name);
            fs::write(&path, format!("#!/bin/sh\necho Kubernetes {version}\n")).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        }
        let archive = self.site.path(format!("/srv/{version}.tar.gz"));
        let made = std::process::Command::new("tar")
            .args(["--create", "--gzip", "--file"])
            .arg(&archive)
            .arg("--directory")
            .arg(self.site.path("/srv/make"))
            .arg("kubernetes")
            .status();
        assert!(made.unwrap().success());
        PackageArgs {
            path: format!("/srv/{version}.tar.gz"),
            sha256: digest(&archive).unwrap().1,
            ..PackageArgs::default()
        }
    }

    async fn install(&self, from: &PackageArgs, names: &[&str], at: &str) -> Result<(), WorkError> {
        let order = Order {
            plan: at,
            from,
            wants: names.iter().map(|name| Want::kubernetes(name, &version(at))).collect(),
        };
        Tarball::new(&self.site).install(&order).await
    }
}

#[tokio::test]
async fn links_are_switched_and_switched_back() {
    let world = World::new();
    let tarball = Tarball::new(&world.site);
    world.install(&world.tarball("v1.34.2"), &KUBERNETES, "v1.34.2").await.unwrap();
    assert_eq!(tarball.installed()["kubelet"], "1.34.2");
    let before = tarball.installed();
    world.install(&world.tarball("v1.35.0"), &["kubeadm"], "v1.35.0").await.unwrap();
    assert_eq!(tarball.installed()["kubeadm"], "1.35.0");
    assert_eq!(tarball.installed()["kubelet"], "1.34.2");
    let link = fs::read_link(world.site.path("/usr/local/bin/kubeadm")).unwrap();
    assert_eq!(link, Path::new("/opt/refit/kubernetes/v1.35.0/kubeadm"));
    tarball.restore("v1.35.0", &before).unwrap();
    assert_eq!(tarball.installed(), before);
}

#[tokio::test]
async fn a_program_that_was_a_file_is_restored_as_a_file() {
    let world = World::new();
    fs::write(world.site.path("/usr/bin/kubeadm"), "the old one").unwrap();
    world.install(&world.tarball("v1.35.0"), &["kubeadm"], "v1.35.0").await.unwrap();
    assert!(world.site.path("/usr/bin/kubeadm").is_symlink(), "where the host had it");
    let gone = BTreeMap::from([("kubeadm".to_owned(), String::new())]);
    Tarball::new(&world.site).restore("v1.35.0", &gone).unwrap();
    assert_eq!(world.site.read("/usr/bin/kubeadm"), "the old one");
    assert!(!world.site.path("/usr/bin/kubeadm").is_symlink());
}

#[tokio::test]
async fn a_tarball_with_another_sum_is_not_unpacked() {
    let world = World::new();
    let mut from = world.tarball("v1.35.0");
    from.sha256 = "00".repeat(32);
    let error = world.install(&from, &["kubeadm"], "v1.35.0").await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Final);
    assert!(!world.site.path(STORE).exists());
    from.sha256.clear();
    let error = world.install(&from, &["kubeadm"], "v1.35.0").await.unwrap_err();
    assert!(error.message.contains("without its checksum"), "{error}");
}

#[tokio::test]
async fn an_unpacked_version_is_used_only_if_its_tarball_is_that_of_the_plan() {
    let world = World::new();
    let first = world.tarball("v1.35.0");
    world.install(&first, &KUBERNETES, "v1.35.0").await.unwrap();
    // Unpacked before, so its tarball is not needed again, also if its checksum is in capitals.
    fs::remove_file(world.site.path(&first.path)).unwrap();
    let capitals = PackageArgs { sha256: first.sha256.to_uppercase(), ..first.clone() };
    world.install(&capitals, &KUBERNETES, "v1.35.0").await.unwrap();
    // Another build of the same version.
    fs::write(world.site.path("/srv/make/kubernetes/LICENSE"), "x").unwrap();
    let second = world.tarball("v1.35.0");
    assert_ne!(first.sha256, second.sha256);
    let recorded = || world.site.read("/opt/refit/kubernetes/v1.35.0/sha256");
    assert_eq!(recorded(), first.sha256);
    world.install(&second, &KUBERNETES, "v1.35.0").await.unwrap();
    assert_eq!(recorded(), second.sha256);
    assert_eq!(Tarball::new(&world.site).installed()["kubelet"], "1.35.0");
    // Unpacked by an agent that recorded no checksum.
    fs::remove_file(world.site.path("/opt/refit/kubernetes/v1.35.0/sha256")).unwrap();
    world.install(&second, &KUBERNETES, "v1.35.0").await.unwrap();
    assert_eq!(recorded(), second.sha256);
    let left = fs::read_dir(world.site.path(STORE)).unwrap().count();
    assert_eq!(left, 1, "nothing temporary is left");
}

#[tokio::test]
async fn the_program_that_the_agent_starts_is_replaced() {
    let world = World::new();
    for directory in ["/usr/bin", "/usr/local/bin"] {
        fs::create_dir_all(world.site.path(directory)).unwrap();
        fs::write(world.site.path(format!("{directory}/kubeadm")), "the old one").unwrap();
    }
    world.install(&world.tarball("v1.35.0"), &["kubeadm"], "v1.35.0").await.unwrap();
    assert!(world.site.path("/usr/bin/kubeadm").is_symlink());
    assert_eq!(world.site.read("/usr/local/bin/kubeadm"), "the old one");
}

#[tokio::test]
async fn selinux_labels_of_programs_and_links_are_set() {
    let mut world = World::new();
    let tool = world.site.path("/restorecon");
    fs::write(&tool, "#!/bin/sh\necho labels \"$@\"\n").unwrap();
    fs::set_permissions(&tool, Permissions::from_mode(0o755)).unwrap();
    let tool = Tool { path: tool.display().to_string(), ..Tool::default() };
    world.site = world.site.with_tool(Program::Restorecon, tool);
    world.install(&world.tarball("v1.35.0"), &["kubeadm"], "v1.35.0").await.unwrap();
    let log = fs::read_to_string(world.site.state().join("host.log")).unwrap();
    for path in ["/opt/refit/kubernetes/v1.35.0", "/usr/local/bin/kubeadm"] {
        let line = format!("\nlabels -R {}\n", world.site.path(path).display());
        assert!(log.contains(&line), "{line} {log}");
    }
}

#[tokio::test]
async fn a_tarball_of_another_version_is_refused() {
    let world = World::new();
    let from = world.tarball("v1.34.2");
    let error = world.install(&from, &["kubeadm"], "v1.35.0").await.unwrap_err();
    assert!(error.message.contains("version \"Kubernetes v1.34.2\""), "{error}");
    assert!(error.message.ends_with("to the tarball of that version"), "{error}");
    assert!(Tarball::new(&world.site).installed().is_empty());
}

#[tokio::test]
async fn one_older_version_is_kept() {
    let world = World::new();
    for at in ["v1.33.1", "v1.34.2", "v1.35.0"] {
        world.install(&world.tarball(at), &KUBERNETES, at).await.unwrap();
    }
    let mut left: Vec<String> = fs::read_dir(world.site.path(STORE))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["v1.34.2", "v1.35.0"]);
}

/// A server that answers `times` requests with these bytes.
fn serve(bytes: Vec<u8>, times: usize) -> String {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(times) {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let length = bytes.len();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").unwrap();
            stream.write_all(&bytes).unwrap();
        }
    });
    format!("http://{address}/node.tar.gz")
}

#[tokio::test]
async fn a_download_is_used_only_if_its_checksum_matches() {
    let world = World::new();
    let made = world.tarball("v1.35.0");
    let bytes = fs::read(world.site.path(&made.path)).unwrap();
    let url = serve(bytes, 2);
    let mut from = PackageArgs { url, sha256: "00".repeat(32), ..PackageArgs::default() };
    let error = world.install(&from, &["kubeadm"], "v1.35.0").await;
    let error = error.unwrap_err();
    assert!(error.message.contains("expected sha256 0000"), "{error}");
    assert!(Tarball::new(&world.site).installed().is_empty());
    from.sha256.clear();
    let error = world.install(&from, &["kubeadm"], "v1.35.0").await;
    assert_eq!(error.unwrap_err().kind, FailureKind::Final);
    from.sha256 = made.sha256;
    world.install(&from, &["kubeadm"], "v1.35.0").await.unwrap();
    assert_eq!(Tarball::new(&world.site).installed()["kubeadm"], "1.35.0");
    let left = fs::read_dir(world.site.state().join("tarballs")).unwrap();
    assert_eq!(left.count(), 0, "what is unpacked takes no room twice");
}

#[tokio::test]
async fn a_directory_is_refused_as_a_tarball() {
    let world = World::new();
    let from =
        PackageArgs { path: "/srv".to_owned(), sha256: "00".repeat(32), ..PackageArgs::default() };
    let error = world.install(&from, &["kubeadm"], "v1.35.0").await;
    let error = error.unwrap_err();
    assert_eq!(error.kind, FailureKind::Final);
    assert!(error.message.contains("specify the tarball in it"), "{error}");
}

#[tokio::test]
async fn a_program_that_was_damaged_after_its_unpacking_is_unpacked_again() {
    let world = World::new();
    let from = world.tarball("v1.35.0");
    let order = |names: &[&str]| Order {
        plan: "p",
        from: &from,
        wants: names.iter().map(|name| Want::kubernetes(name, &version("v1.35.0"))).collect(),
    };
    let tarball = Tarball::new(&world.site);
    tarball.fetch(&order(&KUBERNETES)).await.unwrap();
    let program = tarball.unpacked(&version("v1.35.0")).join("kubelet");
    let whole = fs::read(&program).unwrap();
    for damage in ["#!/bin/sh\necho Kubernetes v1.35.1\n", ""] {
        fs::write(&program, damage).unwrap();
        // A step looks only at its own programs.
        tarball.install(&order(&["kubeadm"])).await.unwrap();
        assert_eq!(fs::read(&program).unwrap(), damage.as_bytes());
        tarball.install(&order(&["kubelet"])).await.unwrap();
        assert_eq!(fs::read(&program).unwrap(), whole);
    }
    fs::write(&program, "").unwrap();
    fs::remove_file(world.site.path(&from.path)).unwrap();
    let error = tarball.install(&order(&["kubelet"])).await.unwrap_err();
    let lost = format!("{} is damaged; make the source", program.display());
    assert!(error.message.contains(&lost), "{error}");
    assert!(error.message.contains("v1.35.0.tar.gz: No such file"), "{error}");
}
