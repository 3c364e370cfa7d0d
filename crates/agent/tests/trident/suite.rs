//! Test cases for the driver in every state of Trident.

use std::{fs, path::PathBuf, process::Command};

use refit_agent::host::{Evidence, OsImage, Program, Site, Situation, Tool, TridentCli, WorkError};
use refit_kinds::refit::{FailureKind, HealthCheck, OsImageArgs};
use serde_json::{Value, json};

use crate::{
    from_bundle::an_image_of_a_bundle_is_staged_and_finalized_without_a_server,
    stand_in::{DIRECTORY, Host},
};

const OLD: &str = "https://images.example/old.cosi";
const NEW: &str = "https://images.example/new.cosi";

#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Whether the case needs only an image and a host that Trident installed.
    pub(crate) on_a_real_host: bool,
    run: fn(&Bench),
}

macro_rules! cases {
    ($($real:literal $name:ident,)*) => {
        vec![$(Case { name: stringify!($name), on_a_real_host: $real, run: $name },)*]
    };
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        true an_image_is_staged_finalized_booted_and_kept,
        true a_host_that_has_the_image_is_left_alone,
        true staging_again_does_nothing,
        false an_identical_configuration_with_scripts_is_not_submitted_again,
        false the_reboot_is_never_tridents,
        false a_health_check_that_fails_ends_on_the_old_image,
        false firmware_that_boots_the_old_volume_is_found_out,
        false a_boot_that_was_lost_is_still_waited_for,
        false nothing_is_finalized_that_is_not_staged,
        false an_image_server_that_is_gone_at_the_finalizing_is_named,
        false an_image_of_another_distribution_is_final,
        false a_busy_trident_is_retried,
        false another_staged_image_is_replaced,
        false a_staged_image_is_rolled_back,
        false a_finalized_image_is_rolled_back_before_it_boots,
        false undoing_a_boot_twice_succeeds,
        false an_image_of_a_bundle_is_staged_and_finalized_without_a_server,
        false a_kept_image_is_rolled_back,
        false a_host_without_trident_requires_manual_intervention,
        false no_image_is_staged_that_would_take_the_journal_away,
        false an_old_error_does_not_count_as_a_rollback,
        false a_commit_that_tridents_service_made_is_seen,
    ]
}

pub(crate) fn run(case: &Case, real: Option<&str>) {
    (case.run)(&Bench::new(real));
}

/// A host, its Trident, and the image that it is to run.
pub(crate) struct Bench {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) site: Site,
    pub(crate) image: OsImageArgs,
    /// Command that reboots a real host.
    reboot: Option<String>,
}

impl Bench {
    fn new(real: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let image = OsImageArgs {
            name: "Azure Linux 3.0".to_owned(),
            url: NEW.to_owned(),
            sha384: "bb".repeat(48),
            health_checks: vec![HealthCheck {
                name: "kubelet".to_owned(),
                systemd_services: vec!["kubelet.service".to_owned()],
                timeout_seconds: Some(60),
            }],
            ..OsImageArgs::default()
        };
        let state = directory.path().join("state");
        fs::create_dir_all(&state).unwrap();
        if let Some(path) = real {
            let tool = Tool { path: path.to_owned(), ..Tool::default() };
            let variable = |name: &str| {
                std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: see README.md"))
            };
            return Self {
                site: Site::new(state).with_tool(Program::Trident, tool),
                image: OsImageArgs {
                    url: variable("REFIT_TRIDENT_IMAGE_URL"),
                    sha384: variable("REFIT_TRIDENT_IMAGE_SHA384"),
                    health_checks: Vec::new(),
                    ..image
                },
                reboot: Some(variable("REFIT_TRIDENT_REBOOT")),
                directory,
            };
        }
        let mut host = Host::installed(OLD, &"aa".repeat(48));
        host.images.insert(NEW.to_owned(), "bb".repeat(48));
        let tool = |first: &[&str]| Tool {
            path: std::env::current_exe().unwrap().display().to_string(),
            arguments: first.iter().map(|word| (*word).to_owned()).collect(),
            environment: vec![(DIRECTORY.to_owned(), directory.path().display().to_string())],
        };
        let site = Site::at(directory.path().join("root"), state)
            .with_tool(Program::Trident, tool(&[]))
            .with_tool(Program::Efibootmgr, tool(&["efibootmgr"]));
        let bench = Self { directory, site, image, reboot: None };
        bench.set(&host);
        bench
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("host.json")
    }

