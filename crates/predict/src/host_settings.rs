//! What the HostSettings of a group add to an update of its machines.

use std::{collections::BTreeMap, sync::Arc};

use refit_core::node::{HostWork, SettingsSources, host_settings};
use refit_kinds::{
    json::{annotations, name, namespace, text},
    refit::{Disruption, GroupOwner, HostSettings, PlanSettings, PlannedStep, StepType},
};
use serde::Deserialize as _;
use serde_json::Value;

use super::{reach::Read, view::View};

const KIND: &str = "HostSettings";

impl View<'_> {
    /// The steps of an upgrade of these machines, with what they disturb in addition; none if the version stays.
    pub(super) fn upgrade_steps(&mut self, machines: &[&Value]) -> Option<Vec<PlannedStep>> {
        let version = self.plan.to.version().cloned().filter(|_| self.changes_version())?;
        let settings = self.settings();
        let facts = self.facts(machines);
        let role = self.role();
        let work = |facts| HostWork { facts, ..HostWork::upgrade(role, &version, &settings) };
        let mut all = facts.into_iter().map(|facts| work(Some(facts)).steps());
        let boots = |steps: &Vec<PlannedStep>| has(steps, StepType::Reboot);
        let first = all.next().unwrap_or_else(|| work(None).steps());
        // The longest of them: hosts that have an image already do not boot for it.
        let steps = if boots(&first) { first } else { all.find(boots).unwrap_or(first) };
        if has(&steps, StepType::Reboot) && self.plan.disruption.is_some() {
            self.plan.disruption = Some(Disruption::Reboot);
        }
        if has(&steps, StepType::RebootIfRequired) {
            let note = "hosts boot if the packages of their HostSettings require it";
            self.plan.notes.push(note.to_owned());
        }
        Some(steps)
    }

    /// What hosts of these machines have reported, as far as it is known.
    fn facts(&self, machines: &[&Value]) -> Vec<&refit_kinds::refit::HostFacts> {
        let Some(Read::Known(hosts)) = self.hosts() else { return Vec::new() };
        let plans = &hosts.preflight.plans;
        let plan = |machine: &&Value| plans.get(&text(machine, "/status/nodeRef/name").into());
        let reported = machines.iter().filter_map(plan);
        reported.filter_map(|plan| Some(&plan.status.as_ref()?.facts)).collect()
    }

    fn settings(&mut self) -> PlanSettings {
        if self.input.unread_kinds.contains(KIND) {
            let note = "HostSettings cannot be read: what they add to an update is not predicted";
            self.plan.notes.push(note.to_owned());
        }
        let (mut objects, mut unreadable) = (Vec::new(), BTreeMap::new());
        let of_kind = self.input.desired.of_kind(KIND);
        for object in of_kind.filter(|object| namespace(object) == self.group.namespace) {
            match HostSettings::deserialize(object) {
                Ok(settings) => objects.push(Arc::new(settings)),
                Err(error) => {
                    unreadable.insert(name(object).to_owned(), error.to_string());
                }
            }
        }
        let owner = GroupOwner {
            kind: self.group.kind.clone(),
            name: self.group.name.clone(),
            ..GroupOwner::default()
        };
        let of_owner = annotations(self.wanted);
        let found = host_settings(SettingsSources {
            objects: &objects,
            unreadable: &unreadable,
            annotated: &[(format!("{} {}", owner.kind, owner.name), &of_owner)],
            owner: &owner,
            cluster: &self.plan.cluster,
        });
        found.unwrap_or_else(|refusal| {
            self.unsettled = Some(refusal);
            PlanSettings::default()
        })
    }
}

fn has(steps: &[PlannedStep], wanted: StepType) -> bool {
    steps.iter().any(|step| step.step_type() == Some(wanted))
}
