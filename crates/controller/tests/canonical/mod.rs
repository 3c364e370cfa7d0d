//! The annotations of Canonical's Cluster API providers, as Refit serves them on Machines and their owners.
//!
//! The names have the numbers of the rows in the list of what the providers do, each in both modes of
//! `--canonical-compat` unless it is about the difference (`docs/facts/canonical.md#rows`).

/// Runs each test in both modes.
macro_rules! in_both_modes {
    ($($name:ident,)*) => {
        mod corrected {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(refit_core::annotation::Compat::Corrected).await;
            })*
        }

        mod strict {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(refit_core::annotation::Compat::Strict).await;
            })*
        }
    };
}

mod bootstrap;
mod certificates;
mod lab;
mod machines;
mod owners;
mod served_versions;
mod strict;

use std::time::Duration;

use lab_simhost::k8sd::{ChangeEnd, RefreshScript};

/// The Machine that most tests upgrade.
const MACHINE: &str = lab::WORKERS[0];

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn fails(why: &str) -> RefreshScript {
    RefreshScript { end: ChangeEnd::Error(why.to_owned()), ..RefreshScript::default() }
}
