//! Describes the current step of one machine.

use refit_core::progress::MachineProgress;
use refit_kinds::refit::Phase;
use refit_kinds::version::StatedVersion;

/// The current step of one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Name of the phase, such as `Draining`.
    pub(crate) phase: String,
    /// Details, such as the step on the host or the blocker.
    pub(crate) detail: String,
    /// Progress from 0 to 100.
    pub(crate) percent: u64,
    /// Predicted remaining time, if there is data for a prediction.
    pub(crate) remaining_seconds: Option<i32>,
}

impl Step {
    /// Reports whether both steps give the same line.
    pub(super) fn reads_as(&self, other: &Self) -> bool {
        (&self.phase, &self.detail, self.percent) == (&other.phase, &other.detail, other.percent)
    }

    /// Joins phase and detail.
    pub(crate) fn words(&self) -> String {
        if self.detail.is_empty() {
            self.phase.clone()
        } else {
            format!("{}: {}", self.phase, self.detail)
        }
    }
}

/// Reports whether a machine has reached the version `target`, its owner requests no other change,
/// and no work is in progress.
pub(crate) fn is_done(row: &MachineProgress, target: &StatedVersion) -> bool {
    row.wanted_version == *target
        && row.kubelet_version == *target
        && row.machine_phase == "Running"
        && !row.in_progress
        && !row.outdated
        && row.phase.is_none_or(Phase::is_final)
}

/// Returns the current step of a machine on its way to the version `target`.
pub(crate) fn step(row: &MachineProgress, target: &StatedVersion) -> Step {
    let percent = u64::try_from(row.percent.clamp(0, 100)).unwrap_or_default();
    let at = |phase: &str, detail: &str, percent| Step {
        phase: phase.to_owned(),
        detail: detail.to_owned(),
        percent,
        remaining_seconds: None,
    };
    if is_done(row, target) {
        let updated = row.phase == Some(Phase::Succeeded) && row.goal_version == *target;
        return if updated { at("Updated", "same machine", 100) } else { at("Ready", "", 100) };
    }
    if row.machine_phase == "Deleting" {
        return at("Deleting", "Cluster API replaces it", percent);
    }
    if row.retry_asked && row.phase.is_some_and(Phase::is_final) {
        return at("Waiting", "retrying", percent);
    }
    // An update that has ended is irrelevant for a version requested later.
    let speaks = |phase: &Phase| !phase.is_final() || row.goal_version == row.wanted_version;
    // The version is reached, and another change is requested. Just after an update, the condition
    // for that may be stale.
    let settled = !row.in_progress && row.machine_phase == "Running";
    let again = row.outdated && settled && row.phase == Some(Phase::Succeeded);
    match row.phase.filter(speaks) {
        _ if (row.wanted_version != *target || again) && !row.is_under_way() => {
            at("Waiting", "other machines go first", 0)
        }
        Some(phase) => Step {
            remaining_seconds: row.remaining_seconds.filter(|rest| *rest > 0),
            ..at(&format!("{phase:?}"), detail(row, phase), percent)
        },
        None => {
            let phase = match row.machine_phase.as_str() {
                "" => "Pending",
                phase => phase,
            };
            at(phase, "", 0)
        }
    }
}

/// Chooses the detail: the final message first, then the blocker, then the current step.
fn detail(row: &MachineProgress, phase: Phase) -> &str {
    let blocker = row.blocked_by.first().map(|blocker| blocker.message.as_str());
    match blocker.filter(|message| !message.is_empty()) {
        Some(message) if !phase.is_final() => message,
        _ if phase.is_final() || row.step.is_empty() => &row.message,
        _ => &row.step,
    }
}

#[cfg(test)]
mod tests {
    use refit_kinds::refit::Blocker;

    use super::*;

    const OLD: &str = "v1.34.2";
    const NEW: &str = "v1.35.0";

    fn row(wanted: &str, kubelet: &str, phase: Option<Phase>) -> MachineProgress {
        MachineProgress {
            machine_phase: "Running".into(),
            wanted_version: wanted.into(),
            kubelet_version: kubelet.into(),
            goal_version: NEW.into(),
            phase,
            percent: 40,
            step: "kubeadm-upgrade".into(),
            message: "words".into(),
            ..MachineProgress::default()
        }
    }

    fn words(row: &MachineProgress) -> String {
        step(row, &NEW.into()).words()
    }

    #[test]
    fn a_machine_goes_from_waiting_to_updated() {
        assert_eq!(words(&row(OLD, OLD, None)), "Waiting: other machines go first");
        let busy = row(NEW, OLD, Some(Phase::Upgrading));
        assert_eq!(words(&busy), "Upgrading: kubeadm-upgrade");
        let done = row(NEW, NEW, Some(Phase::Succeeded));
        assert_eq!(words(&done), "Updated: same machine");
        assert_eq!(words(&row(NEW, NEW, None)), "Ready");
    }

    #[test]
    fn a_blocker_is_shown_instead_of_the_step() {
        let mut blocked = row(NEW, OLD, Some(Phase::Draining));
        blocked.blocked_by.push(Blocker {
            reason: "PodDisruptionBudget".into(),
            object: "default/web".into(),
            pod: "default/web-1".into(),
            message: "waiting to evict".into(),
            since: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                "2026-03-02T08:00:00Z".parse().unwrap(),
            ),
        });
        assert_eq!(words(&blocked), "Draining: waiting to evict");
    }

    #[test]
    fn an_earlier_result_is_not_taken_for_the_new_update() {
        let mut ended = row(OLD, OLD, Some(Phase::Succeeded));
        ended.goal_version = OLD.into();
        assert_eq!(words(&ended), "Waiting: other machines go first");
        ended.wanted_version = NEW.into();
        assert_eq!(words(&ended), "Running");
        let mut failed = row(NEW, OLD, Some(Phase::Failed));
        assert_eq!(words(&failed), "Failed: words");
        failed.retry_asked = true;
        assert_eq!(words(&failed), "Waiting: retrying");
    }

    #[test]
    fn a_machine_whose_owner_wants_more_than_a_version_waits() {
        let mut outdated = row(NEW, NEW, Some(Phase::Succeeded));
        outdated.outdated = true;
        assert_eq!(words(&outdated), "Waiting: other machines go first");
        assert!(!is_done(&outdated, &NEW.into()));
    }

    #[test]
    fn nothing_is_done_while_cluster_api_still_asks() {
        let mut asked = row(NEW, NEW, Some(Phase::Succeeded));
        asked.in_progress = true;
        assert!(!is_done(&asked, &NEW.into()));
        asked.in_progress = false;
        assert!(is_done(&asked, &NEW.into()));
    }
}
