//! What the functions of steps have in common.

use refit_core::managed::steps::Progress;

use super::{Fact, Known, Machines, Notification, Write};
use crate::{
    cluster_version,
    health::{Essential, Extended},
    maintenance::{SilenceWrite, SilencesSeen},
    notify::{Notice, Sent, sent},
    scaler::ScaleSeen,
};

/// How far a step is.
pub(super) type Made = Progress<Write>;
/// The same, where an earlier part of a step may be what is not done.
pub(super) type Flow = Result<Made, Made>;

/// Runs the parts of a step, up to the first one that is not done.
pub(super) fn flow(parts: impl FnOnce() -> Flow) -> Made {
    parts().unwrap_or_else(|not_done| not_done)
}

fn asks(write: Write) -> Made {
    Progress::NotYet { why: String::new(), writes: vec![write] }
}

fn read<T>(found: Option<&T>, fact: Fact) -> Result<&T, Made> {
    found.ok_or_else(|| asks(Write::Read(fact)))
}

impl Known<'_> {
    /// The requested version; empty for an image whose version is not known yet.
    pub(super) fn version(&self) -> &str {
        self.upgrade.spec.desired.version.as_deref().unwrap_or_default()
    }

    /// Whether the upgrade was requested of the ClusterVersion.
    pub(crate) fn has_commenced(&self) -> Result<bool, Made> {
        let commenced = cluster_version::has_commenced(self.cluster, &self.upgrade.spec.desired);
        commenced.map_err(|error| Progress::error(error.to_string()))
    }

    /// Whether extra nodes are requested.
    pub(super) fn is_reserved(&self) -> bool {
        self.upgrade.spec.capacity_reservation.unwrap_or_default()
    }

    fn outcome(&self, write: &Write) -> Option<&Result<(), String>> {
        let mut tried = self.tried.iter().rev();
        tried.find(|(tried, _)| tried == write).map(|(_, outcome)| outcome)
    }

    /// Makes a write once.
    pub(crate) fn made(&self, write: Write) -> Result<(), Made> {
        match self.outcome(&write) {
            None => Err(asks(write)),
            Some(Ok(())) => Ok(()),
            Some(Err(why)) => Err(Progress::error(why.clone())),
        }
    }

    /// Sends a notification once for each version.
    pub(crate) fn notified(&self, notice: Notice<'_>) -> Result<(), Made> {
        let event = notice.event();
        let write = Write::Notify(Notification::of(notice, self));
        if self.outcome(&write).is_some() {
            return self.made(write);
        }
        match sent(self.compat, event, self.version(), Some(self.entry)) {
            Sent::Yes => Ok(()),
            Sent::No => self.made(write),
            Sent::AskPrometheus(query) => {
                match read(self.facts.sent.get(&event), Fact::Sent { event, query })? {
                    Ok(true) => Ok(()),
                    Ok(false) => self.made(write),
                    Err(why) => Err(Progress::error(why.clone())),
                }
            }
        }
    }

    pub(super) fn silences(&self) -> Result<SilencesSeen<'_>, Made> {
        match read(self.facts.silences.as_ref(), Fact::Silences)? {
            Ok(silences) => Ok(SilencesSeen {
                compat: self.compat,
                silences,
                version: self.version(),
                now: self.now,
            }),
            Err(why) => Err(Progress::error(why.clone())),
        }
    }

    /// Makes all writes to Alertmanager.
    pub(super) fn silenced(&self, due: Vec<SilenceWrite>) -> Result<(), Made> {
        self.all_made(due.into_iter().map(Write::Silence).collect())
    }

    /// Makes all writes once, also after one has failed.
    pub(super) fn all_made(&self, due: Vec<Write>) -> Result<(), Made> {
        let failed = due.iter().find_map(|write| self.outcome(write)?.as_ref().err().cloned());
        let new: Vec<Write> =
            due.into_iter().filter(|write| self.outcome(write).is_none()).collect();
        match (new.is_empty(), failed) {
            (true, None) => Ok(()),
            (true, Some(why)) => Err(Progress::error(why)),
            (false, _) => Err(Progress::NotYet { why: String::new(), writes: new }),
        }
    }

    pub(super) fn machines(&self) -> Result<&Machines, Made> {
        let machines = read(self.facts.machines.as_ref(), Fact::Machines)?;
        machines.as_ref().map_err(|why| Progress::error(why.clone()))
    }

    pub(super) fn essential(&self) -> Result<&Essential, Made> {
        read(self.facts.health.as_ref(), Fact::Health)
    }

    /// What the extended health checks are decided on; `None` if they are not enabled. The repaired operator always has
    /// them.
    pub(crate) fn extended(&self) -> Result<Option<&Extended>, Made> {
        let is_enabled = match self.compat {
            crate::Compat::Repaired => true,
            crate::Compat::Strict => self.config.gates.pre_health_check,
        };
        let extended = || read(self.facts.more_health.as_ref(), Fact::MoreHealth);
        is_enabled.then(extended).transpose()
    }

    /// Reads the answers of URLs.
    pub(super) fn unavailable(
        &self,
        urls: &[String],
    ) -> Result<&[crate::dependencies::Unavailable], Made> {
        let fact = Fact::Dependencies(urls.to_vec());
        read(self.facts.dependencies.as_ref(), fact).map(Vec::as_slice)
    }

    /// Drains nodes once, and returns those that could not be drained in time.
    pub(super) fn drained(&self, nodes: &[String]) -> Result<&[String], Made> {
        self.made(Write::Drain(nodes.to_vec()))?;
        Ok(&self.facts.failed_drains)
    }
}

impl Machines {
    pub(super) fn seen(&self) -> ScaleSeen<'_> {
        ScaleSeen { sets: &self.sets, machines: &self.machines, nodes: &self.nodes }
    }
}
