//! Whether the number of unhealthy Machines permits remediation: many unhealthy Machines indicate a
//! common cause.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use refit_cluster_api::{IntOrPercent, kinds::RemediationTrigger};

/// Whether a MachineHealthCheck allows remediation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Allowed {
    /// Allowed: owners remediate the unhealthy Machines; this many more may become unhealthy.
    Yes(i32),
    /// Not allowed: too many are unhealthy, or too few for the range.
    No(String),
}

/// Decides for `expected` checked Machines of which `healthy` are known to be healthy. A Machine
/// that has not started counts as unhealthy.
pub(super) fn allowed(trigger: &RemediationTrigger, expected: i32, healthy: i32) -> Allowed {
    let unhealthy = expected - healthy;
    if let Some(range) = &trigger.unhealthy_in_range {
        return match parse(range) {
            Some((least, most)) if (least..=most).contains(&unhealthy) => {
                Allowed::Yes(most - unhealthy)
            }
            Some(_) => Allowed::No(format!(
                "Remediation is not allowed, the number of not started or unhealthy machines does \
                 not fall within the range (total: {expected}, unhealthy: {unhealthy}, \
                 unhealthyInRange: {range})"
            )),
            None => Allowed::No(format!(
                "Remediation is not allowed: spec.remediation.triggerIf.unhealthyInRange {range:?} \
                 is not a range; write it as [1-3]"
            )),
        };
    }
    let all = IntOrString::String("100%".to_owned());
    let most = trigger.unhealthy_less_than_or_equal_to.as_ref().unwrap_or(&all);
    let limit = IntOrPercent::try_from(most)
        .ok()
        .and_then(|most| i32::try_from(most.rounded_down(i64::from(expected))).ok());
    match limit {
        Some(limit) if unhealthy <= limit => Allowed::Yes(limit - unhealthy),
        _ => Allowed::No(format!(
            "Remediation is not allowed, the number of not started or unhealthy machines exceeds \
             maxUnhealthy (total: {expected}, unhealthy: {unhealthy}, maxUnhealthy: {})",
            text(most)
        )),
    }
}

fn text(amount: &IntOrString) -> String {
    match amount {
        IntOrString::Int(count) => count.to_string(),
        IntOrString::String(text) => text.clone(),
    }
}

/// Parses `[least-most]`.
fn parse(range: &str) -> Option<(i32, i32)> {
    let inner = range.strip_prefix('[')?.strip_suffix(']')?;
    let (least, most) = inner.split_once('-')?;
    let (least, most) = (least.parse().ok()?, most.parse().ok()?);
    (least <= most).then_some((least, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_most(amount: IntOrString) -> RemediationTrigger {
        RemediationTrigger {
            unhealthy_less_than_or_equal_to: Some(amount),
            ..RemediationTrigger::default()
        }
    }

    fn within(range: &str) -> RemediationTrigger {
        RemediationTrigger {
            unhealthy_in_range: Some(range.to_owned()),
            ..RemediationTrigger::default()
        }
    }

    #[test]
    fn the_table_of_budgets() {
        let percent = |text: &str| at_most(IntOrString::String(text.to_owned()));
        let table = [
            (RemediationTrigger::default(), 5, 0, Some(0)),
            (RemediationTrigger::default(), 5, 4, Some(4)),
            (at_most(IntOrString::Int(1)), 5, 4, Some(0)),
            (at_most(IntOrString::Int(1)), 5, 3, None),
            (at_most(IntOrString::Int(0)), 5, 4, None),
            (percent("40%"), 5, 3, Some(0)),
            (percent("40%"), 4, 2, None),
            (percent("many"), 5, 5, None),
            (within("[1-3]"), 5, 3, Some(1)),
            (within("[3-5]"), 5, 3, None),
            (within("[1-3]"), 5, 5, None),
            (within("3-5"), 5, 1, None),
            (within("[5-3]"), 5, 1, None),
        ];
        for (trigger, expected, healthy, want) in table {
            let got = match allowed(&trigger, expected, healthy) {
                Allowed::Yes(left) => Some(left),
                Allowed::No(message) => {
                    assert!(message.starts_with("Remediation is not allowed"));
                    None
                }
            };
            assert_eq!(got, want, "{trigger:?} {expected} {healthy}");
        }
    }
}
