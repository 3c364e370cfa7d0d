//! What a change of a file needs where no policy decides: by its path
//! (`docs/facts/hosts.md#path-classes`, `docs/disruption-policy.md#defaults`).

use refit_kinds::refit::Disruption;

use super::disruption_policy::{Actions, KUBELET, longest_match};

/// Directories of units and their drop-ins. Not `/run/systemd/system`: programs write there, and a
/// reboot empties it.
const UNIT_DIRECTORIES: [&str; 4] = [
    "/etc/systemd/system/",
    "/usr/local/lib/systemd/system/",
    "/usr/lib/systemd/system/",
    "/lib/systemd/system/",
];

/// Container runtimes: pods run on after their restart, but not necessarily under a changed
/// configuration.
const RUNTIMES: [&str; 4] =
    ["containerd.service", "crio.service", "cri-docker.service", "docker.service"];

/// What files of one class need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Nothing: they are read when they are used.
    Nothing,
    /// A reload of this unit.
    Reload(&'static str),
    /// A restart of this unit.
    Restart(&'static str),
    /// A drain, and a restart of this container runtime.
    Runtime(&'static str),
    /// The kubelet restarts the static pod by itself.
    StaticPod,
    /// A reboot: they are read at boot only.
    Reboot,
}

/// Paths in the form of a NodeDisruptionPolicy's: the longest one that matches decides.
const CLASSES: [(&str, Class); 23] = [
    ("/boot/", Class::Reboot),
    ("/etc/chrony*", Class::Restart("chronyd.service")),
    ("/etc/chrony/", Class::Restart("chrony.service")),
    ("/etc/containerd/", Class::Runtime("containerd.service")),
    ("/etc/containerd/certs.d/", Class::Nothing),
    ("/etc/crio/", Class::Runtime("crio.service")),
    ("/etc/default/grub", Class::Reboot),
    ("/etc/default/grub.d/", Class::Reboot),
    ("/etc/default/kubelet", Class::Restart(KUBELET)),
    ("/etc/docker/daemon.json", Class::Runtime("docker.service")),
    ("/etc/fstab", Class::Reboot),
    ("/etc/kernel/", Class::Reboot),
    ("/etc/kubernetes/kubelet*", Class::Restart(KUBELET)),
    ("/etc/kubernetes/manifests/", Class::StaticPod),
    ("/etc/modules-load.d/", Class::Restart("systemd-modules-load.service")),
    ("/etc/ssh/sshd_config", Class::Reload("sshd.service")),
    ("/etc/ssh/sshd_config.d/", Class::Reload("sshd.service")),
    ("/etc/sysconfig/kubelet", Class::Restart(KUBELET)),
    ("/etc/sysctl.conf", Class::Restart("systemd-sysctl.service")),
    ("/etc/sysctl.d/", Class::Restart("systemd-sysctl.service")),
    ("/etc/systemd/timesyncd.conf*", Class::Restart("systemd-timesyncd.service")),
    ("/var/lib/kubelet/config.yaml", Class::Restart(KUBELET)),
    ("/var/lib/kubelet/kubeadm-flags.env", Class::Restart(KUBELET)),
];

/// What a change of the file at an absolute path needs by default.
pub(super) fn default_actions(path: &str) -> Actions {
    if let Some(unit) = unit_of(path) {
        return actions_of_unit(unit);
    }
    match longest_match(&CLASSES, |(path, _)| path, path).map(|(_, class)| class) {
        None | Some(Class::Nothing) => Actions::none(),
        Some(Class::Reload(unit)) => Actions::reload(unit),
        Some(Class::Restart(unit)) => Actions::restart(unit),
        Some(Class::Runtime(unit)) => restart_runtime(unit),
        Some(Class::StaticPod) => Actions::disturb(Disruption::Restart),
        Some(Class::Reboot) => Actions::disturb(Disruption::Reboot),
    }
}

/// The unit whose file or drop-in is at this absolute path. After a change of it, systemd must
/// reload its units (`systemctl daemon-reload`).
pub fn unit_of(path: &str) -> Option<&str> {
    let mut directories = UNIT_DIRECTORIES.iter();
    let below = directories.find_map(|directory| path.strip_prefix(directory))?;
    let unit = match below.split_once('/') {
        None => below,
        Some((directory, file)) => {
            let unit = directory.strip_suffix(".d")?;
            let is_read = file.strip_suffix(".conf").is_some_and(|name| !name.contains('/'));
            is_read.then_some(unit)?
        }
    };
    suffix(unit).is_some().then_some(unit)
}

/// The type of a unit; `None` for a text that does not name a unit.
fn suffix(unit: &str) -> Option<&str> {
    let (name, suffix) = unit.rsplit_once('.')?;
    let types =
        ["service", "socket", "timer", "path", "mount", "automount", "swap", "target", "slice"];
    (!name.is_empty() && types.contains(&suffix)).then_some(suffix)
}

fn actions_of_unit(unit: &str) -> Actions {
    if RUNTIMES.contains(&unit) {
        return restart_runtime(unit);
    }
    // A template has no process of its own, and which instances exist is unknown here.
    if unit.contains("@.") {
        return Actions::none();
    }
    match suffix(unit) {
        Some("service" | "socket" | "timer" | "path") => Actions::restart(unit),
        // As for /etc/fstab: a restart would unmount what pods use.
        Some("mount" | "automount" | "swap") => Actions::disturb(Disruption::Reboot),
        // A restart of a slice stops every unit in it. Its limits apply as soon as systemd has
        // reloaded it. A target is used at boot.
        _ => Actions::none(),
    }
}

/// A drain, and a restart of a container runtime.
fn restart_runtime(unit: &str) -> Actions {
    Actions::restart(unit).merge(Actions::disturb(Disruption::Drain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENTED: &str = include_str!("../../../../docs/disruption-policy.md");

    /// Actions in one line, such as `Drain restart=crio.service`.
    fn line(actions: &Actions) -> String {
        let Actions { reload, restart, restart_kubelet, disruption } = actions;
        let mut words = vec![format!("{disruption:?}")];
        words.extend(reload.iter().map(|unit| format!("reload={unit}")));
        words.extend(restart.iter().map(|unit| format!("restart={unit}")));
        words.extend(restart_kubelet.then(|| "kubelet".to_owned()));
        words.join(" ")
    }

    #[test]
    fn the_path_decides_what_a_file_needs_by_default() {
        for (path, expected) in [
            ("/boot/grub/grub.cfg", "Reboot"),
            ("/etc/kernel/cmdline", "Reboot"),
            ("/etc/default/grub", "Reboot"),
            ("/etc/default/grub.d/50-cloud.cfg", "Reboot"),
            ("/etc/fstab", "Reboot"),
            ("/etc/fstab.d", "None"),
            ("/etc/containerd/config.toml", "Drain restart=containerd.service"),
            ("/etc/containerd/conf.d/nvidia.toml", "Drain restart=containerd.service"),
            ("/etc/containerd/certs.d/docker.io/hosts.toml", "None"),
            ("/etc/containerd/certs.d/_default/hosts.toml", "None"),
            ("/etc/crio/crio.conf.d/10-runc.conf", "Drain restart=crio.service"),
            ("/etc/docker/daemon.json", "Drain restart=docker.service"),
            ("/etc/containers/registries.conf", "None"),
            ("/etc/kubernetes/manifests/kube-vip.yaml", "Restart"),
            ("/etc/kubernetes/kubelet.conf", "Restart kubelet"),
            ("/etc/kubernetes/kubelet/config.json", "Restart kubelet"),
            ("/etc/kubernetes/audit.yaml", "None"),
            ("/etc/kubernetes/pki/ca.crt", "None"),
            ("/etc/default/kubelet", "Restart kubelet"),
            ("/etc/sysconfig/kubelet", "Restart kubelet"),
            ("/var/lib/kubelet/config.yaml", "Restart kubelet"),
            ("/var/lib/kubelet/kubeadm-flags.env", "Restart kubelet"),
            ("/var/lib/kubelet/config.yaml.bak", "None"),
            ("/etc/sysctl.conf", "None restart=systemd-sysctl.service"),
            ("/etc/sysctl.d/90-app.conf", "None restart=systemd-sysctl.service"),
            ("/etc/modules-load.d/br.conf", "None restart=systemd-modules-load.service"),
            ("/etc/ssh/sshd_config", "None reload=sshd.service"),
            ("/etc/ssh/sshd_config.d/10-ciphers.conf", "None reload=sshd.service"),
            ("/etc/ssh/ssh_config", "None"),
            ("/etc/chrony.conf", "Restart restart=chronyd.service"),
            ("/etc/chrony.d/pool.conf", "Restart restart=chronyd.service"),
            ("/etc/chrony/chrony.conf", "Restart restart=chrony.service"),
            ("/etc/systemd/timesyncd.conf", "Restart restart=systemd-timesyncd.service"),
            ("/etc/systemd/timesyncd.conf.d/a.conf", "Restart restart=systemd-timesyncd.service"),
            ("/etc/cron.d/backup", "None"),
            ("/etc/motd", "None"),
            ("/etc/ssl/certs/site.pem", "None"),
            ("/usr/local/share/ca-certificates/site.crt", "None"),
            ("/opt/app/config", "None"),
        ] {
            assert_eq!(line(&default_actions(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_changed_unit_is_restarted_by_default_except_where_that_would_disturb_more() {
        for (path, unit, expected) in [
            ("/etc/systemd/system/app.service", "app.service", "Restart restart=app.service"),
            ("/usr/lib/systemd/system/app.timer", "app.timer", "Restart restart=app.timer"),
            ("/lib/systemd/system/a.socket.d/b.conf", "a.socket", "Restart restart=a.socket"),
            (
                "/usr/local/lib/systemd/system/a@1.service.d/b.conf",
                "a@1.service",
                "Restart restart=a@1.service",
            ),
            ("/etc/systemd/system/a@.service", "a@.service", "None"),
            ("/etc/systemd/system/kubelet.service", "kubelet.service", "Restart kubelet"),
            (
                "/etc/systemd/system/kubelet.service.d/20-proxy.conf",
                "kubelet.service",
                "Restart kubelet",
            ),
            (
                "/etc/systemd/system/containerd.service.d/http-proxy.conf",
                "containerd.service",
                "Drain restart=containerd.service",
            ),
            ("/etc/systemd/system/crio.service", "crio.service", "Drain restart=crio.service"),
            (
                "/etc/systemd/system/docker.service",
                "docker.service",
                "Drain restart=docker.service",
            ),
            ("/etc/systemd/system/data.mount", "data.mount", "Reboot"),
            ("/etc/systemd/system/kubepods.slice.d/10-max.conf", "kubepods.slice", "None"),
            ("/etc/systemd/system/multi-user.target", "multi-user.target", "None"),
        ] {
            assert_eq!(unit_of(path), Some(unit), "{path}");
            assert_eq!(line(&default_actions(path)), expected, "{path}");
        }
    }

    #[test]
    fn other_files_next_to_units_belong_to_no_unit() {
        for path in [
            "/run/systemd/system/app.service",
            "/etc/systemd/system/app.service.d/README",
            "/etc/systemd/system/app.service.d/x/y.conf",
            "/etc/systemd/system/service.d/10-all.conf",
            "/etc/systemd/system/multi-user.target.wants/app.service",
            "/etc/systemd/system/.service",
            "/etc/systemd/system/app.conf",
            "/etc/systemd/system/",
            "/etc/systemd/journald.conf",
        ] {
            assert_eq!(unit_of(path), None, "{path}");
            assert_eq!(default_actions(path), Actions::none(), "{path}");
        }
    }

    #[test]
    fn every_default_is_documented() {
        let rows = || DOCUMENTED.lines().filter(|line| line.starts_with('|'));
        for (path, class) in CLASSES {
            let quoted = format!("`{path}`");
            let row = rows().find(|row| row.split('|').nth(1).unwrap_or("").contains(&quoted));
            let row = row.unwrap_or_else(|| panic!("no row for {path}"));
            let needs = match class {
                Class::Nothing | Class::StaticPod => "nothing".to_owned(),
                Class::Restart(KUBELET) => "`restartKubelet`".to_owned(),
                Class::Reload(unit) => format!("`reload: {unit}`"),
                Class::Restart(unit) => format!("`restart: {unit}`"),
                Class::Runtime(unit) => format!("`drain`, `restart: {unit}`"),
                Class::Reboot => "`reboot`".to_owned(),
            };
            let documented = row.split('|').nth(2).unwrap_or("");
            assert!(documented.contains(&needs), "{path}: {documented}");
        }
        for unit in RUNTIMES {
            assert!(rows().any(|row| row.contains(&format!("`{unit}`"))), "{unit}");
        }
    }
}
