use refit_kinds::refit::{
    CommandArgs, EtcdArgs, FileArgs, KeyArgs, KubeletArg, KubeletArgs, NtpArgs, PackageVersion,
    PlannedFile, RevokedKeys, SecretKey, StepEvidence, UnitArgs,
};

use super::*;
use crate::host::{Job, Since, files::secret::Secret, look::look, scripted::ScriptedHost};

struct Vault;

impl SecretSource for Vault {
    fn fetch<'a>(
        &'a self,
        _: &'a SecretKey,
    ) -> futures::future::BoxFuture<'a, Result<Secret, WorkError>> {
        Box::pin(async { Ok(Secret::new("hunter2")) })
    }
}

/// A host with packages at v1.35.0.
struct World {
    host: ScriptedHost,
}

impl World {
    fn new() -> Self {
        let directories = ["/etc", "/var/lib/dpkg/updates", "/var/lib/kubelet", "/etc/apt"];
        let mut host = ScriptedHost::with_directories(&directories);
        host.write("/var/lib/dpkg/status", "");
        // Files belong to the user who runs the tests.
        let own = fs::metadata(host.directory.path()).unwrap();
        let ids = std::os::unix::fs::MetadataExt::uid(&own);
        host.write("/etc/passwd", format!("root:x:{ids}:{ids}::/root:/bin/sh\n"));
        host.write("/etc/group", format!("root:x:{ids}:\n"));
        let versions = "for name in kubeadm kubectl kubelet; do echo $name 1.35.0-1.1 installed; \
                        done; echo containerd.io 2.1.4-1 installed";
        for (program, script) in [
            (Program::AptGet, "exit 1"),
            (Program::AptMark, "exit 0"),
            (Program::DpkgQuery, versions),
            (Program::Systemctl, "exit 0"),
            (Program::Kubelet, "exit 0"),
        ] {
            host.script(program, script);
        }
        Self { host }
    }

    fn site(&self) -> &Site {
        &self.host.site
    }

    async fn carry_out(&self, plan: &str, command: Command) -> Result<(), WorkError> {
        let job = JobFile {
            plan: plan.into(),
            unit: unit(plan, &command),
            step: command.name().to_owned(),
            command,
            state: self.site().state().to_owned(),
            kubeconfig: PathBuf::new(),
            namespace: String::new(),
            own: OwnPaths::default(),
            proxies: BTreeMap::new(),
        };
        carry_out(self.site(), &job, &Vault).await
    }

    async fn look(&self, plan: &str, command: &Command) -> Evidence {
        let job = Job::new(plan, &unit(plan, command), command.name(), command.clone());
        let since = Since { at: jiff::Timestamp::UNIX_EPOCH, boot_id: String::new() };
        look(self.site(), &job, &since, async || Ok(None)).await.unwrap()
    }
}

fn unit(plan: &str, command: &Command) -> String {
    format!("refit-{plan}-{}-1", command.name())
}

fn version() -> KubernetesVersion {
    "v1.35.0".parse::<KubernetesVersion>().unwrap()
}

fn file() -> FileArgs {
    let secret = PlannedFile {
        path: "/etc/key".to_owned(),
        content_from: Some(SecretKey::default()),
        ..PlannedFile::default()
    };
    FileArgs { files: vec![secret], ..FileArgs::default() }
}

fn kubelet(name: &str) -> Command {
    let flag = KubeletArg { name: name.to_owned(), value: "1".to_owned() };
    Command::Step(HostStep::KubeletInstall {
        version: version(),
        packages: PackageArgs::default(),
        kubelet: KubeletArgs { extra_args: vec![flag], ..KubeletArgs::default() },
    })
}

