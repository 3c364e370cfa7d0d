//! Whether a machine whose HostSettings have changed gets an update for that alone.
//!
//! It does where the policy of its owner starts such updates, once, and only when nothing else is done with the machine:
//! what the HostSettings ask for is applied by an upgrade as well. A machine without an update that shows what it has gets
//! all settings. What a HostSettings no longer has starts nothing: the host keeps it.

use refit_cluster_api::kinds::{Machine, update_in_progress};
use refit_kinds::{
    canonical::K8SD_CONFIG,
    keys,
    refit::{Goal, MachineUid, NodeUpdate, Phase, PlanSettings, SettingHashes},
};

use crate::{
    change::SettingsChanges,
    node::{MEMBER_MISSING, SUPERSEDED, newest, newest_upgrade, settings_had},
};

/// What decides whether an update of a machine starts.
#[derive(Clone, Copy, Debug)]
pub struct SettingsSeen<'a> {
    /// The policy of its owner.
    pub changes: SettingsChanges,
    /// The settings that apply to it.
    pub settings: &'a PlanSettings,
    /// The machine.
    pub machine: &'a Machine,
    /// All NodeUpdates for its name.
    pub updates: &'a [&'a NodeUpdate],
    /// Its owner shows that Cluster API rolls something out, or a task works on the owner.
    pub is_rolled_out: bool,
}

/// Why no update of a machine starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotStarted {
    /// The policy of its owner leaves the settings to the next upgrade.
    Waits,
    /// It is being deleted, has no Node yet, or k8sd runs on it: then its host has no kubeadm.
    NotServed,
    /// It has the settings, or they have none that a host gets without a Kubernetes version.
    UpToDate,
    /// Cluster API or a task works on it, or on its owner.
    RolledOut,
    /// This NodeUpdate of it has not ended.
    Unfinished(String),
    /// This NodeUpdate has failed for the same settings, or was stopped, or its last upgrade has: an operator retries it.
    Failed(String),
}

/// The goal of the update that starts for a machine.
///
/// # Errors
/// Why none starts.
pub fn start(seen: &SettingsSeen<'_>) -> Result<Goal, NotStarted> {
    let SettingsSeen { changes, settings, machine, updates, is_rolled_out } = *seen;
    if changes == SettingsChanges::Wait {
        return Err(NotStarted::Waits);
    }
    if !is_served(machine) {
        return Err(NotStarted::NotServed);
    }
    let uid = MachineUid::of(&machine.metadata);
    let wanted = SettingHashes::of(settings);
    if settings_had(updates.iter().copied(), &uid).has(&wanted) {
        return Err(NotStarted::UpToDate);
    }
    if is_rolled_out || update_in_progress(machine) || has(machine, keys::TASK) {
        return Err(NotStarted::RolledOut);
    }
    let of_machine = || updates.iter().copied().filter(|one| one.spec.machine_ref.uid == uid);
    if let Some(unfinished) = of_machine().find(|update| !update.phase().is_final()) {
        return Err(NotStarted::Unfinished(name(unfinished)));
    }
    let hash = wanted.hash();
    let same = of_machine().filter(|update| update.spec.goal.host_settings.as_ref() == Some(&hash));
    let last = [newest(same, &uid), newest_upgrade(of_machine(), &uid)];
    match last.into_iter().flatten().find(|update| awaits_operator(update, machine)) {
        Some(failed) => Err(NotStarted::Failed(name(failed))),
        None => Ok(Goal { host_settings: Some(hash), ..Goal::default() }),
    }
}

fn is_served(machine: &Machine) -> bool {
    let config = machine.spec.bootstrap.config_ref.as_ref();
    let has_k8sd = config.is_some_and(|config| config.kind == K8SD_CONFIG);
    let status = machine.status.as_ref();
    let has_node = status.is_some_and(|status| status.node_ref.is_some());
    machine.metadata.deletion_timestamp.is_none() && has_node && !has_k8sd
}

