//! Decides whether a group or a cluster may be brought to a version, and who does it: Cluster API, which calls Refit,
//! or an UpgradeTask. Pure.

use std::fmt;

use refit_kinds::{
    refit::Via,
    version::{Hop, KubernetesVersion, StatedVersion},
};
use refit_predict::Unreached;
use serde_json::{Value, json};

use crate::left::PausedBy;

/// The version field of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// In a KubeadmControlPlane.
    ControlPlane,
    /// In a MachineDeployment.
    Deployment,
}

impl Field {
    /// Returns the field path for display.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::ControlPlane => "spec.version",
            Self::Deployment => "spec.template.spec.version",
        }
    }

    /// Builds the merge patch that sets the version, only if the object is unchanged since it was
    /// read.
    pub(crate) fn patch(self, resource_version: &str, to: &KubernetesVersion) -> Value {
        let to = to.to_string();
        let spec = match self {
            Self::ControlPlane => json!({"version": to}),
            Self::Deployment => json!({"template": {"spec": {"version": to}}}),
        };
        json!({"metadata": {"resourceVersion": resource_version}, "spec": spec})
    }
}

/// The facts about a group of machines that an upgrade needs.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// `Kind/name`.
    pub(crate) object: String,
    /// Name of the object.
    pub(crate) name: String,
    /// The requested version; empty if the object sets no version.
    pub(crate) version: StatedVersion,
    /// resourceVersion for the patch.
    pub(crate) resource_version: String,
    /// Whether every machine matches the spec.
    pub(crate) settled: bool,
    /// Updates in progress: machine name and phase.
    pub(crate) under_way: Vec<(String, String)>,
    /// Paths of an earlier change that no updater covers.
    pub(crate) uncovered: Option<String>,
    /// Kubelet versions of the machines.
    pub(crate) kubelets: Vec<StatedVersion>,
    /// Whether a topology's controller writes the object.
    pub(crate) managed: bool,
    /// Whether Cluster API calls Refit for this group.
    pub(crate) reach: Result<(), Unreached>,
    /// What of Refit has paused the owner.
    pub(crate) paused_by: Option<PausedBy>,
    /// Whether the Deployments of Cluster API show its feature gates: a task with via Spec needs them.
    pub(crate) shows_gates: bool,
}

/// The objects to upgrade, and those that they must be compatible with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Name of the Cluster.
    pub(crate) cluster: String,
    /// The version of the Cluster's topology, if the target is a Cluster that has one.
    pub(crate) topology: Option<StatedVersion>,
    /// The control plane: to be upgraded, or checked for compatibility with the workers.
    pub(crate) control_plane: Option<Group>,
    /// The MachineDeployments: to be upgraded, or checked for compatibility with the control plane.
    pub(crate) deployments: Vec<Group>,
    /// Whether the control plane is part of the target.
    pub(crate) with_control_plane: bool,
    /// Whether the MachineDeployments are part of the target.
    pub(crate) with_deployments: bool,
}

/// A version to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    /// The field to write.
    pub(crate) field: Field,
    /// `Kind/name`.
    pub(crate) object: String,
    /// Name of the object.
    pub(crate) name: String,
    /// The current version.
    pub(crate) from: StatedVersion,
    /// resourceVersion for the patch.
    pub(crate) resource_version: String,
}

impl Write {
    /// The write as text.
    pub(crate) fn line(&self, to: &KubernetesVersion) -> String {
        format!("{}: {} {} -> {to}", self.object, self.field.path(), self.from)
    }
}

/// What brings a group to a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Write this version: Cluster API calls Refit.
    Write(Write),
    /// A task works through the machines, for this reason.
    Task(String),
    /// The group requests the version already.
    Asked,
}

/// What brings a cluster to a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    /// A task. `why` is the reason if it does not leave the machines to Cluster API.
    Task { via: Via, why: Option<String> },
    /// Every group requests the version already.
    Asked,
}

