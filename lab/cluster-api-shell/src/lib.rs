//! Stands in for Cluster API's side of in-place updates if no Cluster API runs.
//!
//! MachineDeployment, MachineSet, KubeadmControlPlane, Machine, MachineHealthCheck and
//! ExtensionConfig controllers with the annotations, conditions and order of Cluster API v1.12 to
//! v1.14 (`docs/facts/hooks.md`, `docs/facts/control-plane.md`, `docs/facts/machine-deployment.md`
//! and `docs/facts/machine.md`). The sandbox, simulations and tests use them; they refuse to start
//! next to the real Cluster API.
//!
//! | module | purpose |
//! |---|---|
//! | `machine_deployment` | creates and scales MachineSets; moves Machines instead of replacing
//! them |
//! | `machine_set` | creates, deletes and moves Machines |
//! | `control_plane` | updates control plane machines, one at a time |
//! | `machine` | one Machine: state from its providers and its Node, its update, its deletion |
//! | `health_check` | marks unhealthy Machines; their owners remediate them |
//! | `extension`, `hooks` | runtime extensions: discovery and calls |
//! | [`defaults`] | the defaults of Cluster API's webhooks |
//!
//! [`refit_cluster_api::rollout`] makes the decisions; this crate collects their input and executes
//! them. Every write follows from stored state, so a restarted process continues where it stopped.

#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        clippy::type_complexity,
        clippy::unnecessary_wraps,
        reason = "plain literals are the most readable in tables"
    )
)]

mod aggregate;
mod cache;
mod conditions;
mod context;
mod contract;
mod control_plane;
pub mod defaults;
mod error;
mod extension;
mod health_check;
mod hooks;
mod intent;
mod live;
mod machine;
mod machine_deployment;
mod machine_set;
mod names;
mod real_cluster_api;
mod run;
mod snapshot;
mod templates;
mod wiring;
mod workload;
mod writes;

pub use hooks::for_hooks;
pub use real_cluster_api::RealClusterApi;
pub use run::{CapiOptions, run};
