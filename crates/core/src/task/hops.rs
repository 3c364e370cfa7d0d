//! The order in which a task for a whole Cluster brings its groups to a version: the control plane minor by
//! minor, workers once where the version skew allows it, or at each minor where a topology leads.

use refit_kinds::{
    refit::GroupOwner,
    version::{KUBELET_MAX_MINORS_BEHIND, KubernetesVersion},
};

/// A group and the lowest version of its Machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupVersion {
    /// The owner.
    pub owner: GroupOwner,
    /// The lowest version of its Machines, and of what its owner requests.
    pub version: KubernetesVersion,
}

/// One group's way to one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopTo {
    /// The owner of the group.
    pub owner: GroupOwner,
    /// The version.
    pub version: KubernetesVersion,
}

/// Why a Cluster cannot be brought to a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HopError {
    /// The target is older.
    #[error("{owner} runs {runs}: Kubernetes cannot go back to {target}")]
    Downgrade {
        /// Kind and name of the owner.
        owner: String,
        /// What it runs.
        runs: KubernetesVersion,
        /// The target.
        target: KubernetesVersion,
    },
    /// The target has another major version.
    #[error("{owner} runs {runs}: {target} has another major version")]
    OtherMajor {
        /// Kind and name of the owner.
        owner: String,
        /// What it runs.
        runs: KubernetesVersion,
        /// The target.
        target: KubernetesVersion,
    },
}

/// Who brings the groups of a Cluster to the version of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// Each group's own task: one group at a time, workers only where the version skew requires it or at the end.
    Groups,
    /// The Cluster's topology: it asks all groups for each version, and takes no next one before they have it.
    Topology,
}

/// The next hop to the target: the groups that it brings to a version, none if all have reached the target. `named`
/// are the versions to take for minors on the way; another minor is taken at `.0`.
pub(super) fn next_hops(
    control_plane: &GroupVersion,
    workers: &[GroupVersion],
    (target, named): (&KubernetesVersion, &[KubernetesVersion]),
    lead: Lead,
) -> Result<Vec<HopTo>, HopError> {
    workers.iter().chain([control_plane]).try_for_each(|group| check(group, target))?;
    let at = &control_plane.version;
    let behind: Vec<&GroupVersion> = workers.iter().filter(|group| group.version < *at).collect();
    let next =
        if at.minor() == target.minor() { target.clone() } else { on_the_way(at, target, named) };
    let to = |group: &GroupVersion, version: &KubernetesVersion| HopTo {
        owner: group.owner.clone(),
        version: version.clone(),
    };
    match lead {
        Lead::Topology if !behind.is_empty() => {
            Ok(behind.into_iter().map(|group| to(group, at)).collect())
        }
        Lead::Topology if at == target => Ok(Vec::new()),
        Lead::Topology => {
            Ok([control_plane].into_iter().chain(workers).map(|group| to(group, &next)).collect())
        }
        Lead::Groups if at == target => {
            Ok(behind.first().map(|group| to(group, target)).into_iter().collect())
        }
        Lead::Groups => {
            // Kubelets may be some minors older than their API server: workers that would be older go first.
            let oldest = next.minor().saturating_sub(KUBELET_MAX_MINORS_BEHIND);
            let too_old = behind.iter().find(|group| group.version.minor() < oldest);
            Ok(vec![too_old.map_or_else(|| to(control_plane, &next), |group| to(group, at))])
        }
    }
}

/// Why groups cannot be brought to a version; `None` if they can.
pub fn unreachable(groups: &[GroupVersion], target: &KubernetesVersion) -> Option<String> {
    groups.iter().find_map(|group| check(group, target).err()).map(|error| error.to_string())
}

fn check(group: &GroupVersion, target: &KubernetesVersion) -> Result<(), HopError> {
    let (owner, runs) = (name_of(&group.owner), group.version.clone());
    if runs.major() != target.major() {
        return Err(HopError::OtherMajor { owner, runs, target: target.clone() });
    }
    if runs > *target {
        return Err(HopError::Downgrade { owner, runs, target: target.clone() });
    }
    Ok(())
}

