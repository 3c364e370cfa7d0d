//! One machine's update: its phases, its steps, what a failure means.
//!
//! [`decide`] looks at all known facts about one NodeUpdate and returns at most one next write. It
//! keeps no state: the progress is derived from the HostPlan, the Node and the group's slots, so
//! after a crash between two writes the next decision continues at the same place.
//! `NodeUpdate.status` only displays it, except for facts that cannot be derived again: the role, a
//! final phase, and that the drain was skipped as pointless.
//!
//! ```text
//! worker:        Pending -> Staging -> Waiting ----------------.
//! control plane: Pending -> Waiting -> Staging -----------------+-> Upgrading -> Draining
//!                                                                     |
//!        Succeeded <- Uncordoning <- Verifying <- Disrupting <--------'
//! ```
//!
//! A worker's host downloads before it holds a slot. A control plane member claims its slot first:
//! only then is it certain which other members already run the target version, and so which member
//! must run `kubeadm upgrade apply` (`docs/facts/kubeadm.md#first-control-plane`).
//!
//! What must hold before a machine is begun is one list, `preflight`.
//!
//! The point of no return is the gate Upgrade of a control plane machine, and the gate Disrupt of a
//! worker. An abort before it stops the update and rolls it back; after it, the update runs to
//! completion.

mod adopt;
mod availability;
mod budgets;
mod claim;
mod conflict;
mod decide;
mod disruption;
mod disruption_policy;
mod drain;
mod drain_ladder;
mod drain_policy;
mod drain_report;
mod drain_sort;
mod end;
mod expiry;
mod gate;
mod guard;
mod health;
mod host;
mod k8sd;
mod k8sd_certificates;
mod left;
mod lost;
mod member_missing;
mod objects;
mod order;
mod parts;
mod path_class;
mod preflight;
mod provider;
mod provider_object;
mod prune;
mod renewal;
mod role;
mod seen;
mod snapshot;
mod status;
mod steps;
mod stop;
mod verify;
mod work;
mod work_order;
mod workers;

#[cfg(test)]
mod tests;

pub use adopt::NOT_ADOPTED;
pub use availability::{MachineView, is_available};
pub use budgets::{BudgetView, DrainAhead, namespaces_of_leaving};
pub use decide::decide;
pub use disruption_policy::{
    Actions, NodePolicies, actions_of_file, actions_of_user, node_disruption_policy,
};
pub use drain::another_could_take;
pub use drain_ladder::{How, Removal};
pub use drain_policy::{
    DrainChoice, DrainPolicy, NotATime, PodPolicy, drain_policy, parse_limit, parse_span,
};
pub use drain_report::{DrainReason, DrainRefusal};
pub use drain_sort::{
    Attachment, DrainView, Labels, PodView, Sorted, asks_for_namespaces, claims_that_stay,
    is_emptied, rules_of, sort,
};
pub use gate::{
    awaits_budget, awaits_configuration, awaits_gates, awaits_request, requires_drain_ahead,
    requires_gates, requires_live_configuration, requires_live_read, requires_live_settings,
};
pub use health::control_plane_health;
pub use health::member_problem;
pub use host::{
    Arrival, HostWork, Reboot, SettingsSources, Specificity, applying_settings, from_bundle,
    host_settings, plan_steps, settings_had,
};
pub use k8sd::{
    Attempts as K8sdAttempts, K8sdCall, Request as K8sdRequest, after_k8sd_failure, after_refresh,
    after_status, attempt_begun, k8sd_call,
};
pub use k8sd_certificates::{CertificatesFailure, after_certificates, begins_attempt};
pub use left::Ended;
pub use lost::HOST_LOST;
pub use member_missing::{MEMBER_MISSING, request_again};
pub use objects::{MAX_TAINTS, MAX_TEXT, short};
pub use order::{newest, newest_upgrade, of_rollouts, speaker};
pub use parts::{Called, after_ask, after_call, after_verification, begun};
pub use path_class::unit_of;
pub use preflight::{Begun, Check, Found, Preflight, Weight, workload_refusal};
pub use provider::may_be_at_work;
pub use provider_object::{provider_object, provider_object_name};
pub use prune::{KEPT_FOR, KEPT_UPDATES, prunable};
pub use role::decide_role;
pub use seen::{ControlPlaneMember, ImageVersion, NodeView, Seen, StaticPod, Workload};
pub use snapshot::{
    Announcement, ConfigurationValues, Decision, EvictionRefusal, Group, GroupState, Leaving,
    ManagementWrite, OtherMachines, Others, PodRef, ProviderOrder, Providers, Replacer, Severity,
    Snapshot, WorkloadWrite, Write,
};
pub use status::is_past_return;
pub use steps::{STEP_CORDON, STEP_DRAIN, STEP_NODE_READY, STEP_UNCORDON, step_names};
pub use stop::{REQUEST_WITHDRAWN, SUPERSEDED, has_brought_version, is_half_upgraded};
pub use verify::version_differences;
