//! Failures of a simulated host other than a failing step.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use refit_agent::host::{Command, Undo};
use refit_kinds::refit::{HostFacts, HostStep, UnreadFact};
use serde::{Deserialize, Serialize};

use crate::state::HostState;

/// How long a powered-off host stays off unless it is powered on: longer than any simulation,
/// shorter than the longest sleep of a timer wheel.
const OFF: SignedDuration = SignedDuration::from_hours(24 * 365);
/// How long a host takes from power-on to its boot.
const POWER_ON: SignedDuration = SignedDuration::from_secs(30);
/// How long the kubelet takes to start after a boot.
const KUBELET_AFTER_BOOT: SignedDuration = SignedDuration::from_secs(4);
/// How long the static pods take to start after the kubelet.
const STATIC_PODS_AFTER_KUBELET: SignedDuration = SignedDuration::from_secs(3);

/// Injected failures of a host that outlive its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Troubles {
    /// Steps whose command hangs until its timeout, with the number of times left.
    #[serde(default)]
    pub hang: BTreeMap<String, u32>,
    /// Steps whose command is slow, with the factor.
    #[serde(default)]
    pub slow: BTreeMap<String, u32>,
    /// Whether the disk is full.
    #[serde(default)]
    pub disk_full: bool,
    /// Facts that cannot be read, by the name of their field.
    #[serde(default)]
    pub unreadable: BTreeSet<String>,
}

impl Troubles {
    /// The facts as far as they can be read.
    pub(super) fn as_read(&self, mut facts: HostFacts) -> HostFacts {
        for fact in &self.unreadable {
            match &**fact {
                "kubeletVersion" => facts.kubelet_version = None,
                "bootID" => facts.boot_id.clear(),
                "osImage" => facts.os_image.clear(),
                "packages" => facts.packages.clear(),
                other => panic!("no fact is called {other}"),
            }
            let message = "simulated failure".to_owned();
            facts.unread.push(UnreadFact { fact: fact.clone(), message });
        }
        facts
    }

    /// Whether this run of a step hangs; decrements the number of hangs left.
    pub(super) fn take_hang(&mut self, step: &str) -> bool {
        match self.hang.get_mut(step) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    /// The duration of a command that usually takes `usual`.
    pub(super) fn stretched(
        &self,
        step: &str,
        timeout_seconds: u32,
        usual: SignedDuration,
        hangs: bool,
    ) -> SignedDuration {
        if hangs {
            return SignedDuration::from_secs(i64::from(timeout_seconds));
        }
        let times = self.slow.get(step).copied().unwrap_or(1).max(1);
        usual * i32::try_from(times).unwrap_or(i32::MAX)
    }

    /// The error that a writing command reports on a full disk.
    pub(super) fn no_space(&self, command: &Command) -> Option<String> {
        let directory = match command {
            Command::Step(HostStep::Stage { .. } | HostStep::OsPackagesStage(_)) => {
                "/var/cache/apt/archives"
            }
            Command::Step(HostStep::Snapshot {} | HostStep::OsImageStage { .. }) => {
                "/var/lib/refit"
            }
            Command::Step(HostStep::ImagePreload { .. } | HostStep::EtcdUpgrade(_)) => {
                "/var/lib/containerd"
            }
            Command::Step(HostStep::KeysRevoke(_)) => "/home",
            Command::Step(HostStep::Files(_) | HostStep::Ntp(_) | HostStep::NtpReplace(_)) => {
                "/etc"
            }
            Command::Step(
                HostStep::KubeadmInstall { .. }
                | HostStep::KubeletInstall { .. }
                | HostStep::KubectlInstall { .. }
                | HostStep::ContainerRuntimeInstall { .. }
                | HostStep::OsPackagesInstall(_),
            )
            | Command::Undo(Undo::Packages { .. } | Undo::OsPackages) => "/usr/bin",
            Command::Step(
                HostStep::Preflight { .. }
                | HostStep::KubeadmUpgrade { .. }
                | HostStep::CertificatesRenew(_)
                | HostStep::UnitActions(_)
                | HostStep::Commands(_)
                | HostStep::KubeletFlags(_)
                | HostStep::OsImageFinalize { .. }
                | HostStep::OsImageCommit { .. }
                | HostStep::KubeletRestart {}
                | HostStep::Reboot {}
                | HostStep::RebootIfRequired {}
                | HostStep::Verify { .. },
            )
            | Command::Undo(
                Undo::OsImage { .. }
                | Undo::Files { .. }
                | Undo::Configuration
                | Undo::KubeletRestart
                | Undo::Units(_),
            ) => return None,
        };
        self.disk_full.then(|| format!("{directory}: No space left on device"))
    }
}

impl HostState {
    /// Makes the next `times` runs of a step's command fail.
    pub fn break_step(&mut self, step: &str, times: u32) {
        self.faults.insert(step.to_owned(), times);
    }

