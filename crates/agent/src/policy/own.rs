//! What belongs to the agent: no plan may write there, whatever the host's policy is, because it
//! could replace the policy, the keys that plans and bundles are checked with, or the agent.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use refit_kinds::refit::FileArgs;
use serde::{Deserialize, Serialize};

use super::{HostPath, HostView, places, written};
use crate::host::FETCHED;

/// Directories and files of every agent: settings with policy and plan keys, keys of bundles,
/// journal, fetched packages, and programs.
const USUAL: [&str; 6] = [
    "/etc/refit-agent",
    "/etc/refit",
    "/var/lib/refit-agent",
    FETCHED,
    "/opt/refit",
    "/usr/bin/refit-agent",
];
/// The agent's unit, its drop-ins and the links that enable it start with this name.
const UNIT: &str = "refit-agent.service";
/// Directories of drop-ins that the agent's unit shares with others (`docs/facts/hosts.md#systemd`).
const SHARED_DROP_INS: [&str; 2] = ["service.d", "refit-.service.d"];

/// Paths of the agent on a host, absolute and without `..`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OwnPaths(BTreeSet<PathBuf>);

impl Default for OwnPaths {
    fn default() -> Self {
        Self::new([])
    }
}

impl OwnPaths {
    /// The usual paths, and those that this host has chosen itself.
    pub fn new(chosen: impl IntoIterator<Item = PathBuf>) -> Self {
        Self(USUAL.into_iter().map(PathBuf::from).chain(chosen).collect())
    }

    /// The first path of a step that belongs to the agent, as the step spells it. A user's home
    /// directory counts: it is created, and belongs to the user.
    pub(crate) fn written_by(&self, args: &FileArgs, host: &dyn HostView) -> Option<String> {
        let own: BTreeSet<PathBuf> =
            self.0.iter().flat_map(|path| [path.clone(), host.resolved(path)]).collect();
        let homes = args.users.iter().map(|user| user.home_dir.clone());
        let homes = homes.filter(|home| !home.is_empty());
        written(args, host).into_iter().chain(homes).find(|path| {
            let spelled = HostPath::try_from(path.clone()).ok().map(|HostPath(path)| path);
            spelled.into_iter().chain(places(path, host).into_iter().flatten()).any(|place| {
                own.iter().any(|own| place.starts_with(own)) || is_part_of_unit(&place)
            })
        })
    }
}

/// Whether a path is the agent's unit, or changes it.
fn is_part_of_unit(place: &Path) -> bool {
    let mut in_systemd = false;
    place.components().any(|part| {
        let name = part.as_os_str().to_string_lossy();
        in_systemd |= name == "systemd";
        name.starts_with(UNIT) || in_systemd && SHARED_DROP_INS.contains(&name.as_ref())
    })
}

#[cfg(test)]
#[path = "own_tests.rs"]
mod tests;