/// Why an upgrade is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The object has no valid version to compare.
    NoVersion { object: String, version: StatedVersion },
    /// kubeadm does not support this upgrade.
    Hop { object: String, from: KubernetesVersion, to: KubernetesVersion, hop: Hop },
    /// The control plane would skip minor versions.
    Skips { object: String, from: KubernetesVersion, to: KubernetesVersion, cluster: Box<str> },
    /// Cluster API would not call Refit.
    Unreached(Unreached),
    /// The topology's controller would revert the change.
    Managed { object: String, cluster: String },
    /// Another upgrade is in progress.
    UnderWay { object: String, version: StatedVersion, machines: Vec<(String, String)> },
    /// An earlier change that no updater covers is waiting.
    Uncovered { object: String, paths: String },
    /// Kubelets would be newer than their API servers.
    ControlPlaneFirst { object: String, control_plane: String, version: KubernetesVersion },
    /// Kubelets would be too old for their API servers.
    WorkersFirst { object: String, why: String },
    /// Some machines run the new version already.
    Mixed { object: String, asked: KubernetesVersion },
    /// No machine reports what it runs, so the version before is not known.
    PreviousUnknown { object: String },
    /// A task for a whole Cluster needs a KubeadmControlPlane.
    OtherControlPlane { cluster: String },
    /// The target has no object that Refit upgrades.
    Nothing,
}

/// Decides what brings a control plane or a MachineDeployment to `to`.
pub(crate) fn next(facts: &Facts, to: &KubernetesVersion) -> Result<Next, Refusal> {
    let control_plane = facts.control_plane.as_ref();
    let plane = control_plane.filter(|_| facts.with_control_plane);
    let workers = facts.deployments.first().filter(|_| facts.with_deployments);
    let (group, field) = match (plane, workers) {
        (Some(plane), _) => (plane, Field::ControlPlane),
        (None, Some(workers)) => (workers, Field::Deployment),
        (None, None) => return Err(Refusal::Nothing),
    };
    if group.managed {
        let (object, cluster) = (group.object.clone(), facts.cluster.clone());
        return Err(Refusal::Managed { object, cluster });
    }
    if group.version.is(to) {
        return Ok(group.left_paused().map_or(Next::Asked, Next::Task));
    }
    if !group.all_run(to) {
        may_hop(&facts.cluster, group, field == Field::Deployment, to)?;
    }
    let why = why_task(group)?;
    is_idle(group, to)?;
    match (field, control_plane) {
        (Field::ControlPlane, _) => workers_fit(&facts.deployments, to)?,
        (Field::Deployment, Some(plane)) => control_plane_is_there(plane, group, to)?,
        (Field::Deployment, None) => {}
    }
    Ok(why.map_or_else(|| Next::Write(group.write(field)), Next::Task))
}

/// Decides how a task brings a whole cluster to `to`. It takes the minor versions on the way.
pub(crate) fn whole(facts: &Facts, to: &KubernetesVersion) -> Result<Whole, Refusal> {
    if facts.control_plane.is_none() {
        let cluster = facts.cluster.clone();
        let is_empty = facts.deployments.is_empty();
        return Err(if is_empty {
            Refusal::Nothing
        } else {
            Refusal::OtherControlPlane { cluster }
        });
    }
    if let Some(from) = facts.topology.as_ref().and_then(StatedVersion::version)
        && matches!(from.hop_to(to), Hop::Downgrade | Hop::OtherMajor)
    {
        let object = format!("Cluster/{}", facts.cluster);
        return Err(Refusal::Hop {
            object,
            from: from.clone(),
            to: to.clone(),
            hop: from.hop_to(to),
        });
    }
    let groups = || facts.control_plane.iter().chain(&facts.deployments);
    let is_asked_of_topology = facts.topology.as_ref().is_none_or(|version| version.is(to));
    let left_paused = groups().find_map(Group::left_paused);
    if is_asked_of_topology && left_paused.is_none() && groups().all(|group| group.version.is(to)) {
        return Ok(Whole::Asked);
    }
    let mut why = left_paused;
    for group in groups().filter(|group| !group.version.is(to)) {
        may_hop(&facts.cluster, group, true, to)?;
        let of_group = why_task(group)?;
        is_idle(group, to)?;
        why = why.or(of_group).or_else(|| group.hides_gates());
    }
    let via = if why.is_some() { Via::Machines } else { Via::Spec };
    Ok(Whole::Task { via, why })
}

