//! The dnf driver with the real dnf and rpm, in a separate root directory with stub packages.
//!
//! Needs `dnf`, `rpm` and `createrepo_c` (Debian: `apt-get install dnf rpm createrepo-c`); without
//! them each test prints that it is skipped, unless `REFIT_NEED_DNF` is set. The packages of the
//! machine are neither read nor changed: dnf installs into a separate root with its own database.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use refit_agent::host::{
    JobFile, NoSecrets, Order, Packages, Program, Site, Tool, Want, WorkError, bundle, carry_out,
};
use refit_bundle::{
    build::{self, PackageSpec, SecretKey, Spec},
    manifest::{Architecture, OsFamily},
};
use refit_kinds::refit::{BundleRef, FailureKind, HostStep, PackageArgs, PackageDriver};
use refit_kinds::version::KubernetesVersion;
use rpm::{BuildConfig, CompressionWithLevel, Dependency, FileOptions, PackageBuilder};

pub(crate) const NAMES: [&str; 3] = ["kubeadm", "kubelet", "kubectl"];
const ARCH: &str = std::env::consts::ARCH;

pub(crate) struct World {
    directory: tempfile::TempDir,
    pub(crate) site: Site,
}

pub(crate) fn order<'a>(version: &str, names: &[&str], from: &'a PackageArgs) -> Order<'a> {
    let version = version.parse::<KubernetesVersion>().unwrap();
    Order {
        plan: "p",
        from,
        wants: names.iter().map(|name| Want::kubernetes(name, &version)).collect(),
    }
}

impl World {
    /// An empty host, or `None` if dnf is not installed.
    pub(crate) fn new() -> Option<Self> {
        let tools = ["/usr/bin/dnf", "/usr/bin/rpm", "/usr/bin/createrepo_c"];
        if let Some(missing) = tools.iter().find(|tool| !Path::new(tool).exists()) {
            assert!(
                std::env::var_os("REFIT_NEED_DNF").is_none(),
                "{missing} is not here: apt-get install dnf rpm createrepo-c"
            );
            eprintln!("left out: {missing} is not here; apt-get install dnf rpm createrepo-c");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        let state = directory.path().join("state");
        for path in [&state, &root.join("etc/yum.repos.d"), &root.join("etc/dnf")] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(root.join("etc/dnf/dnf.conf"), "[main]\ngpgcheck=0\n").unwrap();
        let shown = root.display();
        let tool = |arguments: &[String]| Tool {
            arguments: arguments.to_vec(),
            // Debian's rpm keeps its database in the home directory.
            environment: vec![("HOME".to_owned(), "/root".to_owned())],
            ..Tool::default()
        };
        let dnf = [
            format!("--installroot={shown}"),
            "--releasever=1".to_owned(),
            "--setopt=cachedir=/var/cache/dnf".to_owned(),
            "--setopt=logdir=/var/log".to_owned(),
            "--setopt=persistdir=/var/lib/dnf".to_owned(),
        ];
        let site = Site::at(&root, state)
            .with_tool(Program::Dnf, tool(&dnf))
            .with_tool(Program::Rpm, tool(&[format!("--root={shown}")]));
        let world = Self { directory, site };
        // The shell that all other packages require, so that dependencies on files are tested too.
        world.package("base", "shell", "5.2-1", &[], Some("/bin/sh"));
        world.index("base");
        let repo = format!(
            "[base]\nname=Base\nbaseurl=file://{}/\nenabled=1\n",
            world.path("base").display()
        );
        fs::write(world.site.path("/etc/yum.repos.d/base.repo"), repo).unwrap();
        Some(world)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Builds a package in a directory.
    pub(crate) fn package(
        &self,
        directory: &str,
        name: &str,
        version: &str,
        requires: &[Dependency],
        file: Option<&str>,
    ) {
        let (bare, release) = version.split_once('-').unwrap();
        let config = BuildConfig::default().compression(CompressionWithLevel::Gzip(1));
        let mut builder = PackageBuilder::new(name, bare, "Apache-2.0", ARCH, "A stub");
        builder.using_config(config).release(release);
        for dependency in requires {
            builder.requires(dependency.clone());
        }
        let path = file.map_or_else(|| format!("/usr/bin/{name}"), str::to_owned);
        let options = FileOptions::new(path).permissions(0o755);
        builder.with_file_contents(version, options).unwrap();
        let directory = self.path(directory);
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join(format!("{name}-{version}.{ARCH}.rpm"));
        builder.build().unwrap().write_file(file).unwrap();
    }

    /// Builds kubeadm, kubelet and kubectl at a version, and the tools that kubeadm requires.
    pub(crate) fn kubernetes(&self, directory: &str, version: &str) {
        let shell = || Dependency::any("/bin/sh");
        let tools = Dependency::greater_eq("cri-tools", version.split_once('-').unwrap().0);
        self.package(directory, "cri-tools", version, &[shell()], Some("/usr/bin/crictl"));
        self.package(directory, "kubeadm", version, &[shell(), tools], None);
        for name in ["kubelet", "kubectl"] {
            self.package(directory, name, version, &[shell()], None);
        }
    }

    /// Turns a directory into a repository.
    pub(crate) fn index(&self, directory: &str) {
        let made = Command::new("createrepo_c").arg("--quiet").arg(self.path(directory)).status();
        assert!(made.unwrap().success());
    }

    /// A host with v1.34.2 installed from its repository, which has no other version.
    pub(crate) async fn at_134() -> Option<Self> {
        let world = Self::new()?;
        world.kubernetes("repo", "1.34.2-1.1");
        world.index("repo");
        let repo = format!(
            "[kubernetes]\nname=Kubernetes\nbaseurl=file://{}/\nenabled=1\n\
             exclude=kubelet kubeadm kubectl cri-tools\n",
            world.path("repo").display()
        );
        fs::write(world.site.path("/etc/yum.repos.d/kubernetes.repo"), repo).unwrap();
        let from = PackageArgs::default();
        world.install(&order("v1.34.2", &NAMES, &from)).await.unwrap();
        assert_eq!(world.versions().await, at("1.34.2-1.1"));
        Some(world)
    }

    pub(crate) fn dnf(&self) -> Packages<'_> {
        Packages::of(&self.site, PackageDriver::Dnf).unwrap()
    }

    pub(crate) async fn install(&self, order: &Order<'_>) -> Result<(), WorkError> {
        let outcome = self.dnf().install(order).await;
        if outcome.is_err() {
            eprintln!("{}", self.log());
        }
        outcome
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.site.state().join("host.log")).unwrap_or_default()
    }

