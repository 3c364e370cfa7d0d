//! Finds the current MachineSet (`docs/facts/machine-deployment.md#current-machineset`).

use jiff::Timestamp;
use serde_json::Value;

use super::types::{MachineDeployment, MachineSet, Template};

/// The differences between the templates of a MachineSet and its MachineDeployment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UpToDate {
    /// For conditions: `Version v1, v2 required`.
    pub condition_messages: Vec<String>,
    /// For logs and the reason of a new MachineSet: `spec.version v1, v2 required`.
    pub log_messages: Vec<String>,
}

impl UpToDate {
    /// Reports whether there is no difference.
    pub fn is_up_to_date(&self) -> bool {
        self.log_messages.is_empty()
    }
}

/// Compares the fields of two templates that require a rollout.
///
/// Labels, annotations, timeouts, readiness gates and taints do not require one: they are
/// propagated in place.
pub fn template_up_to_date(current: &Template, desired: &Template) -> UpToDate {
    let mut result = UpToDate::default();
    let mut differs = |log: String, condition: String| {
        result.log_messages.push(log);
        result.condition_messages.push(condition);
    };
    if current.version != desired.version {
        let (from, to) = (&current.version, &desired.version);
        differs(
            format!("spec.version {from}, {to} required"),
            format!("Version {from}, {to} required"),
        );
    }
    if current.bootstrap != desired.bootstrap {
        let (from, to) = (&current.bootstrap["configRef"], &desired.bootstrap["configRef"]);
        if to.is_object() {
            differs(
                format!("spec.bootstrap.configRef {}, {} required", reference(from), reference(to)),
                format!("{} is not up-to-date", kind_without_template(from)),
            );
        } else {
            let (from, to) =
                (&current.bootstrap["dataSecretName"], &desired.bootstrap["dataSecretName"]);
            let message = format!(
                "spec.bootstrap.dataSecretName {}, {} required",
                from.as_str().unwrap_or_default(),
                to.as_str().unwrap_or_default()
            );
            differs(message.clone(), message);
        }
    }
    if current.infrastructure_ref != desired.infrastructure_ref {
        let (from, to) = (&current.infrastructure_ref, &desired.infrastructure_ref);
        differs(
            format!("spec.infrastructureRef {}, {} required", reference(from), reference(to)),
            format!("{} is not up-to-date", kind_without_template(from)),
        );
    }
    if current.failure_domain != desired.failure_domain {
        let (from, to) = (&current.failure_domain, &desired.failure_domain);
        differs(
            format!("spec.failureDomain {from}, {to} required"),
            format!("Failure domain {from}, {to} required"),
        );
    }
    result
}

fn reference(value: &Value) -> String {
    let field = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    format!("{} {}", field("kind"), field("name"))
}

fn kind_without_template(value: &Value) -> &str {
    let kind = value["kind"].as_str().unwrap_or_default();
    kind.strip_suffix("Template").unwrap_or(kind)
}

/// A MachineSet other than the current one.
#[derive(Debug, Clone, PartialEq)]
pub struct OldMachineSet {
    /// The MachineSet.
    pub machine_set: MachineSet,
    /// Its differences from the MachineDeployment's template.
    pub up_to_date: UpToDate,
    /// Whether its machines may be updated in place if the extension agrees.
    pub eligible_for_in_place: bool,
}

/// The MachineSets of a MachineDeployment, split into current and old.
#[derive(Debug, Clone, PartialEq)]
pub struct NewAndOld {
    /// The MachineSet with the MachineDeployment's template, if it exists.
    pub new: Option<MachineSet>,
    /// All other MachineSets.
    pub old: Vec<OldMachineSet>,
    /// Why a new MachineSet has to be created; empty if there is a current one.
    pub create_reason: String,
}

