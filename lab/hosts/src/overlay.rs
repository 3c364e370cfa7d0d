//! The layer that all hosts of a test have on top of Debian: installed packages, the agent and its
//! unit.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use crate::{isolation::Isolation, packages::Mirror, run};

/// Units that the hosts do not start: each boot takes some tenths of a second less.
const MASKED: [&str; 11] = [
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "cron.service",
    "dpkg-db-backup.timer",
    "e2scrub_reap.service",
    "etcd.service",
    "getty@.service",
    "systemd-timesyncd.service",
    "systemd-udev-trigger.service",
    "systemd-udevd.service",
];

/// A directory that is built by changing a root, and then used as a layer of hosts.
#[derive(Debug)]
pub struct Overlay {
    base: PathBuf,
    upper: PathBuf,
    root: PathBuf,
}

impl Overlay {
    /// Starts an overlay on top of the Debian root.
    pub async fn begin(isolation: &Isolation) -> anyhow::Result<Self> {
        let directory = isolation.directory.join("layer");
        let overlay = Self {
            base: isolation.base.clone(),
            upper: directory.join("upper"),
            root: directory.join("root"),
        };
        let work = directory.join("work");
        for path in [&overlay.upper, &overlay.root, &work] {
            fs::create_dir_all(path)?;
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            overlay.base.display(),
            overlay.upper.display(),
            work.display()
        );
        let root = overlay.root.display().to_string();
        run("mount", ["-t", "overlay", "overlay", "-o", &options, &root]).await?;
        overlay.take_sources()?;
        Ok(overlay)
    }

    /// Returns the root in its current state.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Makes the test's repository the only package source.
    fn take_sources(&self) -> anyhow::Result<()> {
        let apt = self.root.join("etc/apt");
        // Debian's own repositories are not reachable from here.
        let _ = fs::remove_file(apt.join("sources.list"));
        for entry in fs::read_dir(apt.join("sources.list.d")).into_iter().flatten() {
            fs::remove_file(entry?.path())?;
        }
        fs::create_dir_all(apt.join("sources.list.d"))?;
        fs::write(apt.join("sources.list.d/kubernetes.list"), Mirror::source("all"))?;
        Ok(())
    }

    /// Runs a command in the root.
    pub async fn chroot<const N: usize>(&self, command: [&str; N]) -> anyhow::Result<String> {
        let root = self.root.display().to_string();
        run("chroot", std::iter::once(root.as_str()).chain(command)).await
    }

    /// Adds a program, without its debug information.
    pub async fn program(&self, from: &Path, to: &str) -> anyhow::Result<()> {
        let to = self.root.join(to);
        if let Some(directory) = to.parent() {
            fs::create_dir_all(directory)?;
        }
        let (from, to) = (from.display().to_string(), to.display().to_string());
        run("strip", ["-o", &to, &from]).await.map(drop)
    }

    /// Installs and enables the agent as documented in deploy/agent.
    pub async fn agent(&self, program: &Path, unit: &str) -> anyhow::Result<()> {
        let started = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/"));
        let path = started.and_then(|line| line.split_whitespace().next());
        self.program(program, path.context("the unit has no ExecStart program")?).await?;
        self.write("etc/systemd/system/refit-agent.service", unit)?;
        self.enable("refit-agent.service")
    }

    /// Writes a file.
    pub fn write(&self, path: &str, text: &str) -> anyhow::Result<()> {
        let path = self.root.join(path);
        let directory = path.parent().context("the path has no parent directory")?;
        fs::create_dir_all(directory)?;
        fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
    }

    /// Writes an executable file.
    pub fn script(&self, path: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let path = self.root.join(path);
        fs::write(&path, bytes)?;
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
    }

    /// Enables a unit, so that it starts at boot.
    pub fn enable(&self, unit: &str) -> anyhow::Result<()> {
        let wants = self.root.join("etc/systemd/system/multi-user.target.wants");
        fs::create_dir_all(&wants)?;
        Ok(symlink(Path::new("/etc/systemd/system").join(unit), wants.join(unit))?)
    }

    /// Finishes the overlay and returns the directories of a host's root, the uppermost first.
    pub async fn finish(self) -> anyhow::Result<Vec<PathBuf>> {
        for unit in MASKED {
            let path = self.root.join("etc/systemd/system").join(unit);
            if !path.exists() {
                symlink("/dev/null", path)?;
            }
        }
        run("umount", [&self.root]).await?;
        Ok(vec![self.upper, self.base])
    }
}