    /// The installed packages of Kubernetes.
    pub(crate) async fn versions(&self) -> BTreeMap<String, String> {
        let mut all = self.dnf().installed().await.unwrap();
        all.retain(|name, _| NAMES.contains(&name.as_str()) || name == "cri-tools");
        all
    }

    /// Content of a program's file on the host.
    fn program_content(&self, name: &str) -> String {
        self.site.read(&format!("/usr/bin/{name}"))
    }

    /// Builds a signed bundle of a version for this host, and makes the host trust its key.
    fn bundle(&self, version: &str, directory: &str) -> BundleRef {
        let architecture = Architecture::of_this_host().unwrap();
        let mut spec = Spec::new(version.parse().unwrap(), architecture);
        spec.os_family = Some(OsFamily::Rhel);
        spec.packages.push(PackageSpec { path: self.path(directory), ..PackageSpec::default() });
        let key = build::key::generate(&self.path(version), None).unwrap();
        let output = self.path(&format!("bundle-{version}"));
        build::build(&spec, &SecretKey::load(&key.secret, None).unwrap(), &output).unwrap();
        let trusted = self.site.path("/etc/refit/keys");
        fs::create_dir_all(&trusted).unwrap();
        fs::copy(key.public, trusted.join(format!("{version}.pub"))).unwrap();
        BundleRef { location: output.display().to_string(), ..BundleRef::default() }
    }
}

pub(crate) fn at(version: &str) -> BTreeMap<String, String> {
    NAMES
        .into_iter()
        .chain(["cri-tools"])
        .map(|name| (name.to_owned(), version.to_owned()))
        .collect()
}