/// Every command whose check sees only part of its work.
fn partially_checked() -> Vec<Command> {
    let packages = PackageArgs::default;
    let runtime = PackageArgs {
        install: vec![PackageVersion {
            name: "containerd.io".to_owned(),
            version: "2.1.4-1".to_owned(),
        }],
        ..packages()
    };
    let before = [("kubelet".to_owned(), "1.35.0-1.1".to_owned())];
    vec![
        Command::Step(HostStep::KubeadmInstall { version: version(), packages: packages() }),
        Command::Step(HostStep::KubectlInstall { version: version(), packages: packages() }),
        Command::Step(HostStep::KubeletInstall {
            version: version(),
            packages: packages(),
            kubelet: KubeletArgs::default(),
        }),
        Command::Step(HostStep::ContainerRuntimeInstall { packages: runtime }),
        Command::Undo(Undo::Packages { packages: before.into() }),
        Command::Step(HostStep::Files(file())),
        Command::Step(HostStep::KeysRevoke(KeyArgs::default())),
        Command::Step(HostStep::Ntp(NtpArgs::default())),
        Command::Step(HostStep::NtpReplace(NtpArgs::default())),
        Command::Step(HostStep::KubeletFlags(KubeletArgs::default())),
        Command::Undo(Undo::Files { step: "files".to_owned() }),
    ]
}

/// Regression: a step that a power cut had interrupted counted as done, because its packages were
/// installed, or because of a file whose content is not checked.
#[tokio::test]
async fn a_partial_check_counts_only_with_the_completion_mark() {
    let world = World::new();
    fs::write(world.site().path("/etc/key"), "previous").unwrap();
    for command in partially_checked() {
        assert_eq!(command.rules().evidence, StepEvidence::Both, "{}", command.name());
        let found = world.look("p", &command).await;
        let half = matches!(&found, Evidence::Missing { what } if what.ends_with("to completion"));
        assert!(half, "{} {found:?}", command.name());
        world.carry_out("p", command.clone()).await.unwrap();
        let found = world.look("p", &command).await;
        assert_eq!(found, Evidence::Done, "{}", command.name());
    }
    // A failed check counts even if the mark exists.
    fs::remove_file(world.site().path("/etc/key")).unwrap();
    let files = Command::Step(HostStep::Files(file()));
    assert!(matches!(world.look("p", &files).await, Evidence::Missing { .. }));
}

#[tokio::test]
async fn units_and_commands_count_as_done_once_they_have_run_to_completion() {
    let world = World::new();
    let commands = |text: &str| CommandArgs { commands: vec![text.to_owned()] };
    let failing = Command::Step(HostStep::Commands(commands("exit 78")));
    let error = world.carry_out("p", failing.clone()).await.unwrap_err();
    assert_eq!(error.exit_code(), 1, "the exit code of a command is not one of the agent");
    assert!(matches!(world.look("p", &failing).await, Evidence::Missing { .. }));
    for command in [
        Command::Step(HostStep::Commands(commands("true"))),
        Command::Step(HostStep::UnitActions(UnitArgs::default())),
        Command::Undo(Undo::Units(UnitArgs::default())),
    ] {
        assert_eq!(command.rules().evidence, StepEvidence::Mark);
        let found = world.look("p", &command).await;
        assert!(matches!(found, Evidence::Missing { .. }), "{} {found:?}", command.name());
        world.carry_out("p", command.clone()).await.unwrap();
        assert_eq!(world.look("p", &command).await, Evidence::Done, "{}", command.name());
    }
    assert_eq!(world.host.log().matches("daemon-reload").count(), 2);
}

#[tokio::test]
async fn a_mark_alone_does_not_prove_an_image_of_etcd_or_the_time_servers() {
    let world = World::new();
    let tag = "3.6.5-0".to_owned();
    let etcd = HostStep::EtcdUpgrade(EtcdArgs { image_tag: tag, ..EtcdArgs::default() });
    let servers = vec!["ntp.example".to_owned()];
    let ntp = HostStep::NtpReplace(NtpArgs { enabled: true, servers });
    for command in [etcd, ntp].map(Command::Step) {
        assert_eq!(command.rules().evidence, StepEvidence::Both);
        let mark = mark_path(world.site(), &unit("p", &command));
        fs::write(mark, "done\n").unwrap();
        let found = world.look("p", &command).await;
        assert!(matches!(found, Evidence::Missing { .. }), "{} {found:?}", command.name());
    }
}

