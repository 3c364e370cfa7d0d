//! Control plane machines that a MachineHealthCheck found unhealthy: one at a time is deleted, where
//! etcd keeps its quorum, and a new one takes its place.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::remediation::Need;

/// On a KubeadmControlPlane: the machine that is being remediated, until its successor is made.
pub(super) const IN_PROGRESS: &str = "controlplane.cluster.x-k8s.io/remediation-in-progress";
/// How long a machine has to be healthy before its failure is a new one, in seconds.
const MIN_HEALTHY_PERIOD_SECONDS: i64 = 3600;

/// One remediation, as the annotations carry it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Remediation {
    /// The machine that is replaced.
    pub(super) machine: String,
    /// When it was decided.
    pub(super) timestamp: Timestamp,
    /// How many failed before it in a row.
    pub(super) retry_count: i32,
}

/// A control plane machine.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) created_at: Timestamp,
    pub(super) need: Need,
    pub(super) deleting: bool,
    pub(super) has_node: bool,
    pub(super) etcd_healthy: bool,
    pub(super) components_healthy: bool,
    /// The remediation that it was made for.
    pub(super) made_for: Option<Remediation>,
}

/// `spec.remediation` of a KubeadmControlPlane.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Limits {
    max_retry: Option<i32>,
    retry_period_seconds: Option<i64>,
    min_healthy_period_seconds: Option<i64>,
}

/// What is decided on.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) replicas: usize,
    pub(super) initialized: bool,
    pub(super) managed_etcd: bool,
    pub(super) members: Vec<Member>,
    pub(super) in_progress: Option<Remediation>,
    pub(super) limits: Limits,
    pub(super) now: Timestamp,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing: no machine asks for it.
    Nothing,
    /// The machine is well again: the request is dropped.
    Forget(String),
    /// The note on the control plane has served.
    Close,
    /// Not now.
    Defer(String, String),
    /// Not at all, as things are.
    Cannot(String, String),
    /// The machine is deleted.
    Delete(Remediation),
}

/// Decides the next step.
pub(super) fn decide(input: &Input) -> Step {
    if let Some(member) = find(input, |one| one.need == Need::Recovered) {
        return Step::Forget(member.name.clone());
    }
    if is_over(input) {
        return Step::Close;
    }
    let Some(member) = candidate(input) else {
        return Step::Nothing;
    };
    let defer = |text: &str| Step::Defer(member.name.clone(), text.to_owned());
    let remediation = match &input.in_progress {
        Some(known) if known.machine == member.name => known.clone(),
        Some(_) => {
            return defer(
                "KubeadmControlPlane can't remediate this machine because another remediation is \
                 in progress",
            );
        }
        None => match retry_count(input, member) {
            Ok(retry_count) => {
                Remediation { machine: member.name.clone(), timestamp: input.now, retry_count }
            }
            Err(step) => return step,
        },
    };
    unsafe_to_remove(input, member).unwrap_or(Step::Delete(remediation))
}

fn find(input: &Input, wanted: impl Fn(&Member) -> bool) -> Option<&Member> {
    input.members.iter().find(|member| wanted(member))
}

/// Whether the remediation that the control plane has noted is over: its successor is there, the
/// machine is well again, or nobody is to succeed it.
fn is_over(input: &Input) -> bool {
    let Some(known) = &input.in_progress else {
        return false;
    };
    if find(input, |one| one.made_for.as_ref() == Some(known)).is_some() {
        return true;
    }
    match find(input, |one| one.name == known.machine) {
        Some(member) => !member.deleting && member.need == Need::None,
        None => input.members.len() >= input.replicas,
    }
}

/// The machine to remediate next: the one that was begun, then the oldest that never came up, then
/// the oldest.
fn candidate(input: &Input) -> Option<&Member> {
    let begun = input.in_progress.as_ref().map(|known| known.machine.as_str());
    let waiting = input.members.iter().filter(|one| one.need == Need::Owner);
    waiting.min_by_key(|one| {
        (begun != Some(one.name.as_str()), one.has_node, one.created_at, one.name.clone())
    })
}

