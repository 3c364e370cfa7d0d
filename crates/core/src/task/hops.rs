//! The order in which a task for a whole Cluster brings its groups to a version: the control plane minor by
//! minor, workers once where the version skew allows it, or at each minor where a topology leads.

use refit_kinds::{
    refit::GroupOwner,
    version::{KUBELET_MAX_MINORS_BEHIND, KubernetesVersion},
};

/// A group and the versions of its Machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupVersion {
    /// The owner.
    pub owner: GroupOwner,
    /// The lowest version of its Machines, and of what its owner requests.
    pub version: KubernetesVersion,
    /// The highest one: a group that was stopped on its way there never goes to a lower one.
    pub highest: KubernetesVersion,
}

impl GroupVersion {
    /// A group whose Machines and owner have these versions; `None` without one.
    pub fn of(
        owner: GroupOwner,
        versions: impl IntoIterator<Item = KubernetesVersion>,
    ) -> Option<Self> {
        let mut versions: Vec<_> = versions.into_iter().collect();
        versions.sort();
        let (version, highest) = (versions.first()?.clone(), versions.last()?.clone());
        Some(Self { owner, version, highest })
    }
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
/// are versions to take on the way, several of one minor from the lowest on; a minor of which none is named is taken at
/// `.0`.
pub(super) fn next_hops(
    control_plane: &GroupVersion,
    workers: &[GroupVersion],
    (target, named): (&KubernetesVersion, &[KubernetesVersion]),
    lead: Lead,
) -> Result<Vec<HopTo>, HopError> {
    workers.iter().chain([control_plane]).try_for_each(|group| check(group, target))?;
    let at = &control_plane.version;
    let behind: Vec<&GroupVersion> = workers.iter().filter(|group| group.version < *at).collect();
    let next = on_the_way(at, target, named);
    let highest = &control_plane.highest;
    let is_reachable = highest <= target && highest.minor() <= at.minor() + 1;
    let next = if is_reachable { next.max(highest.clone()) } else { next };
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

/// The version after this one: the lowest that is named, if it does not skip a minor.
fn on_the_way(
    at: &KubernetesVersion,
    target: &KubernetesVersion,
    named: &[KubernetesVersion],
) -> KubernetesVersion {
    let next_minor = at.minor() + 1;
    let is_ahead = |version: &&KubernetesVersion| {
        at < *version && *version < target && version.minor() <= next_minor
    };
    named.iter().filter(is_ahead).min().cloned().unwrap_or_else(|| {
        if next_minor < target.minor() { at.next_minor_zero() } else { target.clone() }
    })
}

/// Kind and name of an owner.
pub(super) fn name_of(owner: &GroupOwner) -> String {
    format!("{} {}", owner.kind, owner.name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version(text: &str) -> KubernetesVersion {
        text.parse().unwrap()
    }

    fn group(name: &str, at: &str) -> GroupVersion {
        let owner = GroupOwner { name: name.into(), ..GroupOwner::default() };
        GroupVersion::of(owner, [version(at)]).unwrap()
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
    fn a_control_plane_that_was_stopped_on_its_way_never_goes_to_a_lower_version() {
        let owner = GroupOwner { name: "cp".into(), ..GroupOwner::default() };
        let at = |versions: [&str; 2]| GroupVersion::of(owner.clone(), versions.map(version));
        for (versions, named, expected) in [
            (["v1.34.2", "v1.35.3"], "v1.35.1", "v1.35.3"),
            (["v1.34.2", "v1.34.9"], "v1.35.1", "v1.35.1"),
            (["v1.34.2", "v1.34.2"], "v1.35.1", "v1.35.1"),
        ] {
            let way = (&version("v1.36.0"), &[version(named)][..]);
            for lead in [Lead::Groups, Lead::Topology] {
                let hops = next_hops(&at(versions).unwrap(), &[], way, lead).unwrap();
                assert_eq!(hops[0].version, version(expected), "{versions:?}");
            }
        }
    }

    #[test]
    fn a_topology_brings_all_groups_to_each_version() {
        let workers = vec![group("a", "v1.32.1"), group("b", "v1.31.0")];
        let found = hops_of(Lead::Topology, group("cp", "v1.32.1"), workers, "v1.34.9");
        assert_eq!(
            found,
            [
                "b v1.32.1",
                "cp v1.33.7, a v1.33.7, b v1.33.7",
                "cp v1.34.5, a v1.34.5, b v1.34.5",
                "cp v1.34.9, a v1.34.9, b v1.34.9"
            ]
        );
    }

    #[test]
    fn the_control_plane_goes_first_and_workers_follow_in_order() {
        let workers = vec![group("a", "v1.34.5"), group("b", "v1.34.5")];
        let found = hops(group("cp", "v1.34.5"), workers, "v1.35.0");
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
    fn all_versions_on_the_way_that_are_named_are_taken_in_their_order() {
        let named = ["v1.35.2", "v1.34.9", "v1.33.1", "v1.35.4", "v1.37.0"].map(version);
        let next = |at| {
            let plane = group("cp", at);
            let hops = next_hops(&plane, &[], (&version("v1.35.9"), &named), Lead::Groups).unwrap();
            hops[0].version.to_string()
        };
        assert_eq!(next("v1.34.2"), "v1.34.9", "a patch before the next minor");
        assert_eq!(next("v1.34.9"), "v1.35.2");
        assert_eq!(next("v1.35.2"), "v1.35.4", "a patch before the target");
        assert_eq!(next("v1.35.4"), "v1.35.9");
        assert_eq!(next("v1.31.0"), "v1.32.0", "no minor is skipped");
    }

    proptest! {
        /// Each number is a step of so many patches; 0 is the next minor.
        #[test]
        fn a_way_that_skips_no_minor_is_taken_as_it_is_named(
            steps in prop::collection::vec(0_u64..4, 1..12)
        ) {
            let mut way = vec![version("v1.30.5")];
            for step in steps {
                let last = way.last().expect("it has a first version");
                way.push(match step {
                    0 => last.next_minor_zero(),
                    patches => KubernetesVersion::new(1, last.minor(), last.patch() + patches),
                });
            }
            let (target, named) = way[1..].split_last().expect("it has a step");
            let mut plane = group("cp", "v1.30.5");
            let mut taken = vec![plane.version.clone()];
            while let [hop] = &next_hops(&plane, &[], (target, named), Lead::Groups).unwrap()[..] {
                plane.version = hop.version.clone();
                taken.push(hop.version.clone());
            }
            prop_assert_eq!(taken, way);
        }
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
