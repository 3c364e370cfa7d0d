//! The directories of a bed, and the limit on parallel beds.

use std::{
    env,
    fs::{self, File},
    io::ErrorKind,
    net::{Ipv4Addr, TcpListener},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::Context as _;
use refit_runtime::Clock;

/// Maximum number of beds on one machine.
const BEDS: usize = 2;
/// Name of the socket that the only bed with Cluster API in a network namespace binds.
const INFRASTRUCTURE: &str = "refit-testbed-infrastructure";
/// How long a bed waits for its turn.
const TURN: Duration = Duration::from_mins(45);
/// Number of directories of earlier runs that are kept.
const KEPT: usize = 6;

/// Returns the directory of the test bed in the cache.
pub fn cache() -> anyhow::Result<PathBuf> {
    let root = match (env::var_os("REFIT_CACHE"), env::var_os("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => PathBuf::from(home).join(".cache/refit"),
        (None, None) => anyhow::bail!("neither REFIT_CACHE nor HOME is set"),
    };
    Ok(root.join("testbed"))
}

/// The permission to run a bed. It ends when it is dropped or the process ends.
#[derive(Debug)]
pub struct Turn {
    _infrastructure: UnixListener,
    _bed: File,
}

/// Waits until this process may run a bed.
///
/// The in-memory provider listens on a fixed port, so a network namespace can have only one bed
/// with Cluster API. An abstract socket name, which can also be bound only once per network
/// namespace, serves as the lock.
pub async fn turn(clock: Clock) -> anyhow::Result<Turn> {
    let directory = cache()?;
    fs::create_dir_all(&directory)
        .with_context(|| format!("failed to create {}", directory.display()))?;
    let name = SocketAddr::from_abstract_name(INFRASTRUCTURE)?;
    let infrastructure = wait_for(clock, || match UnixListener::bind_addr(&name) {
        Ok(bound) => Ok(Some(bound)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error).context("failed to bind the name of the bed"),
    });
    Ok(Turn {
        _infrastructure: infrastructure.await?,
        _bed: wait_for(clock, || lock_free_bed(&directory)).await?,
    })
}

/// Locks the file of a free bed; `None` if all are taken.
fn lock_free_bed(directory: &Path) -> anyhow::Result<Option<File>> {
    for bed in 0..BEDS {
        let path = directory.join(format!("bed-{bed}.lock"));
        let file =
            File::create(&path).with_context(|| format!("failed to write {}", path.display()))?;
        if file.try_lock().is_ok() {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Retries until `one` returns a value.
async fn wait_for<T>(
    clock: Clock,
    mut one: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let since = clock.now();
    let mut logged = false;
    loop {
        if let Some(held) = one()? {
            return Ok(held);
        }
        anyhow::ensure!(
            clock.elapsed(since) < TURN,
            "other test beds have been up for {} minutes: stop them with `cargo xtask testbed \
             down`",
            TURN.as_secs() / 60
        );
        if !std::mem::replace(&mut logged, true) {
            tracing::info!("waiting for another test bed to stop");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Creates the directory of a run, and removes those of the oldest runs.
pub fn run(clock: Clock, name: &str) -> anyhow::Result<PathBuf> {
    let runs = cache()?.join("runs");
    let path = runs.join(format!(
        "{}-{name}-{}",
        clock.now().strftime("%Y%m%d-%H%M%S"),
        std::process::id()
    ));
    fs::create_dir_all(&path).with_context(|| format!("failed to create {}", path.display()))?;
    let mut old: Vec<PathBuf> = fs::read_dir(&runs)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|other| *other != path)
        .collect();
    old.sort();
    let surplus = old.len().saturating_sub(KEPT);
    for path in old.iter().take(surplus) {
        // A later run removes what cannot be removed now.
        let _ = fs::remove_dir_all(path);
    }
    Ok(path)
}

/// Writes a file that only its owner may read.
pub fn write_secret(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    let mut file = file.with_context(|| format!("failed to write {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("failed to write {}", path.display()))
}

/// Returns a port that no process listens on, and never the same one twice. It lies below the ports
/// that the system gives to outgoing connections, so that none takes it before the program listens;
/// each process starts its search elsewhere.
pub fn free_port() -> anyhow::Result<u16> {
    const PORTS: std::ops::Range<u32> = 16_384..32_768;
    /// More than a bed needs.
    const PER_PROCESS: u32 = 64;
    static TAKEN: AtomicU32 = AtomicU32::new(0);

    for _ in PORTS {
        let offset = std::process::id() * PER_PROCESS + TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(PORTS.start + offset % (PORTS.end - PORTS.start))?;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return Ok(port);
        }
    }
    anyhow::bail!("no port from {} to {} is free", PORTS.start, PORTS.end - 1)
}
