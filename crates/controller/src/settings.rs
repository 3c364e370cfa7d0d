//! Settings of the operator.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::SignedDuration;
use refit_core::{
    annotation::Compat,
    change::OnUncovered,
    node::{DrainPolicy, Reboot},
};
use refit_kinds::refit::AlertMatcher;
use refit_runtime::plan_signing::PlanSigner;

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
            workers_per_cluster: 4,
            update_group_workers: 8,
        }
    }
}