    pub(crate) fn host(&self) -> Host {
        Host::load_from(&self.file())
    }

    fn set(&self, host: &Host) {
        let boot_id = self.site.path("/proc/sys/kernel/random/boot_id");
        fs::create_dir_all(boot_id.parent().unwrap()).unwrap();
        fs::write(boot_id, format!("boot-{}\n", host.boots)).unwrap();
        host.save_to(&self.file());
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Host)) {
        let mut host = self.host();
        change(&mut host);
        self.set(&host);
    }

    /// Reboots the host. Trident's service has not run yet.
    pub(crate) fn boot(&self) {
        match &self.reboot {
            None => self.change(Host::boot),
            Some(command) => {
                let status = Command::new("/bin/sh").args(["-c", command]).status().unwrap();
                assert!(status.success(), "{command} did not reboot the host");
            }
        }
    }

    fn with<T>(&self, work: impl AsyncFnOnce(OsImage<'_>) -> T) -> T {
        let trident = TridentCli::new(&self.site);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work(OsImage::new(&self.site, &trident, "plan", &self.image)))
    }

    fn stage(&self) -> Result<(), WorkError> {
        self.with(async |image| image.stage().await)
    }

    fn finalize(&self) -> Result<(), WorkError> {
        self.with(async |image| image.finalize().await)
    }

    fn commit(&self) -> Result<(), WorkError> {
        self.with(async |image| image.commit().await)
    }

    fn undo(&self) -> Result<(), WorkError> {
        self.with(async |image| image.undo().await)
    }

    fn situation(&self) -> Situation {
        self.with(async |image| image.situation().await).unwrap()
    }

    fn updated(&self) {
        self.stage().unwrap();
        self.finalize().unwrap();
        self.boot();
        self.commit().unwrap();
    }

    fn times(&self, what: &str) -> usize {
        self.host().log.iter().filter(|line| *line == what).count()
    }
}

fn an_image_is_staged_finalized_booted_and_kept(bench: &Bench) {
    bench.stage().unwrap();
    assert_eq!(bench.situation(), Situation::Staged);
    bench.finalize().unwrap();
    assert_eq!(bench.situation(), Situation::AwaitsBoot);
    bench.boot();
    // On a real host Trident's service may have committed already.
    assert!(matches!(bench.situation(), Situation::AwaitsCommit | Situation::Done));
    bench.commit().unwrap();
    assert_eq!(bench.situation(), Situation::Done);
    let committed = bench.with(async |image| image.is_committed().await).unwrap();
    assert_eq!(committed, Evidence::Done);
}

fn a_host_that_has_the_image_is_left_alone(bench: &Bench) {
    if bench.situation() != Situation::Done {
        bench.updated();
    }
    let before = bench.reboot.is_none().then(|| bench.host().log);
    bench.stage().unwrap();
    bench.finalize().unwrap();
    bench.commit().unwrap();
    assert_eq!(bench.situation(), Situation::Done);
    assert_eq!(bench.reboot.is_none().then(|| bench.host().log), before);
}

fn staging_again_does_nothing(bench: &Bench) {
    bench.stage().unwrap();
    bench.stage().unwrap();
    assert!(matches!(bench.situation(), Situation::Staged | Situation::Done));
    if bench.reboot.is_none() {
        assert_eq!(bench.times("staged"), 1);
    }
}

fn an_identical_configuration_with_scripts_is_not_submitted_again(bench: &Bench) {
    // Show the trap first: Trident itself would update again and again.
    let scripts = json!({ "postProvision": [{ "name": "carry-over", "runOn": ["ab-update"] }] });
    bench.change(|host| host.spec["scripts"] = scripts.clone());
    bench.updated();
    assert_eq!(bench.host().spec["scripts"], scripts, "the host's own scripts stay");
    let config = bench.directory.path().join("same.yaml");
    fs::write(&config, bench.host().spec.to_string()).unwrap();
    let same = config.display().to_string();
    let call =
        bench.site.call(Program::Trident, ["update", &same, "--allowed-operations", "stage"]);
    let trap =
        Command::new(&call.program).args(&call.arguments).envs(call.environment).output().unwrap();
    assert!(trap.status.success());
    assert_eq!(bench.host().servicing_state, "ab-update-staged");
    bench.change(|host| {
        host.enter("provisioned");
        host.spec_old = Value::Null;
    });
    // The driver checks the state first.
    let before = bench.times("staged");
    for _ in 0..3 {
        bench.stage().unwrap();
        bench.finalize().unwrap();
    }
    assert_eq!(bench.times("staged"), before);
    assert_eq!(bench.times("finalized"), 1);
}

