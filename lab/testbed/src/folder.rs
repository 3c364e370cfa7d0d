//! Where a bed keeps its files, and how many beds there may be.

use std::{
    env,
    fs::{self, File},
    io::ErrorKind,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use refit_runtime::Clock;

/// How many beds may be up at once on one machine.
const BEDS: usize = 2;
/// Bound by the one bed with Cluster API of a network namespace.
const INFRASTRUCTURE: &str = "refit-testbed-infrastructure";
/// How long a bed waits for its turn.
const TURN: Duration = Duration::from_mins(30);
/// How many folders of ended runs are kept.
const KEPT: usize = 6;

/// The part of the cache that is the test bed's.
pub fn cache() -> anyhow::Result<PathBuf> {
    let root = match (env::var_os("REFIT_CACHE"), env::var_os("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => PathBuf::from(home).join(".cache/refit"),
        (None, None) => anyhow::bail!("neither REFIT_CACHE nor HOME is set"),
    };
    Ok(root.join("testbed"))
}

/// The right to have a bed up, until it is dropped or the process ends.
#[derive(Debug)]
pub struct Turn {
    _infrastructure: UnixListener,
    _bed: File,
}

/// Waits until this process may have a bed up.
///
/// The in-memory provider listens on a port that it does not let one choose, so only one bed with
/// Cluster API is up in a network namespace. A name without a file is bound there once too.
pub async fn turn(clock: Clock) -> anyhow::Result<Turn> {
    let folder = cache()?;
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let name = SocketAddr::from_abstract_name(INFRASTRUCTURE)?;
    let infrastructure = held(clock, || match UnixListener::bind_addr(&name) {
        Ok(bound) => Ok(Some(bound)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error).context("the name of the bed cannot be bound"),
    });
    Ok(Turn {
        _infrastructure: infrastructure.await?,
        _bed: held(clock, || one_of(&folder)).await?,
    })
}

/// Locks the file of one of the beds, if one is free.
fn one_of(folder: &Path) -> anyhow::Result<Option<File>> {
    for bed in 0..BEDS {
        let path = folder.join(format!("bed-{bed}.lock"));
        let file =
            File::create(&path).with_context(|| format!("{} cannot be written", path.display()))?;
        if file.try_lock().is_ok() {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Tries until something can be had.
async fn held<T>(
    clock: Clock,
    mut one: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let since = clock.now();
    let mut told = false;
    loop {
        if let Some(held) = one()? {
            return Ok(held);
        }
        anyhow::ensure!(
            clock.elapsed(since) < TURN,
            "other test beds have been up for {} minutes; end them with `cargo xtask testbed down`",
            TURN.as_secs() / 60
        );
        if !std::mem::replace(&mut told, true) {
            tracing::info!("another test bed is up: waiting for its end");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Makes the folder of a run, and removes those of the oldest ones.
pub fn run(clock: Clock, name: &str) -> anyhow::Result<PathBuf> {
    let runs = cache()?.join("runs");
    let path = runs.join(format!(
        "{}-{name}-{}",
        clock.now().strftime("%Y%m%d-%H%M%S"),
        std::process::id()
    ));
    fs::create_dir_all(&path).with_context(|| format!("{} cannot be made", path.display()))?;
    let mut old: Vec<PathBuf> = fs::read_dir(&runs)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|other| *other != path)
        .collect();
    old.sort();
    let surplus = old.len().saturating_sub(KEPT);
    for path in old.iter().take(surplus) {
        // What cannot be removed now is removed by a later run.
        let _ = fs::remove_dir_all(path);
    }
    Ok(path)
}

/// Writes a file that only its owner may read.
pub fn write_secret(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    let mut file = file.with_context(|| format!("{} cannot be written", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("{} cannot be written", path.display()))
}

/// A port on loopback that nobody listens on now.
pub fn free_port() -> anyhow::Result<u16> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))
        .context("no port of 127.0.0.1 can be listened on")?;
    Ok(listener.local_addr()?.port())
}
