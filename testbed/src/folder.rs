//! Where a bed keeps its files, and how many beds there may be.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use refit_kube::Clock;

/// How many beds may be up at once on one machine.
const BEDS: usize = 2;
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
    _bed: File,
    _infrastructure: File,
}

/// Waits until this process may have a bed up.
///
/// The in-memory provider listens on a port that it does not let one choose, so only one bed with
/// Cluster API is up at a time.
pub async fn turn(clock: Clock) -> anyhow::Result<Turn> {
    let folder = cache()?;
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let beds: Vec<PathBuf> = (0..BEDS)
        .map(|bed| folder.join(format!("bed-{bed}.lock")))
        .collect();
    let infrastructure = held(clock, &[folder.join("infrastructure.lock")]).await?;
    Ok(Turn {
        _bed: held(clock, &beds).await?,
        _infrastructure: infrastructure,
    })
}

/// Locks one of these files.
async fn held(clock: Clock, files: &[PathBuf]) -> anyhow::Result<File> {
    let since = clock.now();
    let mut told = false;
    loop {
        for path in files {
            let file = File::create(path)
                .with_context(|| format!("{} cannot be written", path.display()))?;
            if file.try_lock().is_ok() {
                return Ok(file);
            }
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
    let file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path);
    let mut file = file.with_context(|| format!("{} cannot be written", path.display()))?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("{} cannot be written", path.display()))
}

/// A port on loopback that nobody listens on now.
pub fn free_port() -> anyhow::Result<u16> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))
        .context("no port of 127.0.0.1 can be listened on")?;
    Ok(listener.local_addr()?.port())
}