#[tokio::test]
async fn revoked_keys_are_restored_by_the_undo_of_their_step() {
    let world = World::new();
    let keys = "/root/.ssh/authorized_keys";
    fs::create_dir_all(world.site().path("/root/.ssh")).unwrap();
    fs::write(world.site().path(keys), "ssh-rsa A a\nssh-rsa B b\n").unwrap();
    let revoked = RevokedKeys { user: "root".to_owned(), keys: vec!["ssh-rsa A".to_owned()] };
    let revoke = Command::Step(HostStep::KeysRevoke(KeyArgs { users: vec![revoked] }));
    world.carry_out("p", revoke.clone()).await.unwrap();
    assert_eq!(world.site().read(keys), "ssh-rsa B b\n");
    assert_eq!(world.look("p", &revoke).await, Evidence::Done);
    let undo = Command::Undo(Undo::Files { step: revoke.name().to_owned() });
    world.carry_out("p", undo).await.unwrap();
    assert_eq!(world.site().read(keys), "ssh-rsa A a\nssh-rsa B b\n");
}

#[tokio::test]
async fn a_flag_that_the_new_kubelet_does_not_know_is_found_at_its_installation() {
    let mut world = World::new();
    world.host.script(
        Program::Kubelet,
        "echo 'E1121 failed to parse kubelet flag: unknown flag: --odd' >&2; exit 1",
    );
    let error = world.carry_out("p", kubelet("odd")).await.unwrap_err();
    assert!(error.message.contains("does not support the flag --odd "), "{error}");
}

#[tokio::test]
async fn flags_of_a_kubelet_without_a_package_are_set_and_rolled_back() {
    let world = World::new();
    let Command::Step(HostStep::KubeletInstall { kubelet, .. }) = kubelet("v") else {
        unreachable!("it installs a kubelet")
    };
    let command = Command::Step(HostStep::KubeletFlags(kubelet));
    world.carry_out("p", command.clone()).await.unwrap();
    let path = "/var/lib/kubelet/kubeadm-flags.env";
    assert!(world.site().read(path).contains("--v=1"));
    assert_eq!(world.look("p", &command).await, Evidence::Done);
    let back = Command::Undo(Undo::Files { step: command.name().to_owned() });
    world.carry_out("p", back).await.unwrap();
    assert!(!world.site().path(path).exists());
}

#[tokio::test]
async fn a_kubelet_of_the_same_version_gets_its_previous_flags_back() {
    let world = World::new();
    world.carry_out("p", kubelet("v")).await.unwrap();
    let path = "/var/lib/kubelet/kubeadm-flags.env";
    assert!(world.site().read(path).contains("--v=1"));
    let before = [("kubelet".to_owned(), "1.35.0-1.1".to_owned())];
    let back = Command::Undo(Undo::Packages { packages: before.into() });
    world.carry_out("p", back).await.unwrap();
    assert!(!world.site().path(path).exists());
}

#[tokio::test]
async fn package_sources_are_rolled_back_with_their_step() {
    let world = World::new();
    let list = "/etc/apt/sources.list";
    fs::write(world.site().path(list), "previous").unwrap();
    keep::keep(world.site(), "p", keep::PACKAGES, list).unwrap();
    fs::write(world.site().path(list), "moved").unwrap();
    let back = Command::Undo(Undo::Files { step: "stage".to_owned() });
    world.carry_out("p", back).await.unwrap();
    assert_eq!(world.site().read(list), "previous");
}

#[tokio::test]
async fn snapshots_of_older_plans_are_pruned_after_any_step() {
    let world = World::new();
    for plan in ["a", "b", "c", "d"] {
        let files = Command::Step(HostStep::Files(file()));
        fs::remove_file(world.site().path("/etc/key")).unwrap_or_default();
        world.carry_out(plan, files).await.unwrap();
    }
    let directory = world.site().snapshot("d");
    let left = fs::read_dir(directory.parent().unwrap()).unwrap().count();
    assert_eq!(left, snapshot::KEPT + 1);
}