#[tokio::test]
async fn a_repository_of_the_host_serves_the_upgrade_and_the_rollback() {
    let Some(world) = World::at_134().await else {
        return;
    };
    let before = world.versions().await;
    world.kubernetes("repo", "1.35.0-1.1");
    world.index("repo");
    let from = PackageArgs::default();
    world.dnf().fetch(&order("v1.35.0", &NAMES, &from)).await.unwrap();
    assert_eq!(world.versions().await, before, "fetching installs nothing");
    world.install(&order("v1.35.0", &["kubeadm"], &from)).await.unwrap();
    let now = world.versions().await;
    assert_eq!(now["kubeadm"], "1.35.0-1.1");
    assert_eq!(now["kubelet"], "1.34.2-1.1", "one package at a time");
    assert_eq!(world.program_content("kubeadm"), "1.35.0-1.1");
    let back = BTreeMap::from([("kubeadm".to_owned(), "1.34.2-1.1".to_owned())]);
    world.dnf().restore("p", &back).await.unwrap();
    assert_eq!(world.versions().await["kubeadm"], "1.34.2-1.1");
    let other = order("v1.36.0", &["kubeadm"], &from);
    assert!(world.dnf().install(&other).await.is_err(), "no repository has it");
}

#[tokio::test]
async fn a_bundle_without_repository_data_installs_and_rolls_back() {
    let Some(world) = World::at_134().await else {
        return;
    };
    world.kubernetes("old", "1.34.2-1.1");
    world.kubernetes("new", "1.35.0-1.1");
    let old = world.bundle("v1.34.2", "old");
    let new = world.bundle("v1.35.0", "new");
    bundle::stage(&world.site, "before", &old, None).await.unwrap();
    bundle::stage(&world.site, "p", &new, None).await.unwrap();
    // The host's own repositories are gone: it is offline.
    fs::rename(world.path("repo"), world.path("repo.gone")).unwrap();
    let _ = fs::remove_dir_all(world.site.path("/var/cache/dnf"));
    let plain = PackageArgs { driver: PackageDriver::Dnf, ..PackageArgs::default() };
    let from = bundle::packages(&world.site, "p", &plain).unwrap();
    world.dnf().fetch(&order("v1.35.0", &NAMES, &from)).await.unwrap();
    world.install(&order("v1.35.0", &["kubeadm"], &from)).await.unwrap();
    let mut expected = at("1.34.2-1.1");
    for name in ["kubeadm", "cri-tools"] {
        expected.insert(name.to_owned(), "1.35.0-1.1".to_owned());
    }
    assert_eq!(world.versions().await, expected, "what it needs comes with it");
    let rest = order("v1.35.0", &["kubelet", "kubectl"], &from);
    world.install(&rest).await.unwrap();
    assert_eq!(world.versions().await, at("1.35.0-1.1"));
    world.install(&rest).await.unwrap();
    // The previous bundle is still on the host, so the rollback needs no repository.
    world.dnf().restore("p", &at("1.34.2-1.1")).await.unwrap();
    assert_eq!(world.versions().await, at("1.34.2-1.1"));
    assert_eq!(world.program_content("kubelet"), "1.34.2-1.1");
}

/// dnf caches repository metadata; another directory at the same path is another repository.
#[tokio::test]
async fn a_directory_with_new_packages_is_read_again() {
    let Some(world) = World::at_134().await else {
        return;
    };
    let from =
        |directory: &str| PackageArgs { path: format!("/{directory}"), ..PackageArgs::default() };
    for version in ["1.35.0", "1.35.1"] {
        let _ = fs::remove_dir_all(world.path("root/srv"));
        world.kubernetes("root/srv", &format!("{version}-1.1"));
        let from = from("srv");
        world.install(&order(&format!("v{version}"), &NAMES, &from)).await.unwrap();
        assert_eq!(world.versions().await, at(&format!("{version}-1.1")));
    }
    fs::create_dir_all(world.path("root/empty")).unwrap();
    let empty = from("empty");
    let error = world.dnf().install(&order("v1.36.0", &NAMES, &empty)).await;
    assert_eq!(error.unwrap_err().kind, FailureKind::Final);
}

