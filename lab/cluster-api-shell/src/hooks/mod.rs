//! Calls runtime extensions as Cluster API does (`docs/facts/hooks.md`).
//!
//! | module | purpose |
//! |---|---|
//! | `client` | one call over HTTPS: path, timeout, response |
//! | `discovery` | validates a Discovery response |
//! | `registry` | which extension is called for which hook and namespace |
//! | `patch` | applies an extension's patches and compares the result |
//! | `cache` | results cached between calls |

mod cache;
mod client;
mod discovery;
mod patch;
mod registry;

pub(crate) use cache::{CallCache, DecisionCache};
pub(crate) use client::{HookClient, Refusal, Target};
pub(crate) use discovery::validate;
pub use patch::for_hooks;
pub(crate) use patch::{MachineSetVerdict, MachineVerdict};
pub(crate) use registry::{only_one, selects};

/// Why a hook could not be called, or returned no usable response. The texts are Cluster API's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    /// The call itself failed.
    #[error("failed to call extension handler {handler:?}: {reason}")]
    Call {
        /// The handler.
        handler: String,
        /// What went wrong.
        reason: String,
    },
    /// No extension is registered for the hook.
    #[error("no extensions registered for {0} hook")]
    NoExtension(&'static str),
    /// More than one extension is registered for the hook.
    #[error("found multiple {hook} hooks ({handlers}): only one hook is supported")]
    Multiple {
        /// The hook.
        hook: &'static str,
        /// The handlers.
        handlers: String,
    },
    /// An ExtensionConfig that selects the namespace has not been discovered yet.
    #[error("ExtensionConfig {0} has not been discovered yet")]
    NotDiscovered(String),
    /// An ExtensionConfig is not usable.
    #[error("ExtensionConfig {name}: {reason}")]
    Config {
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// An extension's patch cannot be applied.
    #[error("failed to apply patch: {0}")]
    Patch(String),
}
