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
    own: Volume,
    root: PathBuf,
    layers: Vec<PathBuf>,
    /// Further disks, mounted below the root.
    others: Vec<Volume>,
    /// Process that keeps the mount namespace alive.
    holder: Child,
}

/// A file with a file system, and where it is mounted.
#[derive(Clone, Debug)]
struct Volume {
    image: PathBuf,
    mounted: PathBuf,
}

impl Volume {
    /// Creates an empty file system of this many MiB.
    async fn create(
        image: PathBuf,
        mounted: PathBuf,
        file_system: FileSystem,
        mebibytes: u64,
    ) -> anyhow::Result<Self> {
        fs::File::create(&image)?.set_len(mebibytes << 20)?;
        let file = image.display().to_string();
        let (program, options) = file_system.create();
        run(program, options.split(' ').chain([file.as_str()])).await?;
        Ok(Self { image, mounted })
    }

    /// The copy of the file.
    fn saved(&self) -> PathBuf {
        self.image.with_extension("saved")
    }

    /// Reports whether this loop device is backed by the file.
    fn backs(&self, device: &str) -> io::Result<bool> {
        let file = Path::new("/sys/block").join(device).join("loop/backing_file");
        match fs::read_to_string(file) {
            Ok(path) => Ok(Path::new(path.trim_end()) == self.image),
            // A device without a file, or one that no longer exists.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the name of the loop device, such as `loop3`, from the mounts of a namespace.
    fn device(&self, mounts: &str) -> anyhow::Result<String> {
        let mounted = self.mounted.display().to_string();
        let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(&mounted));
        let line = line.with_context(|| format!("{mounted} is not mounted"))?;
        let device = line.split(' ').next().unwrap_or_default();
        let device = device.trim_start_matches("/dev/").to_owned();
        if !self.backs(&device)? {
            bail!("{device} is not backed by {}", self.image.display());
        }
        Ok(device)
    }
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
        let own = Volume::create(image, mounted, file_system, mebibytes).await?;
        let holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "--", "sleep", "infinity"])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("failed to run unshare")?;
        let disk = Self { own, root, layers: layers.to_vec(), others: Vec::new(), holder };
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
        let directory = self.own.mounted.join(name);
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

    /// Moves a directory of the root to a disk of its own with this many MiB.
    pub async fn separate(&mut self, directory: &str, mebibytes: u64) -> anyhow::Result<()> {
        let name = directory.replace('/', "-");
        let image = self.own.image.with_file_name(format!("disk-{name}.img"));
        let volume =
            Volume::create(image, self.root.join(directory), FileSystem::Ext4, mebibytes).await?;
        let [image, from] = [&volume.image, &volume.mounted].map(|path| path.display().to_string());
        let new = self.own.image.with_file_name(name).display().to_string();
        self.inside(&["mkdir", &new]).await?;
        self.inside(&["mount", "-o", "loop", &image, &new]).await?;
        self.inside(&["cp", "--archive", &format!("{from}/."), &new]).await?;
        self.inside(&["mount", "--move", &new, &from]).await?;
        self.others.push(volume);
        Ok(())
    }

    async fn attach(&self) -> anyhow::Result<()> {
        let shown = |path: &Path| path.display().to_string();
        let (mounted, root) = (shown(&self.own.mounted), shown(&self.root));
        self.mount(&self.own).await?;
        let (upper, work) = (format!("{mounted}/upper"), format!("{mounted}/work"));
        self.inside(&["mkdir", "-p", &upper, &work]).await?;
        let lower: Vec<String> = self.layers.iter().map(|path| shown(path)).collect();
        let options = format!("lowerdir={},upperdir={upper},workdir={work}", lower.join(":"));
        let mount = ["mount", "-t", "overlay", "overlay", "-o", &options, &root];
        self.inside(&mount).await?;
        for volume in &self.others {
            self.mount(volume).await?;
        }
        Ok(())
    }

    async fn mount(&self, volume: &Volume) -> anyhow::Result<()> {
        let [image, mounted] =
            [&volume.image, &volume.mounted].map(|path| path.display().to_string());
        self.inside(&["mount", "-o", "loop", &image, &mounted]).await.map(drop)
    }

    fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.others.iter().chain([&self.own])
    }

    /// Releases the disk. No process may use it any more.
    pub async fn end(mut self) -> anyhow::Result<()> {
        self.detach().await?;
        self.holder.kill().await?;
        for volume in self.volumes() {
            let files = [volume.image.clone(), volume.saved()];
            for path in files.iter().filter(|path| path.exists()) {
                fs::remove_file(path)
                    .with_context(|| format!("failed to remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Simulates a power cut: data that was not synced is lost. No process may use the disk any
    /// more.
    pub async fn cut(&self) -> anyhow::Result<()> {
        for volume in self.volumes() {
            let mounted = volume.mounted.display().to_string();
            // The file system shuts down without further writes; the next mount replays its journal.
            self.inside(&["xfs_io", "-x", "-c", "shutdown", &mounted]).await?;
        }
        self.detach().await?;
        self.attach().await
    }

    /// Keeps a copy of the disk for [`Self::restore`]. No process may use the disk.
    pub async fn save(&self) -> anyhow::Result<()> {
        self.detach().await?;
        for volume in self.volumes() {
            copy(&volume.image, &volume.saved()).await?;
        }
        self.attach().await
    }

    /// Gives the disk the content that it had when it was saved. No process may use the disk.
    pub async fn restore(&self) -> anyhow::Result<()> {
        // An earlier call may have failed midway.
        if self.own.device(&self.mounts()?).is_ok() {
            self.detach().await?;
        }
        for volume in self.volumes() {
            copy(&volume.saved(), &volume.image).await?;
        }
        self.attach().await
    }

    /// The mounts of the namespace.
    fn mounts(&self) -> anyhow::Result<String> {
        Ok(fs::read_to_string(format!("/proc/{}/mounts", self.holder()?))?)
    }

    async fn detach(&self) -> anyhow::Result<()> {
        let mounts = self.mounts()?;
        let devices = self.volumes().map(|volume| Ok((volume, volume.device(&mounts)?)));
        let devices: Vec<(&Volume, String)> = devices.collect::<anyhow::Result<_>>()?;
        let others = self.others.iter().map(|volume| &volume.mounted);
        for path in others.chain([&self.root, &self.own.mounted]) {
            let path = path.display().to_string();
            eventually("the disk is unmounted", Duration::from_secs(LET_GO_SECONDS), async || {
                let outcome = self.inside(&["umount", &path]).await;
                outcome.map(drop).map_err(|error| format!("{error:#}"))
            })
            .await?;
        }
        for (volume, device) in devices {
            // The file system holds the device, and the device holds the file. The device name alone
            // proves nothing: once the device is free, another host's disk may use it.
            eventually(
                "the file system releases its device",
                Duration::from_secs(LET_GO_SECONDS),
                async || match volume.backs(&device) {
                    Ok(false) => Ok(()),
                    Ok(true) => {
                        Err(format!("{device} is still backed by {}", volume.image.display()))
                    }
                    Err(error) => Err(error.to_string()),
                },
            )
            .await?;
        }
        Ok(())
    }
}

/// Copies a disk; blocks that were never written take no space in the copy.
async fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let sparse: [&OsStr; 3] = ["--sparse=always".as_ref(), from.as_ref(), to.as_ref()];
    run("cp", sparse).await.map(drop)
}
