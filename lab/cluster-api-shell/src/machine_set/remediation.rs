//! Remediation of Machines that a MachineHealthCheck found unhealthy: their MachineSet deletes
//! them, and replaces them like any missing Machine.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt as _;
use refit_cluster_api::{
    IntOrPercent,
    kinds::{Machine, MachineDeployment, MachineSet, MachineStatus},
    rollout::remediation::Need,
};
use refit_kinds::{conditions::OWNER_REMEDIATED, keys};
use refit_runtime::{ObjectKey, queue::Action};
use serde_json::{Value, json};

use super::{PREFLIGHT_WAIT, machines, preflight};
use crate::{
    conditions::{DesiredCondition, merged, without},
    context::{Context, controller_of, namespace_of},
    error::Error,
    live::Live,
    snapshot,
};

/// The next step for one Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// The Machine is healthy again: the condition is removed.
    Forget,
    /// The Machine's MachineSet is being replaced.
    Leave,
    /// Too many other Machines are being remediated.
    Defer(String),
    Delete,
}

/// A Machine to decide on.
#[derive(Clone, Debug)]
struct Candidate {
    name: String,
    created_at: Timestamp,
    need: Need,
}

/// Remediates; returns when to reconcile again, if a step has to wait.
pub(super) async fn run(
    context: &Arc<Context>,
    set: &Live<MachineSet>,
) -> Result<Option<Action>, Error> {
    let machines = machines(context, set);
    let candidates: Vec<Candidate> = machines
        .iter()
        .map(|machine| Candidate {
            name: machine.name_any(),
            created_at: snapshot::created_at(machine),
            need: machine.need(),
        })
        .collect();
    if candidates.iter().all(|one| one.need == Need::None) {
        return Ok(None);
    }
    let (current, limit) = match Owner::of(context, set) {
        Owner::Unowned => (true, None),
        // The controller cannot determine whether the MachineSet is current: it does nothing.
        Owner::Missing => return Ok(None),
        Owner::Deployment(deployment) => (is_current(set, &deployment), limit(&deployment)),
    };
    let mut steps = plan(&candidates, current, limit.as_ref());
    let mut action = None;
    if steps.iter().any(|(_, step)| *step == Step::Delete) {
        let failures = preflight::failures(context, set);
        if !failures.is_empty() {
            // Keep an unhealthy Machine that could not be replaced.
            let message = failures.join(", ");
            for (_, step) in &mut steps {
                if *step == Step::Delete {
                    *step = Step::Defer(message.clone());
                }
            }
            action = Some(Action::RequeueAfter(PREFLIGHT_WAIT));
        }
    }
    for (name, step) in steps {
        let key = ObjectKey::new(namespace_of(set), name);
        if let Some(machine) = context.machines.get(&key) {
            execute(context, &machine, step).await?;
        }
    }
    Ok(action)
}

/// Decides for every Machine with a request for remediation. The newest go first: they are the
/// least likely to run workloads.
fn plan(candidates: &[Candidate], current: bool, limit: Option<&Limit>) -> Vec<(String, Step)> {
    let mut steps: Vec<(String, Step)> = candidates
        .iter()
        .filter(|one| one.need == Need::Recovered)
        .map(|one| (one.name.clone(), Step::Forget))
        .collect();
    let mut waiting: Vec<&Candidate> =
        candidates.iter().filter(|one| one.need == Need::Owner).collect();
    waiting.sort_by(|a, b| (b.created_at, &a.name).cmp(&(a.created_at, &b.name)));
    let in_flight = candidates.iter().filter(|one| one.need == Need::Leaving).count();
    let room = limit.map_or(usize::MAX, |limit| limit.count.saturating_sub(in_flight));
    for (at, one) in waiting.into_iter().enumerate() {
        let step = match limit {
            _ if !current => Step::Leave,
            Some(limit) if at >= room => Step::Defer(format!(
                "Waiting because there are already too many remediations in progress \
                 (spec.remediation.maxInFlight is {})",
                limit.text
            )),
            _ => Step::Delete,
        };
        steps.push((one.name.clone(), step));
    }
    steps
}

/// The MachineDeployment of a MachineSet.
enum Owner {
    /// The MachineSet belongs to no MachineDeployment.
    Unowned,
    /// The MachineDeployment no longer exists.
    Missing,
    Deployment(Arc<Live<MachineDeployment>>),
}

impl Owner {
    fn of(context: &Context, set: &Live<MachineSet>) -> Self {
        let Some(("MachineDeployment", name)) = controller_of(set) else {
            return Self::Unowned;
        };
        let key = ObjectKey::new(namespace_of(set), name);
        context.deployments.get(&key).map_or(Self::Missing, Self::Deployment)
    }
}

/// Whether a MachineSet has the revision of its MachineDeployment: the rollout replaces the
/// Machines of others (`docs/facts/machine-deployment.md#machineset-remediation`).
fn is_current(set: &MachineSet, deployment: &MachineDeployment) -> bool {
    set.annotations().get(keys::REVISION) == deployment.annotations().get(keys::REVISION)
}

/// `spec.remediation.maxInFlight` of a MachineDeployment.
#[derive(Clone, Debug)]
struct Limit {
    count: usize,
    text: String,
}

