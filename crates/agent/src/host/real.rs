//! A real host: each command runs as a systemd unit, and the drivers do the work in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs, io,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use refit_kinds::{
    refit::{HostFacts, PackageDriver},
    version::KubernetesVersion,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    CONTROL_PLANE, Evidence, Host, HostError, Invocation, Job, Program, Since, Site, UnitState,
    boot,
    carry_out::{JobFile, mark_path},
    facts::{Fact, Unread},
    files::atomic::{self, Access},
    kubeadm::{MANIFESTS, certificates, image_of},
    kubelet_fetched,
    look::{BOOT_ID, look},
    packages::{self, Packages},
    program::{open_log, read_from, tail},
    running,
    unit::{self, UnitSpec},
    work::WorkError,
};
use crate::policy::OwnPaths;

/// Subcommand of the agent that a unit runs.
pub(super) const CARRY_OUT: &str = "carry-out";
const SELF: &str = "/proc/self/exe";
/// Longest wait for the end of a unit's process before systemd is queried again. If the agent is in
/// another PID namespace than systemd, the process may be an unrelated one.
const LONGEST_WATCH: Duration = Duration::from_secs(1);
/// Time that systemd needs to start a process, and to notice its end.
const SYSTEMD_DELAY: Duration = Duration::from_millis(100);

/// The host that the agent runs on, as root.
#[derive(Clone, Debug)]
pub struct RealHost {
    site: Site,
    /// Kubeconfig with the identity with which the host reads its secrets.
    kubeconfig: PathBuf,
    /// The namespace of its secrets.
    namespace: String,
    /// What no plan may write.
    own: OwnPaths,
    /// Whether the host must boot, as it was found last, with what that rested on.
    boot_required: Arc<Mutex<Option<boot::Answer>>>,
    /// The last known version of the kubelet, with the program file that it belongs to.
    kubelet_versions: Arc<Mutex<Option<(FileIdentity, KubernetesVersion)>>>,
}

/// Identity of a program file, independent of its name: device, inode, and time of the last change
/// in seconds and nanoseconds.
type FileIdentity = (u64, u64, i64, i64);

