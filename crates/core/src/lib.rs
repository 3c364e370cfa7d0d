//! Every decision of Refit, as pure functions over a snapshot and a time
//!
//! No client, no socket, no clock: whoever calls reads the objects first and writes what comes out.
//!
//! | module | decides |
//! |---|---|
//! | [`certificates`] | when the hook server's certificate and its authority are renewed |
//! | [`change`] | what differs, which updater covers it, what the hooks answer |
//! | [`node`] | the next move of one machine's update, and what a failure means |
//! | [`group`] | who may claim a slot, what a group shows |
//! | [`invariants`] | what must hold after every write |
//! | [`report`] | every reason to wait or refuse |

pub mod certificates;
pub mod change;
pub mod group;
pub mod invariants;
pub mod node;
pub mod progress;
pub mod report;