/// Checks that a group may go to a version; `skips` if minor versions may lie in between. Workers may skip them, and a
/// task for a cluster takes them on the way.
fn may_hop(
    cluster: &str,
    group: &Group,
    skips: bool,
    to: &KubernetesVersion,
) -> Result<(), Refusal> {
    let Some(from) = group.version.version() else {
        let (object, version) = (group.object.clone(), group.version.clone());
        return Err(Refusal::NoVersion { object, version });
    };
    let hop = from.hop_to(to);
    match hop {
        Hop::Same | Hop::Patch | Hop::Minor => Ok(()),
        Hop::TooFar { .. } if skips => Ok(()),
        Hop::TooFar { .. } => Err(Refusal::Skips {
            object: group.object.clone(),
            from: from.clone(),
            to: to.clone(),
            cluster: cluster.into(),
        }),
        Hop::OtherMajor | Hop::Downgrade => Err(Refusal::Hop {
            object: group.object.clone(),
            from: from.clone(),
            to: to.clone(),
            hop,
        }),
    }
}

/// Returns why a task has to work through the machines of a group. What Refit cannot do either is a refusal.
fn why_task(group: &Group) -> Result<Option<String>, Refusal> {
    match &group.reach {
        Ok(()) => Ok(group.left_paused()),
        Err(why) if why.is_for_task() => {
            Ok(Some(format!("Cluster API would replace machines because {why}")))
        }
        Err(why) => Err(Refusal::Unreached(why.clone())),
    }
}

/// Checks that no update of a group is in progress, and that no earlier change of it waits.
fn is_idle(group: &Group, to: &KubernetesVersion) -> Result<(), Refusal> {
    if !group.under_way.is_empty() {
        return Err(Refusal::UnderWay {
            object: group.object.clone(),
            version: group.version.clone(),
            machines: group.under_way.clone(),
        });
    }
    if let Some(paths) = group.uncovered.as_ref().filter(|paths| !undoes(paths, to)) {
        return Err(Refusal::Uncovered { object: group.object.clone(), paths: paths.clone() });
    }
    Ok(())
}

/// Whether version `to` undoes every uncovered path.
fn undoes(paths: &str, to: &KubernetesVersion) -> bool {
    let undone = format!("version: \"{to}\" -> ");
    paths.split("; ").all(|path| path.contains(&undone))
}

/// Checks that the kubelets of all workers are compatible with an API server of version `to`.
fn workers_fit(deployments: &[Group], to: &KubernetesVersion) -> Result<(), Refusal> {
    for group in deployments {
        // The upgrade does not worsen the skew of a kubelet that is newer than the API server.
        let kubelets = group.kubelets.iter().filter_map(StatedVersion::version);
        for kubelet in kubelets.filter(|kubelet| *kubelet <= to) {
            kubelet.check_kubelet_of(to).map_err(|error| Refusal::WorkersFirst {
                object: group.object.clone(),
                why: error.to_string(),
            })?;
        }
    }
    Ok(())
}

/// Checks that the control plane runs a version that supports workers of version `to`.
fn control_plane_is_there(
    group: &Group,
    workers: &Group,
    to: &KubernetesVersion,
) -> Result<(), Refusal> {
    let lowest = group.kubelets.iter().filter_map(StatedVersion::version).min();
    let spec = group.version.version();
    let behind = [lowest, spec].into_iter().flatten().any(|version| version.minor_below(to));
    let busy = group.version.is(to) && !group.settled;
    if behind || busy {
        return Err(Refusal::ControlPlaneFirst {
            object: workers.object.clone(),
            control_plane: group.object.clone(),
            version: lowest.or(spec).unwrap_or(to).clone(),
        });
    }
    Ok(())
}

impl Group {
    /// Whether every machine runs the version: a request for another one can be withdrawn.
    fn all_run(&self, version: &KubernetesVersion) -> bool {
        !self.kubelets.is_empty() && self.kubelets.iter().all(|kubelet| kubelet.is(version))
    }

    /// Why a task is needed to go on with the owner: Refit has paused it.
    fn left_paused(&self) -> Option<String> {
        Some(match self.paused_by.as_ref()? {
            PausedBy::Task(task) => format!("UpgradeTask/{task} has paused {}", self.object),
            PausedBy::Hold => {
                format!("Refit has paused {}, whose only machine would be replaced", self.object)
            }
        })
    }

    /// Why a task with via Spec cannot know whether Cluster API calls Refit; `None` if it can.
    fn hides_gates(&self) -> Option<String> {
        (!self.shows_gates).then(|| {
            "no Deployment of Cluster API (label cluster.x-k8s.io/provider) shows whether its feature gates are on"
                .to_owned()
        })
    }

