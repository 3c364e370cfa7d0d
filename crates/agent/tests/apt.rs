//! The apt driver with the real apt and dpkg, in a separate root directory with stub packages.
//!
//! Needs `apt-get`, `dpkg` and `dpkg-deb`; without them each test prints that it is skipped. The
//! packages of the machine are neither read nor changed: apt has its own configuration, dpkg its
//! own root and database.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use refit_agent::host::{
    JobFile, NoSecrets, Order, Packages, Program, Site, Tool, Undo, Want, WorkError, carry_out,
};
use refit_kinds::refit::{FailureKind, PackageArgs, PackageDriver};
use refit_kinds::version::KubernetesVersion;

const NAMES: [&str; 3] = ["kubeadm", "kubelet", "kubectl"];

pub(crate) struct World {
    directory: tempfile::TempDir,
    pub(crate) site: Site,
}

/// A package to build.
#[derive(Clone, Default)]
pub(crate) struct Stub<'a> {
    name: &'a str,
    version: &'a str,
    pub(crate) fields: &'a str,
    postinst: &'a str,
}

pub(crate) fn stub<'a>(name: &'a str, version: &'a str) -> Stub<'a> {
    Stub { name, version, ..Stub::default() }
}

impl<'a> Stub<'a> {
    /// Its name.
    pub(crate) fn name(&self) -> &'a str {
        self.name
    }
}

