//! The status of a MachineDeployment.

use std::cmp::Ordering;

use refit_cluster_api::kinds::MachineDeploymentStatus;
use refit_cluster_api::rollout::MachineDeployment;
use serde_json::{Value, json};

use super::Group;
use crate::{
    aggregate::{machines_up_to_date, outdated},
    conditions::{DesiredCondition, merged},
    context::Context,
    error::Error,
};

/// Writes the status if it changed.
pub(super) async fn write(context: &Context, group: &Group) -> Result<(), Error> {
    let deployment = &group.deployment;
    let counts = count(group);
    let existing: MachineDeploymentStatus = deployment.status.clone().unwrap_or_default();
    let generation = deployment.metadata.generation;
    let machines = || group.machines.iter().map(|machine| &***machine);
    let mut desired = conditions(&group.snapshot, counts, outdated(machines()));
    desired.push(machines_up_to_date(machines()));
    let status = json!({
        "replicas": counts.replicas,
        "readyReplicas": counts.ready,
        "availableReplicas": counts.available,
        "upToDateReplicas": counts.up_to_date,
        "phase": phase(&group.snapshot, counts),
        "observedGeneration": generation,
        "conditions": merged(&existing.conditions, context.now(), generation, &desired),
    });
    context.merge_status(&context.deployments, deployment, &status).await?;
    Ok(())
}

/// Whether a rollout is complete: every Machine exists, is current and available.
pub(super) fn is_complete(group: &Group) -> bool {
    let counts = count(group);
    let wanted = group.snapshot.replicas;
    [counts.replicas, counts.up_to_date, counts.available].iter().all(|count| *count == wanted)
}

/// The sums over all MachineSets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    replicas: i64,
    ready: i64,
    available: i64,
    up_to_date: i64,
}

fn count(group: &Group) -> Counts {
    let mut counts = Counts::default();
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    for set in &group.sets {
        counts.replicas += number(set.at("/status/replicas"));
        counts.ready += number(set.at("/status/readyReplicas"));
        counts.available += number(set.at("/status/availableReplicas"));
        counts.up_to_date += number(set.at("/status/upToDateReplicas"));
    }
    counts
}

fn phase(deployment: &MachineDeployment, counts: Counts) -> &'static str {
    match counts.replicas.cmp(&deployment.replicas) {
        Ordering::Less => "ScalingUp",
        Ordering::Equal => "Running",
        Ordering::Greater => "ScalingDown",
    }
}

/// The conditions, with `outdated` counted from the Machines' own conditions: the counts of the
/// MachineSets lag while a Machine moves from one to another.
fn conditions(
    deployment: &MachineDeployment,
    counts: Counts,
    outdated: usize,
) -> Vec<DesiredCondition> {
    let posts = deployment.fenceposts();
    let least = (deployment.replicas - posts.unavailable).max(0);
    let enough = counts.available >= least;
    let available = if enough {
        DesiredCondition::new("Available", true, "Available", "")
    } else {
        let message = format!(
            "{} available replicas, at least {least} required (maxUnavailable is {}, spec.replicas \
             is {})",
            counts.available, posts.unavailable, deployment.replicas
        );
        DesiredCondition::new("Available", false, "NotAvailable", message)
    };
    let rolling = if outdated > 0 {
        let message = format!("Rolling out {outdated} not up-to-date replicas");
        DesiredCondition::new("RollingOut", true, "RollingOut", message)
    } else {
        DesiredCondition::new("RollingOut", false, "NotRollingOut", "")
    };
    vec![available, rolling]
}

#[cfg(test)]
mod tests {
    use refit_cluster_api::{
        IntOrPercent,
        rollout::{Strategy, Template},
    };

    use super::*;
    use crate::conditions::Status;

    fn deployment(replicas: i64) -> MachineDeployment {
        MachineDeployment {
            name: "md".to_owned(),
            replicas,
            strategy: Strategy::rolling_update(IntOrPercent::Int(0), IntOrPercent::Int(1)),
            template: Template::default(),
            rollout_after: None,
        }
    }

    fn counts(replicas: i64, available: i64, up_to_date: i64) -> Counts {
        Counts { replicas, ready: available, available, up_to_date }
    }

    #[test]
    fn one_machine_may_be_missing_if_the_strategy_allows_it() {
        let desired = conditions(&deployment(5), counts(5, 4, 5), 0);
        assert_eq!(desired[0].status, Status::True);
        let desired = conditions(&deployment(5), counts(5, 3, 5), 0);
        assert_eq!(
            desired[0].message,
            "3 available replicas, at least 4 required (maxUnavailable is 1, spec.replicas is 5)"
        );
    }

    #[test]
    fn a_rollout_goes_on_while_machines_are_outdated() {
        let desired = conditions(&deployment(5), counts(5, 5, 2), 3);
        assert_eq!(desired[1].message, "Rolling out 3 not up-to-date replicas");
        let desired = conditions(&deployment(5), counts(5, 5, 5), 0);
        assert_eq!(desired[1].status, Status::False);
    }

    #[test]
    fn a_machine_on_its_way_between_two_sets_ends_no_rollout() {
        // The old set has handed it over, and the new one has not counted it yet.
        let desired = conditions(&deployment(5), counts(4, 4, 4), 1);
        assert_eq!(desired[1].status, Status::True);
        // The reverse order.
        let desired = conditions(&deployment(5), counts(5, 5, 4), 0);
        assert_eq!(desired[1].status, Status::False);
    }

    #[test]
    fn the_phase_follows_the_number_of_machines() {
        assert_eq!(phase(&deployment(3), counts(2, 0, 0)), "ScalingUp");
        assert_eq!(phase(&deployment(3), counts(4, 0, 0)), "ScalingDown");
        assert_eq!(phase(&deployment(3), counts(3, 0, 0)), "Running");
    }
}
