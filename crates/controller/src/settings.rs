//! What an operator may choose.

use std::time::Duration;

use refit_core::change::OnUncovered;

/// What an operator may choose for the whole controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What happens to a change that no updater covers, where neither owner nor Cluster says.
    pub on_uncovered: OnUncovered,
    /// How old an agent's report may be before its host counts as unknown. The agent reports every
    /// five minutes: two reports may get lost.
    pub report_stale_after: Duration,
    /// How long before the caller's deadline a hook answers that it ran out of time.
    pub hook_margin: Duration,
    /// How many NodeUpdates are worked on at once.
    pub node_update_workers: usize,
    /// How many UpdateGroups are worked on at once.
    pub update_group_workers: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            on_uncovered: OnUncovered::Preserve,
            report_stale_after: Duration::from_mins(15),
            hook_margin: Duration::from_secs(1),
            node_update_workers: 16,
            update_group_workers: 8,
        }
    }
}
