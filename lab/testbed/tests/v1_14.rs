//! The flows on the newest line of Cluster API that Refit is tested with.

mod flows;
mod suite;

use std::process::ExitCode;

use lab_testbed::Line;

fn main() -> ExitCode {
    suite::run(Line::V1_14, flows::ALL)
}
