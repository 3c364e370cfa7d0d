//! The hook server, which Cluster API calls (`docs/facts/hooks.md`).
//!
//! | module | does |
//! |---|---|
//! | `http` | paths, limits, deadlines; `/healthz`, `/readyz`, `/metrics` |
//! | `body` | reads request bodies within a budget |
//! | `wire` | requests and responses |
//! | `can_update` | CanUpdateMachine and CanUpdateMachineSet |
//! | `provider` | whether a provider accepts what Updaters claim of its machines |
//! | `decision` | records the decision in the UpdateGroup and in an event on the owner |
//! | `update_machine` | UpdateMachine |

mod body;
pub(crate) mod can_update;
mod decision;
mod http;
mod provider;
mod update_machine;
pub mod wire;

pub(crate) use http::service;
