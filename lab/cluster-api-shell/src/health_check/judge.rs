//! Whether one Machine is healthy: a pure decision over observed state.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use refit_cluster_api::kinds::{HealthChecks, UnhealthyCondition};
use refit_kinds::{conditions, keys};

/// Default time that a Machine may be without a Node, in seconds.
const NODE_STARTUP_TIMEOUT_SECONDS: i32 = 600;

/// The observed Node of a Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ObservedNode {
    /// Not registered yet.
    Awaited,
    /// Registered before and now missing.
    Gone(String),
    /// Its conditions: type, status, since when.
    Known(Vec<(String, String, Timestamp)>),
}

/// The observed state of a checked Machine.
#[derive(Clone, Debug)]
pub(super) struct CheckedMachine<'a> {
    /// The Machine has the annotation `cluster.x-k8s.io/remediate-machine`.
    pub(super) marked: bool,
    /// Its conditions.
    pub(super) conditions: &'a [Condition],
    /// The Cluster's conditions.
    pub(super) cluster_conditions: &'a [Condition],
    /// Creation time.
    pub(super) created_at: Timestamp,
    /// The Machine is being deleted.
    pub(super) deleting: bool,
    /// Its Node.
    pub(super) node: ObservedNode,
}

/// The result of a check for one Machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No check fails.
    Healthy,
    /// A check fails, but not for long enough yet; or its state is unknown.
    Waiting(Option<Timestamp>),
    /// A check fails.
    Unhealthy {
        /// Reason of the condition `HealthCheckSucceeded`.
        reason: &'static str,
        /// Its message.
        message: String,
    },
}

fn unhealthy(reason: &'static str, what: &str) -> Verdict {
    Verdict::Unhealthy { reason, message: format!("Health check failed: {what}") }
}

/// Checks a Machine as Cluster API's MachineHealthCheck controller does.
pub(super) fn judge(checks: &HealthChecks, seen: &CheckedMachine<'_>, now: Timestamp) -> Verdict {
    if seen.marked {
        let what = format!("marked for remediation via {} annotation", keys::REMEDIATE_MACHINE);
        return unhealthy("HasRemediateAnnotation", &what);
    }
    let machine_condition = |check: &UnhealthyCondition| {
        let condition = conditions::get(seen.conditions, &check.type_)?;
        Some((condition.status.clone(), condition.last_transition_time.0))
    };
    let machine =
        bad_for_long("Machine", &checks.unhealthy_machine_conditions, machine_condition, now);
    if let Bad::Unhealthy(what) = machine {
        return unhealthy("UnhealthyMachine", &what);
    }
    // A Cluster that is still coming up has no healthy Nodes yet, which is not the Machine's
    // failure.
    let initialized = conditions::is_true(seen.cluster_conditions, "ControlPlaneInitialized");
    let node = match &seen.node {
        ObservedNode::Gone(name) => {
            return unhealthy("NodeDeleted", &format!("Node {name} has been deleted"));
        }
        _ if !initialized => return Verdict::Waiting(machine.next()),
        ObservedNode::Awaited => return startup(checks, seen, now, machine.next()),
        ObservedNode::Known(known) => bad_for_long(
            "Node",
            &checks.unhealthy_node_conditions,
            |check| {
                let found = known.iter().find(|(type_, _, _)| *type_ == check.type_);
                found.map(|(_, status, since)| (status.clone(), *since))
            },
            now,
        ),
    };
    match (machine.next(), node) {
        (_, Bad::Unhealthy(what)) => unhealthy("UnhealthyNode", &what),
        (one, other) => match one.into_iter().chain(other.next()).min() {
            Some(next) => Verdict::Waiting(Some(next)),
            None if seen.deleting => Verdict::Waiting(None),
            None => Verdict::Healthy,
        },
    }
}

/// The result of checking a list of conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Bad {
    No,
    /// A condition is bad, and will exceed its timeout at this time.
    Until(Timestamp),
    Unhealthy(String),
}