/// How many remediations in a row have failed, if one more is allowed.
fn retry_count(input: &Input, member: &Member) -> Result<i32, Step> {
    let Some(last) = &member.made_for else {
        return Ok(0);
    };
    let Limits { max_retry, retry_period_seconds, min_healthy_period_seconds } = input.limits;
    let period = SignedDuration::from_secs(retry_period_seconds.unwrap_or(0));
    let healthy = min_healthy_period_seconds.unwrap_or(MIN_HEALTHY_PERIOD_SECONDS);
    let since = input.now.duration_since(last.timestamp);
    if since >= period.max(SignedDuration::from_secs(healthy)) {
        return Ok(0);
    }
    if since < period {
        return Err(Step::Defer(
            member.name.clone(),
            format!(
                "KubeadmControlPlane can't remediate this machine because the operation already \
                 failed in the latest {} seconds (RetryPeriod)",
                period.as_secs()
            ),
        ));
    }
    match max_retry {
        Some(most) if last.retry_count >= most => Err(Step::Cannot(
            member.name.clone(),
            format!(
                "KubeadmControlPlane can't remediate this machine because the operation already \
                 failed {most} times (MaxRetry)"
            ),
        )),
        _ => Ok(last.retry_count.saturating_add(1)),
    }
}

/// Why the control plane would not stand the loss of this machine.
fn unsafe_to_remove(input: &Input, member: &Member) -> Option<Step> {
    if !input.initialized {
        return None;
    }
    let cannot = |text: &str| Some(Step::Cannot(member.name.clone(), text.to_owned()));
    let defer = |text: &str| Some(Step::Defer(member.name.clone(), text.to_owned()));
    if input.members.len() <= 1 {
        return cannot(
            "KubeadmControlPlane can't remediate if current replicas are less or equal to 1",
        );
    }
    if find(input, |one| !one.has_node && !one.deleting && one.need == Need::None).is_some() {
        return defer(
            "KubeadmControlPlane waiting for control plane Machine provisioning to complete before \
             triggering remediation",
        );
    }
    if find(input, |one| one.deleting).is_some() {
        return defer(
            "KubeadmControlPlane waiting for control plane Machine deletion to complete before \
             triggering remediation",
        );
    }
    let others = || input.members.iter().filter(|one| one.name != member.name);
    let healthy = others().filter(|one| one.etcd_healthy).count();
    if input.managed_etcd && healthy < others().count() / 2 + 1 {
        return cannot(
            "KubeadmControlPlane can't remediate this Machine because this could result in etcd \
             loosing quorum",
        );
    }
    if !others().any(|one| one.components_healthy) {
        return cannot(
            "KubeadmControlPlane can't remediate this Machine because there are no other Machines \
             with all Kubernetes control plane components in healthy state",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn member(name: &str) -> Member {
        Member {
            name: name.to_owned(),
            created_at: at(0),
            need: Need::None,
            deleting: false,
            has_node: true,
            etcd_healthy: true,
            components_healthy: true,
            made_for: None,
        }
    }

    fn sick(name: &str) -> Member {
        Member { need: Need::Owner, etcd_healthy: false, components_healthy: false, ..member(name) }
    }

    fn input(members: Vec<Member>) -> Input {
        Input {
            replicas: 3,
            initialized: true,
            managed_etcd: true,
            members,
            in_progress: None,
            limits: Limits::default(),
            now: at(10_000),
        }
    }

    fn remediation(machine: &str, retry_count: i32) -> Remediation {
        Remediation { machine: machine.to_owned(), timestamp: at(9_000), retry_count }
    }

    fn word(step: &Step) -> String {
        match step {
            Step::Nothing => "nothing".to_owned(),
            Step::Close => "close".to_owned(),
            Step::Forget(name) => format!("forget {name}"),
            Step::Defer(name, _) => format!("defer {name}"),
            Step::Cannot(name, _) => format!("cannot {name}"),
            Step::Delete(remediation) => {
                format!("delete {} {}", remediation.machine, remediation.retry_count)
            }
        }
    }

    #[test]
    fn the_table_of_safe_and_unsafe_remediations() {
        let deleting = Member { deleting: true, ..member("d") };
        let new = Member { has_node: false, ..member("n") };
        let without_etcd = |name: &str| Member { etcd_healthy: false, ..member(name) };
        let without_components = |name: &str| Member { components_healthy: false, ..member(name) };
        let table = [
            (vec![member("a"), member("b"), member("c")], "nothing"),
            (vec![sick("a"), member("b"), member("c")], "delete a 0"),
            (vec![sick("a"), member("b")], "delete a 0"),
            (vec![sick("a")], "cannot a"),
            (vec![sick("a"), member("b"), deleting], "defer a"),
            (vec![sick("a"), member("b"), new], "defer a"),
            (vec![sick("a"), member("b"), without_etcd("c")], "cannot a"),
            (vec![sick("a"), sick("b"), member("c")], "cannot a"),
            (
                vec![sick("a"), without_etcd("b"), member("c"), member("d"), member("e")],
                "delete a 0",
            ),
            (vec![sick("a"), without_components("b"), without_components("c")], "cannot a"),
        ];
        for (members, want) in table {
            assert_eq!(word(&decide(&input(members.clone()))), want, "{members:?}");
        }
    }

    #[test]
    fn a_machine_that_never_came_up_goes_before_an_older_one() {
        let never = Member { created_at: at(5), has_node: false, ..sick("b") };
        let members = vec![sick("a"), never, member("c"), member("d"), member("e")];
        let mut all = input(members);
        all.replicas = 5;
        // The other one counts as a lost member; three of four are left.
        assert_eq!(word(&decide(&all)), "delete b 0");
    }

    #[test]
    fn what_was_begun_is_ended_and_then_closed() {
        let known = remediation("a", 0);
        let with = |members| Input { in_progress: Some(known.clone()), ..input(members) };
        let leaving = Member { deleting: true, need: Need::Leaving, ..sick("a") };
        let successor = Member { made_for: Some(known.clone()), ..member("n") };
        let table = [
            (vec![sick("a"), member("b"), member("c")], "delete a 0"),
            (vec![leaving, member("b"), member("c")], "nothing"),
            (vec![member("b"), member("c")], "nothing"),
            (vec![member("b"), sick("c")], "defer c"),
            (vec![member("b"), member("c"), successor], "close"),
            (vec![member("a"), member("b"), member("c")], "close"),
            (vec![member("b"), member("c"), member("d")], "close"),
        ];
        for (members, want) in table {
            assert_eq!(word(&decide(&with(members.clone()))), want, "{members:?}");
        }
    }

    #[test]
    fn a_successor_that_fails_too_counts_until_one_was_healthy_for_long_enough() {
        let again =
            |retry_count| Member { made_for: Some(remediation("x", retry_count)), ..sick("a") };
        let limits = |max_retry, retry_period_seconds, min_healthy_period_seconds| Limits {
            max_retry,
            retry_period_seconds,
            min_healthy_period_seconds,
        };
        let table = [
            (limits(None, None, None), 4, "delete a 5"),
            (limits(Some(5), None, None), 4, "delete a 5"),
            (limits(Some(4), None, None), 4, "cannot a"),
            (limits(Some(4), None, Some(1000)), 4, "delete a 0"),
            (limits(None, Some(2000), None), 0, "defer a"),
        ];
        for (limits, retries, want) in table {
            let all = Input { limits, ..input(vec![again(retries), member("b"), member("c")]) };
            assert_eq!(word(&decide(&all)), want, "{limits:?} {retries}");
        }
    }

    #[test]
    fn a_machine_that_is_well_again_is_left_alone() {
        let well = Member { need: Need::Recovered, ..member("a") };
        assert_eq!(word(&decide(&input(vec![well, member("b")]))), "forget a");
    }
}
