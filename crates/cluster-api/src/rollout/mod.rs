//! Cluster API's own rollout decisions, as pure functions.
//!
//! | module | decides |
//! |---|---|
//! | [`find`] | which MachineSet is the current one, and why a new one is needed |
//! | [`intent`] | the desired state of each MachineSet of a MachineDeployment |
//! | [`machine_set`] | how a MachineSet reaches it: create, move, delete, complete a move |
//! | [`difference`] | the differences between a control plane Machine and its control plane |
//! | [`control_plane`] | the next step of a KubeadmControlPlane, and for which machine |
//! | [`remediation`] | which unhealthy machine a KubeadmControlPlane replaces |
//! | [`simulate`] | the outcome for each machine of a MachineDeployment, from its current state |
//! | [`predict`] | how many machines a whole rollout keeps, and how many it replaces |
//!
//! The behaviour is that of Cluster API v1.12 to v1.14 (`docs/facts/control-plane.md` and
//! `docs/facts/machine-deployment.md`); upstream's rollout logs are replayed byte for byte by
//! `tests/rollout_goldens`.
//!
//! ```
//! use refit_cluster_api::{IntOrPercent, rollout::{Strategy, predict}};
//!
//! // Cluster API's default (surge 1, unavailable 0) replaces one machine of five.
//! let default = Strategy::rolling_update(IntOrPercent::Int(1), IntOrPercent::Int(0));
//! assert_eq!(predict::machine_deployment(5, &default).replaced, 1);
//! // Without surge every machine stays.
//! let in_place = Strategy::rolling_update(IntOrPercent::Int(0), IntOrPercent::Int(1));
//! assert_eq!(predict::machine_deployment(5, &in_place).kept, 5);
//! ```

pub mod control_plane;
pub mod difference;
pub mod find;
pub mod intent;
pub mod keys;
pub mod machine_set;
mod on_delete;
pub mod predict;
mod read;
pub mod remediation;
mod rolling_update;
pub mod simulate;
mod types;

pub use find::{NewAndOld, OldMachineSet, UpToDate, find_new_and_old, template_up_to_date};
pub use intent::{
    Decisions, IntentInput, MachineSetIntent, NewMachineSet, Note, Role, RolloutIntent, intend,
    intend_paused, intend_unmoved,
};
pub use read::failure_domains;
pub use types::{Fenceposts, Machine, MachineDeployment, MachineSet, Strategy, Template};
