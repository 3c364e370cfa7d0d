//! Where a sandbox lives: in a folder that is kept, or in one that goes with it.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use lab_world::{
    persist::{Folder, Log},
    snapshot::Snapshot,
};

use super::quoted;

/// Where a sandbox lives.
pub(super) enum Home {
    /// A folder that is kept.
    Kept(Folder),
    /// Nowhere: its kubeconfig goes to a folder that ends with it.
    Passing,
}

/// The folder of the kubeconfig. A temporary one is removed when this is dropped.
pub(super) enum Place {
    Kept(PathBuf),
    Temporary(tempfile::TempDir),
}

impl Place {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(folder) => folder.path(),
        }
    }
}

impl Home {
    /// Takes a folder, where one is named.
    pub(super) fn open(folder: Option<&Path>) -> anyhow::Result<Self> {
        Ok(match folder {
            Some(path) => Self::Kept(Folder::open(path)?),
            None => Self::Passing,
        })
    }

    /// The folder's name, for people.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Kept(folder) => folder.path().display().to_string(),
            Self::Passing => String::new(),
        }
    }

    /// The world that is kept there.
    pub(super) fn load(&self) -> anyhow::Result<Option<Snapshot>> {
        match self {
            Self::Kept(folder) => Ok(folder.load()?),
            Self::Passing => Ok(None),
        }
    }

    /// Where what happens is written down.
    pub(super) fn log(&self) -> Option<Log> {
        match self {
            Self::Kept(folder) => Some(folder.log()),
            Self::Passing => None,
        }
    }

    /// Where the kubeconfig goes.
    pub(super) fn folder(&self) -> anyhow::Result<Place> {
        Ok(match self {
            Self::Kept(folder) => Place::Kept(folder.path().to_owned()),
            Self::Passing => Place::Temporary(
                tempfile::Builder::new()
                    .prefix("refit-sandbox-")
                    // What it holds lets whoever reads it in.
                    .permissions(fs::Permissions::from_mode(0o700))
                    .tempdir()
                    .context(
                        "there is no temporary folder for the kubeconfig; set TMPDIR, or name a \
                         folder with --data-dir",
                    )?,
            ),
        })
    }

    /// What is left when the sandbox has ended.
    pub(super) fn last_words(&self) -> String {
        match self {
            Self::Kept(folder) => {
                format!("Ended. `refit sandbox --data-dir {}` carries on.", quoted(folder.path()))
            }
            Self::Passing => "Ended; nothing is left behind.".to_owned(),
        }
    }
}
