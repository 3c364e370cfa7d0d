//! A world that outlives its process.
//!
//! | module | is for |
//! |---|---|
//! | `folder` | the data folder: its lock, its one file, and what a damaged one is told |
//! | `log` | writing down each change |
//! | `record` | one change, as a line |
//! | `sweep` | going on from every prefix of a log |
//!
//! There is one append-only file for everything that outlives a process: the stores of all APIs,
//! hosts, their disks, what the environment remembers, keys and ports. Its first line is a whole
//! world, each further line one change, in the order in which the changes happened. A change is
//! written before anybody can act on it, so each prefix of the file is a world that was there at
//! some moment, and going on from it is what a restart after a kill at that moment is.
//!
//! **What is synced.** A line is handed to the kernel before the change is answered, and is not
//! synced: a process that is killed, however hard, loses nothing that the kernel has. Only a loss
//! of power does; for that the file is synced some seconds after a change, so that the last moments
//! are lost at most, and never half a line is read: each carries a checksum. A sync for each of some
//! thousand writes of an upgrade would make the disk the slowest part of a sandbox, and nothing in
//! it is worth that.

mod folder;
mod log;
mod record;
#[cfg(feature = "sabotage")]
mod sweep;

use std::{sync::Weak, time::Duration};

pub use folder::{Folder, PersistError};
pub use log::Log;
pub(crate) use record::Record;
#[cfg(feature = "sabotage")]
pub use sweep::{KillReport, PersistenceRun, Prefix};

use crate::world::Inner;

/// How long after a change the file is synced.
const SYNC_AFTER: Duration = Duration::from_secs(5);

/// Syncs a log some time after each change, and rewrites it when it has grown too long.
pub(crate) async fn tend(inner: Weak<Inner>, log: Log) {
    loop {
        log.changed().await;
        tokio::time::sleep(SYNC_AFTER).await;
        if log.is_long() {
            let Some(inner) = inner.upgrade() else { return };
            // Nothing else of the world runs meanwhile, so nothing falls between the two files.
            let world = crate::snapshot::take(&inner);
            log.rewrite(world);
        }
        log.sync().await;
    }
}
