//! A real host: packages by apt, kubeadm, systemd.
//!
//! Commands run as transient systemd units of type `oneshot` that remain after they ended, so that
//! an agent which comes back learns how they did so. A mark in the state folder outlives a reboot.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::BoxFuture;
use refit_api::refit::{HostFacts, Role};

use super::{
    CONTROL_PLANE, Command, Evidence, Host, HostError, Invocation, Job, KubernetesVersion, Program,
    Since, UnitState, program::tail,
};

/// How much room `kubeadm upgrade` and packages need on the root file system: binaries, images and
/// kubeadm's copy of etcd's data (`spec/node.md 2.4`).
const ROOM_BYTES: u64 = 2 << 30;
const PACKAGES: [&str; 5] = [
    "containerd",
    "containerd.io",
    "kubeadm",
    "kubectl",
    "kubelet",
];
const MANIFESTS: &str = "/etc/kubernetes/manifests";
const ETCD_PKI: &str = "/etc/kubernetes/pki/etcd";

/// The host that the agent runs on, as root.
#[derive(Clone, Debug)]
pub struct RealHost {
    /// Where marks, outputs and snapshots go.
    folder: PathBuf,
}

impl RealHost {
    /// A host that keeps its marks, outputs and snapshots in `folder`.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    fn output_path(&self, unit: &str) -> PathBuf {
        self.folder.join("units").join(format!("{unit}.log"))
    }

    fn mark_path(&self, unit: &str) -> PathBuf {
        self.folder.join("units").join(format!("{unit}.done"))
    }

    fn unit(&self, job: &Job) -> UnitSpec {
        UnitSpec {
            name: job.unit.clone(),
            steps: invocations(&job.command, &self.folder, Path::new(MANIFESTS)),
            output: self.output_path(&job.unit),
            mark: self.mark_path(&job.unit),
            timeout_seconds: job.command.timeout_seconds(),
        }
    }

    async fn kubelet_version(&self) -> Result<String, HostError> {
        let show = Invocation::new(
            Program::Systemctl,
            ["show", "kubelet.service", "--property=MainPID", "--value"],
        );
        let pid: u32 = show.output().await?.trim().parse().unwrap_or_default();
        if pid == 0 {
            return Ok(String::new());
        }
        // The binary that runs, also after the package has replaced the file.
        let running = Invocation::at(format!("/proc/{pid}/exe"), ["--version"]);
        parse_kubelet_version(&running.output().await?)
    }

    async fn packages(&self) -> Result<BTreeMap<String, String>, HostError> {
        // All of them: a name that matches nothing would make the query fail.
        let query = Invocation::new(
            Program::DpkgQuery,
            [
                "--show",
                "--showformat=${binary:Package} ${Version} ${db:Status-Status}\\n",
            ],
        );
        Ok(parse_packages(&query.output().await?))
    }

    async fn look_at(&self, job: &Job, since: &Since) -> Result<Evidence, HostError> {
        match &job.command {
            Command::Reboot => {
                let now = read("/proc/sys/kernel/random/boot_id")?;
                Ok(Evidence::from_check(now.trim() != since.boot_id, || {
                    "the host has not booted again".to_owned()
                }))
            }
            Command::PreflightChecks => self.room().await,
            Command::InstallKubeadm { version } => self.has_package("kubeadm", version).await,
            Command::InstallKubelet { version } => self.has_package("kubelet", version).await,
            Command::VerifyVersions { version } => self.verify(version.as_ref()).await,
            Command::KubeadmUpgrade { version, .. } if self.is_marked(job) => {
                Ok(static_pods_at(Path::new(MANIFESTS), version))
            }
            Command::FetchPackages { .. }
            | Command::Snapshot
            | Command::RestartKubelet
            | Command::KubeadmUpgrade { .. } => {
                Ok(Evidence::from_check(self.is_marked(job), || {
                    format!("{} has not run to its end", job.command.name())
                }))
            }
        }
    }

    fn is_marked(&self, job: &Job) -> bool {
        self.mark_path(&job.unit).exists()
    }

    async fn room(&self) -> Result<Evidence, HostError> {
        let df = Invocation::new(Program::Df, ["--output=avail", "--block-size=1", "/"]);
        let answer = df.output().await?;
        let free = parse_room(&answer).ok_or_else(|| HostError::Answer {
            program: df.to_string(),
            answer,
        })?;
        Ok(Evidence::from_check(free >= ROOM_BYTES, || {
            format!(
                "the root file system has {} MiB left and needs {} MiB",
                free >> 20,
                ROOM_BYTES >> 20
            )
        }))
    }

    async fn has_package(
        &self,
        name: &str,
        version: &KubernetesVersion,
    ) -> Result<Evidence, HostError> {
        let packages = self.packages().await?;
        let found = packages.get(name);
        let done = found.is_some_and(|found| version.is_of_package(found));
        Ok(Evidence::from_check(done, || {
            let found = found.map_or("missing", String::as_str);
            format!("package {name} is {found}, {version} is needed")
        }))
    }

    async fn verify(&self, version: Option<&KubernetesVersion>) -> Result<Evidence, HostError> {
        let running = self.kubelet_version().await?;
        let Some(version) = version else {
            return Ok(Evidence::from_check(!running.is_empty(), || {
                "no kubelet runs".to_owned()
            }));
        };
        if running != version.as_str() {
            return Ok(Evidence::Missing {
                what: format!("the kubelet runs {running:?}, {version} is needed"),
            });
        }
        Ok(static_pods_at(Path::new(MANIFESTS), version))
    }
}