impl Bad {
    fn next(&self) -> Option<Timestamp> {
        match self {
            Self::Until(next) => Some(*next),
            Self::No | Self::Unhealthy(_) => None,
        }
    }
}

fn bad_for_long(
    whose: &str,
    checks: &[UnhealthyCondition],
    find: impl Fn(&UnhealthyCondition) -> Option<(String, Timestamp)>,
    now: Timestamp,
) -> Bad {
    let mut next: Option<Timestamp> = None;
    for check in checks {
        let Some((status, since)) = find(check) else {
            continue;
        };
        if status != check.status {
            continue;
        }
        let end = later(since, check.timeout_seconds);
        if end <= now {
            return Bad::Unhealthy(format!(
                "Condition {} on {whose} is reporting status {status} for more than {}",
                check.type_,
                duration(check.timeout_seconds)
            ));
        }
        next = next.into_iter().chain([end]).min();
    }
    next.map_or(Bad::No, Bad::Until)
}

/// A Machine without a Node has the startup timeout, counted from the last of its prerequisites.
fn startup(
    checks: &HealthChecks,
    seen: &CheckedMachine<'_>,
    now: Timestamp,
    other: Option<Timestamp>,
) -> Verdict {
    let timeout = checks.node_startup_timeout_seconds.unwrap_or(NODE_STARTUP_TIMEOUT_SECONDS);
    if timeout == 0 {
        return Verdict::Waiting(other);
    }
    let since_true = |list: &[Condition], type_: &str| {
        let condition = conditions::get(list, type_)?;
        (condition.status == "True").then_some(condition.last_transition_time.0)
    };
    let since = [
        Some(seen.created_at),
        since_true(seen.cluster_conditions, "ControlPlaneInitialized"),
        since_true(seen.cluster_conditions, "InfrastructureReady"),
        since_true(seen.conditions, "InfrastructureReady"),
    ];
    let since = since.into_iter().flatten().max().unwrap_or(now);
    let end = later(since, timeout);
    if end <= now {
        let what = format!("Node failed to report startup in {}", duration(timeout));
        return unhealthy("NodeStartupTimeout", &what);
    }
    Verdict::Waiting(other.into_iter().chain([end]).min())
}

/// The end of a timeout; the maximum timestamp if the sum would overflow.
fn later(since: Timestamp, seconds: i32) -> Timestamp {
    let end = since.checked_add(SignedDuration::from_secs(i64::from(seconds)));
    end.unwrap_or(Timestamp::MAX)
}