impl World {
    /// An empty host, or `None` if apt is not installed.
    pub(crate) fn new() -> Option<Self> {
        let tools = ["/usr/bin/apt-get", "/usr/bin/dpkg", "/usr/bin/dpkg-deb"];
        if let Some(missing) = tools.iter().find(|tool| !Path::new(tool).exists()) {
            eprintln!("left out: {missing} is not here");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        for path in [
            "var/lib/dpkg/updates",
            "var/lib/dpkg/info",
            "var/lib/apt/lists/partial",
            "var/cache/apt/archives/partial",
            "var/log/apt",
            "etc/apt/sources.list.d",
            "etc/apt/apt.conf.d",
            "etc/apt/preferences.d",
            "etc/apt/trusted.gpg.d",
            "tmp",
        ] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
        let config = directory.path().join("apt.conf");
        let shown = root.display();
        fs::write(
            &config,
            format!(
                "Dir \"{shown}\";\nDir::State::status \"{shown}/var/lib/dpkg/status\";\n\
                 Dir::Bin::dpkg \"/usr/bin/dpkg\";\nAPT::Architecture \"amd64\";\n\
                 APT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n\
                 Dpkg::Options {{ \"--root={shown}\"; \"--force-not-root\"; \
                 \"--force-script-chrootless\"; \"--log=/dev/null\"; }};\n"
            ),
        )
        .unwrap();
        let apt = || Tool {
            environment: vec![("APT_CONFIG".to_owned(), config.display().to_string())],
            ..Tool::default()
        };
        let dpkg = |arguments: &[String]| Tool { arguments: arguments.to_vec(), ..Tool::default() };
        let database = format!("--admindir={shown}/var/lib/dpkg");
        let state = directory.path().join("state");
        fs::create_dir_all(&state).unwrap();
        let site = Site::at(&root, state)
            .with_tool(Program::AptGet, apt())
            .with_tool(Program::AptCache, apt())
            .with_tool(Program::AptMark, apt())
            .with_tool(Program::Dpkg, dpkg(&dpkg_options(&root)))
            .with_tool(Program::DpkgQuery, dpkg(&[database]));
        Some(Self { directory, site })
    }

    /// A host with v1.34.2 installed, and a repository that also has v1.35.0 and v1.35.1.
    async fn at_134() -> Option<Self> {
        let world = Self::new()?;
        let stubs: Vec<Stub<'_>> = ["1.34.2-1.1", "1.35.0-1.1", "1.35.1-1.1"]
            .into_iter()
            .flat_map(|version| NAMES.map(|name| stub(name, version)))
            .collect();
        world.repository("repo", &stubs);
        world.source("main", "repo");
        let from = PackageArgs::default();
        let order = Order { plan: "the previous plan", ..Self::order("v1.34.2", &NAMES, &from) };
        world.apt().install(&order).await.unwrap();
        Some(world)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Builds packages in a directory, without an index.
    pub(crate) fn packages(&self, directory: &str, stubs: &[Stub<'_>]) {
        let directory = self.path(directory);
        fs::create_dir_all(&directory).unwrap();
        for stub in stubs {
            let tree = self.path("tree");
            let _ = fs::remove_dir_all(&tree);
            fs::create_dir_all(tree.join("DEBIAN")).unwrap();
            fs::create_dir_all(tree.join("usr/bin")).unwrap();
            fs::write(tree.join("usr/bin").join(stub.name), stub.version).unwrap();
            let control = format!(
                "Package: {}\nVersion: {}\nArchitecture: amd64\nMaintainer: Test <t@example.org>\n\
                 Description: a stub\n{}",
                stub.name, stub.version, stub.fields
            );
            fs::write(tree.join("DEBIAN/control"), control).unwrap();
            if !stub.postinst.is_empty() {
                let script = tree.join("DEBIAN/postinst");
                fs::write(&script, format!("#!/bin/sh\n{}\n", stub.postinst)).unwrap();
                fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
            }
            let built = Command::new("/usr/bin/dpkg-deb")
                .args(["--root-owner-group", "-Znone", "--build"])
                .args([&tree, &directory])
                .output()
                .unwrap();
            assert!(built.status.success(), "{built:?}");
        }
    }

    /// Builds packages in a directory, with an index.
    pub(crate) fn repository(&self, directory: &str, stubs: &[Stub<'_>]) {
        self.packages(directory, stubs);
        let mut index = String::new();
        for entry in fs::read_dir(self.path(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "deb") {
                continue;
            }
            let control = Command::new("/usr/bin/dpkg-deb").arg("--field").arg(&path).output();
            let control = String::from_utf8(control.unwrap().stdout).unwrap();
            let size = fs::metadata(&path).unwrap().len();
            let name = path.file_name().unwrap().to_string_lossy();
            let sums = Command::new("sha256sum").arg(&path).output().unwrap();
            let sums = String::from_utf8(sums.stdout).unwrap();
            let sum = sums.split(' ').next().unwrap();
            let control = control.trim_end();
            write!(index, "{control}\nFilename: ./{name}\nSize: {size}\nSHA256: {sum}\n\n")
                .unwrap();
        }
        fs::write(self.path(directory).join("Packages"), index).unwrap();
    }

    /// Makes a repository one of this suite, with this label.
    pub(crate) fn release(&self, directory: &str, suite: &str, label: &str) {
        let directory = self.path(directory);
        let sums = Command::new("sha256sum").arg(directory.join("Packages")).output().unwrap();
        let sums = String::from_utf8(sums.stdout).unwrap();
        let sum = sums.split(' ').next().unwrap();
        let size = fs::metadata(directory.join("Packages")).unwrap().len();
        let release = format!(
            "Origin: Test\nLabel: {label}\nSuite: {suite}\nVersion: 12\nDate: Thu, 01 Jan 2026 00:00:00 UTC\n\
             SHA256:\n {sum} {size} Packages\n"
        );
        fs::write(directory.join("Release"), release).unwrap();
    }

    pub(crate) fn source(&self, name: &str, directory: &str) {
        let line = format!("deb [trusted=yes] file:{} ./\n", self.path(directory).display());
        let list = format!("/etc/apt/sources.list.d/{name}.list");
        fs::write(self.site.path(list), line).unwrap();
    }

    pub(crate) fn apt(&self) -> Packages<'_> {
        Packages::of(&self.site, PackageDriver::Auto).unwrap()
    }

    pub(crate) fn order<'a>(version: &str, names: &[&str], from: &'a PackageArgs) -> Order<'a> {
        let version = version.parse::<KubernetesVersion>().unwrap();
        Order {
            plan: "plan",
            from,
            wants: names.iter().map(|name| Want::kubernetes(name, &version)).collect(),
        }
    }

    pub(crate) async fn install(
        &self,
        version: &str,
        names: &[&str],
        from: &PackageArgs,
    ) -> Result<(), WorkError> {
        self.apt().install(&Self::order(version, names, from)).await
    }

    pub(crate) async fn installed(&self) -> String {
        let mut list = String::new();
        for (name, version) in self.apt().installed().await.unwrap() {
            write!(list, "{name} {version}, ").unwrap();
        }
        list.trim_end_matches(", ").to_owned()
    }

    async fn held(&self) -> Vec<String> {
        let Packages::Apt(apt) = self.apt() else {
            panic!("the host has apt");
        };
        apt.held().await.unwrap().into_iter().collect()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.site.state().join("host.log")).unwrap_or_default()
    }
}

