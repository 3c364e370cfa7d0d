//! What differs, which updater covers it, the patches for it, and the response of each hook.
//!
//! | module | decides |
//! |---|---|
//! | [`path`], [`diff`] | which paths differ, and how a path is written |
//! | [`patch`] | the patch that makes one JSON value exactly another |
//! | [`objects`] | what Cluster API compares of a Machine or MachineSet |
//! | [`mod@cover`] | which updater claims which difference, and what remains |
//! | [`claim`] | which paths an Updater claims |
//! | [`claim_path`] | the patterns of paths in claims |
//! | [`configuration`] | the built-in updater of the configuration of hosts |
//! | [`kubeadm`] | the built-in updater: a version, and changes that follow from a version bump |
//! | [`host_part`] | what the agent on the host does for an Updater |
//! | [`mod@goal`] | the normalised desired state of a Machine |
//! | [`mod@policy`], [`mod@verdict`] | the response to CanUpdate*, and its reason |
//! | [`not_ready`] | why a response waits |
//! | [`mod@can_update`] | the verdict for a CanUpdate* request |
//! | [`provider`] | whether a provider accepts what Updaters claim of its machines |
//! | [`secrets`] | which values are secrets |
//! | [`updaters`] | whether an Updater is valid, and which apply to a machine |
//! | [`mod@verify`] | whether a machine shows what an Updater has done |
//! | [`update_machine`] | the response to UpdateMachine |

pub mod asked;
pub mod can_update;
pub mod claim;
pub mod claim_path;
pub mod configuration;
pub mod cover;
pub mod diff;
pub mod goal;
pub mod host_part;
pub mod kubeadm;
pub mod not_ready;
pub mod objects;
pub mod patch;
pub mod path;
pub mod policy;
pub mod provider;
pub mod secrets;
pub mod update_machine;
pub mod updaters;
pub mod verdict;
pub mod verify;

pub use can_update::can_update;
pub use claim::{Claim, machine_kind};
pub use claim_path::{BadClaimPath, ClaimPath};
pub use configuration::{
    ConfigurationRules, ConfigurationUpdater, PlannedConfiguration, hash_of_configuration, planned,
};
pub use cover::{
    AddedUpdater, Coverage, Difference, PartChanges, Patches, Unclaimed, Updater, cover,
};
pub use goal::goal;
pub use not_ready::NotReady;
pub use objects::{Level, Objects, Part};
pub use patch::Patch;
pub use policy::{OnUncovered, Policy, PolicyDefaults, SettingsChanges, policy};
pub use provider::{Provider, Question};
pub use verdict::{Verdict, verdict};

#[cfg(test)]
mod cover_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod update_machine_tests;
