use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::host::{look::BOOT_ID, scripted::ScriptedHost};

const DEBIAN: &str = "Linux version 6.1.0-28-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14) 12.2.0, GNU ld \
                      (GNU Binutils for Debian) 2.40) #1 SMP PREEMPT_DYNAMIC Debian 6.1.119-1 (2024-11-22)";
const PLUGIN_REQUIRES: &str = "echo 'Core libraries or services have been updated since boot-up:'; echo '  * kernel'; \
                           echo '  * glibc'; echo; echo 'Reboot is required to fully utilize these updates.'; exit 1";
const NO_PLUGIN: &str =
    "echo 'No such command: needs-restarting. Please use /usr/bin/dnf --help' >&2; exit 1";

fn host(release: &str) -> ScriptedHost {
    let directories = ["/proc/sys/kernel", "/run", "/var/lib/dpkg", "/var/lib/rpm"];
    let mut host = ScriptedHost::with_directories(&directories);
    host.write(RELEASE, format!("{release}\n"));
    for program in [Program::AptGet, Program::Dnf, Program::Dnf5, Program::Tdnf] {
        host.without(program);
    }
    host
}

/// A host with dpkg, and these packages with their versions.
fn debian(release: &str, packages: &str) -> ScriptedHost {
    let mut host = host(release);
    host.write("/var/lib/dpkg/status", "");
    host.script(Program::AptGet, "exit 1");
    let lines: Vec<String> =
        packages.split(", ").map(|one| format!("echo {one} installed; ")).collect();
    let lines = lines.concat();
    host.script(Program::DpkgQuery, &lines);
    host
}

/// A host with dnf and these kernels.
fn fedora(release: &str, kernels: &[&str], needs_restarting: &str) -> ScriptedHost {
    let mut host = host(release);
    let plugin = format!(
        "test \"$*\" = 'needs-restarting --reboothint --disablerepo=*' || exit 7\n{needs_restarting}"
    );
    host.script(Program::Dnf, &plugin);
    let lines: Vec<String> = kernels.iter().map(|one| format!("echo {one}; ")).collect();
    let lines = lines.concat();
    host.script(Program::Rpm, &lines);
    host
}

async fn why(host: &ScriptedHost) -> Option<String> {
    required(&host.site).await.unwrap()
}

#[tokio::test]
async fn a_file_of_package_scripts_requires_a_boot() {
    let host = host("6.1.0-28-amd64");
    assert_eq!(why(&host).await, None);
    let before = basis(&host.site);
    host.write(REQUIRED[0], "*** System restart required ***\n");
    assert_ne!(basis(&host.site), before, "it is looked for again");
    assert_eq!(why(&host).await.unwrap(), "/run/reboot-required exists");
    host.write("/run/reboot-required.pkgs", "linux-base\nlibc6\nlibc6\n");
    assert_eq!(why(&host).await.unwrap(), "/run/reboot-required exists, for libc6, linux-base");
}

#[tokio::test]
async fn a_newer_kernel_of_the_running_kind_requires_a_boot() {
    let newer = |newest: &str, running: &str| {
        Some(format!("a newer kernel is installed: {newest}; {running} runs"))
    };
    let amd64 = "6.1.0-9-amd64";
    let azure = "5.15.0-1053-azure";
    for (running, packages, expected) in [
        (amd64, "linux-image-6.1.0-9-amd64 1, linux-image-amd64 1", None),
        (
            amd64,
            "linux-image-6.1.0-9-amd64 1, linux-image-6.1.0-28-amd64 2",
            newer("6.1.0-28-amd64", amd64),
        ),
        (amd64, "linux-image-6.1.0-8-amd64 1, linux-image-6.1.0-9-amd64 1", None),
        (amd64, "linux-image-6.1.0-28-cloud-amd64 1, linux-image-6.1.0-28-rt-amd64 1", None),
        (amd64, "linux-image-6.12.9+deb13-amd64 1", newer("6.12.9+deb13-amd64", amd64)),
        (azure, "linux-image-unsigned-5.15.0-1060-azure 1", newer("5.15.0-1060-azure", azure)),
        (azure, "linux-image-5.15.0-130-generic 1", None),
        ("6.6.1-custom", "vim 1", None),
    ] {
        let host = debian(running, packages);
        assert_eq!(why(&host).await, expected, "{running}: {packages}");
    }
}