impl RealHost {
    /// A host that stores its marks, outputs and snapshots in `directory`.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            site: Site::new(directory),
            kubeconfig: PathBuf::new(),
            namespace: String::new(),
            own: OwnPaths::default(),
            boot_required: Arc::default(),
            kubelet_versions: Arc::default(),
        }
    }

    /// Sets the kubeconfig and the namespace with which the host reads secrets.
    #[must_use]
    pub fn with_identity(
        mut self,
        kubeconfig: impl Into<PathBuf>,
        namespace: impl Into<String>,
    ) -> Self {
        self.kubeconfig = kubeconfig.into();
        self.namespace = namespace.into();
        self
    }

    /// Sets what belongs to the agent.
    #[must_use]
    pub fn protecting(mut self, own: OwnPaths) -> Self {
        self.own = own;
        self
    }

    fn job_file(&self, job: &Job) -> JobFile {
        JobFile {
            plan: job.plan.clone(),
            unit: job.unit.clone(),
            step: job.step.clone(),
            command: job.command.clone(),
            state: self.site.state().to_owned(),
            kubeconfig: self.kubeconfig.clone(),
            namespace: self.namespace.clone(),
            own: self.own.clone(),
            proxies: proxy_variables(std::env::vars_os()),
        }
    }

    fn output_path(&self, unit: &str) -> PathBuf {
        self.site.units().join(format!("{unit}.log"))
    }

    fn job_path(&self, unit: &str) -> PathBuf {
        self.site.units().join(format!("{unit}.json"))
    }

    fn unit(&self, job: &Job, program: &Path) -> UnitSpec {
        let arguments =
            [CARRY_OUT.to_owned(), format!("--job={}", self.job_path(&job.unit).display())];
        UnitSpec {
            name: job.unit.clone(),
            description: format!("Refit:{}", job.command.name()),
            call: Invocation::at(program.display().to_string(), arguments),
            output: self.output_path(&job.unit),
            timeout_seconds: job.timeout_seconds,
        }
    }

    /// The agent's own program, at a path from which the host's systemd can start it. In a
    /// container the program is outside the host's root, and after an upgrade the old file is gone;
    /// in both cases it is copied.
    fn program(&self) -> Result<PathBuf, HostError> {
        let error = |source| HostError::File { path: SELF.to_owned(), source };
        let own = fs::metadata(SELF).map_err(error)?;
        let named = std::env::current_exe().map_err(error)?;
        let same = fs::metadata(&named)
            .is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino()));
        if same && is_plain(&named) {
            return Ok(named);
        }
        let copy = self.site.state().join("bin").join("refit-agent");
        let bytes = fs::read(SELF).map_err(error)?;
        atomic::replace(&copy, &bytes, Access::of_mode(0o700)).map_err(of_work)?;
        Ok(copy)
    }

    /// Version of the running kubelet, if one runs.
    async fn kubelet_version(&self) -> Result<Option<KubernetesVersion>, HostError> {
        let show = ["show", "kubelet.service", "--property=MainPID", "--value"];
        let answer = self.site.ask(Program::Systemctl, show).await?;
        let main: u32 = answer.trim().parse().unwrap_or_default();
        let Some(pid) = running::process(&self.site, main) else {
            if main != 0 {
                tracing::warn!(main, "the main process of the kubelet's service is not a kubelet");
            }
            return Ok(None);
        };
        // The running binary, even after a package has replaced the file.
        let program = self.site.path(format!("/proc/{pid}/exe"));
        // Known versions are cached, so that an idle agent starts no processes.
        let file = fs::metadata(&program).ok();
        let file = file.map(|file| (file.dev(), file.ino(), file.ctime(), file.ctime_nsec()));
        let cache = || self.kubelet_versions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((cached_file, version)) = &*cache()
            && Some(cached_file) == file.as_ref()
        {
            return Ok(Some(version.clone()));
        }
        let version = running::version(&self.site, pid).await?;
        *cache() = file.map(|file| (file, version.clone()));
        Ok(Some(version))
    }

    /// Why the host must boot. It is looked for only if packages have changed, so that an idle agent starts no processes.
    async fn boot_required(&self) -> Result<Option<String>, HostError> {
        let basis = boot::basis(&self.site);
        let cache = || self.boot_required.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, why)) = &*cache()
            && *known == basis
        {
            return Ok(why.clone());
        }
        let why = boot::required(&self.site).await.map_err(of_work)?;
        *cache() = Some((basis, why.clone()));
        Ok(why)
    }

    async fn packages(&self) -> Result<BTreeMap<String, String>, HostError> {
        let Ok(manager) = Packages::of(&self.site, PackageDriver::Auto) else {
            return Ok(BTreeMap::new());
        };
        let mut installed = manager.installed().await.map_err(of_work)?;
        installed.retain(|name, _| packages::REPORTED.contains(&name.as_str()));
        Ok(installed)
    }

    fn static_pods(&self) -> BTreeMap<String, String> {
        let manifests = self.site.path(MANIFESTS);
        let names = CONTROL_PLANE.iter().chain(&["etcd"]);
        names
            .filter_map(|name| {
                let image = image_of(&manifests.join(format!("{name}.yaml")))?;
                Some(((*name).to_owned(), image))
            })
            .collect()
    }

    async fn look_at(&self, job: &Job, since: &Since) -> Result<Evidence, HostError> {
        look(&self.site, job, since, async || self.kubelet_version().await).await
    }

    async fn start_unit(&self, job: &Job) -> Result<(), HostError> {
        if self.poll_unit(&job.unit).await? != UnitState::Unknown {
            return Ok(());
        }
        let program = self.program()?;
        let path = self.job_path(&job.unit);
        self.job_file(job).save(&path).map_err(of_work)?;
        // Created here, with permissions that keep other users from reading the output.
        let output = self.output_path(&job.unit);
        open_log(&output)
            .map_err(|source| HostError::File { path: output.display().to_string(), source })?;
        self.unit(job, &program).invocation().output().await?;
        Ok(())
    }

    /// The main process of a unit.
    async fn main_process(&self, unit: &str) -> Option<Pid> {
        let name = format!("{unit}.service");
        let show = ["show", &name, "--property=MainPID", "--value"];
        let answer = self.site.ask(Program::Systemctl, show).await.ok()?;
        let pid: u32 = answer.trim().parse().ok()?;
        Pid::from_raw(i32::try_from(pid).ok()?)
    }

    async fn poll_unit(&self, unit: &str) -> Result<UnitState, HostError> {
        let name = format!("{unit}.service");
        let show = ["show", &name, "--property=LoadState,ActiveState,Job,ExecMainStatus"];
        let mut state = unit::parse(&self.site.ask(Program::Systemctl, show).await?);
        if let UnitState::Exited { output_tail, .. } = &mut state {
            *output_tail = tail(&read_from(&self.output_path(unit), 0).unwrap_or_default());
        }
        Ok(state)
    }
}

/// Removes packages that plans have fetched. The service may not write to their directory, so systemd
/// starts the program.
async fn remove_packages(site: &Site) -> Result<(), HostError> {
    let fetched = packages::all_fetched(site);
    if fetched.is_empty() {
        return Ok(());
    }
    let paths = fetched.iter().map(|path| path.display().to_string());
    let remove = site.call(Program::Rm, ["--recursive", "--force", "--"].map(str::to_owned));
    let options = ["--unit=refit-remove-fetched.service", "--quiet", "--collect", "--wait", "--"];
    let options = options.map(str::to_owned);
    let call = options.into_iter().chain([remove.program]).chain(remove.arguments).chain(paths);
    site.ask(Program::SystemdRun, call).await?;
    Ok(())
}