impl Host for RealHost {
    fn facts(&self) -> BoxFuture<'_, Result<HostFacts, HostError>> {
        Box::pin(async move {
            Ok(HostFacts {
                kubelet_version: self.kubelet_version().await?,
                boot_id: read("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
                os_image: parse_os_image(&read("/etc/os-release")?),
                packages: self.packages().await?,
            })
        })
    }

    fn start<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), HostError>> {
        Box::pin(async move {
            if self.poll(&job.unit).await? != UnitState::Unknown {
                return Ok(());
            }
            let folder = self.folder.join("units");
            fs::create_dir_all(&folder).map_err(|source| HostError::File {
                path: folder.display().to_string(),
                source,
            })?;
            self.unit(job).invocation().output().await?;
            Ok(())
        })
    }

    fn poll<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, Result<UnitState, HostError>> {
        Box::pin(async move {
            let show = Invocation::new(
                Program::Systemctl,
                [
                    "show",
                    &format!("{unit}.service"),
                    "--property=LoadState,ActiveState,Job,ExecMainStatus",
                ],
            );
            let mut state = parse_unit(&show.output().await?);
            if let UnitState::Exited { output_tail, .. } = &mut state {
                let output = fs::read(self.output_path(unit)).unwrap_or_default();
                *output_tail = tail(&String::from_utf8_lossy(&output));
            }
            Ok(state)
        })
    }

    fn look<'a>(
        &'a self,
        job: &'a Job,
        since: &'a Since,
    ) -> BoxFuture<'a, Result<Evidence, HostError>> {
        Box::pin(self.look_at(job, since))
    }

    fn wait<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(tokio::time::sleep(Duration::from_secs(1)))
    }

    fn release<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let name = format!("{unit}.service");
            for verb in ["stop", "reset-failed"] {
                let call = Invocation::new(Program::Systemctl, [verb, &name]);
                if let Err(error) = call.output().await {
                    // One of the two always finds nothing to do.
                    tracing::debug!(%error, unit, "an ended unit was not let go of");
                }
            }
            for path in [self.output_path(unit), self.mark_path(unit)] {
                if let Err(error) = fs::remove_file(&path) {
                    tracing::debug!(%error, path = %path.display(), "not removed");
                }
            }
        })
    }
}

fn read(path: &str) -> Result<String, HostError> {
    fs::read_to_string(path).map_err(|source| HostError::File {
        path: path.to_owned(),
        source,
    })
}

