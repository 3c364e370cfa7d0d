//! The container runtime: restarted if its program was replaced.

use std::fs;

use super::{Program, Site, work::WorkError};

/// Services of container runtimes.
const SERVICES: [&str; 2] = ["containerd.service", "crio.service"];

/// Restarts the container runtime if its program was replaced since it started. Containers keep
/// running: their shims are separate processes.
pub(super) async fn restart_if_replaced(site: &Site) -> Result<(), WorkError> {
    site.run(&site.call(Program::Systemctl, ["daemon-reload"])).await?;
    for service in SERVICES {
        let show = ["show", service, "--property=MainPID", "--value"];
        let answer = site.ask(Program::Systemctl, show).await?;
        let pid: u32 = answer.trim().parse().unwrap_or_default();
        if pid == 0 || !is_replaced(site, pid) {
            continue;
        }
        for verb in ["restart", "is-active"] {
            site.run(&site.call(Program::Systemctl, [verb, service])).await?;
        }
    }
    Ok(())
}

/// Whether the file that a process was started from is gone, because a package replaced it.
fn is_replaced(site: &Site, pid: u32) -> bool {
    let program = fs::read_link(site.path(format!("/proc/{pid}/exe")));
    program.is_ok_and(|path| path.to_string_lossy().ends_with(" (deleted)"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::host::site::Tool;

    #[tokio::test]
    async fn only_a_runtime_that_was_replaced_is_restarted() {
        let directory = tempfile::tempdir().unwrap();
        let systemctl = directory.path().join("systemctl");
        let script = "#!/bin/sh\ncase \"$1 $2\" in 'show containerd.service') echo 7;; \
                      'show crio.service') echo 0;; *) echo \"$@\";; esac\n";
        fs::write(&systemctl, script).unwrap();
        fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
        let tool = Tool { path: systemctl.display().to_string(), ..Tool::default() };
        let site = Site::at(directory.path(), directory.path()).with_tool(Program::Systemctl, tool);
        fs::create_dir_all(site.path("/proc/7")).unwrap();
        let log = || fs::read_to_string(directory.path().join("host.log")).unwrap();
        symlink("/usr/bin/containerd", site.path("/proc/7/exe")).unwrap();
        restart_if_replaced(&site).await.unwrap();
        assert!(!log().contains("\nrestart"), "{}", log());
        fs::remove_file(site.path("/proc/7/exe")).unwrap();
        symlink("/usr/bin/containerd (deleted)", site.path("/proc/7/exe")).unwrap();
        restart_if_replaced(&site).await.unwrap();
        assert!(log().contains("\nrestart containerd.service\n"), "{}", log());
        assert!(!log().contains("crio"), "{}", log());
    }
}
