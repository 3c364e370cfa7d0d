//! Every decision of Refit, as pure functions of a snapshot and a timestamp.
//!
//! This crate has no client, no socket and no clock: the caller reads the objects first and writes
//! the result.
//!
//! | module | decides |
//! |---|---|
//! | [`annotation`] | what a Machine's annotations ask for, and what they show |
//! | [`mod@ask`] | how a Machine gets a NodeUpdate |
//! | [`cel`] | whether an expression that a user has written is true |
//! | [`certificates`] | when the certificates of the hooks and their authorities are renewed |
//! | [`change`] | what differs, which updater covers it, how the hooks respond |
//! | [`changed_settings`] | whether HostSettings that change start updates |
//! | [`node`] | the next write of one machine's update, and what a failure means |
//! | [`gates`] | whether the health gates of a group are open |
//! | [`group`] | which machine may claim a slot, what an UpdateGroup shows |
//! | [`hold`] | which Machines of an owner Cluster API may create and delete |
//! | [`invariants`] | what must hold after every write |
//! | [`managed`] | when a whole cluster is upgraded, in which steps, and its history |
//! | [`task`] | what an UpgradeTask does next |
//! | [`windows`] | when maintenance windows are open |
//! | [`report`] | every reason to wait or refuse |

pub mod annotation;
pub mod ask;
pub mod cel;
pub mod certificates;
pub mod change;
pub mod changed_settings;
pub mod gates;
pub mod group;
pub mod hold;
pub mod invariants;
pub mod managed;
pub mod node;
pub mod progress;
pub mod report;
pub mod task;
pub mod windows;
