//! The driver of Trident against a stand-in, or against the real program.
//!
//! The stand-in is this test program itself, started with Trident's arguments.
//! `REFIT_TRIDENT=/usr/bin/trident` runs the same cases with the real program instead, on a host
//! that it installed; see `README.md` in this directory. Cases that need a broken host are then
//! ignored.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the stand-in prints output as Trident does"
)]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod from_bundle;
mod stand_in;
mod suite;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if std::env::var_os(stand_in::DIRECTORY).is_some() {
        return ExitCode::from(u8::try_from(stand_in::play(&arguments)).unwrap_or(1));
    }
    let real = std::env::var("REFIT_TRIDENT").ok();
    let trials = suite::cases()
        .into_iter()
        .map(|case| {
            let left_out = real.is_some() && !case.on_a_real_host;
            let real = real.clone();
            Trial::test(case.name, move || {
                suite::run(&case, real.as_deref());
                Ok(())
            })
            .with_ignored_flag(left_out)
        })
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