    pub(super) fn take_fault(&mut self, step: &str) -> bool {
        match self.faults.get_mut(step) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    /// Removes all injected failures. A host that is powered off stays off.
    pub fn mend(&mut self) {
        self.faults.clear();
        self.troubles = Troubles::default();
    }

    /// Powers the host off at once and ends everything that ran on it.
    pub fn power_off(&mut self, now: Timestamp) {
        let far = now + OFF;
        self.down_until = Some(far);
        self.kubelet_up_at = far;
        self.static_pods_up_at = Some(far);
    }

    /// Powers a host on and returns when it will have booted; `None` if it is not off.
    pub fn power_on(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.down_until?;
        let boots = now + POWER_ON;
        self.down_until = Some(boots);
        self.kubelet_up_at = boots + KUBELET_AFTER_BOOT;
        self.static_pods_up_at = Some(self.kubelet_up_at + STATIC_PODS_AFTER_KUBELET);
        Some(boots)
    }
}

#[cfg(test)]
mod tests {
    use refit_agent::host::{Job, UnitState};
    use refit_kinds::version::KubernetesVersion;

    use super::*;

    fn now() -> Timestamp {
        "2026-03-02T08:00:00Z".parse().unwrap()
    }

    fn install() -> Job {
        let version = "v1.35.0".parse::<KubernetesVersion>().unwrap();
        let command = Command::Step(HostStep::KubeletInstall {
            version,
            packages: refit_kinds::refit::PackageArgs::default(),
            kubelet: refit_kinds::refit::KubeletArgs::default(),
        });
        Job::new("p", "unit", "kubelet-install", command)
    }

    fn host() -> HostState {
        HostState::new("n", false, "v1.34.2", now())
    }

    fn outcome(host: &mut HostState) -> (i64, i32, String) {
        host.start(&install(), now());
        let ends = host.units["unit"].ends;
        host.tick(ends);
        let UnitState::Exited { code, output_tail } = host.poll("unit") else {
            panic!("{:?}", host.poll("unit"));
        };
        (ends.duration_since(now()).as_secs(), code, output_tail)
    }

    #[test]
    fn a_command_that_hangs_is_ended_by_its_timeout() {
        let mut host = host();
        host.troubles.hang.insert("kubelet-install".to_owned(), 1);
        let (seconds, code, output) = outcome(&mut host);
        assert_eq!((seconds, code), (1200, 1));
        assert!(output.contains("1200 seconds"), "{output}");
        assert!(!host.troubles.take_hang("kubelet-install"));
    }

    #[test]
    fn a_slow_command_succeeds() {
        let usual = outcome(&mut host()).0;
        let mut host = host();
        host.troubles.slow.insert("kubelet-install".to_owned(), 10);
        let (seconds, code, _) = outcome(&mut host);
        assert_eq!((seconds, code), (usual * 10, 0));
    }

    #[test]
    fn nothing_is_installed_on_a_full_disk() {
        let mut host = host();
        host.troubles.disk_full = true;
        let (_, code, output) = outcome(&mut host);
        assert_eq!(code, 1);
        assert!(output.contains("No space left"), "{output}");
        assert_eq!(host.installed("kubelet"), "v1.34.2".parse().ok());
    }

    #[test]
    fn a_host_boots_again_after_power_on() {
        let mut host = host();
        host.power_off(now());
        let later = now() + SignedDuration::from_hours(100);
        host.tick(later);
        assert!(!host.is_up(later));
        let boots = host.power_on(later).unwrap();
        host.tick(boots);
        assert_eq!((host.is_up(boots), host.boots), (true, 2));
        assert!(host.kubelet_up(host.kubelet_up_at));
        assert_eq!(host.power_on(boots), None);
    }
}
