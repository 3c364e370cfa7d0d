//! What the target version breaks, and what else gets in the way of a rollout although no machine waits for it.

mod apis;
mod certificates;
mod flags;
mod removed;
mod runtime;
mod webhooks;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use refit_core::change::can_update::HostReport;
use refit_kinds::{
    json::{name, text},
    refit::{Disruption, Owner},
};
use serde::Serialize;
use serde_json::Value;

use self::runtime::Fit;
use super::{input::Hosts, preflight::many, reach::Read, view::View};

pub use self::{apis::DeprecatedApi, webhooks::Webhook};

/// Reasons of warnings.
pub const WARNING_REASONS: [&str; 5] =
    ["CertificateExpires", "ClockSkew", "RemovedApiInUse", "RuntimeTooOld", "WebhookUnavailable"];

/// How far a clock may be off. The API server accepts tokens of service accounts with a leeway of one minute
/// (`docs/facts/kubernetes.md#clocks`).
const CLOCK_LEEWAY: SignedDuration = SignedDuration::from_mins(1);

/// Something that does not block an update, and that an operator should know before it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Warning {
    /// CamelCase reason.
    pub reason: &'static str,
    /// `Kind/name` of the object.
    pub object: String,
    /// What happens, as a sentence without a full stop.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

/// What a workload cluster shows about a target version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetFacts {
    /// Deprecated APIs that were requested.
    pub deprecated: BTreeSet<DeprecatedApi>,
    /// Container runtimes, as nodes report them: `containerd://2.1.4`.
    pub runtimes: BTreeMap<String, String>,
    /// Feature gates in the configuration that kubeadm gives to all kubelets.
    pub kubelet_gates: BTreeSet<String>,
    /// Webhooks that requests of an update depend on.
    pub webhooks: Vec<Webhook>,
    /// How far the clock of each node's host is ahead of its API server's.
    pub clocks: BTreeMap<String, SignedDuration>,
    /// Why the deprecated APIs could not be read, if so.
    pub unread_metrics: Option<String>,
    /// What else could not be read, as sentences without a full stop.
    pub unread: Vec<String>,
}

impl TargetFacts {
    /// Sets the gates from the KubeletConfiguration in the ConfigMap `kubelet-config`.
    pub fn set_kubelet_configuration(&mut self, text: &str) {
        self.kubelet_gates = flags::gates_of(text);
    }
}

impl View<'_> {
    /// Adds what gets in the way of updates of these machines in place. `before` is how many seconds pass before the
    /// first of them begins.
    pub(super) fn look_at_target(&mut self, machines: &[&Value], before: i64) {
        if machines.is_empty() {
            return;
        }
        self.look_for_removed_flags();
        let Some(Read::Known(hosts)) = self.hosts() else { return };
        let nodes: BTreeMap<&str, &str> = machines
            .iter()
            .map(|machine| (text(machine, "/status/nodeRef/name"), name(machine)))
            .filter(|(node, _)| !node.is_empty())
            .collect();
        let (from, to) = (self.plan.from.version().cloned(), self.plan.to.version().cloned());
        let new_minor = to.filter(|to| from.is_none_or(|from| from.minor_below(to)));
        if let Some(minor) = new_minor.map(|to| to.minor()) {
            self.look_at_runtimes(hosts, &nodes, minor);
            if self.group.owner() == Some(Owner::ControlPlane) {
                self.plan.warnings.extend(apis::warnings(&hosts.target.deprecated, minor));
                self.plan.notes.extend(hosts.target.unread_metrics.clone());
            }
        }
        self.plan.notes.extend(hosts.target.unread.iter().cloned());
        if let Some(disruption) = self.plan.disruption.filter(|one| *one >= Disruption::Drain) {
            let nodes = nodes.keys().copied().collect();
            let webhooks = webhooks::warnings(&hosts.target.webhooks, &nodes, disruption);
            self.plan.warnings.extend(webhooks);
        }
        let end = self.plan.seconds.map(|seconds| seconds.saturating_add(before));
        let end =
            end.and_then(|end| self.input.now.checked_add(SignedDuration::from_secs(end)).ok());
        let plans = &hosts.preflight.plans;
        let certificates = certificates::warnings(plans, &nodes, self.input.now, end);
        self.plan.warnings.extend(certificates);
        self.plan.warnings.extend(clock(hosts, &nodes, self.input.now));
    }

    fn look_at_runtimes(&mut self, hosts: &Hosts, nodes: &BTreeMap<&str, &str>, minor: u64) {
        let mut found: BTreeMap<Fit, (Vec<String>, String)> = BTreeMap::new();
        for (node, machine) in nodes {
            let Some(runtime) = hosts.target.runtimes.get(*node) else { continue };
            let Some(fit) = runtime::fit(runtime, minor) else { continue };
            let first = || (Vec::new(), format!("Node {node} has {runtime}"));
            found.entry(fit).or_insert_with(first).0.push((*machine).to_owned());
        }
        for (fit, (machines, first)) in found {
            let object = format!("Machine/{}", machines.first().cloned().unwrap_or_default());
            let who = many(&machines);
            match fit {
                Fit::TooOld => {
                    let message = format!(
                        "{who}{first}, and the kubelet of v1.{minor} needs containerd 1.6 or later: its update stops \
                         before the machine is disturbed; upgrade containerd first"
                    );
                    self.block("RuntimeTooOld", object, message);
                }
                Fit::MayBeTooOld => self.plan.warnings.push(Warning {
                    reason: "RuntimeTooOld",
                    object,
                    message: format!(
                        "{who}{first}, and kubelets from v1.37 on are announced to need containerd 2.0 or later"
                    ),
                    remedy: "upgrade containerd first".to_owned(),
                }),
            }
        }
    }
}

/// The warning about hosts whose clock is off: the one that is off the most stands for all.
fn clock(hosts: &Hosts, nodes: &BTreeMap<&str, &str>, now: Timestamp) -> Option<Warning> {
    let mut off: Vec<(SignedDuration, &str, &str)> = nodes
        .iter()
        .filter(|(node, _)| hosts.report(node, now) == HostReport::Fresh)
        .filter_map(|(node, machine)| Some((*hosts.target.clocks.get(*node)?, *node, *machine)))
        .filter(|(ahead, ..)| ahead.abs() > CLOCK_LEEWAY)
        .collect();
    off.sort_by_key(|(ahead, node, _)| (std::cmp::Reverse(ahead.abs()), *node));
    let (ahead, node, machine) = *off.first()?;
    let machines: Vec<String> = off.iter().map(|(.., machine)| (*machine).to_owned()).collect();
    let seconds = ahead.abs().as_secs();
    let how = if ahead.is_negative() {
        format!(
            "is {seconds} s behind that of the API server, or its last report was late by that much"
        )
    } else {
        format!("is {seconds} s ahead of that of the API server")
    };
    Some(Warning {
        reason: "ClockSkew",
        object: format!("Machine/{machine}"),
        message: format!(
            "{}the clock of Node {node} {how}: tokens and new certificates may be refused",
            many(&machines)
        ),
        remedy: "check the time synchronization of the host".to_owned(),
    })
}
