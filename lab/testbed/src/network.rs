//! Loopback of a test program's own, so that its ports are nobody else's.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
};

/// Set for the program that was begun again. Empty is as good as absent.
pub const MARK: &str = "REFIT_TESTBED_NETWORK";
/// Loopback is down in a new network namespace.
const INSIDE: &str = r#"ip link set lo up && exec "$@""#;
/// How a namespace is asked for: as root, and as anybody else.
const WAYS: [&[&str]; 2] = [&["--net"], &["--map-root-user", "--net"]];

/// Begins this program again in a network namespace of its own, and does not return then. Returns
/// in that one, and where the machine does not give a namespace.
///
/// Nothing may have been started before.
pub fn of_our_own() {
    if is_our_own() {
        return;
    }
    let Ok(program) = env::current_exe() else {
        return;
    };
    let possible = WAYS.into_iter().find(|way| {
        let tried =
            within(way, OsStr::new("true")).stdin(Stdio::null()).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    });
    let Some(way) = possible else {
        tracing::info!("no network namespace can be had: one bed at a time on this machine");
        return;
    };
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let failed = within(way, program.as_os_str()).args(arguments).env(MARK, "own").exec();
    tracing::warn!("the program cannot be begun again in a network namespace: {failed}");
}

/// Whether this program was begun again in a network namespace of its own.
pub fn is_our_own() -> bool {
    env::var_os(MARK).is_some_and(|mark| !mark.is_empty())
}

/// A command in a new network namespace.
fn within(way: &[&str], program: &OsStr) -> Command {
    let mut command = Command::new("unshare");
    command.args(way).args(["--", "/bin/sh", "-c", INSIDE, "sh"]).arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_a_namespace_has_loopback_and_nothing_else() {
        let list = |way: &[&str]| {
            let mut command = within(way, OsStr::new("cat"));
            command.arg("/proc/net/dev").output().unwrap()
        };
        let lists = WAYS.into_iter().map(list);
        let Some(list) = lists.into_iter().find(|list| list.status.success()) else {
            // A machine that gives none: flows wait for their turn there.
            return;
        };
        let text = String::from_utf8(list.stdout).unwrap();
        let devices: Vec<&str> =
            text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
        assert!(devices.contains(&"lo"), "{text}");
        assert!(devices.iter().all(|name| !name.starts_with("eth")), "{text}");
    }
}
