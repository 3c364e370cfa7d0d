//! Whether an installation is healthy: turns facts into findings.
//!
//! Every finding names the object, the problem and the remedy. Data that could not be read is a
//! separate warning: nothing is reported as healthy without a check.

mod canonical;
mod checks;
pub mod hold;
mod hook_clients;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use refit_core::{certificates::CertificateFacts, invariants::Violation};
use refit_kinds::version::StatedVersion;
use serde::Serialize;

use super::{
    managers::Manager,
    preflight::Refused,
    reach::{Extension, Read},
};

/// An area to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Check {
    /// CustomResourceDefinitions.
    Crds,
    /// Rights of the controller's ServiceAccount.
    Rbac,
    /// The ExtensionConfig, and which extension is called for which namespace.
    Extension,
    /// The hook server's certificate.
    Certificate,
    /// Version and feature gates of Cluster API.
    ClusterApi,
    /// The client certificates of Cluster API's managers.
    HookClients,
    /// The controller's Deployment.
    Controller,
    /// The Lease of the controller's replicas.
    Lease,
    /// Namespaces that hold Clusters.
    Namespaces,
    /// What refuses the replacement of machines.
    Holds,
    /// Annotations of Canonical's providers.
    Canonical,
    /// Agents on the hosts.
    Agents,
    /// Versions of kubelets and API servers.
    Skew,
    /// Machines whose update would have to wait.
    Preflight,
    /// Groups of machines whose rollout waits for an operator.
    Rollouts,
    /// Safety invariants of the final state, including leftover cordons and marks.
    Invariants,
}

impl Check {
    /// All checks, in display order.
    pub const ALL: [Self; 16] = [
        Self::Crds,
        Self::Rbac,
        Self::Extension,
        Self::Certificate,
        Self::ClusterApi,
        Self::HookClients,
        Self::Controller,
        Self::Lease,
        Self::Namespaces,
        Self::Holds,
        Self::Canonical,
        Self::Agents,
        Self::Skew,
        Self::Preflight,
        Self::Rollouts,
        Self::Invariants,
    ];
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Level {
    /// The check passed.
    Ok,
    /// It works with a problem, or could not be checked.
    Warn,
    /// The check failed.
    Fail,
}

/// The result of one check for one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check.
    pub check: Check,
    /// Its severity.
    pub level: Level,
    /// `Kind/name` of the object.
    pub object: String,
    /// Description of the result.
    pub message: String,
    /// What to do; empty if no action is required.
    pub remedy: String,
}

/// A CustomResourceDefinition, expected or installed.
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
    /// Whether the API server accepted it.
    pub established: bool,
}

/// A permission that the controller requires.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// Verb and resource, as for `kubectl auth can-i`.
    pub what: String,
    /// Whether the controller has it.
    pub allowed: bool,
}

/// The hook server's certificate and the CA bundle that Cluster API trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate, or why it cannot be read.
    pub leaf: Result<CertificateFacts, String>,
    /// Whether the ExtensionConfig's bundle matches the Secret's `ca.crt`.
    pub bundle_matches: bool,
    /// DNS names that clients use.
    pub wanted_names: Vec<String>,
}

/// A copy of the Secret with the managers' client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCopy {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The certificate, or why it cannot be read.
    pub leaf: Result<CertificateFacts, String>,
    /// Whether Refit accepts its authority.
    pub trusted: bool,
}

/// Whose hook calls the controller serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// Clients with a certificate of the Secret's authority.
    Secret,
    /// Clients with a certificate of the operator's own authority.
    OwnAuthority,
    /// Every client.
    Off,
}

/// Whether the controller serves the annotations of Canonical's providers: its flag `--canonical`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString)]
pub enum CanonicalMode {
    /// It does not.
    #[default]
    Off,
    /// It leaves them to Canonical's controllers.
    On,
    /// It does, because Canonical's controllers do not run.
    ControllersAbsent,
}

/// A Deployment of Refit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Desired replicas.
    pub replicas: i64,
    /// Ready replicas.
    pub ready: i64,
    /// The image.
    pub image: String,
    /// Whose hook calls it serves.
    pub client_auth: ClientAuth,
    /// Whether it serves the annotations of Canonical's providers.
    pub canonical: CanonicalMode,
}

