//! When the components of a simulated control plane respond.

use jiff::{SignedDuration, Timestamp};
use refit_agent::host::Command;
use refit_kinds::refit::HostStep;

use crate::state::HostState;

/// How long the static pods take to respond after the kubelet has started.
const STATIC_PODS_AFTER_KUBELET: SignedDuration = SignedDuration::from_secs(3);

impl HostState {
    /// The duration on this host of something that takes `usual` on a real one.
    pub(super) fn takes(&self, usual: SignedDuration) -> SignedDuration {
        usual / i32::try_from(self.hurry.max(1)).unwrap_or(1)
    }

    /// Records when the static pods will run after the boot in progress.
    pub(super) fn static_pods_start(&mut self) {
        let at = self.kubelet_up_at + self.takes(STATIC_PODS_AFTER_KUBELET);
        self.static_pods_up_at = Some(at);
    }

    /// Returns the host with commands and boots that take `1/hurry` of their usual time.
    #[must_use]
    pub fn hurried(mut self, hurry: u32) -> Self {
        self.hurry = hurry.max(1);
        self
    }

    /// Whether the API server of this host responds: never on a worker, not while the host boots,
    /// and not while `kubeadm upgrade` restarts it.
    pub fn api_server_up(&self, now: Timestamp) -> bool {
        self.static_pods_up(now)
            && !self.api_restarts().any(|(from, until)| from <= now && now < until)
    }

    /// Whether the etcd member of this host responds. Its image does not change in an upgrade, so
    /// only a boot takes it down.
    pub fn etcd_up(&self, now: Timestamp) -> bool {
        self.static_pods_up(now)
    }

    /// When the API server or etcd next changes between up and down without further action.
    pub fn next_uptime_change(&self, now: Timestamp) -> Option<Timestamp> {
        let restarts = self.api_restarts().flat_map(|(from, until)| [from, until]);
        self.static_pods_up_at
            .into_iter()
            .chain(restarts)
            .filter(|at| self.control_plane && *at > now)
            .min()
    }

    fn static_pods_up(&self, now: Timestamp) -> bool {
        self.control_plane
            && self.is_up(now)
            && self.static_pods_up_at.is_none_or(|since| since <= now)
    }

    /// The last quarter of each `kubeadm upgrade`: by then kubeadm has written the new manifest and
    /// waits for the API server to come back.
    fn api_restarts(&self) -> impl Iterator<Item = (Timestamp, Timestamp)> {
        self.units
            .values()
            .filter(|unit| matches!(unit.command, Command::Step(HostStep::KubeadmUpgrade { .. })))
            .map(|unit| {
                let quarter = unit.ends.duration_since(unit.started) / 4;
                (unit.ends - quarter, unit.ends)
            })
    }
}

#[cfg(test)]
mod tests {
    use refit_agent::host::Job;
    use refit_kinds::{refit::Role, version::KubernetesVersion};

    use super::*;

    fn now() -> Timestamp {
        "2026-03-02T08:00:00Z".parse().unwrap()
    }

    fn job(command: Command) -> Job {
        Job::new("p", "unit", "step", command)
    }

    fn upgrade() -> Job {
        job(Command::Step(HostStep::KubeadmUpgrade {
            role: Role::FirstControlPlane,
            version: "v1.35.0".parse::<KubernetesVersion>().unwrap(),
            kubeadm: refit_kinds::refit::KubeadmArgs::default(),
        }))
    }

    #[test]
    fn a_worker_has_no_api_server() {
        let host = HostState::new("n", false, "v1.34.2", now());
        assert!(!host.api_server_up(now()) && !host.etcd_up(now()));
        assert_eq!(host.next_uptime_change(now()), None);
    }

    #[test]
    fn kubeadm_restarts_the_api_server_but_not_etcd() {
        let mut host = HostState::new("n", true, "v1.34.2", now());
        host.start(&upgrade(), now());
        assert!(host.api_server_up(now()));
        let down = host.next_uptime_change(now()).unwrap();
        assert!(!host.api_server_up(down) && host.etcd_up(down));
        let up = host.next_uptime_change(down).unwrap();
        assert!(host.api_server_up(up));
        assert_eq!(Some(up), host.units.get("unit").map(|unit| unit.ends));
    }

    #[test]
    fn a_boot_takes_the_api_server_and_etcd_down() {
        let mut host = HostState::new("n", true, "v1.34.2", now());
        host.start(&job(Command::Step(HostStep::Reboot {})), now());
        assert!(!host.api_server_up(now()) && !host.etcd_up(now()));
        let up = host.static_pods_up_at.unwrap();
        assert!(up > host.kubelet_up_at);
        host.tick(up);
        assert!(host.api_server_up(up) && host.etcd_up(up));
    }

    #[test]
    fn a_hurried_host_needs_a_fraction_of_the_time() {
        let ends = |hurry| {
            let mut host = HostState::new("n", true, "v1.34.2", now()).hurried(hurry);
            host.start(&upgrade(), now());
            host.units["unit"].ends.duration_since(now())
        };
        assert_eq!(ends(10) * 10, ends(1));
        assert!(ends(0) > SignedDuration::ZERO);
    }
}
