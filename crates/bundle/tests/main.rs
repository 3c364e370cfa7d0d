//! Bundles: built, served and staged.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a panic fails the test")]

mod build;
mod registry;
mod servers;
mod stage;
mod support;