impl Host for RealHost {
    fn facts(&self) -> BoxFuture<'_, HostFacts> {
        Box::pin(async move {
            let mut unread = Unread::default();
            let running = self.kubelet_version().await;
            let os_release = read("/etc/os-release").map(|text| parse_os_image(&text));
            HostFacts {
                kubelet_version: unread.or_note(Fact::KubeletVersion, running),
                boot_id: unread.or_note(Fact::BootId, read(BOOT_ID)).trim().to_owned(),
                os_image: unread.or_note(Fact::OsImage, os_release),
                packages: unread.or_note(Fact::Packages, self.packages().await),
                reboot_required: unread.or_note(Fact::RebootRequired, self.boot_required().await),
                static_pods: self.static_pods(),
                package_driver: packages::detect(&self.site),
                certificates: certificates::not_renewed(&self.site),
                certificates_end: certificates::earliest_end(&self.site),
                unread: unread.into_list(),
            }
        })
    }

    fn versions<'a>(
        &'a self,
        names: &'a BTreeSet<String>,
    ) -> BoxFuture<'a, Result<BTreeMap<String, String>, HostError>> {
        Box::pin(async move {
            let Ok(manager) = Packages::of(&self.site, PackageDriver::Auto) else {
                return Ok(BTreeMap::new());
            };
            let mut installed = manager.installed().await.map_err(of_work)?;
            installed.retain(|name, _| names.contains(name));
            Ok(installed)
        })
    }

    fn start<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), HostError>> {
        Box::pin(self.start_unit(job))
    }

    fn poll<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, Result<UnitState, HostError>> {
        Box::pin(self.poll_unit(unit))
    }

    fn look<'a>(
        &'a self,
        job: &'a Job,
        since: &'a Since,
    ) -> BoxFuture<'a, Result<Evidence, HostError>> {
        Box::pin(self.look_at(job, since))
    }

    fn wait<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let process = self.main_process(unit).await;
            let pause = match process.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
                Some(Ok(process)) => match end_of(process, LONGEST_WATCH).await {
                    Ok(_) => return,
                    Err(_) => LONGEST_WATCH,
                },
                // The process is starting, or has just ended.
                None | Some(Err(Errno::SRCH)) => SYSTEMD_DELAY,
                // A kernel before 5.3, or one that does not allow the system call.
                Some(Err(_)) => LONGEST_WATCH,
            };
            tokio::time::sleep(pause).await;
        })
    }

    fn release<'a>(&'a self, unit: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let name = format!("{unit}.service");
            for verb in ["stop", "reset-failed"] {
                if let Err(error) = self.site.ask(Program::Systemctl, [verb, &name]).await {
                    // One of the two verbs always fails: the unit is either active or failed.
                    tracing::debug!(%error, unit, "transient unit not released");
                }
            }
            let mark = mark_path(&self.site, unit);
            for path in [self.output_path(unit), self.job_path(unit), mark] {
                if let Err(error) = fs::remove_file(&path) {
                    tracing::debug!(%error, path = %path.display(), "file not removed");
                }
            }
        })
    }

    fn remove_fetched(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            kubelet_fetched::forget_all(&self.site);
            if let Err(error) = remove_packages(&self.site).await {
                tracing::warn!(%error, "fetched packages not removed; the next plan removes them");
            }
        })
    }
}

/// Waits until a process ends, for `at_most`. Returns whether it has ended.
async fn end_of(process: OwnedFd, at_most: Duration) -> io::Result<bool> {
    let waiting = tokio::task::spawn_blocking(move || {
        let at_most = Timespec::try_from(at_most).map_err(io::Error::other)?;
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        Ok(poll(&mut ended, Some(&at_most))? > 0)
    });
    waiting.await.map_err(io::Error::other)?
}

/// The variables of an environment whose names end with `_proxy`, in any case.
fn proxy_variables(
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeMap<String, String> {
    let texts = environment
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    texts.filter(|(name, _)| name.to_ascii_lowercase().ends_with("_proxy")).collect()
}

fn of_work(error: WorkError) -> HostError {
    HostError::Work(error)
}

fn read(path: &str) -> Result<String, HostError> {
    fs::read_to_string(path).map_err(|source| HostError::File { path: path.to_owned(), source })
}

/// Whether a path needs no escaping for systemd.
fn is_plain(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(b))
}

fn parse_os_image(text: &str) -> String {
    text.lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map(|value| value.trim_matches('"').to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
#[path = "real_tests.rs"]
mod tests;