/// What a command runs, in order.
pub fn invocations(command: &Command, folder: &Path, manifests: &Path) -> Vec<Invocation> {
    match command {
        Command::PreflightChecks => vec![
            Invocation::new(Program::AptGet, ["check"]),
            Invocation::new(Program::Systemctl, ["is-active", "kubelet.service"]),
        ],
        Command::FetchPackages { version } => {
            let download = apt_install(&["kubeadm", "kubelet", "kubectl"], version, true);
            vec![
                Invocation::new(Program::AptGet, ["update", APT_LOCK_OPTION, APT_LOCK]),
                download,
            ]
        }
        Command::Snapshot => snapshot(folder, manifests),
        Command::InstallKubeadm { version } => install(&["kubeadm"], version),
        Command::InstallKubelet { version } => install(&["kubelet", "kubectl"], version),
        Command::KubeadmUpgrade { role, version } => vec![kubeadm_upgrade(*role, version)],
        Command::RestartKubelet => vec![
            Invocation::new(Program::Systemctl, ["daemon-reload"]),
            Invocation::new(Program::Systemctl, ["restart", "kubelet.service"]),
        ],
        Command::Reboot => vec![Invocation::new(Program::Systemctl, ["reboot"])],
        Command::VerifyVersions { .. } => vec![Invocation::new(
            Program::Systemctl,
            ["is-active", "kubelet.service"],
        )],
    }
}

const APT_LOCK_OPTION: &str = "--option";
const APT_LOCK: &str = "DPkg::Lock::Timeout=300";

fn apt_install(packages: &[&str], version: &KubernetesVersion, download_only: bool) -> Invocation {
    let mut arguments: Vec<String> = [
        "install",
        "--yes",
        "--allow-change-held-packages",
        // An undo goes back to the version of before.
        "--allow-downgrades",
        APT_LOCK_OPTION,
        APT_LOCK,
        APT_LOCK_OPTION,
        "Dpkg::Options::=--force-confold",
    ]
    .map(str::to_owned)
    .to_vec();
    if download_only {
        arguments.push("--download-only".to_owned());
    }
    arguments.extend(
        packages
            .iter()
            .map(|name| format!("{name}={}-*", version.bare())),
    );
    Invocation::new(Program::AptGet, arguments)
}

fn install(packages: &[&str], version: &KubernetesVersion) -> Vec<Invocation> {
    let hold = ["hold"].iter().chain(packages).copied();
    vec![
        apt_install(packages, version, false),
        Invocation::new(Program::AptMark, hold),
    ]
}

/// `apply` for the first control plane, `node` for every other machine; which is first is decided
/// by the controller and never by kubeadm-config (`spec/node.md 2.3`).
fn kubeadm_upgrade(role: Role, version: &KubernetesVersion) -> Invocation {
    match role {
        Role::FirstControlPlane => Invocation::new(
            Program::Kubeadm,
            ["upgrade", "apply", version.as_str(), "--yes"],
        ),
        Role::ControlPlane | Role::Worker => Invocation::new(Program::Kubeadm, ["upgrade", "node"]),
    }
}

fn snapshot(folder: &Path, manifests: &Path) -> Vec<Invocation> {
    let target = folder.join("snapshot").display().to_string();
    let mut calls = vec![
        Invocation::new(Program::Mkdir, ["--parents", "--mode=0700", &target]),
        Invocation::new(Program::Cp, ["--archive", "/etc/kubernetes", &target]),
        Invocation::new(
            Program::Cp,
            ["--archive", "/var/lib/kubelet/config.yaml", &target],
        ),
    ];
    // Without the manifest etcd is external: its owner backs it up.
    if manifests.join("etcd.yaml").exists() {
        calls.push(Invocation::new(
            Program::Etcdctl,
            [
                "--endpoints=https://127.0.0.1:2379".to_owned(),
                format!("--cacert={ETCD_PKI}/ca.crt"),
                format!("--cert={ETCD_PKI}/healthcheck-client.crt"),
                format!("--key={ETCD_PKI}/healthcheck-client.key"),
                "snapshot".to_owned(),
                "save".to_owned(),
                format!("{target}/etcd.db"),
            ],
        ));
    }
    calls
}

/// A transient unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitSpec {
    /// Its name, without `.service`.
    pub name: String,
    /// What it runs, in order, until one fails.
    pub steps: Vec<Invocation>,
    /// Where its output goes.
    pub output: PathBuf,
    /// The file that says it ended well.
    pub mark: PathBuf,
    /// How long it may take.
    pub timeout_seconds: u32,
}

