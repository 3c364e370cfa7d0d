//! The hook server: what Cluster API calls (`spec/capi.md 1 and 8`).
//!
//! | module | does |
//! |---|---|
//! | `http` | paths, limits, deadlines; `/healthz`, `/readyz`, `/metrics` |
//! | `wire` | requests and answers |
//! | `can_update` | CanUpdateMachine and CanUpdateMachineSet |
//! | `decision` | tells the UpdateGroup and the owner what was answered |
//! | `update_machine` | UpdateMachine |
//! | `create` | how a NodeUpdate is made |

mod can_update;
pub(crate) mod create;
mod decision;
mod http;
mod update_machine;
mod wire;

pub(crate) use http::service;