/// The Lease of the controller's replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Holder of the Lease.
    pub holder: String,
    /// When it was last renewed.
    pub renewed_at: Option<Timestamp>,
    /// Duration of the Lease in seconds.
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

/// Facts about one machine's host.
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
    /// When the last report of its agent arrived.
    pub reported_at: Option<Timestamp>,
    /// The facts that its agent cannot read, each with the reason.
    pub unread: Vec<String>,
}

/// Input of all checks.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The current time.
    pub now: Timestamp,
    /// Version of this program.
    pub version: String,
    /// Expected CRDs.
    pub wanted_crds: Vec<Crd>,
    /// Installed CRDs.
    pub crds: Read<Vec<Crd>>,
    /// Permissions of the controller.
    pub rights: Read<Vec<Right>>,
    /// All ExtensionConfigs.
    pub extensions: Read<Vec<Extension>>,
    /// The hook server's certificate; `None` if its Secret does not exist.
    pub certificate: Read<Option<Certificate>>,
    /// Cluster API's managers.
    pub managers: Read<Vec<Manager>>,
    /// Managers of Canonical's providers that run, as `Deployment/name (namespace)`.
    pub canonical_managers: Read<Vec<String>>,
    /// Number of Machines and MachineDeployments that ask for an upgrade under Canonical's prefix.
    pub canonical_requests: usize,
    /// Copies of the client certificate in the managers' namespaces.
    pub client_copies: Read<Vec<ClientCopy>>,
    /// The controller's Deployment; `None` if it does not exist.
    pub controller: Read<Option<Workload>>,
    /// The Lease; `None` if it does not exist.
    pub lease: Read<Option<Lease>>,
    /// Namespaces with Clusters.
    pub namespaces: Read<Vec<Namespace>>,
    /// The ValidatingAdmissionPolicy and the binding that hold replacements, as `Kind/name`, as far as they are missing.
    pub missing_hold_policies: Read<Vec<String>>,
    /// The users that each ReplacementHold names, by namespace.
    pub replacement_holds: Read<BTreeMap<String, Vec<String>>>,
    /// Number of KubeadmControlPlanes and MachineDeployments, by namespace.
    pub owners: BTreeMap<String, usize>,
    /// MachineDeployments, as namespace and name, that replace their only machine by means of a second one, without having
    /// declared so.
    pub replaced_by_surge: Vec<(String, String)>,
    /// Hosts, by `namespace/cluster`.
    pub hosts: BTreeMap<String, Read<Vec<Host>>>,
    /// Machines that would have to wait if their update began now, by `Kind/name` of their group with its
    /// namespace.
    pub refused: Vec<(String, Refused)>,
    /// Groups that are blocked: `Kind/name` of the owner with its namespace, and the reason.
    pub blocked: Vec<(String, String)>,
    /// Number of unfinished NodeUpdates, and of Machines that are about to get one.
    pub unfinished: usize,
    /// Violations of invariants while nothing is being updated.
    pub violations: Vec<Violation>,
}

/// Runs all checks. Returns at least one finding for each check.
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
            Check::HookClients => hook_clients::check(facts, &mut found),
            Check::Controller => checks::controller(facts, &mut found),
            Check::Lease => checks::lease(facts, &mut found),
            Check::Namespaces => checks::namespaces(facts, &mut found),
            Check::Holds => hold::check(facts, &mut found),
            Check::Canonical => canonical::check(facts, &mut found),
            Check::Agents => checks::agents(facts, &mut found),
            Check::Skew => checks::skew(facts, &mut found),
            Check::Preflight => checks::preflight(facts, &mut found),
            Check::Rollouts => checks::rollouts(facts, &mut found),
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

    /// Adds a warning for data that could not be read.
    fn unknown(&mut self, object: &str, why: &str) {
        let message = format!("cannot be checked: {why}");
        let remedy = if why.contains("forbidden") {
            "run the command again with an account that may read it"
        } else {
            ""
        };
        self.add(Level::Warn, object, message, remedy);
    }

    /// Adds an OK finding if the check has no other finding.
    fn or_ok(&mut self, object: &str, message: String) {
        if self.list.is_empty() {
            self.add(Level::Ok, object, message, "");
        }
    }
}

#[cfg(test)]
#[path = "doctor_tests.rs"]
mod tests;
