//! Which settings a plan applies, and which ones the host has after it.
//!
//! | update | applies |
//! |---|---|
//! | to a Kubernetes version | all settings |
//! | of changed HostSettings | those that differ from what the host has; all, if none does |
//! | that drains the node for an Updater | files, time servers, kubelet flags and OS packages |
//! | any other | none |

use std::borrow::Cow;

use refit_kinds::refit::{
    MachineUid, NodeUpdate, Phase, PlanSettings, SettingHashes, StepState, applies_settings,
};

use super::upgrades;
use crate::node::{
    order::{order, same_machine},
    snapshot::Snapshot,
};

/// What an update that drains its node applies, whatever it is for.
const WHILE_DRAINED: [&str; 4] = ["files", "ntp", "kubelet", "osPackages"];
/// A new OS image may lack all other settings.
const OS_IMAGE: &str = "osImage";

/// The settings that the hosts of a Machine have by its NodeUpdates that have ended. An update without success leaves in
/// doubt what it has tried to change, unless it is rolled back.
pub fn settings_had<'a>(
    updates: impl IntoIterator<Item = &'a NodeUpdate>,
    machine_uid: &MachineUid,
) -> SettingHashes {
    let is_own = |update: &&NodeUpdate| {
        update.spec.machine_ref.uid == *machine_uid && update.phase().is_final()
    };
    let mut ended: Vec<&NodeUpdate> = updates.into_iter().filter(is_own).collect();
    ended.sort_by_cached_key(|update| order(update));
    let mut had = SettingHashes::default();
    for update in ended {
        let Some(planned) = planned(update) else { continue };
        if update.phase() == Phase::Succeeded {
            had = planned.clone();
        } else if may_have_changed(update) {
            had = had.without_doubtful(planned);
        }
    }
    had
}

fn planned(update: &NodeUpdate) -> Option<&SettingHashes> {
    update.status.as_ref()?.host_settings.as_ref()
}

/// Whether an update that has ended without success may have left settings on its host.
fn may_have_changed(update: &NodeUpdate) -> bool {
    let mut steps = update.status.iter().flat_map(|status| &status.steps);
    steps.any(|step| {
        let was_tried = match step.state {
            StepState::Running | StepState::Done | StepState::Failed => true,
            StepState::Pending | StepState::Skipped | StepState::Undone => false,
        };
        was_tried && applies_settings(&step.name)
    })
}

/// The settings that the plan of the update in the snapshot applies; `None` if it applies none.
pub(super) fn applied(s: &Snapshot) -> Option<Cow<'_, PlanSettings>> {
    let spec = &s.update.spec;
    if spec.issues_certificates() {
        None
    } else if spec.changes_settings() {
        Some(Cow::Owned(changed(&s.settings, &had(s))))
    } else if upgrades(&s.update) {
        Some(Cow::Borrowed(&s.settings))
    } else {
        // What the goal does not ask for must not disturb more than its parts say.
        let drains = spec.disruption().drains();
        drains.then(|| Cow::Owned(s.settings.only(|name| WHILE_DRAINED.contains(&name))))
    }
}

/// The settings that the host has once the plan of the update in the snapshot is carried out; `None` if it applies none.
pub(in crate::node) fn settings_after(s: &Snapshot) -> Option<SettingHashes> {
    Some(had(s).with(SettingHashes::of(&*applied(s)?)))
}

fn had(s: &Snapshot) -> SettingHashes {
    settings_had(same_machine(s), &s.update.spec.machine_ref.uid)
}

