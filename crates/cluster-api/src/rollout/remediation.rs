//! What a failed MachineHealthCheck requests from a Machine's owner, and how a control plane
//! responds: it deletes one machine at a time, if etcd keeps its quorum, and creates a new one
//! (`docs/facts/control-plane.md#remediation`).

use jiff::{SignedDuration, Timestamp};
use refit_kinds::{
    conditions::{HEALTH_CHECK_SUCCEEDED, OWNER_REMEDIATED},
    json::{annotation, condition, created_at, is_deleting, name, text},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::control_plane::Component;
use crate::desired::control_plane::{ControlPlane, REMEDIATION_FOR};

/// On a KubeadmControlPlane: the machine that is being remediated, until its successor is created.
pub const IN_PROGRESS: &str = "controlplane.cluster.x-k8s.io/remediation-in-progress";
/// A failure counts as a new one if the machine was healthy for at least this many seconds.
const MIN_HEALTHY_PERIOD_SECONDS: i64 = 3600;

/// What a Machine's conditions request from its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// No remediation.
    None,
    /// The machine is unhealthy, and its owner has to remediate it.
    Owner,
    /// The machine became healthy again before its owner acted.
    Recovered,
    /// The machine is unhealthy and its deletion is in progress.
    Leaving,
}

impl Need {
    /// Reads a Machine's conditions.
    pub fn of(machine: &Value) -> Self {
        let deleting = is_deleting(machine);
        let asked = condition(machine, OWNER_REMEDIATED) == Some("False");
        match condition(machine, HEALTH_CHECK_SUCCEEDED) {
            Some("False") if deleting => Self::Leaving,
            Some("False") if asked => Self::Owner,
            Some("True") if asked && !deleting => Self::Recovered,
            _ => Self::None,
        }
    }
}

/// One remediation, as stored in the annotations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Remediation {
    /// The machine to replace.
    pub machine: String,
    /// When the remediation was decided.
    pub timestamp: Timestamp,
    /// Number of consecutive failed remediations before it.
    pub retry_count: i32,
}

/// A control plane machine.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// What its conditions request.
    pub need: Need,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
    /// Whether `status.nodeRef` is set.
    pub has_node: bool,
    /// Whether etcd on it is known to be healthy.
    pub etcd_healthy: bool,
    /// Whether every other component is known to be healthy.
    pub components_healthy: bool,
    /// The remediation that this machine was created for.
    pub made_for: Option<Remediation>,
}

impl Member {
    fn of(machine: &Value, components: &[Component]) -> Self {
        let healthy = |etcd: bool| {
            components
                .iter()
                .filter(|component| component.is_etcd() == etcd)
                .all(|component| condition(machine, component.condition()) == Some("True"))
        };
        let made_for = annotation(machine, REMEDIATION_FOR);
        Self {
            name: name(machine).to_owned(),
            created_at: created_at(machine),
            need: Need::of(machine),
            deleting: is_deleting(machine),
            has_node: !text(machine, "/status/nodeRef/name").is_empty(),
            etcd_healthy: healthy(true),
            components_healthy: healthy(false),
            made_for: made_for.and_then(|text| serde_json::from_str(text).ok()),
        }
    }
}

/// `spec.remediation` of a KubeadmControlPlane.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Limits {
    max_retry: Option<i32>,
    retry_period_seconds: Option<i64>,
    min_healthy_period_seconds: Option<i64>,
}

/// The facts about a control plane that remediation depends on.
#[derive(Clone, Debug)]
pub struct Situation {
    replicas: usize,
    initialized: bool,
    managed_etcd: bool,
    /// Its machines.
    pub members: Vec<Member>,
    /// The remediation recorded on the control plane.
    pub in_progress: Option<Remediation>,
    limits: Limits,
    now: Timestamp,
}

