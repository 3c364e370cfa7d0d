//! One host: boot, reboot, power cut, and commands in it.

use std::{
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{process::Command, sync::Mutex, task::JoinHandle};

use crate::{
    disk::{Disk, FileSystem},
    eventually,
    isolation::Isolation,
    net, run,
};

/// Exit code of systemd-nspawn if the host requested a reboot and no service manager handles it.
const REBOOT: i32 = 133;
/// Timeout of a boot on a busy machine, in seconds.
const BOOT_SECONDS: u64 = 180;
/// Size of a host's disk in MiB; unwritten blocks take no space.
const DISK_MEBIBYTES: u64 = 6 * 1024;
/// System calls that container runtimes need beyond those that systemd-nspawn allows.
const CALLS: &str = "--system-call-filter=add_key keyctl bpf perf_event_open @keyring";

/// A host. It ends with the test.
#[derive(Debug)]
pub struct Host {
    /// Name of the host and of its Node.
    pub name: String,
    /// IP address of the host.
    pub address: String,
    disk: Disk,
    /// Directories that are on the disk itself, not on the layers.
    own: Vec<String>,
    /// Name of its network namespace and interface; short, whatever the name of the host.
    short: String,
    console: PathBuf,
    groups: Vec<PathBuf>,
    /// Process ID of systemd-nspawn; 0 while it is not running.
    keeper: Arc<AtomicU32>,
    boots: Arc<AtomicU32>,
    running: Mutex<Option<JoinHandle<()>>>,
}

impl Host {
    /// Creates the host with this number, from 1, of a test; it is not running yet.
    pub async fn new(
        isolation: &Isolation,
        number: u8,
        name: &str,
        layers: &[PathBuf],
    ) -> anyhow::Result<Self> {
        Self::on(isolation, number, name, layers, FileSystem::Ext4).await
    }

    /// As [`Self::new`], with this file system on its disk.
    pub async fn on(
        isolation: &Isolation,
        number: u8,
        name: &str,
        layers: &[PathBuf],
        file_system: FileSystem,
    ) -> anyhow::Result<Self> {
        let (short, address) = (format!("h{number}"), net::address(number));
        let directory = isolation.directory.join(&short);
        // Before the disk: the disk's mount namespace copies the mounts that exist when it is
        // created.
        net::attach(&short, &address).await?;
        let disk = Disk::new(&directory, layers, file_system, DISK_MEBIBYTES).await?;
        let host = Self {
            name: name.to_owned(),
            disk,
            own: Vec::new(),
            console: directory.join("console.log"),
            groups: make_groups(&isolation.name, &short)?,
            short,
            keeper: Arc::default(),
            boots: Arc::default(),
            running: Mutex::default(),
            address,
        };
        host.write("etc/hostname", &format!("{name}\n"))?;
        let hosts = format!("127.0.0.1 localhost\n{} {name}\n", host.address);
        host.write("etc/hosts", &hosts)?;
        // Empty: the first boot generates a machine ID.
        host.write("etc/machine-id", "")?;
        Ok(host)
    }

    /// Puts a directory on the disk itself: container runtimes create overlay file systems there,
    /// which is not possible on top of layers.
    #[must_use]
    pub fn with_own_disk(mut self, directory: &str) -> Self {
        self.own.push(directory.to_owned());
        self
    }

    /// Puts `/var` on a disk of its own with this many MiB.
    pub async fn with_separate_var(mut self, mebibytes: u64) -> anyhow::Result<Self> {
        self.disk.separate("var", mebibytes).await?;
        Ok(self)
    }

    /// Returns the host's root directory, whether the host is running or not.
    pub fn root(&self) -> PathBuf {
        self.disk.path()
    }

    /// Writes a file of the host and creates its directories; the file is synced, so it survives a
    /// power cut.
    pub fn write(&self, path: &str, text: &str) -> anyhow::Result<()> {
        let path = self.root().join(path);
        let directory = path.parent().context("the path has no parent directory")?;
        let written = || {
            fs::create_dir_all(directory)?;
            fs::write(&path, text)?;
            fs::File::open(&path)?.sync_all()?;
            fs::File::open(directory)?.sync_all()
        };
        written().with_context(|| format!("failed to write {}", path.display()))
    }

    /// Reads a file of the host; returns an empty string if there is no such file.
    pub fn read(&self, path: &str) -> String {
        let bytes = fs::read(self.root().join(path)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the number of boots, including reboots.
    pub fn boots(&self) -> u32 {
        self.boots.load(Ordering::SeqCst)
    }

    /// Boots the host and waits until it is up.
    pub async fn boot(&self) -> anyhow::Result<()> {
        self.start().await?;
        self.wait_up().await
    }

    /// Boots the host without waiting.
    pub async fn start(&self) -> anyhow::Result<()> {
        let mut running = self.running.lock().await;
        if running.as_ref().is_some_and(|task| !task.is_finished()) {
            bail!("{} is already running", self.name);
        }
        let mut binds = Vec::new();
        for directory in &self.own {
            let name = directory.trim_matches('/').replace('/', "-");
            let bound = self.disk.create_directory(&name)?;
            binds.push(format!("--bind={}:{directory}", bound.display()));
        }
        let container = Container {
            binds,
            holder: self.disk.holder()?,
            root: self.disk.root().to_path_buf(),
            short: self.short.clone(),
            console: self.console.clone(),
            groups: self.groups.clone(),
        };
        let (keeper, boots) = (self.keeper.clone(), self.boots.clone());
        *running = Some(tokio::spawn(async move {
            loop {
                let outcome = container.boot_once(&keeper, &boots).await;
                keeper.store(0, Ordering::SeqCst);
                match outcome {
                    Ok(Some(REBOOT)) => {}
                    Ok(code) => {
                        tracing::debug!(host = container.short, ?code, "container exited");
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(
                            host = container.short,
                            "failed to run the container: {error:#}"
                        );
                        return;
                    }
                }
            }
        }));
        Ok(())
    }

    /// Waits until systemd has started everything.
    pub async fn wait_up(&self) -> anyhow::Result<()> {
        let ask = async || {
            let state = self.exec(["systemctl", "is-system-running"]).await;
            match state {
                Ok(_) => Ok(()),
                // The host is up, but a unit has failed: the test decides whether that matters.
                Err(error) if error.to_string().contains("degraded") => Ok(()),
                Err(error) => Err(format!("{error:#}")),
            }
        };
        let up = eventually(
            &format!("{} has booted", self.name),
            Duration::from_secs(BOOT_SECONDS),
            ask,
        )
        .await;
        up.with_context(|| {
            let console = fs::read_to_string(&self.console).unwrap_or_default();
            format!("last console output: {}", end_of(&console, 1500))
        })
    }

    /// Returns the host's first process as seen from this process; `None` if the host is not
    /// running.
    pub fn leader(&self) -> Option<u32> {
        let keeper = self.keeper.load(Ordering::SeqCst);
        if keeper == 0 {
            return None;
        }
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(|pid| is_first(*pid))
    }

    /// Runs a command in the host and returns its output.
    pub async fn exec<const N: usize>(&self, command: [&str; N]) -> anyhow::Result<String> {
        let leader = self.leader();
        let leader = leader.with_context(|| format!("{} is not running", self.name))?;
        let target = leader.to_string();
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let enter = ["--target", &target, "--all", "--", "env", "-i", path, "LC_ALL=C"];
        run("nsenter", enter.into_iter().chain(command)).await
    }

    /// Reports whether a file exists while the host is running, including `/run`.
    pub fn has(&self, path: &str) -> bool {
        self.leader()
            .is_some_and(|leader| Path::new(&format!("/proc/{leader}/root/{path}")).exists())
    }

    /// Cuts the power: kills every process at once and drops disk data that was not synced. The
    /// host does not boot again by itself.
    pub async fn cut(&self) -> anyhow::Result<()> {
        self.kill().await;
        self.disk.cut().await
    }

    /// Kills every process of the host at once. The disk keeps what was written.
    pub async fn kill(&self) {
        let mut running = self.running.lock().await;
        let Some(task) = running.take() else {
            return;
        };
        // During a reboot there may be no process to kill.
        while !task.is_finished() {
            let keeper = self.keeper.load(Ordering::SeqCst);
            for pid in self.leader().into_iter().chain((keeper != 0).then_some(keeper)) {
                kill(pid);
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// Shuts the host down in order; it does not boot again by itself.
    pub async fn shut_down(&self) -> anyhow::Result<()> {
        self.exec(["systemctl", "poweroff", "--no-block"]).await?;
        let task = self.running.lock().await.take();
        let task = task.with_context(|| format!("{} is not running", self.name))?;
        let ended = tokio::time::timeout(Duration::from_secs(BOOT_SECONDS), task).await;
        ended.with_context(|| format!("{} does not shut down", self.name))?.map_err(Into::into)
    }

    /// Keeps a copy of the disk of this host, which must not be running.
    pub async fn save_disk(&self) -> anyhow::Result<()> {
        self.disk.save().await
    }

    /// Stops the host at once and gives its disk the content that was saved.
    pub async fn restore_disk(&self) -> anyhow::Result<()> {
        self.kill().await;
        self.disk.restore().await
    }

    /// Stops the host and releases its disk.
    pub async fn end(self) -> anyhow::Result<()> {
        self.kill().await;
        self.disk.end().await
    }

    /// Collects information for the report of a failure.
    pub async fn report(&self) -> String {
        let mut text = format!("--- {} ---\n", self.name);
        let journal = [
            "journalctl",
            "--no-pager",
            "--output=short-precise",
            "--lines=60",
            "--unit=refit-*",
            "--unit=kubelet",
            "--unit=containerd",
        ];
        match self.exec(journal).await {
            Ok(lines) => text.push_str(end_of(&lines, 6000)),
            Err(error) => text += &error.to_string(),
        }
        let pods = "tail -n 15 /var/log/pods/*/*/*.log 2>/dev/null || true";
        if let Ok(lines) = self.exec(["sh", "-c", pods]).await {
            text.push_str(end_of(&lines, 6000));
        }
        let agent = self.read("var/lib/refit-agent/journal.jsonl");
        text + "\n" + end_of(&agent, 4000)
    }
}

/// Adds the reports of the hosts to an error.
pub async fn with_reports<T>(outcome: anyhow::Result<T>, hosts: &[Host]) -> anyhow::Result<T> {
    let Err(error) = outcome else {
        return outcome;
    };
    let mut text = String::from("reports of the hosts:\n");
    for host in hosts {
        text.push_str(&host.report().await);
        text.push('\n');
    }
    // The reason comes last, where readers look for it.
    Err(anyhow::anyhow!("{text}\nerror: {error:#}"))
}

fn end_of(text: &str, bytes: usize) -> &str {
    let start = text.len().saturating_sub(bytes);
    let start = (start..text.len()).find(|at| text.is_char_boundary(*at));
    start.and_then(|start| text.get(start..)).unwrap_or(text)
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // The process may have exited already.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Reports whether a process is the first of a process namespace below this one.
fn is_first(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let ids: Vec<&str> = ids.unwrap_or_default().split_whitespace().collect();
    ids.len() > 1 && ids.last() == Some(&"1")
}

/// The parameters of a boot.
struct Container {
    /// Additional directories, as arguments of systemd-nspawn.
    binds: Vec<String>,
    /// The process whose mount namespace contains the root.
    holder: u32,
    root: PathBuf,
    short: String,
    console: PathBuf,
    groups: Vec<PathBuf>,
}

impl Container {
    /// Runs one boot to its end; returns the exit code of systemd-nspawn.
    async fn boot_once(
        &self,
        keeper: &AtomicU32,
        boots: &AtomicU32,
    ) -> anyhow::Result<Option<i32>> {
        let console = OpenOptions::new().create(true).append(true).open(&self.console)?;
        // The shell moves itself into the host's control groups, so that hosts do not share any.
        let script = "for g in $GROUPS_OF_HOST; do echo $$ > $g/cgroup.procs || exit 1; done; \
                      exec systemd-nspawn \"$@\"";
        let groups: Vec<String> =
            self.groups.iter().map(|path| path.display().to_string()).collect();
        let mut child = Command::new("nsenter")
            .args(["--target", &self.holder.to_string(), "--mount", "--", "sh"])
            .args(["-c", script, "sh", "--quiet", "--boot", "--register=no", "--keep-unit"])
            .args(["--console=pipe", "--link-journal=no", "--resolv-conf=off", "--timezone=off"])
            .args(["--capability=all", CALLS, "--bind=/dev/kmsg"])
            .args(&self.binds)
            .arg(format!("--machine={}", self.short))
            .arg(format!("--network-namespace-path=/run/netns/{}", self.short))
            .arg(format!("--directory={}", self.root.display()))
            .env("GROUPS_OF_HOST", groups.join(" "))
            .env("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "network")
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console)
            .kill_on_drop(true)
            .spawn()?;
        boots.fetch_add(1, Ordering::SeqCst);
        keeper.store(child.id().unwrap_or_default(), Ordering::SeqCst);
        Ok(child.wait().await?.code())
    }
}

/// Returns the control group of this process in each hierarchy.
pub(crate) fn group_parents() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut parents: Vec<PathBuf> = own
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let mounted = mounted_at(&mounts, controllers)?;
            Some(Path::new(mounted).join(path.trim_start_matches('/')))
        })
        .collect();
    parents.sort();
    parents
}

/// Finds the mount point of the hierarchy with these controllers; no controllers means version 2.
fn mounted_at<'a>(mounts: &'a str, controllers: &str) -> Option<&'a str> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (place, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let found = match kind {
            "cgroup2" => controllers.is_empty(),
            "cgroup" => {
                !controllers.is_empty()
                    && options.split(',').any(|option| {
                        option == controllers || controllers.split(',').next() == Some(option)
                    })
            }
            _ => false,
        };
        found.then_some(place)
    })
}

/// Creates a host's own group in each hierarchy.
fn make_groups(run: &str, host: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut groups = Vec::new();
    for parent in group_parents() {
        for group in [parent.join(run), parent.join(run).join(host)] {
            fs::create_dir_all(&group).with_context(|| {
                format!("failed to create the control group {}", group.display())
            })?;
            for file in ["cpuset.cpus", "cpuset.mems"] {
                // A group without processors and memory accepts no process.
                let above = group.parent().map(|above| above.join(file));
                let above = above.and_then(|path| fs::read_to_string(path).ok());
                if let Some(above) = above.filter(|_| group.join(file).exists()) {
                    fs::write(group.join(file), above)?;
                }
            }
        }
        groups.push(parent.join(run).join(host));
    }
    Ok(groups)
}