/// Splits the MachineSets into the current one and the old ones.
///
/// If several match, the one with the most replicas wins, then the oldest. The others count as old
/// and are not eligible for in-place updates, because there would be nothing to update.
pub fn find_new_and_old(
    deployment: &MachineDeployment,
    machine_sets: &[MachineSet],
    now: Timestamp,
) -> NewAndOld {
    let mut sorted = machine_sets.to_vec();
    sorted.sort_by(|a, b| {
        (b.spec_replicas, a.created_at, &a.name).cmp(&(a.spec_replicas, b.created_at, &b.name))
    });
    let expired = deployment.rollout_after.filter(|after| *after <= now);

    let mut result = NewAndOld { new: None, old: Vec::new(), create_reason: String::new() };
    let mut diffs = Vec::new();
    let mut held_back_by_age = false;
    for machine_set in sorted {
        let up_to_date = template_up_to_date(&machine_set.template, &deployment.template);
        let too_old = expired.is_some_and(|after| machine_set.created_at < after);
        let matches = up_to_date.is_up_to_date();
        if matches && !too_old && result.new.is_none() {
            result.new = Some(machine_set);
            continue;
        }
        if matches {
            held_back_by_age |= too_old;
        } else {
            diffs.push(format!(
                "MachineSet {} needs rollout: {}",
                machine_set.name,
                up_to_date.log_messages.join(", ")
            ));
        }
        let eligible_for_in_place = !matches && !too_old;
        result.old.push(OldMachineSet { machine_set, up_to_date, eligible_for_in_place });
    }
    if result.new.is_none() {
        result.create_reason = match expired {
            _ if result.old.is_empty() => {
                "no MachineSets exist for the MachineDeployment".to_owned()
            }
            Some(after) if held_back_by_age => format!(
                "spec.rollout.after on MachineDeployment set to {after}, no MachineSet has been \
                 created afterwards"
            ),
            _ => format!(
                "couldn't find MachineSet matching MachineDeployment spec template: {}",
                diffs.join("; ")
            ),
        };
    }
    result
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::types::Strategy;
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn template(version: &str) -> Template {
        Template { version: version.into(), ..Template::default() }
    }

    fn set(name: &str, version: &str, replicas: i64, created: i64) -> MachineSet {
        MachineSet {
            name: name.into(),
            created_at: at(created),
            spec_replicas: replicas,
            template: template(version),
            ..MachineSet::default()
        }
    }

    fn deployment(version: &str) -> MachineDeployment {
        MachineDeployment {
            name: "md".into(),
            replicas: 3,
            strategy: Strategy::OnDelete,
            template: template(version),
            rollout_after: None,
        }
    }

    #[test]
    fn every_difference_has_its_message() {
        let current = Template {
            version: "v1".into(),
            bootstrap: json!({"configRef": {"kind": "KubeadmConfigTemplate", "name": "a"}}),
            infrastructure_ref: json!({"kind": "VSphereMachineTemplate", "name": "x"}),
            failure_domain: "one".into(),
        };
        let desired = Template {
            version: "v2".into(),
            bootstrap: json!({"configRef": {"kind": "KubeadmConfigTemplate", "name": "b"}}),
            infrastructure_ref: json!({"kind": "VSphereMachineTemplate", "name": "y"}),
            failure_domain: "two".into(),
        };
        let result = template_up_to_date(&current, &desired);
        assert_eq!(
            result.condition_messages,
            [
                "Version v1, v2 required",
                "KubeadmConfig is not up-to-date",
                "VSphereMachine is not up-to-date",
                "Failure domain one, two required",
            ]
        );
        assert_eq!(
            result.log_messages,
            [
                "spec.version v1, v2 required",
                "spec.bootstrap.configRef KubeadmConfigTemplate a, KubeadmConfigTemplate b required",
                "spec.infrastructureRef VSphereMachineTemplate x, VSphereMachineTemplate y required",
                "spec.failureDomain one, two required",
            ]
        );
        assert!(template_up_to_date(&desired, &desired).is_up_to_date());
    }

    #[test]
    fn a_changed_data_secret_is_a_difference() {
        let with = |name: &str| Template {
            bootstrap: json!({"dataSecretName": name}),
            ..Template::default()
        };
        assert_eq!(
            template_up_to_date(&with("a"), &with("b")).log_messages,
            ["spec.bootstrap.dataSecretName a, b required"]
        );
    }

    #[test]
    fn the_matching_set_with_most_replicas_is_current() {
        let sets = [set("a", "v2", 1, 1), set("b", "v2", 3, 9), set("c", "v1", 5, 0)];
        let found = find_new_and_old(&deployment("v2"), &sets, at(100));
        assert_eq!(found.new.unwrap().name, "b");
        let old: Vec<_> = found
            .old
            .iter()
            .map(|old| (old.machine_set.name.as_str(), old.eligible_for_in_place))
            .collect();
        assert_eq!(old, [("c", true), ("a", false)]);
        assert_eq!(found.create_reason, "");
    }

    #[test]
    fn ties_go_to_the_older_set_then_to_the_name() {
        let sets = [set("b", "v2", 1, 1), set("a", "v2", 1, 1), set("z", "v2", 1, 0)];
        let found = find_new_and_old(&deployment("v2"), &sets, at(100));
        assert_eq!(found.new.unwrap().name, "z");
        assert_eq!(found.old[0].machine_set.name, "a");
    }

    #[test]
    fn the_create_reason_names_what_is_missing() {
        let none = find_new_and_old(&deployment("v2"), &[], at(100));
        assert_eq!(none.create_reason, "no MachineSets exist for the MachineDeployment");
        let sets = [set("ms1", "v1", 3, 1)];
        let old = find_new_and_old(&deployment("v2"), &sets, at(100));
        assert_eq!(
            old.create_reason,
            "couldn't find MachineSet matching MachineDeployment spec template: MachineSet ms1 \
             needs rollout: spec.version v1, v2 required"
        );
    }

    #[test]
    fn a_past_rollout_after_makes_older_sets_old_and_not_eligible() {
        let mut md = deployment("v2");
        md.rollout_after = Some(at(50));
        let sets = [set("before", "v2", 3, 10), set("other", "v1", 1, 20)];
        let found = find_new_and_old(&md, &sets, at(100));
        assert_eq!(found.new, None);
        assert!(found.old.iter().all(|old| !old.eligible_for_in_place));
        assert!(found.create_reason.starts_with("spec.rollout.after on MachineDeployment set to"));
        // A date in the future changes nothing.
        let found = find_new_and_old(&md, &sets, at(40));
        assert_eq!(found.new.unwrap().name, "before");
        // A set created at that time satisfies it.
        let found = find_new_and_old(&md, &[set("at", "v2", 0, 50)], at(100));
        assert_eq!(found.new.unwrap().name, "at");
    }
}
