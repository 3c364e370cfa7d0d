//! The repair of rpm's database after an interruption, with the real dnf and rpm.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::PathBuf,
};

use refit_agent::host::{Order, Program, Tool};
use refit_kinds::refit::{FailureKind, PackageArgs};
use rpm::{BuildConfig, CompressionWithLevel, Dependency, PackageBuilder, Scriptlet};

use crate::dnf::{NAMES, World, at, order};

/// Kills the process that installs the package, the first time.
const CUT: &str = "local cut = io.open('/cut')\n\
    if cut then cut:close() else io.open('/cut', 'w'):close() \
    posix.kill(posix.getprocessid('pid'), 9) end";

/// Builds a package without files whose installation is interrupted.
fn interrupted(world: &World, name: &str, version: &str, provides: Option<&str>) {
    let (bare, release) = version.split_once('-').unwrap();
    let config = BuildConfig::default().compression(CompressionWithLevel::Gzip(1));
    let mut builder = PackageBuilder::new(name, bare, "Apache-2.0", std::env::consts::ARCH, "Stub");
    builder.using_config(config).release(release);
    builder.post_install_script(Scriptlet::new(CUT).prog(vec!["<lua>"]));
    // rpm itself runs it, no package provides it.
    builder.provides(Dependency::any("<lua>"));
    if let Some(provided) = provides {
        builder.provides(Dependency::any(provided));
    }
    let file = world.path(&format!("repo/{name}-{version}.rpm"));
    builder.build().unwrap().write_file(file).unwrap();
    world.index("repo");
}

