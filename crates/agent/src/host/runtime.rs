//! The container runtime: restarted if its program was replaced.

use std::fs;

use super::{Program, Site, work::WorkError};

/// Services of container runtimes.
const SERVICES: [&str; 2] = ["containerd.service", "crio.service"];

/// Restarts the container runtime if its program was replaced since it started. Containers keep
/// running: their shims are separate processes. If no runtime is active, one that does not start is
/// restarted, too: an earlier attempt may have replaced its program.
pub(super) async fn restart_if_replaced(site: &Site) -> Result<(), WorkError> {
    site.run(&site.call(Program::Systemctl, ["daemon-reload"])).await?;
    let mut fallen = Vec::new();
    let mut is_active = false;
    for service in SERVICES {
        let show = ["show", service, "--property=ActiveState,MainPID"];
        let answer = site.ask(Program::Systemctl, show).await?;
        let field = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name));
        let state = field("ActiveState=").unwrap_or_default().trim();
        is_active |= state == "active";
        let pid: u32 =
            field("MainPID=").and_then(|pid| pid.trim().parse().ok()).unwrap_or_default();
        if ["failed", "activating"].contains(&state) {
            fallen.push(service);
        } else if pid != 0 && is_replaced(site, pid) {
            restart(site, service).await?;
        }
    }
    if !is_active {
        for service in fallen {
            restart(site, service).await?;
        }
    }
    Ok(())
}

async fn restart(site: &Site, service: &str) -> Result<(), WorkError> {
    for verb in ["restart", "is-active"] {
        site.run(&site.call(Program::Systemctl, [verb, service])).await?;
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
        let script = "#!/bin/sh\ncase \"$1 $2\" in 'show containerd.service') cat \"$0.containerd\";; \
                      'show crio.service') echo ActiveState=inactive; echo MainPID=0;; *) echo \"$@\";; esac\n";
        let containerd = |shown: &str| {
            fs::write(directory.path().join("systemctl.containerd"), shown).unwrap();
        };
        containerd("ActiveState=active\nMainPID=7\n");
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
        let restarts = || log().matches("\nrestart containerd.service\n").count();
        // The attempt that replaced it has failed, because it does not start.
        containerd("ActiveState=activating\nMainPID=0\n");
        restart_if_replaced(&site).await.unwrap();
        assert_eq!(restarts(), 2, "{}", log());
        containerd("ActiveState=inactive\nMainPID=0\n");
        restart_if_replaced(&site).await.unwrap();
        assert_eq!(restarts(), 2, "another runtime may be in use: {}", log());
        assert!(!log().contains("crio"), "{}", log());
    }
}
