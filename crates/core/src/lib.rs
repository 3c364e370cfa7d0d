//! Every decision of Refit, as pure functions over a snapshot and a time
pub mod change;
pub mod group;
pub mod invariants;
pub mod node;
pub mod report;
pub mod rollout;
pub mod safeguards;
pub mod version;