/// The settings that a host lacks. One that is asked to get those that it has gets them again.
fn changed(settings: &PlanSettings, had: &SettingHashes) -> PlanSettings {
    let wanted = SettingHashes::of(settings);
    if had.has(&wanted) || had.differs(&wanted, OS_IMAGE) {
        return settings.clone();
    }
    settings.only(|name| had.differs(&wanted, name))
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::{KubeletArg, KubeletArgs, NtpArgs, OsImageArgs};
    use serde_json::json;

    use super::*;

    fn settings(ntp: &str, kubelet: Option<&str>, image: Option<&str>) -> PlanSettings {
        let flag = |value: &str| KubeletArg { name: "v".into(), value: value.into() };
        PlanSettings {
            ntp: Some(NtpArgs { servers: vec![ntp.into()], ..NtpArgs::default() }),
            kubelet: kubelet.map(|value| KubeletArgs {
                extra_args: vec![flag(value)],
                ..KubeletArgs::default()
            }),
            os_image: image.map(|name| OsImageArgs { name: name.into(), ..OsImageArgs::default() }),
            ..PlanSettings::default()
        }
    }

    fn update(
        ordinal: u32,
        phase: Phase,
        planned: Option<&PlanSettings>,
        ntp: StepState,
    ) -> NodeUpdate {
        serde_json::from_value(json!({
            "metadata": {"name": format!("m-{ordinal}")},
            "spec": {
                "machineRef": {"name": "m", "uid": "u"}, "origin": "HostSettings", "goalHash": "",
                "goal": {"hostSettings": "5e"},
            },
            "status": {
                "phase": phase, "hostSettings": planned.map(SettingHashes::of),
                "steps": [{"name": "snapshot", "state": "Done"}, {"name": "ntp", "state": ntp}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_host_has_what_its_last_update_with_success_has_applied() {
        use Phase::{Failed, Stopped, Succeeded, Waiting};
        use StepState::{Done, Failed as Tried, Pending, Undone};
        let (a, b) = (settings("a", Some("4"), None), settings("b", Some("4"), None));
        let all = SettingHashes::of(&a);
        let only_kubelet = SettingHashes::of(&settings("a", Some("4"), None).only(|n| n != "ntp"));
        for (updates, had) in [
            (vec![], SettingHashes::default()),
            (vec![(Succeeded, None, Done)], SettingHashes::default()),
            (vec![(Succeeded, Some(&a), Done)], all.clone()),
            (vec![(Succeeded, Some(&b), Done), (Succeeded, Some(&a), Done)], all.clone()),
            // Certificates were renewed since.
            (vec![(Succeeded, Some(&a), Done), (Succeeded, None, Done)], all.clone()),
            (vec![(Succeeded, Some(&a), Done), (Waiting, Some(&b), Pending)], all.clone()),
            (vec![(Succeeded, Some(&a), Done), (Stopped, Some(&b), Pending)], all.clone()),
            (vec![(Succeeded, Some(&a), Done), (Failed, Some(&b), Undone)], all.clone()),
            (vec![(Succeeded, Some(&a), Done), (Failed, Some(&b), Tried)], only_kubelet.clone()),
            (vec![(Succeeded, Some(&a), Done), (Failed, Some(&b), Done)], only_kubelet),
            (vec![(Failed, Some(&b), Done), (Succeeded, Some(&a), Done)], all),
        ] {
            let made: Vec<NodeUpdate> = (1..)
                .zip(&updates)
                .map(|(n, (phase, planned, ntp))| update(n, *phase, *planned, *ntp))
                .collect();
            // The order of a list does not matter.
            assert_eq!(settings_had(made.iter().rev(), &"u".into()), had, "{updates:?}");
            assert_eq!(settings_had(&made, &"other".into()), SettingHashes::default());
        }
    }

    #[test]
    fn only_settings_that_differ_are_applied_again() {
        let had = settings("a", Some("4"), None);
        for (wanted, applied) in [
            (settings("b", Some("4"), None), vec!["ntp"]),
            (settings("a", Some("5"), None), vec!["kubelet"]),
            (settings("b", Some("5"), None), vec!["kubelet", "ntp"]),
            // The new image may lack the others.
            (settings("a", Some("4"), Some("os-2")), vec!["kubelet", "ntp", "osImage"]),
            // An operator asks for all of them once more.
            (settings("a", Some("4"), None), vec!["kubelet", "ntp"]),
        ] {
            let found = SettingHashes::of(&changed(&wanted, &SettingHashes::of(&had)));
            let names: Vec<_> = found.0.keys().map(String::as_str).collect();
            assert_eq!(names, applied);
        }
    }
}
