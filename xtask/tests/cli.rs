//! The program `xtask`, as a contributor runs it.

use std::process::{Command, Output};

fn xtask(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(args).output().expect("the program runs")
}

#[test]
fn the_result_is_the_last_line_on_stdout() {
    let output = xtask(&["simulate", "--seeds", "1..2", "--steps", "0"]);
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(out.lines().last(), Some("1 seeds, 0 failures"), "{output:?}");
    assert!(output.status.success());
}

#[test]
fn wrong_arguments_name_what_is_valid() {
    for (args, wanted) in [
        (["simulate", "--seeds", "9..1"], "expected A..B, such as 0..100"),
        (["simulate", "--fault", "earthquake"], "half-open"),
    ] {
        let output = xtask(&args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(wanted), "{error}");
        assert!(!output.status.success());
    }
}