impl UnitSpec {
    /// The call of systemd-run that starts it. No shell is involved, and no argument of ours holds
    /// a blank, a quote, `$` or `%`, which systemd would read.
    pub fn invocation(&self) -> Invocation {
        let output = self.output.display();
        let mut arguments = vec![
            format!("--unit={}.service", self.name),
            "--quiet".to_owned(),
            "--no-block".to_owned(),
            "--service-type=oneshot".to_owned(),
            // Not --collect: how it ended is asked for after the agent has come back.
            "--property=RemainAfterExit=yes".to_owned(),
            format!("--property=TimeoutStartSec={}", self.timeout_seconds),
            format!("--property=StandardOutput=append:{output}"),
            format!("--property=StandardError=append:{output}"),
            "--setenv=LC_ALL=C".to_owned(),
            "--setenv=DEBIAN_FRONTEND=noninteractive".to_owned(),
            // needrestart would restart containerd in the middle of it (`spec/node.md 2.6`).
            "--setenv=NEEDRESTART_SUSPEND=1".to_owned(),
        ];
        if let Some((last, before)) = self.steps.split_last() {
            let pre = before
                .iter()
                .map(|step| format!("--property=ExecStartPre={step}"));
            arguments.extend(pre);
            let mark = Invocation::new(Program::Touch, [self.mark.display().to_string()]);
            arguments.push(format!("--property=ExecStartPost={mark}"));
            arguments.push("--".to_owned());
            arguments.push(last.program.clone());
            arguments.extend(last.arguments.iter().cloned());
        }
        Invocation::new(Program::SystemdRun, arguments)
    }
}

/// Reads `systemctl show` of a unit; the output is added by the caller.
fn parse_unit(text: &str) -> UnitState {
    let fields: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    let field = |name: &str| fields.get(name).copied().unwrap_or_default();
    let exited = |code| UnitState::Exited {
        code,
        output_tail: String::new(),
    };
    // Just created, it is inactive with its start still queued.
    let queued = !matches!(field("Job"), "" | "0");
    match (field("LoadState"), field("ActiveState")) {
        ("loaded", "inactive") if queued => UnitState::Running,
        ("not-found" | "", _) | (_, "inactive" | "") => UnitState::Unknown,
        (_, "active") => exited(0),
        // A program before the main one may have failed: then the main one has no status.
        (_, "failed") => exited(match field("ExecMainStatus").parse() {
            Ok(code) if code != 0 => code,
            _ => 1,
        }),
        _ => UnitState::Running,
    }
}

/// Reads `Kubernetes v1.35.0`.
fn parse_kubelet_version(answer: &str) -> Result<String, HostError> {
    answer
        .split_whitespace()
        .last()
        .and_then(|word| KubernetesVersion::parse(word).ok())
        .map(|version| version.to_string())
        .ok_or_else(|| HostError::Answer {
            program: "kubelet --version".to_owned(),
            answer: answer.to_owned(),
        })
}

/// Reads our format of dpkg-query; only packages that are installed count.
fn parse_packages(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, version) = (words.next()?, words.next()?);
            let name = name.split(':').next()?;
            (words.next()? == "installed" && PACKAGES.contains(&name))
                .then(|| (name.to_owned(), version.to_owned()))
        })
        .collect()
}

fn parse_room(text: &str) -> Option<u64> {
    text.lines().last()?.trim().parse().ok()
}

fn parse_os_image(text: &str) -> String {
    text.lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map(|value| value.trim_matches('"').to_owned())
        .unwrap_or_default()
}

/// Whether every static pod of Kubernetes that has a manifest here is of this version.
fn static_pods_at(manifests: &Path, version: &KubernetesVersion) -> Evidence {
    for component in CONTROL_PLANE {
        let path = manifests.join(format!("{component}.yaml"));
        let Ok(manifest) = fs::read_to_string(&path) else {
            continue;
        };
        let at = manifest
            .lines()
            .filter_map(|line| line.trim().strip_prefix("image: "))
            .any(|image| image.ends_with(&format!(":{version}")));
        if !at {
            return Evidence::Missing {
                what: format!("{} is not of {version}", path.display()),
            };
        }
    }
    Evidence::Done
}

#[cfg(test)]
#[path = "real_tests.rs"]
mod tests;