    /// The version to return to, if the group asks for a newer one that no machine runs yet.
    pub(crate) fn version_before(&self) -> Result<Option<KubernetesVersion>, Refusal> {
        let Some(asked) = self.version.version() else {
            return Ok(None);
        };
        let Some(runs) = self.kubelets.iter().filter_map(StatedVersion::version).min() else {
            return Err(Refusal::PreviousUnknown { object: self.object.clone() });
        };
        if asked.hop_to(runs) != Hop::Downgrade {
            return Ok(None);
        }
        if self.all_run(runs) {
            return Ok(Some(runs.clone()));
        }
        Err(Refusal::Mixed { object: self.object.clone(), asked: asked.clone() })
    }

    fn write(&self, field: Field) -> Write {
        Write {
            field,
            object: self.object.clone(),
            name: self.name.clone(),
            from: self.version.clone(),
            resource_version: self.resource_version.clone(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVersion { object, version } if version.is_absent() => write!(
                f,
                "{object} specifies no version, so its current version is unknown; first set the \
                 version that its machines run"
            ),
            Self::NoVersion { object, version } => write!(
                f,
                "{object} has an invalid version {:?}, expected vX.Y.Z",
                version.to_string()
            ),
            Self::Hop { object, from, to, hop } => f.write_str(&no_way(object, from, to, *hop)),
            Self::Skips { object, from, to, cluster } => write!(
                f,
                "{object} is at {from}, and kubeadm does not skip minor versions on the way to {to}: `refit upgrade \
                 cluster/{cluster} --to {to}` takes them one after another; or upgrade to {} first",
                from.next_minor_zero()
            ),
            Self::Unreached(why) if why.replaces() => {
                write!(f, "{why}. Cluster API would replace the machines")
            }
            Self::Unreached(why) => write!(f, "{why}"),
            Self::Managed { object, cluster } => write!(
                f,
                "{object} belongs to a Cluster with a topology, which sets its version: upgrade \
                 cluster/{cluster} instead"
            ),
            Self::UnderWay { object, version, machines } => {
                let list: Vec<String> = machines
                    .iter()
                    .map(|(machine, phase)| format!("{machine} is {phase}"))
                    .collect();
                write!(
                    f,
                    "{object} is being upgraded to {version}: {}. `refit watch {object}` shows \
                     the progress; try again when it has finished",
                    list.join(", ")
                )
            }
            Self::Uncovered { object, paths } => write!(
                f,
                "an earlier change of {object} is not covered by any updater and would be applied \
                 too: {paths}. Revert it first"
            ),
            Self::ControlPlaneFirst { object, control_plane, version } => write!(
                f,
                "the control plane goes first: {control_plane} runs {version}, and kubelets of {object} \
                 would be newer than their API servers. Upgrade {control_plane} (or its cluster) first"
            ),
            Self::WorkersFirst { object, why } => write!(
                f,
                "upgrade the workers of {object} first: {why}. Upgrade {object} to the control plane's \
                 version"
            ),
            Self::Mixed { object, asked } => write!(
                f,
                "some machines of {object} run {asked} already, and kubeadm does not downgrade: \
                 `refit retry {object}` completes the upgrade; to keep the other machines as they \
                 are, pause {object} (annotation cluster.x-k8s.io/paused)"
            ),
            Self::PreviousUnknown { object } => write!(
                f,
                "no machine of {object} reports the version of its kubelet, so the previous version is not \
                 known: set it yourself, or `refit retry {object}` completes the upgrade"
            ),
            Self::OtherControlPlane { cluster } => write!(
                f,
                "the control plane of Cluster/{cluster} is not a KubeadmControlPlane: upgrade each \
                 MachineDeployment (md/NAME)"
            ),
            Self::Nothing => f.write_str(
                "no KubeadmControlPlane or MachineDeployment found that Refit can upgrade",
            ),
        }
    }
}

/// Explains why kubeadm does not support the upgrade.
fn no_way(object: &str, from: &KubernetesVersion, to: &KubernetesVersion, hop: Hop) -> String {
    match hop {
        Hop::OtherMajor => format!("{object} is at {from}: {to} is another major version"),
        Hop::Same | Hop::Patch | Hop::Minor | Hop::TooFar { .. } | Hop::Downgrade => format!(
            "{object} already requests {from}, and kubeadm does not downgrade to {to}. To give up \
             an upgrade in progress: `refit abort {object} --revert`"
        ),
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