fn dpkg_options(root: &Path) -> [String; 4] {
    [
        format!("--root={}", root.display()),
        "--force-not-root".to_owned(),
        "--force-script-chrootless".to_owned(),
        "--log=/dev/null".to_owned(),
    ]
}

#[tokio::test]
async fn exactly_the_requested_version_is_installed_and_held() {
    let Some(world) = World::at_134().await else {
        return;
    };
    assert_eq!(
        world.installed().await,
        "kubeadm 1.34.2-1.1, kubectl 1.34.2-1.1, kubelet 1.34.2-1.1"
    );
    let from = PackageArgs::default();
    world.install("v1.35.0", &["kubeadm"], &from).await.unwrap();
    assert_eq!(
        world.installed().await,
        "kubeadm 1.35.0-1.1, kubectl 1.34.2-1.1, kubelet 1.34.2-1.1",
        "{}",
        world.log()
    );
    assert_eq!(world.held().await, ["kubeadm", "kubectl", "kubelet"]);
    // A second installation does nothing, not even write to the log.
    let before = world.log().len();
    world.install("v1.35.0", &["kubeadm"], &from).await.unwrap();
    assert_eq!(world.log().len(), before);
}

#[tokio::test]
async fn holds_are_back_after_an_installation_that_failed() {
    let Some(world) = World::at_134().await else {
        return;
    };
    let from = PackageArgs::default();
    let broken = Stub { postinst: "exit 1", ..stub("kubeadm", "1.36.0-1.1") };
    world.repository("repo", &[broken]);
    world.install("v1.36.0", &["kubeadm"], &from).await.unwrap_err();
    assert!(world.log().contains("unhold kubeadm"), "{}", world.log());
    assert_eq!(world.held().await, ["kubeadm", "kubectl", "kubelet"]);
    // An undo that fails does not leave the holds lifted either.
    let gone = BTreeMap::from([("kubelet".to_owned(), "1.0.0-1.1".to_owned())]);
    world.apt().restore("plan", &gone).await.unwrap_err();
    assert_eq!(world.held().await, ["kubeadm", "kubectl", "kubelet"]);
}

#[tokio::test]
async fn fetching_installs_nothing() {
    let Some(world) = World::at_134().await else {
        return;
    };
    let from = PackageArgs::default();
    world.apt().fetch(&World::order("v1.35.0", &NAMES, &from)).await.unwrap();
    let now = world.installed().await;
    assert!(now.starts_with("kubeadm 1.34.2-1.1,") && !now.contains("1.35"), "{now}");
    assert_eq!(world.held().await.len(), 3);
}

#[tokio::test]
async fn an_undo_goes_back_to_the_versions_of_before_even_without_their_repository() {
    let Some(world) = World::at_134().await else {
        return;
    };
    let from = PackageArgs::default();
    let before = world.apt().installed().await.unwrap();
    let order = World::order("v1.35.0", &NAMES, &from);
    world.apt().fetch(&order).await.unwrap();
    world.apt().install(&order).await.unwrap();
    assert!(world.installed().await.starts_with("kubeadm 1.35.0-1.1"));
    // The repository of the next minor version does not have the old packages.
    fs::remove_dir_all(world.path("repo")).unwrap();
    world.apt().restore("plan", &before).await.unwrap();
    assert_eq!(world.apt().installed().await.unwrap(), before, "{}", world.log());
    assert_eq!(world.held().await, ["kubeadm", "kubectl", "kubelet"]);
    world.apt().restore("plan", &before).await.unwrap();
}

#[tokio::test]
async fn an_undo_does_not_install_a_kept_package_that_is_damaged() {
    let Some(world) = World::at_134().await else {
        return;
    };
    let from = PackageArgs::default();
    let before = world.apt().installed().await.unwrap();
    let order = World::order("v1.35.0", &NAMES, &from);
    world.apt().fetch(&order).await.unwrap();
    world.apt().install(&order).await.unwrap();
    let kept = fs::read_dir(world.site.state().join("packages")).unwrap();
    let mut kept = kept.map(|entry| entry.unwrap().path());
    let kept = kept.find(|path| path.to_string_lossy().contains("/kubeadm_1.34.2-1.1_")).unwrap();
    fs::write(&kept, "").unwrap();
    world.apt().restore("plan", &before).await.unwrap();
    assert_eq!(world.apt().installed().await.unwrap(), before, "{}", world.log());
    // The next fetch keeps it again.
    world.apt().fetch(&order).await.unwrap();
    assert!(fs::metadata(&kept).unwrap().len() > 0, "{}", world.log());
}