fn the_reboot_is_never_tridents(bench: &Bench) {
    bench.stage().unwrap();
    bench.finalize().unwrap();
    assert_eq!(bench.times("Trident reboots"), 0);
    assert_eq!(bench.host().boots, 1);
}

fn a_health_check_that_fails_ends_on_the_old_image(bench: &Bench) {
    bench.change(|host| host.failing = vec!["kubelet.service".to_owned()]);
    bench.stage().unwrap();
    bench.finalize().unwrap();
    bench.boot();
    // In the new OS the commit fails and Trident boots the old OS, which also kills the agent.
    let _ = bench.with(async |image| {
        let _ = image.situation().await;
        let call = bench.site.call(Program::Trident, ["commit"]);
        bench.site.run(&call).await
    });
    assert_eq!(bench.situation(), Situation::RollingBack);
    bench.change(|host| host.boots += 1);
    // Back in the old OS, Trident's service runs commit once more.
    let _ = bench.with(async |_| {
        let call = bench.site.call(Program::Trident, ["commit"]);
        bench.site.run(&call).await
    });
    let error = bench.commit().unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson);
    assert!(error.message.contains("kubelet.service is not active"), "{error}");
    assert_eq!(bench.host().booted, "volume-a");
}

fn firmware_that_boots_the_old_volume_is_found_out(bench: &Bench) {
    bench.change(|host| host.forgetful_firmware = true);
    bench.stage().unwrap();
    bench.finalize().unwrap();
    bench.boot();
    let error = bench.commit().unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson);
    assert!(error.message.contains("AbUpdateRebootCheck"), "{error}");
}

fn a_boot_that_was_lost_is_still_waited_for(bench: &Bench) {
    bench.stage().unwrap();
    bench.finalize().unwrap();
    // Repeated without a boot in between: nothing is submitted again.
    bench.finalize().unwrap();
    bench.stage().unwrap();
    let error = bench.commit().unwrap_err();
    assert_eq!(error.kind, FailureKind::Retriable);
    assert_eq!(bench.times("finalized"), 1);
    assert_eq!(bench.times("staged"), 1);
}

fn nothing_is_finalized_that_is_not_staged(bench: &Bench) {
    let scripts = json!({ "postProvision": [{ "name": "carry-over", "runOn": ["all"] }] });
    bench.change(|host| host.spec["scripts"] = scripts);
    assert!(bench.finalize().is_err());
    assert_eq!(bench.host().servicing_state, "provisioned");
    assert_eq!(bench.host().boots, 1);
}

fn an_image_server_that_is_gone_at_the_finalizing_is_named(bench: &Bench) {
    bench.stage().unwrap();
    bench.change(|host| {
        host.images.remove(NEW);
    });
    let error = bench.finalize().unwrap_err();
    assert_eq!(error.kind, FailureKind::Retriable);
    assert!(
        error.message.contains("must also be reachable when the image is finalized"),
        "{error}"
    );
    bench.change(|host| {
        host.images.insert(NEW.to_owned(), "bb".repeat(48));
    });
    bench.finalize().unwrap();
}

fn an_image_of_another_distribution_is_final(bench: &Bench) {
    bench.change(|host| {
        host.images.insert(NEW.to_owned(), "another distro".to_owned());
    });
    let error = bench.stage().unwrap_err();
    assert_eq!(error.kind, FailureKind::Final, "{error}");
}

fn a_busy_trident_is_retried(bench: &Bench) {
    bench.change(|host| host.busy = 2);
    let error = bench.stage().unwrap_err();
    // The configuration check failed temporarily, not for good.
    assert_eq!(error.kind, FailureKind::Retriable, "{error}");
    bench.change(|host| host.busy = 0);
    bench.stage().unwrap();
}

fn another_staged_image_is_replaced(bench: &Bench) {
    bench.change(|host| {
        host.spec_old = host.spec.clone();
        host.spec["image"] = json!({ "url": "https://images.example/x.cosi", "sha384": "cc" });
        host.enter("ab-update-staged");
    });
    assert_eq!(bench.situation(), Situation::OtherStaged);
    bench.stage().unwrap();
    assert_eq!(bench.situation(), Situation::Staged);
    assert_eq!(bench.host().spec_old["image"]["sha384"], "aa".repeat(48));
}