fn limit(deployment: &Live<MachineDeployment>) -> Option<Limit> {
    let value = deployment.at("/spec/remediation/maxInFlight");
    let amount = IntOrPercent::try_from(value).ok()?;
    let count = amount.rounded_up(i64::from(deployment.spec.replicas.unwrap_or(1)));
    Some(Limit {
        count: usize::try_from(count).unwrap_or(0),
        text: value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    })
}

async fn execute(context: &Context, machine: &Live<Machine>, step: Step) -> Result<(), Error> {
    let owner_remediated =
        |reason, message: &str| DesiredCondition::new(OWNER_REMEDIATED, false, reason, message);
    let (condition, delete) = match step {
        Step::Forget => {
            let list = without(conditions_of(machine), OWNER_REMEDIATED);
            let status = json!({ "conditions": list });
            context.merge_status(&context.machines, machine, &status).await?;
            return Ok(());
        }
        Step::Leave => {
            let message =
                "Machine won't be remediated because it is pending removal due to rollout";
            (owner_remediated("CannotBeRemediated", message), false)
        }
        Step::Defer(message) => (owner_remediated("RemediationDeferred", &message), false),
        Step::Delete => (owner_remediated("MachineDeleting", "Machine is being deleted"), true),
    };
    // The condition is set first: a Machine that is being deleted is not processed again.
    let machine = set_condition(context, machine, condition).await?;
    if delete {
        tracing::info!(machine = machine.name_any(), "deleting unhealthy Machine");
        context.delete(&context.machines, &machine).await?;
    }
    Ok(())
}

fn conditions_of(
    machine: &Machine,
) -> &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition] {
    let status = machine.status.as_ref();
    status.map_or(&[][..], |status| &status.conditions)
}

async fn set_condition(
    context: &Context,
    machine: &Live<Machine>,
    condition: DesiredCondition,
) -> Result<Arc<Live<Machine>>, Error> {
    let existing: MachineStatus = machine.status.clone().unwrap_or_default();
    let generation = machine.metadata.generation;
    let list: Value = merged(&existing.conditions, context.now(), generation, &[condition]);
    let status = json!({ "conditions": list });
    context.merge_status(&context.machines, machine, &status).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str, created: i64, need: Need) -> Candidate {
        Candidate {
            name: name.to_owned(),
            created_at: Timestamp::from_second(created).unwrap(),
            need,
        }
    }

    fn words(candidates: &[Candidate], current: bool, limit: Option<usize>) -> Vec<String> {
        let limit = limit.map(|count| Limit { count, text: count.to_string() });
        let steps = plan(candidates, current, limit.as_ref());
        steps
            .into_iter()
            .map(|(name, step)| {
                let word = match step {
                    Step::Forget => "forget",
                    Step::Leave => "leave",
                    Step::Defer(_) => "defer",
                    Step::Delete => "delete",
                };
                format!("{name} {word}")
            })
            .collect()
    }

    #[test]
    fn all_unhealthy_machines_go_the_newest_first() {
        let all = [
            machine("a", 1, Need::Owner),
            machine("b", 3, Need::Owner),
            machine("c", 2, Need::None),
            machine("d", 3, Need::Owner),
        ];
        assert_eq!(words(&all, true, None), ["b delete", "d delete", "a delete"]);
    }

    #[test]
    fn no_more_are_in_flight_than_the_deployment_allows() {
        let all = [
            machine("a", 1, Need::Owner),
            machine("b", 2, Need::Owner),
            machine("c", 3, Need::Leaving),
        ];
        assert_eq!(words(&all, true, Some(2)), ["b delete", "a defer"]);
        assert_eq!(words(&all, true, Some(1)), ["b defer", "a defer"]);
    }

    #[test]
    fn an_old_sets_machines_are_left_to_the_rollout() {
        let all = [machine("a", 1, Need::Owner)];
        assert_eq!(words(&all, false, None), ["a leave"]);
    }

    #[test]
    fn a_set_is_current_with_the_revision_of_its_deployment() {
        let annotations = |revision: Option<&str>| revision.map(|it| json!({keys::REVISION: it}));
        let compare = |set: Option<&str>, deployment: Option<&str>| {
            let set: MachineSet = serde_json::from_value(json!({
                "metadata": {"name": "ms", "annotations": annotations(set)},
                "spec": {"clusterName": "c"},
            }))
            .unwrap();
            let deployment: MachineDeployment = serde_json::from_value(json!({
                "metadata": {"name": "md", "annotations": annotations(deployment)},
                "spec": {"clusterName": "c"},
            }))
            .unwrap();
            is_current(&set, &deployment)
        };
        assert!(compare(Some("2"), Some("2")));
        assert!(!compare(Some("1"), Some("2")));
        // A paused MachineDeployment keeps its revision while another client adds a MachineSet.
        assert!(!compare(Some("3"), Some("2")));
        assert!(!compare(Some("1"), None));
        assert!(compare(None, None));
    }

    #[test]
    fn a_machine_that_is_well_again_is_left_alone() {
        let all = [machine("a", 1, Need::Recovered)];
        assert_eq!(words(&all, false, Some(0)), ["a forget"]);
    }
}
