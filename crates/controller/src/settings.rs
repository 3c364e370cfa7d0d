//! Settings of the operator.

use std::{collections::BTreeSet, fs, io, path::PathBuf, sync::Arc, time::Duration};

use http::{Uri, uri::Scheme};
use jiff::SignedDuration;
use refit_core::{
    annotation::Compat,
    change::OnUncovered,
    node::{DrainPolicy, Reboot},
};
use refit_kinds::refit::{AlertMatcher, Receiver};
use refit_runtime::plan_signing::PlanSigner;

/// Users of Cluster API's managers, as its own manifests name them.
pub const HOLD_CALLERS: [&str; 2] = [
    "system:serviceaccount:capi-system:capi-manager",
    "system:serviceaccount:capi-kubeadm-control-plane-system:capi-kubeadm-control-plane-manager",
];

/// Maximum size of the file with the URL of a webhook.
const MAX_URL: usize = 4 << 10;
use crate::version_graph::GraphSource;

/// Where HostPlans are stored. Agents read them and report there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanLocation {
    /// In the workload cluster of each host, `refit-system/<node>`.
    #[default]
    Workload,
    /// In the management cluster, `<namespace>/<machine>`: for hosts that can reach it, or for
    /// workload clusters that do not accept CustomResourceDefinitions.
    Management,
}

/// Whether Refit serves the annotations of Canonical's Cluster API providers, whose controllers cannot be turned off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Canonical {
    /// No.
    #[default]
    Off,
    /// Where Canonical's providers are not installed.
    On,
    /// The operator asserts that their controllers for upgrades in place are absent.
    ControllersAbsent,
}

/// How a webhook of Slack is reached, or of a server with its API.
#[derive(Clone, Debug)]
pub struct SlackSettings {
    /// Holds its URL, which is a secret.
    pub url_file: PathBuf,
    /// Holds the authorities that are trusted for it; `None` for those of the system.
    pub ca_file: Option<PathBuf>,
}

impl SlackSettings {
    /// Reads the URL.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else. The error does not show what.
    pub fn url(&self) -> Result<Uri, String> {
        let Self { url_file, .. } = self;
        let why = |why: &str| format!("--notify-slack-url-file {}: {why}", url_file.display());
        let text = fs::read_to_string(url_file).map_err(|error| {
            let is = |kind: io::ErrorKind| error.kind() == kind;
            if is(io::ErrorKind::NotFound) {
                why("the file does not exist")
            } else if is(io::ErrorKind::PermissionDenied) {
                why("the file must not be read")
            } else {
                why("the file cannot be read")
            }
        })?;
        let url = text.trim().parse::<Uri>().ok().filter(|_| text.len() <= MAX_URL);
        let url = url.filter(|url| url.scheme() == Some(&Scheme::HTTPS));
        let has_credentials =
            |url: &Uri| url.authority().is_none_or(|authority| authority.as_str().contains('@'));
        url.filter(|url| !has_credentials(url))
            .ok_or_else(|| why("expected one line with a URL with https and without a user"))
    }
}

/// Settings of the operator for the whole controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Default for a change that no updater covers; an annotation of its owner or Cluster overrides
    /// it.
    pub on_uncovered: OnUncovered,
    /// Default drain policy; annotations of the Machine, its owner or its Cluster override it.
    pub drain: DrainPolicy,
    /// When hosts reboot. There is no flag for it; tests on real hosts set it.
    pub reboot: Reboot,
    /// Where HostPlans are stored.
    pub plan_location: PlanLocation,
    /// Signs HostPlans, for agents that require a signature.
    pub plan_signer: Option<Arc<PlanSigner>>,
    /// Maximum age of an agent's report before its host counts as unknown. The agent reports every
    /// five minutes: two reports may be lost.
    pub report_stale_after: Duration,
    /// How long an agent may be silent during an update before its host counts as lost; `None` for
    /// ever.
    pub host_lost_after: Option<SignedDuration>,
    /// How long before the caller's deadline a hook responds that it ran out of time.
    pub hook_margin: Duration,
    /// Names of the clients that may request ExternalUpgrades, by their certificates.
    pub external_upgrade_clients: BTreeSet<String>,
    /// Whether the annotations of Canonical's Cluster API providers are served.
    pub canonical: Canonical,
    /// How closely they follow Canonical's controllers.
    pub canonical_compat: Compat,
    /// How Prometheus is reached, for health gates; without it, those that need it are closed.
    pub prometheus: Option<kube::Config>,
    /// How Alertmanager is reached, for silences; without it, upgrades that have some do not begin.
    pub alertmanager: Option<kube::Config>,
    /// What each silence has besides its own matchers.
    pub silence_matchers: Vec<AlertMatcher>,
    /// How the server is reached that gets notifications as CloudEvents.
    pub cloud_events: Option<Box<kube::Config>>,
    /// How the webhook is reached that gets notifications as messages of Slack.
    pub slack: Option<SlackSettings>,
    /// Where the version graph is; without it, ClusterUpgrades may take all versions.
    pub version_graph: Option<GraphSource>,
    /// The users whose requests ReplacementHolds hold: those of Cluster API's managers.
    pub hold_callers: Vec<String>,
    /// How many NodeUpdates of one cluster are reconciled at once: a cluster that answers slowly
    /// takes no more of the process.
    pub workers_per_cluster: usize,
    /// How many UpdateGroups are reconciled at once.
    pub update_group_workers: usize,
}

impl Settings {
    /// The maximum age of a report as a signed duration.
    pub(crate) fn stale_after(&self) -> SignedDuration {
        SignedDuration::try_from(self.report_stale_after).unwrap_or(SignedDuration::from_mins(15))
    }

    /// The receivers of notifications.
    pub(crate) fn receivers(&self) -> BTreeSet<Receiver> {
        let cloud_events = self.cloud_events.as_ref().map(|_| Receiver::CloudEvents);
        cloud_events.into_iter().chain(self.slack.as_ref().map(|_| Receiver::Slack)).collect()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            on_uncovered: OnUncovered::Preserve,
            drain: DrainPolicy::default(),
            reboot: Reboot::IfNeeded,
            plan_location: PlanLocation::Workload,
            plan_signer: None,
            report_stale_after: Duration::from_mins(15),
            host_lost_after: Some(SignedDuration::from_mins(15)),
            hook_margin: Duration::from_secs(1),
            external_upgrade_clients: BTreeSet::new(),
            canonical: Canonical::Off,
            canonical_compat: Compat::Corrected,
            prometheus: None,
            alertmanager: None,
            silence_matchers: Vec::new(),
            cloud_events: None,
            slack: None,
            version_graph: None,
            hold_callers: HOLD_CALLERS.map(str::to_owned).to_vec(),
            workers_per_cluster: 4,
            update_group_workers: 8,
        }
    }
}
