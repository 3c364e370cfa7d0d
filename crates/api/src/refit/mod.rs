//! Our kinds, `refit.dev/v1alpha1`.

mod goal;
mod host_plan;
mod node_update;
mod update_group;

pub use goal::*;
pub use host_plan::*;
pub use node_update::*;
pub use update_group::*;

/// API group of our kinds.
pub const GROUP: &str = "refit.dev";
/// Version of our kinds.
pub const VERSION: &str = "v1alpha1";