/// The entries of a package in rpm's database.
async fn entries(world: &World, name: &str) -> Vec<String> {
    let query = ["--query", "--queryformat", "%{VERSION}\\n", name];
    let answer = world.site.call(Program::Rpm, query).output().await.unwrap();
    answer.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn an_interrupted_transaction_of_the_plan_is_repaired() {
    for (from, to, next_plan) in [("1.35.0", "1.36.0", "p"), ("1.36.0", "1.35.0", "retry")] {
        let Some(world) = World::at_134().await else {
            return;
        };
        fs::write(world.site.path("/cut"), "").unwrap();
        interrupted(&world, "kubeadm", &format!("{from}-1"), None);
        let args = PackageArgs::default();
        let first = order(&format!("v{from}"), &["kubeadm"], &args);
        world.dnf().fetch(&first).await.unwrap();
        world.install(&first).await.unwrap();
        fs::remove_file(world.site.path("/cut")).unwrap();
        interrupted(&world, "kubeadm", &format!("{to}-1"), None);
        let order = order(&format!("v{to}"), &["kubeadm"], &args);
        world.dnf().fetch(&order).await.unwrap();
        world.dnf().install(&order).await.unwrap_err();
        assert_eq!(entries(&world, "kubeadm").await.len(), 2, "{}", world.log());
        world.install(&Order { plan: next_plan, ..order }).await.unwrap();
        assert_eq!(entries(&world, "kubeadm").await, [to], "{}", world.log());
    }
}

#[tokio::test]
async fn a_package_that_may_be_installed_twice_keeps_its_entries() {
    let Some(world) = World::at_134().await else {
        return;
    };
    let provided = Some("installonlypkg(kernel-module)");
    fs::write(world.site.path("/cut"), "").unwrap();
    interrupted(&world, "gpu-module", "1.35.0-1", provided);
    let args = PackageArgs::default();
    let first = order("v1.35.0", &["gpu-module"], &args);
    world.dnf().fetch(&first).await.unwrap();
    world.install(&first).await.unwrap();
    fs::remove_file(world.site.path("/cut")).unwrap();
    interrupted(&world, "gpu-module", "1.36.0-1", provided);
    let order = order("v1.36.0", &["gpu-module"], &args);
    world.dnf().fetch(&order).await.unwrap();
    world.dnf().install(&order).await.unwrap_err();
    world.install(&order).await.unwrap();
    assert_eq!(entries(&world, "gpu-module").await, ["1.35.0", "1.36.0"], "{}", world.log());
}

fn database(world: &World) -> PathBuf {
    world.site.path("/root/.rpmdb/rpmdb.sqlite")
}

/// Overwrites a part of the database.
fn damage(world: &World, part: std::ops::Range<usize>) -> Vec<u8> {
    let mut bytes = fs::read(database(world)).unwrap();
    bytes[part].fill(0x5a);
    fs::write(database(world), &bytes).unwrap();
    bytes
}

/// Pages of indexes. The packages themselves can still be read.
const INDEXES: std::ops::Range<usize> = 4096 * 2..4096 * 6;

#[tokio::test]
async fn a_broken_rpm_database_is_rebuilt() {
    let Some(world) = World::at_134().await else {
        return;
    };
    world.kubernetes("repo", "1.35.0-1.1");
    world.index("repo");
    let args = PackageArgs::default();
    world.dnf().fetch(&order("v1.35.0", &NAMES, &args)).await.unwrap();
    damage(&world, INDEXES);
    world.install(&order("v1.35.0", &["kubeadm"], &args)).await.unwrap();
    assert!(world.log().contains("is broken, rebuilding it"), "{}", world.log());
    let mut wanted = at("1.34.2-1.1");
    for name in ["kubeadm", "cri-tools"] {
        wanted.insert(name.to_owned(), "1.35.0-1.1".to_owned());
    }
    assert_eq!(world.versions().await, wanted);
    assert!(!world.site.state().join("rpm-database").exists());
}

/// Leaves a copy of the database, as an interrupted rebuild does.
fn leave_copy(world: &World) {
    let state = world.site.state();
    let copy = state.join("rpm-database");
    fs::create_dir(&copy).unwrap();
    fs::copy(database(world), copy.join("rpmdb.sqlite")).unwrap();
    // rpm looks for the copy below the root of the host.
    let below_root = world.site.path("/").join(state.strip_prefix("/").unwrap());
    fs::create_dir_all(below_root.parent().unwrap()).unwrap();
    symlink(state, below_root).unwrap();
}

#[tokio::test]
async fn a_sound_rpm_database_is_not_replaced_by_a_copy_from_before() {
    let Some(world) = World::at_134().await else {
        return;
    };
    world.kubernetes("repo", "1.35.0-1.1");
    world.index("repo");
    leave_copy(&world);
    let copy = world.site.state().join("rpm-database");
    let aside = world.path("aside");
    fs::rename(&copy, &aside).unwrap();
    let args = PackageArgs::default();
    let order = order("v1.35.0", &["kubeadm"], &args);
    world.dnf().fetch(&order).await.unwrap();
    world.install(&order).await.unwrap();
    let wanted = world.versions().await;
    assert_eq!(wanted["kubeadm"], "1.35.0-1.1");
    fs::rename(&aside, &copy).unwrap();
    world.install(&order).await.unwrap();
    assert_eq!(world.versions().await, wanted, "{}", world.log());
    assert!(world.log().contains("the rpm database is sound"), "{}", world.log());
    assert!(!world.log().contains("is broken, rebuilding it"), "{}", world.log());
    assert!(!copy.exists());
}

#[tokio::test]
async fn an_rpm_database_with_fewer_packages_than_the_copy_is_replaced_by_it() {
    let Some(world) = World::at_134().await else {
        return;
    };
    leave_copy(&world);
    // The rebuild lost a package.
    world.site.ask(Program::Rpm, ["--erase", "--justdb", "--nodeps", "kubectl"]).await.unwrap();
    assert!(!world.versions().await.contains_key("kubectl"));
    let args = PackageArgs::default();
    world.install(&order("v1.34.2", &["kubeadm"], &args)).await.unwrap();
    assert_eq!(world.versions().await, at("1.34.2-1.1"), "{}", world.log());
    assert!(!world.site.state().join("rpm-database").exists());
}

#[tokio::test]
async fn an_rpm_database_that_cannot_be_rebuilt_is_left_unchanged() {
    let Some(world) = World::at_134().await else {
        return;
    };
    let damaged = damage(&world, 0..100);
    let args = PackageArgs::default();
    let error = world.dnf().install(&order("v1.35.0", &["kubeadm"], &args)).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson, "{error}");
    assert!(error.message.contains("restore it from a backup"), "{error}");
    assert!(fs::read(database(&world)).unwrap() == damaged);
    assert!(!world.site.state().join("rpm-database").exists());
}

#[tokio::test]
async fn an_rpm_database_that_a_rebuild_has_emptied_is_restored() {
    let Some(mut world) = World::at_134().await else {
        return;
    };
    let damaged = damage(&world, INDEXES);
    // rpm reports success.
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--rebuilddb*) rm {0}/root/.rpmdb/*; exit 0;; esac\n\
         exec /usr/bin/rpm --root={0} \"$@\"\n",
        world.site.path("/").display().to_string().trim_end_matches('/')
    );
    let path = world.path("rpm");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let environment = vec![("HOME".to_owned(), "/root".to_owned())];
    let tool = Tool { path: path.display().to_string(), arguments: Vec::new(), environment };
    world.site = world.site.clone().with_tool(Program::Rpm, tool);
    let args = PackageArgs::default();
    let error = world.dnf().install(&order("v1.35.0", &["kubeadm"], &args)).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson, "{error}");
    assert!(error.message.contains("leaves 0 packages of"), "{error}");
    assert!(fs::read(database(&world)).unwrap() == damaged);
}