#[tokio::test]
async fn an_undo_removes_a_new_package() {
    let Some(world) = World::at_134().await else {
        return;
    };
    world.repository("repo", &[stub("cri-tools", "1.35.0-1.1")]);
    let from = PackageArgs::default();
    world.install("v1.35.0", &["cri-tools"], &from).await.unwrap();
    let gone = BTreeMap::from([("cri-tools".to_owned(), String::new())]);
    world.apt().restore("plan", &gone).await.unwrap();
    assert!(!world.installed().await.contains("cri-tools"));
}

#[tokio::test]
async fn an_interrupted_dpkg_is_repaired() {
    let Some(world) = World::at_134().await else {
        return;
    };
    // The first run of the package's own script is killed in the middle.
    let postinst =
        "if [ ! -e \"$DPKG_ROOT/cut\" ]; then touch \"$DPKG_ROOT/cut\"; kill -9 $PPID; fi";
    world.repository("repo", &[Stub { postinst, ..stub("kubeadm", "1.35.0-1.2") }]);
    let from = PackageArgs::default();
    let error = world.install("v1.35.0", &["kubeadm"], &from).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Retriable, "{error}");
    assert!(!world.installed().await.contains("kubeadm"), "half configured");
    world.install("v1.35.0", &["kubeadm"], &from).await.unwrap();
    assert!(world.installed().await.starts_with("kubeadm 1.35.0-1.2"), "{}", world.log());
    assert!(world.log().contains("dpkg was interrupted"), "{}", world.log());
}

#[tokio::test]
async fn a_foreign_lock_is_waited_for() {
    let Some(world) = World::at_134().await else {
        return;
    };
    let slow = Stub { postinst: "touch \"$DPKG_ROOT/slow\"; sleep 1", ..stub("slow", "1.0") };
    world.packages("other", &[slow]);
    let mut other = Command::new("/usr/bin/dpkg")
        .args(dpkg_options(&world.site.path("/")))
        .arg("--install")
        .arg(world.path("other/slow_1.0_amd64.deb"))
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .spawn()
        .unwrap();
    while !world.site.path("/slow").exists() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let from = PackageArgs::default();
    world.install("v1.35.0", &["kubeadm"], &from).await.unwrap();
    assert!(other.wait().unwrap().success());
    let now = world.installed().await;
    assert!(now.contains("kubeadm 1.35.0-1.1") && now.contains("slow 1.0"), "{now}");
}

#[tokio::test]
async fn a_package_held_by_an_administrator_is_not_changed() {
    let Some(world) = World::at_134().await else {
        return;
    };
    world.repository(
        "repo",
        &[Stub { fields: "Depends: kubelet (>= 1.35)\n", ..stub("kubeadm", "1.36.0-1.1") }],
    );
    let before = world.installed().await;
    let from = PackageArgs::default();
    let error = world.install("v1.36.0", &["kubeadm"], &from).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson, "{error}");
    assert_eq!(world.installed().await, before);
}

#[tokio::test]
async fn nothing_is_removed_to_make_room() {
    let Some(world) = World::at_134().await else {
        return;
    };
    let conflicting = Stub { fields: "Conflicts: kubectl\n", ..stub("kubeadm", "1.36.0-1.1") };
    world.repository("repo", &[conflicting]);
    let before = world.installed().await;
    let from = PackageArgs::default();
    let error = world.install("v1.36.0", &["kubeadm"], &from).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson, "{error}");
    assert_eq!(world.installed().await, before);
}

#[tokio::test]
async fn a_directory_with_dependencies_needs_no_repository() {
    let Some(world) = World::at_134().await else {
        return;
    };
    let depends =
        Stub { fields: "Depends: cri-tools (>= 1.35)\n", ..stub("kubeadm", "1.35.2-1.1") };
    world.packages("root/srv/debs", &[depends, stub("cri-tools", "1.35.0-1.1")]);
    // An air-gapped host can reach no repository.
    fs::remove_dir_all(world.path("repo")).unwrap();
    let from = PackageArgs { path: "/srv/debs".to_owned(), ..PackageArgs::default() };
    let order = World::order("v1.35.2", &["kubeadm"], &from);
    world.apt().fetch(&order).await.unwrap();
    world.apt().install(&order).await.unwrap();
    let now = world.installed().await;
    assert!(now.contains("cri-tools 1.35.0-1.1, kubeadm 1.35.2-1.1"), "{now}");
}

