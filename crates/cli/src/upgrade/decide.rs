//! Decides what to write to bring a group or cluster to a version, and whether it is allowed. Pure.

use std::fmt;

use refit_kinds::version::{Hop, KubernetesVersion, StatedVersion};
use refit_predict::Unreached;
use serde_json::{Value, json};

/// The version field of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// In a KubeadmControlPlane.
    ControlPlane,
    /// In a MachineDeployment.
    Deployment,
    /// In the topology of a Cluster.
    Topology,
}

impl Field {
    /// Returns the field path for display.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::ControlPlane => "spec.version",
            Self::Deployment => "spec.template.spec.version",
            Self::Topology => "spec.topology.version",
        }
    }

    /// Builds the merge patch that sets the version, only if the object is unchanged since it was
    /// read.
    pub(crate) fn patch(self, resource_version: &str, to: &KubernetesVersion) -> Value {
        let to = to.to_string();
        let spec = match self {
            Self::ControlPlane => json!({"version": to}),
            Self::Deployment => json!({"template": {"spec": {"version": to}}}),
            Self::Topology => json!({"topology": {"version": to}}),
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
}

/// The version of a Cluster with a topology.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    /// `Cluster/name`.
    pub(crate) object: String,
    /// Name of the Cluster.
    pub(crate) name: String,
    /// The requested version.
    pub(crate) version: StatedVersion,
    /// resourceVersion for the patch.
    pub(crate) resource_version: String,
}

/// The objects to upgrade, and those that they must be compatible with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The Cluster's topology, if the target is a Cluster that has one.
    pub(crate) topology: Option<Topology>,
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

/// The next step of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Write these versions.
    Write(Vec<Write>),
    /// Wait until the control plane is done, then decide again.
    AwaitControlPlane,
    /// Every object requests the version already.
    Asked,
}

/// Why an upgrade is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The object has no valid version to compare.
    NoVersion { object: String, version: StatedVersion },
    /// kubeadm does not support this upgrade.
    Hop { object: String, from: KubernetesVersion, to: KubernetesVersion, hop: Hop },
    /// Cluster API would not call Refit.
    Unreached(Unreached),
    /// The topology's controller would revert the change.
    Managed { object: String },
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
    /// The target has no object that Refit upgrades.
    Nothing,
}

/// Returns the next step to bring the target to `to`; call it again after each step.
pub(crate) fn next(facts: &Facts, to: &KubernetesVersion) -> Result<Next, Refusal> {
    let control_plane = facts.control_plane.as_ref();
    let mut writes = Vec::new();
    if facts.with_control_plane
        && let Some(group) = control_plane
    {
        if facts.topology.is_none() {
            unmanaged(group)?;
        }
        if !group.version.is(to) {
            may_change(group, to)?;
            workers_fit(&facts.deployments, to)?;
            writes.push(group.write(Field::ControlPlane));
        }
    }
    let mut workers = Vec::new();
    if facts.with_deployments {
        for group in &facts.deployments {
            if facts.topology.is_none() {
                unmanaged(group)?;
            }
            if !group.version.is(to) {
                may_change(group, to)?;
                workers.push(group.write(Field::Deployment));
            }
        }
    }
    if let Some(topology) = &facts.topology {
        return by_topology(topology, to);
    }
    let has_control_plane = facts.with_control_plane && control_plane.is_some();
    let has_deployments = facts.with_deployments && !facts.deployments.is_empty();
    if !has_control_plane && !has_deployments {
        return Err(Refusal::Nothing);
    }
    if !writes.is_empty() {
        return Ok(Next::Write(writes));
    }
    if workers.is_empty() {
        return Ok(Next::Asked);
    }
    if let Some(group) = control_plane
        && let Err(refusal) = control_plane_is_there(group, &workers, to)
    {
        // The control plane has the version in its spec already; it only needs more time.
        return if facts.with_control_plane { Ok(Next::AwaitControlPlane) } else { Err(refusal) };
    }
    Ok(Next::Write(workers))
}

fn by_topology(topology: &Topology, to: &KubernetesVersion) -> Result<Next, Refusal> {
    if topology.version.is(to) {
        return Ok(Next::Asked);
    }
    hop(&topology.object, &topology.version, to)?;
    Ok(Next::Write(vec![Write {
        field: Field::Topology,
        object: topology.object.clone(),
        name: topology.name.clone(),
        from: topology.version.clone(),
        resource_version: topology.resource_version.clone(),
    }]))
}

fn unmanaged(group: &Group) -> Result<(), Refusal> {
    if group.managed {
        return Err(Refusal::Managed { object: group.object.clone() });
    }
    Ok(())
}

/// Checks that another version may be written to a group.
fn may_change(group: &Group, to: &KubernetesVersion) -> Result<(), Refusal> {
    if !group.all_run(to) {
        hop(&group.object, &group.version, to)?;
    }
    group.reach.clone().map_err(Refusal::Unreached)?;
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

fn hop(object: &str, version: &StatedVersion, to: &KubernetesVersion) -> Result<(), Refusal> {
    let Some(from) = version.version() else {
        return Err(Refusal::NoVersion { object: object.to_owned(), version: version.clone() });
    };
    let hop = from.hop_to(to);
    if hop.is_upgrade() {
        return Ok(());
    }
    Err(Refusal::Hop { object: object.to_owned(), from: from.clone(), to: to.clone(), hop })
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
    workers: &[Write],
    to: &KubernetesVersion,
) -> Result<(), Refusal> {
    let lowest = group.kubelets.iter().filter_map(StatedVersion::version).min();
    let spec = group.version.version();
    let behind = [lowest, spec].into_iter().flatten().any(|version| version.minor_below(to));
    let busy = group.version.is(to) && !group.settled;
    if behind || busy {
        return Err(Refusal::ControlPlaneFirst {
            object: workers.first().map(|w| w.object.clone()).unwrap_or_default(),
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
            Self::Unreached(why) if why.replaces() => {
                write!(f, "{why}. Cluster API would replace the machines")
            }
            Self::Unreached(why) => write!(f, "{why}"),
            Self::Managed { object } => write!(
                f,
                "{object} belongs to a Cluster with a topology, which sets its version: upgrade \
                 cluster/NAME instead"
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
            Self::Nothing => f.write_str(
                "no KubeadmControlPlane or MachineDeployment found that Refit can upgrade",
            ),
        }
    }
}

/// Explains why kubeadm does not support the upgrade.
fn no_way(object: &str, from: &KubernetesVersion, to: &KubernetesVersion, hop: Hop) -> String {
    match hop {
        Hop::TooFar { .. } => format!(
            "{object} is at {from}, and kubeadm does not skip minor versions on the way to {to}: \
             upgrade to {} first",
            from.next_minor_zero()
        ),
        Hop::OtherMajor => format!("{object} is at {from}: {to} is another major version"),
        Hop::Same | Hop::Patch | Hop::Minor | Hop::Downgrade => format!(
            "{object} already requests {from}, and kubeadm does not downgrade to {to}. To give up \
             an upgrade in progress: `refit abort {object} --revert`"
        ),
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