/// The version of the next minor.
fn on_the_way(
    at: &KubernetesVersion,
    target: &KubernetesVersion,
    named: &[KubernetesVersion],
) -> KubernetesVersion {
    let minor = at.minor() + 1;
    if minor == target.minor() {
        return target.clone();
    }
    let of_minor =
        |version: &&KubernetesVersion| (version.major(), version.minor()) == (at.major(), minor);
    let first = || KubernetesVersion::new(at.major(), minor, 0);
    named.iter().find(of_minor).cloned().unwrap_or_else(first)
}

/// Kind and name of an owner.
pub(super) fn name_of(owner: &GroupOwner) -> String {
    format!("{} {}", owner.kind, owner.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> KubernetesVersion {
        text.parse().unwrap()
    }

    fn group(name: &str, at: &str) -> GroupVersion {
        let owner = GroupOwner { name: name.into(), ..GroupOwner::default() };
        GroupVersion { owner, version: version(at) }
    }

    fn hops(control_plane: GroupVersion, workers: Vec<GroupVersion>, target: &str) -> Vec<String> {
        hops_of(Lead::Groups, control_plane, workers, target)
    }

    /// All hops, as `group version`; those of one hop together.
    fn hops_of(
        lead: Lead,
        mut control_plane: GroupVersion,
        mut workers: Vec<GroupVersion>,
        target: &str,
    ) -> Vec<String> {
        let named = [version("v1.33.7"), version("v1.34.5")];
        let mut found = Vec::new();
        loop {
            let target = version(target);
            let hops = next_hops(&control_plane, &workers, (&target, &named), lead).unwrap();
            if hops.is_empty() {
                return found;
            }
            let shown = hops.iter().map(|hop| format!("{} {}", hop.owner.name, hop.version));
            found.push(shown.collect::<Vec<_>>().join(", "));
            for hop in hops {
                let all = workers.iter_mut().chain([&mut control_plane]);
                let group = all.into_iter().find(|group| group.owner == hop.owner).unwrap();
                assert!(group.version < hop.version, "each hop brings its groups further");
                group.version = hop.version;
            }
        }
    }

    #[test]
    fn a_topology_brings_all_groups_to_each_minor() {
        let workers = vec![group("a", "v1.32.1"), group("b", "v1.31.0")];
        let found = hops_of(Lead::Topology, group("cp", "v1.32.1"), workers, "v1.34.9");
        assert_eq!(
            found,
            ["b v1.32.1", "cp v1.33.7, a v1.33.7, b v1.33.7", "cp v1.34.9, a v1.34.9, b v1.34.9"]
        );
    }

    #[test]
    fn the_control_plane_goes_first_and_workers_follow_in_order() {
        let workers = vec![group("a", "v1.34.2"), group("b", "v1.34.2")];
        let found = hops(group("cp", "v1.34.2"), workers, "v1.35.0");
        assert_eq!(found, ["cp v1.35.0", "a v1.35.0", "b v1.35.0"]);
    }

    #[test]
    fn workers_make_one_hop_where_the_skew_allows_it() {
        let found = hops(group("cp", "v1.32.1"), vec![group("a", "v1.32.1")], "v1.35.2");
        assert_eq!(found, ["cp v1.33.7", "cp v1.34.5", "cp v1.35.2", "a v1.35.2"]);
    }

    #[test]
    fn workers_that_would_be_too_old_go_to_the_version_of_the_control_plane() {
        let found = hops(group("cp", "v1.32.1"), vec![group("a", "v1.30.4")], "v1.35.2");
        assert_eq!(found, ["cp v1.33.7", "a v1.33.7", "cp v1.34.5", "cp v1.35.2", "a v1.35.2"]);
    }

    #[test]
    fn a_minor_that_is_not_named_is_taken_at_its_first_release() {
        let found = hops(group("cp", "v1.30.1"), vec![], "v1.32.2");
        assert_eq!(found, ["cp v1.31.0", "cp v1.32.2"]);
    }

    #[test]
    fn a_group_with_a_newer_version_gets_no_hop() {
        let plane = group("cp", "v1.35.0");
        let hops = |target| next_hops(&plane, &[], (&version(target), &[]), Lead::Groups);
        let error = hops("v1.34.0");
        assert!(matches!(error, Err(HopError::Downgrade { .. })));
        let error = hops("v2.0.0");
        assert!(matches!(error, Err(HopError::OtherMajor { .. })));
    }
}
