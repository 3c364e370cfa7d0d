//! Locks of package managers, which another process may hold for a whole run of
//! unattended-upgrades or dnf-automatic.

use std::time::Duration;

use refit_runtime::clock;

use crate::host::{Invocation, ProgramError, Site};

/// How long another process may hold a lock. apt waits as long for dpkg's own lock.
const PATIENCE: Duration = Duration::from_mins(5);
/// Interval between attempts.
const PAUSE: Duration = Duration::from_secs(2);
/// Messages with which programs give up because of a lock (`docs/facts/hosts.md`). A program that
/// waits itself, like dnf 4 with `Waiting for process with pid`, is not among them.
const HELD: [&str; 8] = [
    // apt and dpkg
    "Could not get lock",
    "frontend lock was locked by another process",
    "database lock was locked by another process",
    "dpkg status database is locked",
    // rpm, also within dnf 4 and tdnf
    "can't create transaction lock",
    // dnf 4 with `exit_on_lock`
    "already locked by",
    // dnf 5
    "Failed to obtain rpm transaction lock",
    // tdnf
    "failed to acquire lock",
];
/// Words of a program that goes on waiting for a lock.
const WAITS: &str = "retrying";

/// Runs a program, and runs it again for as long as another process holds a lock.
pub(super) async fn run(site: &Site, call: &Invocation) -> Result<String, ProgramError> {
    let started = clock::instant();
    loop {
        match site.run(call).await {
            Err(error) if is_held(error.output_tail()) && started.elapsed() < PATIENCE => {
                site.log_and_go_on("another process holds the lock, trying again");
                tokio::time::sleep(PAUSE).await;
            }
            other => return other,
        }
    }
}

/// Whether a program failed because another process holds a lock.
fn is_held(output: &str) -> bool {
    let mut lines = output.lines().filter(|line| !line.contains(WAITS));
    lines.any(|line| HELD.iter().any(|text| line.contains(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_is_recognized_by_its_message() {
        for text in [
            "dpkg: error: dpkg frontend lock was locked by another process with pid 812",
            "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)",
            "error: can't create transaction lock on /var/lib/rpm/.rpm.lock (Resource \
             temporarily unavailable)\nError: Could not run transaction.",
            "RPMDB already locked by 812\nThe application with PID 812 is: dnf-automatic",
            "Transaction failed: Failed to obtain rpm transaction lock. Another transaction is in \
             progress.",
            "ERROR: failed to acquire lock on: /var/run/.tdnf-instance-lockfile",
        ] {
            assert!(is_held(text), "{text}");
        }
        for text in [
            "dpkg: error processing package",
            "Waiting for process with pid 812 to finish.\nError: Unable to find a match: kubeadm",
            "WARNING: failed to acquire lock on: /var/run/.tdnf-instance-lockfile, retrying ...\n\
             Error(1011) : No matching packages",
        ] {
            assert!(!is_held(text), "{text}");
        }
    }
}