fn a_staged_image_is_rolled_back(bench: &Bench) {
    bench.stage().unwrap();
    bench.undo().unwrap();
    assert_eq!(bench.situation(), Situation::NeedsUpdate);
    bench.boot();
    assert_eq!(bench.host().booted, "volume-a");
    // With scripts in the old configuration, an undo would be another update: the image stays
    // staged.
    bench.change(|host| {
        host.spec["scripts"] = json!({ "postProvision": [{ "name": "x", "runOn": ["all"] }] });
    });
    bench.stage().unwrap();
    bench.undo().unwrap();
    assert_eq!(bench.situation(), Situation::Staged);
    let undone = bench.with(async |image| image.is_undone().await).unwrap();
    assert_eq!(undone, Evidence::Done);
    bench.boot();
    assert_eq!(bench.host().booted, "volume-a");
}

fn a_finalized_image_is_rolled_back_before_it_boots(bench: &Bench) {
    bench.stage().unwrap();
    bench.finalize().unwrap();
    bench.undo().unwrap();
    let undone = bench.with(async |image| image.is_undone().await).unwrap();
    assert_eq!(undone, Evidence::Done);
    bench.boot();
    assert_eq!(bench.host().booted, "volume-a");
}

/// The power failed after the firmware was updated and before Trident was.
fn undoing_a_boot_twice_succeeds(bench: &Bench) {
    bench.stage().unwrap();
    bench.finalize().unwrap();
    bench.change(|host| host.next = None);
    bench.undo().unwrap();
    bench.boot();
    assert_eq!(bench.host().booted, "volume-a");
}

fn a_kept_image_is_rolled_back(bench: &Bench) {
    bench.updated();
    bench.undo().unwrap();
    bench.undo().unwrap();
    let undone = bench.with(async |image| image.is_undone().await).unwrap();
    assert_eq!(undone, Evidence::Done);
    bench.boot();
    assert_eq!(bench.host().booted, "volume-a");
    assert_eq!(bench.times("rollback"), 1);
}

fn a_host_without_trident_requires_manual_intervention(bench: &Bench) {
    bench.change(|host| host.enter("not-provisioned"));
    assert_eq!(bench.situation(), Situation::NotManaged);
    assert_eq!(bench.stage().unwrap_err().kind, FailureKind::NeedsPerson);
}

fn no_image_is_staged_that_would_take_the_journal_away(bench: &Bench) {
    let mounts = bench.site.path("/proc/self/mountinfo");
    fs::create_dir_all(mounts.parent().unwrap()).unwrap();
    fs::write(mounts, "22 1 8:3 / / rw,relatime shared:1 - ext4 /dev/sda3 rw\n").unwrap();
    let storage = json!({
        "disks": [{ "id": "os", "device": "/dev/vda" }],
        "abUpdate": { "volumePairs": [{ "id": "root", "volumeAId": "a", "volumeBId": "b" }] },
        "filesystems": [{ "deviceId": "root", "mountPoint": "/" }],
    });
    bench.change(|host| host.spec["storage"] = storage.clone());
    let error = bench.stage().unwrap_err();
    assert_eq!(error.kind, FailureKind::NeedsPerson);
    assert!(error.message.contains("of the agent is on the A/B volume /"), "{error}");
    assert_eq!(bench.times("staged"), 0);
    // The state is on a volume that both systems mount.
    bench.change(|host| host.spec["storage"]["filesystems"][0]["deviceId"] = json!("shared"));
    bench.stage().unwrap();
    assert_eq!(bench.times("staged"), 1);
}

fn an_old_error_does_not_count_as_a_rollback(bench: &Bench) {
    // An error of an earlier operation does not mean that this image was rolled back.
    bench.change(|host| host.last_error = json!({ "message": "something old" }));
    assert_eq!(bench.situation(), Situation::NeedsUpdate);
    bench.stage().unwrap();
    assert_eq!(bench.host().last_error, Value::Null);
}

fn a_commit_that_tridents_service_made_is_seen(bench: &Bench) {
    bench.stage().unwrap();
    bench.finalize().unwrap();
    bench.boot();
    let _ = bench.with(async |_| {
        let call = bench.site.call(Program::Trident, ["commit"]);
        bench.site.run(&call).await
    });
    bench.commit().unwrap();
    assert_eq!(bench.times("committed"), 1);
}
