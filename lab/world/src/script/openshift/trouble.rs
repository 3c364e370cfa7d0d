//! Failures that a script injects.

use lab_openshift::{Blueprint, wire};
use refit_openshift::upgrade_config::NAMESPACE;

use super::command::Trouble;
use crate::{
    openshift::World,
    script::{
        command::{Reference, Wrong, wrong},
        objects::Found,
    },
};

/// The HTTP status of servers that are out of order.
const DOWN: u16 = 503;

impl Trouble {
    /// Whether a failure here and one there have the same end.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Alert(name, _), Self::Alert(other, _)) => name == other,
            (one, other) => one == other,
        }
    }

    /// Injects the failure, or ends it; returns what has changed.
    pub(super) async fn set(&self, world: &World, is_on: bool) -> Result<String, Wrong> {
        let site = &world.site;
        let status = is_on.then_some(wire::Trouble::Status(DOWN));
        match self {
            Self::Alert(name, labels) => {
                let labels: Vec<_> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
                if is_on {
                    site.prometheus.fire(name, &labels);
                } else {
                    site.prometheus.resolve(name);
                }
            }
            Self::Operator(name) => {
                exists(world, "clusteroperator", name)?;
                let why = is_on.then_some("its Pods crash");
                accepted(site.cluster.set_degraded(name, why).await)?;
            }
            Self::Upgradeable => {
                let why = "an API that is in use will be removed in the next minor version";
                accepted(site.cluster.forbid_minor_upgrades(is_on.then_some(why)).await)?;
            }
            Self::Ocm => site.ocm.troubles().set(status),
            Self::OcmStates => site.ocm.refuse_states(is_on),
            Self::Dependency => site.dependency.set(status),
            Self::Capacity => accepted(site.cluster.hold_machines(is_on).await)?,
            Self::Graph => {
                let why = is_on.then_some("the version graph does not answer");
                site.cincinnati.troubles().set(status);
                accepted(site.cluster.cut_off_graph(why).await)?;
            }
            Self::Version(version) => {
                is_offered(version)?;
                site.cincinnati.withdraw_version(version, is_on);
                accepted(site.cluster.withdraw(version, is_on).await)?;
            }
            Self::Registry => site.registry.troubles().set(status),
            Self::Release => {
                let why = is_on.then_some("the signature of the release is invalid");
                accepted(site.cluster.refuse_updates(why).await)?;
            }
            Self::Update => {
                let why = is_on.then_some("could not update deployment etcd-operator");
                accepted(site.cluster.fail_update(why).await)?;
            }
            Self::ControlPlane => accepted(site.cluster.stall_control_plane(is_on).await)?,
            Self::Node(name) => {
                exists(world, "node", name)?;
                let why = is_on.then_some("unexpected on-disk state");
                accepted(site.cluster.degrade_node(name, why).await)?;
            }
            Self::Prometheus => site.prometheus.set_down(is_on),
            Self::Alertmanager => site.alertmanager.set_down(is_on),
            Self::AlertmanagerSilences => site.alertmanager.set_read_only(is_on),
        }
        let (broken, mended) = self.described();
        Ok(if is_on { broken } else { mended })
    }

    /// The failure and its end as texts.
    fn described(&self) -> (String, String) {
        let (what, broken, mended) = match self {
            Self::Alert(name, _) => (format!("alert {name}"), "fires", "has ended"),
            Self::Operator(name) => {
                (format!("operator {name}"), "is degraded", "is no longer degraded")
            }
            Self::Upgradeable => (
                "the cluster".to_owned(),
                "is not upgradeable to another minor version",
                "is upgradeable to another minor version",
            ),
            Self::Ocm => ("OCM".to_owned(), "answers with an error", "answers"),
            Self::OcmStates => ("OCM".to_owned(), "refuses states", "accepts states"),
            Self::Dependency => ("the dependency".to_owned(), "answers with an error", "answers"),
            Self::Capacity => ("the cloud".to_owned(), "has no capacity", "has capacity"),
            Self::Graph => ("the version graph".to_owned(), "cannot be read", "can be read"),
            Self::Version(version) => {
                (format!("version {version}"), "is withdrawn", "is offered again")
            }
            Self::Registry => ("the registry".to_owned(), "answers with an error", "answers"),
            Self::Release => (
                "the cluster-version operator".to_owned(),
                "accepts no release",
                "accepts releases",
            ),
            Self::Update => {
                ("the update of the control plane".to_owned(), "fails", "no longer fails")
            }
            Self::ControlPlane => {
                ("the update of the control plane".to_owned(), "does not proceed", "proceeds")
            }
            Self::Node(name) => {
                (format!("the update of node {name}"), "does not proceed", "proceeds")
            }
            Self::Prometheus => ("Prometheus".to_owned(), "answers with an error", "answers"),
            Self::Alertmanager => ("Alertmanager".to_owned(), "answers with an error", "answers"),
            Self::AlertmanagerSilences => {
                ("Alertmanager".to_owned(), "refuses to change silences", "changes silences")
            }
        };
        (format!("{what} {broken}"), format!("{what} {mended}"))
    }
}

fn accepted(result: kube::Result<()>) -> Result<(), Wrong> {
    result.map_err(|error| wrong("break", error.to_string(), "a request that the API accepts"))
}

/// Rejects a version that no world offers.
fn is_offered(version: &str) -> Result<(), Wrong> {
    let releases = Blueprint::default().releases;
    let known: Vec<&str> = releases.iter().map(|release| &*release.version).collect();
    if known.contains(&version) {
        return Ok(());
    }
    Err(wrong("version", version, format!("one of {}", known.join(", "))))
}

/// Rejects a name that does not exist, with the ones that do.
fn exists(world: &World, kind: &str, name: &str) -> Result<(), Wrong> {
    let reference =
        Reference { cluster: None, kind: kind.to_owned(), namespace: None, name: name.to_owned() };
    Found::on(world.server().clone(), &reference, NAMESPACE)?.need().map(drop)
}
