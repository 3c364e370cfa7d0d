//! Whether an installation is sound: facts in, findings out.
//!
//! Every finding names the object, what is wrong with it and what to do. What could not be read is
//! a warning of its own: nothing is called sound that nobody looked at.

mod checks;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use refit_core::{certificates::CertificateFacts, invariants::Violation};
use refit_kinds::version::StatedVersion;
use serde::Serialize;

use super::{
    managers::Manager,
    reach::{Extension, Read},
};

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Check {
    /// CustomResourceDefinitions.
    Crds,
    /// Rights of the controller's ServiceAccount.
    Rbac,
    /// The ExtensionConfig and who is called for which namespace.
    Extension,
    /// The hook server's certificate.
    Certificate,
    /// Version and feature gates of Cluster API.
    ClusterApi,
    /// The controller's Deployment.
    Controller,
    /// The Lease of the replicas.
    Lease,
    /// Namespaces that hold Clusters.
    Namespaces,
    /// Agents on the hosts.
    Agents,
    /// Versions of kubelets and API servers.
    Skew,
    /// What must hold when nothing moves, cordons and marks that are left among it.
    Invariants,
}

impl Check {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 11] = [
        Self::Crds,
        Self::Rbac,
        Self::Extension,
        Self::Certificate,
        Self::ClusterApi,
        Self::Controller,
        Self::Lease,
        Self::Namespaces,
        Self::Agents,
        Self::Skew,
        Self::Invariants,
    ];
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Level {
    /// It is as it should be.
    Ok,
    /// It works, or could not be looked at.
    Warn,
    /// Something does not work.
    Fail,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: Check,
    /// How bad it is.
    pub level: Level,
    /// `Kind/name` of the object.
    pub object: String,
    /// What was found.
    pub message: String,
    /// What to do; empty where nothing is to be done.
    pub remedy: String,
}

/// A CustomResourceDefinition as it should be or as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crd {
    /// Its name.
    pub name: String,
    /// Versions that it serves.
    pub served: BTreeSet<String>,
    /// Versions in which objects are stored.
    pub stored: BTreeSet<String>,
    /// Hash of its schema, by version.
    pub schemas: BTreeMap<String, String>,
    /// The API server accepted it.
    pub established: bool,
}

/// A right that the controller needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// Verb and resource, as `kubectl auth can-i` takes them.
    pub what: String,
    /// Whether the controller has it.
    pub allowed: bool,
}

/// The hook server's certificate and what Cluster API trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate; why it cannot be read.
    pub leaf: Result<CertificateFacts, String>,
    /// The ExtensionConfig's bundle is the Secret's `ca.crt`.
    pub bundle_matches: bool,
    /// Names under which it is called.
    pub wanted_names: Vec<String>,
}

/// A Deployment of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Replicas that are wanted.
    pub replicas: i64,
    /// Replicas that are ready.
    pub ready: i64,
    /// The image.
    pub image: String,
}

/// The Lease of the controller's replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it.
    pub holder: String,
    /// When it was last renewed.
    pub renewed_at: Option<Timestamp>,
    /// How long it holds.
    pub duration_seconds: i64,
}

/// A namespace that holds Clusters.
#[derive(Clone, Debug, PartialEq)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// Names of its Clusters.
    pub clusters: Vec<String>,
    /// Its labels.
    pub labels: Read<BTreeMap<String, String>>,
}

/// What is known of one machine's host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its Machine.
    pub machine: String,
    /// Its Node.
    pub node: String,
    /// Whether it runs the control plane.
    pub control_plane: bool,
    /// Version of its kubelet.
    pub kubelet: StatedVersion,
    /// Version of its agent, empty before the first report.
    pub agent: String,
    /// When its agent last reported.
    pub reported_at: Option<Timestamp>,
}

/// Everything that is looked at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// What time it is.
    pub now: Timestamp,
    /// Version of this program.
    pub version: String,
    /// CRDs as they should be.
    pub wanted_crds: Vec<Crd>,
    /// CRDs as they are.
    pub crds: Read<Vec<Crd>>,
    /// Rights of the controller.
    pub rights: Read<Vec<Right>>,
    /// All ExtensionConfigs.
    pub extensions: Read<Vec<Extension>>,
    /// The hook server's certificate; `None` where its Secret is not there.
    pub certificate: Read<Option<Certificate>>,
    /// Cluster API's managers.
    pub managers: Read<Vec<Manager>>,
    /// The controller's Deployment; `None` where it is not there.
    pub controller: Read<Option<Workload>>,
    /// The Lease; `None` where it is not there.
    pub lease: Read<Option<Lease>>,
    /// Namespaces with Clusters.
    pub namespaces: Read<Vec<Namespace>>,
    /// Hosts, by `namespace/cluster`.
    pub hosts: BTreeMap<String, Read<Vec<Host>>>,
    /// NodeUpdates that have not ended, and Machines that are about to get one.
    pub unfinished: usize,
    /// What does not hold, where nothing moves.
    pub violations: Vec<Violation>,
}

/// Looks at everything. There is at least one finding for each check.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    for check in Check::ALL {
        let mut found = Findings { check, list: Vec::new() };
        match check {
            Check::Crds => checks::crds(facts, &mut found),
            Check::Rbac => checks::rights(facts, &mut found),
            Check::Extension => checks::extension(facts, &mut found),
            Check::Certificate => checks::certificate(facts, &mut found),
            Check::ClusterApi => checks::cluster_api(facts, &mut found),
            Check::Controller => checks::controller(facts, &mut found),
            Check::Lease => checks::lease(facts, &mut found),
            Check::Namespaces => checks::namespaces(facts, &mut found),
            Check::Agents => checks::agents(facts, &mut found),
            Check::Skew => checks::skew(facts, &mut found),
            Check::Invariants => checks::invariants(facts, &mut found),
        }
        all.append(&mut found.list);
    }
    all
}

struct Findings {
    check: Check,
    list: Vec<Finding>,
}

impl Findings {
    fn add(&mut self, level: Level, object: &str, message: String, remedy: &str) {
        self.list.push(Finding {
            check: self.check,
            level,
            object: object.to_owned(),
            message,
            remedy: remedy.to_owned(),
        });
    }

    fn fail(&mut self, object: &str, message: String, remedy: &str) {
        self.add(Level::Fail, object, message, remedy);
    }

    fn warn(&mut self, object: &str, message: String, remedy: &str) {
        self.add(Level::Warn, object, message, remedy);
    }

    /// Something that could not be looked at.
    fn unknown(&mut self, object: &str, why: &str) {
        let message = format!("could not be looked at: {why}");
        let remedy = if why.contains("forbidden") {
            "run it again with an account that may read it"
        } else {
            ""
        };
        self.add(Level::Warn, object, message, remedy);
    }

    /// All is well, if nothing else was said.
    fn or_ok(&mut self, object: &str, message: String) {
        if self.list.is_empty() {
            self.add(Level::Ok, object, message, "");
        }
    }
}

#[cfg(test)]
#[path = "doctor_tests.rs"]
mod tests;
