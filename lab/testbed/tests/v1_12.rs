//! The flows on the oldest line of Cluster API that Refit supports.

mod flows;
mod suite;

use std::process::ExitCode;

use lab_testbed::Line;

fn main() -> ExitCode {
    suite::run(Line::V1_12, flows::ALL)
}
