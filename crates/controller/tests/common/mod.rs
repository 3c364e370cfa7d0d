//! What the tests of the controller share.

pub(crate) mod hooks;
pub(crate) mod objects;
pub(crate) mod site;
