//! A separate loopback network for a test program, so that its ports do not collide with other
//! programs.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
};

/// Set for the restarted program. An empty value counts as unset.
pub const MARK: &str = "REFIT_TESTBED_NETWORK";
/// Brings loopback up, which is down in a new network namespace.
const INSIDE: &str = r#"ip link set lo up && exec "$@""#;
/// Arguments of `unshare` for root, and for any other user.
const UNSHARE_ARGUMENTS: [&[&str]; 2] = [&["--net"], &["--map-root-user", "--net"]];

/// Restarts this program in a new network namespace. It returns only in the restarted program, or
/// if the machine allows no namespace.
///
/// Call it before anything else is started.
pub fn enter_own_namespace() {
    if in_own_namespace() {
        return;
    }
    let Ok(program) = env::current_exe() else {
        return;
    };
    let possible = UNSHARE_ARGUMENTS.into_iter().find(|way| {
        let tried =
            within(way, OsStr::new("true")).stdin(Stdio::null()).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    });
    let Some(way) = possible else {
        tracing::info!("failed to create a network namespace: only one bed can run at a time");
        return;
    };
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let failed = within(way, program.as_os_str()).args(arguments).env(MARK, "own").exec();
    tracing::warn!("failed to restart the program in a network namespace: {failed}");
}

/// Whether this program runs in its own network namespace.
pub fn in_own_namespace() -> bool {
    env::var_os(MARK).is_some_and(|mark| !mark.is_empty())
}

/// A command that runs a program in a new network namespace.
fn within(way: &[&str], program: &OsStr) -> Command {
    let mut command = Command::new("unshare");
    command.args(way).args(["--", "/bin/sh", "-c", INSIDE, "sh"]).arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_a_namespace_has_only_loopback() {
        let list = |way: &[&str]| {
            let mut command = within(way, OsStr::new("cat"));
            command.arg("/proc/net/dev").output().unwrap()
        };
        let lists = UNSHARE_ARGUMENTS.into_iter().map(list);
        let Some(list) = lists.into_iter().find(|list| list.status.success()) else {
            // This machine allows no namespaces; flows wait for each other instead.
            return;
        };
        let text = String::from_utf8(list.stdout).unwrap();
        let devices: Vec<&str> =
            text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
        assert!(devices.contains(&"lo"), "{text}");
        assert!(devices.iter().all(|name| !name.starts_with("eth")), "{text}");
    }
}
