//! Which machine next: Cluster API's own rollout decisions, as pure functions.
//!
//! | module | decides |
//! |---|---|
//! | [`find`] | which MachineSet is the current one, and why a new one is needed |
//! | [`intent`] | what each MachineSet of a MachineDeployment should look like now |
//! | [`machine_set`] | what a MachineSet does about it: create, move, delete, complete a move |
//! | [`difference`] | what differs between a control plane Machine and its control plane |
//! | [`control_plane`] | what a KubeadmControlPlane does next, and to which machine |
//! | [`remediation`] | which unhealthy machine a KubeadmControlPlane replaces |
//! | [`simulate`] | what becomes of each machine of a MachineDeployment, from where it stands |
//! | [`predict`] | how many machines a whole rollout keeps, and how many it replaces |
//!
//! Behaviour is Cluster API v1.12 to v1.14's (`spec/capi.md` 2 and 3); upstream's rollout logs are
//! replayed byte for byte by `tests/rollout_goldens`.
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
    intend_paused,
};
pub use read::failure_domains;
pub use types::{Fenceposts, Machine, MachineDeployment, MachineSet, Strategy, Template};
