//! The timeline of one group: what its pacing and its past updates say.

use refit_cluster_api::rollout::simulate::Event;
use refit_core::group::{Pace, UNDISTURBED_AT_ONCE, owner_argument};
use refit_kinds::{
    json::is_deleting,
    refit::{Disruption, GroupOwner, UpdateGroup, update_group_name},
};
use serde::Deserialize as _;
use serde_json::Value;

use super::{Pacer, Takes, Timeline};
use crate::view::View;

impl View<'_> {
    /// The UpdateGroup of the group, unless it does not exist or is being deleted.
    pub(crate) fn update_group(&self) -> Option<UpdateGroup> {
        let name = update_group_name(&self.group.kind, &self.group.name);
        let found = self.input.current.get("UpdateGroup", &self.group.namespace, &name)?;
        UpdateGroup::deserialize(found).ok().filter(|_| !is_deleting(found))
    }

    /// Whether machines get another version. Without a change that is known, an update is one of the version.
    pub(crate) fn changes_version(&self) -> bool {
        self.plan.from != self.plan.to || self.plan.disruption.is_none()
    }

    /// Gives these machines their turns, so many at a time.
    pub(crate) fn pacer(&mut self, machines: &[&Value], at_once: i64) -> Pacer {
        let steps = self.upgrade_steps(machines);
        let group = self.update_group();
        let (pacing, status) =
            group.map(|group| (group.spec.pacing, group.status)).unwrap_or_default();
        let past = status.unwrap_or_default().durations;
        let disruption = self.plan.disruption.unwrap_or(Disruption::Drain);
        let takes = Takes::of(self.role(), steps.as_deref(), disruption, &past);
        let at_once = match disruption {
            Disruption::None => UNDISTURBED_AT_ONCE,
            Disruption::Restart | Disruption::Drain | Disruption::Reboot => {
                let at_once = at_once.min(pacing.max_unavailable.map_or(i64::MAX, i64::from));
                usize::try_from(at_once).unwrap_or(1)
            }
        };
        let owner = self.owner_argument();
        Pacer::new(takes, at_once, Pace { pacing, owner, ..Pace::default() }, self.input.now)
    }

    /// The group's owner, as commands name it.
    pub(crate) fn owner_argument(&self) -> String {
        owner_argument(&GroupOwner {
            kind: self.group.kind.clone(),
            name: self.group.name.clone(),
            ..GroupOwner::default()
        })
    }

    /// Adds what is done to the machines, and when.
    pub(crate) fn add_timeline(&mut self, pacer: Pacer, events: Vec<Event>, available: i64) {
        self.plan.timeline = Timeline::of(pacer.takes(), events, available);
        let length = |timeline: &Timeline| timeline.end() - timeline.start();
        self.plan.seconds = self.plan.timeline.as_ref().map(length);
    }
}
