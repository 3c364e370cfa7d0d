//! Health gates: whether what a group's pacing asks for holds, before its next machine begins.
//!
//! The caller asks Prometheus and reads the objects; here is what the answers mean. A gate is closed unless it is known to
//! be open.
//!
//! | module | decides |
//! |---|---|
//! | [`prometheus`] | what is asked of Prometheus, and what its answers mean |
//! | [`objects`] | whether an expression is true for each object |

pub mod objects;
pub mod prometheus;

use refit_kinds::refit::{ClusterCheck, PacingGate};

use crate::managed::health::{Health, HealthSeen};

/// How many alerts, values or objects a message names.
const NAMED: usize = 3;
/// How many closed gates a message explains.
const EXPLAINED: usize = 3;
/// How many characters the explanation of one has at most.
const MAX_WHY: usize = 300;

/// A gate that is closed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClosedGate {
    /// Its name.
    pub name: String,
    /// Why it is closed. It stays the same as long as its cause does.
    pub why: String,
}

impl ClosedGate {
    /// A gate of this name that is closed for this reason, which is shortened.
    pub fn new(name: &str, why: &str) -> Self {
        let mut shown: String = why.chars().take(MAX_WHY).collect();
        if shown.len() < why.len() {
            shown.push_str("...");
        }
        Self { name: name.to_owned(), why: shown }
    }

    /// Describes closed gates.
    pub fn sentence(closed: &[Self]) -> String {
        let explained = closed.iter().take(EXPLAINED);
        let mut all: Vec<String> =
            explained.map(|Self { name, why }| format!("gate {name} is closed: {why}")).collect();
        let rest = closed.len().saturating_sub(EXPLAINED);
        if rest > 0 {
            all.push(format!("and {rest} more"));
        }
        all.join("; ")
    }
}

/// What was found when gates were checked.
#[derive(Clone, Debug, PartialEq)]
pub struct GatesRead {
    /// The gates, as they were then.
    pub gates: Vec<PacingGate>,
    /// Those that are closed.
    pub closed: Vec<ClosedGate>,
}

/// The Cluster that gates are checked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatedCluster<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl GatedCluster<'_> {
    /// A text with the name and the namespace of the Cluster in place of `$(cluster)` and `$(namespace)`.
    pub fn fill_in(&self, text: &str) -> String {
        text.replace("$(cluster)", self.name).replace("$(namespace)", self.namespace)
    }
}

/// Whether checks of the Cluster pass, apart from machines that are being updated.
pub fn check_cluster(checks: &[ClusterCheck], seen: HealthSeen) -> Result<(), String> {
    Health::by(checks, &seen.without_updated()).problem().map_or(Ok(()), Err)
}

/// The first of several texts, and how many there are more.
fn some_of(all: &[String]) -> String {
    let named = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMED) {
        0 => named,
        rest => format!("{named} and {rest} more"),
    }
}
