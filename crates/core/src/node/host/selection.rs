//! Which of the objects that select owners applies to a machine.
//!
//! | `spec.appliesTo` | is used |
//! |---|---|
//! | `owners` names the machine's owner | first |
//! | `clusters` names its Cluster | if no object names the owner |
//! | `all` | if no object names either |
//!
//! The object is used as a whole: objects are not merged. Two objects of one row are refused,
//! because any choice between them would be a guess about what runs as root.

use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt;
use refit_kinds::refit::{AppliesTo, GroupOwner, HostSettings, NodeDisruptionPolicy};

/// How specific a selection of owners is, from the most specific on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Specificity {
    /// It names the owner.
    Owner,
    /// It names the owner's Cluster.
    Cluster,
    /// It selects every owner of the namespace.
    All,
}

impl Specificity {
    /// What a selection of this kind names, as part of a sentence.
    pub(crate) fn phrase(self) -> &'static str {
        match self {
            Self::Owner => "this owner by its name",
            Self::Cluster => "its Cluster",
            Self::All => "all owners of the namespace",
        }
    }

    /// How a selection selects an owner; `None` if it does not.
    fn of(selection: &AppliesTo, owner: &GroupOwner, cluster: &str) -> Option<Self> {
        match selection {
            AppliesTo::Owners(owners) => owners
                .iter()
                .any(|named| named.kind.kind() == owner.kind && named.name == owner.name)
                .then_some(Self::Owner),
            AppliesTo::Clusters(names) => {
                names.iter().any(|name| name == cluster).then_some(Self::Cluster)
            }
            AppliesTo::All {} => Some(Self::All),
        }
    }
}

/// A kind whose objects select owners.
pub(crate) trait SelectsOwners: ResourceExt {
    /// The owners.
    fn applies_to(&self) -> &AppliesTo;
}

impl SelectsOwners for HostSettings {
    fn applies_to(&self) -> &AppliesTo {
        &self.spec.applies_to
    }
}

impl SelectsOwners for NodeDisruptionPolicy {
    fn applies_to(&self) -> &AppliesTo {
        &self.spec.applies_to
    }
}

/// The objects of one kind that may apply to a machine.
#[derive(Debug)]
pub(crate) struct Candidates<'a, K> {
    /// Every object of the machine's namespace.
    pub objects: &'a [Arc<K>],
    /// Names of the objects of the namespace that cannot be read, with the reason.
    pub unreadable: &'a BTreeMap<String, String>,
    /// The machine's owner.
    pub owner: &'a GroupOwner,
    /// Name of the machine's Cluster.
    pub cluster: &'a str,
}

/// Why no object was chosen.
#[derive(Debug)]
pub(crate) enum NotChosen {
    /// It is unknown to which owners this object applies.
    Unreadable { name: String, why: String },
    /// Two objects are equally specific.
    Conflict { names: [String; 2], owner: String, by: Specificity },
}

/// The most specific object that applies to a machine; `None` if no object applies.
///
/// # Errors
/// Two objects are equally specific, or an object cannot be read.
pub(crate) fn most_specific<'a, K: SelectsOwners>(
    candidates: &Candidates<'a, K>,
) -> Result<Option<&'a Arc<K>>, NotChosen> {
    let Candidates { objects, unreadable, owner, cluster } = *candidates;
    if let Some((name, why)) = unreadable.first_key_value() {
        return Err(NotChosen::Unreadable { name: name.clone(), why: why.clone() });
    }
    let applying = objects.iter().filter_map(|object| {
        let by = Specificity::of(object.applies_to(), owner, cluster)?;
        Some((by, object.name_any(), object))
    });
    let mut applying: Vec<_> = applying.collect();
    applying.sort_by(|(by, name, _), (other_by, other, _)| (by, name).cmp(&(other_by, other)));
    match applying.as_slice() {
        [] => Ok(None),
        [(by, one, _), (other_by, other, _), ..] if by == other_by => Err(NotChosen::Conflict {
            names: [one.clone(), other.clone()],
            owner: format!("{} {}", owner.kind, owner.name),
            by: *by,
        }),
        [(_, _, object), ..] => Ok(Some(object)),
    }
}