#[tokio::test]
async fn a_kernel_that_was_replaced_under_its_name_requires_a_boot() {
    for (installed, expected) in [
        ("6.1.119-1", None),
        (
            "6.1.123-1",
            Some(
                "the running kernel 6.1.0-28-amd64 was replaced: it is version 6.1.119-1, installed is 6.1.123-1"
                    .to_owned(),
            ),
        ),
    ] {
        let packages = format!("linux-image-6.1.0-28-amd64 {installed}");
        let host = debian("6.1.0-28-amd64", &packages);
        host.write("/proc/version", DEBIAN);
        assert_eq!(why(&host).await, expected);
    }
}

#[tokio::test]
async fn dnf_answers_or_kernels_are_compared() {
    let el9 = "5.14.0-503.el9.x86_64";
    let newer = |newest: &str| Some(format!("a newer kernel is installed: {newest}; {el9} runs"));
    let next = "kernel-core 5.14.0-503.11.1.el9 x86_64";
    let same = "kernel-core 5.14.0-503.el9 x86_64";
    let updated = "packages were updated since the host booted: glibc, kernel";
    for (kernels, plugin, expected) in [
        (&[same][..], "echo Reboot should not be necessary.", None),
        (&[same], PLUGIN_REQUIRES, Some(updated.to_owned())),
        // What the plugin finds counts, and not which kernel is the newest.
        (&[next], "exit 0", None),
        (&[next, same], NO_PLUGIN, newer("5.14.0-503.11.1.el9.x86_64")),
        (&[same, "kernel-headers 6.0-1 x86_64"], NO_PLUGIN, None),
    ] {
        let host = fedora(el9, kernels, plugin);
        assert_eq!(why(&host).await, expected, "{kernels:?} {plugin}");
    }
    // A release without its architecture.
    let host = fedora("6.6.47.1-1.azl3", &["kernel 6.6.51.1-5.azl3 x86_64"], NO_PLUGIN);
    assert!(why(&host).await.unwrap().contains("6.6.51.1-5.azl3; 6.6.47.1-1.azl3 runs"));
}

/// A host whose `systemctl` notes the reboot.
fn bootable() -> ScriptedHost {
    let mut host = host("6.1.0-28-amd64");
    let rebooted = host.directory.path().join("rebooted").display().to_string();
    host.script(Program::Systemctl, &format!("touch {rebooted}"));
    host.script(Program::Busctl, r#"echo '{"type":"a(ssssuu)","data":[[]]}'"#);
    host
}

async fn reboots(host: &ScriptedHost) -> bool {
    let most = Duration::from_secs(5);
    let patience = Patience { most, poll: Duration::from_millis(5), hold: Duration::ZERO };
    reboot_if_required(&host.site, "p", patience).await.unwrap();
    host.directory.path().join("rebooted").exists()
}

#[tokio::test]
async fn only_what_was_noted_after_the_installation_boots_the_host() {
    let host = bootable();
    note_required(&host.site, "p", RebootChoice::IfRequired).await.unwrap();
    // Another program requires a boot meanwhile, on a node that was not drained.
    host.write(REQUIRED[0], "");
    assert!(!reboots(&host).await, "{}", host.log());
    note_required(&host.site, "p", RebootChoice::Never).await.unwrap();
    assert!(!reboots(&host).await, "{}", host.log());
    note_required(&host.site, "p", RebootChoice::IfRequired).await.unwrap();
    assert!(reboots(&host).await, "{}", host.log());
}

#[tokio::test]
async fn a_host_that_was_booted_by_hand_is_not_booted_again() {
    let host = bootable();
    host.write(REQUIRED[0], "");
    note_required(&host.site, "p", RebootChoice::IfRequired).await.unwrap();
    fs::remove_file(host.site.path(REQUIRED[0])).unwrap();
    assert!(!reboots(&host).await, "{}", host.log());
    assert!(!note(&host.site, "p").exists(), "the mark of the step proves that it is done");
}

#[tokio::test]
async fn a_step_is_done_after_the_boot_or_if_none_is_needed() {
    let host = bootable();
    let now = fs::read_to_string(BOOT_ID).unwrap().trim().to_owned();
    let since = |boot_id: &str| Since { at: Timestamp::UNIX_EPOCH, boot_id: boot_id.to_owned() };
    let done = |is_marked, boot_id: &str| {
        shows(&host.site, "p", is_marked, &since(boot_id)).unwrap() == Evidence::Done
    };
    assert_eq!((done(false, &now), done(true, &now)), (false, true));
    host.write(REQUIRED[0], "");
    note_required(&host.site, "p", RebootChoice::IfRequired).await.unwrap();
    // The shutdown ends the step, which leaves its mark before the host is down.
    assert_eq!((done(true, &now), done(true, "another boot")), (false, true));
    assert!(done(false, "another boot"));
}
