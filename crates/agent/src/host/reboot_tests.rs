use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::PermissionsExt as _,
    process::{Child, Command, Stdio},
};

use refit_kinds::refit::FailureKind;

use super::*;
use crate::host::site::Tool;

const NONE: &str = r#"{"type":"a(ssssuu)","data":[[]]}"#;
const APT: &str = r#"{"type":"a(ssssuu)","data":[[["sleep","NetworkManager","turns off","delay",0,700],["shutdown","APT","APT is installing or removing packages","block",0,812]]]}"#;
/// The lock file that a child process of a test holds.
const HELD: &str = "REFIT_TEST_HOLDS_LOCK";

struct World {
    directory: tempfile::TempDir,
    site: Site,
}

impl World {
    /// A host with dpkg and rpm, whose `busctl` and `systemctl` are these scripts.
    fn new(busctl: &str, systemctl: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut site = Site::at(directory.path().join("root"), directory.path().join("state"));
        for path in ["/var/lib/dpkg", "/usr/lib/sysimage/rpm"] {
            fs::create_dir_all(site.path(path)).unwrap();
        }
        fs::create_dir_all(site.state()).unwrap();
        for (program, script) in [(Program::Busctl, busctl), (Program::Systemctl, systemctl)] {
            let path = directory.path().join(format!("{program:?}"));
            fs::write(&path, format!("#!/bin/sh\ncd {}\n{script}\n", directory.path().display()))
                .unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            let tool = Tool { path: path.display().to_string(), ..Tool::default() };
            site = site.with_tool(program, tool);
        }
        Self { directory, site }
    }

    fn answering(list: &str) -> Self {
        Self::new(&format!("echo '{list}'"), "touch rebooted")
    }

    async fn reboot(&self, most_millis: u64) -> Result<(), WorkError> {
        let most = Duration::from_millis(most_millis);
        let poll = Duration::from_millis(5);
        reboot(&self.site, Patience { most, poll, hold: Duration::ZERO }).await
    }

    fn has_rebooted(&self) -> bool {
        self.directory.path().join("rebooted").exists()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.site.state().join("host.log")).unwrap_or_default()
    }
}

/// Starts this test program again, as a process that holds the lock until its input ends.
fn other_process(test: &str, lock: &std::path::Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", test])
        .env(HELD, lock)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("locked")), "the child holds no lock");
    child
}

/// Whether this is the process that holds the lock. Returns once its input has ended.
fn is_other_process() -> bool {
    let Ok(path) = std::env::var(HELD) else {
        return false;
    };
    let file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
    fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    println!("locked");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    true
}

#[tokio::test]
async fn a_reboot_waits_for_a_package_transaction_of_another_process() {
    if is_other_process() {
        return;
    }
    let test = "host::reboot::tests::a_reboot_waits_for_a_package_transaction_of_another_process";
    for lock in ["/var/lib/dpkg/lock-frontend", "/usr/lib/sysimage/rpm/.rpm.lock"] {
        let world = World::answering(NONE);
        let mut other = other_process(test, &world.site.path(lock));
        let error = world.reboot(30).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::Retriable);
        let named = format!("Could not get lock {lock}: it is held by process {}", other.id());
        assert!(error.message.contains(&named), "{error}");
        assert!(!world.has_rebooted());
        // The other process finishes while the reboot waits.
        let (ended, finished) = tokio::join!(world.reboot(60_000), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(other.stdin.take());
            other.wait()
        });
        ended.unwrap();
        finished.unwrap();
        assert!(world.has_rebooted());
        assert_eq!(
            world.log().matches("waiting: Could not get lock").count(),
            2,
            "{}",
            world.log()
        );
    }
}

#[tokio::test]
async fn the_locks_are_held_while_systemd_is_asked() {
    let script = "touch rebooted; for lock in root/var/lib/dpkg/lock-frontend root/var/lib/dpkg/lock \
                  root/usr/lib/sysimage/rpm/.rpm.lock; do \
                  grep -q \":$(stat -c %i $lock) \" /proc/locks || rm rebooted; done";
    let world = World::new(&format!("echo '{NONE}'"), script);
    world.reboot(30).await.unwrap();
    assert!(world.has_rebooted(), "a lock was not held");
    assert!(!world.site.path("/var/lib/rpm").exists());
}

#[tokio::test]
async fn a_reboot_waits_for_an_inhibitor_of_the_shutdown() {
    let world = World::answering(APT);
    let error = world.reboot(30).await.unwrap_err();
    let named = "process 812 (APT) inhibits the reboot: APT is installing or removing packages";
    assert!(error.message.ends_with(named), "{error}");
    assert!(!world.has_rebooted());
    // It ends after the first look.
    let busctl = format!("[ -e second ] && echo '{NONE}' || echo '{APT}'; touch second");
    let world = World::new(&busctl, "touch rebooted");
    world.reboot(60_000).await.unwrap();
    assert!(world.has_rebooted());
}

#[tokio::test]
async fn a_refusal_because_of_an_inhibitor_is_waited_for() {
    let refusal = "[ -e second ] && touch rebooted && exit; touch second; \
                   echo 'Operation inhibited by \"rpm\" (PID 9), reason is \"x\".'; exit 1";
    let world = World::new(&format!("echo '{NONE}'"), refusal);
    world.reboot(60_000).await.unwrap();
    assert!(world.has_rebooted() && world.log().contains("waiting: systemd inhibits the reboot"));
    let world = World::new(&format!("echo '{NONE}'"), "echo 'Failed to connect to bus'; exit 1");
    let error = world.reboot(60_000).await.unwrap_err();
    assert!(error.message.contains("Failed to connect"), "{error}");
}

#[tokio::test]
async fn a_host_without_logind_and_package_managers_reboots() {
    let world = World::new("echo 'The name is not activatable' >&2; exit 1", "touch rebooted");
    for path in ["/var/lib/dpkg", "/usr/lib/sysimage/rpm"] {
        fs::remove_dir(world.site.path(path)).unwrap();
    }
    world.reboot(30).await.unwrap();
    assert!(world.has_rebooted());
}

#[test]
fn only_block_inhibitors_of_the_shutdown_are_obstacles() {
    for (what, mode, blocks) in [
        ("shutdown", "block", true),
        ("idle:sleep:shutdown", "block", true),
        ("shutdown", "block-weak", true),
        ("shutdown", "delay", false),
        ("sleep:idle", "block", false),
        ("handle-reboot-key", "block", false),
    ] {
        let answer =
            serde_json::json!({"type": "a(ssssuu)", "data": [[[what, "w", "y", mode, 0, 9]]]});
        let found = parse(&answer.to_string()).unwrap().remove(0).obstacle();
        assert_eq!(found.is_some(), blocks, "{what} {mode}");
    }
    assert!(parse("[]").is_err());
}
