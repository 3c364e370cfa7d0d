//! A disk with its own file system for each host, so that a power cut can be simulated.
//!
//! It is mounted in its own mount namespace: a program that starts a container keeps a copy of
//! every mount that it sees, and a file system is released only with its last mount.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};

use crate::{eventually, run};

/// Time for terminated processes to release a mount, in seconds.
const LET_GO_SECONDS: u64 = 60;

/// A file system of disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4 with Debian's defaults, except that it is created without delay.
    Ext4,
    /// XFS with its defaults.
    Xfs,
}

impl FileSystem {
    /// The program that creates it, with its options.
    fn create(self) -> (&'static str, &'static str) {
        match self {
            Self::Ext4 => (
                "mkfs.ext4",
                "-q -F -m 0 -J size=16 -O ^resize_inode -E lazy_itable_init=1,lazy_journal_init=1",
            ),
            Self::Xfs => ("mkfs.xfs", "-q -f"),
        }
    }
}

/// A mounted disk with a file system, and the host's root made of it and of the layers below.
#[derive(Debug)]
pub struct Disk {
    image: PathBuf,
    mounted: PathBuf,
    root: PathBuf,
    layers: Vec<PathBuf>,
    /// Process that keeps the mount namespace alive.
    holder: Child,
}

impl Disk {
    /// Creates an empty disk of this many MiB below `directory`. The host's writes go to the disk;
    /// the rest of its root comes from `layers`, the uppermost first.
    pub async fn new(
        directory: &Path,
        layers: &[PathBuf],
        file_system: FileSystem,
        mebibytes: u64,
    ) -> anyhow::Result<Self> {
        let paths = ["disk.img", "disk", "root"].map(|name| directory.join(name));
        let [image, mounted, root] = paths;
        for path in [&mounted, &root] {
            fs::create_dir_all(path)
                .with_context(|| format!("failed to create {}", path.display()))?;
        }
        fs::File::create(&image)?.set_len(mebibytes << 20)?;
        let file = image.display().to_string();
        let (program, options) = file_system.create();
        run(program, options.split(' ').chain([file.as_str()])).await?;
        let holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "--", "sleep", "infinity"])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("failed to run unshare")?;
        let disk = Self { image, mounted, root, layers: layers.to_vec(), holder };
        let name = format!("/proc/{}/comm", disk.holder()?);
        eventually("the mount namespace exists", Duration::from_secs(LET_GO_SECONDS), async || {
            let now = fs::read_to_string(&name).unwrap_or_default();
            (now.trim() == "sleep").then_some(()).ok_or(now)
        })
        .await?;
        disk.attach().await?;
        Ok(disk)
    }

    /// Returns the process in whose mount namespace the disk is mounted.
    pub fn holder(&self) -> anyhow::Result<u32> {
        self.holder.id().context("the process that holds the mount namespace has exited")
    }

    /// Creates a directory on the disk itself, next to the root, and returns its path in that
    /// namespace.
    pub fn create_directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let directory = self.mounted.join(name);
        let path = self.outside_path(&directory);
        fs::create_dir_all(&path)
            .with_context(|| format!("failed to create {}", path.display()))?;
        Ok(directory)
    }

    /// Returns the host's root directory in that namespace.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the host's root directory as seen from this process.
    pub fn path(&self) -> PathBuf {
        self.outside_path(&self.root)
    }

    fn outside_path(&self, path: &Path) -> PathBuf {
        let holder = self.holder.id().unwrap_or_default();
        let inside = path.strip_prefix("/").unwrap_or(path);
        Path::new("/proc").join(holder.to_string()).join("root").join(inside)
    }

    async fn inside(&self, command: &[&str]) -> anyhow::Result<String> {
        let holder = self.holder()?.to_string();
        let enter = ["--target", &holder, "--mount", "--"];
        run("nsenter", enter.into_iter().chain(command.iter().copied())).await
    }

    async fn attach(&self) -> anyhow::Result<()> {
        let shown = |path: &Path| path.display().to_string();
        let (image, mounted, root) = (shown(&self.image), shown(&self.mounted), shown(&self.root));
        self.inside(&["mount", "-o", "loop", &image, &mounted]).await?;
        let (upper, work) = (format!("{mounted}/upper"), format!("{mounted}/work"));
        self.inside(&["mkdir", "-p", &upper, &work]).await?;
        let lower: Vec<String> = self.layers.iter().map(|path| shown(path)).collect();
        let options = format!("lowerdir={},upperdir={upper},workdir={work}", lower.join(":"));
        let mount = ["mount", "-t", "overlay", "overlay", "-o", &options, &root];
        self.inside(&mount).await.map(drop)
    }

    /// Releases the disk. No process may use it any more.
    pub async fn end(mut self) -> anyhow::Result<()> {
        self.detach().await?;
        self.holder.kill().await?;
        for path in [&self.image, &self.saved()].into_iter().filter(|path| path.exists()) {
            fs::remove_file(path)
                .with_context(|| format!("failed to remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Simulates a power cut: data that was not synced is lost. No process may use the disk any
    /// more.
    pub async fn cut(&self) -> anyhow::Result<()> {
        let disk = self.mounted.display().to_string();
        // The file system shuts down without further writes; the next mount replays its journal.
        self.inside(&["xfs_io", "-x", "-c", "shutdown", &disk]).await?;
        self.detach().await?;
        self.attach().await
    }

    /// Keeps a copy of the disk for [`Self::restore`]. No process may use the disk.
    pub async fn save(&self) -> anyhow::Result<()> {
        self.detach().await?;
        copy(&self.image, &self.saved()).await?;
        self.attach().await
    }

    /// Gives the disk the content that it had when it was saved. No process may use the disk.
    pub async fn restore(&self) -> anyhow::Result<()> {
        // An earlier call may have failed midway.
        if self.device().is_some() {
            self.detach().await?;
        }
        copy(&self.saved(), &self.image).await?;
        self.attach().await
    }

    fn saved(&self) -> PathBuf {
        self.image.with_extension("saved")
    }

    async fn detach(&self) -> anyhow::Result<()> {
        let device = self.device().context("the disk is not mounted")?;
        if !self.backs(&device)? {
            bail!("{device} is not backed by {}", self.image.display());
        }
        for path in [&self.root, &self.mounted] {
            let path = path.display().to_string();
            eventually("the disk is unmounted", Duration::from_secs(LET_GO_SECONDS), async || {
                let outcome = self.inside(&["umount", &path]).await;
                outcome.map(drop).map_err(|error| format!("{error:#}"))
            })
            .await?;
        }
        // The file system holds the device, and the device holds the file. The device name alone
        // proves nothing: once the device is free, another host's disk may use it.
        eventually(
            "the file system releases its device",
            Duration::from_secs(LET_GO_SECONDS),
            async || match self.backs(&device) {
                Ok(false) => Ok(()),
                Ok(true) => Err(format!("{device} is still backed by {}", self.image.display())),
                Err(error) => Err(error.to_string()),
            },
        )
        .await
    }

    /// Reports whether this loop device is backed by this disk's file.
    fn backs(&self, device: &str) -> io::Result<bool> {
        let file = Path::new("/sys/block").join(device).join("loop/backing_file");
        match fs::read_to_string(file) {
            Ok(path) => Ok(Path::new(path.trim_end()) == self.image),
            // A device without a file, or one that no longer exists.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the name of the loop device, such as `loop3`.
    fn device(&self) -> Option<String> {
        let mounts = fs::read_to_string(format!("/proc/{}/mounts", self.holder.id()?)).ok()?;
        let mounted = self.mounted.to_str()?;
        let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(mounted))?;
        Some(line.split(' ').next()?.trim_start_matches("/dev/").to_owned())
    }
}

/// Copies a disk; blocks that were never written take no space in the copy.
async fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let sparse: [&OsStr; 3] = ["--sparse=always".as_ref(), from.as_ref(), to.as_ref()];
    run("cp", sparse).await.map(drop)
}
