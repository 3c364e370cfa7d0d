//! Hosts of Canonical Kubernetes: one snap holds all components, and a refresh of it restarts them.

use jiff::{SignedDuration, Timestamp};
use refit_kinds::version::KubernetesVersion;

use crate::state::HostState;

/// How long the components of a snap take to run after a refresh has ended.
const RUNS_AFTER_REFRESH: SignedDuration = SignedDuration::from_secs(5);

impl HostState {
    /// Creates a host on which a snap has run `version` (`vX.Y.Z`) since `now`: it has no packages and no
    /// static pods.
    pub fn with_snap(node: &str, control_plane: bool, version: &str, now: Timestamp) -> Self {
        let mut host = Self::new(node, control_plane, version, now);
        host.root.clear();
        host
    }

    /// Takes note of a refresh of the snap that ended at a time, unless that is known.
    pub fn refreshed(&mut self, option: &str, ended: Timestamp) {
        if self.snap_refreshed_at.is_some_and(|known| known >= ended) {
            return;
        }
        self.snap_refreshed_at = Some(ended);
        let version = version_of(option, &self.kubelet_version);
        self.kubelet_version = version;
        let runs_at = ended + self.takes(RUNS_AFTER_REFRESH);
        self.kubelet_up_at = self.kubelet_up_at.max(runs_at);
        self.static_pods_up_at = self.static_pods_up_at.max(Some(runs_at));
    }
}

/// The version that an option such as `channel=1.34-classic/stable` or `localPath=/snaps/k8s_1.34.2.snap`
/// installs. One that names only the minor version that runs, or none, changes nothing: the simulated store has one
/// patch release of each.
fn version_of(option: &str, runs: &str) -> String {
    let numbers = option.split(|c: char| !c.is_ascii_digit() && c != '.');
    let named = numbers.map(|word| word.trim_matches('.')).find(|word| word.contains('.'));
    let Some(named) = named else { return runs.to_owned() };
    let is_minor = named.matches('.').count() == 1;
    if is_minor && runs.trim_start_matches('v').starts_with(&format!("{named}.")) {
        return runs.to_owned();
    }
    let full = if is_minor { format!("v{named}.0") } else { format!("v{named}") };
    full.parse::<KubernetesVersion>()
        .map_or_else(|_| runs.to_owned(), |version| version.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_names_the_version_that_it_installs() {
        for (option, version) in [
            ("channel=1.34-classic/stable", "v1.34.0"),
            ("channel=1.33-classic/stable", "v1.33.4"),
            ("localPath=/snaps/k8s_1.34.2_amd64.snap", "v1.34.2"),
            ("localPath=/snaps/k8s.snap", "v1.33.4"),
            ("revision=1035", "v1.33.4"),
        ] {
            assert_eq!(version_of(option, "v1.33.4"), version, "{option}");
        }
    }

    #[test]
    fn a_refresh_restarts_all_components_once() {
        let now: Timestamp = "2026-03-02T08:00:00Z".parse().unwrap();
        let mut host = HostState::with_snap("n", true, "v1.33.4", now);
        assert!(host.static_pods().is_empty() && host.kubelet_up(now) && host.api_server_up(now));
        for _ in 0..2 {
            host.refreshed("channel=1.34-classic/stable", now);
            assert_eq!(host.kubelet_version, "v1.34.0");
            assert!(!host.kubelet_up(now) && !host.api_server_up(now));
            let later = now + RUNS_AFTER_REFRESH;
            assert!(host.kubelet_up(later) && host.api_server_up(later));
        }
    }
}
