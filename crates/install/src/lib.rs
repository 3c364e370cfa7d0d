//! The manifests of an installation, and applying them.
//!
//! [`mod@manifests`] holds what `deploy/` says, so that one binary is enough to install Refit;
//! [`mod@apply`] brings it into a cluster. What it applies is what it prints.

pub mod apply;
pub mod manifests;

pub use apply::{Applied, InstallError, ObjectChange, apply};
pub use manifests::{
    Choices, Manifest, Part, ProgramSourceError, kubeadm_config, manifests, objects,
};
