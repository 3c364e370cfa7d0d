//! The API server in process, through its HTTP interface.

#![allow(clippy::unwrap_used, missing_docs, unreachable_pub, reason = "a panic fails the test")]

mod common;
mod custom;
mod kubectl;
mod lifecycle;
mod objects;
mod portforward;
mod properties;
mod simulation;
mod transport;
mod watches;
