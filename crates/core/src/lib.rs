//! Every decision of Refit, as pure functions over a snapshot and a time
pub mod rollout;
pub mod change;
pub mod safeguards;
pub mod version;
pub mod group;
pub mod node;
pub mod report;
pub mod invariants;
