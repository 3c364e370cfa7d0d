//! Refit's kinds, `refit.dev/v1alpha1`.

mod applied_settings;
mod change_args;
mod cluster_upgrade;
mod cluster_upgrade_plan;
mod configuration_part;
mod extra_capacity;
mod gates;
mod goal;
mod host_args;
mod host_plan;
mod host_settings;
mod host_step;
mod ids;
mod node_disruption_policy;
mod node_update;
mod notifications;
mod os_packages;
mod pacing;
mod planned_step;
mod provider;
mod renewal;
mod replacement_hold;
mod silences;
mod update_group;
mod update_part;
mod updater;
mod upgrade_task;
mod windows;

pub use applied_settings::*;
pub use change_args::*;
use cluster_upgrade::default_start_within;
pub use cluster_upgrade::*;
pub use cluster_upgrade_plan::*;
pub use configuration_part::*;
pub use extra_capacity::*;
pub use gates::*;
pub use goal::*;
pub use host_args::*;
pub use host_plan::*;
pub use host_settings::*;
pub use host_step::*;
pub use ids::*;
pub use node_disruption_policy::*;
pub use node_update::*;
pub use notifications::*;
pub use os_packages::*;
pub use pacing::*;
pub use planned_step::*;
pub use provider::*;
pub use renewal::*;
pub use replacement_hold::*;
pub use silences::*;
pub use update_group::*;
pub use update_part::*;
pub use updater::*;
pub use upgrade_task::*;
pub use windows::*;

/// API group of Refit's kinds.
pub const GROUP: &str = "refit.dev";
/// API version of Refit's kinds.
pub const VERSION: &str = "v1alpha1";
