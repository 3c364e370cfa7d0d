//! Cluster API's own side of in-place updates, where no Cluster API runs.
//!
//! MachineDeployment, MachineSet, KubeadmControlPlane, Machine, MachineHealthCheck and
//! ExtensionConfig controllers with the annotations, conditions and order of Cluster API v1.12 to
//! v1.14 (`docs/facts/hooks.md`, `docs/facts/control-plane.md`, `docs/facts/machine-deployment.md`
//! and `docs/facts/machine.md`). They stand in for it in the sandbox, in simulation and in tests,
//! and refuse to start beside it.
//!
//! | module | is for |
//! |---|---|
//! | `machine_deployment` | which MachineSets there should be; moving instead of replacing |
//! | `machine_set` | which Machines there should be; both sides of a move |
//! | `control_plane` | control plane machines, one at a time |
//! | `machine` | one Machine: what its providers and its Node say, its update, its end |
//! | `health_check` | which Machines are unhealthy; their owners remediate them |
//! | `extension`, `hooks` | runtime extensions: discovery and calls |
//! | [`defaults`] | what Cluster API's webhooks fill in |
//!
//! What happens next is decided by [`refit_cluster_api::rollout`]; here is what that needs and does. Every
//! write follows from what is stored, so that a process which died goes on where it stood.

#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        clippy::type_complexity,
        clippy::unnecessary_wraps,
        reason = "tables of literals read best without ceremony"
    )
)]

mod aggregate;
mod beside;
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
mod run;
mod snapshot;
mod templates;
mod wiring;
mod workload;
mod writes;

pub use beside::RealClusterApi;
pub use run::{CapiOptions, run};