#[tokio::test]
async fn dnf_waits_for_the_lock_of_another_rpm_transaction() {
    let Some(world) = World::at_134().await else {
        return;
    };
    world.kubernetes("repo", "1.35.0-1.1");
    world.index("repo");
    let from = PackageArgs::default();
    let order = order("v1.35.0", &["kubeadm"], &from);
    world.dnf().fetch(&order).await.unwrap();
    let lock = fs::File::create(world.site.path("/root/.rpmdb/.rpm.lock")).unwrap();
    rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let refused = || world.log().contains("can't create transaction lock");
    let release = async {
        while !refused() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        drop(lock);
    };
    let (installed, ()) = tokio::join!(world.install(&order), release);
    installed.unwrap();
    assert_eq!(world.versions().await["kubeadm"], "1.35.0-1.1");
}

#[tokio::test]
async fn the_excludes_of_a_repository_with_any_id_are_overridden() {
    let Some(world) = World::at_134().await else {
        return;
    };
    world.kubernetes("repo", "1.35.0-1.1");
    world.index("repo");
    let file = world.site.path("/etc/yum.repos.d/kubernetes.repo");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("[kubernetes]", "[satellite-k8s]")).unwrap();
    fs::write(world.site.path("/etc/dnf/dnf.conf"), "[main]\nexclude=kubelet* vim\n").unwrap();
    let from = PackageArgs::default();
    world.dnf().fetch(&order("v1.35.0", &NAMES, &from)).await.unwrap();
    world.install(&order("v1.35.0", &NAMES, &from)).await.unwrap();
    assert_eq!(world.versions().await, at("1.35.0-1.1"));
}

#[tokio::test]
async fn dnf_does_not_upgrade_to_the_next_minor_before_the_installation() {
    let Some(world) = World::new() else {
        return;
    };
    for (directory, version) in [("v1.34/rpm", "1.34.2-1.1"), ("v1.35/rpm", "1.35.0-1.1")] {
        world.kubernetes(directory, version);
        world.index(directory);
    }
    let url = |minor: &str| format!("file://{}/rpm/", world.path(minor).display());
    let file = world.site.path("/etc/yum.repos.d/kubernetes.repo");
    let before = format!("[k8s]\nname=Kubernetes\nbaseurl={}\nenabled=1\n", url("v1.34"));
    fs::write(&file, &before).unwrap();
    let none = PackageArgs::default();
    world.install(&order("v1.34.2", &NAMES, &none)).await.unwrap();
    let from = PackageArgs { repository: url("v1.35"), ..PackageArgs::default() };
    world.dnf().fetch(&order("v1.35.0", &NAMES, &from)).await.unwrap();
    let upgrade = world.site.call(Program::Dnf, ["upgrade", "--assumeyes", "--refresh"]);
    upgrade.output().await.unwrap();
    let versions = world.versions().await;
    for name in NAMES {
        assert_eq!(versions[name], "1.34.2-1.1", "{}", world.log());
    }
    world.install(&order("v1.35.0", &NAMES, &from)).await.unwrap();
    assert_eq!(world.versions().await, at("1.35.0-1.1"));
    world.dnf().restore("p", &at("1.34.2-1.1")).await.unwrap();
    assert_eq!(world.versions().await, at("1.34.2-1.1"));
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}

#[tokio::test]
async fn the_kubelet_in_a_fetched_rpm_is_unpacked_before_its_installation() {
    let Some(world) = World::at_134().await else {
        return;
    };
    world.kubernetes("root/srv", "1.35.0-1.1");
    let version = "v1.35.0".parse().unwrap();
    let packages = PackageArgs { path: "/srv".to_owned(), ..PackageArgs::default() };
    let stage = HostStep::Stage { version, packages, images: None, bundle: None };
    let job = JobFile {
        plan: "p".into(),
        unit: "unit".to_owned(),
        step: "stage".to_owned(),
        command: stage.into(),
        state: world.site.state().to_owned(),
        kubeconfig: PathBuf::new(),
        namespace: String::new(),
        own: refit_agent::OwnPaths::default(),
        proxies: BTreeMap::new(),
    };
    fs::create_dir_all(world.site.units()).unwrap();
    carry_out(&world.site, &job, &NoSecrets).await.unwrap();
    let kubelet = world.site.snapshot("p").join("fetched-kubelet");
    assert_eq!(fs::read_to_string(kubelet).unwrap(), "1.35.0-1.1", "{}", world.log());
}