#[tokio::test]
async fn the_repository_of_the_next_minor_is_used_and_left_again() {
    let Some(world) = World::new() else { return };
    world.repository("v1.34/deb", &[stub("kubeadm", "1.34.2-1.1")]);
    world.repository("v1.35/deb", &[stub("kubeadm", "1.35.0-1.1")]);
    let list = world.site.path("/etc/apt/sources.list.d/kubernetes.list");
    let line = |minor: &str| {
        let directory = world.path("").display().to_string();
        format!("deb [trusted=yes] file:{}/{minor}/deb/ /\n", directory.trim_end_matches('/'))
    };
    fs::write(&list, line("v1.34")).unwrap();
    let none = PackageArgs::default();
    world.install("v1.34.2", &["kubeadm"], &none).await.unwrap();
    let error = world.install("v1.35.0", &["kubeadm"], &none).await.unwrap_err();
    assert!(error.message.contains("one repository per minor version"), "{error}");
    let before = world.apt().installed().await.unwrap();
    let directory = world.path("v1.35/deb").display().to_string();
    let from = PackageArgs { repository: format!("file:{directory}/"), ..PackageArgs::default() };
    let order = World::order("v1.35.0", &["kubeadm"], &from);
    world.apt().fetch(&order).await.unwrap();
    world.apt().install(&order).await.unwrap();
    assert_eq!(world.installed().await, "kubeadm 1.35.0-1.1", "{}", world.log());
    assert_eq!(fs::read_to_string(&list).unwrap(), line("v1.35"));
    world.apt().restore("plan", &before).await.unwrap();
    assert_eq!(world.installed().await, "kubeadm 1.34.2-1.1", "{}", world.log());
    assert_eq!(fs::read_to_string(&list).unwrap(), line("v1.34"));
}

#[tokio::test]
async fn apt_does_not_upgrade_to_the_next_minor_before_the_installation() {
    let Some(world) = World::new() else { return };
    world.repository("v1.34/deb", &NAMES.map(|name| stub(name, "1.34.2-1.1")));
    world.repository("v1.35/deb", &NAMES.map(|name| stub(name, "1.35.0-1.1")));
    let list = world.site.path("/etc/apt/sources.list.d/kubernetes.list");
    let line = format!("deb [trusted=yes] file:{}/deb/ /\n", world.path("v1.34").display());
    fs::write(&list, line).unwrap();
    let none = PackageArgs::default();
    let order = Order { plan: "the previous plan", ..World::order("v1.34.2", &NAMES, &none) };
    world.apt().install(&order).await.unwrap();
    // The administrator holds only kubectl.
    let unhold = ["unhold", "kubeadm", "kubelet"];
    world.site.call(Program::AptMark, unhold).output().await.unwrap();

    let repository = format!("file:{}/deb", world.path("v1.35").display());
    let from = PackageArgs { repository, ..PackageArgs::default() };
    world.apt().fetch(&World::order("v1.35.0", &NAMES, &from)).await.unwrap();
    assert_eq!(world.held().await, ["kubeadm", "kubectl", "kubelet"]);
    world.site.call(Program::AptGet, ["--yes", "upgrade"]).output().await.unwrap();
    assert!(!world.installed().await.contains("1.35"), "{}", world.installed().await);

    let before = world.apt().installed().await.unwrap();
    world.install("v1.35.0", &["kubeadm"], &from).await.unwrap();
    world.apt().restore("plan", &before).await.unwrap();
    let job = JobFile {
        plan: "plan".into(),
        unit: "unit".to_owned(),
        step: "stage".to_owned(),
        command: Undo::Files { step: "stage".to_owned() }.into(),
        state: world.site.state().to_owned(),
        kubeconfig: PathBuf::new(),
        namespace: String::new(),
        own: refit_agent::OwnPaths::default(),
        proxies: BTreeMap::new(),
    };
    fs::create_dir_all(world.site.units()).unwrap();
    carry_out(&world.site, &job, &NoSecrets).await.unwrap();
    assert_eq!(world.held().await, ["kubectl"], "{}", world.log());
}
