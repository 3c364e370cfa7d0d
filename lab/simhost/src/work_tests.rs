use jiff::Timestamp;
use refit_kinds::refit::{FileArgs, ImageArgs, NtpArgs, PackageArgs, PackageVersion};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn host() -> HostState {
    HostState::new("n", false, "v1.34.2", at(0))
}

fn since(host: &HostState) -> Since {
    Since { at: at(0), boot_id: host.boot_id.clone() }
}

/// Carries out a command and asserts that its work is detected as done.
fn done(host: &mut HostState, step: &str, command: &Command) {
    host.carry_out(step, command).unwrap();
    let job = Job::new("p", "u", step, command.clone());
    assert_eq!(host.look(&job, &since(host)), Evidence::Done, "{}", command.name());
}

fn image() -> OsImageArgs {
    OsImageArgs {
        url: "https://images.example/new.cosi".to_owned(),
        sha384: "ab".to_owned(),
        ..OsImageArgs::default()
    }
}

fn stage_image() -> Command {
    Command::Step(HostStep::OsImageStage { os_image: image(), bundle: None })
}

#[test]
fn the_work_of_a_command_is_detected_only_afterwards() {
    let package =
        PackageVersion { name: "containerd.io".to_owned(), version: "2.1.4-1".to_owned() };
    let packages = PackageArgs { install: vec![package], ..PackageArgs::default() };
    let images = ImageArgs { names: vec!["app.example/web:1".to_owned()], ..ImageArgs::default() };
    let ntp = NtpArgs { enabled: true, servers: vec!["ntp.example".to_owned()] };
    let version = "v1.35.0".parse::<KubernetesVersion>().unwrap();
    for command in [
        Command::Step(HostStep::ContainerRuntimeInstall { packages: packages.clone() }),
        Command::Step(HostStep::ImagePreload { version: None, images, bundle: None }),
        Command::Step(HostStep::Ntp(ntp.clone())),
        Command::Step(HostStep::NtpReplace(ntp)),
        Command::Step(HostStep::KubectlInstall { version, packages }),
        stage_image(),
    ] {
        let mut host = host();
        let before = host.look(&Job::new("p", "u", "step", command.clone()), &since(&host));
        assert!(matches!(before, Evidence::Missing { .. }), "{}", command.name());
        done(&mut host, "step", &command);
    }
}

#[test]
fn files_are_written_and_restored() {
    let mut host = host();
    host.root.insert("/etc/a".to_owned(), "old".to_owned());
    let file = |path: &str| PlannedFile {
        path: path.to_owned(),
        content: "new".to_owned(),
        ..PlannedFile::default()
    };
    let files = FileArgs { files: vec![file("/etc/a"), file("/etc/b")], users: Vec::new() };
    let write = Command::Step(HostStep::Files(files));
    done(&mut host, "files", &write);
    done(&mut host, "files", &write);
    let step = "files".to_owned();
    done(&mut host, "undo-files", &Command::Undo(Undo::Files { step }));
    assert_eq!(host.root.get("/etc/a").map(String::as_str), Some("old"));
    assert!(!host.has("/etc/b"));
}

#[test]
fn an_os_image_runs_after_the_boot_and_can_be_rolled_back() {
    let mut host = host();
    let finalize = Command::Step(HostStep::OsImageFinalize { os_image: image() });
    let commit = Command::Step(HostStep::OsImageCommit { os_image: image() });
    assert!(host.carry_out("f", &finalize).is_err(), "nothing is staged");
    done(&mut host, "s", &stage_image());
    done(&mut host, "f", &finalize);
    assert!(host.carry_out("c", &commit).is_err(), "nothing has booted");
    host.boot_os();
    done(&mut host, "c", &commit);
    assert_eq!(host.os_image(), Some("ab"));
    done(&mut host, "u", &Command::Undo(Undo::OsImage { os_image: image() }));
    host.boot_os();
    assert_eq!(host.os_image(), None);
    done(&mut host, "u", &Command::Undo(Undo::OsImage { os_image: image() }));
}

#[test]
fn an_os_image_alone_leaves_the_kubelet_in_its_version() {
    let verify = |version: Option<&str>| {
        let version = version.map(|version| version.parse().unwrap());
        Command::Step(HostStep::Verify { version })
    };
    let mut host = host();
    done(&mut host, "s", &stage_image());
    done(&mut host, "f", &Command::Step(HostStep::OsImageFinalize { os_image: image() }));
    host.boot_os();
    done(&mut host, "c", &Command::Step(HostStep::OsImageCommit { os_image: image() }));
    done(&mut host, "v", &verify(None));
    done(&mut host, "v", &verify(Some("v1.34.2")));
    let other = Job::new("p", "u", "v", verify(Some("v1.35.0")));
    assert!(matches!(host.look(&other, &since(&host)), Evidence::Missing { .. }));
    assert_eq!(host.kubelet_version, "v1.34.2");
}

#[test]
fn an_image_rolled_back_before_the_boot_does_not_boot() {
    let mut host = host();
    done(&mut host, "s", &stage_image());
    done(&mut host, "f", &Command::Step(HostStep::OsImageFinalize { os_image: image() }));
    done(&mut host, "u", &Command::Undo(Undo::OsImage { os_image: image() }));
    host.boot_os();
    assert_eq!(host.os_image(), None);
}