impl Situation {
    /// Reads a control plane and its Machines.
    pub fn of<'a>(
        plane: ControlPlane<'_>,
        machines: impl IntoIterator<Item = &'a Value>,
        now: Timestamp,
    ) -> Self {
        let object = plane.object;
        let components = plane.components();
        let replicas = object.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1);
        let initialized = object.pointer("/status/initialization/controlPlaneInitialized");
        let limits = object.pointer("/spec/remediation").map(Limits::deserialize);
        let noted = annotation(object, IN_PROGRESS);
        Self {
            replicas: usize::try_from(replicas).unwrap_or(usize::MAX),
            initialized: initialized == Some(&Value::Bool(true)),
            managed_etcd: plane.has_managed_etcd(),
            members: machines.into_iter().map(|one| Member::of(one, &components)).collect(),
            in_progress: noted.and_then(|text| serde_json::from_str(text).ok()),
            limits: limits.and_then(Result::ok).unwrap_or_default(),
            now,
        }
    }
}

/// The next step of a remediation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// No machine needs remediation.
    Nothing,
    /// The machine is healthy again: remove the request.
    Forget(String),
    /// Remove the completed remediation from the control plane.
    Close,
    /// Wait: remediation is not possible now.
    Defer(String, String),
    /// Remediation is not possible in this state.
    Cannot(String, String),
    /// Delete the machine.
    Delete(Remediation),
}

/// Decides the next step.
pub fn decide(input: &Situation) -> Step {
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

fn find(input: &Situation, wanted: impl Fn(&Member) -> bool) -> Option<&Member> {
    input.members.iter().find(|member| wanted(member))
}

/// Reports whether the recorded remediation is complete: its successor exists, the machine is
/// healthy again, or no successor is needed.
fn is_over(input: &Situation) -> bool {
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

/// Selects the machine to remediate next: the one already in remediation, else the oldest that
/// never came up, else the oldest.
fn candidate(input: &Situation) -> Option<&Member> {
    let begun = input.in_progress.as_ref().map(|known| known.machine.as_str());
    let waiting = input.members.iter().filter(|one| one.need == Need::Owner);
    waiting.min_by_key(|one| {
        (begun != Some(one.name.as_str()), one.has_node, one.created_at, one.name.clone())
    })
}

/// Returns the number of consecutive failed remediations, if one more is allowed.
fn retry_count(input: &Situation, member: &Member) -> Result<i32, Step> {
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

/// Returns why the control plane would not survive the loss of this machine.
fn unsafe_to_remove(input: &Situation, member: &Member) -> Option<Step> {
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
    use serde_json::json;

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

    fn input(members: Vec<Member>) -> Situation {
        Situation {
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
        // The other one counts as a lost member; three of four remain.
        assert_eq!(word(&decide(&all)), "delete b 0");
    }

    #[test]
    fn a_started_remediation_finishes_and_is_then_closed() {
        let known = remediation("a", 0);
        let with = |members| Situation { in_progress: Some(known.clone()), ..input(members) };
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
    fn failed_successors_count_until_one_was_healthy_long_enough() {
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
            let all = Situation { limits, ..input(vec![again(retries), member("b"), member("c")]) };
            assert_eq!(word(&decide(&all)), want, "{limits:?} {retries}");
        }
    }

    #[test]
    fn a_machine_that_is_well_again_is_left_alone() {
        let well = Member { need: Need::Recovered, ..member("a") };
        assert_eq!(word(&decide(&input(vec![well, member("b")]))), "forget a");
    }

    #[test]
    fn the_table_of_needs() {
        let table = [
            (None, None, false, Need::None),
            (Some("True"), None, false, Need::None),
            (Some("False"), None, false, Need::None),
            (Some("False"), Some("False"), false, Need::Owner),
            (Some("False"), Some("False"), true, Need::Leaving),
            (Some("True"), Some("False"), false, Need::Recovered),
            (Some("True"), Some("False"), true, Need::None),
            (Some("False"), Some("True"), false, Need::None),
        ];
        for (check, owner, deleting, want) in table {
            let condition = |type_: &str, status: Option<&str>| {
                status.map(|status| {
                    json!({
                        "type": type_, "status": status, "reason": "R", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    })
                })
            };
            let list: Vec<_> =
                [condition(HEALTH_CHECK_SUCCEEDED, check), condition(OWNER_REMEDIATED, owner)]
                    .into_iter()
                    .flatten()
                    .collect();
            let mut object = json!({
                "metadata": {"name": "m"}, "spec": {"clusterName": "c"},
                "status": {"conditions": list},
            });
            if deleting {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            assert_eq!(Need::of(&object), want, "{check:?} {owner:?} {deleting}");
        }
    }
}
