//! A host's own disk: a file system of its own, which a power cut catches as it is.
//!
//! It is mounted in a mount namespace of its own: whoever starts a container keeps a copy of every
//! mount that it sees, and a file system ends only with its last mount.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};

use crate::{eventually, run};

/// How long those that ended may need to let go of a mount, in seconds.
const LET_GO_SECONDS: u64 = 10;

/// A disk with a file system, mounted, and the host's root made of it and of layers below.
#[derive(Debug)]
pub struct Disk {
    image: PathBuf,
    mounted: PathBuf,
    root: PathBuf,
    layers: Vec<PathBuf>,
    /// Keeps the mount namespace.
    holder: Child,
}

impl Disk {
    /// An empty disk of this many MiB below `directory`; what a host writes goes there, everything
    /// else it sees is in `layers`, the upper first.
    pub async fn new(directory: &Path, layers: &[PathBuf], mebibytes: u64) -> anyhow::Result<Self> {
        let paths = ["disk.img", "disk", "root"].map(|name| directory.join(name));
        let [image, mounted, root] = paths;
        for path in [&mounted, &root] {
            fs::create_dir_all(path)
                .with_context(|| format!("{} cannot be made", path.display()))?;
        }
        fs::File::create(&image)?.set_len(mebibytes << 20)?;
        let file = image.display().to_string();
        let format =
            "-q -F -m 0 -J size=16 -O ^resize_inode -E lazy_itable_init=1,lazy_journal_init=1";
        run("mkfs.ext4", format.split(' ').chain([file.as_str()])).await?;
        let holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "--", "sleep", "infinity"])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("unshare cannot be run")?;
        let disk = Self { image, mounted, root, layers: layers.to_vec(), holder };
        let name = format!("/proc/{}/comm", disk.holder()?);
        eventually("a mount namespace", Duration::from_secs(LET_GO_SECONDS), async || {
            let now = fs::read_to_string(&name).unwrap_or_default();
            (now.trim() == "sleep").then_some(()).ok_or(now)
        })
        .await?;
        disk.attach().await?;
        Ok(disk)
    }

    /// The process in whose mount namespace the disk is.
    pub fn holder(&self) -> anyhow::Result<u32> {
        self.holder.id().context("nobody keeps the mount namespace any more")
    }

    /// A directory on the disk itself, beside the root, in that namespace; it is made here.
    pub fn beside(&self, name: &str) -> anyhow::Result<PathBuf> {
        let directory = self.mounted.join(name);
        let seen = self.seen(&directory);
        fs::create_dir_all(&seen).with_context(|| format!("{} cannot be made", seen.display()))?;
        Ok(directory)
    }

    /// The host's root directory in that namespace.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The same, seen from here.
    pub fn path(&self) -> PathBuf {
        self.seen(&self.root)
    }

    fn seen(&self, path: &Path) -> PathBuf {
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

    /// Gives its room back. Nobody may run on it any more.
    pub async fn end(mut self) -> anyhow::Result<()> {
        self.detach().await?;
        self.holder.kill().await?;
        fs::remove_file(&self.image)
            .with_context(|| format!("{} cannot be removed", self.image.display()))
    }

    /// What a power cut leaves: nothing that was not synced. Nobody may run on it any more.
    pub async fn cut(&self) -> anyhow::Result<()> {
        let disk = self.mounted.display().to_string();
        // The file system stops without writing anything more; the next mount replays its journal.
        self.inside(&["xfs_io", "-x", "-c", "shutdown", &disk]).await?;
        self.detach().await?;
        self.attach().await
    }

    async fn detach(&self) -> anyhow::Result<()> {
        let device = self.device().context("the disk is not mounted")?;
        if !self.backs(&device)? {
            bail!("{device} is not backed by {}", self.image.display());
        }
        for path in [&self.root, &self.mounted] {
            let path = path.display().to_string();
            eventually("unmounting", Duration::from_secs(LET_GO_SECONDS), async || {
                let outcome = self.inside(&["umount", &path]).await;
                outcome.map(drop).map_err(|error| format!("{error:#}"))
            })
            .await?;
        }
        // The file system holds the device, and the device the file. By its name alone a device
        // says nothing: once it is free, another host's disk takes it.
        eventually("the file system ends", Duration::from_secs(LET_GO_SECONDS), async || match self
            .backs(&device)
        {
            Ok(false) => Ok(()),
            Ok(true) => Err(format!("{device} still has {}", self.image.display())),
            Err(error) => Err(error.to_string()),
        })
        .await
    }

    /// Whether this loop device's file is this disk's.
    fn backs(&self, device: &str) -> io::Result<bool> {
        let file = Path::new("/sys/block").join(device).join("loop/backing_file");
        match fs::read_to_string(file) {
            Ok(path) => Ok(Path::new(path.trim_end()) == self.image),
            // A device that has no file, or one that is gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Name of the loop device, `loop3`.
    fn device(&self) -> Option<String> {
        let mounts = fs::read_to_string(format!("/proc/{}/mounts", self.holder.id()?)).ok()?;
        let mounted = self.mounted.to_str()?;
        let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(mounted))?;
        Some(line.split(' ').next()?.trim_start_matches("/dev/").to_owned())
    }
}