/// Formats seconds as Cluster API does: `5m0s`.
fn duration(seconds: i32) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_condition_with_the_maximum_timestamp_is_waited_for() {
        assert_eq!(later(Timestamp::MAX, 300), Timestamp::MAX);
        assert_eq!(later(at(5), 300), at(305));
    }

    fn check(type_: &str, status: &str, timeout_seconds: i32) -> UnhealthyCondition {
        UnhealthyCondition { type_: type_.to_owned(), status: status.to_owned(), timeout_seconds }
    }

    fn checks() -> HealthChecks {
        HealthChecks {
            node_startup_timeout_seconds: None,
            unhealthy_node_conditions: vec![
                check("Ready", "Unknown", 300),
                check("Ready", "False", 400),
            ],
            unhealthy_machine_conditions: vec![check("MachineUpToDate", "False", 60)],
        }
    }

    fn conditions_of(list: &[(&str, &str, i64)]) -> Vec<Condition> {
        let mut all = Vec::new();
        for (type_, status, since) in list {
            conditions::set(&mut all, at(*since), None, (type_, status, "R", ""));
        }
        all
    }

    fn node(status: &str, since: i64) -> ObservedNode {
        ObservedNode::Known(vec![("Ready".to_owned(), status.to_owned(), at(since))])
    }

    fn judged(machine: &[(&str, &str, i64)], node: ObservedNode, now: i64) -> Verdict {
        let cluster = conditions_of(&[("ControlPlaneInitialized", "True", 50)]);
        let machine = conditions_of(machine);
        let seen = CheckedMachine {
            marked: false,
            conditions: &machine,
            cluster_conditions: &cluster,
            created_at: at(0),
            deleting: false,
            node,
        };
        judge(&checks(), &seen, at(now))
    }

    fn reason(verdict: &Verdict) -> &'static str {
        match verdict {
            Verdict::Unhealthy { reason, .. } => reason,
            Verdict::Healthy => "Healthy",
            Verdict::Waiting(_) => "Waiting",
        }
    }

    #[test]
    fn a_node_may_be_bad_until_its_checks_timeout() {
        let table = [
            (node("True", 0), 1000, "Healthy"),
            (node("Unknown", 700), 999, "Waiting"),
            (node("Unknown", 700), 1000, "UnhealthyNode"),
            (node("False", 700), 1000, "Waiting"),
            (node("False", 700), 1100, "UnhealthyNode"),
            (ObservedNode::Gone("n".into()), 1000, "NodeDeleted"),
            (ObservedNode::Known(Vec::new()), 1000, "Healthy"),
        ];
        for (node, now, want) in table {
            let got = judged(&[], node.clone(), now);
            assert_eq!(reason(&got), want, "{node:?} {now}");
        }
        assert_eq!(judged(&[], node("Unknown", 700), 800), Verdict::Waiting(Some(at(1000))));
        let Verdict::Unhealthy { message, .. } = judged(&[], node("Unknown", 700), 1000) else {
            panic!("it is unhealthy");
        };
        assert_eq!(
            message,
            "Health check failed: Condition Ready on Node is reporting status Unknown for more \
             than 5m0s"
        );
    }

    #[test]
    fn a_machine_that_failed_for_good_is_unhealthy_and_one_that_is_updated_is_not() {
        let table = [
            ("Unknown", 1000, "Healthy"),
            ("True", 1000, "Healthy"),
            ("False", 559, "Waiting"),
            ("False", 560, "UnhealthyMachine"),
        ];
        for (status, now, want) in table {
            let machine = [("MachineUpToDate", status, 500)];
            let got = judged(&machine, node("True", 0), now);
            assert_eq!(reason(&got), want, "{status} {now}");
        }
    }

    #[test]
    fn a_machine_without_a_node_has_until_the_startup_timeout() {
        let table = [
            (&[][..], 649, "Waiting"),
            (&[][..], 650, "NodeStartupTimeout"),
            (&[("InfrastructureReady", "True", 200)][..], 799, "Waiting"),
            (&[("InfrastructureReady", "True", 200)][..], 800, "NodeStartupTimeout"),
        ];
        for (machine, now, want) in table {
            let got = judged(machine, ObservedNode::Awaited, now);
            assert_eq!(reason(&got), want, "{machine:?} {now}");
        }
    }

    #[test]
    fn a_zero_timeout_or_a_starting_cluster_never_fails_startup() {
        let none = Vec::new();
        let mut seen = CheckedMachine {
            marked: false,
            conditions: &none,
            cluster_conditions: &none,
            created_at: at(0),
            deleting: false,
            node: ObservedNode::Awaited,
        };
        assert_eq!(judge(&checks(), &seen, at(100_000)), Verdict::Waiting(None));
        let cluster = conditions_of(&[("ControlPlaneInitialized", "True", 50)]);
        seen.cluster_conditions = &cluster;
        let mut never = checks();
        never.node_startup_timeout_seconds = Some(0);
        assert_eq!(judge(&never, &seen, at(100_000)), Verdict::Waiting(None));
    }

    #[test]
    fn an_annotation_is_enough() {
        let none = Vec::new();
        let seen = CheckedMachine {
            marked: true,
            conditions: &none,
            cluster_conditions: &none,
            created_at: at(0),
            deleting: false,
            node: ObservedNode::Awaited,
        };
        let verdict = judge(&checks(), &seen, at(1));
        assert_eq!(reason(&verdict), "HasRemediateAnnotation");
    }

    #[test]
    fn durations_look_like_cluster_apis() {
        assert_eq!(duration(45), "45s");
        assert_eq!(duration(600), "10m0s");
        assert_eq!(duration(3661), "1h1m1s");
    }
}