/// Whether an update without success is repeated only on request: not if it made way for something that is over.
fn awaits_operator(update: &NodeUpdate, machine: &Machine) -> bool {
    let Some(status) = &update.status else { return false };
    let is_retried = update.spec.changes_settings()
        && machine.metadata.annotations.as_ref().and_then(|all| all.get(keys::RETRY))
            == update.metadata.name.as_ref();
    let made_way = [SUPERSEDED, MEMBER_MISSING].contains(&status.failure_reason.as_str());
    match status.phase {
        Phase::Failed => !is_retried,
        Phase::Stopped => !is_retried && !made_way,
        Phase::Pending
        | Phase::Staging
        | Phase::Waiting
        | Phase::Upgrading
        | Phase::Draining
        | Phase::Disrupting
        | Phase::Verifying
        | Phase::Uncordoning
        | Phase::Stopping
        | Phase::Succeeded => false,
    }
}

fn has(machine: &Machine, key: &str) -> bool {
    machine.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key))
}

fn name(update: &NodeUpdate) -> String {
    update.metadata.name.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::NtpArgs;
    use serde_json::{Value, json};

    use super::*;

    fn settings(server: &str) -> PlanSettings {
        let ntp = NtpArgs { servers: vec![server.into()], ..NtpArgs::default() };
        PlanSettings { ntp: Some(ntp), ..PlanSettings::default() }
    }

    fn hash(server: &str) -> String {
        SettingHashes::of(&settings(server)).hash()
    }

    fn machine(changed: &Value) -> Machine {
        let mut object = json!({
            "metadata": {"name": "m", "uid": "u"},
            "spec": {
                "clusterName": "edge-1", "version": "v1.35.0",
                "bootstrap": {"configRef": {"apiGroup": "a", "kind": "KubeadmConfig", "name": "m"}},
                "infrastructureRef": {"apiGroup": "a", "kind": "A", "name": "m"},
            },
            "status": {"nodeRef": {"name": "m"}},
        });
        for (pointer, value) in changed.as_object().unwrap() {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            object.pointer_mut(parent).unwrap()[key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    /// A NodeUpdate for settings with this time server, or for a version.
    fn update(ordinal: u32, server: Option<&str>, (phase, reason): (Phase, &str)) -> NodeUpdate {
        let goal = server.map_or(
            json!({"kubernetesVersion": "v1.35.0"}),
            |server| json!({"hostSettings": hash(server)}),
        );
        let planned = server.map(|server| SettingHashes::of(&settings(server)));
        serde_json::from_value(json!({
            "metadata": {"name": format!("m-{ordinal}")},
            "spec": {
                "machineRef": {"name": "m", "uid": "u"}, "origin": "HostSettings", "goalHash": "",
                "goal": goal,
            },
            "status": {"phase": phase, "failureReason": reason, "hostSettings": planned},
        }))
        .unwrap()
    }

    fn decided(
        changes: SettingsChanges,
        machine: &Machine,
        updates: &[NodeUpdate],
        is_rolled_out: bool,
    ) -> Result<Goal, NotStarted> {
        let (settings, updates) = (settings("a"), updates.iter().collect::<Vec<_>>());
        start(&SettingsSeen {
            changes,
            settings: &settings,
            machine,
            updates: &updates,
            is_rolled_out,
        })
    }

    #[test]
    fn updates_start_only_where_the_policy_wants_them_and_nothing_else_is_done() {
        let plain = || machine(&json!({}));
        let with = |key: &str| machine(&json!({"/metadata/annotations": {key: ""}}));
        let not = Some;
        for (machine, is_rolled_out, why) in [
            (plain(), false, None),
            (plain(), true, not(NotStarted::RolledOut)),
            (with(keys::UPDATE_IN_PROGRESS), false, not(NotStarted::RolledOut)),
            (with(keys::TASK), false, not(NotStarted::RolledOut)),
            (machine(&json!({"/status/nodeRef": null})), false, not(NotStarted::NotServed)),
            (
                machine(&json!({"/spec/bootstrap/configRef/kind": "CK8sConfig"})),
                false,
                not(NotStarted::NotServed),
            ),
            (
                machine(&json!({"/metadata/deletionTimestamp": "2026-01-01T00:00:00Z"})),
                false,
                not(NotStarted::NotServed),
            ),
        ] {
            let found = decided(SettingsChanges::Start, &machine, &[], is_rolled_out);
            assert_eq!(found.err(), why, "{machine:?}");
            let waits = decided(SettingsChanges::Wait, &machine, &[], is_rolled_out);
            assert_eq!(waits, Err(NotStarted::Waits));
        }
        let goal = decided(SettingsChanges::Start, &plain(), &[], false).unwrap();
        assert_eq!(goal, Goal { host_settings: Some(hash("a")), ..Goal::default() });
    }

    #[test]
    fn the_updates_of_a_machine_show_whether_another_one_starts() {
        use Phase::{Failed, Stopped, Succeeded, Waiting};
        let failed = |name: &str| Some(NotStarted::Failed(name.to_owned()));
        let up_to_date = Some(NotStarted::UpToDate);
        let none: Option<NotStarted> = None;
        for (updates, why) in [
            (vec![(Some("b"), (Succeeded, ""))], none.clone()),
            (vec![(Some("a"), (Succeeded, ""))], up_to_date.clone()),
            (vec![(Some("a"), (Succeeded, "")), (Some("b"), (Succeeded, ""))], none.clone()),
            (vec![(Some("a"), (Succeeded, "")), (None, (Succeeded, ""))], up_to_date),
            (vec![(Some("b"), (Waiting, ""))], Some(NotStarted::Unfinished("m-1".into()))),
            (vec![(None, (Waiting, ""))], Some(NotStarted::Unfinished("m-1".into()))),
            (vec![(Some("a"), (Failed, "StepFailed"))], failed("m-1")),
            (vec![(Some("a"), (Stopped, "Aborted"))], failed("m-1")),
            // Other settings are another change.
            (vec![(Some("b"), (Failed, "StepFailed"))], none.clone()),
            (vec![(Some("a"), (Stopped, SUPERSEDED))], none.clone()),
            (vec![(Some("a"), (Stopped, MEMBER_MISSING))], none.clone()),
            (vec![(None, (Failed, "StepFailed"))], failed("m-1")),
            (vec![(None, (Failed, "StepFailed")), (None, (Succeeded, ""))], none),
        ] {
            let made: Vec<NodeUpdate> =
                (1..).zip(&updates).map(|(n, (server, end))| update(n, *server, *end)).collect();
            let found = decided(SettingsChanges::Start, &machine(&json!({})), &made, false);
            assert_eq!(found.err(), why, "{updates:?}");
        }
    }

    #[test]
    fn a_failed_update_is_repeated_on_request() {
        let failed = update(3, Some("a"), (Phase::Failed, "StepFailed"));
        for (named, starts) in [("m-3", true), ("m-2", false)] {
            let machine = machine(&json!({"/metadata/annotations": {keys::RETRY: named}}));
            let updates = std::slice::from_ref(&failed);
            let found = decided(SettingsChanges::Start, &machine, updates, false);
            assert_eq!(found.is_ok(), starts, "{named}");
        }
    }

    #[test]
    fn settings_that_a_host_does_not_get_start_nothing() {
        let (machine, none) = (machine(&json!({})), PlanSettings::default());
        let before = update(1, Some("a"), (Phase::Succeeded, ""));
        for updates in [vec![], vec![&before]] {
            let found = start(&SettingsSeen {
                changes: SettingsChanges::Start,
                settings: &none,
                machine: &machine,
                updates: &updates,
                is_rolled_out: false,
            });
            assert_eq!(found, Err(NotStarted::UpToDate));
        }
    }
}
